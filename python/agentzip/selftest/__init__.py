"""
Checks on real processes that an operator runs before trusting the pager with others.

`run` executes whole suites; `make test` runs the same checks one by one (tests/kernel).
Importing the package registers all checks:

- `exact`: every byte comes back, for many kinds of programs;
- `events`: what programs do to memory while it is out;
- `crash`: the daemon and the keeper are killed at every step;
- `guests`: other people's test suites end the same (only when asked for: it takes long);
- `soak`: random operations by the million (likewise).

Each can be run with all pages forced into one tier (`TIERS`); crash checks go through all of them.
"""

from agentzip.selftest import (
    crash,
    crash_campaign,
    events,
    exact_faults,
    exact_languages,
    exact_memory,
    exact_stress,
    guests,
    soak,
)
from agentzip.selftest.registry import (
    COUNTS,
    LONG_SUITES,
    SUITES,
    TIERS,
    Check,
    Result,
    all_checks,
    find,
)
from agentzip.selftest.runner import run, run_one

__all__ = [
    "COUNTS",
    "LONG_SUITES",
    "SUITES",
    "TIERS",
    "Check",
    "Result",
    "all_checks",
    "find",
    "run",
    "run_one",
]

_REGISTERED = (
    *(exact_memory, exact_faults, exact_languages, exact_stress, events, crash, crash_campaign),
    *(guests, soak),
)
"""Modules that are imported for the checks that they register."""
