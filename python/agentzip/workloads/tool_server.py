"""
The tool server of an agent: a process of its own that serves the files of a folder on loopback.

It says its port on stdout and ends when its stdin does, so it never outlives its agent.

    python -m agentzip.workloads.tool_server FOLDER
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from agentzip.children import Child
from agentzip.errors import InternalError

__all__ = ["main", "tool_server"]

_LOOPBACK = "127.0.0.1"

_LOOK_SECONDS = 3600.0
"""How often the server looks whether it is to end.  It is told by the end of stdin instead: an
agent's server has nothing to do while the agent waits."""


class _Handler(SimpleHTTPRequestHandler):
    """Files, over connections that stay open."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: stdout is for the port."""


@contextmanager
def tool_server(folder: Path) -> Iterator[str]:
    """
    Serve a folder while the block runs; gives the URL.

    Raises:
        InternalError: it did not start.
    """
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "agentzip.workloads.tool_server", str(folder)]
    with Child(subprocess.Popen(command, stdin=pipe, stdout=pipe)) as server:
        assert server.process.stdout is not None
        port = server.process.stdout.readline().decode().strip()
        if not port:
            raise InternalError("the tool server did not start")
        yield f"http://{_LOOPBACK}:{port}"


def main(arguments: list[str] | None = None) -> None:
    """Serve until stdin ends."""
    (folder,) = sys.argv[1:] if arguments is None else arguments
    server = ThreadingHTTPServer((_LOOPBACK, 0), partial(_Handler, directory=folder))
    threading.Thread(target=server.serve_forever, args=(_LOOK_SECONDS,), daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
