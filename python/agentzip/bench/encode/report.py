"""
The figures as tables and as one JSON object.
"""

from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from agentzip.bench.encode.plan import RATIO_AIMS
from agentzip.bench.encode.result import (
    MEANINGS,
    EncodeResult,
    Group,
    Spread,
    WorkloadResult,
)
from agentzip.units import format_bytes, format_microseconds

__all__ = ["aims", "print_report", "to_json"]

_ENCODE_US_MAX = 20.0
_DECODE_US_MAX = 15.0
_FAULT_RATIO_MAX = 1.6
_WASTE_MAX = 0.02
_BOOKS_MAX = 0.05
"""Index, dictionaries and tables, of the pool."""


def to_json(result: EncodeResult) -> dict[str, Any]:
    """
    The object that `agentzip bench encode --json` prints.

    With one workload its `encodings` and `by_class` also stand at the top.
    """
    workloads = {one.kind: _workload_json(one) for one in result.workloads}
    top: dict[str, Any] = next(iter(workloads.values())) if len(workloads) == 1 else {}
    return {
        **{key: top[key] for key in ("encodings", "by_class") if key in top},
        "workloads": workloads,
        "skipped": result.skipped,
        "results_wrong": result.results_wrong,
        "seconds": result.seconds,
        "host": result.host,
        "plan": result.plan,
        "meanings": MEANINGS,
    }


def _workload_json(workload: WorkloadResult) -> dict[str, Any]:
    encodings = []
    for one in workload.encodings:
        entry = asdict(one)
        # Beside the encodings, not inside: it has as many rows as they have figures.
        del entry["by_class"], entry["by_codec"]
        encodings.append(entry)
    return {
        "encodings": encodings,
        "by_class": {
            one.name: {name: asdict(group) for name, group in one.by_class.items()}
            for one in workload.encodings
        },
        "by_codec": {
            one.name: {name: asdict(group) for name, group in one.by_codec.items()}
            for one in workload.encodings
        },
        "skipped": workload.skipped,
        "results_wrong": workload.results_wrong,
        "aims": [
            {"aim": title, "wanted": wanted, "found": found, "met": met}
            for title, wanted, found, met in aims(workload)
        ],
    }


def print_report(result: EncodeResult, console: Console) -> None:
    """Print the tables of every workload and what must be known to read them."""
    for workload in result.workloads:
        console.print(_gain_table(workload))
        console.print(_cost_table(workload))
        console.print(_aims_table(workload))
        for one in workload.encodings:
            if one.name in _missed(workload) and one.by_class:
                console.print(_groups_table(f"{workload.kind}, {one.name}: by class", one.by_class))
                console.print(_groups_table(f"{workload.kind}, {one.name}: by codec", one.by_codec))
        for name, reason in workload.skipped.items():
            console.print(f"{workload.kind}, {name}: skipped, {reason}")
    for kind, reason in result.skipped.items():
        console.print(f"{kind}: skipped, {reason}")
    console.print(f"results wrong: {result.results_wrong}; {result.seconds:.0f} s")


def aims(workload: WorkloadResult) -> list[tuple[str, float, float, bool]]:
    """What should be reached: what, wanted, found, and whether it is."""
    found = []
    for one in workload.encodings:
        if wanted := RATIO_AIMS.get(one.name, {}).get(workload.kind):
            title = f"{one.name}: page ratio at least"
            found.append((title, wanted, one.page_ratio, one.page_ratio >= wanted))
        if one.name == "warm" and one.encode_us:
            value = one.encode_us.p50
            title = "warm: encode us a page, median at most"
            found.append((title, _ENCODE_US_MAX, value, value <= _ENCODE_US_MAX))
        if one.name == "warm" and one.fault_us and one.decode_us:
            # All but making the page is what a fault on a raw page takes.
            value = one.fault_us.p50 / (one.fault_us.p50 - one.decode_us.p50)
            title = "warm: fault over the same without its decoding, at most"
            found.append((title, _FAULT_RATIO_MAX, value, value <= _FAULT_RATIO_MAX))
        if one.name == "cold-peer" and one.decode_us:
            value = one.decode_us.p50
            title = "cold-peer: decode us, median at most"
            found.append((title, _DECODE_US_MAX, value, value <= _DECODE_US_MAX))
        if one.index_bytes is None or one.pool_waste is None:
            continue
        if one.name in {"warm", "cold-own", "cold-peer"}:
            title = f"{one.name}: pool waste at most"
            found.append((title, _WASTE_MAX, one.pool_waste, one.pool_waste <= _WASTE_MAX))
            # Tables already hold index and dictionaries here.
            value = one.table_bytes / max(1, one.pool_bytes)
            title = f"{one.name}: books of the pool, at most"
            found.append((title, _BOOKS_MAX, value, value <= _BOOKS_MAX))
    return found


def _missed(workload: WorkloadResult) -> set[str]:
    return {title.split(":")[0] for title, _, _, met in aims(workload) if not met}


def _gain_table(workload: WorkloadResult) -> Table:
    table = Table(title=f"{workload.kind}: what is gained", box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    headings = ("n", "pages", "wanted", "net", "others", "ratio", "ratio_pss", "waste", "wrong")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for one in workload.encodings:
        wanted = RATIO_AIMS.get(one.name, {}).get(workload.kind)
        table.add_row(
            one.name,
            str(one.sandboxes),
            f"{one.page_ratio:.2f}",
            _optional(wanted),
            _optional(one.page_ratio_net),
            _optional(one.page_ratio_others),
            f"{one.ratio:.2f}",
            f"{one.ratio_pss:.2f}",
            "" if one.pool_waste is None else f"{one.pool_waste:.1%}",
            str(one.results_wrong),
        )
    return table


def _cost_table(workload: WorkloadResult) -> Table:
    table = Table(title=f"{workload.kind}: what it costs", box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    headings = ("encode", "page out", "decode", "fault", "P99", "CPU s", "index", "dicts")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for one in workload.encodings:
        table.add_row(
            one.name,
            _spread(one.encode_us)[0],
            _spread(one.page_out_us)[0],
            _spread(one.decode_us)[0],
            *_spread(one.fault_us),
            f"{one.cpu_s:.1f}",
            "" if one.index_bytes is None else format_bytes(one.index_bytes),
            "" if one.dictionary_bytes is None else format_bytes(one.dictionary_bytes),
        )
    return table


def _optional(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _spread(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["", ""]
    return [format_microseconds(spread.p50), format_microseconds(spread.p99)]


def _aims_table(workload: WorkloadResult) -> Table:
    table = Table(title=f"{workload.kind}: aims", box=SIMPLE_HEAD)
    table.add_column("aim", overflow="fold")
    for heading in ("wanted", "found", "verdict"):
        table.add_column(heading, justify="right")
    for title, wanted, found, met in aims(workload):
        table.add_row(title, f"{wanted:g}", f"{found:.3g}", "met" if met else "missed")
    return table


def _groups_table(title: str, groups: dict[str, Group]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for heading in ("pages", "bytes", "ratio"):
        table.add_column(heading, justify="right")
    for name, group in groups.items():
        ratio = "" if group.ratio is None else f"{group.ratio:.2f}"
        table.add_row(name, str(group.pages), format_bytes(group.bytes), ratio)
    return table
