"""
What a mode is: somebody who is told when a sandbox waits and when it goes on.

Everything is told from the sandbox's own thread and must return at once, because the model's
answer may come at any time: work that takes long is handed to `Worker`s.  `wake` alone may take
its time, and that time is part of the turn.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from agentzip.bench.fanout.crew import AT_ONCE, Crew, Member
from agentzip.bench.fanout.profile import Pages
from agentzip.bench.fanout.readings import Cpu, Footprint, Habits
from agentzip.children import Stoppable
from agentzip.host.memory import ROOT

__all__ = ["Mode", "NoneMode", "Worker", "cpu_seconds", "kernel_thread_seconds", "major_faults"]

_TICKS = os.sysconf("SC_CLK_TCK")

_MAJOR_FAULTS, _USER_TICKS, _SYSTEM_TICKS = 9, 11, 12
"""Positions in /proc/PID/stat behind the name (fields 12, 14 and 15 of proc_pid_stat(5))."""


class Mode(Stoppable):
    """
    One way to treat waiting sandboxes; this one does nothing.

    Leaving its context gives everything back and must never fail for what did not begin.
    """

    name = "none"
    mergeable = False
    """Whether sandboxes must ask for KSM at their start."""
    infers = False
    """Whether it sees by itself when a command waits; else the bench tells it (idleness.py)."""

    def environment(self) -> dict[str, str]:
        """Variables that commands get, beside those of the bench."""
        return {}

    def start(self, crew: Crew) -> None:
        """Begin, before any sandbox is there."""

    def add(self, member: Member) -> None:
        """A sandbox has loaded its data."""

    def idle(self, member: Member) -> None:
        """A sandbox begins to wait for the model."""

    def resume(self, _member: Member) -> bool:
        """
        The model's answer has begun to come; returns whether that is all that is to be said.

        Else `wake` follows when the answer is there.
        """
        return False

    def wake(self, member: Member) -> None:
        """The model's answer is there; the sandbox goes on when this returns."""

    def at_half(self) -> None:
        """Half of all turns have been taken."""

    def footprint(self) -> Footprint:
        """What it takes now beside the sandboxes' own memory."""
        return Footprint()

    def cpu(self) -> Cpu:
        """Processor time of it and of the kernel threads that work for it, so far."""
        return Cpu(kernel=kernel_thread_seconds("kswapd"))

    def faults(self) -> int:
        """Page faults that it answered so far."""
        return 0

    def habits(self, _member: Member) -> Habits | None:
        """What its prefetch has done for a sandbox so far; None without a prefetch."""
        return None

    def page_outs_s(self) -> float:
        """Seconds that page outs took so far, one after the other."""
        return 0.0

    def pages(self, _member: Member) -> Pages:
        """Pages of a sandbox as they are now."""
        return Pages()

    def notes(self) -> dict[str, object]:
        """What else there is to say."""
        return {}

    def stop(self) -> None:
        """Give everything back."""


class NoneMode(Mode):
    """No AgentZip, no peer: memory stays where it is; faults are those that need a disk."""

    def __init__(self) -> None:
        self._crew: Crew | None = None

    def start(self, crew: Crew) -> None:
        """Remember whose faults to count."""
        self._crew = crew

    def faults(self) -> int:
        """Major faults of all sandboxes."""
        return major_faults(self._crew)


class Worker:
    """
    One thing at a time for each sandbox, as many at once as there are processors.

    What has not begun when the next thing for the same sandbox comes is dropped: its time is over.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="mode")
        self._last: dict[int, Future[None]] = {}

    def give(self, member: Member, work: Callable[[Member], None]) -> None:
        """Have it done soon."""
        self.drop(member)
        self._last[member.instance] = self._pool.submit(work, member)

    def drop(self, member: Member) -> None:
        """Do not begin what has not begun."""
        if last := self._last.get(member.instance):
            last.cancel()

    def failure(self) -> BaseException | None:
        """What went wrong in some work that has ended."""
        for future in list(self._last.values()):
            if future.done() and not future.cancelled() and (error := future.exception()):
                return error
        return None

    def close(self) -> None:
        """Wait for what has begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def cpu_seconds(pid: int, root: Path = ROOT) -> float:
    """Processor seconds of a process with all its threads; 0 once it is gone."""
    fields = _stat(root / "proc" / str(pid))
    return (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / _TICKS if fields else 0.0


def kernel_thread_seconds(name: str, root: Path = ROOT) -> float:
    """Processor seconds of all kernel threads whose name begins so."""
    total = 0.0
    for folder in (root / "proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if (folder / "comm").read_text().startswith(name):
                    total += cpu_seconds(int(folder.name), root)
    return total


def major_faults(crew: Crew | None, root: Path = ROOT) -> int:
    """Faults of all sandboxes that waited for a disk or for swap."""
    total = 0
    for member in crew.members if crew is not None else ():
        for pid in member.pids():
            fields = _stat(root / "proc" / str(pid))
            total += int(fields[_MAJOR_FAULTS]) if fields else 0
    return total


def _stat(folder: Path) -> list[str]:
    """Fields behind the name; none if the process is gone."""
    with suppress(OSError):
        return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []
