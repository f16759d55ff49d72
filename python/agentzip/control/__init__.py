"""
The local socket: how the command line reaches a running daemon.

    wire     lines, errors and parameters, which both ends have in common
    server   the daemon's end
    fleet    its methods that are about sandboxes and scopes
    client   the asking end
"""

from agentzip.control.client import ControlClient
from agentzip.control.server import ControlServer, detach_all
from agentzip.control.wire import SOCKET_NAME, JsonObject

__all__ = ["SOCKET_NAME", "ControlClient", "ControlServer", "JsonObject", "detach_all"]
