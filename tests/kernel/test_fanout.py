"""
`agentzip bench fanout` on real sandboxes: small, but the whole path, and every way to its end.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agentzip.bench import zram
from agentzip.bench.fanout.places import members
from agentzip.bench.fanout.plan import FanoutPlan
from agentzip.bench.fanout.report import to_json
from agentzip.bench.fanout.run import run_fanout
from agentzip.bench.fanout.single import SingleTurn, run_single, turn_text
from agentzip.errors import InternalError, NoSuchProcess
from agentzip.host import processes
from agentzip.host.groups import unified_mount
from agentzip.selftest.conditions import wait_until
from agentzip.workloads.crew import why_not

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own; not pytest's, whose paths are too long for the engine's socket."""
    made = Path(tempfile.mkdtemp(prefix="az-"))
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    yield made
    shutil.rmtree(made)


def _left(folder: Path, bench: int) -> list[str]:
    """Files, processes that know the folder, and control groups of a bench."""
    mount = unified_mount(Path("/"))
    assert mount is not None
    found = [str(path) for path in folder.iterdir()]
    found += [str(path) for path in mount.glob(f"agentzip-bench-{bench}")]
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(ProcessLookupError):
                command = processes.process(int(process.name)).command
                found += [command] if str(folder) in command else []
    return found


def _attached(bench: int) -> bool:
    """Whether the last sandbox of a bench has memory that the engine answers for."""
    mount = unified_mount(Path("/"))
    assert mount is not None
    pids = members(mount / f"agentzip-bench-{bench}" / "agent-sandbox-0001.slice")
    with suppress(NoSuchProcess):
        return any(processes.faults_handled_elsewhere(pid) for pid in pids)
    return False


def _small(*modes: str, workload: str = "D") -> FanoutPlan:
    if reason := why_not(workload):
        pytest.skip(reason)
    return FanoutPlan(
        workload=workload, sandboxes=2, turns=2, modes=modes, think_s=1.0, size_bytes=90 * 2**20
    )


def test_a_small_run_is_right_and_leaves_nothing(folder: Path) -> None:
    """Two sandboxes, two turns, two rounds: everybody finishes, and no result differs."""
    plan = replace(_small("none", "encode"), rounds=2)
    found = json.loads(json.dumps(to_json(run_fanout(plan))))

    assert {} == found["skipped"]
    assert 0 == found["results_wrong"]
    assert found["complete"]
    assert [["none", "encode"]] * 2 == [[one["mode"] for one in some] for some in found["rounds"]]
    none, encode = found["modes"]
    assert ["none", "encode"] == [none["mode"], encode["mode"]]
    assert [2, 2] == [none["finished"], encode["finished"]]
    assert [] == encode["notes"]["refused"]
    assert 0 == encode["notes"]["pages_lost"]
    assert encode["faults"] > 100
    assert encode["pool_bytes"] > 2**20
    assert encode["wake_ms"]["p50"] > 0
    assert [] == _left(folder, os.getpid())


def test_zram_takes_its_turn_and_is_given_back(folder: Path) -> None:
    """The peer sees the same sandboxes, and its results are checked as well."""
    if reason := zram.why_not():
        pytest.skip(reason)
    found = run_fanout(_small("zram"))

    assert {} == found.skipped
    assert 0 == found.results_wrong
    assert found.modes[1].pool_bytes > 2**20
    assert "" == zram.why_not()
    assert [] == _left(folder, os.getpid())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_mix_has_right_results_whoever_leaves_or_never_rests(folder: Path) -> None:
    """One waits for a person, one is gone half-way, one works all the time: all end as alone."""
    workload = "waiting,finishing,busy"
    for name in workload.split(","):
        if reason := why_not(name):
            pytest.skip(reason)
    plan = FanoutPlan(
        workload=workload,
        sandboxes=3,
        turns=4,
        modes=("full",),
        think_s=0.5,
        size_bytes=150 * 2**20,
    )
    found = run_fanout(plan)

    assert found.complete, found
    none, full = found.modes
    assert [3, 3] == [none.finished, full.finished]
    assert {"waiting", "finishing", "busy"} == full.by_workload.keys()
    assert 0 < full.cpu_percent_of["daemon"] <= full.cpu_percent
    assert [] == _left(folder, os.getpid())


