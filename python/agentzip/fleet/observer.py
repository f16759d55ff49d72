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
from contextlib import suppress
from dataclasses import replace

from agentzip.errors import AgentZipError, NoSuchSandbox
from agentzip.fleet.actions import Actions
from agentzip.fleet.life import Life, ProcessLife
from agentzip.fleet.registry import Registry, Sandbox
from agentzip.fleet.rules import Rules
from agentzip.host import kinship
from agentzip.host.activity import activity
from agentzip.model import SpaceStatus
from agentzip.pager import Pager
from agentzip.policy import breakers, phases
from agentzip.recent import Recent

__all__ = ["Observer"]

_log = logging.getLogger(__name__)

_REFUSED_RETRY_S = 60.0
"""A process that could not be attached is tried again after this time."""

_RELEASE_AGAIN_S = 10.0
"""Those that could not be given back are tried again after this time."""


class Observer:
    """
    The lives of all sandboxes.

    Args:
        engine: The engine.
        registry: Who is there.
        actions: What attaches.
        rules: What an operator set.
        clock: Seconds, for tests.
        recent: What the engine counts, shared with others who look at it.
    """

    def __init__(
        self,
        engine: Pager,
        registry: Registry,
        actions: Actions,
        rules: Rules,
        clock: Callable[[], float] = time.monotonic,
        recent: Recent | None = None,
    ) -> None:
        self._recent = recent or Recent(engine)
        self._registry = registry
        self._actions = actions
        self._clock = clock
        self._released_at = clock()
        # From the daemon before this one; those that were attached by hand are nobody's here.
        self._adopted = set(engine.adopted(not_in=("", kinship.NO_SCOPE)))
        self.rules = rules
        self.processor_price = breakers.Thresholds().processor_price
        """Byte-seconds of memory for one processor second, as the last plan had it."""
        self.refaults = 0
        """Pages that came back because they were touched, all sandboxes together, ever."""
        self.closing = False
        """Nobody new is attached any more."""
        self.lock = threading.RLock()
        """Guards the lives and the rules.  No engine call is made under it, and no file is read:
        whoever gives a hint waits for it."""
        self.lives: dict[str, Life] = {}
        self._of_pid: dict[int, Life] = {}

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
            window_changed = rules.prefetch_window != self.rules.prefetch_window
            self.rules = rules
            for life in self.lives.values():
                life.latency_target_s = rules.latency_target_of(life.sandbox)
            attached = [
                process.member.pid
                for life in self.lives.values()
                for process in life.processes.values()
                if process.attached
            ]
        if window_changed:
            for pid in attached:
                # One that goes meanwhile needs none.
                with suppress(AgentZipError):
                    self._actions.set_window(pid, rules.prefetch_window)

    def expected_rest_s(self, pid: int) -> float | None:
        """How long the wait of a process is expected to go on; None if it is in no sandbox."""
        with self.lock:
            life = self._of_pid.get(pid)
            return phases.expected_rest_s(life.state, self._clock()) if life else None

    def observe(self) -> float:
        """
        Look at everything once.

        Returns:
            The time of the look, by the observer's clock.

        Raises:
            OSError: the host cannot be looked at now, for want of descriptors or memory.
        """
        self._find()
        # As they are now: what has just left is not to be planned for again.
        self._count(self._recent.spaces_now())
        self._attach_new()
        self._look()
        return self._clock()

    def look_again(self, life: Life, process: ProcessLife) -> None:
        """Look at one process now, and judge its sandbox by it."""
        seen = activity(process.member.pid)
        with self.lock:
            now = self._clock()
            if seen is not None and seen.start_time == process.member.start_time:
                process.look(seen, now)
            life.state = phases.advance(life.state, life.reading(now))

    def heard(self, life: Life, phase: str, expect_s: float | None) -> tuple[str, bool]:
        """
        Take in what a sandbox says of itself.

        Returns:
            The phase before, and whether a wait is over with this one.
        """
        with self.lock:
            pids = list(life.processes)
        # What they did until now must not be taken for what they do from here on.
        seen = {pid: activity(pid) for pid in pids}
        with self.lock:
            now = self._clock()
            former, was_waiting = life.state.phase, life.waiting
            hint = phases.Hint(phase=phase, at=now, expect_s=expect_s)
            life.state = phases.apply_hint(life.state, hint)
            for pid, process in life.processes.items():
                look = seen.get(pid)
                if look is not None and look.start_time == process.member.start_time:
                    process.measure_anew(look, now)
            return former, was_waiting and not life.waiting

    def wait_ended(self, life: Life) -> None:
        """Learn from a wait that is over: did its page outs pay, and what was needed after it."""
        with self.lock:
            now = self._clock()
            limits = replace(self.rules.breaker, processor_price=self.processor_price)
            life.trimmed = False
            for process in life.processes.values():
                cycle = process.wait_over(now)
                if cycle is not None:
                    life.breaker = breakers.after_cycle(life.breaker, cycle, limits)

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
                    life.take_members()
                if life.sandbox is not sandbox:
                    life.sandbox = sandbox
                    life.latency_target_s = self.rules.latency_target_of(sandbox)
                    gone += life.take_members()
            self._of_pid = {pid: life for life in self.lives.values() for pid in life.processes}
            gone = [pid for pid in (*gone, *self._adopted) if pid not in self._of_pid]
            self._adopted.clear()
        for pid in gone:
            # It has ended, or no scope selects it any more: then it is given back.
            self._actions.release(pid)
        if now - self._released_at >= _RELEASE_AGAIN_S:
            self._released_at = now
            self._actions.release_rest()

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
                if not process.attached
                and now >= process.retry_at
                # Nobody can be borrowed before the thaw, which is seen within a tick.
                and not life.sandbox.frozen
            ]
        for sandbox, process in new:
            if self.closing:
                return
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

    def _count(self, spaces: list[SpaceStatus]) -> None:
        """Take in what the engine counted; who is no longer there is to be attached anew."""
        of_pid = {space.pid: space for space in spaces if space.pid}
        with self.lock:
            now, warm_s = self._clock(), self.rules.thresholds.warm_s
            for life in self.lives.values():
                for pid, process in life.processes.items():
                    if not process.attached:
                        continue
                    space = of_pid.get(pid)
                    if space is None:
                        # It became another program: nothing that was known of it holds.
                        life.processes[pid] = ProcessLife(process.member)
                    elif space is not process.space:
                        process.count_faults(space, now, warm_s)

    def _look(self) -> None:
        """See what the processes do, and judge by it where their sandboxes are."""
        with self.lock:
            now = self._clock()
            due = [life for life in self.lives.values() if life.due(now)]
            pids = [pid for life in due for pid in life.processes]
        # Reading takes longer than anything else here, and hints wait for the lock.
        seen = {pid: activity(pid) for pid in pids}
        ended: list[Life] = []
        with self.lock:
            now = self._clock()
            for life in due:
                life.looked_at = now
                for pid, process in life.processes.items():
                    look = seen.get(pid)
                    if look is not None and look.start_time == process.member.start_time:
                        process.look(look, now)
                was_waiting = life.waiting
                life.state = phases.advance(life.state, life.reading(now))
                life.judge(now)
                if was_waiting and not life.waiting:
                    ended.append(life)
            restless = self._touched_while_waiting(due)
            processes = [process for life in due for process in life.processes.values()]
            self.refaults += sum(process.faults_new for process in processes)
            for process in processes:
                process.faults_new = 0
        for process in restless:
            ranges = self._actions.refaults(process.member.pid)
            with self.lock:
                process.add_restless(ranges)
        for life in ended:
            self.wait_ended(life)

    @staticmethod
    def _touched_while_waiting(lives: list[Life]) -> list[ProcessLife]:
        """Processes that touched pages that were out though their sandbox waits: its ticks."""
        return [
            process
            for life in lives
            if life.waiting
            for process in life.processes.values()
            if process.attached and process.out_at is not None and process.faults_new
        ]
