"""Sandboxes from scopes and control groups, on a small host of our own."""

import os
from pathlib import Path

import pytest

from agentzip.config import Scope
from agentzip.errors import InvalidSetting
from agentzip.fleet.registry import Registry
from agentzip.fleet.scopes import Scopes
from agentzip.host import cgroups, gvisor
from unit.host.fake_host import FakeHost

SCOPES = [Scope(cgroup="agent-special-*", isolation="sandbox"), Scope(cgroup="agent-*")]
OWN = {900, 901}


class Stage:
    """A registry on a host of our own, with a clock that a test moves."""

    def __init__(self, root: Path) -> None:
        self.host = FakeHost(root)
        self.now = 0.0
        self.scopes = Scopes(SCOPES, None, root)
        self.cgroups = cgroups.Cgroups(root)
        self.registry = self.made()

    def made(self) -> Registry:
        """A registry as a daemon that starts now has it."""
        return Registry(self.scopes, self.cgroups, lambda: OWN, self.host.root, lambda: self.now)

    def look(self, seconds: float = 10.0) -> tuple[list[str], list[str], list[int], list[int]]:
        """Look after a while: names that appeared and vanished, pids that joined and left."""
        self.now += seconds
        changes = self.registry.refresh()
        return (
            [sandbox.name for sandbox in changes.appeared],
            [sandbox.name for sandbox in changes.vanished],
            sorted(member.pid for member in changes.joined),
            sorted(member.pid for member in changes.left),
        )


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A host without sandboxes."""
    return Stage(tmp_path)


def _start(stage: Stage, *pids: int) -> None:
    for pid in pids:
        stage.host.start(pid, f"agent {pid}")


def test_sandboxes_come_and_go_with_their_processes(stage: Stage) -> None:
    """A group without processes is none yet, and no more."""
    stage.host.group("agent-1")
    assert ([], [], [], []) == stage.look()
    _start(stage, 11, 12)
    stage.host.group("agent-1/box", 11)
    assert (["agent-1"], [], [11], []) == stage.look()
    stage.host.group("agent-1/box", 11, 12)
    assert ([], [], [12], []) == stage.look()
    assert ([], [], [], []) == stage.look()
    stage.host.end(11)
    stage.host.group("agent-1/box", 12)
    assert ([], [], [], [11]) == stage.look()
    stage.host.group("agent-1/box")
    assert ([], ["agent-1"], [], [12]) == stage.look()


def test_a_sandbox_is_told_with_all_that_it_needs(stage: Stage) -> None:
    """Group, inode, domain, members, freezer."""
    started = stage.host.start(11, "python")
    folder = stage.host.group("agent.slice/agent-1.slice", 11, frozen=True)
    stage.look()

    (sandbox,) = stage.registry.sandboxes()
    assert ("agent-1.slice", "agent.slice/agent-1.slice") == (sandbox.name, sandbox.cgroup)
    assert (folder.stat().st_ino, "agent-*", 10.0) == (
        sandbox.inode,
        sandbox.scope,
        sandbox.first_seen,
    )
    assert (True, True, "") == (sandbox.frozen, sandbox.enabled, sandbox.refused)
    assert [(11, started, "agent-1.slice", "python")] == [
        (one.pid, one.start_time, one.sandbox, one.command) for one in sandbox.members
    ]
    assert sandbox is stage.registry.find("agent-1.slice")


def test_a_pid_that_names_another_process_is_another_member(stage: Stage) -> None:
    """It leaves and joins, whatever the time between two looks."""
    _start(stage, 11)
    stage.host.group("agent-1", 11)
    stage.look()
    before = stage.registry.sandboxes()[0].members
    _start(stage, 11)

    assert ([], [], [11], [11]) == stage.look(seconds=0)
    assert before[0].start_time < stage.registry.sandboxes()[0].members[0].start_time


def test_a_group_that_says_what_it_said_is_not_read_each_time(stage: Stage) -> None:
    """A pid used again in the very same group is seen some seconds later, once all are settled."""
    _start(stage, 11)
    stage.host.group("agent-1", 11)
    stage.look()
    stage.look(6.0)
    _start(stage, 11)
    assert ([], [], [], []) == stage.look(1.0)
    assert ([], [], [11], [11]) == stage.look(4.0)
    # One that is new in the group is seen at once, and so is one that left it.
    stage.look(6.0)
    stage.look(1.0)
    _start(stage, 12)
    stage.host.group("agent-1", 11, 12)
    assert ([], [], [12], []) == stage.look(1.0)
    stage.host.group("agent-1", 12)
    assert ([], [], [], [11]) == stage.look(1.0)


def test_a_pid_used_again_elsewhere_is_nobody_s(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading a group and reading a process the pid may have become another's."""
    _start(stage, 11, 12)
    stage.host.group("agent-1", 11, 12)
    # What the second read of the group says: 11 has ended and is now somebody else.
    monkeypatch.setattr(stage.cgroups, "pids", lambda _path: {12})

    assert (["agent-1"], [], [12], []) == stage.look()
    assert None is stage.registry.sandbox_of(11)
    assert "agent-1" == stage.registry.sandbox_of(12)


