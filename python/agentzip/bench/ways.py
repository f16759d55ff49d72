"""
The ways a page can leave and come back: the raw floor, and the engine with one algorithm.

A way has one target of its own and does the same with it in every turn: new content, out (first
time), random touches, home, out again (clean), home in one batch, content checked.
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from agentzip import model
from agentzip.bench.figures import FLOOR, Ledger
from agentzip.bench.target import ALL_CPUS, ONE_CPU, OTHER_CPU, HeapTarget, measure_stops
from agentzip.children import Stoppable
from agentzip.errors import InternalError, TargetBusy, TargetsRemain
from agentzip.pager import Pager, open_engine

__all__ = ["CHUNK_PAGES", "EngineWay", "FloorWay", "Way"]

T = TypeVar("T")

CHUNK_PAGES = model.Settings(run_dir=Path()).chunk_pages
"""Pages the engine moves per step; the floor of a hold moves as many."""

_PAGE_BYTES = 4096
_FAULT_PLACES = (("fault", ONE_CPU), ("fault_across", OTHER_CPU))
"""Measure -> where the server runs.  On one processor a fault costs what software costs; across two
it also costs the wake of a sleeping one, twice, which depends on the host more than on us.  Left to
the scheduler the floor would be now the one, now the other, and no ratio would mean anything; the
engine keeps the two together (waker.rs), which `fault_free` shows."""

_START_SECONDS = 5.0
"""How long the fault threads of an engine may take to start."""

_FORGET_SECONDS = 5.0
"""How long the engine may take to notice that a target ended."""

_BUSY_RETRIES = 20
"""How often to try again; each try may take the stop limit of 20 ms."""


class Way(Protocol):
    """Somebody who takes a turn in every round."""

    name: str

    def turn(self, number: int, touches: int, ledger: Ledger) -> int:
        """Measure once; returns the number of wrong pages."""


class FloorWay(Stoppable):
    """The kernel's primitives alone."""

    name = FLOOR

    def __init__(self, mebibytes: int, folder: Path) -> None:
        self._folder = folder
        self._target = HeapTarget(mebibytes, folder)

    def stop(self) -> None:
        """End the target."""
        self._target.stop()

    def turn(self, number: int, touches: int, ledger: Ledger) -> int:
        """Move, stop, drop and serve; see targets/floor.c."""
        target = self._target
        target.fill(number)
        moves = target.move(CHUNK_PAGES * _PAGE_BYTES)
        ledger.note("hold", FLOOR, moves)
        per_page = sum(moves) / target.pages
        ledger.note("page_out", FLOOR, [per_page])
        ledger.note("page_out_again", FLOOR, [per_page])
        stops = measure_stops(target.pid, 30, self._folder)
        for measure in ("stop", "attach", "detach", "detach_kept"):
            ledger.note(measure, FLOOR, stops)
        target.pin({ONE_CPU})
        for measure, cpu in _FAULT_PLACES:
            target.drop(cpu)
            ledger.note(measure, FLOOR, target.touch(touches, 0, number))
            target.restore()
        target.pin(ALL_CPUS)
        target.drop(OTHER_CPU)
        per_page = target.restore()
        ledger.note("page_in", FLOOR, [per_page])
        # The server is not preempted: its time is processor time.
        ledger.note("page_in_cpu", FLOOR, [per_page])
        return target.count_wrong()


