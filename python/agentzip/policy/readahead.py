"""
Which parts of files to read before they are asked for.

Two predictors, both fed with the reads of one sandbox and neither with file names:

- *offset level*: a read that begins at the start of a file, or where an earlier one ended, is part
  of a run.  The window ahead of a run doubles with each step, from 16 to 256 pages, as readahead in
  kernels does; but it looks across processes and descriptors, and the window may be larger than
  the device's `read_ahead_kb`.
- *file level*: after two files were read in the order in which their directory lists them, the next
  ones of the directory are asked for from their start.

A table of files is bounded: the one not read for the longest time is forgotten first.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ask", "DirectoryOrder", "FileId", "Read", "Runs"]

WINDOW_PAGES = (16, 256)
"""First and largest window, as `policy.prefetch_window`."""

_FILES_MAX = 4096
"""Files remembered for one sandbox."""

_GAP_PAGES = 32
"""A run may leave out this much: readers of tables skip columns, the kernel rounds to folios."""


@dataclass(frozen=True, slots=True)
class FileId:
    """A file, whatever it is called."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Read:
    """One read of cached or uncached pages; page numbers within the file, `end` not included."""

    file: FileId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Pages of a file that should be in the cache."""

    file: FileId
    start: int
    end: int


@dataclass(slots=True)
class _Run:
    """How far a file has been read, and how far it has been asked for."""

    reached: int
    asked: int
    window: int


class Runs:
    """
    The offset level.

    Args:
        window: First and largest number of pages asked for at once.
        files_max: Files remembered.
    """

    def __init__(self, window: tuple[int, int] = WINDOW_PAGES, files_max: int = _FILES_MAX) -> None:
        self._window = window
        self._files_max = files_max
        self._runs: OrderedDict[FileId, _Run] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def see(self, read: Read) -> Ask | None:
        """Take in a read; what to ask for now, if anything."""
        run = self._runs.get(read.file)
        if run is None or not self._continues(run, read):
            return self._begin(read)
        self._runs.move_to_end(read.file)
        run.reached = max(run.reached, read.end)
        # Ask again when half of what was asked for has been read: never late, never often.
        if run.asked - run.reached > run.window // 2:
            return None
        run.window = min(run.window * 2, self._window[1])
        start = max(run.asked, run.reached)
        run.asked = start + run.window
        return Ask(read.file, start, run.asked)

    @staticmethod
    def _continues(run: _Run, read: Read) -> bool:
        # Reading a part again is no step of a run, but does not end it either.
        return read.start <= run.reached + _GAP_PAGES and read.end > run.reached - _GAP_PAGES

    def _begin(self, read: Read) -> Ask | None:
        run = _Run(read.end, read.end, self._window[0])
        self._runs[read.file] = run
        self._runs.move_to_end(read.file)
        while len(self._runs) > self._files_max:
            self._runs.popitem(last=False)
        if read.start != 0:
            # Somewhere in the middle: a second read has to show that it is a run.
            return None
        run.asked = read.end + run.window
        return Ask(read.file, read.end, run.asked)


class DirectoryOrder:
    """
    The file level: the files of one directory, in one of the orders that programs read them in.

    Args:
        files: Inodes in that order.
        ahead: How many files to ask for at once.
    """

    def __init__(self, files: Sequence[int], ahead: int = 4) -> None:
        self._place = {file: place for place, file in enumerate(files)}
        self._files = files
        self._ahead = ahead
        self._last = -2
        self._asked = 0

    def see(self, file: int) -> list[int]:
        """Take in that a file is read from its start; which files to ask for now."""
        place = self._place.get(file)
        if place is None:
            return []
        follows, self._last = place == self._last + 1, place
        if not follows:
            self._asked = place + 1
            return []
        begin = max(self._asked, place + 1)
        self._asked = max(self._asked, min(place + 1 + self._ahead, len(self._files)))
        return list(self._files[begin : self._asked])
