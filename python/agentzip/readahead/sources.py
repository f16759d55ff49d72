"""
Where the reads of sandboxes are seen.

`TraceSource` sees every read, with its offset, the moment it happens.  `PositionSource` needs
nothing of the kernel: it looks at the positions of open descriptors twenty times a second, and so
sees sequential readers of longer files only, and no `pread`.

The kernel's third way, fanotify's pre-access events, is left out on purpose: it holds the reader
until we answer (11 us a read here, and without end if the daemon is stopped in a debugger), and a
sandbox must never wait for us but for its own memory.
"""

import contextlib
import os
import select
import time
from collections.abc import Iterable
from typing import Protocol

from agentzip.errors import Unsupported
from agentzip.host import open_files
from agentzip.host.tracing import FileRead, FileTracing

__all__ = ["PositionSource", "Source", "TraceSource", "best_source"]

_LOOK_S = 0.05
_PAGE_BYTES = 4096


class Source(Protocol):
    """Something that tells of reads."""

    name: str

    def watch(self, pids: Iterable[int]) -> None:
        """Tell of the reads of these processes; those of former ones need not be told of."""

    def take(self, timeout_s: float) -> list[FileRead]:
        """The next reads, in order; empty if there were none in time."""

    def close(self) -> None:
        """Leave nothing behind."""


class TraceSource:
    """Reads by the kernel's tracepoints; raises Unsupported where there are none."""

    name = "tracepoints"

    def __init__(self) -> None:
        self._tracing = FileTracing()
        self._told: set[int] = set()

    def watch(self, pids: Iterable[int]) -> None:
        """
        Follow processes; those that they start are followed by the kernel.

        One that is no longer named is followed on until it ends: it costs nothing while it does not
        read, and most come back soon.
        """
        self._told = {pid for pid in self._told if os.path.exists(f"/proc/{pid}")}
        threads: list[int] = []
        for pid in set(pids) - self._told:
            with contextlib.suppress(OSError):
                threads += map(int, os.listdir(f"/proc/{pid}/task"))
                self._told.add(pid)
        self._tracing.watch(threads)

    def take(self, timeout_s: float) -> list[FileRead]:
        """See `Source`."""
        if select.select([self._tracing], [], [], timeout_s)[0]:
            return self._tracing.take()
        return []

    def close(self) -> None:
        """Stop tracing."""
        self._tracing.close()


class PositionSource:
    """Reads by the positions of open descriptors."""

    name = "positions"

    def __init__(self) -> None:
        self._pids: list[int] = []
        self._positions: dict[tuple[int, int, int], int] = {}

    def watch(self, pids: Iterable[int]) -> None:
        """Look at these processes."""
        self._pids = sorted(set(pids))

    def take(self, timeout_s: float) -> list[FileRead]:
        """See `Source`."""
        time.sleep(min(timeout_s, _LOOK_S))
        seen: dict[tuple[int, int, int], int] = {}
        reads = []
        for pid in self._pids:
            for file in open_files.open_files(pid):
                place = open_files.position(pid, file.descriptor)
                if place is None:
                    continue
                key = (pid, file.descriptor, file.inode)
                seen[key] = place
                before = self._positions.get(key, 0)
                if place > before:
                    start, end = before // _PAGE_BYTES, -(-place // _PAGE_BYTES)
                    reads.append(FileRead(pid, file.device, file.inode, start, end))
        self._positions = seen
        return reads

    def close(self) -> None:
        """Nothing to give back."""


def best_source() -> Source:
    """The best one that this host has."""
    try:
        return TraceSource()
    except Unsupported:
        return PositionSource()