_COMMAND = """
import os, time
who = int(os.environ["AGENTZIP_BENCH_INSTANCE"])
texts = [f"{who} and {number * number}" for number in range(400_000)]
before = hash(tuple(texts))
time.sleep(7)
assert before == hash(tuple(texts))
print("socket", os.environ.get("AGENTZIP_SANDBOX_SOCKET"))
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_any_command_can_be_the_workload(folder: Path) -> None:
    """It is seen to wait without a word of its own, goes out, and ends as well as without us."""
    plan = FanoutPlan(
        command=(sys.executable, "-c", _COMMAND),
        sandboxes=2,
        modes=("encode", "full"),
        size_bytes=100 * 2**20,
    )
    found = json.loads(json.dumps(to_json(run_fanout(plan))))

    assert {} == found["skipped"]
    assert [2, 2, 2] == [one["finished"] for one in found["modes"]], found["modes"]
    assert [None] * 3 == [one["results_wrong"] for one in found["modes"]]
    assert [None] * 3 == [one["turn_s"]["p99"] for one in found["modes"]]
    assert all(one["task_s"] > 7 and one["mean_bytes"] for one in found["modes"])
    none, encode, full = found["modes"]
    assert encode["pool_bytes"] > 2**20
    assert encode["faults"] > 100
    assert none["cost_bytes"] > 2 * 20 * 2**20
    assert full["cpu_percent_of"]["daemon"] > 0
    assert [] == _left(folder, os.getpid())


def test_a_command_that_fails_says_why(folder: Path) -> None:
    """Alone already: there is nothing to compare then."""
    plan = FanoutPlan(command=("sh", "-c", "echo no data >&2; exit 3"), sandboxes=1)
    with pytest.raises(InternalError, match=r"exit code 3: no data"):
        run_fanout(plan)

    assert [] == _left(folder, os.getpid())


def test_one_agent_alone_shows_its_turns(folder: Path) -> None:
    """The same seed is the same digest; half of the turns if it leaves."""
    plan = FanoutPlan(
        workload="D", sandboxes=1, turns=3, modes=("none",), think_s=0.05, size_bytes=90 * 2**20
    )
    if reason := why_not("D"):
        pytest.skip(reason)
    heard: list[SingleTurn] = []
    first = run_single(plan, lambda _: None, heard.append)
    second = run_single(plan, lambda _: None, lambda _: None)

    assert [0, 1, 2] == [turn.number for turn in heard]
    assert 0 == first.results_wrong
    assert first.digest
    assert first.digest == second.digest
    assert [turn.recalled for turn in first.turns] == [turn.recalled for turn in second.turns]
    assert "wrong: none" in turn_text(heard[0])
    assert [] == _left(folder, os.getpid())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "end"),
    [
        ("encode", signal.SIGINT),
        ("encode", signal.SIGKILL),
        ("full", signal.SIGINT),
        ("full", signal.SIGKILL),
    ],
)
def test_however_the_bench_ends_nothing_is_left(
    folder: Path, mode: str, end: signal.Signals
) -> None:
    """In the middle of turns with pages out; a killed bench is cleaned up after by its custody."""
    _small(mode)
    command = ["bench", "fanout", "--workload", "D", "--sandboxes", "2", "--size", "90MiB"]
    command += ["--turns", "25", "--think", "400ms" if mode == "encode" else "2s", "--mode", mode]
    bench = subprocess.Popen(
        [sys.executable, "-m", "agentzip", *command],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until(lambda: bool(list(folder.glob(f"*/{mode}-*/run/*.sock"))), 120)
        assert wait_until(lambda: _attached(bench.pid), 60)
        bench.send_signal(end)
        bench.wait(60)
        assert 0 != bench.returncode
    finally:
        bench.kill()
        bench.wait()

    assert wait_until(lambda: not _left(folder, bench.pid), 60), _left(folder, bench.pid)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_however_the_bench_ends_zram_is_given_back(folder: Path, end: signal.Signals) -> None:
    """With pages in it, whose sandboxes are ended first."""
    _small("zram")
    if reason := zram.why_not():
        pytest.skip(reason)
    command = ["bench", "fanout", "--workload", "D", "--sandboxes", "2", "--size", "90MiB"]
    bench = subprocess.Popen(
        [
            *(sys.executable, "-m", "agentzip", *command),
            *("--turns", "25", "--think", "2s", "--mode", "zram"),
        ],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until(
            lambda: "in use" in zram.why_not() and zram.stored().used_bytes > 2**20, 120
        )
        bench.send_signal(end)
        bench.wait(60)
        assert 0 != bench.returncode
    finally:
        bench.kill()
        bench.wait()

    assert wait_until(lambda: not _left(folder, bench.pid), 60), _left(folder, bench.pid)
    assert wait_until(lambda: not zram.why_not(), 30), zram.why_not()
