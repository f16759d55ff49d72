"""
What goes on in the sandboxes: who is there, what each process does, where each is in its life.

Reads the registry, `/proc` and the engine's counters, and keeps one `Life` per sandbox.  New
processes are attached here, within the tick that finds them, because only an attached process can
be looked after.  The lock guards the lives; no engine call is made while it is held.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from agentzip.errors import AgentZipError, NoSuchSandbox
from agentzip.fleet.actions import Actions
from agentzip.fleet.life import Life, ProcessLife
from agentzip.fleet.registry import Registry, Sandbox
from agentzip.fleet.rules import Rules
from agentzip.host.activity import activity
from agentzip.model import SpaceStatus
from agentzip.pager import Pager
from agentzip.policy import breakers, phases

__all__ = ["Observer"]

_log = logging.getLogger(__name__)

_REFUSED_RETRY_S = 60.0
"""A process that could not be attached is tried again after this time."""


class Observer:
    """
    The lives of all sandboxes.

    Args:
        engine: The engine.
        registry: Who is there.
        actions: What attaches.
        rules: What an operator set.
        clock: Seconds, for tests.
    """

    def __init__(
        self,
        engine: Pager,
        registry: Registry,
        actions: Actions,
        rules: Rules,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._actions = actions
        self._clock = clock
        self._looked_at = clock()
        self.rules = rules
        self.processor_price = breakers.Thresholds().processor_price
        """Byte-seconds of memory for one processor second, as the last plan had it."""
        self.lock = threading.RLock()
        self.lives: dict[str, Life] = {}

    def refaults(self) -> int:
        """Pages that came back since the last look, all sandboxes together."""
        with self.lock:
            return sum(
                p.faults_new for life in self.lives.values() for p in life.processes.values()
            )

    def now(self) -> float:
        """The time by the observer's clock."""
        return self._clock()

    def life(self, name: str) -> Life:
        """
        The life of a sandbox.

        Raises:
            NoSuchSandbox: there is none of this name.
        """
        with self.lock:
            if name in self.lives:
                return self.lives[name]
        raise NoSuchSandbox(f"no sandbox is called {name!r}")

    def configure(self, rules: Rules) -> None:
        """Replace what an operator set."""
        with self.lock:
            self.rules = rules
            for life in self.lives.values():
                life.latency_target_s = rules.latency_target_of(life.sandbox)

    def observe(self) -> float:
        """
        Look at everything once.

        Returns:
            The time of the look, by the observer's clock.
        """
        self._find()
        spaces = {space.pid: space for space in self._engine.spaces() if space.pid}
        self._attach_new()
        ended: list[Life] = []
        with self.lock:
            now = self._clock()
            elapsed, self._looked_at = now - self._looked_at, now
            for life in self.lives.values():
                for pid, process in life.processes.items():
                    self._look(pid, process, spaces.get(pid), elapsed, now)
                was_waiting = life.waiting
                life.state = phases.advance(life.state, life.reading(now))
                if was_waiting and not life.waiting:
                    ended.append(life)
            restless = self._touched_while_waiting()
        for process in restless:
            process.add_restless(self._actions.refaults(process.member.pid))
        for life in ended:
            self.wait_ended(life)
        return now

    def wait_ended(self, life: Life) -> None:
        """Learn from a wait that is over: did its page outs pay, and what was needed after it."""
        with self.lock:
            now = self._clock()
            limits = replace(self.rules.breaker, processor_price=self.processor_price)
            life.trimmed = False
            for process in life.processes.values():
                if process.out_at is None or not process.out_pages:
                    continue
                cycle = breakers.Cycle(
                    waited_s=now - process.out_at,
                    pages_out=process.out_pages,
                    pages_back_soon=min(process.back_soon, process.out_pages),
                    cpu_s=process.out_cpu_s,
                )
                life.breaker = breakers.after_cycle(life.breaker, cycle, limits)
                process.out_pages = process.back_soon = 0

    def _find(self) -> None:
        """Take in who has come and gone."""
        changes = self._registry.refresh()
        gone: list[int] = []
        with self.lock:
            now = self._clock()
            # First who has ended: the same name may have been made anew since.
            for sandbox in changes.vanished:
                life = self.lives.pop(sandbox.name, None)
                gone += life.processes if life else []
            for sandbox in self._registry.sandboxes():
                life = self.lives.get(sandbox.name)
                if life is None:
                    life = self.lives[sandbox.name] = self._begin(sandbox, now)
                life.sandbox = sandbox
                life.left_alone = sandbox.refused or life.left_alone
                gone += life.take_members()
            still = {pid for life in self.lives.values() for pid in life.processes}
        for pid in set(gone) - still:
            # It has ended, or its scope was switched off: then it is given back.
            self._actions.release(pid)

    def _begin(self, sandbox: Sandbox, now: float) -> Life:
        return Life(
            sandbox=sandbox,
            state=phases.begin(now),
            latency_target_s=self.rules.latency_target_of(sandbox),
            breaker=breakers.BreakerState(),
        )

    def _attach_new(self) -> None:
        with self.lock:
            now = self._clock()
            new = [
                (life.sandbox, process)
                for life in self.lives.values()
                for process in life.processes.values()
                if not process.attached and now >= process.retry_at
            ]
        for sandbox, process in new:
            self._attach(sandbox, process)

    def _attach(self, sandbox: Sandbox, process: ProcessLife) -> None:
        member = process.member
        try:
            self._actions.attach(member, sandbox.domain, self.rules.prefetch_window)
        except AgentZipError as error:
            process.refused = str(error)
            process.retry_at = self._clock() + _REFUSED_RETRY_S
            _log.info("process %d of %s is left: %s", member.pid, sandbox.name, error)
        else:
            process.attached = True
            process.refused = ""

    def _look(
        self, pid: int, process: ProcessLife, space: SpaceStatus | None, elapsed: float, now: float
    ) -> None:
        seen = activity(pid)
        if seen is not None and seen.start_time == process.member.start_time:
            process.look(seen, elapsed)
        if space is not None and process.attached:
            process.count_faults(space, now, self.rules.thresholds.warm_s)

    def _touched_while_waiting(self) -> list[ProcessLife]:
        """Processes that touched pages that were out though their sandbox waits: its ticks."""
        return [
            process
            for life in self.lives.values()
            if life.waiting
            for process in life.processes.values()
            if process.attached and process.out_at is not None and process.faults_new
        ]
