"""What a hint may say."""

import pytest

from agentzip import hints
from agentzip.errors import InvalidSetting
from agentzip.sandbox.here import WAITS as KINDS
from agentzip.sandboxes import PHASES, WAITS


def test_every_phase_is_known() -> None:
    """And comes back as it is."""
    assert list(PHASES) == [hints.known_phase(phase) for phase in PHASES]


@pytest.mark.parametrize("phase", ["asleep", "", "RUNNING", None, 3])
def test_nothing_else_is(phase: object) -> None:
    """The hint lists what is."""
    with pytest.raises(InvalidSetting) as caught:
        hints.known_phase(phase)

    assert "waiting_model" in caught.value.hint


def test_waits_are_seconds() -> None:
    """Written with a unit, as a number, or not at all."""
    written: list[str | float | None] = ["8s", "500ms", "2min", 8, 0, 0.25, "168h", None]

    expected = [8.0, 0.5, 120.0, 8.0, 0.0, 0.25, 604800.0, None]
    assert expected == [hints.expected_seconds(text) for text in written]


@pytest.mark.parametrize("expect", ["8", "soon", -1, "169h", float("nan"), float("inf")])
def test_other_waits_are_refused(expect: str | float) -> None:
    """By the name that they have where they were written."""
    with pytest.raises(InvalidSetting, match="--expect"):
        hints.expected_seconds(expect, "--expect")


def test_the_file_for_sandboxes_knows_the_same_waits() -> None:
    """It is copied alone, so it names them itself."""
    assert {f"waiting_{kind}" for kind in KINDS} == WAITS
