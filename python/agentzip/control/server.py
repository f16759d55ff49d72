"""
The daemon's end of the control socket.

The socket has mode 0600 and every peer's uid is checked as well, because a descriptor can be
passed on.  The server never holds a lock while the engine works, so `status` is answered while a
page out runs.  Clients, request size and idle time are bounded: a peer that floods or stalls
loses its connection and nobody else notices.
"""

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentzip import errors, local_socket, model
from agentzip.control import fleet as fleet_methods
from agentzip.control.wire import (
    REQUEST_BYTES_MAX,
    SOCKET_NAME,
    JsonObject,
    error_answer,
    integer,
    line_of,
    ranges,
)
from agentzip.host.groups import refuse_frozen
from agentzip.pager import Pager
from agentzip.sandboxes import Fleet

__all__ = ["ControlServer", "detach_all"]

_CLIENTS_MAX = 32
"""Connections served at once; further ones wait in the kernel's queue until one ends."""

_IDLE_SECONDS_MAX = 60.0
"""A client that asks nothing for so long loses its place."""

_STRANGER_SECONDS_MAX = 1.0
"""How long the request of a peer that is to be refused is waited for."""

_log = logging.getLogger(__name__)


def detach_all(
    engine: Pager, give_up: Callable[[], bool] = lambda: False
) -> list[model.DetachReport]:
    """
    Give every target back, children of a fork included.

    Args:
        engine: The engine.
        give_up: Asked before each step; True ends the work early.

    Returns:
        One report per target; a child counts under pid 0.  A target that ended meanwhile is
        in no report.

    Raises:
        AgentZipError: the first refusal, after all others were tried.
    """
    reports = []
    refusal: errors.AgentZipError | None = None
    for space in engine.spaces():
        if give_up():
            break
        try:
            if space.pid:
                refuse_frozen(space.pid)
                reports.append(engine.detach(space.pid))
            else:
                home = engine.page_in_space(space.id)
                reports.append(
                    model.DetachReport(
                        0, home.pages_in, home.pages_out, not home.pages_out, home.elapsed_us, 0.0
                    )
                )
        except (errors.NotAttached, errors.NoSuchProcess, errors.TargetGone):
            continue
        except errors.AgentZipError as error:
            # One target that resists must not keep the others from being given back.
            _log.warning("process %d cannot be given back: %s", space.pid, error)
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return reports


