"""
Every check of `agentzip selftest`, each as a test of its own name.
"""

import pytest

from agentzip.selftest import Check, all_checks, run_one

_CHECKS = all_checks()
_TIMEOUT_SLACK_SECONDS = 30


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
    result = run_one(found)

    if result.skipped_reason:
        pytest.skip(result.skipped_reason)
    assert result.passed, result.detail
    print(result.detail)
