"""
Give back memory that a browser holds but does not need, over its DevTools port.

The browser must have been started with `--remote-debugging-port`; whoever drives it calls this, or
names the port to `serve_trim(devtools=...)`.  Every page's JavaScript heap is collected, then the
browser is told that memory is critically short, on which it drops caches in all its processes and
goes on.  Pages are not reloaded and lose nothing that they can see.

Needs the optional package `websockets` (`pip install agentzip[chromium]`).
"""

import contextlib
import itertools
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from agentzip.errors import InvalidSetting, TrimRefused
from agentzip.sandbox.memory import resident_bytes

__all__ = ["BrowserReport", "trim_browser"]

_PAGE_KINDS = {"page", "iframe", "worker", "service_worker", "shared_worker"}
"""Kinds of DevTools targets that have a JavaScript heap of their own."""

_SETTLE_SECONDS = 1.0
"""Dropping caches goes on for a moment behind the answer: the longest wait for its end."""

_LOOK_SECONDS = 0.1

_MESSAGE_BYTES_MAX = 2**20
"""Longest message that is read from the browser; the ones that are used have some KiB."""


@dataclass(frozen=True, slots=True)
class BrowserReport:
    """What a browser gave back."""

    heaps: int
    """Pages and workers whose heap was collected."""
    freed_bytes: int
    """How far the resident memory of all its processes fell; never below zero."""
    resident_bytes: int
    """What is resident afterwards; shared pages count once for each process."""


class _Connection(Protocol):
    """What is used of a websocket."""

    def send(self, message: str) -> None: ...
    def recv(self, timeout: float | None = None) -> str | bytes: ...


class _DevTools:
    """Calls over one connection, with one deadline for all of them."""

    def __init__(self, connection: _Connection, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._numbers = itertools.count(1)

    def call(self, method: str, session: str = "", **parameters: object) -> dict[str, Any]:
        """Call a method and wait for its answer; events in between are skipped."""
        number = next(self._numbers)
        request = {"id": number, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        self._connection.send(json.dumps(request))
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            answer = json.loads(self._connection.recv(timeout=left))
            if answer.get("id") != number:
                continue
            if "error" in answer:
                raise TrimRefused(f"browser refuses {method}: {answer['error'].get('message')}")
            result: dict[str, Any] = answer["result"]
            return result


def trim_browser(devtools: str, timeout_seconds: float = 10.0) -> BrowserReport:
    """
    Collect the heaps of a browser and let it drop its caches.

    Args:
        devtools: Address of the DevTools port, like `http://127.0.0.1:9222`.
        timeout_seconds: Bound of the whole.

    Raises:
        InvalidSetting: the address is none, or the package `websockets` is missing.
        TrimRefused: the browser does not answer, or refuses.
    """
    parts = urlsplit(devtools)
    if parts.scheme != "http" or not parts.hostname:
        raise InvalidSetting(
            f"devtools is no address of a DevTools port: {devtools!r}",
            "write it like http://127.0.0.1:9222",
        )
    try:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect
    except ImportError as error:
        raise InvalidSetting(
            "the package websockets is missing", "pip install 'agentzip[chromium]'"
        ) from error
    deadline = time.monotonic() + timeout_seconds
    try:
        address = _browser_address(devtools, timeout_seconds)
        with connect(
            address,
            open_timeout=timeout_seconds,
            close_timeout=1,
            max_size=_MESSAGE_BYTES_MAX,
            proxy=None,
            compression=None,
        ) as connection:
            return _trim(_DevTools(connection, deadline))
    except (OSError, WebSocketException, urllib.error.URLError, ValueError, KeyError) as error:
        raise TrimRefused(
            f"browser does not answer at {devtools}: {type(error).__name__}: {error}",
            "start it with --remote-debugging-port and give that port",
        ) from error


def _browser_address(devtools: str, timeout_seconds: float) -> str:
    # A proxy of the environment must not see this: the port is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{devtools.rstrip('/')}/json/version", timeout=timeout_seconds) as answer:
        return str(json.loads(answer.read(_MESSAGE_BYTES_MAX))["webSocketDebuggerUrl"])


def _trim(browser: _DevTools) -> BrowserReport:
    before = _resident(browser)
    heaps = 0
    for target in browser.call("Target.getTargets")["targetInfos"]:
        if target["type"] in _PAGE_KINDS:
            # A page may close meanwhile; what is gone needs no trim.
            with contextlib.suppress(TrimRefused):
                _collect(browser, target["targetId"])
                heaps += 1
    browser.call("Memory.simulatePressureNotification", level="critical")
    after = _settled(browser)
    return BrowserReport(heaps, max(0, before - after), after)


def _collect(browser: _DevTools, target: str) -> None:
    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    try:
        browser.call("HeapProfiler.collectGarbage", session)
    finally:
        with contextlib.suppress(TrimRefused):
            browser.call("Target.detachFromTarget", sessionId=session)


def _resident(browser: _DevTools) -> int:
    """Resident memory of all processes of the browser, as far as they can be seen from here."""
    found = browser.call("SystemInfo.getProcessInfo")["processInfo"]
    return sum(resident_bytes(int(process["id"])) for process in found)


def _settled(browser: _DevTools) -> int:
    end = time.monotonic() + _SETTLE_SECONDS
    lowest = _resident(browser)
    while time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
        now = _resident(browser)
        if now >= lowest:
            break
        lowest = now
    return lowest
