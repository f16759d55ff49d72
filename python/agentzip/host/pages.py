"""
The content of another process's pages, seen from outside and without the engine.

This is the independent witness of the demo: it hashes what a process holds before a page out and
after the pages came home, through `/proc/PID/mem`, sharing no code with the pager.
Only pages that `/proc/PID/pagemap` calls present are read: a page that is out cannot be read this
way (the kernel answers EIO), and a page that was never populated has no content to compare.
The process must be idle while a snapshot is taken, or it is a picture of two moments.
"""

import hashlib
import os
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentzip.errors import NoSuchProcess
from agentzip.host.memory import ROOT

__all__ = ["PAGE_BYTES", "Comparison", "Snapshot", "compare", "present_pages", "snapshot"]

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
"""Page size of this host."""

_PRESENT = 1 << 63
"""Bit 63 of a pagemap entry (Documentation/admin-guide/mm/pagemap.rst)."""

_READ_BYTES = 4 * 2**20
"""Bytes read at a time: bounds our own memory, which is charged to the overhead."""

_ENTRIES_MAX = 65536
"""Pagemap entries read at a time, for the same reason."""

_DIGEST_BYTES = 16
"""128 bits a page: no chance collision among all pages of a host."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Digests of pages, 24 bytes a page: a large process must not cost us a large dictionary."""

    pages: "array[int]"
    """Page numbers (address / page size), ascending."""
    digests: bytes
    """One digest after the other, in the order of `pages`."""

    def digest(self, page: int) -> bytes | None:
        """Digest of one page; None if it was not resident."""
        index = bisect_left(self.pages, page)
        if index == len(self.pages) or self.pages[index] != page:
            return None
        return self.digests[index * _DIGEST_BYTES : (index + 1) * _DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of the pages that had left."""

    equal: int
    different: int
    """Pages with another content than before, or without any."""


def present_pages(pid: int, ranges: Sequence[tuple[int, int]], root: Path = ROOT) -> "array[int]":
    """
    Page numbers that are resident within the given byte ranges, ascending.

    Args:
        pid: The process.
        ranges: (start, end) in bytes, ascending and apart.
        root: Where `/proc` is looked for.

    Raises:
        NoSuchProcess: the process is gone.
    """
    present = array("Q")
    try:
        with (root / "proc" / str(pid) / "pagemap").open("rb", buffering=0) as pagemap:
            for start, end in ranges:
                for first in range(start // PAGE_BYTES, end // PAGE_BYTES, _ENTRIES_MAX):
                    count = min(_ENTRIES_MAX, end // PAGE_BYTES - first)
                    entries = os.pread(pagemap.fileno(), 8 * count, 8 * first)
                    for index, (entry,) in enumerate(struct.iter_unpack("=Q", entries)):
                        if entry & _PRESENT:
                            present.append(first + index)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NoSuchProcess(f"no such process: {pid}") from error
    return present


def snapshot(pid: int, ranges: Sequence[tuple[int, int]], root: Path = ROOT) -> Snapshot:
    """
    Hash every resident page within the given byte ranges.

    Raises:
        NoSuchProcess: the process is gone.
        OSError: a page left while it was to be read.
    """
    pages = present_pages(pid, ranges, root)
    digests = bytearray()
    try:
        with (root / "proc" / str(pid) / "mem").open("rb", buffering=0) as memory:
            for first, count in _runs(pages, _READ_BYTES // PAGE_BYTES):
                content = os.pread(memory.fileno(), count * PAGE_BYTES, first * PAGE_BYTES)
                if len(content) != count * PAGE_BYTES:
                    raise OSError(f"pages of process {pid} cannot be read at page {first:#x}")
                for offset in range(0, len(content), PAGE_BYTES):
                    page = content[offset : offset + PAGE_BYTES]
                    digests += hashlib.blake2b(page, digest_size=_DIGEST_BYTES).digest()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NoSuchProcess(f"no such process: {pid}") from error
    return Snapshot(pages, bytes(digests))


def compare(before: Snapshot, stayed: Sequence[int], after: Snapshot) -> Comparison:
    """
    Compare the pages that had left with what came home.

    Pages that never left are not judged: the kernel itself writes to some of them (the rseq area
    of a thread, for one) while the process sleeps.

    Args:
        before: Taken before the page out.
        stayed: Page numbers that were still resident after the page out.
        after: Taken after the page in.
    """
    resident = set(stayed)
    equal = different = 0
    for page in before.pages:
        if page in resident:
            continue
        if after.digest(page) == before.digest(page):
            equal += 1
        else:
            different += 1
    return Comparison(equal, different)


def _runs(pages: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """(first page, count) of pages in a row, none longer than `limit`."""
    first, count = 0, 0
    for page in pages:
        if count and page == first + count and count < limit:
            count += 1
            continue
        if count:
            yield first, count
        first, count = page, 1
    if count:
        yield first, count
