"""
Sandboxes put in order and added up: the same sums for `stats`, `status`, `top` and the metrics.

Rates of several sandboxes are means weighted by wakes, because each wake counts once.  Percentiles
cannot be merged: a host gets the middle of its sandboxes' medians, and the P99 of the worst one.
Everything here is arithmetic on what a fleet says: nothing is read or asked.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agentzip.policy import patterns
from agentzip.sandboxes import PHASES, SandboxStatus

__all__ = ["Totals", "add_up", "at_home_bytes", "by_memory", "pages_ratio", "select"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Several sandboxes together; sizes in bytes."""

    sandboxes: int
    phases: dict[str, int]
    """How many are in each phase, in the order of a life; phases without any are left out."""
    resident_bytes: int
    orig_mem: int
    """Memory that is out, before encoding."""
    stored_mem: int
    """The same in the pool; what several share counts for each."""
    table_bytes: int
    faults: int
    wakes: int
    cpu_s: float
    """Processor seconds that paging them out and in has taken."""
    prefetch_hit_rate: float | None
    prefetch_waste: float | None
    wake_p50_ms: float | None
    """Middle of the sandboxes' medians."""
    wake_p99_ms: float | None
    """99th percentile of the sandbox where it is largest."""
    pinned: int
    left_alone: int


def add_up(sandboxes: Sequence[SandboxStatus]) -> Totals:
    """Add sandboxes up; of none, every rate and latency is None."""
    counts = dict.fromkeys(PHASES, 0)
    for sandbox in sandboxes:
        counts[sandbox.phase] = counts.get(sandbox.phase, 0) + 1
    medians = [one.wake_p50_ms for one in sandboxes if one.wake_p50_ms is not None]
    return Totals(
        sandboxes=len(sandboxes),
        phases={phase: count for phase, count in counts.items() if count},
        resident_bytes=sum(one.rss_bytes for one in sandboxes),
        orig_mem=sum(one.bytes_logical for one in sandboxes),
        stored_mem=sum(one.bytes_pool for one in sandboxes),
        table_bytes=sum(one.bytes_table for one in sandboxes),
        faults=sum(one.faults for one in sandboxes),
        wakes=sum(one.wakes for one in sandboxes),
        cpu_s=sum(one.cpu_s for one in sandboxes),
        prefetch_hit_rate=_mean_by_wakes(sandboxes, lambda one: one.prefetch_hit_rate),
        prefetch_waste=_mean_by_wakes(sandboxes, lambda one: one.prefetch_waste),
        wake_p50_ms=statistics.median_low(medians) if medians else None,
        wake_p99_ms=max(
            (one.wake_p99_ms for one in sandboxes if one.wake_p99_ms is not None), default=None
        ),
        pinned=sum(one.pinned for one in sandboxes),
        left_alone=sum(bool(one.left_alone) for one in sandboxes),
    )


def _mean_by_wakes(
    sandboxes: Iterable[SandboxStatus], rate: Callable[[SandboxStatus], float | None]
) -> float | None:
    weighted = [
        (value, one.wakes) for one in sandboxes if (value := rate(one)) is not None and one.wakes
    ]
    wakes = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / wakes if wakes else None


def at_home_bytes(sandbox: SandboxStatus) -> int:
    """What a sandbox would take with everything home: a size that paging it out does not change."""
    return sandbox.rss_bytes + sandbox.bytes_logical


def by_memory(sandboxes: Iterable[SandboxStatus]) -> list[SandboxStatus]:
    """The largest first, by what they would take at home; equal ones by name."""
    return sorted(sandboxes, key=lambda one: (-at_home_bytes(one), one.name))


def pages_ratio(sandbox: SandboxStatus) -> float | None:
    """Memory that is out by what it takes in the pool; None if it takes nothing."""
    return sandbox.bytes_logical / sandbox.bytes_pool if sandbox.bytes_pool else None


def select(sandboxes: Iterable[SandboxStatus], chosen: str) -> list[SandboxStatus]:
    """
    Sandboxes of one scope, or by name.

    Args:
        sandboxes: All there are.
        chosen: Pattern of a scope as `scope list` shows it, or a pattern, in the same language, of
            names or control groups of sandboxes.

    Raises:
        InvalidSetting: it is no pattern.
    """
    pattern = patterns.checked(chosen)
    return [
        one
        for one in sandboxes
        if one.scope in {chosen, pattern}
        or patterns.matches(pattern, one.name)
        or (one.cgroup and patterns.matches(pattern, one.cgroup.strip("/")))
    ]
