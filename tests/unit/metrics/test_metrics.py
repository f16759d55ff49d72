"""What Prometheus reads: names by its conventions, and figures that add up."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agentzip.metrics import FAMILIES
from agentzip.metrics.collector import HostCollector
from agentzip.metrics.survey import Surveyor
from agentzip.testing import FakeEngine, FakeTarget
from metrics_scraping import SCOPE, BusyEngine, full_fleet, samples, serving, value
from sandbox_values import MIB, FakeFleet, a_sandbox
from source_tree import ROOT


@pytest.fixture(autouse=True)
def _page_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake engine needs no native module, and neither does the size of its pages."""
    monkeypatch.setattr("agentzip.metrics.survey.page_size", lambda: 4096)


def full_scrape() -> str:
    """A scrape with every family in it."""
    engine = BusyEngine([FakeTarget(7)])
    engine.attach(7)
    engine.page_out(7)
    with serving(full_fleet(), engine) as (scrape, server):
        server._surveyor.look()
        return scrape()


def test_every_family_is_exported_as_it_is_declared() -> None:
    """Name, kind, meaning and labels are those of the list, and nothing else is ours."""
    declared = {
        family.name.removesuffix("_total" if family.kind == "counter" else ""): family
        for family in FAMILIES
    }
    found = {
        family.name: family
        for family in text_string_to_metric_families(full_scrape())
        if not family.name.startswith("process_")
    }

    assert set(declared) == set(found)
    for name, family in found.items():
        labels = {label for sample in family.samples for label in sample.labels} - {"quantile"}
        assert declared[name].kind == family.type
        assert declared[name].meaning == family.documentation
        assert set(declared[name].labels) == labels, name


def test_names_follow_the_conventions() -> None:
    """Base units last, `_total` on counters alone, a help text, no pid in a label."""
    wrong = []
    for family in FAMILIES:
        bare = family.name.removesuffix("_total")
        if not re.fullmatch(r"agentzip(_[a-z]+)+", family.name):
            wrong.append(f"{family.name}: not of lower-case words")
        if (family.kind == "counter") != family.name.endswith("_total"):
            wrong.append(f"{family.name}: _total is for counters, and all of them")
        if re.search(r"_(ms|us|milliseconds|kib|mib|mb|percent|pct|count|sum|bucket)\b", bare):
            wrong.append(f"{family.name}: not a base unit, or an ending that is taken")
        if re.search(r"(bytes|seconds|ratio)_", bare):
            wrong.append(f"{family.name}: the unit comes last")
        if family.kind == "summary" and not bare.endswith("_seconds"):
            wrong.append(f"{family.name}: a summary of what unit?")
        if not re.fullmatch(r"[A-Z].*\.", family.meaning):
            wrong.append(f"{family.name}: help is no sentence")
        if {"pid", "cgroup", "command"} & set(family.labels):
            wrong.append(f"{family.name}: a label without bounds")

    assert [] == wrong


