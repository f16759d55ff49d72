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
from collections import Counter
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
from agentzip.recent import Recent
from agentzip.sandboxes import Decision

__all__ = ["Lifecycle"]

_log = logging.getLogger(__name__)

_TICK_S = 1.0

_QUIET_S = 2.0
"""How long a process must have been quiet before its memory may leave without a hint."""

_PAGES_MIN = 64
"""Fewer pages that could leave are not worth stopping a thread for."""

_LEFT_S_MAX = 5.0
"""How long a wake waits for a page out that was decided before it; it ends at its next chunk."""

_TOLD_S = 30.0
"""While memory costs nothing, a sandbox that goes on waiting is told of so seldom."""

_STORM_S_MIN = 0.5
"""Refaults are counted over this time at least: the rate over a short one means nothing."""


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
        recent: What the engine counts, shared with others who look at it.
    """

    def __init__(
        self,
        engine: Pager,
        registry: Registry,
        rules: Rules,
        before_page_out: Callable[[int], None] = lambda _pid: None,
        after_look: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        recent: Recent | None = None,
    ) -> None:
        self._recent = recent or Recent(engine)
        self._clock = clock
        self._after_look = after_look
        self.actions = Actions(engine, before_page_out)
        self.trimmer = Trimmer(self.hurry)
        self.observer = Observer(engine, registry, self.actions, rules, clock, self._recent)
        self._planner_state = planner.PlannerState()
        self._storm = breakers.Storm()
        self._stormed_at = self._planned_at = clock()
        self._refaults = 0
        self._processor_times = processors.processor_times()
        self._own_cpu_s = time.process_time()
        self._tick_now = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._out = ThreadPoolExecutor(1, thread_name_prefix="page-out")
        self._leaving: Future[None] | None = None
        # Page outs in progress by pid; told when one is over.  The lock is the observer's, so that
        # a hint and the last look before a page out come one after the other.
        self._left = threading.Condition(self.observer.lock)
        self._leaving_pids: Counter[int] = Counter()

    def start(self) -> None:
        """Tick until `stop`."""
        self._thread = threading.Thread(target=self._run, name="lifecycle", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the ticks; waits for the tick, the page out and the wakes in progress."""
        self._stop.set()
        self.observer.closing = True
        self._tick_now.set()
        # The ticks first: they begin what the pools do.
        if self._thread is not None:
            self._thread.join()
        self._out.shutdown(wait=True, cancel_futures=True)
        self.trimmer.close()
        self.actions.close()

    def hurry(self) -> None:
        """Let the next tick be now; returns at once."""
        self._tick_now.set()

    def tick(self) -> None:
        """Observe, plan, and begin to act."""
        now = self.observer.observe()
        self._after_look()
        self._follow_storm(now)
        if self._leaving is not None and not self._leaving.done():
            return
        plan = self._plan(now)
        if plan.page_outs and not self._stop.is_set():
            self._leaving = self._out.submit(self._page_out_all, plan.page_outs)

    def page_out(
        self,
        life: Life,
        process: ProcessLife,
        keep_pages: int = 0,
        pages_max: int | None = None,
        still: Callable[[], bool] = lambda: True,
    ) -> int:
        """Page one process out if it is `still` to be done; returns the pages moved."""
        pid = process.member.pid
        with self._left:
            self._leaving_pids[pid] += 1
            wakes = process.space.wakes if process.space else 0
        try:
            report = self.actions.page_out(pid, keep_pages, process.restless, pages_max, still)
            if report is None:
                return 0
            if wakes > process.wakes_kept:
                # The page out ended the wake: what was learned from it is complete now.
                self.actions.keep_template(pid)
                process.wakes_kept = wakes
            # What came back before belongs to the time awake.
            self.actions.refaults(pid)
            seen = activity(pid)
            with self.observer.lock:
                partial = pages_max is not None and report.pages_moved >= pages_max
                whole = not (partial or report.interrupted or report.pool_full)
                process.left(self._clock(), report, seen, keep_pages, whole=whole)
                life.cpu_s += report.elapsed_us / 1e6
            return report.pages_moved
        finally:
            with self._left:
                self._leaving_pids[pid] -= 1
                self._left.notify_all()

    def leaving(self, pids: Iterable[int]) -> list[int]:
        """Those of some processes whose page out is being prepared or done."""
        with self._left:
            return [pid for pid in pids if self._leaving_pids[pid]]

    def until_left(self, pids: Iterable[int]) -> None:
        """Wait until the page outs of some processes are over; a wake ends each of them early."""
        chosen = list(pids)
        with self._left:
            self._left.wait_for(lambda: not self.leaving(chosen), _LEFT_S_MAX)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._tick_now.clear()
            try:
                self.tick()
            except (AgentZipError, OSError) as error:
                _log.warning("a tick failed and is repeated: %s", error)
            except Exception:  # noqa: BLE001
                # A bug with one sandbox must not end the looking after all others.
                _log.exception("a bug: the tick failed")
            self._tick_now.wait(_TICK_S)

    def _follow_storm(self, now: float) -> None:
        """Let a storm of refaults cut what leaves; counted over a second, not over each tick."""
        elapsed_s = now - self._stormed_at
        if elapsed_s < _STORM_S_MIN:
            return
        new = self.observer.refaults - self._refaults
        self._refaults += new
        self._stormed_at = now
        cores = os.cpu_count() or 1
        rates = breakers.StormRates()
        self._storm = breakers.after_tick(self._storm, new / elapsed_s, cores, rates)

    def _plan(self, now: float) -> planner.Plan:
        host, observer = self._host(), self.observer
        watermarks = observer.rules.planning.watermarks
        worth = prices.Prices.of(host, watermarks, reclaiming=self._planner_state.reclaiming)
        candidates = self._candidates(now, memory_has_price=worth.memory > 0)
        for _, processes in candidates:
            for process in processes:
                if process.stay_pages is None:
                    process.stay_pages = self.actions.count_stay(process.member.pid)
                space = process.space
                if space is not None and space.learned_pages and space != process.expected_at:
                    expected = self.actions.expected(process.member.pid)
                    process.expected_pages, process.expected_out = expected
                    process.expected_at = space
        with observer.lock:
            rules = observer.rules
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

    def _candidates(
        self, now: float, *, memory_has_price: bool
    ) -> list[tuple[Life, list[ProcessLife]]]:
        """Sandboxes with those of their processes that have something that could leave."""
        found = []
        with self.observer.lock:
            for life in self.observer.lives.values():
                if self.trimmer.is_trimming(life.sandbox.name):
                    continue
                # While memory costs nothing it is enough to say so when it is looked at.
                if not memory_has_price and (
                    life.looked_at < self._planned_at or life.waits_as_told(now - _TOLD_S)
                ):
                    continue
                if life.sandbox.frozen:
                    self._note(_frozen(life), "leave", 0)
                    continue
                after_s = 0.0 if life.state.source == "hint" else _QUIET_S
                quiet = phases.quiet_processes(life.state, now, after_s)
                ready = [
                    process
                    for pid, process in life.processes.items()
                    if process.attached and pid in quiet and process.resident_movable >= _PAGES_MIN
                ]
                if ready:
                    found.append((life, ready))
        self._planned_at = now
        return found

    def _host(self) -> planner.Host:
        stats = self._recent.stats()
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
        moved = [self._page_out_planned(order) for order in orders]
        # What the plan left for later need not wait for the next second; what failed must.
        if any(moved) and None not in moved:
            self.hurry()

    def _page_out_planned(self, order: planner.PageOut) -> int | None:
        """Do one page out of a plan; returns the pages, None if it failed."""
        with self.observer.lock:
            life = self.observer.lives.get(order.sandbox)
            process = life.processes.get(order.pid) if life else None
        if self._stop.is_set() or life is None or process is None:
            return 0
        try:
            self.observer.look_again(life, process)
            pages = self.page_out(
                life,
                process,
                order.keep_pages,
                order.pages,
                # It may have gone on meanwhile: what was planned holds no longer.
                lambda: life.may_leave(order.pid),
            )
            if not pages:
                return 0
        except AgentZipError as error:
            _log.info("page out of process %d was not done: %s", order.pid, error)
            return None
        except Exception:  # noqa: BLE001
            # As in a tick: one process is not to take the others' page outs along.
            _log.exception("a bug: page out of process %d failed", order.pid)
            return None
        with self.observer.lock:
            self._note(order, "page_out", pages)
        return pages

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


def _frozen(life: Life) -> planner.Leave:
    """What is told of a sandbox whose threads cannot be borrowed."""
    pid = min(life.processes, default=0)
    reason = "it is frozen: its pages can leave when it is thawed, or before it is frozen"
    return planner.Leave(sandbox=life.sandbox.name, pid=pid, reason=reason)
