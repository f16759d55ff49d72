"""
What the daemon's own process may do, and who may reach it: rights, core dumps, sockets, files.
"""

import contextlib
import os
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip.control import SOCKET_NAME
from agentzip.daemon.confinement import CAPABILITIES
from agentzip.selftest.build import ensure_built
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target
from agentzip.web import HTTP_SOCKET_NAME
from daemon_stage import ACTS, DaemonStage, stage_of

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(110)]

_NOBODY = 65534

_CONNECTOR = """
import contextlib, os, socket, sys
os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
with socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[2])) as peer:
    peer.settimeout(20)
    try:
        peer.connect(sys.argv[1])
        # Who is refused may hear so before it has said anything.
        with contextlib.suppress(BrokenPipeError):
            peer.sendall(sys.argv[3].encode())
        print(peer.recv(65536))
    except OSError as error:
        print(type(error).__name__)
"""
"""Connects as nobody, sends the third word, and prints the answer or the error's name."""

_HOLDER = """
import sys
held = [f"{sys.argv[1]}-{number}" for number in range(100_000)]
print("ready 0", flush=True)
sys.stdin.read()
"""
"""Holds the needle a hundred thousand times."""


_WITH_LESS = """
import sys
from pathlib import Path
from agentzip import model, pager
from agentzip.daemon import confinement
from agentzip.errors import NotPermitted
confinement.CAPABILITIES.pop(sys.argv[1], None)
confinement.confine()
try:
    engine = pager.open_engine(model.Settings(run_dir=Path(sys.argv[2])))
    engine.attach(int(sys.argv[3]))
    print(engine.page_out(int(sys.argv[3])).pages_moved)
    engine.detach(int(sys.argv[3]))
    engine.close()
except NotPermitted as refusal:
    print("NotPermitted", refusal)
"""
"""Serves a target without one right more."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[DaemonStage]:
    """A daemon that is not yet started."""
    with stage_of(tmp_path) as made:
        yield made


def _rights(*pids: int) -> dict[str, dict[str, int]]:
    """The sets of capabilities of every thread."""
    found = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            # A thread that answered a client may have ended.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                lines = (task / "status").read_text().splitlines()
                sets = {line[:6]: int(line[7:], 16) for line in lines if line.startswith("Cap")}
                found[str(task)] = sets
    return found


def test_every_thread_and_the_keeper_have_only_the_named_rights(stage: DaemonStage) -> None:
    """Started as root with all of them; and with those few it serves another user's sandbox."""
    stage.start()
    assert stage.daemon is not None
    folder = stage.top / stage.name(1)
    folder.mkdir()
    wrapped = [str(ensure_built() / name) for name in ("seccomp_wrap", "memory")]
    words = [wrapped[0], "kill", "--no-new-privs", "--nobody", wrapped[1], "8", "3"]
    with Target(words) as target:
        (folder / "cgroup.procs").write_text(str(target.pid))
        assert _NOBODY == Path(f"/proc/{target.pid}").stat().st_uid
        stage.out(1)
        assert "2048" == target.verify()
        with stage.client() as client:
            keeper = client.stats().keeper_pid
        few = sum(1 << number for number in CAPABILITIES.values())
        rights = _rights(stage.daemon.pid, keeper)

        assert 5 == len(CAPABILITIES)
        assert len(rights) > 5
        assert few == rights[f"/proc/{stage.daemon.pid}/task/{stage.daemon.pid}"]["CapEff"]
        assert [] == [
            (task, sets) for task, sets in rights.items() if any(n & ~few for n in sets.values())
        ]


