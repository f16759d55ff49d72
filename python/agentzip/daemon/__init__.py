"""
The daemon: one engine, its sockets, the sandboxes of the host.

    serving      start, tick, stop
    embedded     the same for the lifetime of one command
    signals      SIGTERM, SIGINT and SIGHUP
    notify       what the service manager is told
    log_filter   a log that a lasting failure cannot fill
    confinement  what it gives up before it serves anybody
"""

from agentzip.daemon.confinement import confine
from agentzip.daemon.embedded import EmbeddedDaemon
from agentzip.daemon.log_filter import RepeatFilter
from agentzip.daemon.notify import tell_manager
from agentzip.daemon.serving import Daemon, Reloaded, StopOutcome, default_run_dir
from agentzip.daemon.signals import stop_on_signals

__all__ = [
    "Daemon",
    "EmbeddedDaemon",
    "Reloaded",
    "RepeatFilter",
    "StopOutcome",
    "confine",
    "default_run_dir",
    "stop_on_signals",
    "tell_manager",
]
