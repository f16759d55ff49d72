"""HTTP over a Unix socket as any client has it, for tests."""

import contextlib
import http.client
import json
import socket
from pathlib import Path
from typing import Any

__all__ = ["UnixConnection", "ask", "raw_exchange"]


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to a socket file."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self) -> None:
        """Connect to the file."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(str(self.path))


def ask(path: Path, method: str, target: str, body: object = None) -> tuple[int, Any]:
    """One request on a connection of its own; status and what the JSON says."""
    connection = UnixConnection(path)
    try:
        connection.request(method, target, None if body is None else json.dumps(body))
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    return response.status, json.loads(text) if text else None


def raw_exchange(path: Path, data: bytes) -> bytes:
    """Send bytes as they are, then read until the other side hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(data)
        answer = b""
        # A peer that did not read all that we sent resets when it hangs up.
        with contextlib.suppress(ConnectionResetError):
            while block := connection.recv(65536):
                answer += block
        return answer
