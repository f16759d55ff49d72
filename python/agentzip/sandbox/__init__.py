"""
What runs inside a sandbox, of its own free will.

    here        `waiting`: say what the sandbox waits for; one file that can be copied alone
    memory      `trim`: give back what the program does not need
    trim_socket `serve_trim`: let the host ask for that, over a Unix socket
    chromium    `trim_browser`: the same for a browser, over its DevTools port
    trim.cjs    the same for Node: `require(node_hook())`

Nothing here needs the engine, root, or another package; an unprepared sandbox works as well, it
only keeps more memory.
"""

from agentzip.sandbox.memory import TrimReport, trim
from agentzip.sandbox.trim_socket import SOCKET_VARIABLE, TrimServer, node_hook, serve_trim

__all__ = ["SOCKET_VARIABLE", "TrimReport", "TrimServer", "node_hook", "serve_trim", "trim"]
