"""Where a sandbox is in its life: hints, the freezer, and what looks at its processes tell."""

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentzip.errors import InvalidSetting
from agentzip.policy.phases import (
    Hint,
    PhaseState,
    ProcessReading,
    Reading,
    WaitHistory,
    advance,
    apply_hint,
    begin,
    expected_rest_s,
    notice_s,
    quiet_processes,
)
from agentzip.sandboxes import PHASES, WAITS

BUSY = (0.9, 1)
IDLE = (0.0, 0)

readings_of_one = st.builds(
    ProcessReading,
    pid=st.integers(1, 3),
    cpu_cores=st.floats(0, 2),
    threads_running=st.integers(0, 3),
    faults=st.integers(0, 2000),
)
looks = st.builds(
    lambda step, processes, frozen: (step, tuple(processes), frozen),
    st.floats(0.1, 20),
    st.lists(readings_of_one, max_size=3, unique_by=lambda process: process.pid),
    st.booleans(),
)
hints = st.tuples(st.sampled_from(PHASES), st.none() | st.floats(0, 100))


def look(at: float, *processes: tuple[float, int], frozen: bool = False) -> Reading:
    """Processes 1, 2, ... with the given cores and running threads."""
    read = tuple(
        ProcessReading(pid, cores, threads, 0) for pid, (cores, threads) in enumerate(processes, 1)
    )
    return Reading(at, read, frozen)


def follow(state: PhaseState, looks: Iterable[tuple[float, int]]) -> PhaseState:
    """One process, one look a second."""
    for one in looks:
        state = advance(state, look(state.at + 1, one))
    return state


def running(seconds: int = 12) -> PhaseState:
    """A sandbox that has worked for a while."""
    return follow(begin(0.0), [BUSY] * seconds)


def test_a_busy_sandbox_starts_and_then_runs() -> None:
    """The first seconds are its start, whatever follows is work."""
    assert "starting" == follow(begin(0.0), [BUSY] * 9).phase
    assert ("running", "seen") == (running().phase, running().source)


def test_a_start_ends_when_the_processor_time_first_falls() -> None:
    """Then it waits, from the moment on in which it fell."""
    state = follow(follow(begin(0.0), [BUSY] * 3), [IDLE] * 3)

    assert ("waiting_model", 3.0) == (state.phase, state.since)


def test_a_framework_that_ticks_is_seen_waiting_within_a_few_looks() -> None:
    """It takes 1 to 8 % all the time, and is found running in as many looks."""
    for seed in range(50):
        chance = Random(seed)
        state = running()
        phases = []
        for _ in range(20):
            level = chance.uniform(0.01, 0.08)
            state = follow(state, [(level, int(chance.random() < level))])
            phases.append(state.phase)

        assert "waiting_model" in phases[:4]
        assert 16 <= phases.count("waiting_model")
        assert {1} == quiet_processes(state, state.at, 0.0)


def test_what_works_all_the_time_is_never_quiet() -> None:
    """One core, or a fifth of one without a word that this is a wait."""
    for level in (1.0, 0.2):
        state = begin(0.0)
        for _ in range(60):
            state = follow(state, [(level, 1)])
            assert set() == quiet_processes(state, state.at, 0.0)
            assert state.phase not in WAITS


def test_processor_time_ends_a_seen_wait_at_once() -> None:
    """What runs touches memory; one glimpse of a running thread is not enough."""
    waiting = follow(running(), [IDLE] * 10)

    assert "waiting_model" == follow(waiting, [(0.01, 1)]).phase
    woken = follow(waiting, [BUSY])
    assert ("running", waiting.at) == (woken.phase, woken.since)
    assert (10.0,) == woken.history.of("waiting_model")


def test_a_starved_process_works() -> None:
    """Runnable in most looks is work, though it gets no processor; so are waits for its pages."""
    starved = follow(running(), [(0.01, 1)] * 10)
    state = running()
    for _ in range(10):
        state = advance(state, Reading(state.at + 1, (ProcessReading(1, 0.02, 0, 5000),), False))

    assert ("running", "running") == (starved.phase, state.phase)


def test_a_quiet_process_beside_a_busy_one_is_known() -> None:
    """The framework waits for a tool that it has started: only the tool works."""
    state = begin(0.0)
    for at in range(1, 31):
        state = advance(state, look(at, BUSY if at < 10 else (0.03, 0), BUSY))

    assert "running" == state.phase
    assert {1} == quiet_processes(state, 30.0, 20.0)
    assert set() == quiet_processes(state, 30.0, 22.0)


