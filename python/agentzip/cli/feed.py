"""
What stands between a screen and a daemon that may be slow: readings and orders, each on its thread.

The screen never waits.  One thread asks the daemon again and again and hands each reading over; an
order (page this out) gets a thread and a connection of its own, because a page out takes seconds.
The threads are daemonic, so that a screen that is left does not wait for one of them either.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Self

from agentzip import model
from agentzip.errors import AgentZipError
from agentzip.sandboxes import Decision, SandboxStatus

__all__ = ["Feed", "FleetClient", "Reading", "faults_per_second"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at everything."""

    sandboxes: list[SandboxStatus]
    engine: model.EngineStats
    memory_total: int
    memory_available: int
    at: float = field(default_factory=time.monotonic)
    """When, in seconds of the monotonic clock."""

    @property
    def gain_bytes(self) -> int:
        """Memory that is out, less pool, tables, indexes and dictionaries."""
        engine = self.engine
        beside = engine.table_bytes + engine.index_bytes + engine.dictionary_bytes
        return sum(one.bytes_logical for one in self.sandboxes) - engine.pool_bytes - beside


class FleetClient(Protocol):
    """What orders need of a connection (`agentzip.control.ControlClient` has it)."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_exception: object) -> None: ...

    def sandbox_page_out(self, sandbox: str) -> int:
        """Page a sandbox out; returns pages."""

    def sandbox_page_in(self, sandbox: str) -> int:
        """Bring a sandbox home; returns pages."""

    def pin(self, sandbox: str, pinned: bool) -> None:
        """Keep a sandbox in memory, or give it back to the planner."""

    def explain(self, sandbox: str) -> list[Decision]:
        """The last decisions, newest first."""


class Feed:
    """
    Readings and orders of one screen.

    Args:
        read: Takes a reading; may block and may raise an AgentZipError.
        connect: Opens a connection for one order.
        every_s: Pause between two readings.
    """

    def __init__(
        self, read: Callable[[], Reading], connect: Callable[[], FleetClient], every_s: float
    ) -> None:
        self.every_s = every_s
        self._read = read
        self._connect = connect
        self._closed = threading.Event()
        self._at_once = threading.Event()

    def start(
        self, on_reading: Callable[[Reading], None], on_error: Callable[[AgentZipError], None]
    ) -> None:
        """Begin to read; both functions are called from another thread."""

        def follow() -> None:
            while not self._closed.is_set():
                try:
                    on_reading(self._read())
                except AgentZipError as error:
                    on_error(error)
                self._at_once.wait(self.every_s)
                self._at_once.clear()

        threading.Thread(target=follow, name="top-readings", daemon=True).start()

    def order(
        self, work: Callable[[FleetClient], str], on_done: Callable[[str, bool], None]
    ) -> None:
        """
        Let the daemon do something.

        Args:
            work: Does it over a connection and says in a sentence what came of it.
            on_done: Called from another thread with that sentence, or with the error's and True.
        """

        def run() -> None:
            try:
                with self._connect() as client:
                    said, failed = work(client), False
            except AgentZipError as error:
                said, failed = str(error), True
            if not self._closed.is_set():
                on_done(said, failed)
            self._at_once.set()

        threading.Thread(target=run, name="top-order", daemon=True).start()

    def close(self) -> None:
        """Take no further reading."""
        self._closed.set()
        self._at_once.set()


def faults_per_second(before: Reading | None, now: Reading) -> dict[str, float]:
    """Refaults per second of each sandbox that is in both readings."""
    if before is None or now.at <= before.at:
        return {}
    known = {one.name: one.faults for one in before.sandboxes}
    return {
        one.name: max(one.faults - known[one.name], 0) / (now.at - before.at)
        for one in now.sandboxes
        if one.name in known
    }
