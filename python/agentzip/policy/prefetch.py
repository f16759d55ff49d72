"""
How well prefetch does, told honestly.

Pages that were brought home cannot show whether the wake would have touched them.  So a random
sample of the learned set is spared: it stays out, and the faults on it say which part of the set
was needed.  Some pages are spared more often than others, so each counts for those it stands for.
"""

from typing import NamedTuple

__all__ = ["HEAD_PAGES", "Estimate", "estimate"]

HEAD_PAGES = 1024
"""Of a learned set, the pages that are home before an announced wake goes on: some milliseconds.
The rest is brought in the order of need while the sandbox runs, faster than it can touch it."""


class Estimate(NamedTuple):
    """Shares from 0 to 1; None where nothing was seen that could tell."""

    hit_rate: float | None
    """Of the pages that wakes needed, those that prefetch had brought home."""
    waste: float | None
    """Of the pages that prefetch brought home, those that no wake needed."""


def estimate(spared: int, spared_touched: int, prefetched: int, missed: int) -> Estimate:
    """
    Judge prefetch, over one wake or the sum of several.

    Spared pages are left out of both shares: they were kept out on purpose.

    Args:
        spared: What the pages that were left out as a sample stand for.
        spared_touched: The same of those of them that the wake touched.
        prefetched: Pages brought home.
        missed: Pages that the wake needed and that were not to be brought.
    """
    if prefetched <= 0:
        return Estimate(0.0 if missed > 0 else None, None)
    if spared <= 0:
        return Estimate(None, None)
    precision = min(spared_touched / spared, 1.0)
    hits = precision * prefetched
    needed = hits + missed
    return Estimate(hits / needed if needed > 0 else None, 1.0 - precision)
