"""
Memory over time: of the host often, of every sandbox now and then.

Reading PSS walks page tables, so the watch spends at most a twentieth of one processor on it.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from agentzip.bench.fanout.crew import Crew
from agentzip.bench.fanout.modes import Mode
from agentzip.bench.fanout.readings import Footprint, MemoryRun, Sample
from agentzip.children import Stoppable
from agentzip.errors import AgentZipError
from agentzip.host import memory
from agentzip.units import format_bytes

__all__ = ["Watch"]

_LOOK_SECONDS = 0.2
"""Between two looks at the host."""

_SAMPLE_SECONDS = 1.0
_SAMPLE_SHARE = 0.05
"""Least time between two samples of all sandboxes, and most of a processor for them."""

_AVAILABLE_FLOOR = 2**30
"""Free memory below which a run is ended, before the kernel ends something else."""


class Watch(Stoppable):
    """
    Samples until it is stopped.

    Args:
        mode: Whose footprint.
        crew: Whose memory.
        limit_bytes: Host memory that the run may use; 0 for no limit.
        halt: Called once with the reason when memory is short.
    """

    def __init__(
        self, mode: Mode, crew: Crew, limit_bytes: int, halt: Callable[[str], None]
    ) -> None:
        self.playing = False
        """Turns are being taken."""
        self._mode, self._crew = mode, crew
        self._limit, self._halt = limit_bytes, halt
        self._before = memory.memory_available()
        self._kernel_before = memory.kernel_memory()
        self._programs_before = memory.program_memory()
        self._began = time.monotonic()
        self._samples: list[Sample] = []
        self._peak = 0
        self._next_sample = self._began
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self._thread.start()

    @property
    def run(self) -> MemoryRun:
        """All samples so far."""
        return MemoryRun(list(self._samples), self._peak)

    def stop(self) -> None:
        """End the watch; twice does no harm."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            available = memory.memory_available()
            used = self._before - available
            self._peak = max(self._peak, used)
            if self._limit and used > self._limit:
                self._halt(f"beyond the limit: {format_bytes(used)} used")
            if available < _AVAILABLE_FLOOR:
                self._halt(f"the host is short of memory: {format_bytes(available)} left")
            if self.playing and time.monotonic() >= self._next_sample:
                began = time.monotonic()
                self._samples.append(self._sample(used))
                cost = time.monotonic() - began
                self._next_sample = began + max(_SAMPLE_SECONDS, cost / _SAMPLE_SHARE)

    def _sample(self, used: int) -> Sample:
        members = [one for one in self._crew.members if not one.gone]
        use = {one.instance: memory.sum_use(one.pids()) for one in members}
        footprint = self._samples[-1].footprint if self._samples else Footprint()
        # While a daemon is replaced there is nobody to ask: what it took is what it takes.
        with contextlib.suppress(AgentZipError):
            footprint = self._mode.footprint()
        return Sample(
            at_s=time.monotonic() - self._began,
            used_bytes=used,
            footprint=footprint,
            rss={instance: one.rss for instance, one in use.items()},
            pss={instance: one.pss for instance, one in use.items()},
            waiting=frozenset(one.instance for one in members if one.waiting),
            steady=not any(one.finished for one in members),
            kernel_bytes=memory.kernel_memory() - self._kernel_before,
            programs_bytes=memory.program_memory() - self._programs_before,
            file_bytes=sum(one.pss_file for one in use.values()),
            shmem_bytes=sum(one.pss_shmem for one in use.values()),
        )
