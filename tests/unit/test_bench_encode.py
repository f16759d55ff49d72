"""The encode bench's plan, arithmetic, tables and order of work; no process is paged here."""

import io
import itertools
import json
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from agentzip import model
from agentzip.bench.encode import engine_way, kernel_ways, stage
from agentzip.bench.encode.engine_way import EngineWay
from agentzip.bench.encode.paging import PORTION_PAGES, insist, portions
from agentzip.bench.encode.plan import BY_NAME, EncodePlan
from agentzip.bench.encode.report import aims, print_report, to_json
from agentzip.bench.encode.result import (
    EncodeResult,
    EncodingResult,
    Spread,
    WorkloadResult,
    encoded,
    grouped,
    page_ratio,
)
from agentzip.bench.encode.stage import Baseline
from agentzip.errors import InvalidSetting, TargetBusy
from agentzip.host.memory import MemoryUse
from agentzip.testing import FakeEngine, FakeTarget
from agentzip.workloads.crew import Sandbox

_ROWS = [
    model.CensusRow("allocator arena", "zstd", 100, 100_000),
    model.CensusRow("allocator arena", "delta", 50, 2_400),
    model.CensusRow("stack", "zstd", 4, 2_000),
    model.CensusRow("array", "same", 1000, 0),
]


class _Sandbox:
    """A sandbox of the fake host."""

    kind = "json"

    def __init__(self, instance: int, pid: int) -> None:
        self.instance = instance
        self.pid = pid
        self.steps: list[int] = []

    def pids(self) -> list[int]:
        return [self.pid]

    def step(self, number: int) -> tuple[dict[str, object], float]:
        self.steps.append(number)
        return {}, 0.002

    def digest(self) -> str:
        return "odd" if any(self.steps.count(number) % 2 for number in self.steps) else "as it was"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """A fake engine behind `open_engine`, and a fake host under it."""
    fake = FakeEngine([FakeTarget(pid) for pid in (11, 12)])
    monkeypatch.setattr(engine_way, "open_engine", lambda _: fake)
    use = MemoryUse(4_096_000, 4_000_000, 0, 3_000_000)
    for module in (engine_way, stage):
        monkeypatch.setattr(module.memory, "memory_use", lambda *_: use)
        monkeypatch.setattr(module.memory, "sum_use", lambda *_: use)
    monkeypatch.setattr(engine_way, "role", lambda _: "python")
    return fake


def _measure(name: str, folder: Path) -> tuple[EncodingResult, list[_Sandbox]]:
    crew = [_Sandbox(0, 11), _Sandbox(1, 12)]
    sandboxes = cast("list[Sandbox]", crew)
    baseline = Baseline.take(sandboxes, ["as it was"] * 2)
    return EngineWay(BY_NAME[name], sandboxes, folder).measure(baseline, 3), crew


def test_the_first_sandbox_is_cold_for_itself_and_the_others_refer_to_it(
    engine: FakeEngine, tmp_path: Path
) -> None:
    """Attached, out, recoded in order, and given back; every step was taken back."""
    result, crew = _measure("cold-peer", tmp_path)

    assert [11, 12] == [pid for call, pid in engine.calls if call == "recode"]
    assert engine.closed
    assert 0 == result.results_wrong
    assert all(sandbox.steps == [0, 1, 2, 0, 1, 2] for sandbox in crew)
    assert result.pages_stored == 2000
    # The fake engine stores every page as a quarter.
    assert 4.0 == result.page_ratio_first == result.page_ratio_others


