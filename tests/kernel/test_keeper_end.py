"""
A keeper ends by itself when nobody is left who could miss a page, and answers its own user only.
"""

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agentzip.selftest.conditions import wait_until
from agentzip.selftest.host_process import HostProcess
from agentzip.selftest.stage import Stage

pytestmark = pytest.mark.timeout(60)

_PATIENCE_SECONDS = 15

_NOBODY = 65534

_ASK = """
import os, socket, sys
os.setresuid(*3 * (int(sys.argv[2]),))
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as keeper:
    keeper.settimeout(20)
    keeper.connect(sys.argv[1])
    try:
        keeper.send(b"T")
        print(keeper.recv(16))
    except (BrokenPipeError, ConnectionResetError):
        print(b"")
"""
"""Ask the keeper at an address for all it holds, as a user; prints the answer."""


def _ends(keeper: int) -> bool:
    return wait_until(lambda: not Path(f"/proc/{keeper}").exists(), _PATIENCE_SECONDS)


def _answer(address: Path, user: int) -> str:
    command = [sys.executable, "-c", _ASK, str(address), str(user)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_keeper_whose_daemon_and_targets_are_dead_ends() -> None:
    """It stays for the last target that lives, whose pages the next daemon finds, and no longer."""
    with Stage() as stage:
        first, second = stage.memory(4), stage.memory(4, 2)
        with HostProcess(stage.run_dir) as daemon:
            assert daemon.ready()
            for target in (first, second):
                daemon.do("attach", pid=target.pid)
                daemon.do("page_out", pid=target.pid)
        first.kill()
        first.wait(10)
        with HostProcess(stage.run_dir) as daemon:
            assert daemon.ready()
            assert {second.pid} == daemon.adopted
            second.verify()
            daemon.do("page_out", pid=second.pid)
            keeper = daemon.do("stats")["keeper_pid"]
        second.kill()
        second.wait(10)

        assert _ends(keeper)


def test_a_keeper_without_any_target_ends_with_its_daemon() -> None:
    """A daemon that is killed before it attached anything leaves nothing to keep."""
    with Stage() as stage:
        with HostProcess(stage.run_dir) as daemon:
            assert daemon.ready()
            keeper = daemon.do("stats")["keeper_pid"]

        assert _ends(keeper)
        with HostProcess(stage.run_dir) as daemon:
            assert daemon.ready()
            daemon.do("close")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_keeper_answers_its_own_user_only() -> None:
    """Somebody else gets no word, even where folder and socket were opened for all."""
    with Stage() as stage:
        stage.folder.chmod(0o755)
        with HostProcess(stage.run_dir) as daemon:
            assert daemon.ready()
            address = stage.run_dir / "keeper.sock"
            stage.run_dir.chmod(0o755)
            address.chmod(0o777)

            assert "b'B'" == _answer(address, os.geteuid())
            assert "b''" == _answer(address, _NOBODY)
            daemon.do("close")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_daemon_takes_nothing_over_from_another_user() -> None:
    """Who listens at the keeper's address is asked only if it is of the daemon's own user."""
    with Stage() as stage, closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as fake:
        stage.run_dir.mkdir(mode=0o700)
        fake.bind(str(stage.run_dir / "keeper.sock"))
        os.seteuid(_NOBODY)
        try:
            # The kernel notes who listens.
            fake.listen(1)
        finally:
            os.seteuid(0)
        with HostProcess(stage.run_dir) as daemon, pytest.raises(Exception, match="another user"):
            daemon.ready()
