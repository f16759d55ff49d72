"""Trim hooks inside real Python and Node processes, and the request from outside."""

import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentzip.cli import main
from agentzip.errors import InvalidSetting, NoSuchProcess, TrimRefused
from agentzip.host import processes
from agentzip.sandbox import SOCKET_VARIABLE, TrimServer, node_hook, serve_trim, trim
from agentzip.sandbox.memory import resident_bytes
from agentzip.trimming import TrimAnswer, request_trim

_HELD = 64 * 2**20

# Cycles keep the blocks until a collection; small ones, so that malloc keeps their room.
_PYTHON = f"""
import gc, sys
gc.disable()
from agentzip.sandbox import serve_trim
server = serve_trim()
def make():
    last = None
    for _ in range({_HELD} // 4096):
        block = [bytearray(4000)]
        block.append(block)
    return bytearray(4000)
top = make()
print("ready" if server else "idle", flush=True)
sys.stdin.read()
"""

_NODE = """
let held = [];
for (let i = 0; i < 1000000; i++) held.push({ i, text: 'item ' + i });
held = null;
console.log('ready');
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
"""


@contextmanager
def running(words: list[str], path: Path | None, **more: str) -> Iterator["subprocess.Popen[str]"]:
    """A sandbox that has said its first word; its input ends with the block."""
    environment = {"PATH": os.environ["PATH"], **more}
    if path is not None:
        environment[SOCKET_VARIABLE] = str(path)
    process = subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() in {"ready", "idle"}
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def node() -> str:
    """The Node of this host."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("no node on this host")
    return program


def test_the_package_is_light_in_a_sandbox() -> None:
    """What a sandbox imports brings neither the engine nor a package from elsewhere."""
    code = "import sys, json, agentzip.sandbox; print(json.dumps(list(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    names = set(json.loads(result.stdout))
    elsewhere = {"typer", "rich", "pydantic", "yaml", "websockets", "numpy"}
    own = {name for name in names if name.partition(".")[0] == "agentzip"}

    assert not elsewhere & names
    assert {"agentzip", "agentzip.errors"} == {
        name for name in own if not name.startswith("agentzip.sandbox")
    }


def test_a_trim_tells_what_it_did() -> None:
    """The figures are bytes, never negative, and the rest is what is resident."""
    # In a process of its own: the one of the tests has threads that take and give memory.
    code = (
        "import dataclasses, json\n"
        "from agentzip.sandbox import trim\n"
        "from agentzip.sandbox.memory import resident_bytes\n"
        "print(json.dumps([dataclasses.asdict(trim()), resident_bytes()]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    report, resident = json.loads(result.stdout)

    assert report["collected_bytes"] >= 0
    assert report["arrow_bytes"] == 0
    assert report["malloc_bytes"] >= 0
    assert resident == pytest.approx(report["resident_bytes"], rel=0.2)


def test_arrow_is_asked_only_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """An imported pyarrow gives back what its pool holds; it is never imported for that."""
    asked = []

    class Pool:
        def release_unused(self) -> None:
            asked.append(True)

    class Arrow:
        default_memory_pool = Pool

    trim()
    assert "pyarrow" not in sys.modules
    monkeypatch.setitem(sys.modules, "pyarrow", Arrow)
    trim()

    assert [True] == asked


def test_a_python_sandbox_gives_memory_back(tmp_path: Path) -> None:
    """The resident memory falls by what was held in cycles and free blocks."""
    path = tmp_path / "trim.sock"
    with running([sys.executable, "-c", textwrap.dedent(_PYTHON)], path) as process:
        before = resident_bytes(process.pid)
        start_time = processes.process(process.pid).start_time
        mode = path.stat().st_mode & 0o777
        answer = request_trim(process.pid, start_time)
        after = resident_bytes(process.pid)

    assert answer is not None
    assert process.pid == answer.pid == answer.answered_by
    assert 0o600 == mode
    assert before - after > _HELD // 2
    assert answer.figures["collected_bytes"] + answer.figures["malloc_bytes"] > _HELD // 2


def test_a_node_sandbox_gives_memory_back(tmp_path: Path, node: str) -> None:
    """A preloaded hook serves the same protocol; the collector stays out of the program's sight."""
    program = tmp_path / "agent.js"
    program.write_text(f"if (global.gc) process.exit(3);{_NODE}")
    path = tmp_path / "trim.sock"
    with running([node, "--require", str(node_hook()), str(program)], path) as process:
        before = resident_bytes(process.pid)
        answer = request_trim(process.pid)
        after = resident_bytes(process.pid)

    assert answer is not None
    assert before - after > 20 * 2**20
    assert answer.figures["heap_bytes"] > 20 * 2**20


def test_node_serves_only_where_a_socket_is_named(tmp_path: Path, node: str) -> None:
    """A preloaded hook alone does nothing."""
    program = tmp_path / "agent.js"
    program.write_text(_NODE)
    with running([node, "--require", str(node_hook()), str(program)], None) as process:
        assert request_trim(process.pid) is None


def test_a_stale_socket_is_replaced(tmp_path: Path, node: str) -> None:
    """What a killed process left does not stand in the way, for Python and for Node."""
    path = tmp_path / "trim.sock"
    program = tmp_path / "agent.js"
    program.write_text(f"require({str(node_hook())!r}).serveTrim();" + _NODE)
    for words in ([sys.executable, "-c", _PYTHON], [node, str(program)], [node, str(program)]):
        with running(words, path) as process:
            answer = _ask_patiently(process.pid)
        assert process.pid == answer.answered_by
        assert path.exists()


