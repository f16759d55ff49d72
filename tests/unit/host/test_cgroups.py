"""Control groups in every layout, laid out as plain directories."""

import errno
import os
from pathlib import Path

import pytest

from agentzip.host.cgroups import Cgroups, hierarchies
from agentzip.policy import patterns
from unit.host.fake_host import FakeHost

CHOOSE = patterns.chooser(["agent-sandbox-*"])


def test_a_group_is_found_at_any_depth(tmp_path: Path) -> None:
    """As systemd nests them and as a runtime puts them at the top; with all below."""
    host = FakeHost(tmp_path)
    host.group("agent.slice/agent-sandbox.slice/agent-sandbox-1.slice/box.scope", 11, 12)
    host.group("agent-sandbox-2", 21)
    host.group("agent-sandbox-2/agent-sandbox-inner", 22)
    host.group("system.slice/sshd.service", 31)

    found = {group.path: group.pids for group in Cgroups(tmp_path).find(CHOOSE)}

    assert {
        "agent.slice/agent-sandbox.slice/agent-sandbox-1.slice": {11, 12},
        "agent-sandbox-2": {21, 22},
    } == found


@pytest.mark.parametrize(
    ("v1", "v2", "mode"),
    [
        ((), "", "v2"),
        (("memory", "freezer"), "unified", "hybrid"),
        (("memory", "freezer"), None, "v1"),
        (("cpu", "pids"), None, "v1"),
        ((), None, "none"),
    ],
)
def test_the_layout_is_seen(tmp_path: Path, v1: tuple[str, ...], v2: str | None, mode: str) -> None:
    """From what is mounted; where nothing is, there is nothing and no error."""
    FakeHost(tmp_path, v1, v2)
    cgroups = Cgroups(tmp_path)

    assert mode == cgroups.mode
    assert [] == cgroups.find(CHOOSE)


