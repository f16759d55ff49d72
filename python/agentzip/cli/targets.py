"""
Commands that ask a running daemon: page-out, page-in, detach, status, inspect.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from agentzip import model, pager
from agentzip.cli.asking import every_sandbox, every_scope
from agentzip.cli.options import Invocation, JsonOption, PidArgument
from agentzip.cli.output import print_json, print_table, print_text, with_progress
from agentzip.cli.rows import (
    NUMBERS,
    SANDBOX_COLUMNS,
    SCOPE_COLUMNS,
    phases,
    sandbox_row,
    scope_row,
)
from agentzip.control import ControlClient
from agentzip.errors import DaemonUnreachable, InvalidSetting, NotEnoughMemory
from agentzip.totals import add_up, by_memory
from agentzip.units import format_bytes, format_microseconds

__all__ = ["page_out_text", "register"]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("page-out")(page_out)
    app.command("page-in")(page_in)
    app.command("detach")(detach)
    app.command("status")(status)
    app.command("inspect")(inspect)


def page_out(context: typer.Context, pid: PidArgument, as_json: JsonOption = False) -> None:
    """Take the pages of a process out of its memory."""
    run_dir = _run_dir(context)
    with ControlClient(run_dir) as client:
        regions = client.regions(pid)
        resident = sum(region.resident_bytes for region in regions if region.movable)
        report = with_progress(
            f"page out {pid}",
            resident // pager.page_size(),
            _pages_out(run_dir, pid),
            lambda: client.page_out(pid),
        )
    if as_json:
        print_json(asdict(report))
    else:
        print_text(page_out_text(report))


def page_out_text(report: model.PageOutReport) -> str:
    """The report of a page out in words."""
    text = (
        f"paged out {report.pages_stored} pages ({format_bytes(report.bytes_logical)}) of process "
        f"{report.pid} in {format_microseconds(report.elapsed_us)}: "
        f"{format_bytes(report.bytes_stored)} encoded, {report.pages_clean} pages were clean, "
        f"{report.pages_returned} came back at once, {report.pages_pinned} are pinned; "
        f"one thread was stopped for {format_microseconds(report.stop_us)}"
    )
    if report.pool_full:
        text += "\nthe pool is full: the rest stays where it is (see --pool-size of the daemon)"
    return text


def page_in(context: typer.Context, pid: PidArgument, as_json: JsonOption = False) -> None:
    """Bring the pages of a process home. It stays attached."""
    run_dir = _run_dir(context)
    with ControlClient(run_dir) as client:
        out = _pages_out(run_dir, pid)
        total = out()
        report = with_progress(
            f"page in {pid}", total, lambda: total - out(), lambda: client.page_in(pid)
        )
    if as_json:
        print_json(asdict(report))
    else:
        print_text(
            f"brought {report.pages_in} pages of process {pid} home in "
            f"{format_microseconds(report.elapsed_us)}; {report.pages_out} are still out"
        )
    _check_lost(report)


def detach(
    context: typer.Context,
    pid: Annotated[int | None, typer.Argument(metavar="PID", min=1, help="Process id.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Detach every target.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Give a process back exactly as it was found."""
    if (pid is None) == (not everything):
        raise InvalidSetting(
            "detach needs a PID or --all, and not both", "`agentzip status` lists what is attached"
        )
    run_dir = _run_dir(context)
    with ControlClient(run_dir) as client:
        out = _pages_out(run_dir, pid)
        total = out()

        def work() -> list[model.DetachReport]:
            return client.detach_all() if pid is None else [client.detach(pid)]

        reports = with_progress("detach", total, lambda: total - out(), work)
    if as_json:
        print_json([asdict(report) for report in reports])
    else:
        for report in reports:
            name = f"process {report.pid}" if report.pid else "a forked child"
            print_text(f"detached {name}: {report.pages_in} pages brought home")
        if not reports:
            print_text("nothing was attached")
    left = [report for report in reports if not report.complete]
    if left:
        size = sum(report.pages_out for report in left) * pager.page_size()
        raise NotEnoughMemory(
            f"not enough memory: {format_bytes(size)} of {len(left)} targets are still out"
        )


