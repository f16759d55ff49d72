"""
The methods of the control socket that are about sandboxes and scopes.

They speak only the values of `agentzip.sandboxes`.  Without a fleet, which is so for the engine of
one command, each of them says that there is none.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from agentzip import errors
from agentzip.control.wire import JsonObject, flag, integer, number, text
from agentzip.sandboxes import Fleet

__all__ = ["handlers"]

Handler = Callable[[JsonObject], Any]


def handlers(fleet: Fleet | None) -> dict[str, Handler]:
    """What answers each method, by its name."""
    return {name: _bound(method, fleet) for name, method in _METHODS.items()}


def _bound(method: Callable[[Fleet, JsonObject], Any], fleet: Fleet | None) -> Handler:
    def handle(params: JsonObject) -> Any:
        if fleet is None:
            raise errors.DaemonUnreachable(
                "what answers here is the engine of one command, which looks after no sandboxes",
                "start the daemon: `agentzip daemon`",
            )
        return method(fleet, params)

    return handle


def _sandboxes(fleet: Fleet, _params: JsonObject) -> list[JsonObject]:
    return [asdict(sandbox) for sandbox in fleet.sandboxes()]


def _hint(fleet: Fleet, params: JsonObject) -> JsonObject:
    sandbox, phase = text(params, "sandbox"), text(params, "phase")
    return asdict(fleet.hint(sandbox, phase, number(params, "expect_s")))


def _explain(fleet: Fleet, params: JsonObject) -> list[JsonObject]:
    return [asdict(decision) for decision in fleet.explain(text(params, "sandbox"))]


def _page_out(fleet: Fleet, params: JsonObject) -> JsonObject:
    return {"pages": fleet.page_out(text(params, "sandbox"))}


def _page_in(fleet: Fleet, params: JsonObject) -> JsonObject:
    return {"pages": fleet.page_in(text(params, "sandbox"))}


def _pin(fleet: Fleet, params: JsonObject) -> JsonObject:
    sandbox, pinned = text(params, "sandbox"), flag(params, "pinned")
    fleet.pin(sandbox, pinned)
    return {"sandbox": sandbox, "pinned": pinned}


def _run(fleet: Fleet, params: JsonObject) -> JsonObject:
    pid, start_time = integer(params, "pid"), integer(params, "start_time")
    return asdict(fleet.sandbox_run(text(params, "name"), pid, start_time))


def _scopes(fleet: Fleet, _params: JsonObject) -> list[JsonObject]:
    return [asdict(scope) for scope in fleet.scopes()]


def _scope_add(fleet: Fleet, params: JsonObject) -> JsonObject:
    isolation = text(params, "isolation") if "isolation" in params else "scope"
    return asdict(fleet.scope_add(text(params, "pattern"), isolation))


def _scope_enable(fleet: Fleet, params: JsonObject) -> JsonObject:
    return asdict(fleet.scope_enable(text(params, "pattern"), flag(params, "enabled")))


def _scope_remove(fleet: Fleet, params: JsonObject) -> JsonObject:
    return asdict(fleet.scope_remove(text(params, "pattern")))


_METHODS: dict[str, Callable[[Fleet, JsonObject], Any]] = {
    "explain": _explain,
    "hint": _hint,
    "pin": _pin,
    "sandbox_page_in": _page_in,
    "sandbox_page_out": _page_out,
    "sandbox_run": _run,
    "sandboxes": _sandboxes,
    "scope_add": _scope_add,
    "scope_enable": _scope_enable,
    "scope_remove": _scope_remove,
    "scopes": _scopes,
}
