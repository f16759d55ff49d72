"""
The figures of a demo: one plain value, shown as a table or as one JSON object.
"""

from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.table import Table

from agentzip.accounting import Gain, percentile
from agentzip.model import Latency
from agentzip.units import format_bytes, format_microseconds

__all__ = ["DemoResult", "print_report"]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What a demo found."""

    gain: Gain
    gain_after_wake: Gain
    """The same after every agent has done its next tool call."""
    stop: Latency
    """How long a thread of an agent was stopped at a time."""
    fault: Latency
    """How long a page fault took in the daemon during the wake."""
    tool_ms: list[float]
    """The tool call before the page out, per agent."""
    wake_ms: list[float]
    """The same tool call right after waking, per agent."""
    announced_wake_ms: list[float]
    """The same with the wake announced, the prefetch of what the first one needed included."""
    page_out_seconds: float
    page_out_again_seconds: float
    page_in_seconds: float
    pages_out: int
    pages_verified: int
    """Pages that left, came home and were equal, byte by byte (by digest), seen from outside."""
    pages_wrong: int
    digests_wrong: int
    """Agents whose state, or whose answer to the same question, was another than before."""
    left_behind: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all is right and nothing was left behind."""
        right = not self.pages_wrong and not self.digests_wrong and self.pages_verified > 0
        return right and not self.left_behind

    def to_json(self) -> dict[str, object]:
        """The object that `agentzip demo --json` prints."""
        figures = asdict(self.gain)
        del figures["table_bytes"]
        return {
            **figures,
            # The tables are ours as well; whoever adds pool and overhead must get all of it.
            "overhead_bytes": self.gain.overhead_bytes + self.gain.table_bytes,
            "table_bytes": self.gain.table_bytes,
            "stop_us": {"p50": self.stop.p50_us, "p99": self.stop.p99_us, "max": self.stop.max_us},
            "fault_us": {
                "p50": self.fault.p50_us,
                "p99": self.fault.p99_us,
                "count": self.fault.count,
            },
            "tool_ms": _spread(self.tool_ms),
            "wake_ms": _spread(self.wake_ms),
            "announced_wake_ms": _spread(self.announced_wake_ms),
            "page_out_seconds": self.page_out_seconds,
            "page_out_again_seconds": self.page_out_again_seconds,
            "page_in_seconds": self.page_in_seconds,
            "pages_out": self.pages_out,
            "pages_verified": self.pages_verified,
            "pages_wrong": self.pages_wrong,
            "digests_wrong": self.digests_wrong,
            "ratio_after_wake": self.gain_after_wake.ratio,
            "left_behind": self.left_behind,
            "passed": self.passed,
        }


def print_report(result: DemoResult, console: Console) -> None:
    """Print the table at the end."""
    gain, after_wake = result.gain, result.gain_after_wake
    table = Table(title=f"{gain.sandboxes} sandboxes", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    table.add_row("baseline RSS", format_bytes(gain.baseline_rss_bytes), "sum over the sandboxes")
    table.add_row("baseline PSS", format_bytes(gain.baseline_pss_bytes), "shared pages once")
    table.add_row("PSS that stays", format_bytes(gain.after_pss_bytes), "while they wait")
    table.add_row("pool", format_bytes(gain.pool_bytes), "the pages that left, encoded")
    table.add_row("tables", format_bytes(gain.table_bytes), "where each page is")
    table.add_row(
        "daemon and keeper", format_bytes(gain.overhead_bytes), "the demo itself is in it"
    )
    table.add_row("ratio", f"{gain.ratio:.2f}x", "RSS before / all memory after")
    table.add_row("ratio_pss", f"{gain.ratio_pss:.2f}x", "PSS before / all memory after")
    table.add_row("host gain", format_bytes(gain.host_gain_bytes), "by MemAvailable")
    table.add_row("ratio after waking", f"{after_wake.ratio:.2f}x", "one more tool call each")
    table.add_section()
    table.add_row("page out", f"{result.page_out_seconds:.2f} s", f"{result.pages_out} pages")
    table.add_row(
        "page out again", f"{result.page_out_again_seconds:.2f} s", "clean pages: nothing encoded"
    )
    table.add_row("page in", f"{result.page_in_seconds:.2f} s", "all pages, in batches")
    table.add_row("stop of one thread", *_latency(result.stop))
    table.add_row("page fault", *_latency(result.fault))
    table.add_row("tool call before", *_milliseconds(result.tool_ms))
    table.add_row("tool call on waking", *_milliseconds(result.wake_ms))
    table.add_row("the same, announced", *_milliseconds(result.announced_wake_ms))
    table.add_section()
    table.add_row("pages verified", str(result.pages_verified), "left, came home, equal")
    table.add_row("pages wrong", str(result.pages_wrong), "")
    table.add_row("agents with another state", str(result.digests_wrong), "")
    table.add_row("left behind", str(len(result.left_behind)), "; ".join(result.left_behind))
    console.print(table)


def _spread(values: list[float]) -> dict[str, float]:
    return {"p50": percentile(values, 50), "p99": percentile(values, 99)}


def _latency(latency: Latency) -> tuple[str, str]:
    return (
        format_microseconds(latency.p50_us),
        (
            f"p99 {format_microseconds(latency.p99_us)}, "
            f"max {format_microseconds(latency.max_us)}, {latency.count} times"
        ),
    )


def _milliseconds(values: list[float]) -> tuple[str, str]:
    return f"{percentile(values, 50):.1f} ms", f"p99 {percentile(values, 99):.1f} ms"
