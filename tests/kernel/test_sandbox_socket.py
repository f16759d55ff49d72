"""The sandbox's socket across real namespaces: other pids, other mounts, another user."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip.fleet.sandbox_socket import SANDBOX_SOCKET, SandboxSocket
from agentzip.sandbox import here
from fake_fleet import FakeFleet
from source_tree import ROOT
from unix_http import ask


def _namespaces_can_be_made() -> bool:
    words = ["unshare", "--mount", "--pid", "--fork", "true"]
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(
        os.geteuid() != 0 or not _namespaces_can_be_made(),
        reason="mount and pid namespaces cannot be made here (root and `unshare` are needed)",
    ),
]

# What a sandbox runs: the file alone, as nobody, in namespaces of its own.
_INSIDE = """
import os, sys
sys.path.append(sys.argv[1])
import here
os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
for line in sys.stdin:
    print(int(here.hint(line.strip(), 8)), flush=True)
"""

# A daemon in a pid namespace of its own.
_DAEMON = """
import sys
from pathlib import Path
from agentzip.fleet.sandbox_socket import SandboxSocket
from fake_fleet import FakeFleet
server = SandboxSocket(FakeFleet("mine"), Path(sys.argv[1]))
server.start()
print("ready", flush=True)
sys.stdin.read()
server.close()
"""


class Noting(FakeFleet):
    """Takes everybody for one sandbox, and notes what it sees of those who ask."""

    def __init__(self) -> None:
        super().__init__("box")
        self.namespaces: set[int] = set()

    def sandbox_of(self, pid: int) -> str | None:
        """Note how many pid namespaces the process has a pid in."""
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        pids = next(line for line in status.splitlines() if line.startswith("NSpid:"))
        self.namespaces.add(len(pids.split()) - 1)
        return "box"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the socket is on the host."""
    path = tmp_path / SANDBOX_SOCKET
    yield path.parent
    path.unlink(missing_ok=True)


def start(fleet: FakeFleet, folder: Path) -> SandboxSocket:
    """A daemon's socket."""
    server = SandboxSocket(fleet, folder / SANDBOX_SOCKET.name)
    server.start()
    return server


def test_a_sandbox_with_namespaces_of_its_own_is_heard_before_and_after_a_restart(
    folder: Path, tmp_path: Path
) -> None:
    """
    The folder is mounted read-only, as a container runtime does; the user inside is nobody.

    The kernel translates the pid.  A new daemon's socket appears in the mounted folder.
    """
    fleet = Noting()
    first = start(fleet, folder)
    package = Path(str(here.__file__)).parent
    mount = (
        "mount -t tmpfs none /mnt && mkdir /mnt/agentzip && "
        f"mount --bind {folder} /mnt/agentzip && mount -o remount,bind,ro /mnt/agentzip && "
        'exec "$@"'
    )
    inside = subprocess.Popen(
        [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", mount, "sh"),
            *(sys.executable, "-I", "-c", _INSIDE, str(package)),
        ],
        env={**os.environ, "AGENTZIP_SANDBOX_SOCKET": "/mnt/agentzip/sandbox.sock"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        text=True,
    )
    try:
        told = [_say(inside, "waiting_model")]
        first.close()
        told.append(_say(inside, "waiting_user"))
        second = start(fleet, folder)
        told.append(_say(inside, "running"))
        second.close()
    finally:
        inside.kill()
        inside.communicate()

    assert ["1", "0", "1"] == told
    assert [("box", "waiting_model", 8.0), ("box", "running", 8.0)] == fleet.heard
    assert {2} == fleet.namespaces


def _say(inside: "subprocess.Popen[str]", phase: str) -> str:
    assert inside.stdin is not None
    assert inside.stdout is not None
    inside.stdin.write(f"{phase}\n")
    inside.stdin.flush()
    return inside.stdout.readline().strip()


def test_a_process_outside_the_daemons_pid_namespace_is_refused(folder: Path) -> None:
    """The kernel says pid 0 of it, and nobody may speak for pid 0."""
    path = folder / SANDBOX_SOCKET.name
    paths = os.pathsep.join((str(ROOT / "python"), str(ROOT / "tests")))
    words = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", _DAEMON, str(path)]
    with subprocess.Popen(
        words,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdin is not None
        assert "ready\n" == daemon.stdout.readline()
        status, found = ask(path, "PUT", "/v1/phase", {"phase": "done"})
        daemon.stdin.close()
        daemon.wait(timeout=20)

    assert 403 == status
    assert "pid namespace" in found["detail"]
    _until_gone(path)


def _until_gone(path: Path) -> None:
    deadline = time.monotonic() + 20
    while path.exists():
        assert time.monotonic() < deadline, "the daemon removes its socket"
        time.sleep(0.05)
