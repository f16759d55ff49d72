"""
What must hold for every target after every check.

The target lives, no thread of it is stopped, traced or asleep in a fault, and its mappings,
descriptors and threads are those that it had before.  Everything is read from /proc, from outside:
the target itself is not asked.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentzip.host.kernel_text import lines_of
from agentzip.selftest.registry import CheckFailed

__all__ = [
    "Mapping",
    "Snapshot",
    "assert_free",
    "assert_no_trace",
    "assert_same",
    "describe_threads",
    "minor_faults",
    "resident_anonymous_bytes",
    "snapshot",
    "wait_until",
    "waits_for_page",
]

_IN_FAULT = "handle_userfault"
"""What a thread sleeps in that waits for a page."""

_FLAGS_THAT_MATTER = {"um", "uw", "ui", "dc", "dd", "wf", "lo", "hg", "nh", "mg"}
"""
VmFlags that attaching could leave behind or change: userfaultfd, DONTFORK, DONTDUMP, WIPEONFORK,
locked, huge pages, mergeable.
"""

_GOT_FREE_SECONDS = 2.0
"""A thread may be seen in the middle of a fault; this long after the last page it is stuck."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One mapping; neighbours that differ in nothing are one, as the kernel may split and merge."""

    start: int
    end: int
    protection: str
    offset: int
    file: str
    """Device and inode, so that a renamed file is still the same."""
    name: str
    flags: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What can be seen of a process from outside."""

    mappings: tuple[Mapping, ...]
    descriptors: tuple[tuple[int, str], ...]
    threads: int


def snapshot(pid: int) -> Snapshot:
    """Read the present state of a process."""
    folder = Path("/proc") / str(pid)
    descriptors = []
    for entry in (folder / "fd").iterdir():
        with suppress(FileNotFoundError):
            descriptors.append((int(entry.name), str(entry.readlink())))
    return Snapshot(
        tuple(_merged(_mappings(folder))),
        tuple(sorted(descriptors)),
        sum(1 for _ in (folder / "task").iterdir()),
    )


def _mappings(folder: Path) -> list[Mapping]:
    found = []
    head: list[str] = []
    for line in lines_of(folder / "smaps"):
        first = line.split(maxsplit=1)[0]
        if first == "VmFlags:":
            flags = " ".join(sorted(_FLAGS_THAT_MATTER & set(line.split()[1:])))
            start, end = (int(part, 16) for part in head[0].split("-"))
            name = head[5] if len(head) > 5 else ""
            # A stack grows by itself whenever the program calls deeper.
            start = 0 if name == "[stack]" else start
            file = f"{head[3]}:{head[4]}"
            found.append(Mapping(start, end, head[1], int(head[2], 16), file, name, flags))
        elif not first.endswith(":"):
            head = line.split(maxsplit=5)
    return found


def _merged(mappings: list[Mapping]) -> list[Mapping]:
    merged: list[Mapping] = []
    for new in mappings:
        last = merged[-1] if merged else None
        if last and _continues(last, new):
            merged[-1] = Mapping(
                last.start, new.end, last.protection, last.offset, last.file, last.name, last.flags
            )
        else:
            merged.append(new)
    return merged


def _continues(last: Mapping, new: Mapping) -> bool:
    same = (last.protection, last.file, last.name, last.flags) == (
        *(new.protection, new.file, new.name, new.flags),
    )
    anonymous = last.file.endswith(":0")
    follows = anonymous or last.offset + (last.end - last.start) == new.offset
    return same and last.end == new.start and follows


def assert_same(before: Snapshot, after: Snapshot) -> None:
    """
    Compare two snapshots of a process that changed nothing itself in between.

    Raises:
        CheckFailed: with every difference.
    """
    differences = []
    if before.threads != after.threads:
        differences.append(f"threads: {before.threads} -> {after.threads}")
    differences += _difference("descriptor", before.descriptors, after.descriptors)
    differences += _difference("mapping", _lines(before), _lines(after))
    if differences:
        raise CheckFailed("not left as found: " + "; ".join(differences[:12]))


def assert_no_trace(before: Snapshot, after: Snapshot) -> None:
    """
    Compare two snapshots of a process that went on working: only what we could have left counts.

    Raises:
        CheckFailed: naming mappings that are still registered and descriptors that are new.
    """
    registered = [line for line in _lines(after) if {"um", "uw"} & set(line.split())]
    left = [f"still registered: {line}" for line in registered if line not in _lines(before)]
    known = {link for _, link in before.descriptors}
    left += [
        f"descriptor new: {number} {link}"
        for number, link in after.descriptors
        if "userfaultfd" in link and link not in known
    ]
    if left:
        raise CheckFailed("not left as found: " + "; ".join(left[:12]))


def _lines(state: Snapshot) -> tuple[str, ...]:
    return tuple(
        f"{m.start:x}-{m.end:x} {m.protection} {m.offset:x} {m.file} {m.name} {m.flags}"
        for m in state.mappings
    )


def _difference(what: str, before: tuple[object, ...], after: tuple[object, ...]) -> list[str]:
    gone = [f"{what} gone: {entry}" for entry in before if entry not in after]
    new = [f"{what} new: {entry}" for entry in after if entry not in before]
    return gone + new


def _threads(pid: int) -> list[tuple[int, str, int, str]]:
    """Thread id, state, tracer and what it waits in, of every thread."""
    found = []
    for folder in (Path("/proc") / str(pid) / "task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            status = dict(
                line.split(":\t", 1) for line in lines_of(folder / "status") if ":\t" in line
            )
            waits_in = (folder / "wchan").read_text()
            state = status["State"].strip()[:1]
            found.append((int(folder.name), state, int(status["TracerPid"]), waits_in))
    return found


def minor_faults(pid: int) -> int:
    """Page faults of a process so far that needed no disk (proc_pid_stat(5), `minflt`)."""
    stat = (Path("/proc") / str(pid) / "stat").read_text()
    return int(stat.rsplit(")", 1)[1].split()[7])


def waits_for_page(pid: int) -> bool:
    """Whether some thread is asleep in a page fault right now."""
    return any(waits_in == _IN_FAULT for _, _, _, waits_in in _threads(pid))


def describe_threads(pid: int) -> str:
    """State and wait of each thread, for messages."""
    try:
        found = _threads(pid)
    except (FileNotFoundError, ProcessLookupError):
        return "process is gone"
    return ", ".join(
        f"{thread}:{state}:{waits_in}{f':traced by {tracer}' if tracer else ''}"
        for thread, state, tracer, waits_in in found[:24]
    )


def assert_free(pid: int) -> None:
    """
    No thread is stopped, traced, or asleep in a page fault for good.

    Raises:
        CheckFailed: one is, even after a while.
    """
    stuck: set[int] | None = None

    def free() -> bool:
        nonlocal stuck
        now = {
            thread
            for thread, state, tracer, waits_in in _threads(pid)
            if state in "tT" or tracer or waits_in == _IN_FAULT
        }
        # One that is seen in a fault now and then is at work; stuck is who never leaves it.
        stuck = now if stuck is None else stuck & now
        return not stuck

    if not wait_until(free, _GOT_FREE_SECONDS):
        raise CheckFailed(f"threads {stuck} are stopped, traced or stuck: {describe_threads(pid)}")


def resident_anonymous_bytes(pid: int) -> int:
    """Anonymous memory that is at home now."""
    for line in lines_of(Path("/proc") / str(pid) / "status"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise CheckFailed(f"process {pid} has no memory")


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition; returns whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
