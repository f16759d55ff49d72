"""
Unix sockets: made so that nobody gets in too early, and asked who is at the other end.

The kernel notes the peer's identity when it connects.  A descriptor can be passed on and a pid is
handed out again, so who must be certain asks for the process itself (`PeerProcess`).
"""

import contextlib
import errno
import os
import select
import socket
import struct
from pathlib import Path
from typing import Self

from agentzip.errors import AlreadyRunning, InvalidSetting, NotPermitted, Unsupported

__all__ = ["PeerProcess", "check_peer_is_operator", "listen", "wait_in_queue"]

_SO_PEERPIDFD = 77
"""Since Linux 6.5; Python's socket module has no name for it."""


def listen(path: Path, mode: int, backlog: int) -> socket.socket:
    """
    Make a listening socket.

    A socket file without a listener is what a killed daemon leaves behind, and is replaced.

    Args:
        path: Where; its folder must exist.
        mode: Permissions of the file.  Nobody can connect before `listen`, so there is no moment
            with another mode, and no need to touch the umask that all threads share.
        backlog: Connections that may wait for `accept`.

    Raises:
        AlreadyRunning: somebody listens there.
        InvalidSetting: a socket cannot be made there.
    """
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, mode)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise InvalidSetting(
            f"socket cannot be made: {path}: {error}", "give a short path in a writable folder"
        ) from error
    return listener


def _remove_stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A living listener with a full backlog must not hold us up.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno == errno.ECONNREFUSED and path.is_socket():
                path.unlink(missing_ok=True)
            if error.errno != errno.EAGAIN:
                return  # `bind` says what else is wrong
    raise AlreadyRunning(f"another daemon answers on {path}")


def wait_in_queue(connection: socket.socket, seconds: float) -> None:
    """
    Let `connect` wait while others crowd in front of the listener, so long at most.

    Not `settimeout`: that makes the socket a non-blocking one, which the kernel refuses at once
    while the queue is full.  It is for a socket that has no other timeout.
    """
    micros = max(1, round(seconds * 1e6))
    patience = struct.pack("ll", *divmod(micros, 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)


def check_peer_is_operator(connection: socket.socket) -> None:
    """
    Let in only root and the daemon's own user.

    Raises:
        NotPermitted: the peer is somebody else.
    """
    uid = _credentials(connection)[1]
    if uid not in {0, os.geteuid()}:
        raise NotPermitted(
            "only root and the daemon's own user may use this socket",
            f"use it as root; this is user {uid}",
        )


class PeerProcess:
    """
    The process that connected, whoever holds the descriptor now.

    Args:
        connection: The accepted connection.

    Raises:
        NotPermitted: its pid has no meaning here, or it has ended already.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.pid = _credentials(connection)[0]
        """As seen from our pid namespace."""
        if self.pid == 0:
            raise NotPermitted(
                "the peer cannot be identified: its pid namespace is not below the daemon's",
                "run the daemon in the host's pid namespace",
            )
        try:
            self._pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError as error:
            raise NotPermitted("the process that connected has ended") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def is_alive(self) -> bool:
        """
        Whether it still runs.

        As long as it does, nobody else has its pid: what was looked up by pid *before* this said
        yes was about this very process.
        """
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Let go of the process."""
        with contextlib.suppress(OSError):
            os.close(self._pidfd)

    @staticmethod
    def check_supported() -> None:
        """
        Ask the kernel whether it can name the process of a peer.

        Raises:
            Unsupported: it cannot.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        with ours, theirs:
            try:
                os.close(ours.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
            except OSError as error:
                raise Unsupported(
                    f"the kernel does not name the process of a socket's peer: {error}",
                    "Linux 6.5 is needed; without it a sandbox cannot speak for itself safely",
                ) from error


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """Pid and uid of the peer when it connected (SO_PEERCRED)."""
    size = struct.calcsize("3i")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _gid = struct.unpack("3i", raw)
    return int(pid), int(uid)
