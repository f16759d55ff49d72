"""
Reads of files as the kernel sees them: an own instance of its tracing, for chosen threads.

`filemap:mm_filemap_get_pages` tells device, inode and pages of every read through the page cache,
hit or miss, and `mm_filemap_fault` those of mapped files; neither depends on names, mounts or
overlays, and the reader is not held up (0.3 to 0.6 us a read).  Other users of tracing are not
disturbed: an instance has rings, filters and events of its own.

tracefs is mounted for us alone and without a place in the tree, so nothing can be left mounted.  An
instance outlives its maker; the ones of makers that have gone are removed by the next.
"""

import contextlib
import ctypes
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from agentzip.errors import Unsupported

__all__ = ["FileRead", "FileTracing", "reads_in"]

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
"""System calls of the mount interface (fsopen(2)); the same numbers on every 64-bit machine."""
_CLOEXEC, _CREATE = 1, 6

_INSTANCE = "agentzip-reads-"
_EVENTS = ("filemap/mm_filemap_get_pages", "filemap/mm_filemap_fault")
_RING_KB = 64
"""Per processor; when we are slow the oldest reads are overwritten, which only costs foresight."""

_LINE = re.compile(
    rb"-(\d+) +\[.*?mm_filemap_(?:get_pages|fault): "
    rb"dev=(\d+):(\d+) ino=([0-9a-f]+) ofs=(\d+)(?:-(\d+))?"
)
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FileRead:
    """One read, in pages of the file; `end` is not included."""

    thread: int
    device: int
    inode: int
    start: int
    end: int


class FileTracing:
    """
    Reads of chosen threads and of what they start.

    Raises:
        Unsupported: this kernel or our rights do not allow tracing.
    """

    def __init__(self) -> None:
        self._root = _mount_tracefs()
        self._name = f"instances/{_INSTANCE}{os.getpid()}"
        try:
            self._remove_left_over()
            os.mkdir(self._name, dir_fd=self._root)
            self._write("buffer_size_kb", str(_RING_KB))
            self._write("options/event-fork", "1")
            # No thread yet: without this line the events of all would come.
            self._write("set_event_pid", str(os.getpid()))
            for event in _EVENTS:
                self._write(f"events/{event}/enable", "1")
            self._pipe = os.open(
                f"{self._name}/trace_pipe", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._root
            )
        except OSError as error:
            self._remove(self._name)
            os.close(self._root)
            raise Unsupported(f"reads cannot be traced: {error}") from error
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def fileno(self) -> int:
        """For `select`: readable when there are reads."""
        return self._pipe

    def watch(self, threads: Iterable[int]) -> None:
        """Take in the reads of these threads from now on, and of what they start."""
        # One write for all, as each waits for every processor (40 ms here).  The kernel does not
        # mind threads that have ended, and takes out those that do.
        line = " ".join(map(str, threads))
        if line:
            self._write("set_event_pid", line, append=True)

    def take(self, bytes_max: int = 1 << 16) -> list[FileRead]:
        """The next reads; waits for the first one."""
        data = self._rest + os.read(self._pipe, bytes_max)
        whole, _, self._rest = data.rpartition(b"\n")
        return reads_in(whole)

    def close(self) -> None:
        """Stop tracing and remove every trace of it."""
        os.close(self._pipe)
        self._remove(self._name)
        os.close(self._root)

    def _write(self, file: str, text: str, *, append: bool = False) -> None:
        flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
        handle = os.open(f"{self._name}/{file}", flags, dir_fd=self._root)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)

    def _remove_left_over(self) -> None:
        """Instances of makers that were killed hold ring buffers for good."""
        folder = os.open(
            "instances", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root
        )
        try:
            names = os.listdir(folder)
        finally:
            os.close(folder)
        for name in names:
            maker = name.removeprefix(_INSTANCE)
            if maker != name and not os.path.exists(f"/proc/{maker}"):
                self._remove(f"instances/{name}")

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=self._root)


def reads_in(lines: bytes) -> list[FileRead]:
    """The reads that whole lines of a trace tell of; other lines are passed over."""
    return [_read_of(match) for match in _LINE.finditer(lines)]


def _read_of(match: re.Match[bytes]) -> FileRead:
    thread, major, minor, inode, first, last = match.groups()
    start = int(first) // _PAGE_BYTES
    end = start + 1 if last is None else (int(last) + 1) // _PAGE_BYTES
    return FileRead(int(thread), os.makedev(int(major), int(minor)), int(inode, 16), start, end)


def _mount_tracefs() -> int:
    """A descriptor of tracefs's root."""
    libc = ctypes.CDLL(None, use_errno=True)
    context = _call(libc, _FSOPEN, b"tracefs", _CLOEXEC)
    try:
        _call(libc, _FSCONFIG, context, _CREATE, None, None, 0)
        return _call(libc, _FSMOUNT, context, _CLOEXEC, 0)
    finally:
        os.close(context)


def _call(libc: ctypes.CDLL, number: int, *arguments: bytes | int | None) -> int:
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise Unsupported(f"tracefs cannot be mounted: {os.strerror(ctypes.get_errno())}")
    return int(result)
