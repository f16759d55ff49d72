"""The figures at the end of a demo."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from agentzip.accounting import gain
from agentzip.demo.report import DemoResult, print_report
from agentzip.model import Latency

NEEDED = {
    *("sandboxes", "baseline_rss_bytes", "baseline_pss_bytes", "after_pss_bytes", "pool_bytes"),
    *("overhead_bytes", "ratio", "ratio_pss", "host_gain_bytes", "stop_us", "fault_us"),
    *("wake_ms", "announced_wake_ms", "pages_verified", "pages_wrong"),
}


@pytest.fixture
def result() -> DemoResult:
    """A demo that went well."""
    gained = gain(
        baseline_rss=[400, 400],
        baseline_pss=[300, 300],
        after_pss=[50, 50],
        pool_bytes=60,
        table_bytes=10,
        overhead_bytes=30,
        available_before=0,
        available_after=500,
    )
    latency = Latency(5, 1.0, 2.0, 3.0, 1.5)
    return DemoResult(
        gain=gained,
        gain_after_wake=gained,
        stop=latency,
        fault=latency,
        tool_ms=[10.0, 12.0],
        wake_ms=[20.0, 30.0],
        announced_wake_ms=[12.0, 14.0],
        page_out_seconds=1.0,
        page_out_again_seconds=0.1,
        page_in_seconds=0.5,
        pages_out=100,
        pages_verified=100,
        pages_wrong=0,
        digests_wrong=0,
    )


def test_the_object_has_every_promised_figure(result: DemoResult) -> None:
    """Scripts rely on these names."""
    figures = json.loads(json.dumps(result.to_json()))

    assert NEEDED <= figures.keys()
    assert {"p50": 1.0, "p99": 2.0, "max": 3.0} == figures["stop_us"]
    assert {"p50": 1.0, "p99": 2.0, "count": 5} == figures["fault_us"]
    assert {"p50": 20.0, "p99": 30.0} == figures["wake_ms"]
    assert {"p50": 12.0, "p99": 14.0} == figures["announced_wake_ms"]


def test_the_figures_of_the_object_add_up(result: DemoResult) -> None:
    """Whoever divides RSS by what is left gets the printed ratio."""
    figures = result.to_json()
    left = sum(
        int(str(figures[name])) for name in ("after_pss_bytes", "pool_bytes", "overhead_bytes")
    )

    assert 800 / left == figures["ratio"]


@pytest.mark.parametrize(
    "change",
    [
        {"pages_wrong": 1},
        {"digests_wrong": 1},
        {"left_behind": ["the keeper still runs"]},
        {"pages_verified": 0},
    ],
)
def test_anything_wrong_fails_the_demo(result: DemoResult, change: dict[str, object]) -> None:
    """A wrong page, another state, a trace, or nothing checked: each fails."""
    assert result.passed
    assert not replace(result, **change).passed  # type: ignore[arg-type]


def test_the_table_names_both_ratios(result: DemoResult) -> None:
    """People see the same figures as scripts."""
    text = io.StringIO()
    print_report(result, Console(file=text, width=120))

    assert "4.00x" in text.getvalue()
    assert "ratio_pss" in text.getvalue()
    assert "pages verified" in text.getvalue()