@pytest.mark.parametrize("missing", ["", "CAP_DAC_OVERRIDE", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN"])
def test_what_is_kept_is_needed(missing: str, tmp_path: Path) -> None:
    """Another user's process with a filter is served with all, and refused without one of them."""
    with Stage() as stage:
        wrap, memory = stage.program("seccomp_wrap"), stage.program("memory")
        target = stage.start(wrap, "kill", "--no-new-privs", "--nobody", memory, "4", "1")
        words = [sys.executable, "-c", _WITH_LESS, missing, str(tmp_path / "run"), str(target.pid)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)

        if missing:
            assert done.stdout.startswith("NotPermitted"), done.stdout
        else:
            assert 1000 < int(done.stdout)
        target.verify()


def test_a_crash_of_the_daemon_leaves_no_core_and_no_needle(
    stage: DaemonStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGABRT with cores allowed: no file of ours holds what a sandbox had in its memory."""
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    if limits[1] != resource.RLIM_INFINITY:
        pytest.skip("core dumps are limited on this host")
    needle = secrets.token_hex(16)
    place = tmp_path / "cores"
    place.mkdir()
    monkeypatch.chdir(place)
    resource.setrlimit(resource.RLIMIT_CORE, limits[1:] * 2)
    try:
        assert os.WCOREDUMP(_aborted()), "no process on this host leaves a core"
        stage.configure(ACTS + f"pool: {{swap_out_path: {tmp_path / 'swap'}}}\n")
        stage.start()
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limits)
    for core in place.iterdir():
        core.unlink()
    folder = stage.top / stage.name(1)
    folder.mkdir()
    with Target([sys.executable, "-c", _HOLDER, needle], verify="") as target:
        (folder / "cgroup.procs").write_text(str(target.pid))
        stage.out(1)
        assert stage.daemon is not None
        os.kill(stage.daemon.pid, 6)
        assert -6 == stage.daemon.wait(30)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]

        assert [] == list(place.iterdir())
        assert {"log", "swap"} <= {path.name for path in files}
        assert [] == [path for path in files if needle.encode() in path.read_bytes()]
        stage.start()
        stage.until("its pages are served again", lambda: "took over 1 targets" in stage.log())


def _aborted() -> int:
    """The wait status of an ordinary process that aborts."""
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-c", "import os; os.abort()"], os.environ
    )
    return os.waitpid(pid, 0)[1]


def test_no_socket_of_the_operator_is_open_to_another_user() -> None:
    """Not by its mode in a folder that is open, nor to a peer that was let in by mistake."""
    with tempfile.TemporaryDirectory() as folder, stage_of(Path(folder)) as stage:
        # As a careless operator would have it: everybody may come as far as the sockets.
        Path(folder).chmod(0o755)
        former = os.umask(0)
        try:
            stage.run_dir.mkdir()
            stage.start()
        finally:
            os.umask(former)
        _expect_closed_doors(stage.run_dir)


def _expect_closed_doors(run_dir: Path) -> None:
    doors = {
        SOCKET_NAME: ("SOCK_STREAM", '{"method": "ping"}\n'),
        HTTP_SOCKET_NAME: ("SOCK_STREAM", "GET /v1/sandboxes HTTP/1.1\r\n\r\n"),
        "keeper.sock": ("SOCK_SEQPACKET", "T"),
    }
    listening = {path.name for path in run_dir.rglob("*") if path.is_socket()}
    assert set(doors) == listening
    for name, words in doors.items():
        assert "PermissionError" == _as_nobody(run_dir / name, *words), name
    for name in (SOCKET_NAME, HTTP_SOCKET_NAME):
        (run_dir / name).chmod(0o666)
        answer = _as_nobody(run_dir / name, *doors[name])
        assert "operator" in answer or "NotPermitted" in answer, answer
        assert "result" not in answer


def _as_nobody(path: Path, kind: str, words: str) -> str:
    command = [sys.executable, "-I", "-c", _CONNECTOR, str(path), kind, words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_a_keeper_keeps_its_socket_for_its_own_user(stage: DaemonStage) -> None:
    """Who could ask it for its descriptors would have every page that is out."""
    stage.start()
    path = stage.run_dir / "keeper.sock"

    assert 0 == path.stat().st_mode & 0o077
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(20)
        peer.connect(str(path))
        peer.send(b"T")
        # Even to us: as long as its engine lives it gives nothing away.
        assert b"B" == peer.recv(1)
