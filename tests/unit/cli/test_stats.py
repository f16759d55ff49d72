"""What `stats` and `status` say of sandboxes, over the real socket and made-up sandboxes."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agentzip import pager
from agentzip.cli import main
from agentzip.cli.stats import by_class_and_codec
from agentzip.control import ControlServer
from agentzip.errors import InvalidSetting, NoSuchSandbox, NotPermitted
from agentzip.host import memory
from agentzip.host.memory import MemoryUse
from agentzip.model import CensusRow
from agentzip.sandboxes import FileReadAhead
from agentzip.testing import FakeEngine, FakeTarget
from sandbox_values import MIB, FakeFleet, a_sandbox, a_scope

PAGE = 4096


@pytest.fixture
def engine() -> FakeEngine:
    """Two targets of 400 KiB each, paged out, and a child of the first."""
    engine = FakeEngine([FakeTarget(70001, pages=100), FakeTarget(70002, pages=100)])
    for pid in (70001, 70002):
        engine.attach(pid)
        engine.page_out(pid)
    engine.add_child(70001, pages_out=10)
    return engine


@pytest.fixture
def fleet() -> FakeFleet:
    """A sandbox with one of the targets, and another of another scope."""
    return FakeFleet(
        [
            a_sandbox("a", pids=[70001], cgroup="/agent.slice/agent-sandbox-a.slice", cpu_s=1.0),
            a_sandbox("b", pids=[70002], scope="run:b", cgroup="", phase="running", cpu_s=2.0),
        ],
        [a_scope(), a_scope("run:b"), a_scope("empty-*.slice", sandboxes=0)],
    )


@pytest.fixture
def run_dir(
    engine: FakeEngine, fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The directory of a daemon that serves them; each process has 100 KiB left, half shared."""
    monkeypatch.setattr(pager, "page_size", lambda: PAGE)

    def use(pids: list[int]) -> MemoryUse:
        return MemoryUse(102_400, 51_200, 0, 0) if pids else MemoryUse(0, 0, 0, 0)

    monkeypatch.setattr(memory, "sum_use", use)
    monkeypatch.setattr(memory, "own_overhead", lambda _pids: 65_536)
    server = ControlServer(
        engine,
        tmp_path,
        about=lambda: {
            "pid": 1,
            "uptime_seconds": 2.0,
            "stopping": False,
            "file_readahead": asdict(
                FileReadAhead(source="tracepoints", processes=2, pages_asked=4711)
            ),
        },
        fleet=fleet,  # type: ignore[arg-type]
    )
    server.start()
    yield tmp_path
    server.close()


