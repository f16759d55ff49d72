"""A fleet of fakes: engine, registry, clock and processes that a test moves by hand."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from agentzip import model
from agentzip.fleet import lifecycle, observer
from agentzip.fleet.life import Life, ProcessLife
from agentzip.fleet.lifecycle import Lifecycle
from agentzip.fleet.registry import Changes, Member, Sandbox
from agentzip.fleet.rules import Rules
from agentzip.fleet.scopes import Rule
from agentzip.host import kinship
from agentzip.host.activity import TICKS_PER_SECOND, Activity
from agentzip.policy import planner
from agentzip.testing import FakeEngine, FakeTarget

__all__ = ["ACTING", "FakeRegistry", "FleetStage", "TracedEngine", "stage_of"]

ACTING = Rules(planning=planner.Rules(watermarks=planner.Watermarks(start=0.02, stop=0.01)))
"""The host has always too much memory in use."""


class FakeRegistry:
    """Sandboxes as a test says."""

    def __init__(self) -> None:
        self.of: dict[str, Sandbox] = {}
        self.error: Exception | None = None
        self._vanished: list[Sandbox] = []

    def refresh(self) -> Changes:
        """What vanished since the last look; nobody asks for the rest."""
        if self.error is not None:
            raise self.error
        vanished, self._vanished = self._vanished, []
        return Changes(vanished=vanished)

    def sandboxes(self) -> list[Sandbox]:
        """Every sandbox."""
        return list(self.of.values())

    def put(self, name: str, *members: tuple[int, int], **facts: object) -> None:
        """Make a sandbox of pids with start times, or change the one that is there."""
        known = self.of.get(name)
        if known is None:
            known = Sandbox(
                name=name,
                rule=Rule(pattern="agents-*", source="config"),
                cgroup=name,
                inode=1,
                domain="scope:agents-*",
                members=(),
                frozen=False,
                refused="",
                first_seen=0.0,
            )
        processes = tuple(
            Member(pid=pid, start_time=start, sandbox=name, command="agent")
            for pid, start in members
        )
        self.of[name] = replace(known, members=processes, **facts)  # type: ignore[arg-type]

    def change(self, name: str, **facts: object) -> None:
        """Change what is known of a sandbox."""
        self.of[name] = replace(self.of[name], **facts)  # type: ignore[arg-type]

    def drop(self, name: str) -> None:
        """End a sandbox."""
        self._vanished.append(self.of.pop(name))


class TracedEngine(FakeEngine):
    """Notes whether a lock was held during a call, and can be made to wait or to fail."""

    def __init__(self, targets: list[FakeTarget], adopted: list[int] | None = None) -> None:
        super().__init__(targets, adopted)
        self.held: list[str] = []
        """Calls during which the observer's lock was held by the caller."""
        self.observer: observer.Observer | None = None
        self.gate: threading.Event | None = None
        """A page out waits for it, if there is one."""
        self.entered = threading.Event()
        self.page_out_error: Exception | None = None
        self.templates: list[int] = []
        self.wake_bounds: list[int | None] = []

    def __getattribute__(self, name: str) -> object:
        """Note the lock at each call from outside."""
        value = super().__getattribute__(name)
        if not name.startswith("_") and callable(value):
            watched = super().__getattribute__("__dict__").get("observer")
            if watched is not None and watched.lock._is_owned():
                super().__getattribute__("held").append(name)
        return value

    def page_out(
        self,
        pid: int,
        ranges: list[tuple[int, int]] | None = None,
        keep: list[tuple[int, int]] | None = None,
        pages_max: int | None = None,
    ) -> model.PageOutReport:
        """As a page out that takes its time."""
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(10)
        if self.page_out_error is not None:
            raise self.page_out_error
        return super().page_out(pid, ranges, keep, pages_max)

    def wake(
        self, pid: int, *, pages_max: int | None = None, first: int | None = None
    ) -> model.WakeReport:
        """Note the bound."""
        self.wake_bounds.append(pages_max)
        return super().wake(pid, pages_max=pages_max, first=first)

    def export_learned(self, pid: int) -> bytes:
        """Note whose."""
        self.templates.append(pid)
        return super().export_learned(pid)


