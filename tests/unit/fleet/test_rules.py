"""What an operator sets, in the terms of the policy."""

from dataclasses import replace

from agentzip.config import Config, Policy
from agentzip.fleet.rules import Rules, rules_of
from agentzip.policy import planner, temperature
from unit.fleet.fleet_stage import FakeRegistry


def test_each_key_of_the_policy_arrives() -> None:
    """In seconds and shares."""
    rules = rules_of(
        Policy.model_validate(
            {
                "hot_threshold_ms": 500,
                "warm_threshold_ms": 4000,
                "cold_grace_period": "9s",
                "watermarks": {"start": 60, "stop": 40, "between_percent": 5},
                "prefetch_window": [32, 64],
                "latency_target": "50ms",
            }
        )
    )

    assert planner.Watermarks(start=0.6, stop=0.4, between_share=0.05) == rules.planning.watermarks
    assert temperature.Thresholds(hot_s=0.5, warm_s=4.0, cold_grace_s=9.0) == rules.thresholds
    assert (4.0, 0.05, (32, 64)) == (
        rules.planning.quiet_running_s,
        rules.latency_target_s,
        rules.prefetch_window,
    )


def test_the_defaults_of_both_are_the_same() -> None:
    """Who has no file gets what an empty one says."""
    assert Rules() == rules_of(Policy())


def test_a_scope_may_have_a_latency_target_of_its_own() -> None:
    """Else that of the host holds."""
    registry = FakeRegistry()
    registry.put("a", (1, 1))
    sandbox = registry.of["a"]
    rules = Rules(latency_target_s=0.5)

    assert 0.5 == rules.latency_target_of(sandbox)
    own = replace(sandbox, rule=replace(sandbox.rule, latency_target=0.1))
    assert 0.1 == rules.latency_target_of(own)


def test_paging_out_starts_before_a_kubelet_evicts() -> None:
    """Its threshold is 100 MiB available on every host; ours is a share of the host's size."""
    kubelet_bytes = 100 * 2**20
    start = Config().policy.watermarks.start

    for host_gib in (1, 4, 64, 1024):
        available_at_start = host_gib * 2**30 * (100 - start) // 100
        assert available_at_start > kubelet_bytes
