"""The benchmark's arithmetic, its table and its JSON; nothing here measures anything."""

import io
import json
from array import array
from pathlib import Path

import pytest
from rich.console import Console

from agentzip.bench import idle, zram
from agentzip.bench.figures import FLOOR, MEASURES, Ledger, Verdict, judge
from agentzip.bench.rounds import MEBIBYTES_MIN, BenchPlan, BenchResult
from agentzip.bench.tables import print_report, to_json
from agentzip.bench.target import microseconds


@pytest.fixture
def ledger() -> Ledger:
    """Two rounds; in the second the machine was twice as slow for everybody."""
    ledger = Ledger()
    ledger.note("fault", FLOOR, [4.0, 5.0, 6.0])
    ledger.note("fault", FLOOR, [10.0])
    ledger.note("fault", "lz4", [5.5, 5.5, 99.0])
    ledger.note("fault", "lz4", [11.0])
    ledger.note("page_out", "lz4", [8.0])
    ledger.note("page_out_again", "lz4", [0.5])
    ledger.note("page_in", "lz4", [4.096])
    ledger.note("page_in_cpu", "lz4", [4.096])
    ledger.note("stop", FLOOR, [100.0])
    ledger.note("stop", "lz4", [900.0, 1100.0, 7000.0])
    return ledger


def verdict(ledger: Ledger, title: str) -> Verdict:
    """The verdict whose aim begins so."""
    return next(verdict for verdict in judge(ledger) if verdict.title.startswith(title))


def test_a_ratio_pairs_the_medians_of_one_round(ledger: Ledger) -> None:
    """A slow second that hits both ways does not move the ratio."""
    assert ledger.ratio("fault", "lz4") == pytest.approx(1.1)


def test_a_way_without_a_floor_has_no_ratio(ledger: Ledger) -> None:
    """Nothing is divided by something that was not measured in this run."""
    assert ledger.ratio("page_out", "lz4") is None


def test_percentiles_are_over_all_rounds(ledger: Ledger) -> None:
    """The distribution is that of every sample, and holds only values that were measured."""
    figure = ledger.figure("fault", "lz4")

    assert figure is not None
    assert (4, 5.5, 99.0) == (figure.count, figure.p50_us, figure.p99_us)


def test_a_rate_follows_from_the_time_of_a_page(ledger: Ledger) -> None:
    """4.096 us per page are one gigabyte per second."""
    figure = ledger.figure("page_in", "lz4")

    assert figure is not None
    assert figure.gigabytes_per_second == pytest.approx(1.0)


def test_the_floor_comes_first(ledger: Ledger) -> None:
    """Within a measure the floor is the first line, whoever measured first."""
    ledger.note("hold", "raw", [2.0])
    ledger.note("hold", FLOOR, [1.0])
    ways = [figure.way for figure in ledger.figures() if figure.measure == "hold"]

    assert [FLOOR, "raw"] == ways


def test_no_samples_are_no_round(ledger: Ledger) -> None:
    """An empty list, as of a page out that moved nothing, adds nothing."""
    ledger.note("hold", "lz4", [])

    assert ledger.figure("hold", "lz4") is None


def test_aims_are_met_or_missed_or_not_measured(ledger: Ledger) -> None:
    """An aim has three ends; what was not measured is never called met."""
    assert verdict(ledger, "LZ4 fault").met is True
    assert verdict(ledger, "clean page out, faster by, LZ4").value == pytest.approx(16.0)
    assert verdict(ledger, "clean page out, faster by, zstd").met is None
    assert verdict(ledger, "attach").met is None


def test_an_aim_for_a_stop_leaves_the_floor_out(ledger: Ledger) -> None:
    """The bare ptrace stop is not one of ours."""
    assert verdict(ledger, "stop, median").value == pytest.approx(1.1)
    assert verdict(ledger, "stop, P99").met is False


def test_the_table_shows_every_figure_and_aim(ledger: Ledger) -> None:
    """Each measure that was taken has its title, each aim its verdict."""
    result = BenchResult(BenchPlan(), ledger)
    result.skipped["zram-lz4"] = "another swap is active"
    output = io.StringIO()

    print_report(result, Console(file=output, width=120))

    text = output.getvalue()
    taken = {figure.measure for figure in ledger.figures()}
    assert all(measure.title in text for measure in MEASURES if measure.key in taken)
    assert all(word in text for word in ("met", "missed", "not measured", "1.10x"))
    assert "zram-lz4: skipped, another swap is active" in text


def test_the_json_object_holds_what_the_table_shows(ledger: Ledger) -> None:
    """It survives a round trip, and a rate stands where one can be told."""
    found = json.loads(json.dumps(to_json(BenchResult(BenchPlan.quick(16), ledger))))

    rates = {figure["way"] for figure in found["figures"] if "gigabytes_per_second" in figure}
    assert {"lz4"} == rates
    assert found["plan"]["mebibytes"] == 16
    assert 0 == found["pages_wrong"]


def test_samples_are_read_as_microseconds(tmp_path: Path) -> None:
    """The target writes 32-bit nanoseconds."""
    file = tmp_path / "samples"
    file.write_bytes(array("I", [1500, 2_000_000]).tobytes())

    assert [1.5, 2000.0] == microseconds(file)


@pytest.mark.parametrize(
    ("size", "swaps", "algorithms", "reason"),
    [
        ("0", "Filename\n", "[lzo-rle] lzo lz4", ""),
        ("0", "Filename\n", "[lz4] lzo", ""),
        ("4096", "Filename\n", "[lzo-rle] lz4", "in use"),
        ("0", "Filename\n/swapfile file 1 0 -2\n", "[lzo-rle] lz4", "another swap"),
        ("0", "Filename\n", "[lzo-rle] lzo lz4hc", "no lz4"),
    ],
)
def test_zram_is_borrowed_only_when_free(
    tmp_path: Path, size: str, swaps: str, algorithms: str, reason: str
) -> None:
    """Somebody else's device or swap is never touched; the reason is told."""
    settings = tmp_path / "sys/block/zram0"
    settings.mkdir(parents=True)
    for folder in ("dev", "proc"):
        (tmp_path / folder).mkdir()
    (tmp_path / "dev/zram0").touch()
    (settings / "disksize").write_text(f"{size}\n")
    (settings / "comp_algorithm").write_text(f"{algorithms}\n")
    (tmp_path / "proc/swaps").write_text(swaps)

    found = zram.why_not(tmp_path)

    assert reason in found
    assert bool(reason) == bool(found)


def test_a_host_without_zram_is_told_so(tmp_path: Path) -> None:
    """No device is a reason, not an error."""
    assert zram.why_not(tmp_path) == "there is no /dev/zram0"


def test_idle_cost_is_told_as_a_share_of_one_core() -> None:
    """Daemon and keeper together, with the plan beside it."""
    result = idle.IdleResult(
        plan=idle.IdlePlan(sandboxes=3, seconds=10.0),
        attach_s=1.0,
        elapsed_s=10.0,
        daemon_cpu_s=0.15,
        keeper_cpu_s=0.05,
        load=0.5,
    )
    told = idle.to_json(result)

    assert 0.02 == told["share_of_core"]
    assert (3, 10.0, 0.02) == (told["sandboxes"], told["seconds"], told["aim"])


def test_the_smallest_heap_has_a_page_for_every_touch() -> None:
    """Three times, on pages of their own, or a touch would be no fault."""
    for plan in (BenchPlan(MEBIBYTES_MIN), BenchPlan.quick(MEBIBYTES_MIN)):
        assert 3 * plan.touches <= plan.mebibytes * 256
