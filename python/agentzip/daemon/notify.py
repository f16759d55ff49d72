"""
What the service manager is told: ready, reading the configuration again, stopping.

The protocol is sd_notify(3): one datagram of `NAME=value` lines to the socket that $NOTIFY_SOCKET
names; without one nobody is told.  Only `agentzip daemon` tells: `run` and `attach` may stand in
the unit of somebody else's service, which says itself when it is ready.
"""

import logging
import os
import socket
import time

__all__ = ["READY", "STOPPING", "reloading", "tell_manager"]

READY = "READY=1"
"""It serves, or has read its configuration again."""

STOPPING = "STOPPING=1"
"""It gives back what it has."""

_SEND_SECONDS = 1.0
"""A manager that does not read for so long is not told: the sandboxes do not depend on it."""

_log = logging.getLogger(__name__)


def reloading() -> str:
    """It reads its configuration again; the time lets the manager tell one reload from another."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"


def tell_manager(state: str) -> None:
    """Tell the service manager; a failure is logged and changes nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.settimeout(_SEND_SECONDS)
            manager.connect(address)
            manager.sendall(state.encode())
    except OSError as error:
        _log.warning("the service manager cannot be told %s: %s", state.partition("\n")[0], error)
