"""
Commands about a sandbox's life: say its phase, and ask what was decided about it.
"""

from dataclasses import asdict
from typing import Annotated

import typer

from agentzip import hints
from agentzip.cli.options import Invocation, JsonOption
from agentzip.cli.output import print_json, print_table, print_text
from agentzip.control import ControlClient
from agentzip.sandboxes import PHASES, Decision
from agentzip.units import format_microseconds

__all__ = ["register"]

SandboxArgument = Annotated[
    str, typer.Argument(metavar="SANDBOX", help="Name of a sandbox, as `agentzip status` shows it.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("hint")(hint)
    app.command("explain")(explain)


def hint(
    context: typer.Context,
    sandbox: SandboxArgument,
    phase: Annotated[str, typer.Argument(metavar="PHASE", help=f"One of {', '.join(PHASES)}.")],
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="TIME", help="How long it will last, like 8s or 500ms."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Say where a sandbox is in its life.

    A phase that ends a wait is answered when the sandbox's working set is home.
    """
    known = hints.known_phase(phase)
    expect_s = hints.expected_seconds(expect, "--expect")
    invocation: Invocation = context.obj
    with ControlClient(invocation.run_dir) as client:
        report = client.hint(sandbox, known, expect_s)
    if as_json:
        print_json(asdict(report))
        return
    home = f", {report.pages_in} pages brought home" if report.pages_in else ""
    print_text(
        f"{report.sandbox} is {report.phase}, was {report.former_phase}{home} "
        f"({format_microseconds(report.elapsed_us)})"
    )


def explain(context: typer.Context, sandbox: SandboxArgument, as_json: JsonOption = False) -> None:
    """
    Show what was decided about a sandbox of late, and why.

    Gain and cost are in one unit: bytes of memory times seconds, at the price memory had then.
    """
    invocation: Invocation = context.obj
    with ControlClient(invocation.run_dir) as client:
        decisions = client.explain(sandbox)
    if as_json:
        print_json([asdict(decision) for decision in decisions])
        return
    if not decisions:
        print_text(f"nothing has been decided about {sandbox} yet")
        return
    print_table(
        ["AGE", "PID", "ACTION", "PAGES", "GAIN", "COST", "REASON"],
        [_row(decision) for decision in decisions],
        right={"AGE", "PID", "PAGES", "GAIN", "COST"},
    )


def _row(decision: Decision) -> list[str]:
    return [
        format_microseconds(decision.age_s * 1e6),
        str(decision.pid),
        decision.action,
        str(decision.pages),
        f"{decision.gain:.3g}",
        f"{decision.cost:.3g}",
        decision.reason,
    ]
