"""
AgentZip: take memory pages out of idle AI-agent sandboxes and give them back on touch.

    errors        the exception tree
    units         sizes and durations as people write them
    model         settings and reports: the plain values that cross borders
    config        the configuration file: keys, checks, where each value comes from
    pager         the door to the Rust engine
    host          the door to /proc, /sys and /dev
    accounting    what was gained, defined once
    uniform       start processes that are as equal as can be
    dictionaries  the prebuilt dictionaries, with what made them
    training      makes a dictionary and refuses one that holds traces of this machine
    trimming      ask a sandbox to give back what it does not need
    hints         what may be said about a sandbox's life
    local_socket  Unix sockets: made safely, and asked who is at the other end
    control       the local socket
    web           HTTP on Unix sockets, for the host and from inside a sandbox
    client        the Python side of agent platforms
    daemon        engine, socket and tick in one process
    cli           the command line
    demo          real agents, paged out and woken before your eyes
    bench         figures beside the kernel's own, all of one run
    workloads     small real agents to measure on
    sandbox       what runs inside a sandbox; imports nothing of the above but errors
    testing       a fake engine, for tests

The names below are imported on first use: a sandbox that imports `agentzip.sandbox` must not pay
for the daemon's modules.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentzip.client import Client, Sandbox
    from agentzip.control import ControlClient
    from agentzip.daemon import Daemon, EmbeddedDaemon
    from agentzip.errors import AgentZipError
    from agentzip.model import Settings
    from agentzip.pager import Pager, open_engine

__all__ = [
    "AgentZipError",
    "Client",
    "ControlClient",
    "Daemon",
    "EmbeddedDaemon",
    "Pager",
    "Sandbox",
    "Settings",
    "open_engine",
]

_HOMES = {
    "AgentZipError": "errors",
    "Client": "client",
    "ControlClient": "control",
    "Daemon": "daemon",
    "EmbeddedDaemon": "daemon",
    "Pager": "pager",
    "Sandbox": "client",
    "Settings": "model",
    "open_engine": "pager",
}
"""Public name -> the module that has it."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
