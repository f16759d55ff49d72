"""What stops the planner: shortest waits, storms, and who comes home first."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agentzip.policy.breakers import (
    BreakerState,
    Cycle,
    Storm,
    StormRates,
    Thresholds,
    Wake,
    admit,
    after_cycle,
    after_tick,
    paid,
)

THRESHOLDS = Thresholds()
RATES = StormRates()
GOOD = Cycle(waited_s=60.0, pages_out=10_000, pages_back_soon=500, cpu_s=0.2)
PING_PONG = replace(GOOD, pages_back_soon=8_000)
UNUSED = Cycle(waited_s=3.0, pages_out=0, pages_back_soon=0, cpu_s=0.0)

cycles = st.sampled_from([GOOD, PING_PONG, UNUSED])


# ── the shortest wait that is worth a page out ────────────────────────────────────────────────────


def test_a_page_out_pays_if_its_pages_stay_out_for_long_enough() -> None:
    """0.2 processor seconds are 200 MB for a second, so 29 MB must stay for seven."""
    assert paid(GOOD, THRESHOLDS)
    assert not paid(PING_PONG, THRESHOLDS)
    assert not paid(replace(GOOD, waited_s=6.0), THRESHOLDS)
    assert paid(replace(GOOD, waited_s=7.0), THRESHOLDS)
    assert paid(UNUSED, THRESHOLDS)


def test_failures_double_the_shortest_wait_and_calm_lowers_it_slowly() -> None:
    """One failure outweighs two successes, and each makes the next step down slower."""
    state = BreakerState()
    for _ in range(3):
        state = after_cycle(state, PING_PONG, THRESHOLDS)
    assert (8.0, 32) == (state.min_wait_s, state.patience)
    for _ in range(31):
        state = after_cycle(state, UNUSED, THRESHOLDS)
    assert 8.0 == state.min_wait_s
    state = after_cycle(state, UNUSED, THRESHOLDS)
    assert (0.7 * 8.0, 0, 32) == (state.min_wait_s, state.calm, state.patience)


def test_trust_comes_back_with_page_outs_that_paid() -> None:
    """A sandbox that has changed its ways is at the floor again after some dozens of cycles."""
    state = BreakerState()
    for _ in range(6):
        state = after_cycle(state, PING_PONG, THRESHOLDS)
    for _ in range(200):
        state = after_cycle(state, GOOD, THRESHOLDS)

    assert (1.0, 4) == (state.min_wait_s, state.patience)


@given(st.lists(cycles, max_size=200))
def test_the_shortest_wait_is_bounded_and_does_not_flap(history: list[Cycle]) -> None:
    """Up only by a failure; down only after as many calm cycles in a row as patience asks for."""
    state = BreakerState()
    calm = 0
    for cycle in history:
        before, state = state, after_cycle(state, cycle, THRESHOLDS)
        calm = 0 if cycle is PING_PONG else calm + 1
        assert 1.0 <= state.min_wait_s <= 600.0
        assert 4 <= state.patience <= 64
        if state.min_wait_s > before.min_wait_s:
            assert cycle is PING_PONG
        if state.min_wait_s < before.min_wait_s:
            assert before.patience <= calm
            calm = 0


def test_failing_tries_become_rare() -> None:
    """An agent that never pays is tried in a few of a thousand waits, not in every other one."""
    state = BreakerState()
    tries = 0
    for _ in range(1000):
        tried = state.min_wait_s <= 3.0
        tries += tried
        state = after_cycle(state, PING_PONG if tried else UNUSED, THRESHOLDS)

    assert tries <= 20


# ── storms and wakes ──────────────────────────────────────────────────────────────────────────────


def test_a_storm_cuts_at_once_and_is_forgotten_slowly() -> None:
    """Per core: above 8000 a second it halves, below 2000 a tenth comes back, between it holds."""
    storm = Storm()
    for _ in range(2):
        storm = after_tick(storm, 40_000, 4, RATES)
    assert 0.25 == storm.factor
    assert storm == after_tick(storm, 20_000, 4, RATES)
    for _ in range(8):
        storm = after_tick(storm, 1_000, 4, RATES)
    assert 1.0 == storm.factor


@given(st.lists(st.floats(0, 1e6), max_size=100), st.integers(1, 64))
def test_a_storm_never_shuts_everything(refaults: list[float], cores: int) -> None:
    """There is always a way back."""
    storm = Storm()
    for rate in refaults:
        storm = after_tick(storm, rate, cores, RATES)
        assert 0 < storm.factor <= 1


wakes = st.lists(
    st.builds(
        Wake, sandbox=st.sampled_from("abcdefgh"), pages=st.integers(0, 5000), since=st.floats(0, 9)
    ),
    max_size=8,
    unique_by=lambda wake: wake.sandbox,
)


def test_wakes_are_let_in_by_memory_in_order() -> None:
    """The second gets what is left, and the third waits though it is small."""
    queue = [Wake("c", 10, 3.0), Wake("a", 500, 1.0), Wake("b", 900, 2.0)]

    admitted = admit(queue, available_bytes=1_100 * 4096, floor_bytes=100 * 4096)

    assert [Wake("a", 500, 1.0), Wake("b", 500, 2.0)] == admitted


@given(wakes, st.integers(0, 1 << 26), st.integers(0, 1 << 26))
def test_admission_fits_and_overtakes_nobody(queue: list[Wake], available: int, floor: int) -> None:
    """Pages fit above the floor; the admitted are the first, whole but for the last."""
    admitted = admit(queue, available, floor)
    in_order = sorted(queue, key=lambda wake: (wake.since, wake.sandbox))

    assert sum(wake.pages for wake in admitted) * 4096 <= max(available - floor, 0)
    assert [wake.sandbox for wake in in_order[: len(admitted)]] == [w.sandbox for w in admitted]
    assert in_order[: max(len(admitted) - 1, 0)] == admitted[:-1]


@given(wakes)
def test_nobody_starves_while_some_memory_comes_free(queue: list[Wake]) -> None:
    """Whoever asks again for what he did not get is home in the end, in the order of asking."""
    finished = []
    rounds = 0
    while queue:
        got = {wake.sandbox: wake.pages for wake in admit(queue, 100 * 4096, 0)}
        done = [wake for wake in queue if got.get(wake.sandbox, -1) >= wake.pages]
        finished += sorted(done, key=lambda wake: (wake.since, wake.sandbox))
        queue = [
            replace(wake, pages=wake.pages - got.get(wake.sandbox, 0))
            for wake in queue
            if wake not in done
        ]
        rounds += 1
        assert rounds <= 8 * 51

    assert finished == sorted(finished, key=lambda wake: (wake.since, wake.sandbox))
