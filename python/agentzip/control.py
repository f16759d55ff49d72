"""
The local socket: how the command line reaches a running daemon.

One JSON object per line, an answer for each request, in order:

    {"method": "page_out", "params": {"pid": 4711}}
    {"result": {"pid": 4711, "pages_moved": 51200, ...}}
    {"error": {"type": "NotAttached", "message": "...", "hint": "...", "exit_code": 13}}

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
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, TypeVar

from agentzip import errors, model
from agentzip.pager import Pager

__all__ = ["SOCKET_NAME", "ControlClient", "ControlServer", "JsonObject", "detach_all"]

SOCKET_NAME = "agentzip.sock"
"""Name of the socket within the run directory."""

_CLIENTS_MAX = 32
"""Connections served at once; further ones wait in the kernel's queue until one ends."""

_REQUEST_BYTES_MAX = 64 * 1024
"""A request is a pid and perhaps a few ranges; a longer line ends the connection."""

_IDLE_SECONDS_MAX = 60.0
"""A client that asks nothing for so long loses its place."""

_ANSWER_BYTES_MAX = 256 * 2**20
"""What a client reads before it calls the answer broken (`inspect` of 100 000 regions fits)."""

JsonObject = dict[str, Any]

T = TypeVar("T")

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
    """

    def __init__(
        self,
        engine: Pager,
        run_dir: Path,
        request_stop: Callable[[], None] = lambda: None,
        about: Callable[[], JsonObject] = dict,
        kinship: Callable[[int], tuple[str, str]] = lambda _pid: ("", ""),
        before_page_out: Callable[[int], None] = lambda _pid: None,
    ) -> None:
        self.path = run_dir / SOCKET_NAME
        self._engine = engine
        self._request_stop = request_stop
        self._about = about
        self._kinship = kinship
        self._before_page_out = before_page_out
        self._places = threading.Semaphore(_CLIENTS_MAX)
        self._closing = threading.Event()
        self._listener = _listen(self.path)
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
                if not _peer_is_trusted(connection):
                    refusal = errors.NotPermitted(
                        "only root and the daemon's own user may use this socket"
                    )
                    connection.sendall(_line(_error_answer(refusal)))
                    return
                with connection.makefile("rb") as lines:
                    while not self._closing.is_set():
                        line = lines.readline(_REQUEST_BYTES_MAX)
                        if not line:
                            return
                        if not line.endswith(b"\n"):
                            too_long = errors.InvalidSetting("request is too long or cut short")
                            connection.sendall(_line(_error_answer(too_long)))
                            return
                        connection.sendall(_line(self.answer(line)))
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
            handler = self._handlers().get(str(request.get("method")))
            if handler is None:
                raise errors.InvalidSetting(
                    f"method is not known: {request.get('method')!r}",
                    f"use one of {', '.join(sorted(self._handlers()))}",
                )
            return {"result": handler(request.get("params", {}))}
        except errors.AgentZipError as error:
            return _error_answer(error)
        except (ValueError, TypeError) as error:
            return _error_answer(errors.InvalidSetting(f"request cannot be read: {error}"))
        except Exception as error:  # noqa: BLE001 - a bug must reach the caller, not end us
            _log.exception("request failed")
            return _error_answer(errors.InternalError(f"{type(error).__name__}: {error}"))

    def _handlers(self) -> dict[str, Callable[[JsonObject], Any]]:
        return {
            "attach": self._attach,
            "census": self._census,
            "detach": self._detach,
            "dictionaries": self._dictionaries,
            "inspect": self._inspect,
            "page_in": self._page_in,
            "page_out": self._page_out,
            "ping": lambda _: {"pid": os.getpid()},
            "shutdown": self._shutdown,
            "stats": lambda _: asdict(self._engine.stats()),
            "status": self._status,
        }

    def _attach(self, params: JsonObject) -> JsonObject:
        start_time = params.get("start_time")
        if start_time is not None:
            start_time = _integer(params, "start_time")
        pid = _integer(params, "pid")
        domain, image = self._kinship(pid)
        return asdict(self._engine.attach(pid, start_time, domain=domain, image=image))

    def _page_out(self, params: JsonObject) -> JsonObject:
        pid, ranges = _integer(params, "pid"), _ranges(params, "ranges")
        self._before_page_out(pid)
        return asdict(self._engine.page_out(pid, ranges, _ranges(params, "keep")))

    def _census(self, params: JsonObject) -> list[JsonObject]:
        return [asdict(row) for row in self._engine.census(_integer(params, "pid"))]

    def _dictionaries(self, _params: JsonObject) -> list[JsonObject]:
        return [asdict(info) for info in self._engine.dictionaries()]

    def _page_in(self, params: JsonObject) -> JsonObject:
        return asdict(self._engine.page_in(_integer(params, "pid"), _ranges(params, "ranges")))

    def _detach(self, params: JsonObject) -> list[JsonObject]:
        if params.get("all") is True:
            reports = detach_all(self._engine)
        else:
            reports = [self._engine.detach(_integer(params, "pid"))]
        return [asdict(report) for report in reports]

    def _inspect(self, params: JsonObject) -> list[JsonObject]:
        return [asdict(region) for region in self._engine.regions(_integer(params, "pid"))]

    def _status(self, _params: JsonObject) -> JsonObject:
        spaces = [asdict(space) for space in self._engine.spaces()]
        return {"daemon": self._about(), "spaces": spaces}

    def _shutdown(self, _params: JsonObject) -> JsonObject:
        self._request_stop()
        return {"stopping": True}


class ControlClient:
    """
    Speaks to a daemon; every error comes back as the class the daemon raised.

    Args:
        run_dir: Run directory of the daemon.
        timeout_seconds: How long one answer may take; None waits as long as it takes, since a
            large target takes seconds to leave.

    Raises:
        DaemonUnreachable: nobody answers there.
    """

    def __init__(self, run_dir: Path, timeout_seconds: float | None = None) -> None:
        path = run_dir / SOCKET_NAME
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_seconds)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            if isinstance(error, PermissionError):
                raise errors.NotPermitted(
                    f"the control socket refuses this user: {path}"
                ) from error
            raise errors.DaemonUnreachable(f"no daemon answers on {path}") from error
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._socket.close()

    def call(self, method: str, params: Mapping[str, object] | None = None) -> Any:
        """
        Ask one thing and wait for the answer.

        Raises:
            AgentZipError: what the daemon raised, as the same class.
            DaemonUnreachable: the daemon went away meanwhile.
        """
        try:
            self._socket.sendall(_line({"method": method, "params": dict(params or {})}))
            line = self._lines.readline(_ANSWER_BYTES_MAX)
        except OSError as error:
            raise errors.DaemonUnreachable(f"the daemon did not answer: {error}") from error
        if not line.endswith(b"\n"):
            raise errors.DaemonUnreachable("the daemon hung up before it answered")
        answer = json.loads(line)
        if "error" in answer:
            raise _error_of(answer["error"])
        return answer["result"]

    def ping(self) -> int:
        """Pid of the daemon."""
        return int(self.call("ping")["pid"])

    def attach(self, pid: int, start_time: int | None = None) -> model.AttachReport:
        """Attach a process."""
        answer = self.call("attach", {"pid": pid, "start_time": start_time})
        return model.from_mapping(model.AttachReport, answer)

    def page_out(
        self,
        pid: int,
        ranges: list[tuple[int, int]] | None = None,
        keep: list[tuple[int, int]] | None = None,
    ) -> model.PageOutReport:
        """Page a target out."""
        answer = self.call("page_out", {"pid": pid, "ranges": ranges, "keep": keep})
        return model.from_mapping(model.PageOutReport, answer)

    def page_in(self, pid: int, ranges: list[tuple[int, int]] | None = None) -> model.PageInReport:
        """Bring a target's pages home."""
        answer = self.call("page_in", {"pid": pid, "ranges": ranges})
        return model.from_mapping(model.PageInReport, answer)

    def detach(self, pid: int) -> model.DetachReport:
        """Give one target back."""
        return model.from_mapping(model.DetachReport, self.call("detach", {"pid": pid})[0])

    def detach_all(self) -> list[model.DetachReport]:
        """Give every target back."""
        answers = self.call("detach", {"all": True})
        return [model.from_mapping(model.DetachReport, answer) for answer in answers]

    def regions(self, pid: int) -> list[model.Region]:
        """Every mapping of a process."""
        answers = self.call("inspect", {"pid": pid})
        return [model.from_mapping(model.Region, answer) for answer in answers]

    def census(self, pid: int) -> list[model.CensusRow]:
        """What of a target is out, by class of memory and by codec."""
        answers = self.call("census", {"pid": pid})
        return [model.from_mapping(model.CensusRow, answer) for answer in answers]

    def dictionaries(self) -> list[model.DictionaryInfo]:
        """Every dictionary that the engine holds."""
        answers = self.call("dictionaries")
        return [model.from_mapping(model.DictionaryInfo, answer) for answer in answers]

    def spaces(self) -> list[model.SpaceStatus]:
        """Every managed address space."""
        answers = self.call("status")["spaces"]
        return [model.from_mapping(model.SpaceStatus, answer) for answer in answers]

    def about(self) -> JsonObject:
        """Facts about the daemon."""
        return dict(self.call("status")["daemon"])

    def stats(self) -> model.EngineStats:
        """Counters of the engine."""
        return model.from_mapping(model.EngineStats, self.call("stats"))

    def shutdown(self) -> None:
        """Ask the daemon to detach everything and end."""
        self.call("shutdown")


