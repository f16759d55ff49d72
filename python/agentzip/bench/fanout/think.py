"""
How long the model takes to answer: drawn from the seed, the sandbox and the turn alone.  Pure.

Every mode and every round has the same think times, and so has `agentzip simulate`.
"""

import random

__all__ = ["chance", "offset_s", "think_s"]

_SIGMA = 0.5
"""Of the lognormal: one wait in a hundred is three times the typical one, as models are."""

_LEAST, _MOST = 0.1, 5.0
"""Bounds of one wait, as parts of the mean: a run must end."""


def think_s(seed: int, mean_s: float, instance: int, turn: int) -> float:
    """Seconds that the model takes after a turn of a sandbox; lognormal with this mean."""
    drawn = chance(seed, "think", instance, turn).lognormvariate(-(_SIGMA**2) / 2, _SIGMA)
    return mean_s * min(max(drawn, _LEAST), _MOST)


def offset_s(seed: int, mean_s: float, instance: int) -> float:
    """Seconds before a sandbox's first turn: sandboxes do not march in step."""
    return mean_s * chance(seed, "offset", instance, 0).random()


def chance(seed: int, purpose: str, instance: int, turn: int) -> random.Random:
    """Random numbers for one purpose in one turn."""
    return random.Random(f"{seed}/{purpose}/{instance}/{turn}")  # noqa: S311
