"""Whose reads are followed: a fleet with a fake engine and a source that sees nothing."""

import os
import queue
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from agentzip.fleet import FleetRunner, FleetSettings, assembly
from agentzip.host import processes
from agentzip.host.tracing import FileRead
from agentzip.sandboxes import FileReadAhead
from agentzip.testing import FakeEngine, FakeTarget


class FakeSource:
    """Remembers whom it is to follow."""

    name = "fake"

    def __init__(self) -> None:
        self.watched: queue.Queue[set[int]] = queue.Queue()
        self.closed = 0

    def watch(self, pids: Iterable[int]) -> None:
        """Remember."""
        self.watched.put(set(pids))

    def take(self, timeout_s: float) -> list[FileRead]:
        """Nothing is ever read."""
        time.sleep(min(timeout_s, 0.01))
        return []

    def close(self) -> None:
        """Count."""
        self.closed += 1


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> FakeSource:
    """What the fleet sees reads with."""
    found = FakeSource()
    monkeypatch.setattr(assembly, "best_source", lambda: found)
    return found


@pytest.fixture
def child() -> "Iterator[subprocess.Popen[bytes]]":
    """A process that can be a sandbox."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_reads_are_followed_while_a_sandbox_is_awake(
    source: FakeSource, child: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """It is followed from its first look on, not while it waits, and nobody after the end."""
    engine = FakeEngine([FakeTarget(child.pid)])
    runner = FleetRunner(engine, tmp_path, FleetSettings(file_readahead=True))
    runner.start()
    try:
        start_time = processes.process(child.pid).start_time
        runner.service.sandbox_run("box", child.pid, start_time)
        assert {child.pid} == source.watched.get(timeout=20)
        assert FileReadAhead(source="fake", processes=1, pages_asked=0) == runner.file_readahead()
        runner.service.hint("box", "waiting_tool", 60)
        assert set() == source.watched.get(timeout=20)
        runner.service.hint("box", "running")
        runner.lifecycle.hurry()
        assert {child.pid} == source.watched.get(timeout=20)
    finally:
        runner.stop()

    assert 1 == source.closed


def test_a_fleet_that_was_never_started_leaves_nothing(source: FakeSource, tmp_path: Path) -> None:
    """As when another part of the daemon cannot start."""
    FleetRunner(FakeEngine([]), tmp_path, FleetSettings(file_readahead=True)).stop()

    assert 1 == source.closed


def test_nothing_is_followed_unless_it_is_asked_for(source: FakeSource, tmp_path: Path) -> None:
    """It is off by default."""
    runner = FleetRunner(FakeEngine([]), tmp_path, FleetSettings())
    runner.stop()

    assert None is runner.file_readahead()
    assert source.watched.empty()
    assert os.listdir(tmp_path) == []
