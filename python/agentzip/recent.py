"""
What an engine counts, asked for once by all who look at it in the same second.

The daemon, the pool's upkeep and the sandboxes' ticks each look once a second.  Copying the
counters of 300 targets takes longer than most of what is decided by them.
"""

import time
from collections.abc import Callable

from agentzip import model
from agentzip.pager import Pager

__all__ = ["SHARED_S", "Recent"]

SHARED_S = 0.9
"""Age of counters that are shared: who looks once a second gets new ones at each look."""

_STILL_S = 4.5
"""Counters of the whole engine are as good for so long while nothing moves: counting them walks
through memory that nobody else has in his caches then, which takes longer than all of a tick."""


class Recent:
    """
    Counters of one engine; every method may be called from any thread.

    Args:
        engine: The engine.
        age_s: Older counters are not told again; 0 asks the engine each time.
        clock: Seconds, for tests.
    """

    def __init__(
        self,
        engine: Pager,
        age_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._age_s = age_s
        self._clock = clock
        # Each is replaced as a whole, so nobody needs a lock; two may ask the engine at once.
        self._spaces: tuple[float, list[model.SpaceStatus]] = (float("-inf"), [])
        self._stats: tuple[float, model.EngineStats] | None = None
        self._moved_at = float("-inf")
        """When a page left or came back, or a target came or went, as far as was seen."""

    def spaces(self) -> list[model.SpaceStatus]:
        """Every managed address space; the list is not to be changed."""
        taken_at, spaces = self._spaces
        return spaces if self._clock() - taken_at < self._age_s else self.spaces_now()

    def spaces_now(self) -> list[model.SpaceStatus]:
        """The same as they are now, which is told to the others, too."""
        spaces, now = self._engine.spaces(), self._clock()
        # Those that have not changed are the same objects: this is told without a look into them.
        if spaces != self._spaces[1] and _moves(spaces) != _moves(self._spaces[1]):
            self._moved_at = now
        self._spaces = (now, spaces)
        return spaces

    def stats(self) -> model.EngineStats:
        """Counters of the whole engine."""
        now, known = self._clock(), self._stats
        if known is not None:
            still = self._age_s > 0 and known[0] >= self._moved_at
            if now - known[0] < (_STILL_S if still else self._age_s):
                return known[1]
        stats = self._engine.stats()
        self._stats = (now, stats)
        return stats


def _moves(spaces: list[model.SpaceStatus]) -> tuple[int, int, int, int]:
    """What changes whenever pages leave or come back."""
    return (
        len(spaces),
        sum(space.pages_out for space in spaces),
        sum(space.faults for space in spaces),
        sum(space.bytes_pool for space in spaces),
    )
