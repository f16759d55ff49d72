"""What `analyze` says of control groups, over a host that a test makes up."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentzip import model, pager
from agentzip.cli import analysis, main
from agentzip.errors import InvalidSetting, KernelThread, NoSuchProcess, NoSuchScope
from agentzip.host import processors
from sandbox_values import MIB


@dataclass
class FakeGroup:
    """A control group with its processes."""

    path: str
    pids: frozenset[int] = field(default_factory=frozenset)


GROUPS = [
    FakeGroup("a.slice/agent-sandbox-1.slice", frozenset({11, 12})),
    FakeGroup("a.slice/agent-sandbox-2.slice", frozenset({21, 29})),
    FakeGroup("a.slice/agent-sandbox-3.slice"),
]


class FakeCgroups:
    """The groups of a host."""

    def find(self, choose: Callable[[str], int | None]) -> list[FakeGroup]:
        """Those that a pattern selects."""
        return [group for group in GROUPS if choose(group.path) is not None]


def sampled(pid: int, **_how: object) -> model.Analysis:
    """100 MiB, of which nearly all leaves at 5x; noise in process 21; 29 has ended."""
    if pid == 29:
        raise NoSuchProcess("no such process: 29")
    if pid == 2:
        raise KernelThread("kernel thread: 2")
    pool = 95 if pid == 21 else 18
    return model.Analysis(
        pid=pid,
        command="python agent.py",
        rss_bytes=100 * MIB,
        pss_bytes=100 * MIB,
        leaving_pss_bytes=90 * MIB,
        pool_bytes=pool * MIB,
        pool_bytes_dictionary=pool * MIB,
        table_bytes=MIB,
        dictionary_bytes=0,
        classes=[model.ClassForecast("heap", 100, 90, 23040, 100, 0, 0, 0, 25, 25)],
        stays=[model.Stay("code", 10 * MIB)],
        cpu_us=100.0,
    )


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "Cgroups", FakeCgroups)
    monkeypatch.setattr(analysis, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(pager, "analyze", sampled)
    monkeypatch.setattr(pager, "page_size", lambda: 4096)
    monkeypatch.setattr(processors, "waiting_share", lambda: 0.0)


def call(tmp_path: Path, *words: str) -> int:
    """One command, without a configuration."""
    return main(["--run-dir", str(tmp_path), "analyze", *words])


def test_each_group_that_a_scope_would_select_gets_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And all together; who ended meanwhile is told and stops nobody."""
    assert 0 == call(tmp_path, "--cgroup", "agent-sandbox-*.slice", "--json")
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)

    assert [[11, 12], [21], []] == [group["pids"] for group in shown["cgroups"]]
    assert ["go", "no", "no"] == [group["verdict"]["decision"] for group in shown["cgroups"]]
    assert [{"pid": 29, "reason": "no such process: 29"}] == shown["cgroups"][1]["skipped"]
    assert [11, 12, 21] == [one["pid"] for one in shown["processes"]]
    assert pytest.approx(300 / (30 + 3 + 131)) == shown["verdict"]["ratio"]


def test_people_get_a_row_for_each_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hundreds of processes are not listed one by one."""
    assert 0 == call(tmp_path, "--cgroup", "agent-sandbox-*.slice")
    lines = capsys.readouterr().out.splitlines()

    assert lines[0].split() == [
        *("CGROUP", "PROCESSES", "SKIPPED", "RESIDENT", "RATIO", "VERDICT", "WHY"),
    ]
    assert "a.slice/agent-sandbox-1.slice          2        0  200.0 MiB  3.45x  go" in lines[1]
    assert lines[-1].startswith("all 3 processes: no: 1.83x end to end")
    assert "compresses badly" in lines[2]


def test_processes_by_pid_are_shown_as_ever(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that cannot be sampled is an error, because it was asked for by name."""
    assert 0 == call(tmp_path, "11")
    assert "process 11 (python agent.py)" in capsys.readouterr().out
    assert KernelThread.exit_code == call(tmp_path, "11", "2")


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        ([], InvalidSetting.exit_code, "PIDs or --cgroup"),
        (["11", "--cgroup", "agent-sandbox-1.slice"], InvalidSetting.exit_code, "not both"),
        (["--cgroup", "*"], InvalidSetting.exit_code, "--cgroup '*' selects every cgroup"),
        (["--cgroup", "nobody"], NoSuchScope.exit_code, "matches: nobody"),
    ],
)
def test_what_selects_nothing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, named: str
) -> None:
    """Neither everything nor nothing is an answer."""
    assert code == call(tmp_path, *words)
    assert named in capsys.readouterr().err
