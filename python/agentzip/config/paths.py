"""
Whether the paths in a configuration can be used on this host.

Apart from the checks of the values, which hold on any host.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress

from agentzip.config.keys import Config

__all__ = ["STATE_DIR_VARIABLE", "state_dir", "unusable"]

STATE_DIR_VARIABLE = "AGENTZIP_STATE_DIR"
"""Environment variable that wins over `state_dir`."""

Complaint = tuple[str, str, str, str]
"""Key, path, problem and fix."""


def state_dir(config: Config) -> str:
    """Where the daemon keeps what must outlive it."""
    return os.environ.get(STATE_DIR_VARIABLE) or config.state_dir


def unusable(config: Config) -> Iterator[Complaint]:
    """
    What is wrong with the paths, each that cannot be used.

    The daemon makes its state directory and that of the socket, with what is missing above them;
    it does not make one for the swap file, since a misspelt path would fill the wrong disk.
    """
    yield from _directory("state_dir", config.state_dir)
    swap, socket = config.pool.swap_out_path, config.hints.sandbox_socket
    if swap is not None:
        key, folder = "pool.swap_out_path", os.path.dirname(swap)
        if folder != config.state_dir and not os.path.isdir(folder):
            yield key, swap, "is in a directory that is not there", f"mkdir -p {folder}"
        else:
            yield from _file(key, swap, stat.S_ISREG, "regular file")
    if socket is not None:
        yield from _file("hints.sandbox_socket", socket, stat.S_ISSOCK, "socket")


def _directory(key: str, path: str) -> Iterator[Complaint]:
    there = path
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        yield key, path, f"cannot be, as {there} is no directory", "name another place"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield key, path, f"cannot be used, as {there} may not be written", "name another place"


def _file(key: str, path: str, is_kind: Callable[[int], bool], kind: str) -> Iterator[Complaint]:
    found = False
    for _, _, problem, fix in _directory(key, os.path.dirname(path)):
        found = True
        yield key, path, problem, fix
    if not found:
        with suppress(OSError):
            if not is_kind(os.lstat(path).st_mode):
                yield key, path, f"is there already, and no {kind}", "name another file"
