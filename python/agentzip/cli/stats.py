"""
The command that says what the pool holds: stats.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from agentzip import model, pager
from agentzip.cli.options import Invocation, JsonOption
from agentzip.cli.output import print_json, print_table, print_text
from agentzip.control import ControlClient
from agentzip.errors import NotAttached, TargetGone
from agentzip.units import format_bytes, format_microseconds

__all__ = ["by_class_and_codec", "register"]

Rows = list[dict[str, Any]]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("stats")(stats)


def stats(
    context: typer.Context,
    pid: Annotated[
        int | None, typer.Argument(metavar="PID", min=1, help="One process; all if none is given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is out by class and codec, and its cost."""
    invocation: Invocation = context.obj
    with ControlClient(invocation.run_dir) as client:
        engine = client.stats()
        spaces = [space for space in client.spaces() if pid is None or space.pid == pid]
        if pid is not None and not spaces:
            raise NotAttached(f"not attached: {pid}")
        census = [row for space in spaces if space.pid for row in _census(client, space.pid)]
    summary = _summary(engine, spaces)
    rows = by_class_and_codec(census)
    if as_json:
        print_json({**summary, "by_class": rows, "engine": asdict(engine)})
        return
    print_text(
        f"{format_bytes(summary['orig_mem'])} are out as {format_bytes(summary['stored_mem'])} "
        f"({summary['ratio']:.2f}x before everything else); pool {format_bytes(engine.pool_bytes)} "
        f"of {format_bytes(engine.pool_bytes_max)}, of that wasted "
        f"{format_bytes(engine.pool_waste_bytes)}"
    )
    print_text(
        f"beside it: tables {format_bytes(engine.table_bytes)}, indexes "
        f"{format_bytes(engine.index_bytes)}, dictionaries "
        f"{format_bytes(engine.dictionary_bytes)}; on the disk {format_bytes(engine.disk_bytes)}"
    )
    faults = engine.fault_service
    print_text(
        f"{engine.faults} faults ({engine.faults_disk} from the disk), median "
        f"{format_microseconds(faults.p50_us)}, 99% within {format_microseconds(faults.p99_us)}; "
        f"{engine.pages_lost} pages lost"
    )
    print_text("")
    print_table(
        ["CLASS", "CODEC", "PAGES", "OUT", "ENCODED", "RATIO"],
        [
            [
                row["class_name"],
                row["codec"],
                str(row["pages"]),
                format_bytes(row["orig_mem"]),
                format_bytes(row["stored_mem"]),
                f"{row['ratio']:.2f}x" if row["ratio"] else "-",
            ]
            for row in rows
        ],
        right={"PAGES", "OUT", "ENCODED", "RATIO"},
    )


def _census(client: ControlClient, pid: int) -> list[model.CensusRow]:
    try:
        return client.census(pid)
    except (NotAttached, TargetGone):
        return []  # it ended since the list was made


def _summary(engine: model.EngineStats, spaces: list[model.SpaceStatus]) -> dict[str, Any]:
    out = sum(space.bytes_logical for space in spaces)
    # A slot that several targets share is counted once by the pool and once per target here.
    stored = sum(space.bytes_pool for space in spaces)
    return {
        "orig_mem": out,
        "stored_mem": stored,
        "ratio": out / stored if stored else 0.0,
        "targets": len(spaces),
        "pool_bytes": engine.pool_bytes,
    }


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
