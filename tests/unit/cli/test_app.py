"""The command line against a fake daemon: data, errors, exit codes."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip import errors, pager, selftest
from agentzip.cli import launch, main
from agentzip.cli.app import exit_codes
from agentzip.control import ControlServer
from agentzip.control import server as control_server
from agentzip.host import doctor
from agentzip.model import PageOutReport
from agentzip.testing import FakeEngine, FakeTarget


@pytest.fixture
def engine() -> FakeEngine:
    """A host with one process."""
    return FakeEngine([FakeTarget(7, pages=100)])


@pytest.fixture
def run_dir(engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a daemon that serves that host."""
    monkeypatch.setattr(pager, "page_size", lambda: 4096)
    server = ControlServer(
        engine, tmp_path, about=lambda: {"pid": 1, "uptime_seconds": 2.0, "stopping": False}
    )
    server.start()
    yield tmp_path
    server.close()


def call(run_dir: Path, *words: str) -> int:
    """One command."""
    return main(["--run-dir", str(run_dir), *words])


def test_a_target_goes_through_its_life(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command prints one JSON value about what it did."""
    codes = [
        call(run_dir, *words, "--json")
        for words in (
            ("attach", "7"),
            ("page-out", "7"),
            ("status",),
            ("inspect", "7"),
            ("page-in", "7"),
            ("detach", "7"),
        )
    ]
    attach, page_out, status, inspect, page_in, detach = [
        json.loads(line) for line in capsys.readouterr().out.splitlines()
    ]

    assert [0] * 6 == codes
    assert 7 == attach["pid"]
    assert 100 == page_out["pages_moved"]
    assert 100 == status["spaces"][0]["pages_out"]
    assert ["stays", "may leave"] == [region["decision"] for region in inspect]
    assert 100 == page_in["pages_in"]
    assert [True] == [report["complete"] for report in detach]


def test_people_get_words(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json the same facts come as sentences and tables."""
    for words in (("attach", "7"), ("page-out", "7"), ("status",), ("inspect", "7")):
        assert 0 == call(run_dir, *words)
    out = capsys.readouterr().out

    assert "attached process 7" in out
    assert "paged out 100 pages (400.0 KiB) of process 7" in out
    assert "python agent.py" in out
    assert "[heap]" in out


def test_an_error_has_its_own_exit_code_and_a_hint(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors go to stderr, with a blank line before the hint."""
    code = call(run_dir, "page-out", "7")
    streams = capsys.readouterr()

    assert errors.NotAttached.exit_code == code
    assert "" == streams.out
    assert "error: not attached: 7\n\nhint: attach it first: `agentzip attach PID`\n" == streams.err


def test_an_error_with_json_is_an_object(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts get the class, the message and the exit code."""
    code = call(run_dir, "attach", "99", "--json")
    error = json.loads(capsys.readouterr().err)["error"]

    assert 3 == code == error["exit_code"]
    assert "NoSuchProcess" == error["type"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["page-out"], "PID"),
        (["page-out", "x"], "PID"),
        (["page-out", "-3"], "-3"),
        (["page-out", "0"], "PID"),
        (["detach"], "PID or --all"),
        (["detach", "7", "--all"], "not both"),
        (["nonsense"], "nonsense"),
        (["status", "--bogus"], "--bogus"),
        (["run"], "COMMAND"),
        (["run", "--page-out-after", "10", "--", "true"], "--page-out-after"),
        (["daemon", "--pool-size", "8G"], "--pool-size"),
        (["daemon", "--pool-size", "10B"], "pool_bytes_max"),
        (["daemon", "--algorithm", "gzip"], "algorithm"),
        (["daemon", "--level", "99"], "level"),
        (["demo", "--sandboxes", "0"], "--sandboxes"),
        (["selftest", "--suite", "none"], "--suite"),
        (["selftest", "--tier", "lukewarm"], "--tier"),
    ],
)
def test_bad_input_names_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    """Bad input ends with 2, and says what is wrong and what to do."""
    code = call(tmp_path, *words)
    err = capsys.readouterr().err

    assert 2 == code
    assert err.startswith("error: ")
    assert named in err
    assert "\nhint: " in err


