"""
HTTP/1.1 over a Unix socket, for peers that may be slow, careless or hostile.

Everything a peer can make us hold is bounded: connections, the size of a request, the time it may
take to arrive, the time it may stay silent, the time it may take to read its answer.  The thread
that accepts never waits for a peer: who cannot be let in is told so and hung up on.
"""

import contextlib
import io
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Protocol, TypeVar

from agentzip import errors, local_socket
from agentzip.web.answers import Answer, Request, problem, problem_of

__all__ = ["Guest", "Limits", "UnixHttpServer"]

_BACKLOG = 128
"""Connections that may wait for the accepting thread, which never waits itself."""

_PARTING_MAX = 64
"""Refused connections that are kept until the peer has sent its request and read our refusal; at
the bound the oldest is closed."""

_SEND_SECONDS = 10.0
"""How long a peer may take to read its answer."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server lets its peers take."""

    connections_max: int
    """At once; further ones are answered 503."""
    request_bytes_max: int
    """Head and body of one request; a larger one is answered 413."""
    request_s: float
    """From the first byte of a request to its last; then the connection ends."""
    idle_s: float
    """Between two requests of a connection."""


class Guest(Protocol):
    """Who is at the other end of one connection, and what it may ask."""

    def answer(self, request: Request) -> Answer:
        """Answer one request."""

    def close(self) -> None:
        """The connection has ended."""


