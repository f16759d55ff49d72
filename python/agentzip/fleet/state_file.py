"""
Small files in the state directory: written whole or not at all, read only if they are our own.
"""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["put_aside", "read", "write"]

_BYTES_MAX = 4 * 2**20
"""A larger file is not one of ours."""


def read(path: Path) -> str:
    """
    The text of a file.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read, or others could have written it: it says what a process that
            runs as root does.
    """
    # Not through a link, and not waiting for the other end of a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError("it is no regular file")
        if facts.st_uid not in {0, os.geteuid()} or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError("others may write it")
        return file.read(_BYTES_MAX)


def write(path: Path, text: str) -> None:
    """
    Replace a file, so that after a crash at any moment the old or the new one is there.

    Directories that are missing are made, for the own user alone.

    Raises:
        OSError: it could not be written; the old one is still there.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def put_aside(path: Path) -> Path:
    """Rename a damaged file, in place of the last such one; returns where it is then."""
    aside = path.with_name(f"{path.name}.damaged")
    with suppress(OSError):
        os.replace(path, aside)
        return aside
    return path
