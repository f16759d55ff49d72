"""
Results to pictures, as SVG.

The same result gives the same bytes, so a document that is made again differs only where its
figures do.
"""

import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from agentzip.bench.report.blocks import Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["knob_plot", "latency_plot", "memory_plot", "ratio_plot", "why_not"]

Result = Mapping[str, Any]

_COLORS = {
    "none": "#555555",
    "encode": "#1f77b4",
    "prefetch": "#17a2b8",
    "full": "#2ca02c",
    "zram": "#ff7f0e",
    "zswap": "#d62728",
    "ksm": "#9467bd",
}
"""A mode looks alike in every picture."""

_MIB = 2**20

_CLASSES_MAX = 10
"""In one picture: the largest ones; the rest is too small to see."""


def why_not() -> str:
    """Why nothing can be drawn here; empty if it can."""
    if find_spec("matplotlib") is None:
        return "matplotlib is not installed: pip install 'agentzip[bench]'"
    return ""


def memory_plot(name: str, title: str, result: Result) -> Plot | None:
    """Memory over time, mode by mode, as the host and as PSS count it; None without samples."""
    figure = _empty()
    lowest = 0.0
    axes = None
    for place, key, label in (
        (1, "used_bytes", "used memory of the host (MiB)"),
        (2, "cost_bytes", "PSS, pool, tables, daemon and keeper (MiB)"),
    ):
        axes = figure.add_subplot(1, 2, place, sharey=axes)
        for mode in result["modes"]:
            if samples := mode["memory"]:
                seconds = [one["at_s"] - samples[0]["at_s"] for one in samples]
                sizes = [one[key] / _MIB for one in samples]
                lowest = min(lowest, *sizes)
                color = _COLORS[mode["mode"]]
                axes.plot(seconds, sizes, ".-", markersize=3, label=mode["mode"], color=color)
        axes.set_xlabel("seconds since turns began")
        axes.set_ylabel(label)
    if axes is None or not axes.lines:
        return None
    axes.set_ylim(bottom=lowest)
    axes.legend()
    return _plot(figure, f"memory-{name}", f"{title}: memory over time")


def latency_plot(name: str, title: str, result: Result) -> Plot | None:
    """How many wakes and turns took at most so long; None without samples."""
    from matplotlib.ticker import LogLocator, NullLocator

    figure = _empty()
    drawn = False
    for place, key, label in ((1, "wakes_ms", "wake (ms)"), (2, "turns_s", "turn (s)")):
        axes = figure.add_subplot(1, 2, place)
        for mode in result["modes"]:
            if samples := sorted(mode.get(key, [])):
                shares = [(number + 1) / len(samples) for number in range(len(samples))]
                color = _COLORS[mode["mode"]]
                axes.step(samples, shares, where="post", label=mode["mode"], color=color)
                drawn = True
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(label)
        axes.set_ylabel("share that took at most so long")
        axes.set_ylim(0, 1.02)
        axes.grid(visible=True, alpha=0.3)
    if not drawn:
        return None
    figure.axes[0].legend(loc="lower right")
    return _plot(figure, f"latency-{name}", f"{title}: wakes and turns")


def ratio_plot(kind: str, workload: Result) -> Plot | None:
    """Ratio of each class of memory under each encoding; None if no encoding tells of classes."""
    tables: dict[str, dict[str, Any]] = {
        name: groups for name, groups in workload["by_class"].items() if groups
    }
    if not tables:
        return None
    pages: dict[str, int] = {}
    for groups in tables.values():
        for name, group in groups.items():
            if group["ratio"] is not None:
                pages[name] = max(pages.get(name, 0), group["pages"])
    classes = sorted(pages, key=lambda name: -pages[name])[:_CLASSES_MAX]
    figure, axes = _figure()
    width = 0.8 / len(tables)
    for number, (encoding, groups) in enumerate(tables.items()):
        places = [index + (number + 0.5) * width - 0.4 for index in range(len(classes))]
        heights = [groups.get(name, {}).get("ratio") or 0.0 for name in classes]
        axes.bar(places, heights, width, label=encoding)
    axes.set_xticks(range(len(classes)), classes, rotation=20, ha="right")
    axes.set_ylabel("page ratio")
    axes.legend(ncols=2, fontsize="small")
    return _plot(figure, f"ratio-{kind}", f"Ratio by class of memory and codec, {kind}")


def knob_plot(result: Result) -> Plot | None:
    """Memory saved against the mean known wake, a point for each setting; None without one."""
    told = [(point, _known_wake_ms(point["figures"])) for point in result["points"]]
    points = [point for point, wait in told if wait is not None]
    if not points:
        return None
    waits = [wait for _, wait in told if wait is not None]
    saved = [point["figures"]["pss_gain_bytes"] / _MIB for point in points]
    figure, axes = _figure()
    axes.plot(waits, saved, "o-", color=_COLORS["full"])
    for point, wait, mebibytes in zip(points, waits, saved, strict=True):
        label = f" {point['latency_target_s'] * 1000:g} ms"
        axes.annotate(label, (wait, mebibytes))
    if floor := _known_wake_ms(result["none"]):
        axes.axvline(floor, color=_COLORS["none"], linestyle="--", label="mode none")
        axes.legend()
    axes.set_xlabel("wake of a known habit, mean (ms)")
    axes.set_ylabel("memory saved (MiB)")
    axes.set_ylim(bottom=min(0.0, *(1.1 * one for one in saved)))
    return _plot(figure, "knob", "Memory against latency, by policy.latency_target")


def _known_wake_ms(figures: Result) -> float | None:
    """Mean of the wakes whose habit is known; of all, if no sandbox came to one."""
    means = (figures.get(name, {}).get("mean") for name in ("wake_known_ms", "wake_ms"))
    return next((float(mean) for mean in means if mean), None)


def _empty() -> "Figure":
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def _figure() -> "tuple[Figure, Axes]":
    figure = _empty()
    return figure, figure.add_subplot()


def _plot(figure: "Figure", name: str, title: str) -> Plot:
    from matplotlib import rc_context

    drawn = io.StringIO()
    # Without a salt ids are random; without the metadata the picture names nobody's address.
    silent: Sequence[str] = ("Creator", "Date", "Format", "Type")
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(drawn, format="svg", metadata=dict.fromkeys(silent))
    text = drawn.getvalue()
    # What stands before is for readers of XML that would fetch a grammar.
    return Plot(name, title, text[text.index("<svg") :])
