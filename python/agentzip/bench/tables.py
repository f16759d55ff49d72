"""
The figures as a table and as one JSON object.
"""

from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from agentzip.bench.figures import FLOOR, MEASURES, Figure, Measure
from agentzip.bench.rounds import BenchResult
from agentzip.units import format_microseconds

__all__ = ["figures_table", "print_report", "to_json", "verdicts_table"]


def to_json(result: BenchResult) -> dict[str, Any]:
    """The object that `python -m agentzip.bench --json` prints."""
    rated = {measure.key for measure in MEASURES if measure.per_page}
    figures = []
    for figure in result.ledger.figures():
        entry = asdict(figure)
        if figure.measure in rated:
            entry["gigabytes_per_second"] = figure.gigabytes_per_second
        figures.append(entry)
    return {
        "host": result.host,
        "plan": asdict(result.plan),
        "figures": figures,
        "aims": [asdict(verdict) for verdict in result.verdicts],
        "stored_ratio": result.stored_ratio,
        "skipped": result.skipped,
        "busy": result.busy,
        "pages_wrong": result.pages_wrong,
    }


def print_report(result: BenchResult, console: Console) -> None:
    """Print both tables and what must be known to read them."""
    console.print(figures_table(result))
    console.print(verdicts_table(result))
    ratios = ", ".join(f"{way} {ratio:.2f}" for way, ratio in result.stored_ratio.items())
    console.print(f"stored smaller by: {ratios}")
    for way, reason in result.skipped.items():
        console.print(f"{way}: skipped, {reason}")
    console.print(f"stops that ran into the limit of 20 ms, and were tried again: {result.busy}")
    console.print(f"pages wrong: {result.pages_wrong}")


def figures_table(result: BenchResult) -> Table:
    """Every distribution, under a line that names its measure."""
    plan = result.plan
    table = Table(title=f"{plan.rounds} rounds, {plan.mebibytes} MiB per target", box=SIMPLE_HEAD)
    table.add_column("")
    for heading in ("median", "P99", "to floor", "GB/s", "samples"):
        table.add_column(heading, justify="right", no_wrap=True)
    figures = result.ledger.figures()
    for measure in MEASURES:
        rows = [figure for figure in figures if figure.measure == measure.key]
        if rows:
            table.add_row(f"[bold]{measure.title}[/bold]")
        for index, figure in enumerate(rows):
            table.add_row(*_cells(measure, figure), end_section=index == len(rows) - 1)
    return table


def verdicts_table(result: BenchResult) -> Table:
    """The aims beside what was found."""
    table = Table(title="aims", box=SIMPLE_HEAD)
    table.add_column("aim")
    for heading in ("wanted", "found", "verdict"):
        table.add_column(heading, justify="right")
    for verdict in result.verdicts:
        found = "-" if verdict.value is None else f"{verdict.value:.2f} {verdict.unit}"
        word = {True: "met", False: "missed", None: "not measured"}[verdict.met]
        table.add_row(verdict.title, f"{verdict.aim} {verdict.unit}", found, word)
    return table


def _cells(measure: Measure, figure: Figure) -> list[str]:
    return [
        f"  {figure.way}: {measure.floor}" if figure.way == FLOOR else f"  {figure.way}",
        format_microseconds(figure.p50_us),
        format_microseconds(figure.p99_us),
        "-" if figure.ratio is None else f"{figure.ratio:.2f}x",
        f"{figure.gigabytes_per_second:.2f}" if measure.per_page else "",
        str(figure.count),
    ]
