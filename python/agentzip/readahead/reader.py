"""
Reads of sandboxes in, pages of files into the cache.

A thread of its own takes reads from a source, asks the predictors, and tells the kernel what to
read.  It takes at most a twentieth of a processor, and what it did not take for some seconds: a
sandbox that reads faster than that is not followed in full, and loses foresight only.
"""

import contextlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable

from agentzip.host import open_files
from agentzip.host.tracing import FileRead
from agentzip.policy.readahead import Ask, DirectoryOrder, FileId, Read, Runs
from agentzip.readahead.sources import Source

__all__ = ["Allowance", "ReadAhead"]

_log = logging.getLogger(__name__)

_PAGE_BYTES = 4096
_CPU_SHARE_MAX = 0.05
_CPU_SAVED_S_MAX = 0.5
"""Processor time that may be saved up, in ten seconds: sandboxes read most when they wake."""
_TAKE_S = 0.25
_FILES_IN_DIRECTORY_MAX = 4096
"""A larger directory is not listed: that would take longer than it saves."""
_DIRECTORIES_MAX = 64
_SMALL_BYTES = 1 << 20
"""The next files of a directory are read in whole up to this size."""


class Allowance:
    """
    Processor time that the thread may take.

    Args:
        now: Seconds; from here on time is counted.
    """

    def __init__(self, now: float) -> None:
        self._saved_s = _CPU_SAVED_S_MAX
        self._at = now

    def pause_after(self, spent_s: float, now: float) -> float:
        """Seconds to rest after so much processor time was taken; none while some is saved."""
        earned_s = (now - self._at) * _CPU_SHARE_MAX
        self._saved_s = min(self._saved_s + earned_s, _CPU_SAVED_S_MAX) - spent_s
        self._at = now
        return max(0.0, -self._saved_s / _CPU_SHARE_MAX)


class _Directory:
    """The files of a directory, in the two orders that programs read them in."""

    def __init__(self, folder: int) -> None:
        self.names: dict[int, str] = {}
        self.complete = True
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(self.names) >= _FILES_IN_DIRECTORY_MAX:
                    self.names, self.complete = {}, False
                    break
                self.names[entry.inode()] = entry.name
        by_name = sorted(self.names, key=self.names.__getitem__)
        self._orders = DirectoryOrder(list(self.names)), DirectoryOrder(by_name)

    def followers(self, inode: int) -> list[int]:
        """Which files to ask for after this one is read from its start."""
        return [follower for order in self._orders for follower in order.see(inode)]


class ReadAhead:
    """
    Foresight for the files of sandboxes.

    Args:
        source: Where reads are seen; closed with this.
        offsets: Whether to follow runs within files.
        directories: Whether to follow the order of directories.
        window: First and largest number of pages asked for at once.
        told: Called with each ask when the kernel has taken it, for measuring.
    """

    def __init__(
        self,
        source: Source,
        *,
        offsets: bool = True,
        directories: bool = True,
        window: tuple[int, int] = (16, 256),
        told: Callable[[Ask], None] = lambda _ask: None,
    ) -> None:
        self._source = source
        self._runs = Runs(window) if offsets else None
        self._directories: dict[int, _Directory] | None = {} if directories else None
        self._told = told
        self._pids: Iterable[int] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="readahead", daemon=True)
        self.pages_asked = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def watch(self, pids: Iterable[int]) -> None:
        """Follow these processes, and what they start; takes effect within a second."""
        self._pids = tuple(pids)

    def close(self) -> None:
        """End, and close the source."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._source.close()

    def _run(self) -> None:
        watched: Iterable[int] = ()
        allowance = Allowance(time.monotonic())
        while not self._stop.is_set():
            began = time.thread_time()
            try:
                if (wanted := self._pids) is not watched:
                    self._source.watch(wanted)
                    watched = wanted
                for read in self._source.take(_TAKE_S):
                    self._see(read)
            except OSError as error:
                _log.warning("reads of sandboxes cannot be followed: %s", error)
                self._stop.wait(1)
            spent = time.thread_time() - began
            self._stop.wait(allowance.pause_after(spent, time.monotonic()))

    def _see(self, read: FileRead) -> None:
        file = FileId(read.device, read.inode)
        if self._runs is not None:
            ask = self._runs.see(Read(file, read.start, read.end))
            if ask is not None:
                self._fetch(read.thread, ask)
        if self._directories is not None and read.start == 0:
            self._follow_directory(read.thread, file)

    def _fetch(self, thread: int, ask: Ask) -> None:
        """Have the kernel read pages of a file that the thread has open."""
        found = open_files.open_file_with(thread, ask.file.inode)
        if found is None or ask.start * _PAGE_BYTES >= found.size:
            return
        handle = open_files.reopen(thread, found.descriptor)
        if handle is not None:
            self._read_in(handle, ask, found.size)

    def _read_in(self, handle: int, ask: Ask, size: int) -> None:
        try:
            start = ask.start * _PAGE_BYTES
            length = min(ask.end * _PAGE_BYTES, size) - start
            # The kernel takes at most the device's read_ahead_kb from one call.
            step = 128 << 10
            for begin in range(start, start + length, step):
                os.posix_fadvise(
                    handle, begin, min(step, start + length - begin), os.POSIX_FADV_WILLNEED
                )
        except OSError:
            return  # a file system without a page cache
        finally:
            os.close(handle)
        pages = -(-length // _PAGE_BYTES)
        self.pages_asked += pages
        self._told(Ask(ask.file, ask.start, ask.start + pages))

    def _follow_directory(self, thread: int, file: FileId) -> None:
        found = open_files.open_file_with(thread, file.inode)
        if found is None or self._directories is None:
            return
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/{thread}/fd/{found.descriptor}")
            folder = os.open(
                f"/proc/{thread}/root{os.path.dirname(path)}",
                os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC,
            )
            try:
                directory = self._directory(folder, file.inode)
                for inode in directory.followers(file.inode):
                    self._fetch_named(folder, directory.names[inode], file.device)
            finally:
                os.close(folder)

    def _directory(self, folder: int, inode: int) -> "_Directory":
        """What a directory holds; listed again when a file is read that was not there."""
        assert self._directories is not None
        key = os.fstat(folder).st_ino
        known = self._directories.pop(key, None)
        if known is None or (inode not in known.names and known.complete):
            known = _Directory(folder)
        self._directories[key] = known
        while len(self._directories) > _DIRECTORIES_MAX:
            del self._directories[next(iter(self._directories))]
        return known

    def _fetch_named(self, folder: int, name: str, device: int) -> None:
        """Have the kernel read a small file in whole."""
        handle = os.open(
            name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder
        )
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= _SMALL_BYTES:
            os.close(handle)
            return
        pages = -(-found.st_size // _PAGE_BYTES)
        self._read_in(handle, Ask(FileId(device, found.st_ino), 0, pages), found.st_size)
