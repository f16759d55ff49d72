"""docs/hints.md: its commands do what the page says, its limits are those of the code."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip.cli import main
from agentzip.control import ControlServer
from agentzip.fleet import sandbox_socket
from agentzip.fleet.sandbox_socket import SANDBOX_SOCKET, SandboxSocket
from agentzip.sandboxes import PHASES
from agentzip.testing import FakeEngine
from agentzip.web import WebServer, host
from fake_fleet import FakeFleet
from source_tree import ROOT

PAGE = (ROOT / "docs" / "hints.md").read_text()
NAME = "agents.slice/agent-7"


class OneHome(FakeFleet):
    """Every process belongs to the one sandbox."""

    def sandbox_of(self, pid: int) -> str | None:
        """If there is such a process."""
        return NAME if pid > 0 else None


@pytest.fixture
def fleet() -> FakeFleet:
    """A host with the sandbox of the page; every process belongs to it."""
    return OneHome(NAME)


@pytest.fixture
def run_dir(fleet: FakeFleet, tmp_path: Path) -> Iterator[Path]:
    """All sockets of a daemon."""
    servers = (
        ControlServer(FakeEngine([]), tmp_path, fleet=fleet),
        WebServer(fleet, tmp_path),
        SandboxSocket(fleet, tmp_path / SANDBOX_SOCKET),
    )
    for server in servers:
        server.start()
    yield tmp_path
    for server in servers:
        server.close()


def commands(program: str) -> list[list[str]]:
    """The commands of the page that start with this program, as words."""
    return [shlex.split(line) for line in re.findall(rf"^\$ ({program} .*)$", PAGE, re.MULTILINE)]


def test_the_curl_commands_work(run_dir: Path, fleet: FakeFleet) -> None:
    """As they stand, but for where the sockets are."""
    if shutil.which("curl") is None:
        pytest.skip("no curl on this host")
    sockets = {
        "/run/agentzip/http.sock": run_dir / host.HTTP_SOCKET_NAME,
        # Inside the sandbox this is where the folder is mounted.
        "/run/agentzip/sandbox.sock": run_dir / SANDBOX_SOCKET,
    }
    found = commands("curl")
    for words in found:
        placed = [str(sockets.get(word, word)) for word in words]
        subprocess.run([*placed, "--fail", "--silent"], check=True, capture_output=True)

    assert 7 == len(found)
    assert [(NAME, "waiting_model", 8.0), (NAME, "waiting_tool", 2.0)] == fleet.heard
    assert fleet.of[NAME].pinned
    assert ["agent-sandbox-*.slice"] == list(fleet.rules)


def test_the_agentzip_commands_work(run_dir: Path, fleet: FakeFleet) -> None:
    """As they stand."""
    found = commands("agentzip")
    codes = [main(["--run-dir", str(run_dir), *words[1:]]) for words in found]

    assert [0, 0, 0] == codes
    assert [(NAME, "waiting_model", 8.0), (NAME, "running", None)] == fleet.heard


def test_the_table_of_phases_is_complete() -> None:
    """Every phase has its row, in the order of a life."""
    assert list(PHASES) == re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)


def test_the_table_of_limits_is_true() -> None:
    """Numbers of the page are those that hold."""
    ours, theirs = host._LIMITS, sandbox_socket._LIMITS
    of_one = f"{sandbox_socket._CONNECTIONS_OF_ONE_MAX} of one sandbox"
    rate = f"{sandbox_socket._REQUESTS_PER_SECOND:.0f}"
    rows = [
        ("Connections", ours.connections_max, f"{of_one}, {theirs.connections_max} of all"),
        ("Requests", "", f"{rate} at once, then {rate} a second of one sandbox, then 429"),
        ("Size of a request", _kib(ours.request_bytes_max), _kib(theirs.request_bytes_max)),
        ("Time for a request to arrive", f"{ours.request_s:.0f} s", f"{theirs.request_s:.0f} s"),
        ("Silence between requests", f"{ours.idle_s:.0f} s", f"{theirs.idle_s:.0f} s"),
    ]
    lines = ["".join(f"| {cell} " if cell else "| " for cell in row) + "|" for row in rows]

    assert [] == [line for line in lines if line not in PAGE]


def _kib(size: int) -> str:
    return f"{size // 1024} KiB"
