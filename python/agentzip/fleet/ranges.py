"""
Address ranges: lists of (start, end) in bytes, whole pages.
"""

from collections.abc import Iterable

__all__ = ["PAGE_BYTES", "Ranges", "merged", "pages_in"]

Ranges = list[tuple[int, int]]

PAGE_BYTES = 4096


def pages_in(ranges: Iterable[tuple[int, int]]) -> int:
    """Number of pages, counting what overlaps as often as it is named."""
    return sum(end - start for start, end in ranges) // PAGE_BYTES


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted ranges without overlaps, as the engine takes them."""
    result: Ranges = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result
