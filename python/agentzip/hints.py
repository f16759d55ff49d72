"""
What a hint may say: a phase that there is, and a wait that can be.

Every way in (command line, Python, HTTP, the sandbox's own socket) reads hints through here, so a
mistake is told in the same words everywhere, and before it reaches the daemon.
"""

from agentzip.errors import InvalidSetting
from agentzip.sandboxes import PHASES
from agentzip.units import parse_duration

__all__ = ["EXPECT_SECONDS_MAX", "expected_seconds", "known_phase"]

EXPECT_SECONDS_MAX = 7 * 24 * 3600.0
"""A week.  Longer waits are as good as for ever; more is a slip of units, so it is refused."""


def known_phase(phase: object) -> str:
    """
    The phase, if there is one of this name.

    Raises:
        InvalidSetting: there is none; the hint names all.
    """
    if phase not in PHASES:
        raise InvalidSetting(f"phase is not known: {phase!r}", f"use one of {', '.join(PHASES)}")
    return str(phase)


def expected_seconds(expect: str | float | None, field: str = "expect") -> float | None:
    """
    How long a phase is expected to last, in seconds; None if nobody knows.

    Args:
        expect: Seconds, or a number with a unit like `8s` or `500ms`.
        field: What it is called where it was written, for the message.

    Raises:
        InvalidSetting: it is no duration, or not within 0 to a week.
    """
    if expect is None:
        return None
    seconds = parse_duration(expect, field) if isinstance(expect, str) else float(expect)
    if not 0 <= seconds <= EXPECT_SECONDS_MAX:
        raise InvalidSetting(f"{field} is out of range: {expect!r}", "give 0s to 168h")
    return seconds
