"""
Commands that measure sandboxes at work: bench fanout, bench knob, bench codecs, bench workload.
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

from agentzip.cli.options import JsonOption
from agentzip.cli.output import print_text, set_up_logging
from agentzip.errors import InvalidSetting
from agentzip.units import parse_duration, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from agentzip.bench.fanout.plan import FanoutPlan

__all__ = ["register"]

_PIPE_COLUMNS = 140
"""Width of tables that are not printed on a terminal."""

WorkloadOption = Annotated[
    str,
    typer.Option(
        "--workload",
        metavar="LIST",
        help="A data analysis, B tool calls, C browser, D Node and files; waiting (for a person), "
        "finishing (before the others), busy (all the time).  Several are dealt out in turn.",
    ),
]
CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND",
        help="Run this instead of a workload, once in each sandbox.",
        show_default=False,
    ),
]
ModeOption = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="LIST",
        help="Of none, encode, prefetch, full, zram, zswap, ksm; none is run in any case.",
    ),
]
SandboxesOption = Annotated[
    int, typer.Option("--sandboxes", metavar="N", min=1, max=1000, help="How many.")
]
TurnsOption = Annotated[
    int, typer.Option("--turns", metavar="T", min=1, max=1000, help="Turns of each sandbox.")
]
ThinkOption = Annotated[
    str, typer.Option("--think", metavar="TIME", help="Mean time the model takes; lognormal.")
]
NoticeOption = Annotated[
    str,
    typer.Option(
        "--notice",
        metavar="TIME",
        help="Of it, how long it writes: a wake is known so long before.",
    ),
]
SizeOption = Annotated[
    str | None,
    typer.Option("--size", metavar="SIZE", help="Memory of each sandbox, like 300MB."),
]
SeedOption = Annotated[
    int, typer.Option("--seed", metavar="N", help="Of think times and questions.")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the JSON object here, too.")
]


def register(bench: typer.Typer) -> None:
    """Add the commands of this module to `agentzip bench`."""
    bench.command("fanout", context_settings={"allow_interspersed_args": False})(fanout)
    bench.command("knob")(knob)
    bench.command("codecs")(codecs)
    bench.command("workload")(workload)


def fanout(
    command: CommandArgument = None,
    *,
    workload: WorkloadOption = "A",
    sandboxes: SandboxesOption = 8,
    turns: TurnsOption = 6,
    mode: ModeOption = "none,encode,prefetch,full",
    think: ThinkOption = "15s",
    notice: NoticeOption = "1s",
    size: SizeOption = None,
    seed: SeedOption = 1,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="R", min=1, max=20, help="Medians over so many.")
    ] = 1,
    memory_limit: Annotated[
        str | None,
        typer.Option("--memory-limit", metavar="SIZE", help="Host memory a run may use, like 8GB."),
    ] = None,
    find_max: Annotated[
        bool, typer.Option("--find-max", help="Search how many sandboxes fit under the limit.")
    ] = False,
    kill_daemon: Annotated[
        bool, typer.Option("--kill-daemon", help="kill -9 of the daemon in the middle of full.")
    ] = False,
    command_time: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long a command may run.")
    ] = "60s",
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Run many sandboxes that take turns, mode after mode, and compare.

    A command takes no turns: its memory, its time and the costs are measured.  The exit code is 1
    if a result was wrong or a sandbox did not finish.
    """
    from agentzip.bench.fanout import find_max as maxima
    from agentzip.bench.fanout import report, run
    from agentzip.bench.fanout.plan import FanoutPlan

    plan = FanoutPlan(
        workload=workload,
        command=tuple(command or ()),
        command_s=parse_duration(command_time, "for"),
        sandboxes=sandboxes,
        turns=turns,
        modes=_names(mode),
        think_s=parse_duration(think, "think"),
        notice_s=parse_duration(notice, "notice"),
        size_bytes=parse_size(size, "size") if size is not None else 0,
        seed=seed,
        rounds=rounds,
        kill_daemon=kill_daemon,
        memory_limit_bytes=parse_size(memory_limit, "memory-limit") if memory_limit else 0,
    )
    if find_max:
        with _measuring() as tell:
            most = maxima.find_max(plan, list(plan.modes), tell)
        _show(report.max_json(most), out, as_json, lambda on: report.print_max(most, on))
        return
    with _measuring() as tell:
        result = run.run_fanout(plan, tell)
    _show(report.to_json(result), out, as_json, lambda on: report.print_report(result, on))
    if not result.right:
        raise typer.Exit(1)


