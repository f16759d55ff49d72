"""
Which processes there are: identity, command line and descent.

A pid alone is not an identity, because the kernel hands it out again; a pid with its start time
is.  Reads race with exits by nature, so a process that ends while being read is simply not in the
answer.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from agentzip.errors import NoSuchProcess, NotPermitted
from agentzip.host.kernel_text import lines_of, printable
from agentzip.host.memory import ROOT

__all__ = [
    "ProcessInfo",
    "children",
    "descendants",
    "effective_uid",
    "environment",
    "faults_handled_elsewhere",
    "is_alive",
    "mark",
    "process",
    "tracers",
]

_STATE, _PARENT, _FLAGS, _START_TIME = 0, 1, 6, 19
"""Positions in /proc/PID/stat behind the name (fields 3, 4, 9 and 22 of proc_pid_stat(5))."""

_PF_KTHREAD = 0x0020_0000
"""Flag of a kernel thread."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process."""

    pid: int
    parent: int
    state: str
    """The kernel's letter: R, S, D, Z, T, t ..."""
    start_time: int
    """Clock ticks after boot."""
    command: str
    kernel: bool = False
    """It is a kernel thread, which has no memory of its own."""


def process(pid: int, root: Path = ROOT) -> ProcessInfo:
    """
    Read one process.

    Raises:
        NoSuchProcess: there is none with this pid.
    """
    folder = root / "proc" / str(pid)
    try:
        stat = (folder / "stat").read_text(errors="replace")
        arguments = (folder / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NoSuchProcess(f"no such process: {pid}") from error
    # The name may itself hold spaces and parentheses: it ends at the last one.
    name = stat[stat.index("(") + 1 : stat.rindex(")")]
    fields = stat[stat.rindex(")") + 1 :].split()
    command = arguments.replace(b"\0", b" ").decode(errors="replace").strip() or f"[{name}]"
    return ProcessInfo(
        pid,
        int(fields[_PARENT]),
        fields[_STATE],
        int(fields[_START_TIME]),
        printable(command),
        kernel=bool(int(fields[_FLAGS]) & _PF_KTHREAD),
    )


def mark(pid: int, root: Path = ROOT) -> tuple[int, int] | None:
    """
    What changes when a pid comes to name another process, at a tenth of the cost of reading it.

    The kernel makes the directory of a process anew for each process; also when it has forgotten
    it meanwhile, so an equal mark says "the same", and another one says "read it again".

    Returns:
        None if there is no process with this pid.
    """
    try:
        folder = os.stat(f"{root}/proc/{pid}")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return folder.st_ino, folder.st_mtime_ns


def children(pid: int, root: Path = ROOT) -> list[int]:
    """Pids of the processes that a process has started and that are still below it."""
    found: list[int] = []
    try:
        threads = list((root / "proc" / str(pid) / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
    for thread in threads:
        try:
            found += [int(word) for word in (thread / "children").read_text().split()]
        except FileNotFoundError:
            if thread.exists():
                # A kernel without CONFIG_PROC_CHILDREN: look at every process of the host.
                return [below.pid for below in descendants(pid, root) if below.parent == pid]
        except ProcessLookupError:
            continue
    return sorted(found)


def descendants(pid: int, root: Path = ROOT) -> list[ProcessInfo]:
    """All living processes below `pid`, nearest first, without `pid` itself."""
    children: dict[int, list[ProcessInfo]] = {}
    for folder in (root / "proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            found = process(int(folder.name), root)
        except NoSuchProcess:
            continue
        children.setdefault(found.parent, []).append(found)
    below: list[ProcessInfo] = []
    queue = [pid]
    while queue:
        for child in sorted(children.get(queue.pop(0), []), key=lambda found: found.pid):
            below.append(child)
            queue.append(child.pid)
    return below


def is_alive(pid: int, start_time: int, root: Path = ROOT) -> bool:
    """Whether the very process with this start time still runs; a zombie does not."""
    try:
        found = process(pid, root)
    except NoSuchProcess:
        return False
    return found.start_time == start_time and found.state not in "ZX"


def environment(pid: int, root: Path = ROOT) -> dict[str, str]:
    """
    The environment that a process was started with; what it changed since is not in it.

    Raises:
        NoSuchProcess: there is none with this pid.
        NotPermitted: it belongs to somebody else.
    """
    try:
        block = (root / "proc" / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NoSuchProcess(f"no such process: {pid}") from error
    except PermissionError as error:
        raise NotPermitted(f"environment of process {pid} may not be read") from error
    pairs = (os.fsdecode(entry).partition("=") for entry in block.split(b"\0"))
    return {name: value for name, separator, value in pairs if separator}


def effective_uid(pid: int, root: Path = ROOT) -> int:
    """
    The user whose rights a process has now.

    Raises:
        NoSuchProcess: there is none with this pid.
    """
    try:
        lines = lines_of(root / "proc" / str(pid) / "status")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NoSuchProcess(f"no such process: {pid}") from error
    # Uid: real, effective, saved, file system.
    line = next(line for line in lines if line.startswith("Uid:"))
    return int(line.split()[2])


def tracers(pid: int, root: Path = ROOT) -> dict[int, int]:
    """Thread id -> tracer's pid, for every thread of a process that is being traced."""
    traced = {}
    try:
        threads = list((root / "proc" / str(pid) / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return {}
    for thread in threads:
        try:
            lines = lines_of(thread / "status")
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in lines:
            if line.startswith("TracerPid:") and int(line.split()[1]):
                traced[int(thread.name)] = int(line.split()[1])
    return traced


def faults_handled_elsewhere(pid: int, root: Path = ROOT) -> int:
    """
    How many mappings of a process are registered with a userfaultfd.

    The flags `um` (missing pages) and `uw` (writes) in `smaps` say so (proc_pid_smaps(5)).

    Raises:
        NoSuchProcess: there is none with this pid.
    """
    try:
        lines = lines_of(root / "proc" / str(pid) / "smaps")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NoSuchProcess(f"no such process: {pid}") from error
    flags = [line.split()[1:] for line in lines if line.startswith("VmFlags:")]
    return sum("um" in words or "uw" in words for words in flags)
