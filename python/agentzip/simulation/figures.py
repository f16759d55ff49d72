"""
What is told of a simulated host and of a fleet.  Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentzip.accounting import percentile
from agentzip.simulation.model import HostRun, HostShape

__all__ = ["FleetFigures", "HostFigures", "host_figures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures:
    """The figures of hosts that were simulated, taken together."""

    mode: str
    sandboxes: int
    """On the fullest."""
    finished: int
    """Of all hosts."""
    unfinished: int
    peak_bytes: int
    """Of the fullest host, the starts included; what others use left out."""
    turns_peak_bytes: int
    """While turns were taken."""
    mean_bytes: int
    above_bytes: int
    """More than the host has: only mode none can, and would be killed for it."""
    wake_ms: dict[str, float]
    storm_wake_ms: dict[str, float]
    turn_s: dict[str, float]
    task_s: float
    cpu_percent: float
    """AgentZip's, of the whole machine, while turns were taken."""
    cpu_s: float
    pool_bytes: int
    memory_wait_s: float
    """Longest that a wake waited for memory."""
    refaults: int
    stuck: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFigures:
    """How many hosts a fleet needs in one mode, and what goes on there."""

    mode: str
    sandboxes: int
    hosts: int | None
    """None if no number of hosts keeps the bounds."""
    sandboxes_per_host: int
    net_bytes: int
    """Mean net memory of a sandbox, that the packing went by."""
    fill: float
    """Part of a host's memory that was packed."""
    why: str
    """What stood against packing more; empty if nothing did."""
    simulated: HostFigures | None


def host_figures(runs: Sequence[HostRun], shape: HostShape) -> HostFigures:
    """
    The figures of some hosts of one fleet and mode.

    Args:
        runs: One for each host that was simulated, at least one.
        shape: What the hosts are.
    """
    wakes = [1000 * seconds for run in runs for seconds in run.wakes_s]
    storms = [1000 * seconds for run in runs for seconds in run.storm_wakes_s]
    turns = [seconds for run in runs for seconds in run.turns_s]
    tasks = [seconds for run in runs for seconds in run.tasks_s]
    fullest = max(runs, key=lambda run: run.sandboxes)
    wall_s = sum(run.wall_s for run in runs)
    own_s = sum(run.own_cpu_s for run in runs)
    return HostFigures(
        mode=fullest.mode,
        sandboxes=fullest.sandboxes,
        finished=sum(run.finished for run in runs),
        unfinished=sum(run.sandboxes - run.finished for run in runs),
        peak_bytes=int(max(run.most_bytes for run in runs)),
        turns_peak_bytes=int(max(run.peak_bytes for run in runs)),
        mean_bytes=int(fullest.mean_bytes),
        above_bytes=int(max(run.above_bytes for run in runs)),
        wake_ms=_spread(wakes),
        storm_wake_ms=_spread(storms),
        turn_s=_spread(turns),
        task_s=sum(tasks) / len(tasks) if tasks else 0.0,
        cpu_percent=100 * own_s / (wall_s * shape.cores) if wall_s > 0 else 0.0,
        cpu_s=own_s,
        pool_bytes=int(fullest.pool_bytes),
        memory_wait_s=max(run.memory_wait_s for run in runs),
        refaults=sum(run.refaults for run in runs),
        stuck=next((run.stuck for run in runs if run.stuck), ""),
    )


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    named = {f"p{edge}": percentile(values, edge) for edge in (50, 95, 99)}
    return {"mean": sum(values) / len(values), **named}
