"""
What a process is doing: one line of `/proc` per look.

`/proc/PID/stat` carries identity, state, processor time and resident size together, so looking at
300 processes costs a few milliseconds and takes no lock that the process would wait for.
"""

import os
from dataclasses import dataclass

__all__ = ["TICKS_PER_SECOND", "Activity", "activity"]

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""Clock ticks of the kernel's processor times."""

_STATE, _USER, _SYSTEM, _START, _RSS = 0, 11, 12, 19, 21
"""Positions behind the name (fields 3, 14, 15, 22 and 24 of proc_pid_stat(5))."""


@dataclass(frozen=True, slots=True)
class Activity:
    """One process at one moment."""

    start_time: int
    """Clock ticks after boot; with the pid it names one process."""
    running: bool
    """Its main thread runs, or waits for a device."""
    cpu_ticks: int
    """Processor time of all threads, those that ended included."""
    rss_pages: int


def activity(pid: int) -> Activity | None:
    """Read one process; None if it has gone or is only waiting to be reaped."""
    # Plain system calls: this is done for every process of every sandbox, every second.
    try:
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        line = os.read(handle, 4096)
    except OSError:
        return None
    finally:
        os.close(handle)
    # The name may itself hold spaces and parentheses: it ends at the last one.
    fields = line[line.rindex(b")") + 1 :].split()
    state = fields[_STATE]
    if state in {b"Z", b"X"}:
        return None
    return Activity(
        int(fields[_START]),
        state in {b"R", b"D"},
        int(fields[_USER]) + int(fields[_SYSTEM]),
        int(fields[_RSS]),
    )
