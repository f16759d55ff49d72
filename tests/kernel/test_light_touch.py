"""
Looking after sandboxes does not disturb them: which files of theirs are read, and how often.
"""

import collections
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from agentzip.selftest.conditions import wait_until
from daemon_stage import stage_of

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(110)]

_SECONDS = 12
_TICKS_MIN = 6
"""What a daemon makes in that time even on a busy host; it looks once a second."""

_OPENED = re.compile(r'openat\([^"]*"([^"]*)"')

_WALKS = ("smaps", "smaps_rollup", "numa_maps", "clear_refs")
"""Files whose reading or writing walks all pages of a process while its address space is locked."""

_WALKS_MAX = 3
"""Of one process: at a first look at what might leave, and at a page out itself."""


def test_no_look_at_a_process_walks_its_pages(tmp_path: Path) -> None:
    """Sandboxes at rest, with strace on what the daemon opens: at most when pages leave."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace on this host")
    with stage_of(tmp_path) as stage:
        stage.start()
        for number in (1, 2, 3):
            stage.sandbox(number)
        for number in (1, 2, 3):
            stage.attached(number)
        stage.out(1)
        assert stage.daemon is not None
        trace = tmp_path / "trace"
        words = [strace, "-f", "-qq", "-e", "trace=openat", "-o", str(trace)]
        with subprocess.Popen([*words, "-p", str(stage.daemon.pid)]) as tracer:
            status = Path(f"/proc/{stage.daemon.pid}/status")
            assert wait_until(lambda: f"TracerPid:\t{tracer.pid}" in status.read_text(), 20)
            time.sleep(_SECONDS)
            tracer.send_signal(signal.SIGINT)
            tracer.wait(20)
        opened = collections.Counter(_OPENED.findall(trace.read_text()))
        walks = {path: n for path, n in opened.items() if path.rpartition("/")[2] in _WALKS}

        assert _TICKS_MIN <= opened["/proc/pressure/memory"]
        assert [] == [path for path, count in walks.items() if count > _WALKS_MAX]
        assert [] == [path for path in walks if "clear_refs" in path]
        assert {"2048"} == {sleeper.verify() for sleeper in stage.sleepers}
