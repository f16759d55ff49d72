"""
Results to tables: pure.

A result is the JSON object of a command as `kept.py` reads it.  What it does not have is a dash.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from agentzip.bench.report import claims
from agentzip.bench.report.blocks import Table
from agentzip.units import format_bytes, format_microseconds

__all__ = [
    "ablation_table",
    "codec_table",
    "encode_table",
    "fits_table",
    "knob_table",
    "made_of_table",
    "mode_none",
    "steps_table",
    "workload_table",
]

Result = Mapping[str, Any]

_CLAIMED = (
    f"Columns that begin with “{claims.LABEL}” are published figures of others, which nobody here "
    "has measured: their machines, sandboxes and way of counting are not known."
)

_NO_CLAIM = ("-", "-", "-")

_OURS = ("none", "encode", "prefetch", "full")
"""The steps of the ablation, each of which adds one thing."""

_STEP_NAMES = {
    "none": "none",
    "encode": "encode: page out on idle",
    "prefetch": "+ prefetch",
    "full": "+ schedule (full)",
    "zram": "peer: zram-lz4",
    "zswap": "peer: zswap",
    "ksm": "peer: KSM",
}


def codec_table(result: Result) -> Table:
    """The daemon with one codec alone, and with all it has, beside the published codec table."""
    none = result["none"]
    rows = []
    for entry in result["codecs"]:
        codec, one = entry["codec"], entry["figures"]
        rows.append(
            (
                "all of AgentZip" if codec == "pipeline" else codec,
                _ratio(one["ratio"]),
                _ratio(one["ratio_pss"]),
                f"+{one['cpu_percent']:.1f} %",
                _added(one, none, "turn_s", "p99"),
                _milliseconds(one, "p50"),
                _milliseconds(one, "p99"),
                _count(one["results_wrong"]),
                *claims.CODECS.get(codec, _NO_CLAIM),
            )
        )
    return Table(
        f"Codecs: the daemon with each alone, {_run_of(result)}",
        (
            *("codec", "ratio", "ratio_pss", "CPU added", "turn P99 added"),
            *("wake P50", "wake P99", "wrong"),
            *_claimed("ratio", "CPU added", "P99 added"),
        ),
        tuple(rows),
        (
            (
                "CPU is that of daemon, keeper and kernel threads, of the whole machine; "
                "P99 is compared with mode none of the same run."
            ),
            (
                f"Wakes of mode none: P50 {_milliseconds(none, 'p50')}, "
                f"P99 {_milliseconds(none, 'p99')}. "
                "Same-filled and equal pages are found with every codec."
            ),
            _CLAIMED,
        ),
    )


def encode_table(kind: str, workload: Result) -> Table:
    """What each encoding makes of the same pages of live sandboxes, and what a page costs."""
    rows = tuple(
        (
            one["name"],
            str(one["sandboxes"]),
            _ratio(one["page_ratio"]),
            _ratio(one.get("page_ratio_net")),
            _ratio(one["ratio"]),
            _microseconds(one["encode_us"], "p50"),
            _microseconds(one["decode_us"], "p50"),
            _microseconds(one["fault_us"], "p50"),
            _microseconds(one["fault_us"], "p99"),
            "-" if one["pool_waste"] is None else f"{one['pool_waste']:.1%}",
            f"{one['cpu_s']:.1f} s",
            _count(one["results_wrong"]),
        )
        for one in workload["encodings"]
    )
    return Table(
        f"Encodings of one page after the other, {kind}",
        (
            *("encoding", "sandboxes", "page ratio", "with books", "ratio"),
            *("encode", "decode", "fault P50", "fault P99", "pool waste", "CPU", "wrong"),
        ),
        rows,
        (
            (
                "page ratio: pages that are out by the bytes they need, same-filled ones left "
                "out; ratio: all memory counted. Every page is out at once, whatever it costs."
            ),
        ),
    )


def workload_table(results: Iterable[Result]) -> Table:
    """Memory of a waiting sandbox before and after, by workload and mode."""
    rows = []
    for result in results:
        name, none = result["plan"]["workload"], mode_none(result)
        for one in _others(result):
            before = one.get("waiting", {})
            claimed = claims.WORKLOADS.get(name, _NO_CLAIM) if one["mode"] == "full" else _NO_CLAIM
            rows.append(
                (
                    f"{name}, {one['mode']}",
                    str(result["plan"]["sandboxes"]),
                    _bytes(before.get("rss_before_bytes")),
                    _bytes(before.get("after_bytes")),
                    _ratio(one["ratio"]),
                    _ratio(one["ratio_pss"]),
                    _seconds(none["turn_s"], "p99"),
                    _seconds(one["turn_s"], "p99"),
                    _milliseconds(one, "p99"),
                    _milliseconds(one, "p99", "wake_known_ms"),
                    f"{one['cpu_percent']:.1f} %",
                    f"{one['finished']}",
                    _count(one["results_wrong"]),
                    *claimed,
                )
            )
    return Table(
        "Workloads: one waiting sandbox, mean",
        (
            *("workload, mode", "sandboxes", "baseline RSS", "after", "ratio", "ratio_pss"),
            *(
                "turn P99, none",
                "turn P99",
                "wake P99",
                "known wake P99",
                "CPU",
                "finished",
                "wrong",
            ),
            *_claimed("baseline RSS", "after", "ratio"),
        ),
        tuple(rows),
        (
            (
                "after: the PSS that stays and the sandbox's part of pool, tables, daemon and "
                "keeper. ratio = baseline RSS / after; ratio_pss has the baseline's PSS on top, "
                "which counts what sandboxes share once."
            ),
            f"Claimed beside it, for 20 sandboxes: {claims.TURN_P99}; {claims.LONG_TASKS}.",
            _CLAIMED,
        ),
    )


def made_of_table(results: Iterable[Result]) -> Table:
    """What the memory that is left was made of."""
    parts = ("private", "files", "shared_memory", "pool", "tables", "overhead", "unmapped")
    rows = tuple(
        (
            f"{result['plan']['workload']}, {one['mode']}",
            *(_bytes(one["made_of"].get(part, 0)) for part in parts),
            _bytes(one["cost_bytes"]),
        )
        for result in results
        for one in result["modes"]
        if one.get("made_of")
    )
    return Table(
        "What the memory was made of: all sandboxes, mean while turns were taken",
        (
            *("workload, mode", "private", "files", "shared memory", "pool", "tables"),
            *("daemon, keeper", "swap cache", "sum"),
        ),
        rows,
        (
            (
                "private: PSS of anonymous memory, of those that wait and of those that run. "
                "Files and shared memory of others are not ours to move."
            ),
        ),
    )


def ablation_table(result: Result) -> Table:
    """What each part adds, and the peers, beside the published ablation."""
    rows = tuple(
        (
            _STEP_NAMES[one["mode"]],
            _bytes(one["peak_bytes"]),
            _bytes(one["mean_bytes"]),
            f"{one['task_s']:.1f} s",
            _milliseconds(one, "p99"),
            _milliseconds(one, "p99", "wake_known_ms"),
            _seconds(one["turn_s"], "p99"),
            _ratio(one["ratio"]),
            f"{one['cpu_percent']:.1f} %",
            _share(one["prefetch"].get("hit_rate")),
            _share(one["prefetch"].get("waste")),
            f"{one['finished']}",
            _count(one["results_wrong"]),
            *claims.ABLATION.get(one["mode"], _NO_CLAIM),
        )
        for one in result["modes"]
    )
    return Table(
        f"Ablation and peers: {_run_of(result)}",
        (
            *("mode", "peak memory", "mean memory", "task", "wake P99", "known wake P99"),
            *("turn P99", "ratio", "CPU", "hits", "waste", "finished", "wrong"),
            *_claimed("peak memory", "task", "restore P99"),
        ),
        rows,
        (
            (
                "Memory is what the host used above what was used before; the wake time of mode "
                "none is the reading of the state alone. Known: from the third wake of a sandbox "
                "on."
            ),
            "The claims are for 200 sandboxes of 200 MB each that fetch, compute and write.",
            _CLAIMED,
        ),
    )


def steps_table(result: Result) -> Table | None:
    """Whether each step is better than the one before it; None without two of them."""
    found = {one["mode"]: one for one in result["modes"]}
    order = [name for name in _OURS if name in found]
    rows = []
    for before, after in itertools.pairwise(order):
        old, new = found[before], found[after]
        rows.append(
            (
                f"{before} to {after}",
                _change(old["peak_bytes"], new["peak_bytes"]),
                _change(old["mean_bytes"], new["mean_bytes"]),
                _change(old["wake_ms"].get("p99"), new["wake_ms"].get("p99")),
                _change(old["task_s"], new["task_s"]),
            )
        )
    if not rows:
        return None
    headings = ("step", "peak memory", "mean memory", "wake P99", "task")
    return Table("What each step changes", headings, tuple(rows))


def knob_table(result: Result) -> Table:
    """What each setting of the knob saves and costs."""
    rows = tuple(
        (
            f"{point['latency_target_s'] * 1000:g} ms",
            _bytes(point["figures"]["pss_gain_bytes"]),
            _ratio(point["figures"]["ratio"]),
            _milliseconds(point["figures"], "mean", "wake_known_ms"),
            _milliseconds(point["figures"], "p50"),
            _milliseconds(point["figures"], "p99"),
            _seconds(point["figures"]["turn_s"], "p99"),
            _count(point["figures"]["results_wrong"]),
        )
        for point in result["points"]
    )
    verdicts = []
    for name, key in (("memory saved", "saved_breaks"), ("known wake", "wake_breaks")):
        broken = ", ".join(result[key])
        verdicts.append(f"{name}: {f'steps back at {broken}' if broken else 'never steps back'}.")
    waits = ("known wake", "wake P50", "wake P99", "turn P99")
    headings = ("latency_target", "saved", "ratio", *waits, "wrong")
    title = f"policy.latency_target: {_run_of(result)}"
    return Table(title, headings, rows, (" ".join(verdicts),))


def fits_table(result: Result) -> Table:
    """How many sandboxes fit under the limit."""
    rows = tuple(
        (
            _STEP_NAMES[one["mode"]],
            str(one["sandboxes"]),
            _bytes(one["peak_bytes"]),
            _seconds(one["turn_s"], "p50"),
            _seconds(one["turn_s"], "p99"),
            ", ".join(f"{count}{'' if fits else ' (not)'}" for count, fits in one["tried"]),
        )
        for one in result["modes"]
    )
    limit = format_bytes(result["memory_limit_bytes"])
    headings = ("mode", "sandboxes", "peak memory", "turn P50", "turn P99", "tried")
    return Table(f"Sandboxes whose run stays within {limit} of host memory", headings, rows)


def mode_none(result: Result) -> Result:
    """What all other modes of a fan-out are compared with."""
    return next(one for one in result["modes"] if one["mode"] == "none")


def _others(result: Result) -> list[Result]:
    return [one for one in result["modes"] if one["mode"] != "none"]


def _run_of(result: Result) -> str:
    plan = result["plan"]
    return (
        f"workload {plan['workload']}, {plan['sandboxes']} sandboxes, {plan['turns']} turns, "
        f"{plan['think_s']:g} s of thinking"
    )


def _claimed(*headings: str) -> tuple[str, ...]:
    return tuple(f"{claims.LABEL}: {heading}" for heading in headings)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _bytes(value: float | None) -> str:
    return "-" if value is None else format_bytes(value)


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _seconds(spread: Mapping[str, float | None], key: str) -> str:
    value = spread.get(key)
    return "-" if value is None else f"{value:.2f} s"


def _milliseconds(figures: Result, key: str, name: str = "wake_ms") -> str:
    value = figures.get(name, {}).get(key)
    return "-" if value is None else f"{value:.0f} ms"


def _microseconds(spread: Mapping[str, float] | None, key: str) -> str:
    return "-" if spread is None else format_microseconds(spread[key])


def _change(before: float | None, after: float | None) -> str:
    if not before or after is None:
        return "-"
    return f"{(after / before - 1) * 100:+.1f} %"


def _added(figures: Result, none: Result, name: str, key: str) -> str:
    return _change(none[name].get(key), figures[name].get(key))
