"""
`agentzip bench knob`: what turning `policy.latency_target` does, in mode `full`.

A larger target lets more memory leave and wakes take longer; the result says where it does not.
Judged are wakes whose habit is known, on average: how long the first wakes of a sandbox take hangs
on what nobody knows yet, and the longest of a run are these.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from agentzip.bench.fanout.plan import FanoutPlan
from agentzip.bench.fanout.result import ModeResult, figures
from agentzip.bench.fanout.run import ground, run_mode, telling
from agentzip.errors import InvalidSetting

__all__ = ["KnobPoint", "KnobResult", "breaks", "known_wake_ms", "run_knob"]

_SLACK = 0.05
"""Two runs of the same setting differ by as much; a smaller step back is no step."""


@dataclass(frozen=True, slots=True)
class KnobPoint:
    """One setting and its figures."""

    latency_target_s: float
    figures: ModeResult


@dataclass(slots=True)
class KnobResult:
    """All settings, the smallest target first."""

    plan: dict[str, object]
    none: ModeResult
    points: list[KnobPoint] = field(default_factory=list)
    saved_breaks: list[str] = field(default_factory=list)
    """Settings that save less than a smaller one did."""
    wake_breaks: list[str] = field(default_factory=list)
    """Settings whose known wakes are shorter, on average, than a smaller one's."""


def run_knob(
    plan: FanoutPlan, targets_s: Sequence[float], tell: Callable[[str], None] = lambda _: None
) -> KnobResult:
    """
    Run mode none once and mode full for every target.

    Raises:
        InvalidSetting: there are fewer than two targets, or one is not above zero.
        AgentZipError: the bench or the daemon cannot work here.
    """
    targets = sorted(set(targets_s))
    if len(targets) < 2 or targets[0] <= 0:
        raise InvalidSetting(
            f"latency targets say nothing: {', '.join(f'{one:g}s' for one in targets) or 'none'}",
            "give two or more above zero, like 1ms,20ms,1s",
        )
    with ground(plan) as place:
        none = run_mode("none", plan, place, telling(tell, "none"))
        result = KnobResult(asdict(plan), figures(none, none))
        for target in targets:
            about = f"{target * 1000:g} ms"
            turned = replace(plan, latency_target_s=target)
            run = run_mode("full", turned, place, telling(tell, about))
            result.points.append(KnobPoint(target, figures(run, none)))
    names = [f"{one.latency_target_s * 1000:g} ms" for one in result.points]
    saved = [float(one.figures.pss_gain_bytes) for one in result.points]
    wakes = [known_wake_ms(one.figures) for one in result.points]
    result.saved_breaks, result.wake_breaks = breaks(names, saved), breaks(names, wakes)
    return result


def known_wake_ms(figures: ModeResult) -> float:
    """Mean of the wakes whose habit is known; of all, if no sandbox came to one."""
    return figures.wake_known_ms.get("mean") or figures.wake_ms.get("mean") or 0.0


def breaks(names: Sequence[str], values: Sequence[float]) -> list[str]:
    """Names whose value is below the largest before it, by more than runs differ."""
    found = []
    highest = 0.0
    for name, value in zip(names, values, strict=True):
        if value < highest * (1 - _SLACK):
            found.append(name)
        highest = max(highest, value)
    return found
