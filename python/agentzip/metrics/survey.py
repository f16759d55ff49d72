"""
What is too dear for a scrape: classes and codecs of what is out, and the ratios.

Counting what is out of a target holds its table for a millisecond or two, and PSS walks page tables
in the kernel, which takes as long.  So a thread does it every five minutes, target by target with
pauses, and a scrape takes what was found last.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentzip import model
from agentzip.accounting import Gain, gain_now
from agentzip.errors import AgentZipError
from agentzip.host import memory
from agentzip.pager import Pager, page_size

__all__ = ["Survey", "Surveyor"]

_EVERY_SECONDS = 300.0
"""Pause between two surveys: at 1.5 ms a target, 300 targets take 0.15 % of one core."""

_PAUSE_SECONDS = 0.005
"""Pause behind each target, so that three hundred of them are no burst of work."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What one survey found."""

    at: float
    """When, in seconds since 1970."""
    classes: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """(class, codec) to bytes that are out and bytes in the pool."""
    gained: Gain | None
    """None if there was no target."""
    overhead_bytes: int


class Surveyor:
    """
    Takes a survey every five minutes.

    Args:
        engine: Whom to ask.
        own_pids: Pids of daemon and keeper.
        root: Where `/proc` is looked for.
    """

    def __init__(
        self,
        engine: Pager,
        own_pids: Callable[[], list[int]],
        root: Path = memory.ROOT,
    ) -> None:
        self.last: Survey | None = None
        """What was found last; None before the first survey."""
        self._engine = engine
        self._own_pids = own_pids
        self._root = root
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-survey", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; one target is finished at most."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self.look()
            except AgentZipError as error:
                _log.warning("no survey for the metrics: %s", error)
            self._closed.wait(_EVERY_SECONDS)

    def look(self) -> None:
        """
        Take one survey.

        Raises:
            AgentZipError: the engine does not answer, or `/proc` may not be read.
        """
        classes: dict[tuple[str, str], tuple[int, int]] = {}
        uses, out = [], []
        spaces = self._engine.spaces()
        for space in spaces:
            if self._closed.wait(_PAUSE_SECONDS):
                return
            uses.append(memory.sum_use([space.pid] if space.pid else [], self._root))
            out.append(space.bytes_logical)
            if space.pid and space.pages_out:
                self._count(space.pid, classes)
        stats = self._engine.stats()
        overhead = memory.own_overhead(self._own_pids(), self._root)
        self.last = Survey(
            at=time.time(),
            classes=classes,
            gained=gain_now(
                rss=[use.rss for use in uses],
                pss=[use.pss for use in uses],
                out=out,
                pool_bytes=stats.pool_bytes,
                table_bytes=stats.table_bytes,
                overhead_bytes=overhead,
            ),
            overhead_bytes=overhead,
        )

    def _count(self, pid: int, classes: dict[tuple[str, str], tuple[int, int]]) -> None:
        census: list[model.CensusRow] = []
        with suppress(AgentZipError):  # it may have ended since the list was made
            census = self._engine.census(pid)
        for row in census:
            out, stored = classes.get((row.class_name, row.codec), (0, 0))
            classes[row.class_name, row.codec] = (
                out + row.pages * page_size(),
                stored + row.bytes,
            )
