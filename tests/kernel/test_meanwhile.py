"""
A sandbox is paused, or ended, in the middle of a call of ours: the call ends.
"""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from agentzip.errors import NoSuchProcess, TargetBusy, TargetGone
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.stage import Stage

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(60)]

_CALL_SECONDS = 10.0
"""Two seconds of patience, and what a busy host adds."""


def test_a_page_out_ends_though_its_target_was_frozen_in_it(group: Path) -> None:
    """The borrowed thread is frozen on its way to its call: it goes home instead of making it."""
    with Stage() as stage:
        # The second pass: the first belongs to the attach.
        engine = stage.open(crash_at="borrow.armed:2:pause")
        target = stage.memory(8)
        (group / "cgroup.procs").write_text(str(target.pid))
        stage.attach(target)
        freezing = threading.Timer(0.3, (group / "cgroup.freeze").write_text, ("1",))
        freezing.start()
        began = time.monotonic()
        with pytest.raises(TargetBusy, match="was frozen while one of its threads was borrowed"):
            engine.page_out(target.pid)
        took_s = time.monotonic() - began
        freezing.join()
        frozen = (group / "cgroup.events").read_text()
        threads = len(list(Path(f"/proc/{target.pid}/task").iterdir()))
        (group / "cgroup.freeze").write_text("0")

        assert wait_until(lambda: "frozen 0" in (group / "cgroup.events").read_text(), 10)
        target.verify()
        assert took_s < _CALL_SECONDS
        assert "frozen 1" in frozen
        assert threads == len(list(Path(f"/proc/{target.pid}/task").iterdir()))
        assert 0 < stage.page_out(target).pages_moved
        target.verify()


@pytest.mark.parametrize("point", ["borrow.armed", "borrow.cloned", "borrow.homeward"])
def test_an_attach_ends_though_its_target_was_killed_in_it(point: str) -> None:
    """Its only thread is borrowed: it is not told as ended before the worker was waited for."""
    with Stage() as stage:
        engine = stage.open(crash_at=f"{point}:1:pause")
        target = stage.memory(8)
        killing = threading.Timer(0.3, os.kill, (target.pid, signal.SIGKILL))
        killing.start()
        began = time.monotonic()
        with pytest.raises((TargetGone, NoSuchProcess)):
            engine.attach(target.pid)
        killing.join()

        assert time.monotonic() - began < _CALL_SECONDS
        assert [] == engine.spaces()
