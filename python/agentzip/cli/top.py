"""
The command that shows sandboxes as they live: top.

The screen needs the package `textual`, which comes with the extra `top`; without a terminal, or
with --json, one reading is printed instead of a screen.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from agentzip import units
from agentzip.cli.feed import Feed, Reading
from agentzip.cli.options import Invocation, JsonOption
from agentzip.cli.output import print_json
from agentzip.control import ControlClient
from agentzip.errors import InvalidSetting
from agentzip.host import memory
from agentzip.totals import by_memory, pages_ratio

__all__ = ["register"]

_ANSWER_SECONDS = 10.0
"""A daemon that has not answered a reading by then is asked anew, on a new connection."""

_EVERY_MIN, _EVERY_MAX = 0.2, 3600.0
"""Seconds; more than five looks in a second would cost the daemon more than they show."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("top")(top)


def top(
    context: typer.Context,
    every: Annotated[
        str, typer.Option("--every", metavar="DURATION", help="Time between two looks.")
    ] = "2s",
    as_json: JsonOption = False,
) -> None:
    """
    Watch sandboxes, and page them out and in.

    Keys: o page out, i page in, p pin, e explain, s sort, q quit.
    """
    invocation: Invocation = context.obj
    seconds = units.parse_duration(every, "--every")
    if not _EVERY_MIN <= seconds <= _EVERY_MAX:
        raise InvalidSetting(f"--every is out of range: {every}", "give a time from 200ms to 1h")
    run_dir = invocation.run_dir
    if as_json:
        print_json(_as_json(read(run_dir)))
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidSetting(
            "top needs a terminal", "use `agentzip top --json`, or `agentzip status`"
        )
    try:
        from agentzip.cli.screen import TopScreen
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise InvalidSetting(
            "top needs the package textual, which is not installed",
            "install the extra `top`: pip install 'agentzip[top]'",
        ) from error
    # Without a daemon this is an error and no screen; one that is slow does not hold the screen up.
    ControlClient(run_dir, _ANSWER_SECONDS).close()
    feed = Feed(lambda: read(run_dir), lambda: ControlClient(run_dir), seconds)
    TopScreen(feed).run()


def read(run_dir: Path) -> Reading:
    """
    Ask the daemon once for all that the screen shows.

    Raises:
        DaemonUnreachable: it does not answer.
    """
    with ControlClient(run_dir, _ANSWER_SECONDS) as client:
        return Reading(
            sandboxes=client.sandboxes(),
            engine=client.stats(),
            memory_total=memory.memory_total(),
            memory_available=memory.memory_available(),
        )


def _as_json(reading: Reading) -> dict[str, object]:
    return {
        "memory_total": reading.memory_total,
        "memory_available": reading.memory_available,
        "pool_bytes": reading.engine.pool_bytes,
        "pool_bytes_max": reading.engine.pool_bytes_max,
        "gain_bytes": reading.gain_bytes,
        "sandboxes": [
            {**asdict(one), "ratio_pages": pages_ratio(one)} for one in by_memory(reading.sandboxes)
        ],
    }
