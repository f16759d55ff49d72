"""
A log that a lasting failure cannot fill.
"""

import logging
import time
from collections.abc import Callable

__all__ = ["RepeatFilter"]

_REPEAT_SECONDS = 60.0
"""The same message is logged at most once in this time, with a count of those left out."""


class RepeatFilter(logging.Filter):
    """
    Lets each message through once a minute, so that a lasting failure cannot fill the log.

    Args:
        clock: Seconds, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[str, float] = {}
        self._held_back: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log the record; adds the count of those held back before it."""
        # The unformatted text is the key: one cause with changing numbers is still one cause.
        key, now = f"{record.name}:{record.msg}", self._clock()
        if now - self._last.get(key, float("-inf")) < _REPEAT_SECONDS:
            self._held_back[key] = self._held_back.get(key, 0) + 1
            return False
        self._last[key] = now
        held_back = self._held_back.pop(key, 0)
        if held_back:
            record.msg = f"{record.msg} (and {held_back} more like this)"
        return True