def test_a_part_of_a_hierarchy_that_is_mounted_is_not_the_hierarchy(tmp_path: Path) -> None:
    """A container's own group is; the host's, seen from inside of one, counts before it."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(
        "1 0 0:1 /docker/abc /part rw - cgroup2 cgroup2 rw\n"
        "2 0 0:1 / /own rw - cgroup2 cgroup2 rw\n"
        "3 0 0:1 /../.. /of\\040host rw - cgroup2 cgroup2 rw\n"
    )

    assert [str(tmp_path / "of host")] == [found.mount for found in hierarchies(tmp_path)]


def test_both_hierarchies_of_a_hybrid_host_are_one(tmp_path: Path) -> None:
    """A runtime puts a process into both, or into v1 alone with an empty group beside."""
    host = FakeHost(tmp_path, ("memory", "freezer"), "unified")
    host.group("agent-sandbox-1/box", 11, 12)
    host.group("agent-sandbox-1/box", 11, 12, hierarchy="memory")
    host.group("agent-sandbox-2/box", 21, hierarchy="memory")
    host.group("agent-sandbox-2")

    found = Cgroups(tmp_path).find(CHOOSE)

    assert [{11, 12}, {21}] == [group.pids for group in found]
    assert [2, 2] == [len(group.inodes) for group in found]


def test_a_group_is_frozen_if_all_of_its_processes_are(tmp_path: Path) -> None:
    """By either freezer; the monitor of a container is no part of the sandbox."""
    host = FakeHost(tmp_path, ("memory", "freezer"), "unified")
    host.group("agent-sandbox-1/a", 11, frozen=True)
    host.group("agent-sandbox-1/b", 12)
    host.group("agent-sandbox-2/a", 21, frozen=True)
    host.group("agent-sandbox-2/conmon", 22)
    host.group("agent-sandbox-3/libpod-3", 31, hierarchy="memory")
    host.group("agent-sandbox-3/libpod-3", 31, hierarchy="freezer", frozen=True)
    cgroups = Cgroups(tmp_path)

    assert [False, True, True] == [group.frozen for group in cgroups.find(CHOOSE)]
    host.group("agent-sandbox-1/b", 12, frozen=True)
    assert cgroups.find(CHOOSE)[0].frozen


def test_what_changes_is_seen_at_the_next_look(tmp_path: Path) -> None:
    """Also where as many groups are in a directory as before."""
    host = FakeHost(tmp_path)
    host.group("x/agent-sandbox-1/a", 11)
    cgroups = Cgroups(tmp_path)
    first = cgroups.find(CHOOSE)
    host.remove("x/agent-sandbox-1/a")
    host.group("x/agent-sandbox-1/b", 12)
    assert [{12}] == [group.pids for group in cgroups.find(CHOOSE)]
    host.group("x/agent-sandbox-1/c/d", 13)
    assert [{12, 13}] == [group.pids for group in cgroups.find(CHOOSE)]
    host.group("y/z", 1)
    host.remove("y")
    host.group("agent-sandbox-2", 21)
    assert [{21}, {12, 13}] == [group.pids for group in cgroups.find(CHOOSE)]
    host.remove("x/agent-sandbox-1")
    host.group("x/agent-sandbox-3", 31)
    assert [{21}, {31}] == [group.pids for group in cgroups.find(CHOOSE)]
    host.remove("x/agent-sandbox-3")
    (tmp_path / "keeps-the-inode-from-being-used-again").mkdir()
    host.group("x/agent-sandbox-3", 32)
    again = cgroups.find(CHOOSE)[1]
    assert {32} == again.pids
    assert not again.inodes & first[0].inodes
    cgroups.close()


def test_files_that_are_kept_open_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it, the answer is the same."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (24, 24))
    host = FakeHost(tmp_path)
    for number in range(20):
        host.group(f"agent-sandbox-{number}", number + 1)
    cgroups = Cgroups(tmp_path)

    for _ in range(2):
        assert 20 == len(cgroups.find(CHOOSE))
    open_files = [str(path.resolve()) for path in Path("/proc/self/fd").iterdir()]
    assert 3 == sum(path.startswith(str(tmp_path)) for path in open_files)
    cgroups.close()
    open_files = [str(path.resolve()) for path in Path("/proc/self/fd").iterdir()]
    assert 0 == sum(path.startswith(str(tmp_path)) for path in open_files)


def test_a_look_at_what_has_not_changed_opens_and_lists_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So hundreds of sandboxes cost little while they wait."""
    host = FakeHost(tmp_path)
    for number in range(20):
        host.group(f"agent.slice/agent-sandbox-{number}/box", number + 1)
    if 2 != (host.unified / "agent.slice" / "agent-sandbox-1" / "box").stat().st_nlink:
        pytest.skip("the file system of the tests does not count directories by links")
    cgroups = Cgroups(tmp_path)
    before = cgroups.find(CHOOSE)
    for name in ("open", "scandir", "listdir"):
        monkeypatch.setattr(os, name, None)
    after = cgroups.find(CHOOSE)
    monkeypatch.undo()
    cgroups.close()

    assert before == after
    assert 20 == len(after)


@pytest.mark.parametrize("call", ["open", "scandir", "stat"])
def test_what_cannot_be_read_now_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Without a free descriptor a look fails; the next one sees everything."""
    host = FakeHost(tmp_path)
    host.group("x/agent-sandbox-1/box", 11)
    cgroups = Cgroups(tmp_path)
    cgroups.find(CHOOSE)
    host.group("x/agent-sandbox-1/new", 12)
    host.group("y/agent-sandbox-2", 21)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="too many"):
        cgroups.find(CHOOSE)
    monkeypatch.undo()

    assert [{11, 12}, {21}] == [group.pids for group in cgroups.find(CHOOSE)]
    cgroups.close()


def test_processes_of_another_namespace_are_counted(tmp_path: Path) -> None:
    """The kernel shows them as 0."""
    host = FakeHost(tmp_path)
    host.group("agent-sandbox-1", 0, 0, 11)

    (group,) = Cgroups(tmp_path).find(CHOOSE)

    assert (frozenset({11}), 2) == (group.pids, group.strangers)


def test_memory_is_what_the_kernel_charges(tmp_path: Path) -> None:
    """From v2 where it counts there, else from v1, else unknown."""
    host = FakeHost(tmp_path, ("memory",), "unified")
    (host.group("agent-sandbox-1") / "memory.current").write_text("100\n")
    older = host.group("agent-sandbox-2", hierarchy="memory")
    (older / "memory.usage_in_bytes").write_text("200\n")
    cgroups = Cgroups(tmp_path)

    assert [100, 200, None] == [
        cgroups.memory_bytes(f"agent-sandbox-{number}") for number in (1, 2, 3)
    ]