class EngineWay(Stoppable):
    """The engine with one algorithm, on a target of its own."""

    def __init__(self, algorithm: str, level: int | None, mebibytes: int, folder: Path) -> None:
        settings = model.Settings(
            run_dir=folder / f"run-{algorithm}",
            algorithm=algorithm,
            level=level,
            pool_bytes_max=4 * mebibytes * 2**20,
        )
        # LZ4's fast mode is what "LZ4" means everywhere; of zstd the level belongs to the name.
        self.name = f"zstd-{settings.effective_level}" if algorithm == "zstd" else algorithm
        self.bytes_logical = 0
        self.bytes_stored = 0
        self.busy = 0
        """How often a thread could not be borrowed within the stop limit."""
        # Undone from the end: without an engine behind it a target would wait for ever, so the
        # target ends first.
        with ExitStack() as stack:
            before = _fault_threads()
            self._engine: Pager = open_engine(settings)
            stack.callback(self._close)
            self._fault_threads = _await_fault_threads(before, settings.fault_threads)
            self._target = stack.enter_context(HeapTarget(mebibytes, folder))
            self._attach()
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """Detach, end the target and the engine."""
        with self._stack:
            self._insist(lambda: self._engine.detach(self._target.pid, 0))

    @property
    def ratio(self) -> float:
        """How many bytes of pages one stored byte stands for."""
        return self.bytes_logical / max(self.bytes_stored, 1)

    def turn(self, number: int, touches: int, ledger: Ledger) -> int:
        """One round trip of everything; see the module's docstring."""
        target = self._target
        target.fill(number)
        first = self._page_out("page_out", ledger)
        self.bytes_logical, self.bytes_stored = first.bytes_logical, first.bytes_stored
        ledger.note("hold", self.name, first.hold_us)
        self._touch(touches, number, ledger)
        self._engine.page_in(target.pid)
        self._page_out("page_out_again", ledger)
        began = time.thread_time_ns()
        report = self._engine.page_in(target.pid)
        used = (time.thread_time_ns() - began) / 1000
        ledger.note("page_in_cpu", self.name, [used / max(report.pages_in, 1)])
        ledger.note("page_in", self.name, [report.elapsed_us / max(report.pages_in, 1)])
        return target.count_wrong()

    def attach_and_detach(self, times: int, ledger: Ledger) -> None:
        """Let the target go and take it again, with all memory at home."""
        attaches, detaches = [], []
        for _ in range(times):
            detaches.append(self._insist(lambda: self._engine.detach(self._target.pid, 0)))
            attaches.append(self._attach())
        # The first one also gives up the copies kept for pages that might leave unchanged.
        ledger.note("detach_kept", self.name, [detaches[0].elapsed_us])
        ledger.note("detach", self.name, [report.elapsed_us for report in detaches[1:]])
        ledger.note("attach", self.name, [report.attach_us for report in attaches])

    def stop_often(self, times: int, ledger: Ledger) -> None:
        """Page out one page again and again: the one stop is the same however much moves."""
        start = self._target.heap[0]
        stops = []
        for _ in range(times):
            report = self._page_out_ranges([(start, start + _PAGE_BYTES)])
            stops.append(report.stop_us)
            self._engine.page_in(self._target.pid)
        ledger.note("stop", self.name, stops)

    def _touch(self, touches: int, number: int, ledger: Ledger) -> None:
        target = self._target
        target.pin({ONE_CPU})
        for turn, (measure, cpu) in enumerate(_FAULT_PLACES):
            self._place_fault_threads({cpu})
            ledger.note(measure, self.name, target.touch(touches, turn * touches, number))
        self._place_fault_threads(ALL_CPUS)
        target.pin(ALL_CPUS)
        skip = len(_FAULT_PLACES) * touches
        ledger.note("fault_free", self.name, target.touch(touches, skip, number))

    def _place_fault_threads(self, cpus: set[int]) -> None:
        for thread in self._fault_threads:
            os.sched_setaffinity(thread, cpus)

    def _attach(self) -> model.AttachReport:
        return self._insist(lambda: self._engine.attach(self._target.pid))

    def _insist(self, borrow: Callable[[], T]) -> T:
        """On a loaded host a stop may run into its limit; that is told, and tried again."""
        for _ in range(_BUSY_RETRIES):
            try:
                return borrow()
            except TargetBusy:
                self.busy += 1
        return borrow()

    def _close(self) -> None:
        # After a failure the target may have been attached when it ended; it is forgotten soon.
        deadline = time.monotonic() + _FORGET_SECONDS
        while True:
            try:
                return self._engine.close()
            except TargetsRemain:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _page_out_ranges(self, ranges: list[tuple[int, int]]) -> model.PageOutReport:
        return self._insist(lambda: self._engine.page_out(self._target.pid, ranges))

    def _page_out(self, measure: str, ledger: Ledger) -> model.PageOutReport:
        report = self._page_out_ranges([self._target.heap])
        ledger.note(measure, self.name, [report.elapsed_us / max(report.pages_stored, 1)])
        return report


def _await_fault_threads(before: set[int], count: int) -> set[int]:
    """The new fault threads; each takes its name a moment after it was started.

    One that were missed would not be placed, and its figures would pass for what they are not.
    """
    deadline = time.monotonic() + _START_SECONDS
    while len(found := _fault_threads() - before) != count:
        if time.monotonic() > deadline:
            raise InternalError(f"found {len(found)} fault threads of {count}")
        time.sleep(0.01)
    return found


def _fault_threads() -> set[int]:
    """Threads of this process that answer faults, of all engines."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):
            if (task / "comm").read_text().startswith("agentzip-fault"):
                found.add(int(task.name))
    return found
