"""
How warm a group of pages is: hot stays, warm may go to the pool, cold may go on to the disk.

Touches are what tells; the phase moves the answer where it knows better than the past.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Temperature", "Thresholds", "classify", "may_spill"]

Temperature = Literal["hot", "warm", "cold"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What an operator sets, in seconds."""

    hot_s: float = 1.0
    """`policy.hot_threshold_ms`."""
    warm_s: float = 10.0
    """`policy.warm_threshold_ms`."""
    cold_grace_s: float = 30.0
    """`policy.cold_grace_period`."""


def classify(
    touches: Sequence[float], now: float, thresholds: Thresholds, phase: str
) -> Temperature:
    """
    Say how warm pages are.

    Hot: touched twice within `hot_s`, the last time within `warm_s`.  Warm: touched within
    `warm_s`.  A sandbox that waits for its user stays warm: nothing is hot, since a person takes
    longer than any threshold, and nothing cold, since a person who is back does not wait for a
    disk.  One that is finishing is cold but for what it touched within `hot_s`, which its result
    needs; one that is done is cold.

    Args:
        touches: Times of touches, newest last.
        now: In the same clock.
        thresholds: What the operator set.
        phase: Of the sandbox.
    """
    if phase == "waiting_user":
        return "warm"
    if phase == "done" or not touches:
        return "cold"
    age = now - touches[-1]
    if age > (thresholds.hot_s if phase == "finishing" else thresholds.warm_s):
        return "cold"
    twice = len(touches) > 1 and touches[-1] - touches[-2] <= thresholds.hot_s
    return "hot" if twice else "warm"


def may_spill(touches: Sequence[float], now: float, thresholds: Thresholds, phase: str) -> bool:
    """Whether pages are cold for long enough to go to the disk; what ends needs no grace."""
    if classify(touches, now, thresholds, phase) != "cold":
        return False
    if phase in ("finishing", "done") or not touches:
        return True
    return now - touches[-1] > thresholds.warm_s + thresholds.cold_grace_s