def ask(run_dir: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """One command that answers with JSON."""
    assert 0 == main(["--run-dir", str(run_dir), *words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_stats_have_each_figure_by_its_one_definition(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ratios count everything that is still taken; the keys of before are all there."""
    shown = ask(run_dir, capsys, "stats")
    out, pool, tables, overhead = 210 * PAGE, 210 * 1024, 3 * PAGE, 65_536
    cost = 2 * 51_200 + pool + tables + overhead

    assert out == shown["orig_mem"]
    assert pool == shown["stored_mem"] == shown["pool_bytes"]
    assert (2 * 102_400 + out) / cost == shown["ratio"]
    assert (2 * 51_200 + out) / cost == shown["ratio_pss"]
    assert 4.0 == shown["ratio_pages"]
    assert out - pool - tables - overhead == shown["host_gain"]
    assert 3 == shown["targets"]
    assert ["a", "b"] == [one["name"] for one in shown["by_sandbox"]]
    assert 3.0 == shown["cpu_seconds"]["sandboxes"]
    assert {"hit_rate": 0.9, "waste": 0.2} == pytest.approx(shown["prefetch"])
    assert {"p50": 5.0, "p99": 15.0} == shown["wake_ms"]
    assert {"waiting_model": 1, "running": 1} == shown["phases"]
    assert [("interpreter heap", 200)] == [
        (row["class_name"], row["pages"]) for row in shown["by_class"]
    ]
    assert 210 == shown["engine"]["pool_slots"]


def test_stats_tell_of_files_that_are_read_ahead(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As data and in words."""
    shown = ask(run_dir, capsys, "stats")
    assert 0 == main(["--run-dir", str(run_dir), "stats"])

    assert 4711 == shown["file_readahead"]["pages_asked"]
    assert "4711 pages read ahead for 2 processes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("chosen", "names", "out"),
    [
        # The forked child of its process goes with it.
        ("agent-sandbox-*.slice", ["a"], 110 * PAGE),
        ("agent-sandbox-?.slice", ["a"], 110 * PAGE),
        ("a", ["a"], 110 * PAGE),
        ("run:b", ["b"], 100 * PAGE),
        ("empty-*.slice", [], 0),
    ],
)
def test_stats_of_some_sandboxes(
    run_dir: Path,
    capsys: pytest.CaptureFixture[str],
    chosen: str,
    names: list[str],
    out: int,
) -> None:
    """By pattern of a scope, by control group, by name; a scope without sandboxes has zeros."""
    shown = ask(run_dir, capsys, "stats", "--cgroup", chosen)

    assert names == [one["name"] for one in shown["by_sandbox"]]
    assert out == shown["orig_mem"]


def test_some_sandboxes_bear_their_share_of_what_all_cost(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pool, daemon and keeper by what is stored."""
    shown = ask(run_dir, capsys, "stats", "--cgroup", "b")
    stored = 100 * 1024
    overhead = round(65_536 * stored / (210 * 1024))

    assert 100 * PAGE - stored - PAGE - overhead == shown["host_gain"]


def test_stats_of_one_process_name_its_sandbox(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As before, with the sandbox that it is in."""
    shown = ask(run_dir, capsys, "stats", "70002")

    assert (1, ["b"]) == (shown["targets"], [one["name"] for one in shown["by_sandbox"]])


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["stats", "--cgroup", "nobody"], NoSuchSandbox.exit_code, "nobody"),
        (["stats", "--cgroup", "*"], InvalidSetting.exit_code, "--cgroup '*' selects every"),
        (["stats", "--cgroup", ""], InvalidSetting.exit_code, "--cgroup ''"),
        (["stats", "7", "--cgroup", "a"], InvalidSetting.exit_code, "not both"),
        (["stats", "7"], 13, "not attached"),
    ],
)
def test_what_cannot_be_chosen_is_named(
    run_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, named: str
) -> None:
    """Nothing is shown for a name that nobody has."""
    assert code == main(["--run-dir", str(run_dir), *words])
    assert named in capsys.readouterr().err


def test_watching_looks_again_until_it_is_interrupted(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line of JSON a look; Ctrl-C is the way to end, so it is no failure."""
    looks = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", wait)

    assert 0 == main(["--run-dir", str(run_dir), "stats", "--watch", "--json"])
    lines = capsys.readouterr().out.splitlines()
    assert [210 * PAGE] * 3 == [json.loads(line)["orig_mem"] for line in lines]


def test_people_read_the_same_in_words(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gain, cost, a row for each sandbox and each class."""
    assert 0 == main(["--run-dir", str(run_dir), "stats"])
    out = capsys.readouterr().out

    assert "840.0 KiB are out as 210.0 KiB (4.00x before everything else)" in out
    assert "all memory counted: ratio" in out
    assert "2 sandboxes (1 running, 1 waiting_model): 8 wakes, median 5.0 ms" in out
    assert "waiting_model 12s  20.0 MiB  80.0 MiB  16.0 MiB  5.00x" in out
    assert "interpreter heap  zstd" in out


def test_status_shows_scopes_and_sandboxes_beside_what_it_showed(
    run_dir: Path, fleet: FakeFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """In JSON with counts, for people as tables."""
    fleet.found[1] = a_sandbox("b", left_alone="ratio 1.2 after 4000 pages", rss_bytes=500 * MIB)
    shown = ask(run_dir, capsys, "status")

    assert {"daemon", "scopes", "sandboxes", "counts", "spaces", "stats"} == set(shown)
    assert ["agent-sandbox-*.slice", "run:b", "empty-*.slice"] == [
        scope["pattern"] for scope in shown["scopes"]
    ]
    assert {
        "scopes": 3,
        "sandboxes": 2,
        "targets": 3,
        "phases": {"waiting_model": 2},
        "pinned": 0,
        "left_alone": 1,
    } == shown["counts"]
    assert 0 == main(["--run-dir", str(run_dir), "status"])
    out = capsys.readouterr().out
    assert "2 sandboxes (2 waiting_model); 0 pinned, 1 left alone" in out
    assert "left alone: ratio 1.2 after 4000 pages" in out
    assert "empty-*.slice" in out
    assert "70001  attached" in out


def test_the_engine_of_one_command_has_no_sandboxes(
    engine: FakeEngine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Status and stats show its targets; to choose sandboxes is an error with the way out."""
    monkeypatch.setattr(pager, "page_size", lambda: PAGE)
    about = {"pid": os.getpid(), "uptime_seconds": 0.0, "stopping": False}
    server = ControlServer(engine, tmp_path, about=lambda: about)
    server.start()
    try:
        assert [] == ask(tmp_path, capsys, "status")["sandboxes"]
        assert 3 == ask(tmp_path, capsys, "stats")["targets"]
        assert 17 == main(["--run-dir", str(tmp_path), "stats", "--cgroup", "a"])
        assert "agentzip daemon" in capsys.readouterr().err
    finally:
        server.close()


def test_memory_that_may_not_be_read_hides_nothing_else(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs /proc is null; what the daemon says is shown."""

    def refuse(_pids: list[int]) -> int:
        raise NotPermitted("cannot read the memory map of process 1")

    monkeypatch.setattr(memory, "own_overhead", refuse)
    shown = ask(run_dir, capsys, "stats")

    assert [None] * 4 == [
        shown[key] for key in ("ratio", "ratio_pss", "host_gain", "overhead_bytes")
    ]
    assert 210 * PAGE == shown["orig_mem"]
    assert 0 == main(["--run-dir", str(run_dir), "stats"])
    assert "all memory counted" not in capsys.readouterr().out


def test_classes_of_several_targets_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest first; what takes no bytes has no ratio."""
    monkeypatch.setattr(pager, "page_size", lambda: PAGE)
    rows = by_class_and_codec(
        [
            CensusRow("stack", "same", 5, 0),
            CensusRow("heap", "zstd", 10, 4096),
            CensusRow("heap", "zstd", 30, 4096),
        ]
    )

    assert [("heap", 40, 20.0), ("stack", 5, 0.0)] == [
        (row["class_name"], row["pages"], row["ratio"]) for row in rows
    ]
