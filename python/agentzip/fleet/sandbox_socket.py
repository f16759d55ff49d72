"""
The socket through which a sandbox speaks, and only for itself.

It is mounted into sandboxes, so whoever connects is untrusted and everything that it says is about
its own sandbox: the one that the *connecting process* belongs to.  Passing the descriptor on does
not pass the identity on, and a process that has ended has none.

What a sandbox can do here is to be wrong about itself: then its own memory leaves too early or
stays too long.  It learns nothing of others, and it cannot keep others from being heard:
connections and requests are counted for each sandbox.
"""

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from agentzip.errors import NotPermitted
from agentzip.local_socket import PeerProcess
from agentzip.sandboxes import Fleet
from agentzip.web.answers import Answer, Request, problem
from agentzip.web.inside import ROUTES
from agentzip.web.routes import dispatch
from agentzip.web.serving import Guest, Limits, UnixHttpServer

__all__ = ["SANDBOX_SOCKET", "Accounts", "SandboxSocket"]

SANDBOX_SOCKET = Path("sandbox") / "sandbox.sock"
"""Below the run directory.  A folder of its own, because the *folder* is what is mounted: a socket
that is mounted itself stays the one of a daemon that has ended."""

_LIMITS = Limits(
    # 64 sandboxes would have to act together to keep another one out; each connection takes a
    # thread and two descriptors.
    connections_max=256,
    # `{"phase": "waiting_model", "expect": 8}` and its head.
    request_bytes_max=8 * 1024,
    request_s=5.0,
    idle_s=30.0,
)

_CONNECTIONS_OF_ONE_MAX = 4
"""Connections of one sandbox at once; a hint that waits for its pages occupies one."""

_REQUESTS_PER_SECOND = 20.0
"""Requests that one sandbox may send in the long run, and at once after a pause: two hints for
each of ten tool calls a second.  Further ones are answered 429, and never reach the fleet."""

_ACCOUNTS_MAX = 1024
"""Sandboxes whose requests are remembered before those that have been silent are forgotten."""


class SandboxSocket:
    """
    Serves the processes of all sandboxes on one socket of mode 0666.

    Args:
        fleet: Knows which process belongs to which sandbox, and hears the hints.
        path: Where the socket is made; its folder is made as well.

    Raises:
        AlreadyRunning: somebody listens there.
        InvalidSetting: the socket cannot be made there.
        Unsupported: the kernel cannot name the process of a peer.
    """

    def __init__(self, fleet: Fleet, path: Path) -> None:
        PeerProcess.check_supported()
        self.path = path
        self._fleet = fleet
        self._accounts = Accounts()
        if not path.parent.exists():
            path.parent.mkdir()
            # Whatever our umask: users of a sandbox reach the socket through this folder.
            path.parent.chmod(0o755)
        self._server = UnixHttpServer(path, 0o666, self._admit, _LIMITS)

    def start(self) -> None:
        """Begin to listen to sandboxes."""
        self._server.start()

    def close(self) -> None:
        """Stop listening and remove the socket; requests in work end by themselves."""
        self._server.close()

    def _admit(self, connection: socket.socket) -> Guest | Answer:
        process = PeerProcess(connection)
        try:
            sandbox = _sandbox_of(self._fleet, process)
            refusal = self._accounts.open(sandbox)
        except BaseException:
            process.close()
            raise
        if refusal is not None:
            process.close()
            return refusal
        return _Inmate(self._fleet, process, sandbox, self._accounts)


def _sandbox_of(fleet: Fleet, process: PeerProcess) -> str:
    """
    The sandbox of the process that connected.

    Raises:
        NotPermitted: it has ended, or belongs to none.
    """
    name = fleet.sandbox_of(process.pid)
    # In this order: the pid was its own when the fleet looked, if it is alive now.
    if not process.is_alive():
        raise NotPermitted(
            "the process that connected has ended", "connect from the process that speaks"
        )
    if name is None:
        raise NotPermitted(
            "the process that connected belongs to no sandbox",
            "a scope must select it; a new sandbox is known after a second",
        )
    return name


class _Inmate:
    """A process of a sandbox on one connection."""

    def __init__(
        self, fleet: Fleet, process: PeerProcess, sandbox: str, accounts: "Accounts"
    ) -> None:
        self._fleet = fleet
        self._process = process
        self._sandbox = sandbox
        self._accounts = accounts
        self._is_paid = True  # The first request, with the connection.

    def answer(self, request: Request) -> Answer:
        refusal = None if self._is_paid else self._accounts.charge(self._sandbox)
        self._is_paid = False
        if refusal is not None:
            return refusal
        # Asked each time: the process may have been moved to another sandbox, or have ended.
        name = _sandbox_of(self._fleet, self._process)
        return dispatch(ROUTES, self._fleet, request, {"self": name})

    def close(self) -> None:
        self._process.close()
        self._accounts.close(self._sandbox)


@dataclass(slots=True)
class _Account:
    connections: int
    credit: float
    counted_at: float


class Accounts:
    """
    What each sandbox has taken of our attention: open connections, and requests of late.

    Args:
        clock: Seconds, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Guards the accounts; nothing is waited for under it.
        self._lock = threading.Lock()
        self._of: dict[str, _Account] = {}

    def open(self, sandbox: str) -> Answer | None:
        """
        Count a connection with its first request; returns the refusal if it is one too many.

        One without a request counts as well: it costs us a thread all the same.
        """
        with self._lock:
            account = self._settled(sandbox)
            if account.connections >= _CONNECTIONS_OF_ONE_MAX:
                return _too_many(f"{_CONNECTIONS_OF_ONE_MAX} connections are open")
            refusal = _charge(account)
            if refusal is None:
                account.connections += 1
            return refusal

    def close(self, sandbox: str) -> None:
        """A connection has ended."""
        with self._lock:
            self._of[sandbox].connections -= 1

    def charge(self, sandbox: str) -> Answer | None:
        """Count a further request; returns the refusal if it is one too many."""
        with self._lock:
            return _charge(self._settled(sandbox))

    def _settled(self, sandbox: str) -> _Account:
        """The account with its credit of now."""
        now = self._clock()
        account = self._of.get(sandbox)
        if account is None:
            if len(self._of) >= _ACCOUNTS_MAX:
                self._forget(now)
            account = self._of[sandbox] = _Account(0, _REQUESTS_PER_SECOND, now)
        earned = (now - account.counted_at) * _REQUESTS_PER_SECOND
        account.credit = min(_REQUESTS_PER_SECOND, account.credit + earned)
        account.counted_at = now
        return account

    def _forget(self, now: float) -> None:
        """Drop accounts that look like new ones: no connection, and credit earned in full."""
        self._of = {
            name: account
            for name, account in self._of.items()
            if account.connections or now - account.counted_at < 1
        }


def _charge(account: _Account) -> Answer | None:
    if account.credit < 1:
        return _too_many(f"more than {_REQUESTS_PER_SECOND:.0f} requests a second")
    account.credit -= 1
    return None


def _too_many(detail: str) -> Answer:
    return problem(
        HTTPStatus.TOO_MANY_REQUESTS, detail, "say only what changes", {"Retry-After": "1"}
    )
