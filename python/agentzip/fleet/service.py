"""
The face of the sandboxes: what the control socket, HTTP, metrics and the terminal ask.

Implements `sandboxes.Fleet`.  A hint that ends a wait acts in the thread of whoever gave it and
answers when the working set is home; one that says that the wait is about to end is answered at
once, and the set comes home meanwhile.  Everything else only changes what the next tick sees.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace

from agentzip.errors import AgentZipError
from agentzip.fleet.life import Life
from agentzip.fleet.lifecycle import Lifecycle
from agentzip.fleet.registry import Registry
from agentzip.fleet.scopes import Rule, Scopes
from agentzip.fleet.trimmer import is_worth_it
from agentzip.hints import expected_seconds, known_phase
from agentzip.host import memory
from agentzip.policy import breakers
from agentzip.sandboxes import WAITS, Decision, HintReport, SandboxStatus, ScopeStatus

__all__ = ["FleetService"]

_log = logging.getLogger(__name__)

_ADMISSION_S_MAX = 5.0
"""A wake waits so long for memory at most; then it goes on page by page, as faults ask."""

_ADMISSION_LOOK_S = 0.1

_RESUMING_MAX = 4
"""Sandboxes that come home side by side though nobody waits for them yet."""

_MEMORY_FLOOR_BYTES = 256 * 2**20
"""MemAvailable that waking sandboxes leave to the host."""


class FleetService:
    """
    All sandboxes of a host, for everybody who asks.

    Args:
        lifecycle: What runs them.
        registry: Who is there.
        scopes: What selects them.
        clock: Seconds, for tests.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        registry: Registry,
        scopes: Scopes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lifecycle = lifecycle
        self._observer = lifecycle.observer
        self._actions = lifecycle.actions
        self._registry = registry
        self._scopes = scopes
        self._clock = clock
        self._resuming = ThreadPoolExecutor(_RESUMING_MAX, thread_name_prefix="resume")
        self._waking: list[breakers.Wake] = []
        self._room = threading.Condition()

    def close(self) -> None:
        """Wait for the wakes that nobody waits for; those that have not begun are dropped."""
        self._resuming.shutdown(wait=True, cancel_futures=True)

    def sandboxes(self) -> list[SandboxStatus]:
        """Every sandbox, sorted by name."""
        with self._observer.lock:
            now = self._clock()
            return [life.status(now) for _, life in sorted(self._observer.lives.items())]

    def sandbox_of(self, pid: int) -> str | None:
        """Name of the sandbox that a living process belongs to."""
        return self._registry.sandbox_of(pid)

    def hint(
        self, sandbox: str, phase: str, expect_s: float | None = None, source: str = "cli"
    ) -> HintReport:
        """Say where a sandbox is in its life; see `sandboxes.Fleet`."""
        phase, expect_s = known_phase(phase), expected_seconds(expect_s)
        began = time.perf_counter()
        life = self._observer.life(sandbox)
        _log.debug("%s says that sandbox %s is %s", source, sandbox, phase)
        former, wait_is_over = self._observer.heard(life, phase, expect_s)
        if is_worth_it(phase, expect_s):
            with self._observer.lock:
                self._lifecycle.trimmer.consider(life)
        pages_in = None
        if phase == "resuming" and wait_is_over:
            life.announced = True
            life.coming_home = self._begin_wake(life)
        elif phase == "running":
            pages_in = self._until_home(life, wait_is_over=wait_is_over)
        if wait_is_over:
            self._observer.wait_ended(life)
        if phase in WAITS or phase in {"finishing", "done"}:
            self._lifecycle.hurry()
        elapsed_us = (time.perf_counter() - began) * 1e6
        if pages_in is not None:
            with self._observer.lock:
                life.wakes_ms.append(elapsed_us / 1e3)
        return HintReport(
            sandbox=sandbox,
            phase=life.state.phase,
            former_phase=former,
            pages_in=pages_in or 0,
            elapsed_us=round(elapsed_us, 1),
        )

    def explain(self, sandbox: str) -> list[Decision]:
        """The last decisions, newest first."""
        life = self._observer.life(sandbox)
        with self._observer.lock:
            now = self._clock()
            return [
                replace(decision, age_s=round(now - at, 3))
                for at, decision in reversed(life.decisions)
            ]

    def page_out(self, sandbox: str) -> int:
        """Page a sandbox out now; the first refusal is raised when all others were tried."""
        life = self._observer.life(sandbox)
        with self._observer.lock:
            processes = [process for process in life.processes.values() if process.attached]
        pages, refusal = 0, None
        for process in processes:
            try:
                pages += self._lifecycle.page_out(life, process)
            except AgentZipError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal
        return pages

    def page_in(self, sandbox: str) -> int:
        """Bring all of a sandbox home."""
        life = self._observer.life(sandbox)
        return sum(self._actions.page_in(pid) for pid in self._attached(life))

    def pin(self, sandbox: str, pinned: bool) -> None:
        """Keep a sandbox in memory, or give it back to the planner; a pinned one comes home."""
        life = self._observer.life(sandbox)
        with self._observer.lock:
            life.pinned = pinned
        if pinned:
            # What was decided before may still be leaving.
            self._lifecycle.until_left(self._attached(life))
            self.page_in(sandbox)

    def scopes(self) -> list[ScopeStatus]:
        """Every scope, those of the configuration first."""
        return self._registry.statuses()

    def scope_add(self, pattern: str, isolation: str = "scope") -> ScopeStatus:
        """Select more sandboxes, kept over restarts."""
        return self._changed(self._scopes.add(pattern, isolation))

    def scope_enable(self, pattern: str, enabled: bool) -> ScopeStatus:
        """Switch a scope on or off; off gives its sandboxes back."""
        return self._changed(self._scopes.enable(pattern, enabled))

    def scope_remove(self, pattern: str) -> ScopeStatus:
        """Forget a scope that a command added, and give its sandboxes back."""
        return self._changed(self._scopes.remove(pattern))

    def sandbox_run(self, name: str, pid: int, start_time: int) -> ScopeStatus:
        """Let a process and its descendants be a sandbox for as long as they live."""
        scope = self._registry.run(name, pid, start_time)
        self._lifecycle.hurry()
        return scope

    def _changed(self, rule: Rule) -> ScopeStatus:
        self._lifecycle.hurry()
        return self._registry.status(rule)

    def _attached(self, life: Life) -> list[int]:
        with self._observer.lock:
            return [pid for pid, process in life.processes.items() if process.attached]

    def _begin_wake(self, life: Life) -> Future[int] | None:
        """Have the working sets of a sandbox brought home; None once the service is closed."""
        with contextlib.suppress(RuntimeError):
            return self._resuming.submit(self._wake, life)
        return None

    def _until_home(self, life: Life, *, wait_is_over: bool) -> int | None:
        """
        Have the working sets home of a sandbox that goes on now.

        Returns:
            Pages brought home; None if it was not waiting, nor about to go on.
        """
        with self._observer.lock:
            begun, life.coming_home = life.coming_home, None
        if wait_is_over:
            life.announced = True
            return self._wake(life)
        if begun is None:
            return None
        try:
            return begun.result()
        except CancelledError:
            # The daemon is about to stop, and brings everything home.
            return 0

    def _wake(self, life: Life) -> int:
        """Bring the working sets of a sandbox home, when there is room; returns the pages."""
        with self._observer.lock:
            # Not what is out: the last look may have been before the last page out.
            wanted = {
                pid: process.space.learned_pages if process.space else 0
                for pid, process in life.processes.items()
                if process.attached
            }
        with self._admitted(life.sandbox.name, sum(wanted.values())) as granted:
            orders = _shared_out(wanted, granted)
            # A page out that was decided before the hint may begin behind the wake, and end it.
            late = self._lifecycle.leaving(orders)
            reports = self._actions.wake(orders)
            if late:
                self._lifecycle.until_left(late)
                reports += self._actions.wake({pid: orders[pid] for pid in late})
        return sum(report.pages_in + report.pages_following for report in reports)

    @contextlib.contextmanager
    def _admitted(self, name: str, pages: int) -> Iterator[int]:
        """
        Let wakes go on in order as memory allows: a storm of them must not be an out-of-memory.

        Gives the pages that may come home; fewer than asked for when the wait was too long.
        """
        wake = breakers.Wake(name, pages, self._clock())
        deadline = time.monotonic() + _ADMISSION_S_MAX
        with self._room:
            self._waking.append(wake)
            while (granted := self._granted(wake)) < pages and time.monotonic() < deadline:
                self._room.wait(_ADMISSION_LOOK_S)
        try:
            yield granted
        finally:
            with self._room:
                self._waking.remove(wake)
                self._room.notify_all()

    def _granted(self, wake: breakers.Wake) -> int:
        available = memory.memory_available()
        for admitted in breakers.admit(self._waking, available, _MEMORY_FLOOR_BYTES):
            if (admitted.sandbox, admitted.since) == (wake.sandbox, wake.since):
                return admitted.pages
        return 0


def _shared_out(wanted: dict[int, int], granted: int) -> dict[int, int | None]:
    """How many pages each process may have of those granted; None where all may come."""
    if granted >= sum(wanted.values()):
        return dict.fromkeys(wanted)
    orders: dict[int, int | None] = {}
    for pid, pages in wanted.items():
        orders[pid] = min(pages, granted)
        granted -= min(pages, granted)
    return orders