def test_sandbox_of_does_not_believe_a_pid(stage: Stage) -> None:
    """Asked between two looks, it checks whose the pid is now."""
    _start(stage, 11)
    stage.host.group("agent-1", 11)
    stage.look()
    assert "agent-1" == stage.registry.sandbox_of(11)
    os.utime(stage.host.root / "proc" / "11")
    assert "agent-1" == stage.registry.sandbox_of(11)
    _start(stage, 11)
    assert None is stage.registry.sandbox_of(11)
    stage.host.end(11)
    assert None is stage.registry.sandbox_of(11)


def test_a_group_that_is_made_again_is_another_sandbox(stage: Stage) -> None:
    """With the same name, and with `isolation: sandbox` with another domain."""
    _start(stage, 11)
    stage.host.group("agent-special-1", 11)
    stage.look()
    first = stage.registry.sandboxes()[0]
    stage.host.remove("agent-special-1")
    (stage.host.unified / "takes-the-inode").mkdir()
    _start(stage, 11)
    stage.host.group("agent-special-1", 11)

    assert (["agent-special-1"], ["agent-special-1"], [11], [11]) == stage.look()
    again = stage.registry.sandboxes()[0]
    assert first.inode != again.inode
    assert first.domain != again.domain


def test_a_group_that_was_empty_is_another_sandbox(stage: Stage) -> None:
    """Who comes into a group after the last one has gone need not be the same tenant."""
    _start(stage, 11)
    stage.host.group("agent-special-1", 11)
    stage.look()
    domain = stage.registry.sandboxes()[0].domain
    stage.host.group("agent-special-1")
    stage.look()
    _start(stage, 12)
    stage.host.group("agent-special-1", 12)

    assert (["agent-special-1"], [], [12], []) == stage.look()
    assert domain != stage.registry.sandboxes()[0].domain


def test_domains_follow_scope_and_isolation(stage: Stage) -> None:
    """One scope is one; `isolation: sandbox` and named processes are alone; none is shared."""
    _start(stage, 1, 2, 3, 4, 5)
    stage.scopes.add("pid:5")
    for pid, name in ((1, "agent-1"), (2, "agent-2"), (3, "agent-special-1")):
        stage.host.group(name, pid)
    stage.host.group("agent-special-2", 4)
    stage.look()

    domains = {sandbox.name: sandbox.domain for sandbox in stage.registry.sandboxes()}
    assert domains["agent-1"] == domains["agent-2"]
    assert 4 == len(set(domains.values()))
    assert "default" not in domains.values()


def test_a_daemon_that_starts_again_finds_the_same_domains(stage: Stage) -> None:
    """Pages that are still out belong to them."""
    _start(stage, 1, 2)
    stage.host.group("agent-1", 1)
    stage.host.group("agent-special-1", 2)
    stage.look()
    before = stage.registry.sandboxes()
    stage.registry = stage.made()
    stage.look()

    assert [one.domain for one in before] == [one.domain for one in stage.registry.sandboxes()]


def test_the_first_scope_decides_also_when_it_is_off(stage: Stage) -> None:
    """A narrow rule above a wide one is an exception to it."""
    _start(stage, 1, 2)
    stage.host.group("agent-special-1", 1)
    stage.host.group("agent-2", 2)
    stage.scopes.enable("agent-special-*", enabled=False)
    stage.look()

    assert {"agent-special-1": False, "agent-2": True} == {
        sandbox.name: sandbox.enabled for sandbox in stage.registry.sandboxes()
    }
    assert [("agent-special-*", False, 1), ("agent-*", True, 1)] == [
        (scope.pattern, scope.enabled, scope.sandboxes) for scope in stage.registry.statuses()
    ]
    stage.scopes.enable("agent-special-*", enabled=True)
    assert ([], [], [], []) == stage.look()
    assert all(sandbox.enabled for sandbox in stage.registry.sandboxes())


def test_names_are_short_where_they_tell_and_never_change(stage: Stage) -> None:
    """The second of a name has its whole path; the first keeps what it has."""
    _start(stage, 1, 2, 3)
    stage.host.group("b/agent-1", 1)
    stage.look()
    stage.host.group("a/agent-1", 2)
    assert (["/a/agent-1"], [], [2], []) == stage.look()
    stage.host.group("b/agent-1")
    stage.look()
    stage.host.group("c/agent-1", 3)

    assert (["agent-1"], [], [3], []) == stage.look()
    assert ["/a/agent-1", "agent-1"] == [one.name for one in stage.registry.sandboxes()]


