"""The process tree from a small /proc of our own."""

import shutil
import subprocess
from pathlib import Path

import pytest

from agentzip.errors import NoSuchProcess
from agentzip.host.processes import (
    children,
    descendants,
    faults_handled_elsewhere,
    is_alive,
    mark,
    process,
    tracers,
)


def add(root: Path, pid: int, parent: int, state: str = "S", name: str = "agent") -> Path:
    """Lay out one process."""
    folder = root / "proc" / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    rest = ["0"] * 40
    rest[0], rest[1], rest[19] = state, str(parent), str(pid * 100)
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(rest)}\n")
    (folder / "cmdline").write_bytes(b"python\0agent.py\0")
    (folder / "task" / str(pid) / "status").write_text("Name: agent\nTracerPid:\t0\n")
    return folder


def test_a_command_line_is_readable_whatever_a_process_made_of_it(tmp_path: Path) -> None:
    """Escapes, line feeds and marks of direction are shown, not obeyed."""
    add(tmp_path, 5, 1)
    (tmp_path / "proc" / "5" / "cmdline").write_bytes(b"a\x1b[2J\nroot\0\xe2\x80\xaeb\xff\0")

    assert r"a\x1b[2J\nroot \u202eb" == process(5, tmp_path).command.rstrip("\ufffd")


def test_a_name_with_parentheses_does_not_mislead(tmp_path: Path) -> None:
    """The name of a process ends at the last parenthesis."""
    add(tmp_path, 5, 1, name="a) S (b")
    found = process(5, tmp_path)

    assert (1, "S", 500, "python agent.py") == (
        found.parent,
        found.state,
        found.start_time,
        found.command,
    )


def test_a_process_without_arguments_is_shown_by_name(tmp_path: Path) -> None:
    """Kernel threads have no command line."""
    (add(tmp_path, 5, 1, name="kthreadd") / "cmdline").write_bytes(b"")

    assert "[kthreadd]" == process(5, tmp_path).command


def test_the_tree_is_descended_nearest_first(tmp_path: Path) -> None:
    """Children come before grandchildren, and strangers not at all."""
    for pid, parent in ((1, 0), (20, 1), (10, 1), (30, 10), (99, 0)):
        add(tmp_path, pid, parent)
    (tmp_path / "proc" / "meminfo").write_text("")

    assert [10, 20, 30] == [found.pid for found in descendants(1, tmp_path)]


def test_a_pid_with_another_start_time_is_another_process(tmp_path: Path) -> None:
    """Identity is pid and start time; a zombie does not live."""
    add(tmp_path, 5, 1)
    add(tmp_path, 6, 1, state="Z")

    assert is_alive(5, 500, tmp_path)
    assert not is_alive(5, 501, tmp_path)
    assert not is_alive(6, 600, tmp_path)
    assert not is_alive(7, 700, tmp_path)


def test_a_traced_thread_is_found(tmp_path: Path) -> None:
    """Every thread is looked at, with its tracer."""
    folder = add(tmp_path, 5, 1)
    (folder / "task" / "6").mkdir()
    (folder / "task" / "6" / "status").write_text("TracerPid:\t42\n")

    assert {6: 42} == tracers(5, tmp_path)
    assert {} == tracers(7, tmp_path)


def test_registered_mappings_are_counted(tmp_path: Path) -> None:
    """The flags um and uw show a userfaultfd on a mapping."""
    folder = add(tmp_path, 5, 1)
    (folder / "smaps").write_text("VmFlags: rd wr um\nVmFlags: rd wr\nVmFlags: rd uw mg\n")

    assert 2 == faults_handled_elsewhere(5, tmp_path)


def test_a_missing_process_is_an_error(tmp_path: Path) -> None:
    """What does not exist cannot be read."""
    with pytest.raises(NoSuchProcess):
        process(5, tmp_path)
    with pytest.raises(NoSuchProcess):
        faults_handled_elsewhere(5, tmp_path)


def test_a_mark_is_that_of_one_process(tmp_path: Path) -> None:
    """Equal while it lives; another one, or none, when the pid names another process, or none."""
    add(tmp_path, 5, 1)
    first = mark(5, tmp_path)
    assert first == mark(5, tmp_path)
    shutil.rmtree(tmp_path / "proc" / "5")
    assert None is mark(5, tmp_path)
    add(tmp_path, 5, 1)
    assert first != mark(5, tmp_path)


def test_a_real_pid_keeps_its_mark() -> None:
    """The kernel's /proc does as the small one here."""
    with subprocess.Popen(["sleep", "60"]) as started:
        first = mark(started.pid)
        assert first is not None
        assert first == mark(started.pid)
        started.kill()
        started.wait()
        assert None is mark(started.pid)


def test_children_are_those_of_every_thread(tmp_path: Path) -> None:
    """A process may be started by any thread; without the kernel's list, parents tell."""
    folder = add(tmp_path, 5, 1)
    add(tmp_path, 6, 5)
    add(tmp_path, 7, 6)
    assert [6] == children(5, tmp_path)
    (folder / "task" / "5" / "children").write_text("9 ")
    (folder / "task" / "8").mkdir()
    (folder / "task" / "8" / "children").write_text("6 ")
    assert [6, 9] == children(5, tmp_path)
    assert [] == children(99, tmp_path)


def test_a_kernel_thread_is_told_by_its_flag(tmp_path: Path) -> None:
    """Not by its name, which a process may copy."""
    add(tmp_path, 5, 1, name="kworker/0:1")
    assert not process(5, tmp_path).kernel
    stat = tmp_path / "proc" / "5" / "stat"
    stat.write_text(stat.read_text().replace(" S 1 0 0 0 0 0", " S 1 0 0 0 0 69238880"))
    assert process(5, tmp_path).kernel
