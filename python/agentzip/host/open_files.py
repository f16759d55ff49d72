"""
Files that a process has open: where it reads, and a descriptor of our own for them.

What is opened is the file behind a descriptor, not a name: it may have been renamed or deleted, and
it is the same inside a container.  Only regular files are opened; a pipe or a device could hold us.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["OpenFile", "open_file_with", "open_files", "position", "reopen"]


@dataclass(frozen=True, slots=True)
class OpenFile:
    """One descriptor of a process that is a regular file."""

    descriptor: int
    device: int
    inode: int
    size: int


def open_files(pid: int) -> Iterator[OpenFile]:
    """Regular files that a process or thread has open, lowest descriptor first."""
    folder = f"/proc/{pid}/fd"
    try:
        names = sorted(os.listdir(folder), key=int)
    except OSError:
        return
    for name in names:
        # It may be closed while we look.
        with contextlib.suppress(OSError):
            found = os.stat(f"{folder}/{name}")
            if stat.S_ISREG(found.st_mode):
                yield OpenFile(int(name), found.st_dev, found.st_ino, found.st_size)


def open_file_with(pid: int, inode: int) -> OpenFile | None:
    """
    The open file with this inode.

    The device is not compared: on an overlay the kernel's events name the file below, with the same
    inode.  A wrong match is another file of the same process, and costs a useless read.
    """
    return next((found for found in open_files(pid) if found.inode == inode), None)


def position(pid: int, descriptor: int) -> int | None:
    """Where the next read begins, in bytes; None if it is closed (proc_pid_fdinfo(5))."""
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/proc/{pid}/fdinfo/{descriptor}", "rb") as file,
    ):
        return int(file.readline().split()[1])
    return None


def reopen(pid: int, descriptor: int) -> int | None:
    """A descriptor of our own for reading the same file; None if it cannot be had."""
    with contextlib.suppress(OSError):
        handle = os.open(
            f"/proc/{pid}/fd/{descriptor}",
            os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOATIME,
        )
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
    return None
