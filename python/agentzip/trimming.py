"""
Ask a sandbox to give back what it does not need, before its pages are taken.

The sandbox is not trusted.  It says in its environment where its socket is, so the path is walked
inside its own root without following links (a link could lead to a socket of the host), the
socket must belong to the user that the process runs as, and so must whoever listens on it; the
answer is bounded in time and size.  A sandbox that named no socket is left alone.
"""

import contextlib
import json
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentzip.errors import NoSuchProcess, TrimRefused
from agentzip.host import processes
from agentzip.host.memory import ROOT
from agentzip.sandbox import SOCKET_VARIABLE

__all__ = ["TRIM_SECONDS", "TrimAnswer", "offered_socket", "request_trim"]

TRIM_SECONDS = 5.0
"""How long a trim may take: a full collection of a heap of some GiB; then it is not waited for."""

_REQUEST = b"trim\n"

_ANSWER_BYTES_MAX = 16 * 1024
"""Longest answer that is read; real ones are some hundred bytes."""

_FIGURES_MAX = 64
"""How many figures an answer may hold; more is no answer."""


@dataclass(frozen=True, slots=True)
class TrimAnswer:
    """What a sandbox says that it gave back; its own word, so for reports only."""

    pid: int
    answered_by: int
    """Process that listens on the socket: `pid`, or another one of the same sandbox."""
    figures: dict[str, int]
    """Bytes by name, as the program reports them; `resident_bytes` is what it has afterwards."""
    elapsed_us: float


def offered_socket(pid: int, root: Path = ROOT) -> str | None:
    """
    The trim socket that a process was started with, as its own root has it; None if with none.

    Raises:
        NoSuchProcess: there is none.
        NotPermitted: it belongs to somebody else.
    """
    return processes.environment(pid, root).get(SOCKET_VARIABLE) or None


def request_trim(
    pid: int,
    start_time: int | None = None,
    *,
    timeout_seconds: float = TRIM_SECONDS,
    root: Path = ROOT,
) -> TrimAnswer | None:
    """
    Ask one process to trim itself; call it before its pages are taken, not after.

    Args:
        pid: The process.
        start_time: If given, the one that the pid must still have.
        timeout_seconds: Bound of the whole request.
        root: Where `/proc` is looked for.

    Returns:
        The answer; None if the process was started without $AGENTZIP_TRIM_SOCKET.

    Raises:
        NoSuchProcess: there is none, or the pid is another's by now.
        NotPermitted: it belongs to somebody else.
        TrimRefused: nobody listens, the socket is not trusted, or the answer is late or unfit.
    """
    began = time.monotonic()
    path = offered_socket(pid, root)
    if path is None:
        return None
    uid = processes.effective_uid(pid, root)
    with _socket_inside(root / "proc" / str(pid) / "root", path, uid) as reached:
        # The root was opened by pid: only now is it certain whose it was.
        if start_time is not None and not processes.is_alive(pid, start_time, root):
            raise NoSuchProcess(f"no such process: {pid}")
        answered_by, line = _ask(reached, path, uid, began + timeout_seconds)
    figures = _figures(line, path)
    return TrimAnswer(pid, answered_by, figures, (time.monotonic() - began) * 1e6)


@contextlib.contextmanager
def _socket_inside(root: Path, path: str, uid: int) -> Iterator[int]:
    """
    Open a socket by its path inside another root, one name after the other.

    Links are refused: an absolute one would be followed from our root and not from theirs.
    """
    names = path.split("/")[1:]
    if not path.startswith("/") or not all(names) or {".", ".."} & set(names):
        raise TrimRefused(
            f"path of the trim socket is not absolute and plain: {path!r}",
            f"set {SOCKET_VARIABLE} to a path like /run/agentzip-trim.sock",
        )
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        at = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise TrimRefused(f"root of the process cannot be reached: {error}") from error
    try:
        for position, name in enumerate(names):
            folder = os.O_DIRECTORY if position < len(names) - 1 else 0
            try:
                below = os.open(name, flags | folder, dir_fd=at)
            except (OSError, ValueError) as error:
                raise TrimRefused(
                    f"trim socket cannot be reached: {path}: {error}",
                    "the path must exist in the sandbox and lead through no symbolic link",
                ) from error
            os.close(at)
            at = below
        found = os.fstat(at)
        if not stat.S_ISSOCK(found.st_mode):
            raise TrimRefused(f"trim socket is no socket: {path}")
        if found.st_uid != uid:
            raise TrimRefused(f"trim socket belongs to user {found.st_uid}, not {uid}: {path}")
        yield at
    finally:
        os.close(at)


def _ask(reached: int, path: str, uid: int, deadline: float) -> tuple[int, bytes]:
    """Send the request; returns who answered, and the answer's first line."""
    line = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            # A full backlog would make connect wait as long as it likes without this.
            connection.settimeout(_left(deadline))
            connection.connect(f"/proc/self/fd/{reached}")
            pid, peer = _peer(connection)
            if peer != uid:
                raise TrimRefused(f"trim socket is served by user {peer}, not {uid}: {path}")
            connection.sendall(_REQUEST)
            while b"\n" not in line and len(line) <= _ANSWER_BYTES_MAX:
                connection.settimeout(_left(deadline))
                block = connection.recv(4096)
                if not block:
                    break
                line += block
        except TimeoutError as error:
            raise TrimRefused(f"trim is not done in time: {path}") from error
        except OSError as error:
            raise TrimRefused(f"trim socket does not answer: {path}: {error}") from error
    return pid, line


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user that listen (SO_PEERCRED: as they were at `listen`)."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _gid = struct.unpack("3i", credentials)
    return int(pid), int(uid)


def _figures(line: bytes, path: str) -> dict[str, int]:
    """The figures of an answer; whatever is no whole number below 2^63 is no figure."""
    try:
        answer = json.loads(line[:_ANSWER_BYTES_MAX])
    except (ValueError, RecursionError) as error:
        raise TrimRefused(f"answer of the trim socket is not JSON: {path}") from error
    if not isinstance(answer, dict) or len(answer) > _FIGURES_MAX:
        raise TrimRefused(f"answer of the trim socket is no object of figures: {path}")
    if "error" in answer:
        raise TrimRefused(f"the sandbox could not trim: {str(answer['error'])[:200]!r}")
    return {
        str(name)[:64]: value
        for name, value in answer.items()
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    }
