"""
Commands that judge: doctor, selftest, demo.
"""

import logging
from contextlib import suppress
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from agentzip import pager
from agentzip.cli.options import (
    AlgorithmOption,
    Invocation,
    JsonOption,
    LevelOption,
    PoolSizeOption,
    settings_of,
)
from agentzip.cli.output import print_json, print_table, print_text, set_up_logging
from agentzip.control import ControlClient
from agentzip.errors import AgentZipError
from agentzip.host import doctor as host_doctor
from agentzip.units import format_bytes

__all__ = ["register"]

_ANSWER_SECONDS = 5.0
"""How long a daemon may take to say who it is."""


class Suite(StrEnum):
    """Groups of the self-test."""

    EXACT = "exact"
    EVENTS = "events"
    CRASH = "crash"
    GUESTS = "guests"
    SOAK = "soak"
    ALL = "all"


class Tier(StrEnum):
    """Where the self-test brings all pages."""

    WARM = "warm"
    COLD = "cold"
    FROZEN = "frozen"
    DISK = "disk"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("doctor")(doctor)
    app.command("selftest")(selftest)
    app.command("demo")(demo)


def doctor(
    context: typer.Context,
    pid: Annotated[
        int | None,
        typer.Argument(
            metavar="[PID]", min=1, help="Also say whether this process can be attached."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Say what this kernel and host allow.

    What they do not allow comes with its exact cause and the smallest fix.
    """
    findings = host_doctor.examine(pager.features) + _daemon_findings(context)
    if pid is not None:
        findings += _process_findings(pid)
    works = host_doctor.can_work(findings)
    if as_json:
        print_json({"can_work": works, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            print_text(f"{finding.status:<5} {finding.name}: {finding.cause}")
            if finding.why:
                print_text(f"      why: {finding.why}")
            if finding.fix:
                print_text(f"      fix: {finding.fix}")
        print_text("\nthe pager can work here" if works else "\nthe pager cannot work here")
    if not works:
        raise typer.Exit(1)


def _daemon_findings(context: typer.Context) -> list[host_doctor.Finding]:
    """What can be said of the daemon, if one runs."""
    invocation: Invocation = context.obj
    # None that runs, or one of somebody else's: nothing to be said.
    with suppress(AgentZipError), ControlClient(invocation.run_dir, _ANSWER_SECONDS) as client:
        daemon_pid, keeper_pid = int(client.about()["pid"]), client.stats().keeper_pid
        return [
            host_doctor.examine_keeper(daemon_pid, keeper_pid),
            host_doctor.examine_filter("daemon's seccomp filter", daemon_pid),
        ]
    return []


def _process_findings(pid: int) -> list[host_doctor.Finding]:
    name = f"process {pid}"
    try:
        info = pager.describe(pid)
        regions = pager.regions(pid)
    except AgentZipError as error:
        return [host_doctor.Finding(name, "fail", str(error), error.hint)]
    movable = sum(region.resident_bytes for region in regions if region.movable)
    resident = sum(region.resident_bytes for region in regions)
    confined = ", confined by seccomp" if info.seccomp else ""
    return [
        host_doctor.Finding(
            name,
            "ok",
            f"can be attached ({info.command}, {info.threads} threads{confined}): "
            f"{format_bytes(movable)} of {format_bytes(resident)} may leave",
        )
    ]


def selftest(
    suite: Annotated[
        Suite,
        typer.Option("--suite", help="Which checks; all but guests and soak, which take long."),
    ] = Suite.ALL,
    tier: Annotated[
        Tier | None,
        typer.Option(
            "--tier",
            help="Bring all pages into this tier first; crash checks always go through all.",
        ),
    ] = None,
    kills: Annotated[
        int,
        typer.Option("--kills", metavar="N", min=1, help="Kills of daemon and keeper (crash)."),
    ] = 30,
    ops: Annotated[
        int,
        typer.Option("--ops", metavar="N", min=1000, help="Operations of a target (soak)."),
    ] = 1_000_000,
    as_json: JsonOption = False,
) -> None:
    """
    Check on this host that all bytes are right.

    Real processes are paged out, under every event and with the daemon killed at every step.
    """
    from agentzip.selftest import SUITES, run

    suites = SUITES if suite is Suite.ALL else (suite.value,)
    counts = {"kills": kills, "ops": ops}
    results = run(suites, tier=None if tier is None else tier.value, counts=counts)
    failed = [result for result in results if not result.passed and not result.skipped_reason]
    skipped = [result for result in results if result.skipped_reason]
    passed = len(results) - len(failed) - len(skipped)
    verdict = bool(passed) and not failed
    if as_json:
        print_json({"passed": verdict, "results": [asdict(result) for result in results]})
    else:
        print_table(
            ["SUITE", "CHECK", "RESULT", "SECONDS", "DETAIL"],
            [
                [
                    result.suite,
                    result.name,
                    "skipped" if result.skipped_reason else "ok" if result.passed else "FAILED",
                    f"{result.seconds:.1f}",
                    result.skipped_reason or result.detail,
                ]
                for result in results
            ],
            right={"SECONDS"},
        )
        print_text(f"\n{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    if not verdict:
        raise typer.Exit(1)


def demo(
    context: typer.Context,
    sandboxes: Annotated[
        int, typer.Option("--sandboxes", metavar="N", min=1, max=64, help="How many agents.")
    ] = 4,
    pool_size: PoolSizeOption = None,
    algorithm: AlgorithmOption = None,
    level: LevelOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Page real data agents out and wake them.

    Every page is compared, and the figures show what was gained.
    """
    from agentzip.demo import play

    settings = settings_of(context, pool_size, algorithm, level)
    flush = set_up_logging(logging.WARNING)
    try:
        result = play(settings, sandboxes, show=not as_json)
    finally:
        flush()
    if as_json:
        print_json(result.to_json())
    if not result.passed:
        raise typer.Exit(1)
