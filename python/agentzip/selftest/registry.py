"""
What a check is, and the list of all of them.

A check is a function that takes a `Stage`, does something to a real process and raises if the
process was harmed.  Modules of checks register them at import; names are `suite/what`, stable,
because operators and tests select by them.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentzip.selftest.stage import Stage

__all__ = [
    "COUNTS",
    "LONG_SUITES",
    "SUITES",
    "TIERS",
    "TIER_VARIABLE",
    "Check",
    "CheckFailed",
    "CheckSkipped",
    "Result",
    "add",
    "all_checks",
    "check",
    "find",
    "variables_of",
    "wanted",
]

SUITES = ("exact", "events", "crash")
"""Names of the suites that run unless others are named, in the order in which they run."""

LONG_SUITES = ("guests", "soak")
"""Suites that take so long that they run only when they are named."""

TIERS = ("warm", "cold", "frozen", "disk")
"""Where everything that a check pages out can be brought before it may come back."""

TIER_VARIABLE = "AGENTZIP_TIER"
"""Tells the child process of a check which tier; without it pages stay as they were stored."""

COUNTS = {"kills": 9, "ops": 60_000}
"""
What a check that does something N times is told, and what N is in a test run: a few.

kills: how often the crash suite kills a daemon or a keeper; ops: operations of the soak suite.
"""

_SECONDS_MAX = 60.0
"""How long a check may take unless it says otherwise; it is then ended and counts as failed."""


class CheckFailed(AssertionError):
    """A target was harmed or did not answer; the message says how."""


class CheckSkipped(Exception):
    """This host cannot run the check; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one check ended."""

    name: str
    suite: str
    passed: bool
    skipped_reason: str = ""
    """Why it did not run; `passed` is true then, as nothing was found wrong."""
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Check:
    """One registered check."""

    name: str
    suite: str
    title: str
    """One sentence: what is true when it passes."""
    run: "Callable[[Stage], None]"
    seconds_max: float = _SECONDS_MAX
    each: tuple[str, float] = ("", 0.0)
    """One of `COUNTS`, and how much longer the check may take for each of them."""
    source: str = ""
    """File that registers it, if that is none of this package: tests bring checks of their own."""


_CHECKS: dict[str, Check] = {}


def wanted(count: str) -> int:
    """How often this check is to do a thing, one of `COUNTS`."""
    return int(os.environ.get(_variable(count), COUNTS[count]))


def variables_of(counts: Mapping[str, int]) -> dict[str, str]:
    """How the process of a check is told what is `wanted`."""
    return {_variable(name): str(count) for name, count in counts.items()}


def _variable(count: str) -> str:
    return f"AGENTZIP_{count.upper()}"


def add(
    name: str,
    title: str,
    run: "Callable[[Stage], None]",
    seconds_max: float,
    each: tuple[str, float] = ("", 0.0),
) -> None:
    """Register a check; its suite is the part of the name before the slash."""
    suite = name.split("/", 1)[0]
    assert name not in _CHECKS, name
    ours = suite in SUITES + LONG_SUITES
    source = "" if ours else inspect.getfile(run)
    _CHECKS[name] = Check(name, suite, title, run, seconds_max, each, source)


def check(
    name: str, seconds_max: float = _SECONDS_MAX, each: tuple[str, float] = ("", 0.0)
) -> "Callable[[Callable[[Stage], None]], Callable[[Stage], None]]":
    """Register the decorated function under a name; its docstring is the title."""

    def register(function: "Callable[[Stage], None]") -> "Callable[[Stage], None]":
        title = (function.__doc__ or name).strip().splitlines()[0]
        add(name, title, function, seconds_max, each)
        return function

    return register


def all_checks(suites: Sequence[str] = SUITES) -> list[Check]:
    """Every check of some suites of this package, suite by suite, in the order of registration."""
    return [found for suite in suites for found in _CHECKS.values() if found.suite == suite]


def find(name: str) -> Check:
    """
    The check of this name.

    Raises:
        KeyError: there is none.
    """
    return _CHECKS[name]
