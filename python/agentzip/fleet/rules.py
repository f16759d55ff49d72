"""
What an operator sets for the lifecycle, in the terms of the policy; a reload replaces it whole.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentzip.fleet.registry import Sandbox
from agentzip.policy import breakers, planner, temperature

if TYPE_CHECKING:
    # Its checks take longer to import than most commands run.
    from agentzip.config import Policy

__all__ = ["Rules", "rules_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of one daemon."""

    planning: planner.Rules = field(default_factory=planner.Rules)
    thresholds: temperature.Thresholds = field(default_factory=temperature.Thresholds)
    breaker: breakers.Thresholds = field(default_factory=breakers.Thresholds)
    latency_target_s: float = 0.02
    prefetch_window: tuple[int, int] = (16, 256)

    def latency_target_of(self, sandbox: Sandbox) -> float:
        """What a wake of this sandbox may cost, in seconds."""
        own = sandbox.rule.latency_target
        return self.latency_target_s if own is None else own


def rules_of(policy: "Policy") -> Rules:
    """The rules that a configuration asks for."""
    marks = policy.watermarks
    warm_s = policy.warm_threshold_ms / 1000
    return Rules(
        planning=planner.Rules(
            watermarks=planner.Watermarks(
                start=marks.start / 100,
                stop=marks.stop / 100,
                between_share=marks.between_percent / 100,
            ),
            quiet_running_s=warm_s,
        ),
        thresholds=temperature.Thresholds(
            hot_s=policy.hot_threshold_ms / 1000,
            warm_s=warm_s,
            cold_grace_s=policy.cold_grace_period,
        ),
        latency_target_s=policy.latency_target,
        prefetch_window=(policy.prefetch_window[0], policy.prefetch_window[1]),
    )
