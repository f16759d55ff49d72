"""The commands about scopes, and `run --sandbox`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip import errors
from agentzip.cli import launch, main
from agentzip.control import ControlServer
from agentzip.testing import FakeEngine
from unit.fake_fleet import FakeFleet


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """A daemon without sandboxes."""
    server = ControlServer(FakeEngine([]), tmp_path, fleet=FakeFleet())
    server.start()
    yield tmp_path
    server.close()


def _scope(run_dir: Path, *words: str) -> int:
    return main(["--run-dir", str(run_dir), "scope", *words])


def test_a_scope_s_life(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Added, listed, switched off and on, removed; in exactly these words."""
    assert 0 == _scope(run_dir, "list")
    assert "scope add --cgroup" in capsys.readouterr().out
    assert 0 == _scope(run_dir, "add", "--cgroup", "agent-sandbox-*.slice")
    assert 0 == _scope(run_dir, "disable", "--cgroup", "agent-sandbox-*.slice")
    assert 0 == _scope(run_dir, "list")
    shown = capsys.readouterr().out.splitlines()
    assert "scope agent-sandbox-*.slice is added" == shown[0]
    assert ["agent-sandbox-*.slice", "no", "scope", "command", "0"] == shown[-1].split()
    assert 0 == _scope(run_dir, "enable", "--cgroup", "agent-sandbox-*.slice")
    assert 0 == _scope(run_dir, "remove", "--cgroup", "agent-sandbox-*.slice")
    capsys.readouterr()
    assert 0 == _scope(run_dir, "list", "--json")
    assert [] == json.loads(capsys.readouterr().out)


def test_answers_are_data_with_json(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scope as it is now."""
    assert 0 == _scope(run_dir, "add", "--cgroup", "a", "--isolation", "sandbox", "--json")

    assert {
        "pattern": "a",
        "enabled": True,
        "isolation": "sandbox",
        "source": "command",
        "sandboxes": 0,
    } == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["enable", "--cgroup", "unknown"], errors.NoSuchScope.exit_code, "unknown"),
        (["disable", "--cgroup", "unknown"], errors.NoSuchScope.exit_code, "unknown"),
        (["remove", "--pid", "1"], errors.NoSuchScope.exit_code, "pid:1"),
        (["add"], 2, "--cgroup"),
        (["add", "--cgroup", "a", "--pid", "1"], 2, "--cgroup"),
        (["add", "--cgroup", "*"], 2, "'*'"),
        (["add", "--cgroup", "a", "--isolation", "x"], 2, "'x'"),
    ],
)
def test_what_cannot_be_is_named(
    run_dir: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    named: str,
) -> None:
    """With the exit code of its kind; nothing is added."""
    assert code == _scope(run_dir, *words)
    assert named in capsys.readouterr().err
    assert 0 == _scope(run_dir, "list", "--json")
    assert [] == json.loads(capsys.readouterr().out)


def test_a_run_is_a_sandbox_of_its_name(
    run_dir: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon learns of it while the command runs, whose exit code is returned."""
    # It is for a process that ends with the command, and other tests look at the log.
    monkeypatch.setattr(launch, "set_up_logging", lambda _level: lambda: None)
    command = [sys.executable, "-c", "import time; time.sleep(0.5); raise SystemExit(5)"]
    words = ["--run-dir", str(run_dir), "run", "--sandbox", "demo", "--json", "--", *command]

    assert 5 == main(words)
    answer = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert ("run:demo", "run") == (answer["sandbox"]["pattern"], answer["sandbox"]["source"])


def test_a_name_that_cannot_be_used_starts_nothing(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is seen before the command is started."""
    proof = tmp_path / "started"
    command = ["touch", str(proof)]

    assert 2 == main(["--run-dir", str(run_dir), "run", "--sandbox", "a/b", "--", *command])
    assert "'a/b'" in capsys.readouterr().err
    assert not proof.exists()