def test_a_heavy_tick_is_learned_from_hinted_waits() -> None:
    """A process that takes 0.15 cores while it is said to wait is quiet the next time."""
    state = follow(running(), [(0.15, 0)] * 5)
    assert set() == quiet_processes(state, state.at, 0.0)
    for _ in range(3):
        state = apply_hint(state, Hint("waiting_model", state.at, 30))
        state = follow(state, [(0.15, 0)] * 10)
        state = follow(apply_hint(state, Hint("running", state.at, None)), [BUSY] * 3)

    assert {1} == quiet_processes(follow(state, [(0.15, 0)] * 3), state.at + 3, 0.0)


def test_a_tool_that_takes_little_is_not_taken_for_a_tick() -> None:
    """A fifth of a core during hinted waits for it is its work, and stays work."""
    state = running()
    for _ in range(5):
        state = apply_hint(state, Hint("waiting_tool", state.at, 30))
        for _ in range(10):
            state = advance(state, look(state.at + 1, IDLE, (0.2, 0)))
        assert {1} == quiet_processes(state, state.at, 0.0)
        state = apply_hint(state, Hint("running", state.at, None))


def test_a_hint_says_what_the_processes_do_from_now_on() -> None:
    """Who worked until it said that it waits is quiet; who slept until it wakes is not."""
    busy = follow(running(), [BUSY] * 3)
    waits = apply_hint(busy, Hint("waiting_model", busy.at, 60))
    assert {1} == quiet_processes(waits, busy.at, 0.0)
    assert set() == quiet_processes(
        apply_hint(busy, Hint("waiting_tool", busy.at, 60)), busy.at, 0.0
    )
    quiet = follow(waits, [IDLE] * 30)
    woken = apply_hint(quiet, Hint("running", quiet.at, None))
    assert set() == quiet_processes(woken, quiet.at, 0.0)
    seen = follow(woken, [IDLE])
    assert set() == quiet_processes(seen, seen.at, 1.5)


def test_thawed_processes_are_not_quiet_for_as_long_as_they_were_frozen() -> None:
    """What comes home for them must not leave again at once."""
    frozen = running()
    for _ in range(30):
        frozen = advance(frozen, look(frozen.at + 1, IDLE, frozen=True))
    assert {1} == quiet_processes(frozen, frozen.at, 20.0)
    thawed = advance(frozen, look(frozen.at + 1, IDLE))

    assert "running" == thawed.phase
    assert set() == quiet_processes(thawed, thawed.at, 0.0)


def test_a_level_does_not_creep_up_by_itself() -> None:
    """Who ticks at 9 % for long without a word, and then takes 15 %, works."""
    state = follow(running(), [(0.09, 0)] * 60 + [(0.15, 0)] * 3)

    assert set() == quiet_processes(state, state.at, 0.0)


def test_a_wait_of_unknown_kind_becomes_one_for_a_person() -> None:
    """After a minute, or after twice the longest answer once answers are known."""
    waiting = follow(running(), [IDLE] * 59)
    assert "waiting_model" == waiting.phase
    assert "waiting_user" == follow(waiting, [IDLE] * 3).phase
    turns = running()
    for _ in range(4):
        turns = follow(follow(turns, [IDLE] * 8), [BUSY] * 3)
    assert "waiting_model" == follow(turns, [IDLE] * 15).phase
    assert "waiting_user" == follow(turns, [IDLE] * 18).phase


def test_a_hint_outranks_what_is_seen_for_two_seconds() -> None:
    """Then evidence wins, from the moment on in which it began."""
    hinted = apply_hint(running(), Hint("waiting_model", 12.0, 30))

    assert ("waiting_model", "hint") == (hinted.phase, hinted.source)
    assert "waiting_model" == follow(hinted, [BUSY] * 2).phase
    contradicted = follow(hinted, [IDLE] * 5 + [BUSY] * 3)
    assert ("running", "seen", 17.0) == (
        contradicted.phase,
        contradicted.source,
        contradicted.since,
    )


def test_a_tool_at_work_does_not_contradict_the_wait_for_it() -> None:
    """The framework is quiet and its tool works; when the framework works as well it is over."""
    state = begin(0.0)
    for at in range(1, 12):
        state = advance(state, look(at, BUSY))
    state = apply_hint(state, Hint("waiting_tool", 11.0, 4))
    for at in range(12, 30):
        state = advance(state, look(at, IDLE, BUSY))
    assert ("waiting_tool", "hint") == (state.phase, state.source)

    assert "running" == advance(state, look(30, BUSY, BUSY)).phase