def _listen(path: Path) -> socket.socket:
    """
    Make the listening socket.

    A socket file without a listener is what a killed daemon leaves behind, and is replaced; with
    a listener it belongs to a living one.  The engine's lock on the run directory already settles
    who may be here, so the check is a second line of defence.
    """
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(str(path))
    except OSError:
        path.unlink(missing_ok=True)
    else:
        raise errors.AlreadyRunning(f"another daemon answers on {path}")
    finally:
        probe.close()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Restrict the mode before the name exists: a chmod afterwards would leave a moment's gap.
    former = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise errors.InvalidSetting(
            f"run_dir cannot hold the control socket: {path}: {error}",
            "give a shorter, writable --run-dir",
        ) from error
    finally:
        os.umask(former)
    listener.listen(_CLIENTS_MAX)
    return listener


def _peer_is_trusted(connection: socket.socket) -> bool:
    """Whether the peer is root or the daemon's own user (SO_PEERCRED, fixed at connect time)."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _pid, uid, _gid = struct.unpack("3i", credentials)
    return uid in {0, os.geteuid()}


def _integer(params: JsonObject, name: str) -> int:
    value = params.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**63:
        raise errors.InvalidSetting(
            f"{name} is not a positive number: {value!r}", f"give {name} as a whole number"
        )
    return value


def _ranges(params: JsonObject, name: str) -> list[tuple[int, int]] | None:
    value = params.get(name)
    if value is None:
        return None
    pairs = [tuple(pair) for pair in value]
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(edge, int) for edge in pair):
            raise errors.InvalidSetting(f"{name} is not a list of (start, end) pairs: {pair!r}")
    return [(start, end) for start, end in pairs]


def _line(value: JsonObject) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _error_answer(error: errors.AgentZipError) -> JsonObject:
    return {
        "error": {
            "type": type(error).__name__,
            "message": str(error),
            "hint": error.hint,
            "exit_code": error.exit_code,
        }
    }


def _error_of(answer: Mapping[str, Any]) -> errors.AgentZipError:
    """The exception that an error answer names; an unknown name is an internal error."""
    name = str(answer.get("type"))
    kind = getattr(errors, name, None) if name in errors.__all__ else None
    if kind is None:
        return errors.InternalError(f"{name}: {answer.get('message')}")
    error: errors.AgentZipError = kind(str(answer.get("message")), str(answer.get("hint", "")))
    return error
