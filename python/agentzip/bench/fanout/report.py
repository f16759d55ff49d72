"""
The figures as tables, as one JSON object, and the knob as a picture.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from agentzip.bench.fanout.codecs import CodecsResult
from agentzip.bench.fanout.find_max import MaxResult
from agentzip.bench.fanout.knob import KnobResult, known_wake_ms
from agentzip.bench.fanout.result import MEANINGS, FanoutResult, ModeResult
from agentzip.units import format_bytes

__all__ = [
    "codecs_json",
    "draw_knob",
    "knob_json",
    "max_json",
    "print_codecs",
    "print_knob",
    "print_max",
    "print_report",
    "to_json",
]

_SAMPLES = {"memory", "turns_s", "wakes_ms"}
"""Lists, which are told once and not for each round."""


def to_json(result: FanoutResult) -> dict[str, Any]:
    """The object that `agentzip bench fanout --json` prints."""
    return {
        "modes": [asdict(one) for one in result.modes],
        "skipped": result.skipped,
        "results_wrong": result.results_wrong,
        "complete": result.complete,
        "seconds": result.seconds,
        "host": result.host,
        "plan": result.plan,
        "rounds": [
            [
                {key: value for key, value in asdict(one).items() if key not in _SAMPLES}
                for one in found
            ]
            for found in result.rounds
        ]
        if len(result.rounds) > 1
        else [],
        "meanings": MEANINGS,
    }


def print_report(result: FanoutResult, console: Console) -> None:
    """Print both tables and what must be known to read them."""
    console.print(_memory_table(result))
    console.print(_time_table(result))
    for one in result.modes:
        if one.stopped:
            console.print(f"{one.mode}: ended early, {one.stopped}")
        told = {name: value for name, value in one.notes.items() if value}
        if told:
            console.print(f"{one.mode}: {', '.join(f'{key} {told[key]}' for key in told)}")
    for name, reason in result.skipped.items():
        console.print(f"{name}: skipped, {reason}")
    console.print(f"results wrong: {result.results_wrong}; {result.seconds:.0f} s")


def max_json(result: MaxResult) -> dict[str, Any]:
    """The object that `agentzip bench fanout --find-max --json` prints."""
    return asdict(result)


def print_max(result: MaxResult, console: Console) -> None:
    """Print how many sandboxes fit, mode by mode."""
    limit = format_bytes(result.memory_limit_bytes)
    last = ("turn mean", "P99", "wake P99", "tried")
    table = _table(f"sandboxes within {limit} of host memory", "fit", "peak", "mean PSS", *last)
    for one in result.modes:
        table.add_row(
            one.mode,
            str(one.sandboxes),
            *(format_bytes(one.peak_bytes), format_bytes(one.cost_bytes)),
            *(_seconds(one.turn_s, "mean"), _seconds(one.turn_s, "p99")),
            _milliseconds(one.wake_ms, "p99"),
            ", ".join(f"{count}{'' if fits else '-'}" for count, fits in one.tried),
        )
    console.print(table)
    for name, reason in result.skipped.items():
        console.print(f"{name}: skipped, {reason}")


def knob_json(result: KnobResult) -> dict[str, Any]:
    """The object that `agentzip bench knob --json` prints."""
    return asdict(result)


def print_knob(result: KnobResult, console: Console) -> None:
    """Print what each setting saves and costs, and whether the knob turns one way."""
    waits = ("known wake", "wake P50", "wake P99", "turn P99")
    table = _table("latency_target", "saved", "ratio", *waits, "wrong")
    for one in result.points:
        figures = one.figures
        table.add_row(
            f"{one.latency_target_s * 1000:g} ms",
            format_bytes(figures.pss_gain_bytes),
            f"{figures.ratio:.2f}",
            f"{known_wake_ms(figures):.0f} ms",
            _milliseconds(figures.wake_ms, "p50"),
            _milliseconds(figures.wake_ms, "p99"),
            _seconds(figures.turn_s, "p99"),
            _wrong(figures),
        )
    console.print(table)
    for name, broken in (("memory saved", result.saved_breaks), ("known wake", result.wake_breaks)):
        verdict = "monotonic" if not broken else f"not monotonic at {', '.join(broken)}"
        console.print(f"{name}: {verdict}")


def codecs_json(result: CodecsResult) -> dict[str, Any]:
    """The object that `agentzip bench codecs --json` prints."""
    return asdict(result)


def print_codecs(result: CodecsResult, console: Console) -> None:
    """Print what each codec saves and costs."""
    table = _table("codec", "ratio", "ratio_pss", "CPU", "turn P99", "wake P50", "P99", "wrong")
    for name, one in [("none", result.none), *((one.codec, one.figures) for one in result.codecs)]:
        table.add_row(
            name,
            f"{one.ratio:.2f}",
            f"{one.ratio_pss:.2f}",
            f"{one.cpu_percent:.1f}%",
            _seconds(one.turn_s, "p99"),
            *(_milliseconds(one.wake_ms, key) for key in ("p50", "p99")),
            _wrong(one),
        )
    console.print(table)


def draw_knob(result: KnobResult, file: Path) -> None:
    """Draw memory saved and the mean known wake over the latency target."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    targets = [one.latency_target_s * 1000 for one in result.points]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    saved = figure.add_subplot()
    saved.set_xscale("log")
    saved.set_xlabel("policy.latency_target (ms)")
    saved.set_ylabel("memory saved (MiB)")
    mebibytes = [one.figures.pss_gain_bytes / 2**20 for one in result.points]
    saved.plot(targets, mebibytes, "o-", color="tab:blue", label="memory saved")
    wake = saved.twinx()
    wake.set_ylabel("known wake, mean (ms)")
    latencies = [known_wake_ms(one.figures) for one in result.points]
    wake.plot(targets, latencies, "s--", color="tab:orange", label="known wake")
    saved.set_ylim(bottom=0)
    wake.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", ncols=2)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)


