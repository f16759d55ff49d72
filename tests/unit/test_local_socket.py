"""Unix sockets: made safely, and asked who is at the other end."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentzip import local_socket
from agentzip.errors import AlreadyRunning, InvalidSetting, NotPermitted


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_the_mode_is_the_one_asked_for(tmp_path: Path, mode: int) -> None:
    """Whatever the umask is, and without changing it for other threads."""
    former = os.umask(0o077)
    try:
        local_socket.listen(tmp_path / "a.sock", mode, 1).close()
    finally:
        assert 0o077 == os.umask(former)

    assert mode == stat.S_IMODE((tmp_path / "a.sock").stat().st_mode)


def test_a_busy_listener_is_alive(tmp_path: Path) -> None:
    """One that is too busy to accept us is not taken for dead, and does not hold us up."""
    path = tmp_path / "a.sock"
    with local_socket.listen(path, 0o600, 0):
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(str(path))
        with pytest.raises(AlreadyRunning):
            local_socket.listen(path, 0o600, 1)
        for connection in waiting:
            connection.close()

    assert path.exists()


def test_a_place_that_cannot_hold_a_socket_is_bad_input(tmp_path: Path) -> None:
    """Its path is named."""
    for place in (tmp_path / "no" / "a.sock", tmp_path / ("x" * 200)):
        with pytest.raises(InvalidSetting, match=place.name):
            local_socket.listen(place, 0o600, 1)


def test_operators_are_root_and_ourselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        local_socket.check_peer_is_operator(ours)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        monkeypatch.setattr(local_socket, "_credentials", lambda _: (1, 0))
        local_socket.check_peer_is_operator(ours)
        monkeypatch.setattr(local_socket, "_credentials", lambda _: (1, 54321))
        with pytest.raises(NotPermitted, match="root"):
            local_socket.check_peer_is_operator(ours)


def test_a_peer_is_alive_until_it_ends(tmp_path: Path) -> None:
    """A zombie that nobody has reaped yet speaks no more."""
    path = tmp_path / "a.sock"
    code = "import socket, sys; s = socket.socket(1); s.connect(sys.argv[1]); sys.stdin.read()"
    with local_socket.listen(path, 0o600, 1) as listener:
        listener.settimeout(20)
        with subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE
        ) as child:
            connection, _ = listener.accept()
            with connection, local_socket.PeerProcess(connection) as peer:
                before = peer.is_alive()
                assert child.stdin is not None
                child.stdin.close()
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
                after = peer.is_alive()

    assert child.pid == peer.pid
    assert before
    assert not after
