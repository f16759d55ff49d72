"""
From results to tables, pictures and the document, on what a real run has left (`run/`).

Two sandboxes, three turns: small enough to be kept here.  Its figures mean little; that each of
them arrives where it belongs is what is tested.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from agentzip.bench.report import facts, gains, gaps, plots, tables
from agentzip.bench.report.blocks import Plot, Table
from agentzip.bench.report.chapters import document_of
from agentzip.bench.report.claims import LABEL
from agentzip.bench.report.gains import Gap
from agentzip.bench.report.html import to_html
from agentzip.bench.report.kept import Kept, load
from agentzip.bench.report.making import write
from agentzip.bench.report.markdown import to_markdown
from agentzip.errors import InvalidSetting
from agentzip.units import format_bytes

_RUN = Path(__file__).parent / "run"


@pytest.fixture
def kept() -> Kept:
    """The run."""
    return load(_RUN)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without matplotlib."""
    monkeypatch.setattr(plots, "find_spec", lambda _name: None)


@pytest.fixture
def ablation(kept: Kept) -> dict[str, Any]:
    """Its largest fan-out."""
    return kept.results["ablation"]


def _column(table: Table, heading: str) -> dict[str, str]:
    """A column by what its rows are."""
    place = table.headings.index(heading)
    return {row[0]: row[place] for row in table.rows}


# ── tables ────────────────────────────────────────────────────────────────────────────────────────
def test_codecs_stand_beside_what_is_claimed(kept: Kept) -> None:
    """All four of ours; the claims of three in columns that say so."""
    result = kept.results["codecs"]
    table = tables.codec_table(result)

    ratios = {one["codec"]: f"{one['figures']['ratio']:.2f}" for one in result["codecs"]}
    ratios["all of AgentZip"] = ratios.pop("pipeline")
    assert ratios == _column(table, "ratio")
    claimed = {"lz4": "4.2", "zstd-3": "7.9", "zstd-9": "8.6", "all of AgentZip": "-"}
    assert claimed == _column(table, f"{LABEL}: ratio")
    assert any("nobody here has measured" in note for note in table.notes)


def test_an_added_percentile_is_that_of_the_same_run(kept: Kept) -> None:
    """Turn P99 a tenth above mode none is +10 %."""
    result = copy.deepcopy(kept.results["codecs"])
    result["none"]["turn_s"]["p99"] = 2.0
    result["codecs"][0]["figures"]["turn_s"]["p99"] = 2.2

    assert "+10.0 %" == _column(tables.codec_table(result), "turn P99 added")["lz4"]


def test_encodings_have_their_figures(kept: Kept) -> None:
    """What the kernel does not tell is a dash, not a zero."""
    workload = kept.results["encode"]["workloads"]["json"]
    table = tables.encode_table("json", workload)

    ratios = {one["name"]: f"{one['page_ratio']:.2f}" for one in workload["encodings"]}
    assert ratios == _column(table, "page ratio")
    assert "-" != _column(table, "with books")["lz4"]
    assert "-" == _column(table, "with books")["zram-lz4"]


def test_a_waiting_sandbox_before_and_after(kept: Kept) -> None:
    """The ratio is that of the two sizes beside it."""
    result = kept.results["workload-D"]
    table = tables.workload_table([result])

    full = next(one for one in result["modes"] if one["mode"] == "full")
    before, after = full["waiting"]["rss_before_bytes"], full["waiting"]["after_bytes"]
    assert pytest.approx(full["ratio"], rel=1e-3) == before / after
    assert format_bytes(before) == _column(table, "baseline RSS")["D, full"]
    assert format_bytes(after) == _column(table, "after")["D, full"]
    assert {"D, full": "6.5", "D, zram": "-"} == _column(table, f"{LABEL}: ratio")


def test_memory_is_the_sum_of_its_parts(kept: Kept) -> None:
    """What the memory was made of leaves nothing over."""
    for result in (kept.results["workload-D"], kept.results["ablation"]):
        for one in result["modes"]:
            parts = ("private", "files", "shared_memory", "pool", "tables", "overhead")
            total = sum(one["made_of"][part] for part in parts)
            assert pytest.approx(one["cost_bytes"], abs=10) == total
    assert 3 == len(tables.made_of_table([kept.results["workload-D"]]).rows)


def test_the_ablation_has_steps_peers_and_claims(ablation: dict[str, Any]) -> None:
    """In the order of running; a claim stands beside the step it is for."""
    table = tables.ablation_table(ablation)

    assert [
        *("none", "encode: page out on idle", "+ prefetch", "+ schedule (full)", "peer: KSM")
    ] == [row[0] for row in table.rows]
    assert "28 ms" == _column(table, f"{LABEL}: restore P99")["+ schedule (full)"]
    assert "-" == _column(table, f"{LABEL}: peak memory")["peer: KSM"]
    peaks = [format_bytes(one["peak_bytes"]) for one in ablation["modes"]]
    assert peaks == list(_column(table, "peak memory").values())


