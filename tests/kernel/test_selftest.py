"""
Every check of `agentzip selftest`, each as a test of its own name; some with a tier forced.

The whole suites with every tier take long: `agentzip selftest --tier` is for operators.
"""

import re

import pytest

from agentzip.selftest import Check, all_checks, find, run_one

_CHECKS = all_checks()
_TIMEOUT_SLACK_SECONDS = 30

_FORCED_TIERS = ("cold", "disk")
"""The two that differ most: by what a page needs to be read, and by who reads it."""

_FORCED = (
    "exact/memory-lz4-hc",
    "exact/clean-pages",
    "exact/fork-while-moving",
    "exact/exec-during-page-out",
    "exact/fault-retried-by-time",
    "exact/fault-panics-early",
    "exact/fault-without-memory",
    "exact/seccomp-kill",
    "exact/stress-forks",
    "exact/stress-moves",
    "exact/stress-prefetch",
    "events/all-in-one",
)
"""Checks that say most in a minute."""


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(
            found,
            id=found.name,
            # The runner ends a check by itself; this is for a runner that hangs.
            marks=pytest.mark.timeout(found.seconds_max + _TIMEOUT_SLACK_SECONDS),
        )
        for found in _CHECKS
    ],
)
def test_check(found: Check) -> None:
    """The target of the check is unharmed, and nothing is left behind."""
    _run(found, None)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("tier", _FORCED_TIERS)
@pytest.mark.parametrize("name", _FORCED)
def test_check_in_a_tier(name: str, tier: str) -> None:
    """The same when all that is paged out is brought into a tier before it may come back."""
    detail = _run(find(name), tier)

    assert re.search(rf"[1-9]\d* pages brought into {tier}", detail), detail


def _run(found: Check, tier: str | None) -> str:
    result = run_one(found, tier=tier)

    if result.skipped_reason:
        pytest.skip(result.skipped_reason)
    assert result.passed, result.detail
    print(result.detail)
    return result.detail
