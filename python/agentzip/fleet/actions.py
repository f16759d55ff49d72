"""
What is done to the processes of a sandbox: attach, page out, wake, give back.

Each action is one or a few engine calls for whole sandboxes; what to do, and when, is decided
elsewhere.  Templates live here: what one sandbox of an image learned about its wakes is where the
next one of the same image, in the same trust domain, begins.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from agentzip import model
from agentzip.errors import (
    AgentZipError,
    AlreadyAttached,
    NoSuchProcess,
    NotAttached,
    NotEnoughMemory,
    TargetGone,
)
from agentzip.fleet.ranges import PAGE_BYTES, Ranges, first_pages, merged
from agentzip.fleet.registry import Member
from agentzip.host import kinship
from agentzip.pager import Pager

__all__ = ["Actions"]

_log = logging.getLogger(__name__)

_WAKE_THREADS = 4
"""Processes of waking sandboxes that are brought home at the same time; the engine spreads each
over the processors by itself."""

_TEMPLATES_MAX = 256
"""Images whose working sets are remembered; the oldest is forgotten first."""

_GONE = (NotAttached, NoSuchProcess, TargetGone)


class Actions:
    """
    Orders to one engine.

    Args:
        engine: The engine.
        before_page_out: Called with the pid before a target's pages leave.
    """

    def __init__(
        self, engine: Pager, before_page_out: Callable[[int], None] = lambda _pid: None
    ) -> None:
        self._engine = engine
        self._before_page_out = before_page_out
        self._lock = threading.Lock()
        self._kin: dict[int, tuple[str, str]] = {}
        self._templates: dict[tuple[str, str], bytes] = {}
        self._pool = ThreadPoolExecutor(_WAKE_THREADS, thread_name_prefix="wake")

    def close(self) -> None:
        """Wait for the wakes in progress."""
        self._pool.shutdown(wait=True)

    def attach(self, member: Member, domain: str, window: tuple[int, int]) -> None:
        """
        Borrow a process, and let it start with what its kind needs at a wake.

        Args:
            member: Whom.
            domain: Trust domain of its sandbox.
            window: Least and most pages that one fault brings in.

        Raises:
            AgentZipError: the exact reason why not.
        """
        kin = (domain, kinship.image_of(member.pid))
        with contextlib.suppress(AlreadyAttached):
            self._engine.attach(member.pid, member.start_time, domain=kin[0], image=kin[1])
        self._engine.set_prefetch(
            member.pid, replay=True, window_min=window[0], window_max=window[1]
        )
        with self._lock:
            self._kin[member.pid] = kin
            template = self._templates.get(kin)
        if template is not None:
            with contextlib.suppress(AgentZipError):
                self._engine.import_learned(member.pid, template)

    def kin(self, pid: int) -> tuple[str, str] | None:
        """Trust domain and image that a process was attached with; None if it was not."""
        with self._lock:
            return self._kin.get(pid)

    def release(self, pid: int) -> None:
        """Give a process back in the background; one that has gone is no error."""
        with self._lock:
            self._kin.pop(pid, None)
        self._pool.submit(self._detach, pid)

    def page_out(
        self, pid: int, keep_pages: int, restless: Ranges, pages_max: int | None
    ) -> model.PageOutReport:
        """
        Page a process out.

        Args:
            pid: Whom.
            pages_max: Pages to move at most; None for all.
            keep_pages: Pages of the learned set, most valuable first, that stay.
            restless: Ranges that stay because the process touches them while it waits.
        """
        keep = merged([*self._hottest(pid, keep_pages), *restless])
        self._before_page_out(pid)
        return self._engine.page_out(pid, None, keep or None, pages_max)

    def wake(self, pids: Iterable[int], pages_max: int) -> list[model.WakeReport]:
        """
        Bring the working sets of processes home, side by side; those that have gone are left.

        Args:
            pids: Whose.
            pages_max: For each of them at most.
        """
        done = [self._pool.submit(self._wake_one, pid, pages_max) for pid in pids]
        return [report for report in (future.result() for future in done) if report is not None]

    def page_in(self, pid: int) -> int:
        """Bring a process home; returns the pages."""
        with contextlib.suppress(*_GONE):
            return self._engine.page_in(pid).pages_in
        return 0

    def refaults(self, pid: int) -> Ranges:
        """What came back by itself since the last call."""
        with contextlib.suppress(AgentZipError):
            return [(refault.start, refault.end) for refault in self._engine.refaults(pid)]
        return []

    def count_stay(self, pid: int) -> int:
        """Resident pages of a process that may not leave."""
        with contextlib.suppress(AgentZipError):
            regions = self._engine.regions(pid)
            return sum(r.resident_bytes for r in regions if not r.movable) // PAGE_BYTES
        return 0

    def keep_template(self, pid: int) -> None:
        """Remember what a process learned, for the next one of its kind."""
        with self._lock:
            kin = self._kin.get(pid)
        if kin is None or not kin[1]:
            return
        with contextlib.suppress(AgentZipError):
            template = self._engine.export_learned(pid)
            with self._lock:
                self._templates.pop(kin, None)
                self._templates[kin] = template
                while len(self._templates) > _TEMPLATES_MAX:
                    del self._templates[next(iter(self._templates))]

    def _hottest(self, pid: int, pages: int) -> Ranges:
        if pages <= 0:
            return []
        with contextlib.suppress(AgentZipError):
            return first_pages(self._engine.learned(pid).ranges, pages)
        return []

    def _detach(self, pid: int) -> None:
        with contextlib.suppress(*_GONE):
            try:
                self._engine.detach(pid)
            except NotEnoughMemory as error:
                # It stays attached and is served; the daemon's stop tries again.
                _log.warning("process %d cannot be given back now: %s", pid, error)

    def _wake_one(self, pid: int, pages_max: int) -> model.WakeReport | None:
        try:
            return self._engine.wake(pid, pages_max=pages_max)
        except _GONE:
            return None
        except AgentZipError as error:
            # Its pages are served on demand: slower, never wrong.
            _log.warning("the working set of process %d is not home: %s", pid, error)
            return None