def _memory_table(result: FanoutResult) -> Table:
    plan = result.plan
    title = f"workload {plan['workload']}, {plan['sandboxes']} sandboxes, {plan['turns']} turns"
    if command := plan.get("command"):
        title = f"{plan['sandboxes']} sandboxes: {' '.join(cast('Sequence[str]', command))}"
    headings = ("ratio", "ratio_pss", "peak", "mean", "host gain", "PSS gain", "pool")
    table = _table(title, *headings)
    for one in result.modes:
        table.add_row(
            one.mode,
            f"{one.ratio:.2f}",
            f"{one.ratio_pss:.2f}",
            *(format_bytes(one.peak_bytes), format_bytes(one.mean_bytes)),
            *(format_bytes(one.host_gain_bytes), format_bytes(one.pss_gain_bytes)),
            format_bytes(one.pool_bytes),
        )
    return table


def _time_table(result: FanoutResult) -> Table:
    headings = ("turn", "P50", "P95", "P99", "wake P50", "P99", "known P50", "P99")
    table = _table("", *headings, "task", "CPU", "faults", "hits", "waste", "done", "wrong")
    for one in result.modes:
        table.add_row(one.mode, *_time_cells(one))
    return table


def _time_cells(one: ModeResult) -> list[str]:
    return [
        *(_seconds(one.turn_s, key) for key in ("mean", "p50", "p95", "p99")),
        *(_milliseconds(one.wake_ms, key) for key in ("p50", "p99")),
        *(_milliseconds(one.wake_known_ms, key) for key in ("p50", "p99")),
        f"{one.task_s:.1f} s",
        f"{one.cpu_percent:.1f}%",
        str(one.faults),
        *(_share(one.prefetch.get(key)) for key in ("hit_rate", "waste")),
        str(one.finished),
        _wrong(one),
    ]


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title or None, box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _wrong(figures: ModeResult) -> str:
    return "-" if figures.results_wrong is None else str(figures.results_wrong)


def _seconds(spread: dict[str, float | None], key: str) -> str:
    value = spread.get(key)
    return "-" if value is None else f"{value:.2f} s"


def _milliseconds(spread: dict[str, float | None], key: str) -> str:
    value = spread.get(key)
    return "-" if value is None else f"{value:.0f} ms"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
