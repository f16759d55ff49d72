"""
The figures of a fleet and of a validation, as tables and as one JSON object.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from agentzip.simulation.figures import FleetFigures
from agentzip.simulation.model import HostShape, Play
from agentzip.simulation.profiles import Profile
from agentzip.simulation.validation import Comparison, Validation
from agentzip.units import format_bytes

__all__ = [
    "fleet_json",
    "print_fleet",
    "print_validation",
    "validation_json",
]

MEANINGS = {
    "hosts": "hosts of this size that the fleet needs; null if no number of them keeps the bounds",
    "sandboxes_per_host": "on the fullest host",
    "net_bytes": "mean memory of a sandbox: resident + pool + tables, without what all share",
    "fill": "part of a host's memory that was packed by net memory",
    "why": "what stood against the next denser packing",
    "peak_bytes": "most memory of a host that was used at once, starts included, others left out",
    "turns_peak_bytes": "the same while turns were taken",
    "mean_bytes": "mean of the fullest host while turns were taken",
    "above_bytes": "peak beyond the host's memory; mode none only",
    "wake_ms": "from the model's answer until the agent has read the state that every turn needs",
    "storm_wake_ms": "of those wakes that came all at one moment",
    "turn_s": "from the model's answer to the agent's result",
    "cpu_percent": "AgentZip's processor time, of the machine, while turns were taken",
    "memory_wait_s": "longest that a wake waited for memory",
}
"""What each figure of the JSON object is."""


def fleet_json(
    found: Sequence[FleetFigures], kinds: Sequence[Profile], shape: HostShape, play: Play
) -> dict[str, Any]:
    """
    The object that `agentzip simulate --json` prints.

    Args:
        found: Fleet by fleet, mode by mode.
        kinds: What the sandboxes were, one of each workload and mode.
        shape: What the hosts were.
        play: What the sandboxes did.
    """
    return {
        "fleets": [asdict(one) for one in found],
        "profiles": [_profile_json(kind) for kind in kinds],
        "host": asdict(shape),
        "play": asdict(play),
        "meanings": MEANINGS,
    }


def print_fleet(found: Sequence[FleetFigures], shape: HostShape, console: Console) -> None:
    """Print one row for each fleet and mode, and what must be known to read it."""
    title = f"hosts of {format_bytes(shape.memory_bytes)} and {shape.cores} cores"
    table = _table(
        title, *("hosts", "per host", "net", "peak", "mean", "wake P50", "P99", "storm P99"),
        *("turn P99", "CPU"),
    )  # fmt: skip
    for one in found:
        table.add_row(f"{one.sandboxes} {one.mode}", *_fleet_cells(one))
    console.print(table)
    for one in found:
        name = f"{one.sandboxes} {one.mode}"
        if one.hosts is None:
            console.print(f"{name}: no number of hosts keeps the bounds; {one.why}")
        elif one.why:
            console.print(f"{name}: no denser, {one.why}")
        if one.simulated is not None and one.simulated.above_bytes:
            above = format_bytes(one.simulated.above_bytes)
            console.print(f"{name}: {above} more than the host has, which would be killed for it")


def validation_json(found: Validation) -> dict[str, Any]:
    """The object that `agentzip simulate --validate --json` prints."""
    value = asdict(found)
    value["compared"] = [
        {**asdict(one), "error_percent": one.error_percent} for one in found.compared
    ]
    return value


def print_validation(found: Validation, console: Console) -> None:
    """Print each figure beside the real one."""
    title = (
        f"workload {found.workload}: {found.sandboxes} sandboxes, simulated from "
        f"{found.from_sandboxes}"
    )
    table = _table(title, "real", "simulated", "error")
    table.columns[0].no_wrap = True
    for one in found.compared:
        error = one.error_percent
        table.add_row(
            f"{one.mode}: {one.figure}",
            _figure(one, one.real),
            _figure(one, one.simulated),
            "-" if error is None else f"{error:+.1f}%",
        )
    console.print(table)
    if found.missing:
        console.print(f"not in the profile, so not simulated: {', '.join(found.missing)}")


def _fleet_cells(one: FleetFigures) -> list[str]:
    if one.hosts is None or one.simulated is None:
        return ["-"] * 10
    figures = one.simulated
    return [
        str(one.hosts),
        str(one.sandboxes_per_host),
        *(format_bytes(size) for size in (one.net_bytes, figures.peak_bytes, figures.mean_bytes)),
        *(_milliseconds(figures.wake_ms, key) for key in ("p50", "p99")),
        _milliseconds(figures.storm_wake_ms, "p99"),
        f"{figures.turn_s['p99']:.2f} s",
        f"{figures.cpu_percent:.1f}%",
    ]


def _profile_json(kind: Profile) -> dict[str, Any]:
    return {
        "workload": kind.workload,
        "mode": kind.mode,
        "shared_bytes": kind.shared_bytes,
        "stay_pages": kind.stay_pages,
        "movable_pages": kind.movable_pages,
        "learned_pages": kind.learned_pages,
        "ratio": kind.ratio,
        "table_bytes": kind.table_bytes,
        "overhead_bytes": kind.overhead_bytes,
        "faulted_pages_first": kind.first.faulted_pages,
        "faulted_pages_later": kind.later.faulted_pages,
        "restore_us": 1e6 * kind.restore_s,
        "page_out_us_first": 1e6 * kind.encode_s,
        "page_out_us_later": 1e6 * kind.again_s,
        "leave_cores": kind.leave_cores,
        "upkeep_cores": kind.upkeep_cores,
        "turn_cores": kind.turn_cores,
    }


def _figure(one: Comparison, value: float) -> str:
    if one.figure == "finished":
        return f"{value:.0f}"
    if one.figure in {"mean memory", "peak memory", "pool"}:
        return format_bytes(value)
    return f"{value * 1000:.0f} ms" if one.figure.startswith("wake") else f"{value:.2f} s"


def _milliseconds(spread: dict[str, float], key: str) -> str:
    return f"{spread[key]:.0f} ms" if key in spread else "-"


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
