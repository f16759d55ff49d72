"""
Commands that measure: bench encode, files and idle; fanout.py has those on sandboxes at work.
"""

import json
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentzip.cli import fanout, reporting
from agentzip.cli.options import JsonOption
from agentzip.cli.output import print_text, set_up_logging
from agentzip.errors import InvalidSetting

if TYPE_CHECKING:
    # It takes longer to import than most commands run.
    from rich.console import Console
    from rich.status import Status

__all__ = ["register"]

_PIPE_COLUMNS = 120
"""Width of tables that are not printed on a terminal."""

OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the JSON object here, too.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    bench = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Measure on this host, on processes started for it.",
    )
    bench.command("encode")(encode)
    bench.command("files")(files)
    bench.command("idle")(idle)
    fanout.register(bench)
    reporting.register(bench)
    app.add_typer(bench, name="bench")


def encode(
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            metavar="NAME",
            help="python, json, browser or node; may be given again; default all.",
        ),
    ] = None,
    sandboxes: Annotated[
        int, typer.Option("--sandboxes", metavar="N", min=1, max=64, help="How many of each.")
    ] = 8,
    encodings: Annotated[
        str | None,
        typer.Option("--encodings", metavar="LIST", help="Names with commas; default all."),
    ] = None,
    size: Annotated[
        float, typer.Option("--size", metavar="X", help="Of each sandbox; 1 is some 100 MB.")
    ] = 1.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two small sandboxes, two encodings: some seconds.")
    ] = False,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Compare the encodings on real memory of live sandboxes.

    The kernel's zram and KSM are measured on the same processes in the same run.
    """
    from agentzip.bench.encode import EncodePlan, print_report, run_encode, to_json

    if quick:
        plan = EncodePlan.quick(tuple(workload or ("json",)))
    else:
        named = [name.strip() for name in (encodings or "").split(",") if name.strip()]
        if encodings is not None and not named:
            raise InvalidSetting("--encodings is empty", "give names with commas, or leave it out")
        plan = EncodePlan(
            workloads=tuple(dict.fromkeys(workload or EncodePlan().workloads)),
            encodings=tuple(named or EncodePlan().encodings),
            sandboxes=sandboxes,
            size=size,
        )
    # There are pages, a swap device and KSM to give back.
    with _measuring() as status:
        result = run_encode(plan, status.update)
    if not _wrote_json(to_json(result), out, as_json):
        print_report(result, _console())
    if result.results_wrong:
        raise typer.Exit(1)


def files(
    count: Annotated[
        int, typer.Option("--files", metavar="N", min=2, max=4096, help="How many are read.")
    ] = 300,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=1, max=100, help="Figures are medians.")
    ] = 3,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Measure how many reads of files are foreseen, and whether that saves time.

    Many small files with random names are read cold, in the order of their directory and at random.
    """
    from agentzip.bench.files import FilesPlan, print_files, run_files

    with _measuring():
        results = run_files(FilesPlan(files=count, rounds=rounds))
    if not _wrote_json({"results": [asdict(result) for result in results]}, out, as_json):
        print_files(results, _console())


@contextmanager
def _measuring() -> "Iterator[Status]":
    """Around a measurement: an end by signal unwinds it, too."""
    from rich.console import Console

    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    flush = set_up_logging(logging.WARNING)
    try:
        with Console(stderr=True).status("measuring") as status:
            yield status
    finally:
        flush()
        signal.signal(signal.SIGTERM, former)


def _wrote_json(result: dict[str, Any], out: Path | None, as_json: bool) -> bool:
    """Write the object where it is wanted; whether it was printed."""
    text = json.dumps(result, indent=2)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
    if as_json:
        print_text(text)
    return as_json


def _console() -> "Console":
    from rich.console import Console

    console = Console()
    # A pipe has no width: the rows get the room they need.
    return console if console.is_terminal else Console(width=_PIPE_COLUMNS)


def idle(
    sandboxes: Annotated[
        int, typer.Option("--sandboxes", metavar="N", min=1, max=2000, help="How many sleep.")
    ] = 300,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=1, help="How long to look.")
    ] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """
    Measure what the daemon takes of a core while nothing happens.

    It looks after small sandboxes that only sleep.  Exit code 1: more than 2 % of one core.
    """
    from rich.console import Console

    from agentzip.bench.idle import SHARE_AIM, IdlePlan, run_idle, to_json

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with Console(stderr=True).status("measuring") as status:
        result = run_idle(IdlePlan(sandboxes, seconds), status.update)
    if as_json:
        print_text(json.dumps(to_json(result), indent=2))
    else:
        print_text(
            f"{sandboxes} idle sandboxes: daemon {result.daemon_cpu_s:.2f} s and keeper "
            f"{result.keeper_cpu_s:.2f} s of processor time in {result.elapsed_s:.0f} s, "
            f"{result.share_of_core:.1%} of one core (load {result.load:.1f}); attached and quiet "
            f"after {result.attach_s:.1f} s"
        )
    if result.share_of_core > SHARE_AIM:
        raise typer.Exit(1)
