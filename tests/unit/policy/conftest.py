"""Properties are about truth, not about speed: a machine that is busy elsewhere breaks none."""

from hypothesis import HealthCheck, settings

settings.register_profile("policy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("policy")
