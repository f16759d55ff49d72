"""
What the kernel's own control groups do: frozen, threaded, removed and made again.

The groups are made here and removed at the end, as are the processes in them.
"""

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentzip.bench.fanout.places import remove_tree
from agentzip.fleet.registry import Registry
from agentzip.fleet.scopes import Scopes
from agentzip.host.cgroups import Cgroups, Group, hierarchies
from agentzip.policy import patterns
from agentzip.selftest.conditions import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(60)]

_TWO_THREADS = """
import sys, threading
def say(): print(threading.get_native_id(), flush=True); threading.Event().wait()
threading.Thread(target=say, daemon=True).start()
sys.stdin.read()
"""


@pytest.fixture
def target() -> Iterator["subprocess.Popen[str]"]:
    """A process with a second thread, whose id it has printed."""
    with subprocess.Popen(
        [sys.executable, "-c", _TWO_THREADS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as found:
        yield found
        found.kill()


def _look(cgroups: Cgroups, group: Path) -> list[Group]:
    return cgroups.find(patterns.chooser([group.name]))


def test_a_frozen_group_is_seen_as_frozen(group: Path, target: "subprocess.Popen[str]") -> None:
    """Also when it is a group above that is frozen."""
    box = group / "box"
    box.mkdir()
    (box / "cgroup.procs").write_text(str(target.pid))
    cgroups = Cgroups()

    assert [({target.pid}, False)] == [
        (set(found.pids), found.frozen) for found in _look(cgroups, group)
    ]
    (group / "cgroup.freeze").write_text("1")
    assert wait_until(lambda: _look(cgroups, group)[0].frozen, 5)
    (group / "cgroup.freeze").write_text("0")
    assert wait_until(lambda: not _look(cgroups, group)[0].frozen, 5)
    cgroups.close()


def test_a_threaded_group_belongs_to_the_sandbox_above(
    group: Path, target: "subprocess.Popen[str]"
) -> None:
    """The kernel lists its processes above; a sandbox that is itself one has those it leads."""
    assert target.stdout is not None
    thread = target.stdout.readline().strip()
    part = group / "agent-part"
    part.mkdir()
    (part / "cgroup.type").write_text("threaded")
    (group / "cgroup.procs").write_text(str(target.pid))
    (part / "cgroup.threads").write_text(thread)
    cgroups = Cgroups()

    assert [{target.pid}] == [set(found.pids) for found in _look(cgroups, group)]
    own = patterns.chooser([f"{group.name}/agent-part"])
    assert [set()] == [set(found.pids) for found in cgroups.find(own)]
    (part / "cgroup.threads").write_text(str(target.pid))
    assert [{target.pid}] == [set(found.pids) for found in cgroups.find(own)]
    (group / "cgroup.procs").write_text(str(target.pid))
    cgroups.close()


def test_a_group_that_is_made_again_has_another_inode(group: Path) -> None:
    """And is read anew, although a file of the first one is kept open."""
    cgroups = Cgroups()
    (before,) = _look(cgroups, group)
    for _ in range(20):
        group.rmdir()
        group.mkdir()
        (after,) = _look(cgroups, group)
        assert before.inodes.isdisjoint(after.inodes)
        before = after
    cgroups.close()


def test_what_is_remembered_agrees_with_the_host_whatever_happened(group: Path) -> None:
    """Groups come and go during many looks; in the quiet, a fresh look sees the same."""
    random_moves, over = random.Random(5), threading.Event()
    names = ("a", "b", f"{group.name}-1", f"{group.name}-2")
    choose = patterns.chooser([f"{group.name}-*"])

    def move() -> None:
        while not over.is_set():
            folder = group.joinpath(*random_moves.choices(names, k=random_moves.randint(1, 3)))
            with suppress(OSError):
                folder.mkdir() if random_moves.random() < 0.6 else folder.rmdir()

    open_before = len(os.listdir("/proc/self/fd"))
    cgroups = Cgroups()
    for _ in range(30):
        over.clear()
        mover = threading.Thread(target=move)
        mover.start()
        for _ in range(40):
            cgroups.find(choose)
        over.set()
        mover.join()
        fresh = Cgroups()
        assert fresh.find(choose) == cgroups.find(choose)
        fresh.close()
    cgroups.close()

    assert open_before == len(os.listdir("/proc/self/fd"))


def test_a_look_at_what_the_kernel_counts_asks_for_no_sandbox(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can be read is there, as long as there are as many groups as before."""
    for name in ("a", "b"):
        (group / name).mkdir()
    cgroups, real = Cgroups(), os.stat
    choose = patterns.chooser([f"{group.name}/*"])
    asked: list[str] = []

    def stat(path: str) -> os.stat_result:
        asked.append(path)
        return real(path)

    monkeypatch.setattr(os, "stat", stat)

    def asked_for_none() -> bool:
        asked.clear()
        assert 2 == len(cgroups.find(choose))
        return not {str(group / "a"), str(group / "b")} & set(asked)

    # Whoever makes a group on this host meanwhile lets all be looked at once more.
    assert wait_until(asked_for_none, 10)
    monkeypatch.undo()
    (group / "a").rmdir()
    (group / "b" / "c").mkdir()
    assert [f"{group.name}/b"] == [found.path for found in cgroups.find(choose)]
    (group / "d").mkdir()
    (group / "b" / "c").rmdir()
    assert [f"{group.name}/{name}" for name in ("b", "d")] == [
        found.path for found in cgroups.find(choose)
    ]
    cgroups.close()


def test_the_older_hierarchy_is_read_anew_however_often(
    target: "subprocess.Popen[str]",
) -> None:
    """The kernel keeps v1's lists of processes for a second after each read."""
    mounts = [found.mount for found in hierarchies() if "memory" in found.controllers]
    if not mounts:
        pytest.skip("this host has no v1 memory hierarchy")
    folder = Path(mounts[0]) / f"agent-sandbox-{os.getpid()}"
    home = Path(f"/proc/{os.getpid()}/cgroup").read_text().partition(":memory:")[2].split("\n")[0]
    folder.mkdir()
    cgroups = Cgroups()
    try:
        assert [set()] == [set(found.pids) for found in _look(cgroups, folder)]
        (folder / "cgroup.procs").write_text(str(target.pid))
        assert [{target.pid}] == [set(found.pids) for found in _look(cgroups, folder)]
        Path(f"{mounts[0]}{home}/cgroup.procs").write_text(str(target.pid))
        assert [set()] == [set(found.pids) for found in _look(cgroups, folder)]
    finally:
        target.kill()
        target.wait()
        cgroups.close()
        assert remove_tree(folder, 10), "the control group stays"


def test_a_process_in_a_new_group_is_there_at_the_next_look(
    group: Path, target: "subprocess.Popen[str]"
) -> None:
    """With its start time; gone with the first look after its end, though nobody waited for it."""
    scopes = Scopes()
    scopes.add(f"{group.name}*")
    cgroups = Cgroups()
    registry = Registry(scopes, cgroups)
    assert [] == registry.refresh().appeared
    (group / "deep" / "er").mkdir(parents=True)
    (group / "deep" / "er" / "cgroup.procs").write_text(str(target.pid))
    changes = registry.refresh()

    assert [group.name] == [found.name for found in changes.appeared]
    assert [target.pid] == [member.pid for member in changes.joined]
    assert group.name == registry.sandbox_of(target.pid)
    target.kill()
    # The process stays a zombie until its parent has looked.
    assert wait_until(lambda: not registry.refresh().appeared and not registry.sandboxes(), 5)
    cgroups.close()
