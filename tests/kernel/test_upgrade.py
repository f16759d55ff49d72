"""
An engine of another version never touches state that it cannot read; nothing is lost by its try.
"""

import os
from pathlib import Path

import pytest

from agentzip.selftest.host_process import HostProcess
from agentzip.selftest.registry import CheckFailed
from agentzip.selftest.stage import Stage

pytestmark = pytest.mark.timeout(60)

_FORMAT_AT = 8
"""Where a page table says its format: the second word."""


def _write_format(holder: int, value: int) -> int:
    """Change the format of every page table that a process holds; returns the former one."""
    former = 0
    for entry in (Path("/proc") / str(holder) / "fd").iterdir():
        if "memfd:agentzip:table" in os.readlink(entry):
            with entry.open("r+b", buffering=0) as table:
                former = int.from_bytes(os.pread(table.fileno(), 8, _FORMAT_AT), "little")
                os.pwrite(table.fileno(), value.to_bytes(8, "little"), _FORMAT_AT)
    assert former, f"process {holder} holds no page table"
    return former


def test_state_of_another_version_is_refused_and_kept() -> None:
    """The engine says what it cannot read and ends; one that can read it finds every page."""
    with Stage() as stage:
        target = stage.memory(4)
        with HostProcess(stage.run_dir) as first:
            assert first.ready()
            keeper = first.do("stats")["keeper_pid"]
            first.do("attach", pid=target.pid)
            first.do("page_out", pid=target.pid)
            ours = _write_format(first.pid, 999)
            first.kill()
        with (
            HostProcess(stage.run_dir) as second,
            pytest.raises(CheckFailed, match=r"IncompatibleState.*999"),
        ):
            second.ready()
        # Nobody serves it, so it waits; it must not read anything else meanwhile.
        target.send("verify")
        assert target.poll_line(0.5) is None
        assert target.alive()
        assert 999 == _write_format(keeper, ours)
        with HostProcess(stage.run_dir) as third:
            assert third.ready()
            assert {target.pid} == third.adopted
            assert target.read_line(20, "verify").startswith("ok")
            assert third.do("detach", pid=target.pid)["complete"]
            third.do("close")
        target.verify()
