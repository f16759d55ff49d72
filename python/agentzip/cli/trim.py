"""
The command that asks a sandbox to trim itself.
"""

from dataclasses import asdict
from typing import Annotated

import typer

from agentzip.cli.options import JsonOption, PidArgument
from agentzip.cli.output import print_json, print_text
from agentzip.errors import InvalidSetting, TrimRefused
from agentzip.trimming import request_trim
from agentzip.units import format_bytes, format_microseconds, parse_duration

__all__ = ["register"]

_NO_FIGURE_OF_GAIN = "resident_bytes"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("trim")(trim)


def trim(
    pid: PidArgument,
    within: Annotated[
        str, typer.Option("--within", metavar="TIME", help="How long it may take, like 5s.")
    ] = "5s",
    as_json: JsonOption = False,
) -> None:
    """
    Ask a process to give back memory that it does not need.

    Only a sandbox that serves the socket named in its AGENTZIP_TRIM_SOCKET is asked.
    """
    seconds = parse_duration(within, "--within")
    if not 0 < seconds <= 600:
        raise InvalidSetting(f"--within is out of range: {within!r}", "give at most 10min")
    answer = request_trim(pid, timeout_seconds=seconds)
    if answer is None:
        raise TrimRefused(f"process {pid} offers no trim: no AGENTZIP_TRIM_SOCKET at its start")
    if as_json:
        print_json(asdict(answer))
        return
    gains = {name: size for name, size in answer.figures.items() if name != _NO_FIGURE_OF_GAIN}
    told = ", ".join(f"{name} {format_bytes(size)}" for name, size in gains.items())
    print_text(
        f"process {answer.answered_by} trimmed itself in "
        f"{format_microseconds(answer.elapsed_us)}: {told or 'no figures'}"
    )
