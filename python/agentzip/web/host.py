"""
What the host's own people and programs may ask: everything about every sandbox.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentzip import hints, local_socket
from agentzip.errors import InvalidSetting, NoSuchSandbox, NoSuchScope
from agentzip.sandboxes import (
    PHASES,
    Decision,
    Fleet,
    HintReport,
    SandboxStatus,
    ScopeStatus,
)
from agentzip.web import openapi
from agentzip.web.answers import Answer, Request
from agentzip.web.routes import Call, Route, dispatch
from agentzip.web.serving import Guest, Limits, UnixHttpServer

__all__ = ["HTTP_SOCKET_NAME", "ROUTES", "Hint", "WebServer", "host_document"]

HTTP_SOCKET_NAME = "http.sock"
"""Name of the socket within the run directory."""

_LIMITS = Limits(
    # As many as the control socket serves; a keep-alive connection holds a thread.
    connections_max=32,
    # A pattern or a phase; nothing that can be asked is longer.
    request_bytes_max=64 * 1024,
    request_s=10.0,
    idle_s=60.0,
)


@dataclass(frozen=True, slots=True)
class Hint:
    """Where a sandbox is in its life."""

    phase: str = field(metadata={"enum": list(PHASES)})
    expect: str | float | None = None
    """How long it is expected to last: seconds, or text with a unit like `8s`; at most a week."""


@dataclass(frozen=True, slots=True)
class PagesMoved:
    """What an order to move pages did."""

    sandbox: str
    pages: int


@dataclass(frozen=True, slots=True)
class NewScope:
    """A rule that selects sandboxes."""

    pattern: str
    """cgroup pattern like `agent-sandbox-*.slice`, or `pid:N`."""
    isolation: str = field(default="scope", metadata={"enum": ["scope", "sandbox"]})
    """Who may share pages: the sandboxes of the scope, or nobody."""


@dataclass(frozen=True, slots=True)
class ScopeChange:
    """Whether a scope is on."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class Health:
    """A daemon that answers."""

    status: str
    """`ok`."""
    pid: int
    """Of the daemon."""


def _health(_call: Call) -> Health:
    return Health("ok", os.getpid())


def _openapi(_call: Call) -> dict[str, Any]:
    return host_document()


def _sandboxes(call: Call) -> list[SandboxStatus]:
    return call.fleet.sandboxes()


def _sandbox(call: Call) -> SandboxStatus:
    name = call.names["name"]
    for status in call.fleet.sandboxes():
        if status.name == name:
            return status
    raise NoSuchSandbox(f"no such sandbox: {name}")


def _set_phase(call: Call) -> HintReport:
    phase = hints.known_phase(call.body.phase)
    expect_s = hints.expected_seconds(call.body.expect)
    return call.fleet.hint(call.names["name"], phase, expect_s, source="http")


def _decisions(call: Call) -> list[Decision]:
    return call.fleet.explain(call.names["name"])


def _page_out(call: Call) -> PagesMoved:
    name = call.names["name"]
    return PagesMoved(name, call.fleet.page_out(name))


def _page_in(call: Call) -> PagesMoved:
    name = call.names["name"]
    return PagesMoved(name, call.fleet.page_in(name))


def _pin(call: Call) -> None:
    call.fleet.pin(call.names["name"], pinned=True)


def _unpin(call: Call) -> None:
    call.fleet.pin(call.names["name"], pinned=False)


def _scopes(call: Call) -> list[ScopeStatus]:
    return call.fleet.scopes()


def _add_scope(call: Call) -> ScopeStatus:
    return call.fleet.scope_add(call.body.pattern, call.body.isolation)


def _change_scope(call: Call) -> ScopeStatus:
    return call.fleet.scope_enable(call.names["pattern"], call.body.enabled)


def _remove_scope(call: Call) -> ScopeStatus:
    return call.fleet.scope_remove(call.names["pattern"])


