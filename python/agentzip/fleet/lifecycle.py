"""
The tick: observe, plan, act.

    registry, /proc, engine ──► Observer ──► policy.planner ──► Actions ──► engine

One thread ticks, once a second, and at once when a hint says that a wait has begun.  Page outs run
in a second thread, so that a large one delays neither the next tick nor a wake.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from agentzip.errors import AgentZipError
from agentzip.fleet.actions import Actions
from agentzip.fleet.life import Life, ProcessLife
from agentzip.fleet.observer import Observer
from agentzip.fleet.registry import Registry
from agentzip.fleet.rules import Rules
from agentzip.fleet.trimmer import Trimmer
from agentzip.host import memory, pressure, processors
from agentzip.host.activity import TICKS_PER_SECOND, activity
from agentzip.pager import Pager
from agentzip.policy import breakers, phases, planner, prices
from agentzip.sandboxes import AWAKE, Decision

__all__ = ["Lifecycle"]

_log = logging.getLogger(__name__)

_TICK_S = 1.0

_QUIET_S = 2.0
"""How long a process must have been quiet before its memory may leave without a hint."""

_PAGES_MIN = 64
"""Fewer pages that could leave are not worth stopping a thread for."""


class Lifecycle:
    """
    Runs the sandboxes of a host.

    Args:
        engine: The engine.
        registry: Who is there.
        rules: What an operator set.
        before_page_out: Called with the pid before a target's pages leave.
        after_look: Called when a tick has seen who is there; must return at once.
        clock: Seconds, for tests.
    """

    def __init__(
        self,
        engine: Pager,
        registry: Registry,
        rules: Rules,
        before_page_out: Callable[[int], None] = lambda _pid: None,
        after_look: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._after_look = after_look
        self.actions = Actions(engine, before_page_out)
        self.trimmer = Trimmer(self.hurry)
        self.observer = Observer(engine, registry, self.actions, rules, clock)
        self._planner_state = planner.PlannerState()
        self._storm = breakers.Storm()
        self._ticked_at = clock()
        self._processor_times = processors.processor_times()
        self._own_cpu_s = time.process_time()
        self._tick_now = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._out = ThreadPoolExecutor(1, thread_name_prefix="page-out")
        self._leaving: Future[None] | None = None

    def start(self) -> None:
        """Tick until `stop`."""
        self._thread = threading.Thread(target=self._run, name="lifecycle", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the ticks; waits for the page out and the wakes in progress."""
        self._stop.set()
        self._tick_now.set()
        self._out.shutdown(wait=True, cancel_futures=True)
        self.trimmer.close()
        self.actions.close()
        if self._thread is not None:
            self._thread.join()

    def hurry(self) -> None:
        """Let the next tick be now; returns at once."""
        self._tick_now.set()

    def tick(self) -> None:
        """Observe, plan, and begin to act."""
        before, now = self._ticked_at, self.observer.observe()
        self._ticked_at = now
        self._after_look()
        if now > before:
            rate = self.observer.refaults() / (now - before)
            cores = os.cpu_count() or 1
            self._storm = breakers.after_tick(self._storm, rate, cores, breakers.StormRates())
        if self._leaving is not None and not self._leaving.done():
            return
        plan = self._plan(now)
        if plan.page_outs and not self._stop.is_set():
            self._leaving = self._out.submit(self._page_out_all, plan.page_outs)

    def page_out(
        self, life: Life, process: ProcessLife, keep_pages: int = 0, pages_max: int | None = None
    ) -> int:
        """Page one process out, whatever was planned; returns the pages moved."""
        pid = process.member.pid
        report = self.actions.page_out(pid, keep_pages, process.restless, pages_max)
        # What came back before belongs to the time awake.
        self.actions.refaults(pid)
        seen = activity(pid)
        with self.observer.lock:
            partial = pages_max is not None and report.pages_moved >= pages_max
            whole = not (partial or report.interrupted or report.pool_full)
            process.left(self._clock(), report, seen, keep_pages, whole=whole)
            life.cpu_s += report.elapsed_us / 1e6
        return report.pages_moved

    def _run(self) -> None:
        while not self._stop.is_set():
            self._tick_now.clear()
            try:
                self.tick()
            except AgentZipError as error:
                _log.warning("a tick failed and is repeated: %s", error)
            except Exception:  # noqa: BLE001
                # A bug with one sandbox must not end the looking after all others.
                _log.exception("a bug: the tick failed")
            self._tick_now.wait(_TICK_S)

    def _plan(self, now: float) -> planner.Plan:
        host, observer = self._host(), self.observer
        candidates = self._candidates(now)
        for _, processes in candidates:
            for process in processes:
                if process.stay_pages is None:
                    process.stay_pages = self.actions.count_stay(process.member.pid)
        with observer.lock:
            rules = observer.rules
            worth = prices.Prices.of(host, rules.planning.watermarks, reclaiming=False)
            observer.processor_price = worth.processor
            states = tuple(
                life.planned([process.member.pid for process in processes], now, rules.thresholds)
                for life, processes in candidates
            )
            pages_max = max(1, int(rules.planning.pages_per_tick_max * self._storm.factor))
            bounded = replace(rules.planning, pages_per_tick_max=pages_max)
            plan = planner.plan(states, host, bounded, self._planner_state)
            self._planner_state = plan.state
            for leave in plan.leaves:
                self._note(leave, "leave", 0)
        return plan

    def _candidates(self, now: float) -> list[tuple[Life, list[ProcessLife]]]:
        """Sandboxes with those of their processes that have something that could leave."""
        found = []
        with self.observer.lock:
            for life in self.observer.lives.values():
                if self.trimmer.is_trimming(life.sandbox.name):
                    continue
                quiet = phases.quiet_processes(life.state, now, _QUIET_S)
                ready = [
                    process
                    for pid, process in life.processes.items()
                    if process.attached and pid in quiet and process.resident_movable >= _PAGES_MIN
                ]
                if ready:
                    found.append((life, ready))
        return found

    def _host(self) -> planner.Host:
        stats = self._engine.stats()
        before, self._processor_times = self._processor_times, processors.processor_times()
        busy = processors.busy_share(before, self._processor_times)
        own_before, self._own_cpu_s = self._own_cpu_s, time.process_time()
        if busy is not None:
            # What we take ourselves is no sign that others want it.
            ticks = self._processor_times.total - before.total
            own = (self._own_cpu_s - own_before) * TICKS_PER_SECOND / ticks
            busy = max(0.0, busy - own)
        return planner.Host(
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            available_bytes=memory.memory_available(),
            pressure=pressure.memory_pressure() or 0.0,
            cores=os.cpu_count() or 1,
            cpu_idle_share=1.0 if busy is None else 1.0 - busy,
            pool_bytes=stats.pool_bytes,
            pool_bytes_max=stats.pool_bytes_max,
        )

    def _page_out_all(self, orders: Iterable[planner.PageOut]) -> None:
        for order in orders:
            with self.observer.lock:
                life = self.observer.lives.get(order.sandbox)
                process = life.processes.get(order.pid) if life else None
                # It may have gone on meanwhile: what was planned holds no longer.
                stale = life is None or life.pinned or life.state.phase in AWAKE
            if self._stop.is_set():
                return
            if stale or life is None or process is None:
                continue
            try:
                pages = self.page_out(life, process, order.keep_pages, order.pages)
            except AgentZipError as error:
                _log.info("page out of process %d was not done: %s", order.pid, error)
                continue
            with self.observer.lock:
                self._note(order, "page_out", pages)
        # What the plan left for later need not wait for the next second.
        self.hurry()

    def _note(self, about: planner.PageOut | planner.Leave, action: str, pages: int) -> None:
        life = self.observer.lives.get(about.sandbox)
        if life is not None:
            decision = Decision(
                age_s=0.0,
                action=action,
                pid=about.pid,
                pages=pages,
                gain=about.gain,
                cost=about.cost,
                reason=about.reason,
            )
            life.note(self._clock(), decision)
