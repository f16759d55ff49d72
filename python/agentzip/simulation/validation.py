"""
A simulated run beside a real one of more sandboxes than the profile has.  Pure.

Host, think times and turns are those of the real run; what a sandbox takes is from the small one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from agentzip.errors import InvalidSetting
from agentzip.policy.planner import Watermarks
from agentzip.simulation.figures import host_figures
from agentzip.simulation.model import HostShape, Play, simulate_host
from agentzip.simulation.profiles import Measured, Profile, number, profiles_of

__all__ = ["Comparison", "Validation", "validate"]

_POOL_BYTES_MAX = 8 * 10**9
"""`pool.max_size` of the daemon that the bench starts: the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of one mode."""

    mode: str
    figure: str
    real: float
    simulated: float

    @property
    def error_percent(self) -> float | None:
        """Of the simulation; None where the real figure is 0."""
        return 100 * (self.simulated - self.real) / self.real if self.real else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """All figures of all modes that both runs have."""

    workload: str
    from_sandboxes: int
    sandboxes: int
    turns: int
    think_s: float
    compared: list[Comparison]
    missing: list[str]
    """Modes of the real run that the profile lacks."""


def validate(small: Measured, real: Measured) -> Validation:
    """
    Simulate the real run from the small one's profile, and compare.

    Raises:
        InvalidSetting: the two do not belong together, or a figure is missing.
    """
    if small.workload != real.workload:
        raise InvalidSetting(
            f"{real.name}: plan.workload is {real.workload!r}, the profile's is {small.workload!r}",
            "give two runs of one workload",
        )
    if small.plan.get("size_bytes") != real.plan.get("size_bytes"):
        raise InvalidSetting(
            f"{real.name}: plan.size_bytes is {real.plan.get('size_bytes')}, "
            f"the profile's is {small.plan.get('size_bytes')}",
            "give two runs with the same --size",
        )
    sandboxes = int(real.number("plan.sandboxes", 1))
    play = Play(
        turns=int(real.number("plan.turns", 1)),
        think_s=real.number("plan.think_s"),
        notice_s=real.number("plan.notice_s"),
        seed=int(real.number("plan.seed")),
        latency_target_s=real.latency_target_s,
    )
    profiles = profiles_of(small)
    compared: list[Comparison] = []
    for mode, profile in profiles.items():
        if mode in real.modes:
            compared += _compare(real, profile, play, sandboxes)
    return Validation(
        workload=real.workload,
        from_sandboxes=int(small.number("plan.sandboxes")),
        sandboxes=sandboxes,
        turns=play.turns,
        think_s=play.think_s,
        compared=compared,
        missing=[mode for mode in real.modes if mode not in profiles],
    )


def _shape(real: Measured, mode: str) -> HostShape:
    """The host of a run, as busy as it was with what was not the run's."""
    marks = real.host.get("watermarks")
    start, stop, between = (
        number(marks, key, f"{real.name}: host.watermarks.{key}") / 100
        for key in ("start", "stop", "between_percent")
    )
    memory = int(real.number("host.memory_bytes", 1))
    cores = int(real.number("host.cpus", 1))
    found = real.modes[mode]
    profile, wall_s = found.get("profile"), _real(real, found, "wall_s")
    busy, turn_s = (
        number(profile, key, f"{real.name}: profile.{key} of mode {mode}")
        for key in ("busy_share", "turn_cpu_s")
    )
    ours_s = _real(real, found, "cpu_s") + turn_s * real.number("plan.turns") * real.number(
        "plan.sandboxes"
    )
    return HostShape(
        memory_bytes=memory,
        cores=cores,
        others_busy=min(max(busy - ours_s / (wall_s * cores), 0.0), 1.0) if wall_s else 0.0,
        other_bytes=max(memory - int(real.number("host.available_bytes")), 0),
        pool_bytes_max=_POOL_BYTES_MAX,
        watermarks=Watermarks(start=start, stop=stop, between_share=between),
    )


def _compare(real: Measured, profile: Profile, play: Play, sandboxes: int) -> list[Comparison]:
    found = real.modes[profile.mode]
    shape = _shape(real, profile.mode)
    run = simulate_host(shape, play, [profile] * sandboxes)
    told = host_figures([run], shape)
    pairs = {
        "mean memory": (_real(real, found, "cost_bytes"), float(told.mean_bytes)),
        "peak memory": (_peak(real, found), float(told.turns_peak_bytes)),
        "pool": (_real(real, found, "pool_bytes"), float(told.pool_bytes)),
        "wake P50": _milliseconds(found, told.wake_ms, "p50"),
        "wake P99": _milliseconds(found, told.wake_ms, "p99"),
        "turn mean": _seconds(found, told.turn_s, "mean"),
        "turn P50": _seconds(found, told.turn_s, "p50"),
        "turn P99": _seconds(found, told.turn_s, "p99"),
        "task": (_real(real, found, "task_s"), told.task_s),
        "CPU": (_real(real, found, "cpu_s"), told.cpu_s),
        "finished": (_real(real, found, "finished"), float(told.finished)),
    }
    if profile.mode == "none":
        # There is no pool, and what the kernel's threads take is not ours.
        del pairs["pool"], pairs["CPU"]
    return [
        Comparison(mode=profile.mode, figure=figure, real=one, simulated=other)
        for figure, (one, other) in pairs.items()
        if isfinite(one)
    ]


def _real(real: Measured, found: Mapping[str, Any], key: str) -> float:
    return number(found, key, f"{real.name}: {key} of mode {found['mode']}")


def _peak(real: Measured, found: Mapping[str, Any]) -> float:
    """The most that sandboxes and AgentZip took at once, as far as samples tell."""
    memory = found.get("memory")
    samples = memory if isinstance(memory, list) else []
    name = f"{real.name}: memory.cost_bytes of mode {found['mode']}"
    sizes = [number(one, "cost_bytes", name) for one in samples]
    if not sizes:
        raise InvalidSetting(f"{name} is missing", "run the bench for longer than a second")
    return max(sizes)


def _milliseconds(
    found: Mapping[str, Any], told: Mapping[str, float], key: str
) -> tuple[float, float]:
    name = f"wake_ms.{key} of mode {found['mode']}"
    return number(found.get("wake_ms"), key, name) / 1000, told.get(key, 0.0) / 1000


def _seconds(found: Mapping[str, Any], told: Mapping[str, float], key: str) -> tuple[float, float]:
    name = f"turn_s.{key} of mode {found['mode']}"
    return number(found.get("turn_s"), key, name), told.get(key, 0.0)
