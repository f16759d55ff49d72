"""How warm pages are, by their touches and the phase."""

from hypothesis import given
from hypothesis import strategies as st

from agentzip.policy.temperature import Thresholds, classify, may_spill
from agentzip.sandboxes import PHASES

THRESHOLDS = Thresholds()
WARMTH = {"cold": 0, "warm": 1, "hot": 2}

touch_times = st.lists(st.floats(0, 100), max_size=5).map(sorted)
phases = st.sampled_from(PHASES)


def test_two_touches_make_hot_one_makes_warm_and_time_makes_cold() -> None:
    """The thresholds are one second and ten."""
    assert "hot" == classify([4.5, 5.0], 6.0, THRESHOLDS, "running")
    assert "hot" == classify([4.5, 5.0], 15.0, THRESHOLDS, "waiting_model")
    assert "warm" == classify([3.0, 5.0], 6.0, THRESHOLDS, "running")
    assert "warm" == classify([5.0], 15.0, THRESHOLDS, "running")
    assert "cold" == classify([4.5, 5.0], 15.1, THRESHOLDS, "running")
    assert "cold" == classify([], 0.0, THRESHOLDS, "running")


def test_the_phase_knows_better() -> None:
    """A person takes long and waits for no disk; what ends needs only what it just touched."""
    assert "warm" == classify([4.5, 5.0], 5.0, THRESHOLDS, "waiting_user")
    assert "warm" == classify([5.0], 10_000.0, THRESHOLDS, "waiting_user")
    assert "hot" == classify([4.5, 5.0], 5.5, THRESHOLDS, "finishing")
    assert "cold" == classify([4.5, 5.0], 6.5, THRESHOLDS, "finishing")
    assert "cold" == classify([4.5, 5.0], 5.0, THRESHOLDS, "done")


def test_only_what_is_cold_for_long_goes_to_the_disk() -> None:
    """Ten seconds until it is cold, thirty of grace; none for what ends."""
    assert not may_spill([5.0], 44.0, THRESHOLDS, "waiting_model")
    assert may_spill([5.0], 46.0, THRESHOLDS, "waiting_model")
    assert not may_spill([5.0], 10_000.0, THRESHOLDS, "waiting_user")
    assert may_spill([5.0], 7.0, THRESHOLDS, "finishing")
    assert not may_spill([5.0], 5.5, THRESHOLDS, "finishing")


@given(touch_times, st.floats(100, 200), st.floats(0, 100), phases)
def test_untouched_pages_never_grow_warmer(
    touches: list[float], now: float, later: float, phase: str
) -> None:
    """Time alone only cools, and what may go to the disk may go later, too."""
    before = classify(touches, now, THRESHOLDS, phase)
    after = classify(touches, now + later, THRESHOLDS, phase)

    assert WARMTH[after] <= WARMTH[before]
    if may_spill(touches, now, THRESHOLDS, phase):
        assert may_spill(touches, now + later, THRESHOLDS, phase)


@given(touch_times, st.floats(100, 200), phases)
def test_only_cold_pages_are_spilled(touches: list[float], now: float, phase: str) -> None:
    """Nothing hot or warm ever reaches the disk by temperature."""
    if may_spill(touches, now, THRESHOLDS, phase):
        assert "cold" == classify(touches, now, THRESHOLDS, phase)
