"""
What a check is, and the list of all of them.

A check is a function that takes a `Stage`, does something to a real process and raises if the
process was harmed.  Modules of checks register them at import; names are `suite/what`, stable,
because operators and tests select by them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentzip.selftest.stage import Stage

__all__ = [
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
]

SUITES = ("exact", "events", "crash")
"""Names of the suites, in the order in which they run."""

TIERS = ("warm", "cold", "frozen", "disk")
"""Where everything that a check pages out can be brought before it may come back."""

TIER_VARIABLE = "AGENTZIP_TIER"
"""Tells the child process of a check which tier; without it pages stay as they were stored."""

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
    source: str = ""
    """File that registers it, if that is none of this package: tests bring checks of their own."""


_CHECKS: dict[str, Check] = {}


def add(name: str, title: str, run: "Callable[[Stage], None]", seconds_max: float) -> None:
    """Register a check; its suite is the part of the name before the slash."""
    suite = name.split("/", 1)[0]
    assert name not in _CHECKS, name
    source = "" if suite in SUITES else run.__code__.co_filename
    _CHECKS[name] = Check(name, suite, title, run, seconds_max, source)


def check(
    name: str, seconds_max: float = _SECONDS_MAX
) -> "Callable[[Callable[[Stage], None]], Callable[[Stage], None]]":
    """Register the decorated function under a name; its docstring is the title."""

    def register(function: "Callable[[Stage], None]") -> "Callable[[Stage], None]":
        title = (function.__doc__ or name).strip().splitlines()[0]
        add(name, title, function, seconds_max)
        return function

    return register


def all_checks() -> list[Check]:
    """Every check of this package, suite by suite, in the order of registration."""
    ours = [found for found in _CHECKS.values() if found.suite in SUITES]
    return sorted(ours, key=lambda found: SUITES.index(found.suite))


def find(name: str) -> Check:
    """
    The check of this name.

    Raises:
        KeyError: there is none.
    """
    return _CHECKS[name]
