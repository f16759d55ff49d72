"""
The command that runs a preset of benches and writes one document: bench report.
"""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from agentzip.cli.options import JsonOption
from agentzip.cli.output import print_json, print_text
from agentzip.errors import InvalidSetting

__all__ = ["register"]

_OUT = Path("agentzip-report")
_PRESET = "quick"


def register(bench: typer.Typer) -> None:
    """Add the command to `agentzip bench`."""
    bench.command("report")(report)


def report(
    *,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="quick (minutes; the default), standard (an hour), full (many).",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help=f"Where it is written; default {_OUT}."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="SECTION",
            help="codecs, workloads, ablation, knob, fits; may be given again; default all.",
        ),
    ] = None,
    kept_in: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Run nothing: write it again from DIR."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Run the benches of a preset and write one report: HTML and Markdown.

    The JSON object of every command is kept beside it.  The exit code is 1 if one of them failed.
    """
    from rich.console import Console

    from agentzip.bench.report import kept as keeping
    from agentzip.bench.report.making import write
    from agentzip.bench.report.presets import PRESETS
    from agentzip.bench.report.running import run_preset

    if kept_in is not None:
        if preset or out or only:
            raise InvalidSetting(
                "--from runs nothing, so it takes no --preset, --out or --only",
                "leave them out, or leave --from out",
            )
        folder, kept = kept_in, keeping.load(kept_in)
    else:
        if (chosen := PRESETS.get(preset or _PRESET)) is None:
            raise InvalidSetting(f"preset is not known: {preset}", f"choose {', '.join(PRESETS)}")
        folder = out or _OUT
        # An end by signal must unwind: there is a bench to end.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        with Console(stderr=True).status("measuring") as status:
            kept = run_preset(chosen, folder, only or (), status.update)
    written = write(kept, folder)
    if as_json:
        failed = {one.name: one.problem for one in kept.ran if one.problem}
        files = {"html": str(written.html), "markdown": str(written.markdown)}
        print_json({"preset": kept.preset, **files, "failed": failed})
    else:
        for one in kept.ran:
            print_text(f"{one.name}: {one.problem or f'{one.seconds:.0f} s'}")
        print_text(f"{written.html}\n{written.markdown}")
    if not kept.whole:
        raise typer.Exit(1)