def test_a_hint_whose_time_is_over_yields_to_the_first_work() -> None:
    """It was to last 4 s; in the sixth it works."""
    state = apply_hint(running(), Hint("waiting_model", 12.0, 4))

    assert "waiting_model" == follow(state, [IDLE] * 10).phase
    assert "running" == follow(state, [IDLE] * 5 + [BUSY]).phase


def test_a_hinted_run_that_does_nothing_is_a_wait() -> None:
    """Who says when it runs but not when it waits is seen to wait, a little later."""
    state = apply_hint(follow(running(), [IDLE] * 5), Hint("running", 17.0, None))

    assert "running" == follow(state, [IDLE]).phase
    after = follow(state, [IDLE] * 3)
    assert ("waiting_model", "seen", 17.0) == (after.phase, after.source, after.since)


def test_a_hint_names_a_wait_that_was_seen_before() -> None:
    """It is the same wait, better known: it keeps its beginning."""
    seen = follow(running(), [IDLE] * 5)
    state = apply_hint(seen, Hint("waiting_user", 17.0, 100))

    assert ("waiting_user", "hint", 12.0, 105.0) == (
        state.phase,
        state.source,
        state.since,
        state.expected_s,
    )
    assert 100.0 == expected_rest_s(state, 17.0)
    assert () == state.history.of("waiting_model")


def test_frozen_is_a_wait_for_a_person_unless_it_said_why() -> None:
    """Nobody who is paused wakes by himself; thawed he runs."""
    paused = advance(running(), look(13.0, BUSY, frozen=True))
    assert ("waiting_user", "frozen") == (paused.phase, paused.source)
    assert {1} == quiet_processes(paused, 14.0, 1.0)
    thawed = advance(paused, look(20.0, BUSY))
    assert ("running", 20.0) == (thawed.phase, thawed.since)
    assert (7.0,) == thawed.history.of("waiting_user")

    seen = advance(follow(running(), [IDLE] * 5), look(18.0, IDLE, frozen=True))
    assert ("waiting_user", "frozen", 12.0) == (seen.phase, seen.source, seen.since)
    told = apply_hint(running(), Hint("waiting_model", 12.0, 8))
    assert "waiting_model" == advance(told, look(13.0, IDLE, frozen=True)).phase


def test_a_hint_that_a_frozen_sandbox_will_run_holds_until_it_is_thawed() -> None:
    """But not for long: a pause that goes on is a pause."""
    paused = advance(running(), look(13.0, IDLE, frozen=True))
    announced = apply_hint(paused, Hint("running", 14.0, None))

    assert "running" == advance(announced, look(15.0, IDLE, frozen=True)).phase
    assert "running" == advance(announced, look(15.0, BUSY)).phase
    assert "waiting_user" == advance(announced, look(17.0, IDLE, frozen=True)).phase


def test_finishing_and_done_come_by_hint_or_by_exit_only() -> None:
    """Work while it finishes is no contradiction; the last exit ends everything."""
    finishing = apply_hint(running(), Hint("finishing", 12.0, None))

    assert "finishing" == follow(finishing, [BUSY] * 10 + [IDLE] * 10).phase
    gone = advance(finishing, look(13.0))
    assert ("done", {}) == (gone.phase, gone.quiet_since)
    assert "running" == advance(gone, look(14.0, BUSY)).phase
    done = apply_hint(running(), Hint("done", 12.0, None))
    assert "done" == follow(done, [BUSY] * 10).phase


@pytest.mark.parametrize(
    ("phase", "expect_s"),
    [("sleeping", None), ("running", -1.0), ("running", float("nan"))],
)
def test_a_hint_that_says_nothing_is_refused(phase: str, expect_s: float | None) -> None:
    """The error names what is wrong."""
    with pytest.raises(InvalidSetting, match=r"phase|expect_s"):
        Hint(phase, 0.0, expect_s)


def test_the_rest_of_a_wait_follows_from_those_that_lasted_longer() -> None:
    """Low median of what was left for them; without any, as long as it has outlasted the others."""

    def rest(age: float, *durations: float) -> float:
        history = WaitHistory({"waiting_model": durations})
        state = PhaseState(phase="waiting_model", since=0.0, source="seen", history=history, at=0.0)
        return expected_rest_s(state, age)

    assert 7.0 == rest(7.0)
    assert 9.0 == rest(0.0, 9.0, 10.0, 11.0)
    assert 5.0 == rest(4.0, 9.0, 10.0, 11.0)
    assert 0.0 == rest(0.0, 60.0)  # One wait is no pattern.
    assert 90.0 == rest(100.0, 9.0, 10.0)
    assert 1.0 == rest(2.0, *[1.0] * 7, 300.0)
    assert 100.0 == rest(200.0, *[1.0] * 7, 300.0)


