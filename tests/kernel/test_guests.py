"""
A few of what `agentzip selftest` runs only when asked: other people's tests, and the soak.
"""

import pytest

from agentzip.selftest import find, run_one

_SECONDS_MAX = 300
"""These take seconds on a quiet machine; the limit is for one that hangs."""


@pytest.mark.timeout(_SECONDS_MAX)
@pytest.mark.parametrize(
    "name",
    [
        *("guests/test_mmap", "guests/test_fork1", "guests/test_thread"),
        *("guests/test_memoryview", "soak/life"),
    ],
)
def test_a_part_of_the_long_suites(name: str) -> None:
    """Each of CPython's tests ends as it does when left alone; the soak sees no wrong page."""
    result = run_one(find(name))

    if result.skipped_reason:
        pytest.skip(result.skipped_reason)
    assert result.passed, result.detail
    print(result.detail)