class FleetStage:
    """A lifecycle whose world is in a test's hands."""

    def __init__(self, rules: Rules, *pids: int, adopted: Mapping[int, str]) -> None:
        self.now = 1000.0
        self.ticks: dict[int, float] = {}
        self.running: set[int] = set()
        self.start_times = dict.fromkeys(pids, 1)
        kinships = {pid: (domain, "python") for pid, domain in adopted.items()}
        targets = [
            FakeTarget(pid, pages=1000, kinship=kinships.get(pid, ("", "")))
            for pid in {*pids, *adopted}
        ]
        self.engine = TracedEngine(targets, list(adopted))
        self.registry = FakeRegistry()
        self.lifecycle = Lifecycle(
            self.engine,
            self.registry,  # type: ignore[arg-type]
            rules,
            clock=lambda: self.now,
        )
        self.host = planner.Host(
            memory_bytes=16 << 30,
            available_bytes=8 << 30,
            pressure=0.0,
            cores=2,
            cpu_idle_share=0.5,
            pool_bytes=0,
            pool_bytes_max=8 << 30,
        )
        """What the planner sees of the host, whatever goes on where the test runs."""
        self.lifecycle._host = lambda: self.host  # type: ignore[method-assign]
        self.observer = self.lifecycle.observer
        self.engine.observer = self.observer

    def activity(self, pid: int) -> Activity | None:
        """What /proc would say."""
        target = self.engine.targets.get(pid)
        if target is None:
            return None
        rss = target.pages - target.pages_out
        ticks = int(self.ticks.get(pid, 0.0))
        return Activity(self.start_times[pid], pid in self.running, ticks, rss)

    def pass_time(self, seconds: float = 1.0, cores: float = 0.0, *pids: int) -> None:
        """Let time pass in which processes take so many cores; those not named take none."""
        self.now += seconds
        for pid in pids:
            self.ticks[pid] = self.ticks.get(pid, 0.0) + seconds * cores * TICKS_PER_SECOND

    def tick(self, seconds: float = 1.0, cores: float = 0.0, *pids: int) -> None:
        """Let time pass and tick, and let what the tick began come to its end."""
        self.pass_time(seconds, cores, *pids)
        self.lifecycle.tick()
        self.settle()

    def tick_only(self) -> None:
        """A tick after a second; what it began goes on."""
        self.pass_time()
        self.lifecycle.tick()

    def settle(self) -> None:
        """Wait for page outs and for what goes on in the background."""
        if self.lifecycle._leaving is not None:
            self.lifecycle._leaving.result(10)
        pool = self.lifecycle.actions._pool
        # All its threads meet here, so none of them is at anything else any more.
        meeting = threading.Barrier(pool._max_workers)
        for future in [pool.submit(meeting.wait, 10) for _ in range(meeting.parties)]:
            future.result(10)

    def life(self, name: str = "a") -> Life:
        """One sandbox's life."""
        return self.observer.life(name)

    def process(self, pid: int, name: str = "a") -> ProcessLife:
        """One process of it."""
        return self.life(name).processes[pid]

    def calls(self, kind: str) -> list[int]:
        """Pids of the engine calls of one kind."""
        return [pid for name, pid in self.engine.calls if name == kind]


def stage_of(
    monkeypatch: pytest.MonkeyPatch,
    rules: Rules = ACTING,
    pids: tuple[int, ...] = (11,),
    adopted: Mapping[int, str] = MappingProxyType({}),
) -> FleetStage:
    """
    A stage with one sandbox `a` of these processes, which no tick has seen yet.

    Those that another daemon left attached are `adopted`, each with its trust domain.
    """
    stage = FleetStage(rules, *pids, adopted=adopted)
    look: Callable[[int], Activity | None] = stage.activity
    for module in (observer, lifecycle):
        monkeypatch.setattr(module, "activity", look)
    monkeypatch.setattr(kinship, "image_of", lambda _pid: "python")
    stage.registry.put("a", *((pid, 1) for pid in pids))
    return stage