def test_copies_of_pages_at_home_are_no_part_of_the_page_ratio(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count in what is left of the memory, and the books in the net ratio."""
    kept = 100_000
    needed = 2000 * 1024
    monkeypatch.setattr(engine, "payload_bytes_out", lambda: needed - kept)
    result, _ = _measure("zstd-3", tmp_path)

    assert kept == result.kept_bytes
    assert page_ratio(2000, needed - kept) == result.page_ratio
    assert page_ratio(2000, needed - kept + result.table_bytes) == result.page_ratio_net
    assert needed == result.pool_bytes


def test_a_changed_digest_is_a_wrong_result(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that differs."""
    monkeypatch.setattr(_Sandbox, "digest", lambda self: str(self.instance))
    result, _ = _measure("zstd-3", tmp_path)

    assert engine.closed
    assert 2 == result.results_wrong


def test_an_error_gives_everything_back(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody stays attached when a step fails."""

    def fail(_sandbox: object, _number: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_Sandbox, "step", fail)
    with pytest.raises(KeyboardInterrupt):
        _measure("warm", tmp_path)

    assert engine.closed
    assert not engine.attached


def test_same_filled_pages_are_no_merit_of_an_encoder() -> None:
    """They count in the classes, not in the page ratio."""
    pages, stored = encoded(_ROWS)

    assert (154, 104_400) == (pages, stored)
    assert page_ratio(pages, stored) == pytest.approx(4096 * 154 / 104_400)
    assert 0.0 == page_ratio(5, 0)


def test_groups_are_added_up_and_the_largest_comes_first() -> None:
    """By class, or by anything else of a row."""
    by_class = grouped(_ROWS, lambda row: row.class_name)

    assert ["allocator arena", "stack", "array"] == list(by_class)
    assert (150, 102_400) == (by_class["allocator arena"].pages, by_class["allocator arena"].bytes)
    assert by_class["array"].ratio is None
    assert {"zstd", "delta", "same"} == set(grouped(_ROWS, lambda row: row.codec))


def test_portions_cover_what_may_leave_and_nothing_else() -> None:
    """A large region is cut, small ones go together, what stays is not named."""
    big = 10 * PORTION_PAGES * 4096
    regions = [
        _region(0, big, big),
        _region(big, big + 8192, 8192),
        _region(big + 8192, big + 16384, 8192, movable=False),
        _region(2 * big, 3 * big, 0),
    ]
    found = portions(regions)
    ranges = [one for portion in found for one in portion]

    assert 11 == len(found)
    assert big + 8192 == sum(end - start for start, end in ranges)
    assert all(start % 4096 == 0 and end > start for start, end in ranges)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))


def _region(start: int, end: int, resident: int, *, movable: bool = True) -> model.Region:
    return model.Region(
        start, end, "rw-p", "", "anonymous", "other", resident, 0, movable, "private"
    )


def test_a_busy_process_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it is asked is the same."""
    monkeypatch.setattr("agentzip.bench.encode.paging._BUSY_SECONDS", 0)
    asked = []

    def ask(pid: int, *, domain: str) -> str:
        asked.append((pid, domain))
        if len(asked) < 3:
            raise TargetBusy("later")
        return "done"

    assert "done" == insist(ask, 7, domain="d")
    assert [(7, "d")] * 3 == asked


@pytest.mark.parametrize(
    "settings",
    [
        {"workloads": ("java",)},
        {"workloads": ()},
        {"encodings": ("zip",)},
        {"sandboxes": 0},
        {"size": 0.0},
    ],
)
def test_a_plan_that_cannot_be_is_refused(settings: dict[str, object]) -> None:
    """The message names the field."""
    with pytest.raises(InvalidSetting, match=next(iter(settings)).rstrip("s")):
        EncodePlan(**settings)  # type: ignore[arg-type]


def test_the_kernels_ways_come_last() -> None:
    """KSM changes the memory it looks at; every encoding of the issue is there."""
    names = [encoding.name for encoding in EncodePlan().chosen()]

    assert ["zram-lz4", "ksm"] == names[-2:]
    assert {"lz4", "lz4hc", "zstd-1", "zstd-3", "zstd-9", "zstd-19", "zstd-3-dict"} < set(names)


@pytest.fixture
def result() -> EncodeResult:
    """A run with one workload and three encodings."""
    workload = WorkloadResult("json", skipped={"ksm": "KSM is in use"})
    for name, ratio in (("lz4", 2.6), ("warm", 4.3), ("cold-peer", 6.2)):
        one = EncodingResult(name, 8, page_ratio=ratio, ratio=4.0, ratio_pss=3.5)
        one.encode_us, one.decode_us = Spread(14.0, 30.0, 100), Spread(9.0, 40.0, 500)
        one.fault_us = Spread(24.0, 80.0, 500)
        one.pool_waste, one.index_bytes, one.dictionary_bytes = 0.01, 1_000_000, 2_000_000
        one.pool_bytes, one.table_bytes = 100_000_000, 4_000_000
        one.by_class = grouped(_ROWS, lambda row: row.class_name)
        workload.encodings.append(one)
    return EncodeResult({}, workloads=[workload], skipped={"node": "no node on this host"})


def test_aims_are_judged_by_what_was_found(result: EncodeResult) -> None:
    """Ratios per workload, times, waste and books."""
    met = {title: ok for title, _, _, ok in aims(result.workloads[0])}

    assert met["warm: page ratio at least"]
    assert not met["cold-peer: page ratio at least"]
    assert met["warm: encode us a page, median at most"]
    assert met["warm: fault over the same without its decoding, at most"]
    assert met["cold-peer: decode us, median at most"]
    assert not any("lz4" in title for title in met)


def test_the_json_object_has_the_encodings_at_the_top(result: EncodeResult) -> None:
    """With one workload; with more they are found below `workloads` alone."""
    found = json.loads(json.dumps(to_json(result)))
    first = found["encodings"][0]

    assert ["lz4", "warm", "cold-peer"] == [one["name"] for one in found["encodings"]]
    assert {"page_ratio", "ratio", "ratio_pss", "cpu_s", "pool_waste", "index_bytes"} < set(first)
    assert 14.0 == first["encode_us"]["p50"]
    assert 150 == found["by_class"]["warm"]["allocator arena"]["pages"]
    assert found["workloads"]["json"]["encodings"] == found["encodings"]
    result.workloads.append(WorkloadResult("python"))
    assert "encodings" not in to_json(result)


def test_the_tables_show_figures_beside_aims_and_where_bytes_went(result: EncodeResult) -> None:
    """A missed aim is followed by the classes."""
    output = io.StringIO()

    print_report(result, Console(file=output, width=120))

    text = output.getvalue()
    assert all(word in text for word in ("cold-peer", "6.20", "7.0", "missed", "met"))
    assert "cold-peer: by class" in text
    assert "warm: by class" not in text
    assert "json, ksm: skipped, KSM is in use" in text
    assert "node: skipped, no node on this host" in text


@pytest.mark.parametrize(
    ("run", "shared", "reason"),
    [("0", "0", ""), ("1", "0", "in use"), ("0", "7", "of others"), (None, None, "no KSM")],
)
def test_ksm_is_borrowed_only_when_free(
    tmp_path: Path, run: str | None, shared: str | None, reason: str
) -> None:
    """Somebody else's merging is never touched; the reason is told."""
    if run is not None and shared is not None:
        folder = tmp_path / "sys/kernel/mm/ksm"
        folder.mkdir(parents=True)
        (folder / "run").write_text(f"{run}\n")
        (folder / "pages_shared").write_text(f"{shared}\n")
    found = kernel_ways.ksm_why_not(tmp_path)

    assert reason in found
    assert bool(reason) == bool(found)