def test_names_can_be_shown_and_no_two_are_alike(stage: Stage) -> None:
    """A group that is named to move a cursor, and others that are named like what is shown then."""
    _start(stage, 1, 2, 3)
    stage.host.group("agent-\x1b[2J", 1)
    stage.host.group(r"agent-\x1b[2J", 2)
    stage.host.group(r"x/agent-\x1b[2J", 3)
    (shown, *_) = names = sorted(stage.look()[0], key=len)

    assert r"agent-\x1b[2J" == shown
    assert 3 == len(set(names))
    assert all(map(str.isprintable, names))
    assert {1, 2, 3} == {
        sandbox.members[0].pid for name in names if (sandbox := stage.registry.find(name))
    }


def test_who_is_ours_or_the_kernel_s_is_left_out(stage: Stage) -> None:
    """Daemon, keeper, kernel threads, and those that have ended but for their parent's look."""
    _start(stage, 11, 900, 901)
    stage.host.start(12, "", flags=0x200000)
    stage.host.start(13)
    path = stage.host.root / "proc" / "13" / "stat"
    path.write_text(path.read_text().replace(" S ", " Z "))
    stage.host.group("agent-1", 11, 12, 13, 14, 900, 901)

    assert (["agent-1"], [], [11], []) == stage.look()


def test_a_named_process_brings_its_descendants(stage: Stage) -> None:
    """And who has lost its parent stays, until the last has ended; then the rule is gone."""
    _start(stage, 5)
    stage.host.start(6, parent=5)
    stage.registry.run("demo", 5, stage.host.started - 1)
    assert (["demo"], [], [5, 6], []) == stage.look()
    stage.host.end(5)
    stage.host.start(7, parent=6)
    assert ([], [], [7], [5]) == stage.look()
    stage.host.end(6)
    stage.host.end(7)
    assert ([], ["demo"], [], [6, 7]) == stage.look()
    assert [] == [rule.pattern for rule in stage.scopes.rules() if rule.pid]


def test_a_run_takes_no_name_or_process_of_another(stage: Stage) -> None:
    """Its own name is free again as soon as it has ended."""
    _start(stage, 1, 5)
    stage.host.group("agent-1", 1)
    stage.look()
    with pytest.raises(InvalidSetting, match="in use: agent-1"):
        stage.registry.run("agent-1", 5, stage.host.started)
    with pytest.raises(InvalidSetting, match="process 1 is in a sandbox already: agent-1"):
        stage.registry.run("demo", 1, stage.host.started - 1)
    stage.registry.run("demo", 5, stage.host.started)
    stage.look()
    stage.host.end(5)
    started = stage.host.start(5)
    assert "run:demo" == stage.registry.run("demo", 5, started).pattern
    assert (["demo"], ["demo"], [5], [5]) == stage.look()


def test_a_new_process_is_read_again_until_it_has_settled(stage: Stage) -> None:
    """It may be the container runtime that is about to become the program."""
    stage.host.start(11, "runc init")
    stage.host.group("agent-1", 11)
    stage.look()
    (stage.host.root / "proc" / "11" / "cmdline").write_bytes(b"python\0")
    assert ([], [], [], []) == stage.look(seconds=1)

    assert ["python"] == [one.command for one in stage.registry.sandboxes()[0].members]
    assert "agent-1" == stage.registry.sandbox_of(11)


def test_gvisor_is_recognised_and_left_alone(stage: Stage) -> None:
    """By its program and the memfd that it maps; the program alone is not enough."""
    for pid, memory in ((11, "/memfd:runsc-memory (deleted)"), (12, "/usr/bin/runsc")):
        stage.host.start(pid, "runsc-sandbox boot")
        folder = stage.host.root / "proc" / str(pid)
        (folder / "exe").symlink_to("/usr/bin/runsc")
        (folder / "maps").write_text(f"7f00-7f10 rw-s 00000000 00:01 5  {memory}\n")
        stage.host.group(f"agent-{pid}", pid)
    stage.look()

    assert [gvisor.REASON, ""] == [one.refused for one in stage.registry.sandboxes()]
    assert [False, True] == [one.enabled for one in stage.registry.sandboxes()]


def test_processes_of_another_namespace_are_said_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """A daemon in a container sees that it must be started in the host's."""
    stage.host.group("agent-1", 0, 0)
    stage.look()
    stage.look()

    assert 1 == caplog.text.count("2 processes of agent-1 are outside")