def test_no_daemon_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands that need a daemon say how to start one."""
    assert errors.DaemonUnreachable.exit_code == call(tmp_path, "status")
    assert "agentzip daemon" in capsys.readouterr().err


def test_an_incomplete_detach_is_an_error(run_dir: Path, engine: FakeEngine) -> None:
    """Pages that cannot come home are said, with the exit code for memory."""
    engine.targets[7].pages_stuck = 10
    call(run_dir, "attach", "7")
    call(run_dir, "page-out", "7")

    assert errors.NotEnoughMemory.exit_code == call(run_dir, "detach", "--all")


def test_run_returns_the_exit_code_of_its_command(
    run_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The words after -- belong to the command, its --json as well."""
    code = call(run_dir, "run", "--", "sh", "-c", 'echo "$0"; exit 7', "--json")
    streams = capfd.readouterr()

    assert 7 == code
    assert "--json\n" == streams.out
    assert "no such process" not in streams.err


def test_run_says_with_json_how_it_went(run_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The last line of stdout is an object; a signal shows as 128 + N."""
    code = call(run_dir, "run", "--json", "--", "sh", "-c", "kill -9 $$")
    facts = json.loads(capfd.readouterr().out.splitlines()[-1])

    assert 137 == code == facts["exit_code"]


def test_run_pages_out_long_after_the_daemon_hung_up_on_who_is_silent(
    run_dir: Path,
    engine: FakeEngine,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The daemon is asked anew when the time has come."""

    def start(command: list[str], _uniform: bool) -> "subprocess.Popen[bytes]":
        child = subprocess.Popen(command)
        engine.targets[child.pid] = FakeTarget(child.pid, pages=100)
        return child

    def page_out(pid: int, *_options: object) -> PageOutReport:
        os.kill(pid, signal.SIGTERM)
        return page_out_for_real(pid)

    page_out_for_real = engine.page_out
    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr(engine, "page_out", page_out)
    monkeypatch.setattr(control_server, "_IDLE_SECONDS_MAX", 0.05)
    code = call(run_dir, "run", "--json", "--page-out-after", "400ms", "--", "sleep", "60")
    streams = capfd.readouterr()

    assert 128 + signal.SIGTERM == code
    assert 100 == json.loads(streams.out.splitlines()[-1])["page_out"]["pages_moved"]
    assert "warning" not in streams.err


def test_run_says_when_there_is_no_such_command(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that is not found is bad input."""
    assert 2 == call(run_dir, "run", "--", "no-such-program-anywhere")
    assert "no-such-program-anywhere" in capsys.readouterr().err


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_the_doctor_fails_only_when_the_pager_cannot_work(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    code: int,
) -> None:
    """Exit 1 for a failure, 0 for warnings."""
    finding = doctor.Finding("thing", status, "a cause", "a fix")
    monkeypatch.setattr(doctor, "examine", lambda _: [finding])

    assert code == call(tmp_path, "doctor", "--json")
    answer = json.loads(capsys.readouterr().out)
    assert (code == 0) == answer["can_work"]
    assert "a cause" == answer["findings"][0]["cause"]


def test_every_exit_code_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`agentzip --help` documents all codes, and no two errors share one."""
    assert 0 == main(["--help"])
    out = capsys.readouterr().out
    own = [getattr(errors, name).exit_code for name in errors.__all__ if name != "AgentZipError"]

    assert all(f"\n  {code:>3}  " in out for code in exit_codes())
    assert sorted(set(own)) == sorted(own)


def test_no_words_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Calling it bare is a question, not a mistake."""
    assert 0 == main([])
    assert "Usage: agentzip" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "suites", "tier", "counts"),
    [
        ([], selftest.SUITES, None, (30, 10**6)),
        (["--suite", "all", "--tier", "disk"], selftest.SUITES, "disk", (30, 10**6)),
        (["--suite", "exact", "--tier", "cold"], ("exact",), "cold", (30, 10**6)),
        (["--suite", "crash", "--kills", "200"], ("crash",), None, (200, 10**6)),
        (["--suite", "soak", "--ops", "10000000"], ("soak",), None, (30, 10**7)),
    ],
)
def test_the_self_test_runs_what_was_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    suites: tuple[str, ...],
    tier: str | None,
    counts: tuple[int, int],
) -> None:
    """Suites by name, `all` means the short ones; tier and counts are those that checks know."""
    asked = []

    def run(
        suites: tuple[str, ...], *, tier: str | None, counts: dict[str, int]
    ) -> list[selftest.Result]:
        asked.append((suites, tier, counts))
        return [selftest.Result("exact/canary", "exact", passed=True)]

    monkeypatch.setattr(selftest, "run", run)

    assert 0 == call(tmp_path, "selftest", *words)
    assert [(suites, tier, dict(zip(selftest.COUNTS, counts, strict=True)))] == asked
    assert set(suites) <= {*selftest.SUITES, *selftest.LONG_SUITES}
    assert tier in {None, *selftest.TIERS}