def test_what_is_null_is_a_dash(kept: Kept, ablation: dict[str, Any]) -> None:
    """A command takes no turns, and nobody knows its results; a habit may not be known yet."""
    for one in ablation["modes"]:
        empty = dict.fromkeys(("mean", "p50", "p95", "p99"))
        one |= {"turn_s": empty, "wake_ms": empty, "wake_known_ms": empty, "results_wrong": None}
    table = tables.ablation_table(ablation)

    for heading in ("wake P99", "known wake P99", "turn P99", "wrong"):
        assert {"-"} == set(_column(table, heading).values())
    assert "Results wrong, over all commands: 0." in to_markdown(document_of(kept))


def test_a_known_habit_has_a_column(ablation: dict[str, Any]) -> None:
    """Beside the one of all wakes."""
    ablation["modes"][3]["wake_known_ms"] = {"p99": 12.4}

    known = _column(tables.ablation_table(ablation), "known wake P99")
    assert "12 ms" == known["+ schedule (full)"]
    assert "-" == known["none"]


def test_steps_say_what_each_changes(ablation: dict[str, Any]) -> None:
    """A peer is no step; without two steps there is nothing to say."""
    for number, one in enumerate(ablation["modes"], 1):
        one["peak_bytes"] = number * 1000
    table = tables.steps_table(ablation)

    assert table is not None
    assert {
        "none to encode": "+100.0 %",
        "encode to prefetch": "+50.0 %",
        "prefetch to full": "+33.3 %",
    } == _column(table, "peak memory")
    ablation["modes"] = ablation["modes"][:1]
    assert tables.steps_table(ablation) is None


def test_the_knob_and_the_search_are_told(kept: Kept) -> None:
    """Settings with what they save; counts with whether they fitted."""
    knob = tables.knob_table(kept.results["knob"])
    fits = tables.fits_table(kept.results["fits"])

    assert ["1 ms", "1000 ms"] == list(_column(knob, "ratio"))
    most = kept.results["fits"]["modes"][0]
    assert str(most["sandboxes"]) == _column(fits, "sandboxes")["none"]
    assert str(most["tried"][0][0]) in _column(fits, "tried")["none"]


# ── two ways to count ─────────────────────────────────────────────────────────────────────────────
def test_what_lies_between_the_gains_adds_up(ablation: dict[str, Any]) -> None:
    """Kernel, files, others and rest are the difference, mode by mode."""
    none = tables.mode_none(ablation)
    for one in ablation["modes"][1:]:
        gap = gains.gap_of(one, none)
        assert gap is not None
        assert (
            one["host_gain_bytes"] - one["pss_gain_bytes"] == gap.bytes == sum(gap.parts.values())
        )
    table = gains.gaps_table([("ablation", ablation)])
    assert ["ablation, encode", "ablation, prefetch", "ablation, full", "ablation, ksm"] == [
        row[0] for row in table.rows
    ]


def test_a_large_difference_is_explained_and_a_small_one_is_not() -> None:
    """By its largest part, whichever way it goes."""
    mib = 2**20
    small = Gap(host=104 * mib, pss=100 * mib, kernel=4 * mib, files=0, others=0)
    kernel = Gap(host=110 * mib, pss=100 * mib, kernel=12 * mib, files=-2 * mib, others=0)
    others = Gap(host=60 * mib, pss=100 * mib, kernel=0, files=-4 * mib, others=-35 * mib)

    assert (4.0, "") == (small.percent, small.explanation)
    assert (10.0, "mostly memory of the kernel: 12.0 MiB") == (kernel.percent, kernel.explanation)
    assert "mostly memory of other programs: -35.0 MiB" == others.explanation
    assert -1 * mib == others.parts["rest"]
    assert Gap(host=1, pss=0, kernel=0, files=0, others=0).percent is None


def test_a_pool_in_the_kernel_is_no_programs_memory() -> None:
    """The pool of zram is in no program, that of the daemon is: neither is somebody else's."""
    parts = ("private", "files", "shared_memory", "pool", "tables", "overhead", "overhead_files")
    nothing = dict.fromkeys((*parts, "kernel", "programs"), 0)
    none = {"mode": "none", "made_of": {**nothing, "private": 100, "programs": 110}}
    full = {"private": 20, "pool": 30, "tables": 5, "overhead": 9, "overhead_files": 4}
    gains_of = {"host_gain_bytes": 60, "pss_gain_bytes": 36}
    ours = gains.gap_of(
        {"mode": "full", **gains_of, "made_of": {**nothing, **full, "programs": 70}}, none
    )
    peer = gains.gap_of(
        {
            "mode": "zram",
            **gains_of,
            "made_of": {**nothing, "private": 20, "pool": 30, "programs": 30},
        },
        none,
    )

    assert ours is not None
    assert peer is not None
    assert (0, 4) == (ours.others, ours.files)
    assert 0 == peer.others


