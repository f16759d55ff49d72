"""A real Python program in a control group of its own gives memory back before it is paged out."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip.config import Scope
from agentzip.control import detach_all
from agentzip.fleet import FleetRunner, FleetSettings
from agentzip.sandbox import SOCKET_VARIABLE
from agentzip.sandboxes import SandboxStatus
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.stage import Stage

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(110)]

_HELD = 64 * 2**20

# Cycles keep the blocks until a collection; small ones, so that malloc keeps their room.
_AGENT = f"""
import gc, sys
gc.disable()
from agentzip.sandbox import serve_trim
gc.callbacks.append(lambda phase, info: phase == "stop" and print(info["collected"], flush=True))
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


@pytest.fixture
def agent(tmp_path: Path) -> "Iterator[subprocess.Popen[str]]":
    """A program that holds garbage and agrees to be asked."""
    with subprocess.Popen(
        [sys.executable, "-c", _AGENT],
        env={**os.environ, SOCKET_VARIABLE: str(tmp_path / "trim.sock")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as found:
        assert found.stdout is not None
        assert "ready\n" == found.stdout.readline()
        yield found
        found.kill()


def _only(runner: FleetRunner) -> SandboxStatus | None:
    found = runner.service.sandboxes()
    return found[0] if found and found[0].pids else None


def test_a_hinted_wait_collects_garbage_before_pages_leave(
    group: Path, agent: "subprocess.Popen[str]"
) -> None:
    """What leaves is less than the garbage alone was, and the program goes on."""
    (group / "cgroup.procs").write_text(str(agent.pid))
    settings = FleetSettings(scopes=(Scope(cgroup=group.name, trim=True),))
    with Stage() as stage:
        engine = stage.open()
        runner = FleetRunner(engine, stage.folder, settings)
        runner.start()
        try:
            assert wait_until(lambda: _only(runner) is not None, 20)
            runner.service.hint(group.name, "waiting_user")
            assert agent.stdout is not None
            assert int(agent.stdout.readline()) >= _HELD // 4096
            assert wait_until(lambda: not runner.lifecycle.trimmer.is_trimming(group.name), 20)
            pages = runner.service.page_out(group.name)
            assert 0 < pages * 4096 < _HELD // 2
            runner.service.hint(group.name, "running")
            runner.service.hint(group.name, "waiting_user")
            assert not runner.lifecycle.trimmer.is_trimming(group.name)
        finally:
            runner.stop()
            detach_all(engine)
    assert agent.poll() is None
