"""
Which memory is taken, in which portions; and patience with busy processes.
"""

import time
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from agentzip import model
from agentzip.bench.encode.result import PAGE_BYTES
from agentzip.errors import TargetBusy

__all__ = ["PORTION_PAGES", "Portion", "insist", "portions"]

PORTION_PAGES = 16384
"""Pages timed together, as many as the daemon takes at a time: each portion stops one thread and
looks at all mappings once."""

_BUSY_TRIES = 40
_BUSY_SECONDS = 0.02
"""Browsers have many threads and all may be inside something for a moment."""

Portion = list[tuple[int, int]]
"""Byte ranges."""

P = ParamSpec("P")
T = TypeVar("T")


def portions(regions: Sequence[model.Region], portion_pages: int = PORTION_PAGES) -> list[Portion]:
    """
    Everything of a process that may leave, in portions of about so many resident pages.

    A large region is cut evenly by addresses; where its pages lie is not asked.
    """
    size = portion_pages * PAGE_BYTES
    found: list[Portion] = [[]]
    held = 0
    for region in regions:
        if not region.movable or not region.resident_bytes:
            continue
        pieces = max(1, round(region.resident_bytes / size))
        pages = (region.end - region.start) // PAGE_BYTES
        for number in range(pieces):
            start = region.start + pages * number // pieces * PAGE_BYTES
            end = region.start + pages * (number + 1) // pieces * PAGE_BYTES
            if held and held + region.resident_bytes // pieces > size:
                found.append([])
                held = 0
            found[-1].append((start, end))
            held += region.resident_bytes // pieces
    return [portion for portion in found if portion]


def insist(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call again while no thread can be borrowed."""
    for _ in range(_BUSY_TRIES):
        try:
            return call(*arguments, **named)
        except TargetBusy:
            time.sleep(_BUSY_SECONDS)
    return call(*arguments, **named)
