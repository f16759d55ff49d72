"""How many examples the fuzz targets of Python try: few in each test run, many in `make fuzz`."""

import os

from hypothesis import HealthCheck, settings

__all__ = ["cases"]

_TIMES = int(os.environ.get("AGENTZIP_FUZZ_TIMES", "1"))
"""The same variable as for the targets in Rust (rust/pager/src/fuzz.rs)."""


def cases(few: int) -> settings:
    """The settings of one target; `few` examples take about a second."""
    return settings(
        max_examples=few * _TIMES,
        deadline=None,
        # A fixture is made once for all examples: servers and folders, which keep nothing of them.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
