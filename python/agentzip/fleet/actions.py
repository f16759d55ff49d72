"""
What is done to the processes of a sandbox: attach, page out, wake, give back.

Each action is one or a few engine calls for whole sandboxes; what to do, and when, is decided
elsewhere.  Templates live here: what one sandbox of an image learned about its wakes is where the
others of the same image, in the same trust domain, begin; those that have not woken yet, too.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from agentzip import model
from agentzip.errors import (
    AgentZipError,
    AlreadyAttached,
    NoSuchProcess,
    NotAttached,
    TargetGone,
)
from agentzip.fleet.ranges import PAGE_BYTES, Ranges, merged
from agentzip.fleet.registry import Member
from agentzip.host import kinship
from agentzip.host.groups import refuse_frozen
from agentzip.pager import Pager
from agentzip.policy import prefetch

__all__ = ["Actions"]

_log = logging.getLogger(__name__)

_WAKE_THREADS = 4
"""Processes of waking sandboxes that are brought home at the same time; the engine spreads each
over the processors by itself."""

_TEMPLATES_MAX = 256
"""Images whose working sets are remembered; the oldest is forgotten first."""

_GONE = (NotAttached, NoSuchProcess, TargetGone)

P = ParamSpec("P")
T = TypeVar("T")


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
        # Guards what follows; no engine call is made under it.
        self._lock = threading.Lock()
        self._kin: dict[int, tuple[str, str]] = {}
        self._leaving: set[int] = set()
        """To be given back; a pid that is attached again is another process and stays."""
        self._templates: dict[tuple[str, str], bytes] = {}
        self._untaught: dict[tuple[str, str], set[int]] = {}
        """Processes that know nothing of their wakes, in a fan-out all but the first to wake."""
        self._pool = ThreadPoolExecutor(_WAKE_THREADS, thread_name_prefix="wake")
        # Of its own: hundreds may be to be taught at once, and wakes must not stand behind them.
        self._school = ThreadPoolExecutor(1, thread_name_prefix="teach")

    def close(self) -> None:
        """Wait for what is in progress; what has not begun is dropped, and so is what comes now."""
        for pool in (self._school, self._pool):
            pool.shutdown(wait=True, cancel_futures=True)

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
        self._borrow(member, kin)
        self.set_window(member.pid, window)
        with self._lock:
            self._no_more_untaught(member.pid)
            self._kin[member.pid] = kin
            template = self._templates.get(kin)
            if template is None:
                self._untaught.setdefault(kin, set()).add(member.pid)
        if template is not None:
            self._teach(member.pid, kin, template)

    def _borrow(self, member: Member, kin: tuple[str, str]) -> None:
        refuse_frozen(member.pid)
        with self._lock:
            self._leaving.discard(member.pid)
            former = self._kin.get(member.pid)
        try:
            self._engine.attach(member.pid, member.start_time, domain=kin[0], image=kin[1])
        except AlreadyAttached:
            # By hand, or by the daemon before this one: it keeps the domain it has.
            if former is None or former[0] == kin[0]:
                return
            # It has moved here from another sandbox, with which it shares pages.
            self._engine.detach(member.pid)
            self._engine.attach(member.pid, member.start_time, domain=kin[0], image=kin[1])

    def set_window(self, pid: int, window: tuple[int, int]) -> None:
        """
        Say how many pages one fault brings in, at least and at most.

        Raises:
            AgentZipError: the process has gone, or the engine has no such window.
        """
        self._engine.set_prefetch(pid, replay=True, window_min=window[0], window_max=window[1])

    def kin(self, pid: int) -> tuple[str, str] | None:
        """Trust domain and image that a process was attached with; None if it was not."""
        with self._lock:
            return self._kin.get(pid)

    def release(self, pid: int) -> None:
        """Give a process back in the background; one that has gone is no error."""
        with self._lock:
            self._no_more_untaught(pid)
            self._kin.pop(pid, None)
            self._leaving.add(pid)
        self._submit(self._detach, pid)

    def release_rest(self) -> None:
        """Try again with those that could not be given back, for want of memory above all."""
        with self._lock:
            rest = list(self._leaving)
        for pid in rest:
            self._submit(self._detach, pid)

    def page_out(
        self,
        pid: int,
        keep_pages: int,
        restless: Ranges,
        pages_max: int | None,
        still: Callable[[], bool] = lambda: True,
    ) -> model.PageOutReport | None:
        """
        Page a process out; None if it was not to be done any more.

        Args:
            pid: Whom.
            pages_max: Pages to move at most; None for all.
            keep_pages: Pages of the learned set, most valuable first, that stay.
            restless: Ranges that stay because the process touches them while it waits.
            still: Asked when all is prepared, which takes long enough for a sandbox to wake.
        """
        refuse_frozen(pid)
        keep = merged([*self._hottest(pid, keep_pages), *restless])
        self._before_page_out(pid)
        return self._engine.page_out(pid, None, keep or None, pages_max) if still() else None

    def wake(self, orders: Mapping[int, int | None]) -> list[model.WakeReport]:
        """
        Bring the working sets of processes home, side by side; those that have gone are left.

        What is needed first is home when this returns; the rest stays ahead of the process.

        Args:
            orders: By pid, how many pages at most; None for the whole set.
        """
        begun = [self._submit(self._wake_one, pid, pages) for pid, pages in orders.items()]
        reports = []
        for future in begun:
            # Without one the daemon is about to stop, and brings everything home.
            with contextlib.suppress(CancelledError):
                reports.append(future.result() if future else None)
        return [report for report in reports if report is not None]

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

    def expected(self, pid: int) -> tuple[int, int]:
        """Pages that the next wake of a process is expected to need, and of them those out now."""
        with contextlib.suppress(AgentZipError):
            learned = self._engine.learned(pid)
            return learned.pages_expected, learned.pages_out
        return 0, 0

    def count_stay(self, pid: int) -> int:
        """Resident pages of a process that may not leave."""
        with contextlib.suppress(AgentZipError):
            regions = self._engine.regions(pid)
            return sum(r.resident_bytes for r in regions if not r.movable) // PAGE_BYTES
        return 0

    def keep_template(self, pid: int) -> None:
        """Remember what a process learned, for those of its kind that know nothing yet."""
        with self._lock:
            kin = self._kin.get(pid)
            self._no_more_untaught(pid)
        if kin is None or not kin[1]:
            return
        with contextlib.suppress(AgentZipError):
            template = self._engine.export_learned(pid)
            with self._lock:
                self._templates.pop(kin, None)
                self._templates[kin] = template
                while len(self._templates) > _TEMPLATES_MAX:
                    del self._templates[next(iter(self._templates))]
                untaught = self._untaught.pop(kin, set())
            with contextlib.suppress(RuntimeError):  # closed
                for other in untaught:
                    self._school.submit(self._teach, other, kin, template)

    def _no_more_untaught(self, pid: int) -> None:
        """For one who has the lock: it has woken, or is not ours any more."""
        kin = self._kin.get(pid)
        if kin in self._untaught:
            self._untaught[kin].discard(pid)
            if not self._untaught[kin]:
                del self._untaught[kin]

    def _teach(self, pid: int, kin: tuple[str, str], template: bytes) -> None:
        if self.kin(pid) == kin:
            # It may have gone meanwhile; without a template it learns from its own wakes.
            with contextlib.suppress(AgentZipError):
                self._engine.import_learned(pid, template)

    def _hottest(self, pid: int, pages: int) -> Ranges:
        if pages <= 0:
            return []
        with contextlib.suppress(AgentZipError):
            return self._engine.hottest(pid, pages)
        return []

    def _submit(
        self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs
    ) -> Future[T] | None:
        """Begin in the background; None once the pool is closed."""
        with contextlib.suppress(RuntimeError):
            return self._pool.submit(work, *arguments, **named)
        return None

    def _detach(self, pid: int) -> None:
        with self._lock:
            if pid not in self._leaving:
                return
        try:
            refuse_frozen(pid)
            if not self._engine.detach(pid).complete:
                # It stays attached and is served until `release_rest`.
                _log.warning("process %d cannot be given back now: memory is short", pid)
                return
        except _GONE:
            pass
        except AgentZipError as error:
            _log.warning("process %d cannot be given back now: %s", pid, error)
            return
        with self._lock:
            self._leaving.discard(pid)

    def _wake_one(self, pid: int, pages_max: int | None) -> model.WakeReport | None:
        try:
            return self._engine.wake(pid, pages_max=pages_max, first=prefetch.HEAD_PAGES)
        except _GONE:
            return None
        except AgentZipError as error:
            # Its pages are served on demand: slower, never wrong.
            _log.warning("the working set of process %d is not home: %s", pid, error)
            return None
