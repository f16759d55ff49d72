"""
Ask sandboxes that offer it to give memory back before it is paged out.

Once a wait, and seldom: it takes processor time from the sandbox.  In threads of its own, because
the sandbox answers when it likes: neither a hint nor a tick waits for it, but its pages do, since
a collection of garbage touches them all.  For the same reason a process that is out already for the
most part is not asked: everything would come back only to be looked at.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from agentzip.errors import AgentZipError, NoSuchProcess, NotPermitted
from agentzip.fleet.life import Life, ProcessLife
from agentzip.fleet.registry import Member
from agentzip.sandboxes import AWAKE
from agentzip.trimming import TRIM_SECONDS, TrimAnswer, offered_socket, request_trim

__all__ = ["Trimmer", "is_worth_it"]

_log = logging.getLogger(__name__)

_EXPECT_S_MIN = 10.0
"""A shorter wait for a model or a tool is no time to collect garbage in."""

_EVERY_S = 60.0
"""How seldom one sandbox is asked."""

_THREADS = 2
"""Sandboxes asked at the same time; who stands behind them for too long is not asked."""

_OUT_SHARE_MAX = 0.1
"""Share of a process that may be out when it is asked."""


def is_worth_it(phase: str, expect_s: float | None) -> bool:
    """Whether a sandbox that says this has time to trim itself."""
    if phase in {"waiting_user", "finishing"}:
        return True
    return phase in {"waiting_model", "waiting_tool"} and (expect_s or 0.0) >= _EXPECT_S_MIN


class Trimmer:
    """
    Trims of all sandboxes.

    Args:
        trimmed: Called when the pages of a sandbox need wait no longer.
        offered: Which socket a process was started with; tests give a fake.
        ask: Asks a process, by pid, start time and seconds; tests give a fake.
        clock: Seconds, for tests.
    """

    def __init__(
        self,
        trimmed: Callable[[], None],
        offered: Callable[[int], str | None] = offered_socket,
        ask: Callable[[int, int, float], TrimAnswer | None] = lambda pid, start_time, seconds: (
            request_trim(pid, start_time, timeout_seconds=seconds)
        ),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trimmed = trimmed
        self._offered = offered
        self._ask = ask
        self._clock = clock
        # Guards the two below; nobody is asked while it is held.
        self._lock = threading.Lock()
        self._closed = False
        self._deadlines: dict[str, float] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="trim")

    def close(self) -> None:
        """Ask nobody any more; waits for the answers that are due."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def is_trimming(self, sandbox: str) -> bool:
        """Whether the pages of a sandbox should stay because it looks at them."""
        with self._lock:
            return self._clock() < self._deadlines.get(sandbox, 0.0)

    def consider(self, life: Life) -> None:
        """
        A sandbox has time; ask it if it may be asked, and return at once.

        To be called with the observer's lock.
        """
        name, now = life.sandbox.name, self._clock()
        if life.trimmed or (life.trim_at is not None and now - life.trim_at < _EVERY_S):
            return
        if not (life.sandbox.rule.trim and life.sandbox.enabled):
            return
        if life.sandbox.frozen or life.pinned or life.left_alone:
            return
        members = [process.member for process in life.processes.values() if _may_ask(process)]
        if not members:
            return
        life.trimmed, life.trim_at = True, now
        deadline = now + TRIM_SECONDS
        with self._lock:
            if not self._closed:
                self._deadlines[name] = deadline
                self._pool.submit(self._trim, life, members, deadline)

    def _trim(self, life: Life, members: list[Member], deadline: float) -> None:
        name = life.sandbox.name
        try:
            for path, sharing in self._offers(members).items():
                self._trim_one(life, path, sharing, deadline)
        except Exception:  # noqa: BLE001 - in a pool nobody else would ever hear of it
            _log.exception("a bug: the trim of sandbox %s failed", name)
        finally:
            with self._lock:
                self._deadlines.pop(name, None)
            self._trimmed()

    def _offers(self, members: list[Member]) -> dict[str, list[Member]]:
        """Sockets with the processes that name them: children have their parent's environment."""
        offers: dict[str, list[Member]] = {}
        for member in members:
            with contextlib.suppress(NoSuchProcess, NotPermitted):
                path = self._offered(member.pid)
                if path is not None:
                    offers.setdefault(path, []).append(member)
        return offers

    def _trim_one(self, life: Life, path: str, sharing: list[Member], deadline: float) -> None:
        """Ask at one socket, on behalf of the first process that it trusts."""
        refusal: AgentZipError | None = None
        for member in sharing:
            left = deadline - self._clock()
            # Its time is over, or it goes on with its work: then it keeps what it has.
            if left <= 0 or life.state.phase in AWAKE:
                break
            try:
                answer = self._ask(member.pid, member.start_time, left)
            except NoSuchProcess:
                continue
            except AgentZipError as error:
                refusal = error
                continue
            if answer is not None:
                _log.info(
                    "process %d of sandbox %s trimmed itself in %.1f ms",
                    *(answer.answered_by, life.sandbox.name, answer.elapsed_us / 1e3),
                )
                return
        if refusal is not None:
            _log.warning("sandbox %s did not trim itself: %s: %s", life.sandbox.name, path, refusal)


def _may_ask(process: ProcessLife) -> bool:
    if not process.attached:
        return False
    out = process.space.pages_out if process.space else 0
    here = process.activity.rss_pages if process.activity else 0
    return out <= _OUT_SHARE_MAX * (out + here)
