"""
How often the program is stopped: once per attach and once per page out, however many pages move.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentzip.selftest.conditions import wait_until
from agentzip.selftest.stage import Stage

pytestmark = pytest.mark.timeout(60)

_PAGE_OUTS = 10

_PATIENT_US = 1_000_000
"""Under strace everything is slow; a thread that stops late would be asked a second time."""


@contextmanager
def _traced(trace: Path) -> Iterator[None]:
    """Write down each ptrace call of this process, the engine's, all threads included."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace on this host")
    words = [strace, "-f", "-qq", "-e", "trace=ptrace", "-o", str(trace), "-p", str(os.getpid())]
    with subprocess.Popen(words) as tracer:
        tracers = f"TracerPid:\t{tracer.pid}"
        tasks = Path("/proc/self/task")
        assert wait_until(
            lambda: all(tracers in (task / "status").read_text() for task in tasks.iterdir()), 20
        )
        try:
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(20)


def test_a_page_out_borrows_one_thread_once(tmp_path: Path) -> None:
    """Many steps of a page out cost one stop, and bringing pages back costs none."""
    with Stage() as stage:
        engine = stage.open(algorithm="lz4", chunk_pages=64, stop_limit_us=_PATIENT_US)
        target = stage.memory(8)
        stage.attach(target)
        chunks = 0
        before = engine.stats().stop.count
        with _traced(tmp_path / "trace"):
            for _ in range(_PAGE_OUTS):
                chunks += stage.page_out(target).chunks
                target.verify()

        assert chunks > 10 * _PAGE_OUTS
        # A thread that is to be stopped is seized first, whoever counts it.
        assert _PAGE_OUTS == (tmp_path / "trace").read_text().count("ptrace(PTRACE_SEIZE")
        assert _PAGE_OUTS == engine.stats().stop.count - before
