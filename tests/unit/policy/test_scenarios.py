"""Whole agents: looks become phases, phases become plans, and breakers learn from them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from agentzip.policy.breakers import BreakerState, Cycle, Thresholds, after_cycle
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
)
from agentzip.policy.planner import Plan, PlannerState, plan
from unit.policy.situations import HOST, PART, RULES, SANDBOX

THRESHOLDS = Thresholds()


def looks(state: PhaseState, levels: Iterable[float], chance: Random) -> Iterable[PhaseState]:
    """A process that takes so many cores, second by second."""
    for level in levels:
        running = int(chance.random() < level)
        reading = Reading(state.at + 1, (ProcessReading(1, level, running, 0),), frozen=False)
        state = advance(state, reading)
        yield state


def decide(state: PhaseState) -> Plan:
    """What the planner makes of it, on a host that is short of memory."""
    since = state.quiet_since.get(1)
    part = replace(PART, quiet_s=0.0 if since is None else state.at - since)
    sandbox = replace(
        SANDBOX,
        phase=state.phase,
        expected_rest_s=expected_rest_s(state, state.at),
        parts=(part,),
    )
    return plan([sandbox], HOST, RULES, PlannerState())


def test_a_framework_that_ticks_is_paged_out_and_one_that_works_is_not() -> None:
    """1 to 8 % for 20 s is a wait; a core, or a fifth of one, for as long is not."""
    chance = Random(7)
    for working in (1.0, 0.5, 0.2):
        for state in looks(begin(0.0), [working] * 60, chance):
            assert () == decide(state).page_outs
    (*_, state) = looks(begin(0.0), [0.9] * 15, chance)
    ticks = [chance.uniform(0.01, 0.08) for _ in range(20)]

    plans = [decide(seen) for seen in looks(state, ticks, chance)]

    # Nothing is known of its waits, so one must have lasted for a while before it is worth it.
    assert [False] * 3 == [bool(made.page_outs) for made in plans[:3]]
    assert any(made.page_outs for made in plans[:10])
    assert plans[-1].page_outs


def test_a_hint_is_acted_on_with_the_first_quiet_look() -> None:
    """An announced minute pays at once; an announced half second never does."""
    (*_, state) = looks(begin(0.0), [0.9] * 12 + [0.0] * 2, Random(1))
    state = apply_hint(state, Hint("running", 14.0, None))
    long = apply_hint(state, Hint("waiting_model", 14.0, 60.0))
    short = apply_hint(state, Hint("waiting_model", 14.0, 0.5))
    ((after_long,), (after_short,)) = (looks(told, [0.0], Random(1)) for told in (long, short))

    assert decide(after_long).page_outs
    assert () == decide(after_short).page_outs


def test_an_agent_of_regular_turns_is_paged_out_once_its_waits_are_known() -> None:
    """Turns of 3 s, answers after 30 s: in later waits the planner knows what is to come."""
    chance = Random(3)
    state = begin(0.0)
    for _ in range(4):
        (*_, state) = looks(state, [0.8] * 3 + [0.03] * 30, chance)
    (*_, early) = looks(state, [0.8] * 3 + [0.03] * 4, chance)
    (*_, late) = looks(early, [0.03] * 25, chance)

    assert "waiting_model" == early.phase
    assert 24 <= expected_rest_s(early, early.at) <= 28
    assert decide(early).page_outs
    assert () == decide(late).page_outs


def processor_seconds(waits: int, back: Callable[[int], int], *, adaptive: bool) -> float:
    """What paging costs an agent that waits for 12 s again and again; `back` of n pages return."""
    breaker = BreakerState(min_wait_s=0.0)
    history = WaitHistory()
    part = replace(PART, working_set_pages=0, rest_pages=12_000)
    spent = 0.0
    for _ in range(waits):
        state = replace(begin(0.0), phase="waiting_model", history=history)
        sandbox = replace(
            SANDBOX,
            expected_rest_s=expected_rest_s(state, 2.0),
            min_wait_s=breaker.min_wait_s,
            parts=(part,),
        )
        out = sum(step.pages for step in plan([sandbox], HOST, RULES, PlannerState()).page_outs)
        soon = back(out)
        costs = RULES.costs
        cpu_s = out * costs.encode_s + soon * costs.restore_fault_s
        spent += cpu_s
        history = history.with_duration("waiting_model", 12.0)
        if adaptive:
            cycle = Cycle(waited_s=10.0, pages_out=out, pages_back_soon=soon, cpu_s=cpu_s)
            breaker = after_cycle(breaker, cycle, THRESHOLDS)
    return spent


def test_a_json_heavy_agent_settles() -> None:
    """It touches four of five pages again soon; learned thresholds cost it a fraction."""
    plain = processor_seconds(300, lambda out: out * 4 // 5, adaptive=False)
    adaptive = processor_seconds(300, lambda out: out * 4 // 5, adaptive=True)

    assert plain > 0
    assert adaptive < 0.15 * plain


def test_an_agent_that_waits_in_peace_is_not_held_back() -> None:
    """One page in fifty comes back: every wait but the first ones is used, with or without."""
    plain = processor_seconds(100, lambda out: out // 50, adaptive=False)

    assert plain > 0
    assert plain == processor_seconds(100, lambda out: out // 50, adaptive=True)