class UnixHttpServer:
    """
    Serves guests, one thread for each connection.

    Args:
        path: Where the socket is made; its folder must exist.
        mode: Permissions of the socket.
        admit: Says who a new connection is, or what it is refused with.  It may raise an
            AgentZipError, and must not wait.
        limits: What peers may take.

    Raises:
        AlreadyRunning: somebody listens there.
        InvalidSetting: the socket cannot be made there.
    """

    def __init__(
        self,
        path: Path,
        mode: int,
        admit: Callable[[socket.socket], Guest | Answer],
        limits: Limits,
    ) -> None:
        self.path = path
        self.limits = limits
        self._admit = admit
        self._places = threading.BoundedSemaphore(limits.connections_max)
        self._closing = threading.Event()
        self._listener = local_socket.listen(path, mode, _BACKLOG)
        self._parting: deque[socket.socket] = deque()  # The accepting thread's alone.
        self._thread = threading.Thread(target=self._accept, name=path.stem, daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the socket; requests in work end by themselves."""
        self._closing.set()
        # A shutdown wakes the blocked accept; closing alone would not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._thread.is_alive():
            self._thread.join(timeout=2)
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._closing.is_set():
                    # Out of descriptors, most likely: wait, or this loop would take a core.
                    _log.warning("cannot accept on %s: %s", self.path, error)
                    self._closing.wait(1)
                continue
            guest = self._guest(connection)
            if isinstance(guest, Answer):
                self._refuse(connection, guest)
                continue
            try:
                threading.Thread(
                    target=self._serve,
                    args=(connection, guest),
                    name=f"{self.path.stem}-peer",
                    daemon=True,
                ).start()
            except RuntimeError as error:  # no thread to be had
                _log.warning("cannot serve on %s: %s", self.path, error)
                self._leave(guest)
                refusal = problem(HTTPStatus.SERVICE_UNAVAILABLE, "no thread is free")
                self._refuse(connection, refusal)
        for connection in self._parting:
            connection.close()

    def _guest(self, connection: socket.socket) -> Guest | Answer:
        if not self._places.acquire(blocking=False):
            return problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self.limits.connections_max} connections are open",
                "try again, and close connections that are not needed",
                {"Retry-After": "1"},
            )
        guest = _guarded(lambda: self._admit(connection))
        if isinstance(guest, Answer):
            self._places.release()
        return guest

    def _refuse(self, connection: socket.socket, answer: Answer) -> None:
        """Tell a peer why it is not served; the words fit the socket's buffer, so nobody waits."""
        head = [
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            *(f"{name}: {value}" for name, value in answer.headers.items()),
            "Connection: close",
        ]
        with contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.send("\r\n".join(head).encode() + b"\r\n\r\n" + answer.body)
            connection.shutdown(socket.SHUT_WR)
        # Closed at once, most clients would fail to send their request, and never read the answer.
        self._parting.append(connection)
        if len(self._parting) > _PARTING_MAX:
            self._parting.popleft().close()

    def _serve(self, connection: socket.socket, guest: Guest) -> None:
        # Closed last: who sees the end of his connection finds the place free again.
        with connection:
            try:
                _Connection(connection, guest, self.limits, self._closing)
            except OSError as error:
                _log.debug("connection on %s ended: %s", self.path, error)
            except Exception:  # noqa: BLE001 - a bug here ends one connection, and is told
                _log.exception("connection on %s failed", self.path)
            finally:
                self._leave(guest)

    def _leave(self, guest: Guest) -> None:
        guest.close()
        self._places.release()


def _guarded(work: Callable[[], T]) -> T | Answer:
    """What `work` returns, or its error as an answer: a bug must reach the caller, not end us."""
    try:
        return work()
    except errors.AgentZipError as error:
        return problem_of(error)
    except Exception as error:  # noqa: BLE001 - as said above
        _log.exception("request failed")
        return problem_of(errors.InternalError(f"{type(error).__name__}: {error}"))


class _TooLarge(Exception):
    """A request has more bytes than allowed."""


class _BoundedStream(io.RawIOBase):
    """What a peer sends, as long as it keeps to the limits."""

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self.renew()

    def renew(self) -> None:
        """A new request may come."""
        self._left = self._limits.request_bytes_max
        self._deadline = time.monotonic() + self._limits.idle_s
        self._begun = False

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read what is there; the deadline holds for the request, not for one read."""
        if self._left <= 0:
            raise _TooLarge
        patience = self._deadline - time.monotonic()
        if patience <= 0:
            raise TimeoutError
        self._connection.settimeout(patience)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        if not self._begun:
            self._begun = True
            self._deadline = time.monotonic() + self._limits.request_s
        return count


class _Connection(BaseHTTPRequestHandler):
    """One connection from its first request to its last; the constructor does it all."""

    protocol_version = "HTTP/1.1"

    # Of a request that names none, so that every answer has a head.
    default_request_version = "HTTP/1.1"

    # What the base class sets once a request has been read; a refusal may come before that.
    command = path = requestline = request_version = ""

    def __init__(
        self, connection: socket.socket, guest: Guest, limits: Limits, closing: threading.Event
    ) -> None:
        self._guest = guest
        self._limits = limits
        self._closing = closing
        # The base class wants the server that it belongs to, and never looks at it.
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]

    def setup(self) -> None:
        """Read through the limits."""
        super().setup()
        self.rfile.close()
        self._stream = _BoundedStream(self.connection, self._limits)
        self.rfile = io.BufferedReader(self._stream)

    def handle(self) -> None:
        """Answer until either side has had enough."""
        self.close_connection = False
        while not self.close_connection and not self._closing.is_set():
            self._stream.renew()
            try:
                self.handle_one_request()
            except _TooLarge:
                self._refuse_size()
                return

    def do_GET(self) -> None:
        """Answer one request, whatever its method."""
        body = self._body()
        if body is None:
            return
        request = Request(self.command, self.path, body)
        self._send(_guarded(lambda: self._guest.answer(request)))

    do_PUT = do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _body(self) -> bytes | None:
        """The body; None if it was refused."""
        lengths = set(self.headers.get_all("Content-Length", []))
        text = lengths.pop() if lengths else "0"
        if "Transfer-Encoding" in self.headers:
            self.send_error(HTTPStatus.LENGTH_REQUIRED, "send the body with its Content-Length")
        elif lengths or not (text.isascii() and text.isdigit()):
            self.send_error(HTTPStatus.BAD_REQUEST, "Content-Length is no number")
        elif len(text) > 9 or int(text) > self._limits.request_bytes_max:
            self._refuse_size()
        else:
            body = self.rfile.read(int(text))
            if len(body) == int(text):
                return body
            self.close_connection = True  # it hung up in the middle
        return None

    def _refuse_size(self) -> None:
        self.send_error(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a request has at most {self._limits.request_bytes_max} bytes",
        )

    def _send(self, answer: Answer) -> None:
        self.connection.settimeout(_SEND_SECONDS)
        self.send_response(answer.status)
        if answer.status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request, and end: where the next one would begin is not known."""
        detail = explain or message or HTTPStatus(code).phrase
        self._send(problem(code, detail, headers={"Connection": "close"}))

    def version_string(self) -> str:
        """Not the versions of what we are made of: a sandbox need not know them."""
        return "agentzip"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log for those who look for it."""
        _log.debug(format, *args)
