"""Fault threads answer from the processor on which a program runs."""

import os
from functools import partial
from pathlib import Path

import pytest

from agentzip.selftest.conditions import wait_until
from agentzip.selftest.stage import Stage

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(60)]

_PROCESSOR = 36
"""Position behind the name in /proc/PID/stat (field 39 of proc_pid_stat(5))."""


def test_the_fault_thread_follows_its_program_and_may_run_anywhere() -> None:
    """It is moved once; the processors that it may use are what they were."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("this host has one processor")
    with Stage() as stage:
        engine = stage.open(fault_threads=1)
        target = stage.memory(8)
        stage.attach(target)
        engine.set_prefetch(target.pid, replay=False, window_min=0, window_max=0)
        (thread,) = _fault_threads()

        def follows(processor: int) -> bool:
            stage.page_out(target)
            target.verify()
            return _processor_of(thread) == processor

        for processor in (allowed[0], allowed[-1], allowed[0]):
            os.sched_setaffinity(target.pid, {processor})
            assert wait_until(partial(follows, processor), 10)
            assert set(allowed) == os.sched_getaffinity(thread)


def _fault_threads() -> list[int]:
    threads = Path("/proc/self/task").iterdir()
    named = {int(one.name): (one / "comm").read_text() for one in threads}
    return [thread for thread, name in named.items() if name.startswith("agentzip-fault")]


def _processor_of(thread: int) -> int:
    stat = Path(f"/proc/self/task/{thread}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[_PROCESSOR])
