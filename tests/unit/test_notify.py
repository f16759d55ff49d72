"""What the service manager hears, over a socket as systemd makes it."""

import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip.daemon import Daemon, EmbeddedDaemon, tell_manager
from agentzip.daemon.notify import READY, reloading
from agentzip.errors import InvalidSetting
from agentzip.model import Settings
from agentzip.testing import FakeEngine


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """A service manager that listens under a path, or under an abstract name."""
    name = f"agentzip-test-{os.getpid()}"
    path = str(tmp_path / "notify") if request.param == "path" else f"\0{name}"
    monkeypatch.setenv("NOTIFY_SOCKET", path.replace("\0", "@"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(path)
        found.settimeout(20)
        yield found


def test_a_word_arrives_whole(manager: socket.socket) -> None:
    """One datagram each."""
    tell_manager(READY)
    tell_manager(reloading())

    assert b"READY=1" == manager.recv(100)
    first, second = manager.recv(100).decode().split("\n")
    assert "RELOADING=1" == first
    assert second.removeprefix("MONOTONIC_USEC=").isdigit()


def test_nobody_to_tell_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Without a manager nothing is said; one that has gone is logged."""
    caplog.set_level(logging.WARNING)
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    tell_manager(READY)
    assert [] == caplog.records
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    tell_manager(READY)

    assert "READY=1" in caplog.text


def test_a_daemon_tells_each_step_of_its_life(tmp_path: Path) -> None:
    """Ready when it answers; ready again after a reload, a refused one too; stopping."""
    told: list[str] = []
    read = threading.Event()

    def reload() -> None:
        read.set()
        raise InvalidSetting("a key is wrong")

    service = Daemon(
        Settings(run_dir=tmp_path),
        lambda _: FakeEngine([]),
        reload=reload,  # type: ignore[arg-type]
        tell_manager=lambda state: told.append(state.partition("\n")[0]),
    )
    service.start()
    service.request_reload()
    serving = threading.Thread(target=service.serve)
    serving.start()
    assert read.wait(20)
    service.request_stop()
    serving.join(20)

    assert ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"] == told


def test_the_engine_of_one_command_tells_nobody(manager: socket.socket, tmp_path: Path) -> None:
    """`run` may be part of somebody else's service."""
    with EmbeddedDaemon(Settings(run_dir=tmp_path), engine_factory=lambda _: FakeEngine([])):
        pass
    manager.setblocking(False)

    with pytest.raises(BlockingIOError):
        manager.recv(100)