def test_promtool_finds_nothing_to_say() -> None:
    """Prometheus' own linter agrees, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=full_scrape(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "") == (checked.returncode, checked.stdout + checked.stderr)


def test_figures_of_the_engine_are_in_base_units() -> None:
    """Microseconds become seconds; counts and sums let rates and means be computed."""
    text = full_scrape()

    assert 70 == value(text, "agentzip_faults_total")
    assert 2 == value(text, "agentzip_address_space_events_total", event="fork")
    assert 20e-6 == value(text, "agentzip_fault_service_seconds", quantile="0.5")
    assert 90e-6 == value(text, "agentzip_fault_service_seconds", quantile="0.99")
    assert 40 == value(text, "agentzip_fault_service_seconds_count")
    assert pytest.approx(40 * 25e-6) == value(text, "agentzip_fault_service_seconds_sum")
    # No thread was stopped yet: a quantile of nothing is no figure.
    assert ("agentzip_stop_seconds", frozenset({("quantile", "0.5")})) not in samples(text)
    assert 0 == value(text, "agentzip_stop_seconds_count")


def test_sandboxes_are_counted_by_scope_and_phase() -> None:
    """A scope has every phase, zeros as well, and means weighted by wakes."""
    fleet = FakeFleet(
        [
            a_sandbox("a", wakes=1, prefetch_hit_rate=0.5, wake_p99_ms=80.0),
            a_sandbox("b", wakes=3, prefetch_hit_rate=0.9, pinned=True),
        ]
    )
    with serving(fleet) as (scrape, _):
        text = scrape()

    assert 2 == value(text, "agentzip_sandboxes", scope=SCOPE, phase="waiting_model")
    assert 0 == value(text, "agentzip_sandboxes", scope=SCOPE, phase="done")
    assert 1 == value(text, "agentzip_pinned_sandboxes", scope=SCOPE)
    assert 160 * MIB == value(text, "agentzip_out_bytes", scope=SCOPE)
    assert pytest.approx(0.8) == value(text, "agentzip_prefetch_hit_ratio", scope=SCOPE)
    assert 0.08 == value(text, "agentzip_worst_wake_seconds", scope=SCOPE)


def test_single_processes_and_commands_share_a_scope_label() -> None:
    """A pid or a name in a pattern is no label."""
    fleet = FakeFleet(
        [
            a_sandbox("a", scope="pid:4711"),
            a_sandbox("b", scope="pid:4712"),
            a_sandbox("c", scope="run:c"),
        ]
    )
    with serving(fleet) as (scrape, _):
        text = scrape()

    assert 2 == value(text, "agentzip_sandboxes", scope="pid", phase="waiting_model")
    assert 1 == value(text, "agentzip_sandboxes", scope="run", phase="waiting_model")
    assert "4711" not in text


def test_what_only_grows_never_falls_when_a_sandbox_ends() -> None:
    """Totals keep what ended sandboxes did; one that begins anew under an old name adds."""
    fleet = FakeFleet([a_sandbox("a", wakes=4), a_sandbox("b", wakes=6)])
    seen = []
    with serving(fleet) as (scrape, _):
        for now in (
            fleet.found,
            [a_sandbox("a", wakes=9)],  # b has ended
            [a_sandbox("a", wakes=2)],  # a ended, and another a woke twice
            [],
            [a_sandbox("a", wakes=1)],
        ):
            fleet.found = now
            seen.append(value(scrape(), "agentzip_wakes_total", scope=SCOPE))

    assert [10, 15, 17, 17, 18] == seen


def test_series_are_bounded_and_the_rest_is_added_up() -> None:
    """The largest at home have series of their own, wherever their pages are."""
    fleet = FakeFleet(
        [
            a_sandbox("out", rss_bytes=0, bytes_logical=90 * MIB, bytes_pool=9 * MIB),
            a_sandbox("home", rss_bytes=80 * MIB, bytes_logical=0),
            *(
                a_sandbox(f"s{number}", rss_bytes=MIB, bytes_logical=2 * MIB, bytes_pool=MIB)
                for number in range(20)
            ),
        ]
    )
    with serving(fleet, sandboxes_max=2) as (scrape, _):
        text = scrape()
    named = {dict(labels)["sandbox"] for _, labels in samples(text) if "sandbox" in dict(labels)}

    assert {"out", "home", "other"} == named
    assert 20 * MIB == value(text, "agentzip_sandbox_resident_bytes", sandbox="other", scope="")
    assert 40 * MIB == value(text, "agentzip_sandbox_out_bytes", sandbox="other", scope="")
    assert (
        "agentzip_sandbox_faults_total",
        frozenset({("sandbox", "other"), ("scope", "")}),
    ) not in (samples(text))


def test_three_hundred_sandboxes_are_a_bounded_text() -> None:
    """What a scrape costs is printed; what it holds does not grow with the host."""
    sizes = {}
    for count in (300, 600):
        fleet = FakeFleet([a_sandbox(f"agent-sandbox-{number}") for number in range(count)])
        collector = HostCollector(FakeEngine(), fleet, lambda: None, 100)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        started = time.process_time()
        text = generate_latest(registry).decode()
        print(f"{count} sandboxes: {(time.process_time() - started) * 1000:.1f} ms, {len(text)} B")
        sizes[count] = len(samples(text))

    assert sizes[300] == sizes[600] < 1300


def test_what_is_not_known_is_left_out() -> None:
    """Before the first wake there is no rate, and no zero that looks like one."""
    fleet = FakeFleet(
        [
            a_sandbox(
                "new",
                wakes=0,
                prefetch_hit_rate=None,
                prefetch_waste=None,
                wake_p50_ms=None,
                wake_p99_ms=None,
            )
        ]
    )
    with serving(fleet) as (scrape, _):
        names = {name for name, _ in samples(scrape())}

    assert not {name for name in names if "prefetch" in name or name.endswith("wake_seconds")}
    assert "agentzip_sandbox_wake_seconds_count" in names


def test_names_of_sandboxes_are_only_text() -> None:
    """Quotes, line ends and backslashes of a name come back as they were."""
    name = 'x"} 1\nagentzip_pages_lost_total 9\\'
    with serving(FakeFleet([a_sandbox(name)])) as (scrape, _):
        text = scrape()

    assert 20 * MIB == value(text, "agentzip_sandbox_resident_bytes", sandbox=name, scope=SCOPE)
    assert 0 == value(text, "agentzip_pages_lost_total")


def test_a_survey_counts_classes_and_the_gain() -> None:
    """Classes and codecs of all targets together; pages take a quarter of their size."""
    engine = FakeEngine([FakeTarget(7, pages=100), FakeTarget(8, pages=50)])
    for pid in (7, 8):
        engine.attach(pid)
        engine.page_out(pid)
    surveyor = Surveyor(engine, list, root=Path("/nonexistent"))
    surveyor.look()
    survey = surveyor.last

    assert survey is not None
    assert {("interpreter heap", "zstd"): (150 * 4096, 150 * 1024)} == survey.classes
    assert survey.gained is not None
    assert 150 * 3072 - 2 * 4096 == survey.gained.host_gain_bytes
    assert 150 * 4096 / (150 * 1024 + 2 * 4096) == survey.gained.ratio


def test_a_scrape_takes_no_census() -> None:
    """What holds a table is asked by the survey, never by whoever reads the figures."""
    engine = FakeEngine([FakeTarget(7)])
    engine.attach(7)
    engine.census = None  # type: ignore[method-assign, assignment]
    with serving(full_fleet(), engine) as (scrape, _):
        assert "agentzip_engine_up 1.0" in scrape()


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    """Every name in a query is exported, every panel has one, and no two lie on each other."""
    board = json.loads((ROOT / "packaging" / "grafana-dashboard.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    asked = set(re.findall(r"\b(?:agentzip|process)_\w+", " ".join(queries + _variables(board))))
    summaries = [family.name for family in FAMILIES if family.kind == "summary"]
    exported = {
        *(family.name for family in FAMILIES),
        *(f"{name}{ending}" for name in summaries for ending in ("_count", "_sum")),
        *(name for name, _ in samples(full_scrape()) if name.startswith("process_")),
    }
    squares = [
        (column, row)
        for panel in board["panels"]
        for column in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for row in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert set() == asked - exported
    assert all(panel["targets"] and panel["title"] and panel["description"] for panel in panels)
    assert len(board["panels"]) == len({panel["id"] for panel in board["panels"]})
    assert len(squares) == len(set(squares))
    assert max(column for column, _ in squares) < 24


def _variables(board: dict[str, dict[str, list[dict[str, str]]]]) -> list[str]:
    return [str(one.get("query", "")) for one in board["templating"]["list"]]


def test_the_page_lists_every_metric() -> None:
    """docs/observability.md has each name with kind, labels and meaning as in the code."""
    page = (ROOT / "docs" / "observability.md").read_text()
    rows = [
        f"| `{one.name}` | {one.kind} | "
        f"{' '.join(f'`{label}`' for label in one.labels) or '-'} | {one.meaning} |"
        for one in FAMILIES
    ]

    assert [] == [row for row in rows if row not in page.splitlines()]
    assert set(re.findall(r"\bagentzip_\w+", page)) <= {
        *(one.name for one in FAMILIES),
        *(f"{one.name}_{end}" for one in FAMILIES for end in ("count", "sum")),
    }