def status(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show scopes, sandboxes, targets and the pool."""
    with ControlClient(_run_dir(context)) as client:
        about, spaces, stats = client.about(), client.spaces(), client.stats()
        scopes, sandboxes = every_scope(client), every_sandbox(client)
    totals = add_up(sandboxes)
    if as_json:
        print_json(
            {
                "daemon": about,
                "scopes": [asdict(scope) for scope in scopes],
                "sandboxes": [asdict(sandbox) for sandbox in sandboxes],
                "counts": {
                    "scopes": len(scopes),
                    "sandboxes": len(sandboxes),
                    "targets": len(spaces),
                    "phases": totals.phases,
                    "pinned": totals.pinned,
                    "left_alone": totals.left_alone,
                },
                "spaces": [asdict(space) for space in spaces],
                "stats": asdict(stats),
            }
        )
        return
    print_text(
        f"daemon {about['pid']}, up {about['uptime_seconds']:.0f} s, keeper {stats.keeper_pid}; "
        f"pool {format_bytes(stats.pool_bytes)} of {format_bytes(stats.pool_bytes_max)}, "
        f"tables {format_bytes(stats.table_bytes)}"
    )
    faults = stats.fault_service
    print_text(
        f"{stats.faults} faults served, median {format_microseconds(faults.p50_us)}, "
        f"99% within {format_microseconds(faults.p99_us)}; {stats.pages_lost} pages lost"
    )
    if scopes:
        print_text("")
        print_table(SCOPE_COLUMNS, [scope_row(scope) for scope in scopes], right=NUMBERS)
    if sandboxes:
        print_text(
            f"\n{totals.sandboxes} sandboxes ({phases(totals.phases)}); {totals.pinned} pinned, "
            f"{totals.left_alone} left alone"
        )
        print_table(
            SANDBOX_COLUMNS, [sandbox_row(one) for one in by_memory(sandboxes)], right=NUMBERS
        )
    print_text("")
    print_table(
        ["PID", "STATE", "OUT", "IN POOL", "RATIO", "KEPT", "FAULTS", "LOST", "COMMAND"],
        [_status_row(space) for space in spaces],
        right={"PID", "OUT", "IN POOL", "RATIO", "KEPT", "FAULTS", "LOST"},
    )


def _status_row(space: model.SpaceStatus) -> list[str]:
    # Pages at home whose copy is kept take room in the pool too, so they count as stored.
    stored = (space.pages_out + space.pages_kept) * pager.page_size()
    ratio = f"{stored / space.bytes_pool:.1f}x" if space.bytes_pool else "-"
    return [
        str(space.pid or "-"),
        space.state,
        format_bytes(space.bytes_logical),
        format_bytes(space.bytes_pool),
        ratio,
        str(space.pages_kept),
        str(space.faults),
        str(space.pages_lost),
        space.command[:60],
    ]


def inspect(context: typer.Context, pid: PidArgument, as_json: JsonOption = False) -> None:
    """
    List every region of a process.

    For each: its size, what is resident, what is out, what it holds, and why it may leave.
    """
    try:
        with ControlClient(_run_dir(context)) as client:
            regions = client.regions(pid)
    except DaemonUnreachable:
        # Without a daemon nothing can be out: the process itself says everything.
        regions = pager.regions(pid)
    if as_json:
        print_json([_region_json(region) for region in regions])
        return
    print_table(
        ["ADDRESS", "SIZE", "RESIDENT", "OUT", "PROT", "CLASS", "DECISION", "REASON", "NAME"],
        [_region_row(region) for region in regions],
        right={"SIZE", "RESIDENT", "OUT"},
    )
    movable = sum(region.resident_bytes for region in regions if region.movable)
    resident = sum(region.resident_bytes for region in regions)
    out = sum(region.out_bytes for region in regions)
    print_text(
        f"\n{len(regions)} regions: {format_bytes(resident)} resident, "
        f"{format_bytes(movable)} of it may leave, {format_bytes(out)} is out"
    )


def _decision(region: model.Region) -> str:
    return "may leave" if region.movable else "stays"


def _region_json(region: model.Region) -> dict[str, object]:
    return {
        **asdict(region),
        "size_bytes": region.end - region.start,
        "decision": _decision(region),
    }


def _region_row(region: model.Region) -> list[str]:
    return [
        f"{region.start:012x}",
        format_bytes(region.end - region.start),
        format_bytes(region.resident_bytes),
        format_bytes(region.out_bytes),
        region.protection,
        region.class_name,
        _decision(region),
        region.reason,
        region.name,
    ]


def _run_dir(context: typer.Context) -> Path:
    invocation: Invocation = context.obj
    return invocation.run_dir


def _pages_out(run_dir: Path, pid: int | None) -> Callable[[], int]:
    """How many pages of a process, or of all, are out; over a connection of its own."""

    def measure() -> int:
        with ControlClient(run_dir, timeout_seconds=5) as client:
            return sum(space.pages_out for space in client.spaces() if pid in {None, space.pid})

    return measure


def _check_lost(report: model.PageInReport) -> None:
    if report.pages_lost:
        raise typer.Exit(1)