class ControlServer:
    """
    Serves an engine on a Unix socket.

    Args:
        engine: Whom the requests are for.
        run_dir: Where the socket is made; it must exist.
        request_stop: Called when a client asks for shutdown; must return at once.
        about: Facts about the daemon that `status` adds to its answer.
        kinship: (domain, image) that a process is attached with, by its pid.
        before_page_out: Called with the pid before a target's pages leave.
        fleet: The sandboxes; None for the engine of one command, which looks after none.
    """

    def __init__(
        self,
        engine: Pager,
        run_dir: Path,
        request_stop: Callable[[], None] = lambda: None,
        about: Callable[[], JsonObject] = dict,
        kinship: Callable[[int], tuple[str, str]] = lambda _pid: ("", ""),
        before_page_out: Callable[[int], None] = lambda _pid: None,
        fleet: Fleet | None = None,
    ) -> None:
        self.path = run_dir / SOCKET_NAME
        self._engine = engine
        self._request_stop = request_stop
        self._about = about
        self._kinship = kinship
        self._before_page_out = before_page_out
        self._methods = self._handlers() | fleet_methods.handlers(fleet)
        self._places = threading.Semaphore(_CLIENTS_MAX)
        self._closing = threading.Event()
        self._listener = local_socket.listen(self.path, 0o600, _CLIENTS_MAX)
        self._thread = threading.Thread(target=self._accept, name="control", daemon=True)

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
            self._places.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                self._places.release()
                if self._closing.is_set():
                    return
                # Out of descriptors, most likely: wait, or this loop would take a whole core.
                _log.warning("cannot accept a control connection: %s", error)
                self._closing.wait(1)
                continue
            threading.Thread(
                target=self._serve, args=(connection,), name="control-client", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_IDLE_SECONDS_MAX)
                try:
                    local_socket.check_peer_is_operator(connection)
                except errors.NotPermitted as refusal:
                    # Closed before it has sent its request, it would fail to send, and never read
                    # the answer.
                    connection.settimeout(_STRANGER_SECONDS_MAX)
                    with contextlib.suppress(OSError):
                        connection.recv(REQUEST_BYTES_MAX)
                    connection.sendall(line_of(error_answer(refusal)))
                    return
                with connection.makefile("rb") as lines:
                    while not self._closing.is_set():
                        line = lines.readline(REQUEST_BYTES_MAX)
                        if not line:
                            return
                        if not line.endswith(b"\n"):
                            too_long = errors.InvalidSetting("request is too long or cut short")
                            connection.sendall(line_of(error_answer(too_long)))
                            return
                        connection.sendall(line_of(self.answer(line)))
        except OSError as error:
            _log.debug("control connection ended: %s", error)
        finally:
            self._places.release()

    def answer(self, line: bytes) -> JsonObject:
        """The answer to one request; never raises."""
        try:
            request = json.loads(line)
            if not isinstance(request, dict) or not isinstance(request.get("params", {}), dict):
                raise errors.InvalidSetting("request is not an object with a method and params")
            handler = self._methods.get(str(request.get("method")))
            if handler is None:
                raise errors.InvalidSetting(
                    f"method is not known: {request.get('method')!r}",
                    f"use one of {', '.join(sorted(self._methods))}",
                )
            return {"result": handler(request.get("params", {}))}
        except errors.AgentZipError as error:
            return error_answer(error)
        except (ValueError, TypeError, RecursionError) as error:
            return error_answer(errors.InvalidSetting(f"request cannot be read: {error}"))
        except Exception as error:  # noqa: BLE001 - a bug must reach the caller, not end us
            _log.exception("request failed")
            return error_answer(errors.InternalError(f"{type(error).__name__}: {error}"))

    def _handlers(self) -> dict[str, Callable[[JsonObject], Any]]:
        return {
            "attach": self._attach,
            "census": self._census,
            "detach": self._detach,
            "dictionaries": self._dictionaries,
            "inspect": self._inspect,
            "learned": self._learned,
            "page_in": self._page_in,
            "page_out": self._page_out,
            "ping": lambda _: {"pid": os.getpid()},
            "shutdown": self._shutdown,
            "stats": lambda _: asdict(self._engine.stats()),
            "status": self._status,
            "wake": self._wake,
        }

    def _attach(self, params: JsonObject) -> JsonObject:
        start_time = params.get("start_time")
        if start_time is not None:
            start_time = integer(params, "start_time")
        pid = integer(params, "pid")
        domain, image = self._kinship(pid)
        refuse_frozen(pid)
        return asdict(self._engine.attach(pid, start_time, domain=domain, image=image))

    def _page_out(self, params: JsonObject) -> JsonObject:
        pid, chosen = integer(params, "pid"), ranges(params, "ranges")
        refuse_frozen(pid)
        self._before_page_out(pid)
        return asdict(self._engine.page_out(pid, chosen, ranges(params, "keep")))

    def _census(self, params: JsonObject) -> list[JsonObject]:
        return [asdict(row) for row in self._engine.census(integer(params, "pid"))]

    def _dictionaries(self, _params: JsonObject) -> list[JsonObject]:
        return [asdict(info) for info in self._engine.dictionaries()]

    def _page_in(self, params: JsonObject) -> JsonObject:
        return asdict(self._engine.page_in(integer(params, "pid"), ranges(params, "ranges")))

    def _learned(self, params: JsonObject) -> JsonObject:
        return asdict(self._engine.learned(integer(params, "pid")))

    def _wake(self, params: JsonObject) -> JsonObject:
        return asdict(self._engine.wake(integer(params, "pid")))

    def _detach(self, params: JsonObject) -> list[JsonObject]:
        if params.get("all") is True:
            reports = detach_all(self._engine)
        else:
            pid = integer(params, "pid")
            refuse_frozen(pid)
            reports = [self._engine.detach(pid)]
        return [asdict(report) for report in reports]

    def _inspect(self, params: JsonObject) -> list[JsonObject]:
        return [asdict(region) for region in self._engine.regions(integer(params, "pid"))]

    def _status(self, _params: JsonObject) -> JsonObject:
        spaces = [asdict(space) for space in self._engine.spaces()]
        return {"daemon": self._about(), "spaces": spaces}

    def _shutdown(self, _params: JsonObject) -> JsonObject:
        self._request_stop()
        return {"stopping": True}
