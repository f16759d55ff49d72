"""
Let the host ask this process to trim itself.

The launcher of the sandbox names a socket path in $AGENTZIP_TRIM_SOCKET; the program agrees by
calling `serve_trim`.  Without both nothing is served and nobody asks.

The protocol is one line each way, so that any language can speak it: the asker sends the word
`trim`, the answer is one JSON object on one line with whole numbers as values, `resident_bytes`
among them.  `{"error": text}` says what went wrong.  The connection is closed after it.
"""

import contextlib
import errno
import json
import os
import socket
import stat
import struct
import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from agentzip.errors import AgentZipError, InvalidSetting
from agentzip.sandbox.memory import trim

__all__ = ["SOCKET_VARIABLE", "TrimServer", "node_hook", "serve_trim"]

SOCKET_VARIABLE = "AGENTZIP_TRIM_SOCKET"
"""Environment variable with the absolute path of the socket."""

_REQUEST = b"trim\n"

_PEER_SECONDS = 2.0
"""How long one asker may take to say what it wants; then the next one is heard."""

_WAITING_MAX = 4
"""Askers that may queue; there is one host daemon, further ones are refused by the kernel."""

_servers: "weakref.WeakSet[TrimServer]" = weakref.WeakSet()


def node_hook() -> Path:
    """The file that a Node program requires, or that `node --require` preloads."""
    return Path(__file__).with_name("trim.cjs")


def serve_trim(
    path: str | os.PathLike[str] | None = None, *, devtools: str | None = None
) -> "TrimServer | None":
    """
    Answer trim requests on a daemon thread until the process ends.

    Args:
        path: Socket to serve on; None means the one that $AGENTZIP_TRIM_SOCKET names.
        devtools: Address of a browser's DevTools port, like `http://127.0.0.1:9222`, whose heaps
            are trimmed as well (needs the `chromium` extra).

    Returns:
        The server; None if no path is given and the launcher named none, or another process of
        this sandbox, with the same environment, serves there already.

    Raises:
        InvalidSetting: the socket cannot be made there, or another process serves on that path.
    """
    chosen = os.environ.get(SOCKET_VARIABLE) if path is None else os.fspath(path)
    if not chosen or (path is None and _is_served(chosen)):
        return None
    return TrimServer(chosen, lambda: _trim_all(devtools))


def _trim_all(devtools: str | None) -> dict[str, int]:
    answer: dict[str, int] = {}
    if devtools is not None:
        from agentzip.sandbox.chromium import trim_browser

        browser = trim_browser(devtools)
        answer = {f"browser_{name}": value for name, value in asdict(browser).items()}
    return asdict(trim()) | answer


class TrimServer:
    """
    A listening socket and the thread behind it; ends with the process, or at `close`.

    Args:
        path: Where the socket is made, mode 0600; a stale one is replaced.
        work: What is done on request; returns whole numbers by name.
    """

    def __init__(self, path: str, work: Callable[[], dict[str, int]]) -> None:
        self.path = path
        self._work = work
        self._pid = os.getpid()
        self._listener = _listen(path)
        self._thread = threading.Thread(target=self._serve, name="agentzip-trim", daemon=True)
        self._thread.start()
        _servers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Serve no longer and remove the socket."""
        with contextlib.suppress(OSError):
            # Closing alone would not wake a thread that waits in accept.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        # A forked child has no thread, and the file is its parent's.
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            self._thread.join(timeout=_PEER_SECONDS)

    def drop_in_child(self) -> None:
        """Close a forked child's copy, or its parent's socket would outlive the parent."""
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            # One bad asker must not end the service.
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_PEER_SECONDS)
                if _peer_is_trusted(connection) and connection.recv(64) == _REQUEST:
                    connection.sendall(json.dumps(self._answer()).encode() + b"\n")

    def _answer(self) -> dict[str, object]:
        try:
            return dict(self._work())
        except AgentZipError as error:
            return {"error": str(error)}
        except Exception as error:  # noqa: BLE001  (a finalizer or the browser may raise anything)
            return {"error": f"{type(error).__name__}: {error}"}


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
        # Nobody can connect before `listen`, so there is no moment with a wider mode.
        os.chmod(path, 0o600)
        listener.listen(_WAITING_MAX)
    except OSError as error:
        listener.close()
        raise InvalidSetting(
            f"trim socket cannot be made: {path}: {error}",
            f"give a short path in a folder of this user's own, for example in {SOCKET_VARIABLE}",
        ) from error
    return listener


def _remove_stale(path: str) -> None:
    """Remove the socket that an ended process left; one that answers is refused."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        return  # `bind` says that something is there
    if not _is_served(path):
        os.unlink(path)


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            # Any other refusal may come from a socket that lives, but is not ours.
            return error.errno not in {errno.ECONNREFUSED, errno.ENOENT}
    return True


def _peer_is_trusted(connection: socket.socket) -> bool:
    """Whether root or this process's own user asks (SO_PEERCRED, fixed at connect time)."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _pid, uid, _gid = struct.unpack("3i", credentials)
    # Root of another user namespace has the overflow uid here: the file's mode lets only those
    # in who may open it, and so only root of the host.
    return uid in {0, os.geteuid(), _overflow_uid()}


def _overflow_uid() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _drop_all_in_child() -> None:
    for server in list(_servers):
        server.drop_in_child()


os.register_at_fork(after_in_child=_drop_all_in_child)