# ── what is missing ───────────────────────────────────────────────────────────────────────────────
def test_what_was_not_measured_is_told_with_its_reason(kept: Kept) -> None:
    """Skipped by the host, ended early, left out by the preset, or never measured here."""
    kept.results["ablation"]["skipped"]["zswap"] = "another swap is active"
    kept.results["ablation"]["modes"][1]["stopped"] = "the host is short of memory"
    kept.results["encode"]["workloads"]["json"]["skipped"]["cold-peer"] = "needs two sandboxes"
    told = _column(gaps.missing_table(kept, plots="no ink"), "why")

    assert "another swap is active" == told["ablation: zswap"]
    assert "the host is short of memory" == told["ablation: encode to its end"]
    assert "needs two sandboxes" == told["encode: json, cold-peer"]
    assert "left out by --only, or interrupted" == told["workload-A"]
    assert "--sandboxes 4 instead of 200" in told["ablation at full size"]
    assert "no ink" == told["pictures"]
    assert told["other machines and kernels"]


@pytest.mark.usefixtures("undrawn")
def test_a_preset_that_is_no_more_is_no_obstacle(kept: Kept) -> None:
    """A folder of last year can still be shown."""
    kept.preset = "enormous"

    assert "preset enormous" in document_of(kept).title
    assert "workload-A" not in _column(gaps.missing_table(kept), "why")


# ── pictures and the whole ────────────────────────────────────────────────────────────────────────
def test_pictures_are_the_same_each_time_and_name_no_host(kept: Kept) -> None:
    """A document made again differs only where its figures do."""
    pytest.importorskip("matplotlib")
    ablation, knob = kept.results["ablation"], kept.results["knob"]
    drawn = [
        plots.memory_plot("ablation", "Ablation", ablation),
        plots.latency_plot("ablation", "Ablation", ablation),
        plots.ratio_plot("json", kept.results["encode"]["workloads"]["json"]),
        plots.knob_plot(knob),
    ]

    for plot in drawn:
        assert plot is not None
        assert plot.svg.startswith("<svg")
        addresses = plot.svg.replace("http://www.w3.org/", "")  # The names of SVG itself.
        assert "http" not in addresses
    assert drawn[0] == plots.memory_plot("ablation", "Ablation", ablation)


def test_without_samples_there_is_no_picture(ablation: dict[str, Any]) -> None:
    """An empty frame would look like a figure."""
    pytest.importorskip("matplotlib")
    for one in ablation["modes"]:
        one["memory"], one["turns_s"], one["wakes_ms"] = [], [], []

    assert plots.memory_plot("x", "x", ablation) is None
    assert plots.latency_plot("x", "x", ablation) is None
    assert plots.ratio_plot("json", {"by_class": {"zram-lz4": {}}}) is None
    assert plots.knob_plot({"points": [], "none": {}}) is None


def test_the_document_has_all_that_a_reader_needs(kept: Kept) -> None:
    """Each command, the machine, the verdict; and one picture for each name."""
    document = document_of(kept)
    page, text = to_html(document), to_markdown(document)

    pictures = [block.name for block in document.blocks if isinstance(block, Plot)]
    assert len(pictures) == len(set(pictures))
    for one in kept.ran:
        assert f"agentzip {' '.join(one.words)}" in text
        assert f"results/{one.name}.json" in page
    assert kept.machine["kernel"] in text
    assert kept.ran[0].began in text
    assert "Results wrong, over all commands: 0." in page
    assert "http" not in text


@pytest.mark.usefixtures("undrawn")
def test_a_wrong_result_is_told_first(kept: Kept) -> None:
    """From whichever command, in the head of the document."""
    kept.results["codecs"]["codecs"][0]["figures"]["results_wrong"] = 2
    kept.results["encode"]["results_wrong"] = 1
    kept.results["fits"]["modes"][0]["checks_wrong"] = 4

    assert "Results wrong, over all commands: 7." in to_markdown(document_of(kept))


@pytest.mark.usefixtures("undrawn")
def test_a_result_of_another_version_is_refused(kept: Kept, tmp_path: Path) -> None:
    """With what it lacks."""
    del kept.results["ablation"]["modes"][0]["peak_bytes"]

    with pytest.raises(InvalidSetting, match="lacks 'peak_bytes'"):
        write(kept, tmp_path)


@pytest.mark.usefixtures("undrawn")
def test_without_matplotlib_there_are_tables(kept: Kept, tmp_path: Path) -> None:
    """And the reason why there are no pictures."""
    written = write(kept, tmp_path)

    assert "matplotlib is not installed" in written.html.read_text()
    assert [] == list((tmp_path / "plots").iterdir())
    assert "plots/" not in written.markdown.read_text()


# ── facts ─────────────────────────────────────────────────────────────────────────────────────────
def test_the_machine_is_named(tmp_path: Path) -> None:
    """From the host's own words."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("processor : 0\nmodel name\t: Abacus 3000\n")
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 2048 kB\n")
    found = facts.machine(tmp_path)

    assert ("Abacus 3000", 2048 * 1024) == (found["processor"], found["memory_bytes"])
    assert json.dumps(found)


def test_a_package_has_no_commit(tmp_path: Path) -> None:
    """What is in no checkout is not known by one."""
    assert "" == facts.commit(tmp_path)