def test_who_is_about_to_go_on_goes_on_as_soon_as_it_works() -> None:
    """Being quiet until then is no contradiction, and work is no surprise."""
    waiting = apply_hint(running(), Hint("waiting_model", 12.0, None))
    resuming = apply_hint(follow(waiting, [IDLE] * 8), Hint("resuming", 20.0, None))

    assert {} == resuming.quiet_since
    later = follow(resuming, [IDLE] * 5)
    assert ("resuming", "hint") == (later.phase, later.source)
    assert "running" == follow(later, [BUSY]).phase


def test_who_does_not_go_on_waits_after_all() -> None:
    """Two seconds after it was to be, or half a minute if that was not said."""
    waiting = apply_hint(running(), Hint("waiting_model", 12.0, None))

    for expect_s, due_s in ((3.0, 5), (None, 32)):
        resuming = apply_hint(waiting, Hint("resuming", 12.0, expect_s))
        assert "resuming" == follow(resuming, [IDLE] * due_s).phase
        assert "waiting_model" == follow(resuming, [IDLE] * (due_s + 1)).phase


def test_only_who_waits_can_be_about_to_go_on() -> None:
    """A word that comes late changes nothing."""
    state = running()

    assert state is apply_hint(state, Hint("resuming", 12.0, None))


def test_half_of_the_least_of_the_last_four_notices_is_counted_on() -> None:
    """A wake without notice counts as well, until four others came after it."""
    state, at = running(), 20.0
    counted = [notice_s(state)]
    for notice in (2.0, 1.0, 0.0, 4.0, 5.0, 6.0, 7.0):
        state = apply_hint(state, Hint("waiting_model", at, None))
        if notice:
            state = apply_hint(state, Hint("resuming", at + 10, None))
        state = apply_hint(state, Hint("running", at + 10 + notice, None))
        at += 20
        counted.append(notice_s(state))

    assert [0.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 2.0] == counted


def test_only_the_last_durations_are_remembered() -> None:
    """An hour of turns; what an agent did yesterday says little."""
    history = WaitHistory()
    for duration in range(1, 101):
        history = history.with_duration("waiting_model", float(duration))

    assert tuple(map(float, range(69, 101))) == history.of("waiting_model")
    assert () == history.of("waiting_user")


def test_an_announced_length_is_believed_and_then_overdue() -> None:
    """Overdue by two seconds it goes on for two."""
    state = apply_hint(running(), Hint("waiting_model", 12.0, 8))

    assert (8.0, 3.0, 0.0, 2.0) == tuple(
        expected_rest_s(state, at) for at in (12.0, 17.0, 20.0, 22.0)
    )


@given(st.lists(looks | hints, max_size=40))
def test_whatever_happens_the_state_holds_together(events: list[tuple[object, ...]]) -> None:
    """Phases are known, times run forwards, memory is bounded, what is expected is not negative."""
    state = begin(0.0)
    now = 0.0
    for event in events:
        before = state
        if len(event) == 2:
            phase, expect_s = event
            state = apply_hint(state, Hint(str(phase), now, expect_s))  # type: ignore[arg-type]
            if phase == "resuming" and before.phase not in (*WAITS, "resuming"):
                assert before is state
                continue
            assert ("hint", phase) == (state.source, state.phase)
        else:
            step, processes, frozen = event
            now += step  # type: ignore[operator]
            state = advance(state, Reading(now, processes, bool(frozen)))  # type: ignore[arg-type]
            assert state is advance(state, Reading(now, (), frozen=False))
        assert state.phase in PHASES
        assert before.since <= state.since <= now
        assert 0 <= expected_rest_s(state, now)
        assert 0 <= expected_rest_s(state, now + 5)
        assert all(since <= now for since in state.quiet_since.values())
        assert quiet_processes(state, now, 1.0) <= quiet_processes(state, now, 0.5)
        for phase, durations in state.history.durations.items():
            assert len(durations) <= 32
            assert all(duration > 0 or phase == "resuming" for duration in durations)


@given(st.lists(st.floats(0.25, 3), min_size=1, max_size=30))
def test_a_process_at_full_load_is_never_quiet(levels: list[float]) -> None:
    """Whatever is said of the sandbox: a quarter of a core is work."""
    state = apply_hint(begin(0.0), Hint("waiting_user", 0.0, 1e6))
    for level in levels:
        state = follow(state, [(level, 1)])
        assert {} == state.quiet_since
