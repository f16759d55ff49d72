"""
Who may ask for the figures, and how often they are made.

A port has no permissions: whoever can reach it can read names and sizes of sandboxes.  So it is a
loopback address, always.  What is asked within a second gets the same text,
so the cost is bounded whatever is asked; connections and their time are bounded as well.
"""

import ipaddress
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from agentzip.errors import AgentZipError, InvalidSetting
from agentzip.metrics.survey import Surveyor
from agentzip.pager import Pager

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from agentzip.metrics.collector import Sandboxes

__all__ = ["MetricsServer", "parse_address"]

_CONNECTIONS_MAX = 8
"""Served at once; one scraper needs one.  Further ones are hung up on."""

_CONNECTION_SECONDS_MAX = 5.0
"""A client that neither asks nor reads for so long is hung up on."""

_FRESH_SECONDS = 1.0
"""For so long a text is given again instead of made anew."""

_SANDBOXES_MAX = 100
"""Sandboxes with series of their own unless somebody says otherwise: about 1200 series."""

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""One format for everybody, so that there is one text to keep."""

_log = logging.getLogger(__name__)


def parse_address(text: str) -> tuple[str, int]:
    """
    Read an address to listen on.

    Args:
        text: `127.0.0.1:9477` or `[::1]:9477`; port 0 lets the kernel choose.

    Raises:
        InvalidSetting: it is no such address, or other machines reach it.
    """
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    # A name is refused: what it stands for may change, and with it who can read.
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        address = None
    if (
        address is None
        or not (port.isascii() and port.isdigit() and int(port) <= 65535)
        or (bare != host) != (address.version == 6)
    ):
        raise InvalidSetting(
            f"metrics address cannot be listened on: {text!r}",
            "write an address and a port, like 127.0.0.1:9477 or [::1]:9477",
        )
    if not address.is_loopback:
        raise InvalidSetting(
            f"metrics address can be reached from other machines: {text}",
            "write 127.0.0.1 or [::1], and let a proxy that asks who it is serve others",
        )
    return bare, int(port)


class MetricsServer:
    """
    Serves `/metrics` until it is closed.

    Args:
        engine: Whose figures are exported.
        fleet: Whose sandboxes are exported.
        address: Where to listen, see `parse_address`.
        sandboxes_max: How many sandboxes, the largest, have series of their own; 0 for none.
        clock: Seconds, for tests.

    Raises:
        InvalidSetting: the address cannot be used, or prometheus-client is not installed.
    """

    def __init__(
        self,
        engine: Pager,
        fleet: "Sandboxes",
        address: str,
        *,
        sandboxes_max: int = _SANDBOXES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        place = parse_address(address)
        if sandboxes_max < 0:
            raise InvalidSetting(f"sandboxes_max is below zero: {sandboxes_max}", "give 0 or more")
        self._surveyor = Surveyor(engine, lambda: [os.getpid(), engine.stats().keeper_pid])
        page = _Page(_registry(engine, fleet, self._surveyor, sandboxes_max), clock)
        try:
            self._server = _Server(place, page)
        except OSError as error:
            raise InvalidSetting(
                f"metrics address cannot be listened on: {address}: {error.strerror or error}",
                "choose a free port of this machine",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer, and to look at what is too dear for a scrape."""
        self._surveyor.start()
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(timeout=2)
        self._server.server_close()
        self._surveyor.close()


def _registry(
    engine: Pager, fleet: "Sandboxes", surveyor: Surveyor, sandboxes_max: int
) -> "CollectorRegistry":
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector

        from agentzip.metrics.collector import HostCollector
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise InvalidSetting(
            "metrics need the package prometheus-client, which is not installed",
            "install the extra `metrics`: pip install 'agentzip[metrics]'",
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(HostCollector(engine, fleet, lambda: surveyor.last, sandboxes_max))
    ProcessCollector(registry=registry)
    return registry


class _Page:
    """The text, made at most once a second and by one thread at a time."""

    def __init__(self, registry: "CollectorRegistry", clock: Callable[[], float]) -> None:
        self._registry = registry
        self._clock = clock
        self._made_at = float("-inf")
        self._text = b""
        # Guards the text and the collector.  No fault waits for it: fault threads are Rust alone.
        self._lock = threading.Lock()

    def text(self) -> bytes:
        """
        All figures, in the text format that every Prometheus reads.

        Raises:
            AgentZipError: engine or fleet do not answer.
        """
        from prometheus_client import generate_latest

        with self._lock:
            now = self._clock()
            if now - self._made_at >= _FRESH_SECONDS:
                self._text = generate_latest(self._registry)
                self._made_at = now
            return self._text


class _Server(ThreadingHTTPServer):
    """An HTTP server with bounded connections."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, place: tuple[str, int], page: _Page) -> None:
        self.page = page
        self._places = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        super().__init__(place, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a thread, if there is room for one."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no further thread can be started
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """A client that hung up is no event."""
        _log.debug("metrics connection ended: %s", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One request, one answer."""

    server: _Server
    timeout = _CONNECTION_SECONDS_MAX
    server_version = "agentzip"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer `/metrics`."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "only /metrics is here")
            return
        try:
            text = self.server.page.text()
        except AgentZipError as error:
            _log.warning("no metrics: %s", error)
            self.send_error(503, "the figures cannot be read")
            return
        self.send_response(200)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, template: str, *args: Any) -> None:
        """Log as the rest of the daemon does."""
        _log.debug(template, *args)