def _of_sandbox(method: str, tail: str, summary: str, handler: Callable[[Call], Any]) -> Route:
    """A route without a body that concerns one sandbox."""
    returns = handler.__annotations__["return"]
    return Route(
        method=method,
        path=f"/v1/sandboxes/{{name}}{tail}",
        summary=summary,
        handler=handler,
        returns=returns,
        raises=(NoSuchSandbox,),
    )


ROUTES = (
    Route(
        method="GET",
        path="/v1/health",
        summary="Whether the daemon answers.",
        handler=_health,
        returns=Health,
    ),
    Route(
        method="GET",
        path="/v1/openapi.json",
        summary="This document.",
        handler=_openapi,
        returns=dict,
    ),
    Route(
        method="GET",
        path="/v1/sandboxes",
        summary="Every sandbox, sorted by name.",
        handler=_sandboxes,
        returns=list[SandboxStatus],
    ),
    _of_sandbox("GET", "", "One sandbox.", _sandbox),
    Route(
        method="PUT",
        path="/v1/sandboxes/{name}/phase",
        summary="Say where a sandbox is in its life.  A phase that ends a wait is answered when "
        "the working set is home.",
        handler=_set_phase,
        returns=HintReport,
        body=Hint,
        raises=(InvalidSetting, NoSuchSandbox),
    ),
    _of_sandbox("GET", "/decisions", "The last decisions and why, newest first.", _decisions),
    _of_sandbox("POST", "/page-out", "Page a sandbox out now.", _page_out),
    _of_sandbox("POST", "/page-in", "Bring all of a sandbox home.", _page_in),
    _of_sandbox("POST", "/pin", "Keep a sandbox in memory.", _pin),
    _of_sandbox("POST", "/unpin", "Give a sandbox back to the planner.", _unpin),
    Route(
        method="GET",
        path="/v1/scopes",
        summary="Every scope, those of the configuration first.",
        handler=_scopes,
        returns=list[ScopeStatus],
    ),
    Route(
        method="POST",
        path="/v1/scopes",
        summary="Select more sandboxes, kept over restarts.",
        handler=_add_scope,
        returns=ScopeStatus,
        body=NewScope,
        raises=(InvalidSetting,),
    ),
    Route(
        method="PATCH",
        path="/v1/scopes/{pattern}",
        summary="Switch a scope on or off; off gives its sandboxes back.",
        handler=_change_scope,
        returns=ScopeStatus,
        body=ScopeChange,
        raises=(InvalidSetting, NoSuchScope),
    ),
    Route(
        method="DELETE",
        path="/v1/scopes/{pattern}",
        summary="Forget a scope that a command or a request added.",
        handler=_remove_scope,
        returns=ScopeStatus,
        raises=(InvalidSetting, NoSuchScope),
    ),
)
"""Everything that can be asked over the host's socket."""


def host_document() -> dict[str, Any]:
    """The OpenAPI document of the host's socket."""
    return openapi.document(
        ROUTES,
        "AgentZip, the host's socket",
        f"Over `{HTTP_SOCKET_NAME}` in the run directory, for root and the daemon's own user.",
    )


class WebServer:
    """
    HTTP for the host: on a socket of mode 0600, and every peer's uid is checked as well.

    Args:
        fleet: Whom the requests are for.
        run_dir: Where the socket is made; it must exist.

    Raises:
        AlreadyRunning: somebody listens there.
        InvalidSetting: the socket cannot be made there.
    """

    def __init__(self, fleet: Fleet, run_dir: Path) -> None:
        self.path = run_dir / HTTP_SOCKET_NAME
        self._fleet = fleet
        self._server = UnixHttpServer(self.path, 0o600, self._admit, _LIMITS)

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    def close(self) -> None:
        """Stop listening and remove the socket; requests in work end by themselves."""
        self._server.close()

    def _admit(self, connection: socket.socket) -> Guest:
        local_socket.check_peer_is_operator(connection)
        return _Operator(self._fleet)


class _Operator:
    """Somebody who may ask anything."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def answer(self, request: Request) -> Answer:
        return dispatch(ROUTES, self._fleet, request)

    def close(self) -> None:
        """Nothing is held for it."""
