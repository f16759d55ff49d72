"""A sandbox that says where it is in its life, over the real socket and without one."""

import ast
import asyncio
import contextlib
import errno
import logging
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip import local_socket
from agentzip.fleet.sandbox_socket import SANDBOX_SOCKET, SandboxSocket
from agentzip.sandbox import here
from fake_fleet import FakeFleet


@pytest.fixture
def fleet() -> FakeFleet:
    """This process is the sandbox."""
    return FakeFleet("mine")


@pytest.fixture
def path(fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The host's socket, where the sandbox looks for it."""
    server = SandboxSocket(fleet, tmp_path / SANDBOX_SOCKET)
    server.start()
    monkeypatch.setenv("AGENTZIP_SANDBOX_SOCKET", str(server.path))
    monkeypatch.setattr(here, "_advice", here.Advice("the host"))
    yield server.path
    server.close()


@pytest.mark.usefixtures("path")
def test_a_wait_is_told_and_ended(fleet: FakeFleet) -> None:
    """The phase with what is expected of it, then that it is over."""
    with here.waiting("model", expect=8):
        inside = here.status()
    after = here.status()

    assert [("mine", "waiting_model", 8.0), ("mine", "running", None)] == fleet.heard
    assert {"phase": "waiting_model", "expected_rest_s": 8.0} == inside
    assert after is not None
    assert "running" == after["phase"]


@pytest.mark.usefixtures("path")
def test_a_wait_is_told_from_a_task(fleet: FakeFleet) -> None:
    """`async with` does the same."""

    async def agent() -> None:
        async with here.waiting("tool"):
            await asyncio.sleep(0)

    asyncio.run(agent())

    assert ["waiting_tool", "running"] == fleet.phases()


@pytest.mark.usefixtures("path")
def test_other_phases_are_told(fleet: FakeFleet) -> None:
    """With an answer whether anybody heard."""
    assert here.hint("starting", 3)
    assert here.finishing()
    assert ["starting", "finishing"] == fleet.phases()


def test_without_a_socket_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A sandbox on a host without the daemon is the same program, and says nothing about it."""
    monkeypatch.setenv("AGENTZIP_SANDBOX_SOCKET", str(tmp_path / "none.sock"))
    with caplog.at_level(logging.DEBUG), here.waiting("user"):
        pass

    assert not here.hint("done")
    assert here.status() is None
    assert "" == caplog.text


def test_a_host_that_has_gone_is_told_once(
    path: Path, fleet: FakeFleet, caplog: pytest.LogCaptureFixture
) -> None:
    """The file of a dead host refuses; the program goes on, and is heard when one is there."""
    backup = path.with_name("aside")
    path.rename(backup)
    dead = SandboxSocket(fleet, path)
    dead._server._listener.close()
    for _ in range(5):
        with here.waiting("model"):
            pass
    path.unlink()
    backup.rename(path)
    heard = here.hint("done")

    assert 1 == caplog.text.count("did not hear")
    assert heard
    assert ["done"] == fleet.phases()


def test_a_crowd_in_front_of_the_socket_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that others have filled delays a word, and does not swallow it."""
    queue = tmp_path / "queue.sock"
    monkeypatch.setenv("AGENTZIP_SANDBOX_SOCKET", str(queue))
    with local_socket.listen(queue, 0o666, 2) as listener, contextlib.ExitStack() as crowd:
        full = False
        while not full:
            one = crowd.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            full = one.connect_ex(str(queue)) == errno.EAGAIN

        def serve() -> None:
            crowd.close()
            asked = b""
            while not asked:
                connection, _ = listener.accept()
                with connection:
                    asked = connection.recv(4096)
                    if asked:
                        connection.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"phase": "done"}')

        serving = threading.Timer(0.2, serve)
        serving.start()
        heard = here.hint("done")
        serving.join()

    assert heard


@pytest.mark.usefixtures("path")
def test_a_refusal_is_told_with_its_reason(
    fleet: FakeFleet, caplog: pytest.LogCaptureFixture
) -> None:
    """What the host says against it stands in the log."""
    fleet.homes.clear()

    assert not here.hint("done")
    assert "belongs to no sandbox" in caplog.text


def test_a_wait_for_nothing_known_is_a_mistake() -> None:
    """It is the program's own error, so it is raised."""
    with pytest.raises(ValueError, match="model, tool, user"):
        here.waiting("godot")


def test_the_file_works_copied_alone(path: Path, fleet: FakeFleet, tmp_path: Path) -> None:
    """In an interpreter that has nothing else, and that imports little because of it."""
    shutil.copy(str(here.__file__), tmp_path / "here.py")
    code = """
import sys
import here
assert not [name for name in sys.modules if name.startswith("agentzip")]
assert not {"asyncio", "http", "concurrent", "typer"} & set(sys.modules)
with here.waiting("tool", expect=2):
    pass
"""
    fleet.homes = _Everybody()
    subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.append({str(tmp_path)!r})\n{code}",
        ],
        env={"AGENTZIP_SANDBOX_SOCKET": str(path)},
        check=True,
    )

    assert [("mine", "waiting_tool", 2.0), ("mine", "running", None)] == fleet.heard


def test_the_file_is_for_older_pythons_too() -> None:
    """What a sandbox's image has is not ours to choose: nothing newer than 3.8 is written in it."""
    text = Path(str(here.__file__)).read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    names = [node.names[0].name for node in tree.body if isinstance(node, ast.ImportFrom)]

    assert "annotations" == names[0]


class _Everybody(dict[int, str]):
    """Every process is in the one sandbox."""

    def get(self, _pid: int, _default: object = None) -> str:
        """That one."""
        return "mine"
