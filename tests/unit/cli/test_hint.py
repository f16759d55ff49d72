"""`agentzip hint` and `agentzip explain` against a real control socket with a fleet behind it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip.cli import main
from agentzip.control import ControlServer
from agentzip.errors import DaemonUnreachable
from agentzip.sandboxes import PHASES, Decision
from agentzip.testing import FakeEngine
from fake_fleet import FakeFleet


@pytest.fixture
def fleet() -> FakeFleet:
    """A host with one sandbox."""
    return FakeFleet("box")


@pytest.fixture
def run_dir(fleet: FakeFleet, tmp_path: Path) -> Iterator[Path]:
    """The directory of a daemon that serves that host."""
    server = ControlServer(FakeEngine([]), tmp_path, fleet=fleet)
    server.start()
    yield tmp_path
    server.close()


def call(run_dir: Path, *words: str) -> int:
    """One command."""
    return main(["--run-dir", str(run_dir), *words])


def test_a_hint_is_told(
    run_dir: Path, fleet: FakeFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words and as JSON, with what it did."""
    assert 0 == call(run_dir, "hint", "box", "waiting_model", "--expect", "8s")
    assert 0 == call(run_dir, "hint", "box", "running", "--json")
    first, second = capsys.readouterr().out.splitlines()

    assert [("box", "waiting_model", 8.0), ("box", "running", None)] == fleet.heard
    assert "box is waiting_model, was running (12.0 us)" == first
    assert 7 == json.loads(second)["pages_in"]


def test_pages_that_came_home_are_told(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As what a wake is about."""
    call(run_dir, "hint", "box", "waiting_tool")
    call(run_dir, "hint", "box", "running")

    assert "7 pages brought home" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("hint", "box", "asleep"), 2, "asleep"),
        (("hint", "box", "done", "--expect", "8"), 2, "--expect"),
        (("hint", "box", "done", "--expect", "999h"), 2, "--expect"),
        (("hint", "box"), 2, "PHASE"),
        (("hint", "nobody", "done"), 23, "nobody"),
        (("explain", "nobody"), 23, "nobody"),
    ],
)
def test_bad_input_says_why(
    run_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, told: str
) -> None:
    """With the exit code of its kind."""
    assert code == call(run_dir, *words)
    assert told in capsys.readouterr().err


def test_a_phase_that_is_not_known_names_those_that_are(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without asking the daemon."""
    call(run_dir, "hint", "box", "asleep")
    hint = capsys.readouterr().err.partition("hint: ")[2]

    assert all(phase in hint for phase in PHASES)


def test_without_a_daemon_it_is_said(tmp_path: Path) -> None:
    """As for every command."""
    assert DaemonUnreachable.exit_code == call(tmp_path, "hint", "box", "done")


def test_decisions_are_explained(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Age, what, how much, gain, cost, why; as JSON with all digits."""
    assert 0 == call(run_dir, "explain", "box")
    assert 0 == call(run_dir, "explain", "box", "--json")
    head, row, data = capsys.readouterr().out.splitlines()

    assert ["AGE", "PID", "ACTION", "PAGES", "GAIN", "COST", "REASON"] == head.split()
    shown = ["2.00", "s", "7", "page_out", "100", "4.1e+06", "2e+05"]
    assert [*shown, *["8.0", "s", "of", "wait", "for", "100", "pages"]] == row.split()
    assert 4.1e6 == json.loads(data)[0]["gain"]


def test_a_sandbox_without_decisions_says_so(
    run_dir: Path,
    fleet: FakeFleet,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not an empty table."""
    nothing: list[Decision] = []
    monkeypatch.setattr(fleet, "explain", lambda _: nothing)
    call(run_dir, "explain", "box")

    assert "nothing has been decided about box yet\n" == capsys.readouterr().out