def _ask_patiently(pid: int) -> TrimAnswer:
    """Node finds out that the file is stale only after its first turn."""
    deadline = time.monotonic() + 20
    while True:
        try:
            answer = request_trim(pid)
        except TrimRefused:
            assert time.monotonic() < deadline
            continue
        assert answer is not None
        return answer


def test_nothing_is_served_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a path and without the variable there is no socket and no thread."""
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    before = threading.active_count()

    assert serve_trim() is None
    assert before == threading.active_count()


def test_a_second_process_of_the_sandbox_leaves_the_socket_to_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the inherited variable it is no error; with a path of its own it is."""
    path = str(tmp_path / "trim.sock")
    monkeypatch.setenv(SOCKET_VARIABLE, path)
    with TrimServer(path, dict):
        assert serve_trim() is None
        with pytest.raises(InvalidSetting, match="trim socket cannot be made"):
            serve_trim(path)
    assert not os.path.exists(path)


def test_a_forked_child_does_not_serve(tmp_path: Path) -> None:
    """The child closes its copy, so that the socket ends with the process that serves it."""
    path = str(tmp_path / "trim.sock")
    code = f"""
import os, sys
from agentzip.sandbox import serve_trim
server = serve_trim({path!r})
if os.fork() == 0:
    print("ready", flush=True)
    sys.stdin.read()
else:
    os._exit(0)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "ready\n" == process.stdout.readline()
    process.wait()
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(path)
    process.communicate()


# ── the host does not trust what it reads ─────────────────────────────────────────────────────────
def _sleeper(path: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        ["sleep", "100"], env={SOCKET_VARIABLE: path, "PATH": "/usr/bin:/bin"}
    )
    # The environment is that of `sleep` only after its exec.
    while SOCKET_VARIABLE not in processes.environment(process.pid):
        pass
    return process


@contextmanager
def _served(path: Path, answer: bytes | None) -> Iterator[None]:
    """A sandbox that answers what it likes; None never answers."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    done = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(10)
            if answer is None:
                done.wait(10)
            else:
                try:
                    connection.sendall(answer)
                except BrokenPipeError:
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        listener.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "not done in time"),
        (b"", "not JSON"),
        (b"\xff\xfe\n", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a":' * 3000 + b"\n", "not JSON"),
        (b"[1]\n", "no object"),
        (b'{"error": "no memory"}\n', "could not trim: 'no memory'"),
        (b"x" * 1_000_000, "not JSON"),
    ],
    ids=["never", "empty", "bytes", "deep", "objects", "list", "error", "long"],
)
def test_an_unfit_answer_is_refused(tmp_path: Path, answer: bytes | None, message: str) -> None:
    """Late, long or strange answers end the request with a sentence."""
    path = tmp_path / "trim.sock"
    process = _sleeper(str(path))
    try:
        with _served(path, answer), pytest.raises(TrimRefused, match=message):
            request_trim(process.pid, timeout_seconds=0.5)
    finally:
        process.kill()
        process.wait()


def test_only_whole_numbers_are_taken_from_an_answer(tmp_path: Path) -> None:
    """Everything else in it is left out."""
    path = tmp_path / "trim.sock"
    process = _sleeper(str(path))
    answer = {"a": 1, "b": 1.5, "c": "x", "d": True, "e": 2**80, "f": [1]}
    try:
        with _served(path, json.dumps(answer).encode() + b"\n"):
            found = request_trim(process.pid)
    finally:
        process.kill()
        process.wait()

    assert found is not None
    assert {"a": 1} == found.figures


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("link", "no socket"),
        ("folder-link/real", "cannot be reached"),
        ("file", "no socket"),
        ("missing", "cannot be reached"),
        ("../x", "not absolute and plain"),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, place: str, message: str) -> None:
    """A link could lead to a socket of the host: none is followed."""
    (tmp_path / "file").write_text("")
    (tmp_path / "real").mkdir()
    (tmp_path / "folder-link").symlink_to(tmp_path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "host.sock"))
    (tmp_path / "link").symlink_to(tmp_path / "host.sock")
    process = _sleeper(f"{tmp_path}/{place}")
    try:
        with pytest.raises(TrimRefused, match=message):
            request_trim(process.pid)
    finally:
        process.kill()
        process.wait()
        listener.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a socket of another user")
def test_a_socket_of_another_user_is_refused(tmp_path: Path) -> None:
    """The socket must be the user's that the process runs as."""
    path = tmp_path / "trim.sock"
    process = _sleeper(str(path))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    os.chown(path, 12345, -1)
    try:
        with pytest.raises(TrimRefused, match="belongs to user 12345, not 0"):
            request_trim(process.pid)
    finally:
        process.kill()
        process.wait()
        listener.close()


def test_a_reused_pid_is_not_asked(tmp_path: Path) -> None:
    """With a start time the request is for that very process."""
    path = tmp_path / "trim.sock"
    process = _sleeper(str(path))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    try:
        with pytest.raises(NoSuchProcess):
            request_trim(process.pid, start_time=1)
    finally:
        process.kill()
        process.wait()
        listener.close()


def test_the_command_tells_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`agentzip trim PID` prints the figures; without an offer it ends with its own code."""
    path = tmp_path / "trim.sock"
    with running([sys.executable, "-c", _PYTHON], path) as process:
        codes = [main(["trim", str(process.pid), *more]) for more in ([], ["--json"])]
    words, data = capsys.readouterr().out.splitlines()
    with running([sys.executable, "-c", _PYTHON], None) as process:
        codes.append(main(["trim", str(process.pid)]))

    assert [0, 0, 21] == codes
    assert "collected_bytes" in words
    assert {"collected_bytes", "arrow_bytes", "malloc_bytes", "resident_bytes"} == set(
        json.loads(data)["figures"]
    )
    assert "offers no trim" in capsys.readouterr().err
