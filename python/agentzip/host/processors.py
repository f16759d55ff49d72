"""
How busy the processors of this host are, and what a process has taken of them.

Pressure (`/proc/pressure/cpu`) says directly for how much of the time somebody waited for a
processor; where the kernel has none, the busy share of `/proc/stat` between two looks must do.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from agentzip.errors import NoSuchProcess
from agentzip.host.memory import ROOT

__all__ = [
    "ProcessorTimes",
    "busy_share",
    "end_background",
    "processor_times",
    "seconds_taken",
    "waiting_share",
]


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Ticks of all processors together since boot."""

    idle: int
    total: int


def processor_times(root: Path = ROOT) -> ProcessorTimes:
    """Read the first line of `/proc/stat`."""
    words = (root / "proc" / "stat").read_text().split("\n", 1)[0].split()
    # user nice system idle iowait irq softirq steal; proc_stat(5)
    ticks = [int(word) for word in words[1:9]]
    return ProcessorTimes(ticks[3] + ticks[4], sum(ticks))


def busy_share(before: ProcessorTimes, after: ProcessorTimes) -> float | None:
    """0 (idle) to 1 between two looks; None if no tick lies between them."""
    total = after.total - before.total
    return 1 - (after.idle - before.idle) / total if total > 0 else None


def waiting_share(root: Path = ROOT) -> float | None:
    """For how much of the last minute somebody waited for a processor; None without pressure."""
    try:
        text = (root / "proc" / "pressure" / "cpu").read_text()
    except OSError:
        return None  # the kernel was built or started without it
    for line in text.splitlines():
        kind, *values = line.split()
        fields = dict(value.split("=", 1) for value in values)
        if kind == "some" and "avg60" in fields:
            return float(fields["avg60"]) / 100
    return None


def end_background(thread: int) -> None:
    """Give a thread of this process that works at the lowest priority an ordinary one again."""
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, thread, 0)


def seconds_taken(pid: int, root: Path = ROOT) -> float:
    """
    Processor time that a process has taken with all its threads, in seconds.

    Raises:
        NoSuchProcess: there is none with this pid.
    """
    try:
        stat = (root / "proc" / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NoSuchProcess(f"no such process: {pid}") from error
    # Fields 14 and 15 of proc_pid_stat(5), counted behind the name, which may hold anything.
    user, system = stat[stat.rindex(")") + 1 :].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
