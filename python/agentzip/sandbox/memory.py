"""
Give back memory that a Python program holds but does not need.

Objects in reference cycles, free blocks that malloc keeps for later, and the same of Arrow's own
pool: all of it would be encoded and stored as if it mattered.  Giving it back first is cheaper.
"""

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["TrimReport", "resident_bytes", "trim"]


@dataclass(frozen=True, slots=True)
class TrimReport:
    """
    What a trim gave back, in bytes of resident memory.

    Each figure is how far the process's resident memory fell during that step; other threads go on
    meanwhile, so a figure can be off by what they did, and is never below zero.
    """

    collected_bytes: int
    """By collecting reference cycles."""
    arrow_bytes: int
    """By Arrow's default pool; 0 unless the program has imported pyarrow."""
    malloc_bytes: int
    """By malloc_trim(3); 0 where the C library has none (musl)."""
    resident_bytes: int
    """What is resident afterwards."""


def trim() -> TrimReport:
    """
    Collect cycles, then let Arrow and malloc give their free memory back to the kernel.

    It holds the interpreter for as long as a full collection takes, and runs finalizers in the
    calling thread: call it when nothing else is to be done.
    """
    collected = _fall_during(gc.collect)
    arrow = _fall_during(_release_arrow)
    # Last, because what the others freed may lie in malloc's arenas.
    malloc = _fall_during(_trim_malloc)
    return TrimReport(collected, arrow, malloc, resident_bytes())


def _fall_during(step: Callable[[], object]) -> int:
    before = resident_bytes()
    step()
    return max(0, before - resident_bytes())


def _release_arrow() -> None:
    # Looked up, not imported: importing it would cost more than it could give back.
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        # A module that is half imported, or another one of that name, has no pool.
        with contextlib.suppress(AttributeError):
            arrow.default_memory_pool().release_unused()


def _trim_malloc() -> None:
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process, this one by default; 0 if it cannot be read."""
    try:
        with open(f"/proc/{'self' if pid is None else pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
