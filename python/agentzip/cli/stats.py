"""
The command that says what the pool holds, what it gains and what it costs: stats.
"""

import time
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from agentzip import model, pager
from agentzip.accounting import Gain, gain_now
from agentzip.cli.asking import chosen_sandboxes, every_sandbox
from agentzip.cli.options import CgroupOption, Invocation, JsonOption
from agentzip.cli.output import clear_screen, print_json, print_table, print_text
from agentzip.cli.rows import NUMBERS, SANDBOX_COLUMNS, phases, sandbox_row, share, times
from agentzip.control import ControlClient
from agentzip.errors import (
    InvalidSetting,
    NoSuchProcess,
    NotAttached,
    NotPermitted,
    TargetGone,
)
from agentzip.host import memory, processors
from agentzip.sandboxes import SandboxStatus
from agentzip.totals import add_up, by_memory, pages_ratio
from agentzip.units import format_bytes, format_microseconds

__all__ = ["by_class_and_codec", "register"]

_WATCH_SECONDS = 2.0
"""Pause between two looks of --watch."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What was asked of the daemon, and of the kernel."""

    engine: model.EngineStats
    spaces: list[model.SpaceStatus]
    """Those that were chosen."""
    sandboxes: list[SandboxStatus]
    census: list[model.CensusRow]
    stored_share: float
    """Share of the chosen spaces in all that is stored."""
    uptime_s: float
    daemon_cpu_s: float
    keeper_cpu_s: float
    file_readahead: dict[str, Any] | None
    """What the daemon foresees of the reads of files; None if that is off."""
    overhead_bytes: int | None
    """Memory of daemon and keeper for themselves; None if it may not be read."""
    gained: Gain | None
    """None if there is nothing, or if its memory may not be read."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("stats")(stats)


def stats(
    context: typer.Context,
    pid: Annotated[
        int | None, typer.Argument(metavar="PID", min=1, help="One process; all if none is given.")
    ] = None,
    cgroup: CgroupOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again every 2 s until Ctrl-C.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """
    Show what is gained and what it costs.

    By sandbox, and by class of memory and codec.

    With --watch and --json each look is one line.
    """
    if pid is not None and cgroup is not None:
        raise InvalidSetting("stats takes a PID or --cgroup, and not both", "leave one out")
    invocation: Invocation = context.obj
    with suppress(KeyboardInterrupt) if watch else nullcontext():
        while True:
            reading = _read(invocation.run_dir, pid, cgroup)
            if as_json:
                print_json(_as_json(reading))
            else:
                if watch:
                    clear_screen()
                _print(reading)
            if not watch:
                return
            time.sleep(_WATCH_SECONDS)


def _read(run_dir: Path, pid: int | None, cgroup: str | None) -> _Reading:
    with ControlClient(run_dir) as client:
        engine, about = client.stats(), client.about()
        every = client.spaces()
        if cgroup is not None:
            sandboxes = chosen_sandboxes(client, cgroup)
            spaces = _spaces_of(every, {pid for one in sandboxes for pid in one.pids})
        elif pid is not None:
            sandboxes = [one for one in every_sandbox(client) if pid in one.pids]
            spaces = [space for space in every if space.pid == pid]
            if not spaces:
                raise NotAttached(f"not attached: {pid}")
        else:
            sandboxes, spaces = every_sandbox(client), every
        census = [row for space in spaces if space.pid for row in _census(client, space.pid)]
    daemon_pid = int(about["pid"])
    total = sum(space.bytes_pool for space in every)
    stored_share = (
        sum(space.bytes_pool for space in spaces) / total if total else float(spaces == every)
    )
    overhead, gained = None, None
    # Who may ask the daemon may not always look into /proc: then the rest is shown.
    with suppress(NotPermitted):
        overhead = memory.own_overhead([daemon_pid, engine.keeper_pid])
        gained = _gain(engine, spaces, stored_share, overhead)
    return _Reading(
        engine=engine,
        spaces=spaces,
        sandboxes=by_memory(sandboxes),
        census=census,
        stored_share=stored_share,
        uptime_s=float(about["uptime_seconds"]),
        daemon_cpu_s=_cpu_seconds(daemon_pid),
        keeper_cpu_s=_cpu_seconds(engine.keeper_pid),
        file_readahead=about.get("file_readahead"),
        overhead_bytes=overhead,
        gained=gained,
    )


def _spaces_of(spaces: list[model.SpaceStatus], pids: set[int]) -> list[model.SpaceStatus]:
    """Spaces of some processes, and of their forked children that have no pid here."""
    ids = {space.id for space in spaces if space.pid in pids}
    while more := {
        space.id
        for space in spaces
        if not space.pid and space.parent_id in ids and space.id not in ids
    }:
        ids |= more
    return [space for space in spaces if space.id in ids]


def _census(client: ControlClient, pid: int) -> list[model.CensusRow]:
    try:
        return client.census(pid)
    except (NotAttached, TargetGone):
        return []  # it ended since the list was made


def _cpu_seconds(pid: int) -> float:
    with suppress(NoSuchProcess):
        return processors.seconds_taken(pid)
    return 0.0  # a fake engine, or a keeper that is being replaced


def _gain(
    engine: model.EngineStats,
    spaces: list[model.SpaceStatus],
    stored_share: float,
    overhead_bytes: int,
) -> Gain | None:
    uses = [memory.sum_use([space.pid] if space.pid else []) for space in spaces]
    return gain_now(
        rss=[use.rss for use in uses],
        pss=[use.pss for use in uses],
        out=[space.bytes_logical for space in spaces],
        # Of pool, daemon and keeper, those that were chosen bear what they have stored.
        pool_bytes=round(engine.pool_bytes * stored_share),
        table_bytes=sum(space.bytes_table for space in spaces),
        overhead_bytes=round(overhead_bytes * stored_share),
    )


def _as_json(reading: _Reading) -> dict[str, Any]:
    engine, gained, totals = reading.engine, reading.gained, add_up(reading.sandboxes)
    # A slot that several targets share is counted once by the pool and once per target here.
    out = sum(space.bytes_logical for space in reading.spaces)
    stored = sum(space.bytes_pool for space in reading.spaces)
    return {
        "orig_mem": out,
        "stored_mem": stored,
        "ratio": gained.ratio if gained else None,
        "ratio_pss": gained.ratio_pss if gained else None,
        "ratio_pages": out / stored if stored else 0.0,
        "host_gain": gained.host_gain_bytes if gained else None,
        "targets": len(reading.spaces),
        "sandboxes": totals.sandboxes,
        "phases": totals.phases,
        "pool_bytes": engine.pool_bytes,
        "table_bytes": engine.table_bytes,
        "index_bytes": engine.index_bytes,
        "dictionary_bytes": engine.dictionary_bytes,
        "overhead_bytes": reading.overhead_bytes,
        "memory_bytes": {
            "total": memory.memory_total(),
            "available": memory.memory_available(),
        },
        "faults": sum(space.faults for space in reading.spaces),
        "wakes": totals.wakes,
        "prefetch": {"hit_rate": totals.prefetch_hit_rate, "waste": totals.prefetch_waste},
        "file_readahead": reading.file_readahead,
        "wake_ms": {"p50": totals.wake_p50_ms, "p99": totals.wake_p99_ms},
        "stop_us": _percentiles(engine.stop),
        "fault_us": _percentiles(engine.fault_service),
        "cpu_seconds": {
            "daemon": reading.daemon_cpu_s,
            "keeper": reading.keeper_cpu_s,
            "sandboxes": totals.cpu_s,
        },
        "by_sandbox": [
            {**asdict(one), "ratio_pages": pages_ratio(one)} for one in reading.sandboxes
        ],
        "by_class": by_class_and_codec(reading.census),
        "engine": asdict(engine),
    }


def _percentiles(latency: model.Latency) -> dict[str, float]:
    return {"p50": latency.p50_us, "p99": latency.p99_us, "max": latency.max_us}


def _print(reading: _Reading) -> None:
    figures, engine = _as_json(reading), reading.engine
    print_text(
        f"{format_bytes(figures['orig_mem'])} are out as {format_bytes(figures['stored_mem'])} "
        f"({figures['ratio_pages']:.2f}x before everything else); pool "
        f"{format_bytes(engine.pool_bytes)} of {format_bytes(engine.pool_bytes_max)}, of that "
        f"wasted {format_bytes(engine.pool_waste_bytes)}"
    )
    if reading.gained is not None:
        print_text(
            f"all memory counted: ratio {times(figures['ratio'])}, ratio_pss "
            f"{times(figures['ratio_pss'])}, host gain {format_bytes(figures['host_gain'])}; "
            f"daemon and keeper take {format_bytes(reading.overhead_bytes or 0)}"
        )
    print_text(
        f"beside it: tables {format_bytes(engine.table_bytes)}, indexes "
        f"{format_bytes(engine.index_bytes)}, dictionaries "
        f"{format_bytes(engine.dictionary_bytes)}, learned sets "
        f"{format_bytes(engine.learned_bytes)}; on the disk {format_bytes(engine.disk_bytes)}"
    )
    faults, stop = engine.fault_service, engine.stop
    print_text(
        f"{engine.faults} faults ({engine.faults_disk} from the disk), median "
        f"{format_microseconds(faults.p50_us)}, 99% within {format_microseconds(faults.p99_us)}; "
        f"{engine.pages_lost} pages lost"
    )
    of_uptime = reading.daemon_cpu_s / reading.uptime_s if reading.uptime_s else 0.0
    print_text(
        f"a thread is stopped for {format_microseconds(stop.p50_us)}, 99% within "
        f"{format_microseconds(stop.p99_us)}; the daemon has taken {reading.daemon_cpu_s:.1f} s of "
        f"processor time ({of_uptime:.1%} of one core)"
    )
    if reading.file_readahead is not None:
        print_text(
            f"files: {reading.file_readahead['pages_asked']} pages read ahead for "
            f"{reading.file_readahead['processes']} processes that are awake "
            f"({reading.file_readahead['source']})"
        )
    if reading.sandboxes:
        _print_sandboxes(reading.sandboxes)
    print_text("")
    print_table(
        ["CLASS", "CODEC", "PAGES", "OUT", "ENCODED", "RATIO"],
        [_class_row(row) for row in figures["by_class"]],
        right={"PAGES", "OUT", "ENCODED", "RATIO"},
    )


def _print_sandboxes(sandboxes: list[SandboxStatus]) -> None:
    totals = add_up(sandboxes)
    wakes = f"{totals.wakes} wakes"
    if totals.wake_p50_ms is not None and totals.wake_p99_ms is not None:
        wakes += f", median {totals.wake_p50_ms:.1f} ms, the worst P99 {totals.wake_p99_ms:.1f} ms"
    print_text(
        f"{totals.sandboxes} sandboxes ({phases(totals.phases)}): {wakes}; prefetch had "
        f"{share(totals.prefetch_hit_rate)} of what was needed, "
        f"{share(totals.prefetch_waste)} of it for nothing\n"
    )
    print_table(SANDBOX_COLUMNS, [sandbox_row(one) for one in sandboxes], right=NUMBERS)


def _class_row(row: dict[str, Any]) -> list[str]:
    return [
        row["class_name"],
        row["codec"],
        str(row["pages"]),
        format_bytes(row["orig_mem"]),
        format_bytes(row["stored_mem"]),
        times(row["ratio"] or None),
    ]


def by_class_and_codec(census: Iterable[model.CensusRow]) -> Rows:
    """Sum the rows of several targets, the largest first."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for row in census:
        pages, stored = sums.get((row.class_name, row.codec), (0, 0))
        sums[row.class_name, row.codec] = (pages + row.pages, stored + row.bytes)
    page = pager.page_size()
    rows = [
        {
            "class_name": class_name,
            "codec": codec,
            "pages": pages,
            "orig_mem": pages * page,
            "stored_mem": stored,
            "ratio": pages * page / stored if stored else 0.0,
        }
        for (class_name, codec), (pages, stored) in sums.items()
    ]
    return sorted(rows, key=lambda row: -row["orig_mem"])
