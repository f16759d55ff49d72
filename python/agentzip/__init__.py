"""
AgentZip: take memory pages out of idle AI-agent sandboxes and give them back on touch.

    errors      the exception tree
    model       settings and reports: the plain values that cross borders
    units       sizes and durations as people write them
    pager       the door to the Rust engine
    host        the door to /proc, /sys and /dev
    accounting  what was gained, defined once
    control     the local socket
    daemon      engine, socket and tick in one process
    cli         the command line
    demo        real agents, paged out and woken before your eyes
    testing     a fake engine, for tests
"""

from agentzip.control import ControlClient
from agentzip.daemon import Daemon, EmbeddedDaemon
from agentzip.errors import AgentZipError
from agentzip.model import Settings
from agentzip.pager import Pager, open_engine

__all__ = [
    "AgentZipError",
    "ControlClient",
    "Daemon",
    "EmbeddedDaemon",
    "Pager",
    "Settings",
    "open_engine",
]