def knob(
    *,
    workload: WorkloadOption = "A",
    sandboxes: SandboxesOption = 8,
    turns: TurnsOption = 6,
    targets: Annotated[
        str, typer.Option("--targets", metavar="LIST", help="Values of policy.latency_target.")
    ] = "1ms,5ms,20ms,100ms,1s",
    think: ThinkOption = "15s",
    notice: NoticeOption = "1s",
    size: SizeOption = None,
    seed: SeedOption = 1,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the two curves as a PNG.")
    ] = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Turn policy.latency_target and see memory saved against wake time."""
    from agentzip.bench.fanout import knob as turning
    from agentzip.bench.fanout import report

    plan = _plan_of_daemon(workload, sandboxes, turns, (think, notice), size, seed)
    values = [parse_duration(one, "targets") for one in _names(targets)]
    with _measuring() as tell:
        result = turning.run_knob(plan, values, tell)
    if plot is not None:
        report.draw_knob(result, plot)
    _show(report.knob_json(result), out, as_json, lambda on: report.print_knob(result, on))
    if any(one.figures.results_wrong for one in result.points):
        raise typer.Exit(1)


def codecs(
    *,
    workload: WorkloadOption = "A",
    sandboxes: SandboxesOption = 8,
    turns: TurnsOption = 6,
    think: ThinkOption = "15s",
    notice: NoticeOption = "1s",
    size: SizeOption = None,
    seed: SeedOption = 1,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the daemon with LZ4, zstd-3 and zstd-9 alone, and with all that it has."""
    from agentzip.bench.fanout import codecs as comparing
    from agentzip.bench.fanout import report

    plan = _plan_of_daemon(workload, sandboxes, turns, (think, notice), size, seed)
    with _measuring() as tell:
        result = comparing.run_codecs(plan, tell)
    _show(report.codecs_json(result), out, as_json, lambda on: report.print_codecs(result, on))
    if any(one.figures.results_wrong for one in result.codecs):
        raise typer.Exit(1)


def workload(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A, B, C, D, waiting, finishing or busy.")
    ],
    turns: TurnsOption = 6,
    think: ThinkOption = "1s",
    size: SizeOption = None,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
) -> None:
    """
    Run one agent alone and show its turns and its last digest.

    The exit code is 1 if it found a result of its own wrong.
    """
    from agentzip.bench.fanout import single
    from agentzip.bench.fanout.plan import FanoutPlan

    plan = FanoutPlan(
        workload=name,
        sandboxes=1,
        turns=turns,
        modes=("none",),
        think_s=parse_duration(think, "think"),
        size_bytes=parse_size(size, "size") if size is not None else 0,
        seed=seed,
    )
    with _measuring() as tell:
        found = single.run_single(
            plan, tell, lambda turn: None if as_json else print_text(single.turn_text(turn))
        )
    print_text(json.dumps(asdict(found), indent=2) if as_json else f"digest {found.digest}")
    if found.results_wrong:
        raise typer.Exit(1)


def _plan_of_daemon(
    workload: str,
    sandboxes: int,
    turns: int,
    think_notice: tuple[str, str],
    size: str | None,
    seed: int,
) -> "FanoutPlan":
    """The daemon beside no daemon."""
    from agentzip.bench.fanout.plan import FanoutPlan

    return FanoutPlan(
        workload=workload,
        sandboxes=sandboxes,
        turns=turns,
        modes=("none", "full"),
        think_s=parse_duration(think_notice[0], "think"),
        notice_s=parse_duration(think_notice[1], "notice"),
        size_bytes=parse_size(size, "size") if size is not None else 0,
        seed=seed,
    )


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidSetting(f"the list is empty: {text!r}", "give names with commas")
    return names


@contextmanager
def _measuring() -> Iterator["Callable[[str], None]"]:
    """Progress on stderr; an end by signal unwinds, because there is much to give back."""
    from rich.console import Console

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    flush = set_up_logging(logging.WARNING)
    try:
        with Console(stderr=True).status("measuring") as status:
            yield status.update
    finally:
        flush()


def _show(
    value: dict[str, Any],
    out: Path | None,
    as_json: bool,
    print_tables: "Callable[[Console], None]",
) -> None:
    from rich.console import Console

    text = json.dumps(value, indent=2)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
    if as_json:
        print_text(text)
    else:
        console = Console()
        # A pipe has no width: the rows get the room they need.
        print_tables(console if console.is_terminal else Console(width=_PIPE_COLUMNS))
