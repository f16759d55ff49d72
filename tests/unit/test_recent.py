"""Counters that are shared by all who look in the same second."""

from agentzip.recent import SHARED_S, Recent
from agentzip.testing import FakeEngine, FakeTarget


def test_counters_are_asked_for_once_in_their_time() -> None:
    """Who wants them as they are now renews them for the others."""
    engine, now = FakeEngine([FakeTarget(7), FakeTarget(8)]), [10.0]
    recent = Recent(engine, SHARED_S, lambda: now[0])
    assert [] == recent.spaces()
    assert 0 == recent.stats().pool_slots
    engine.attach(7)
    engine.page_out(7)
    now[0] += SHARED_S / 2
    assert [] == recent.spaces()
    assert 0 == recent.stats().pool_slots
    assert [7] == [space.pid for space in recent.spaces_now()]
    assert [7] == [space.pid for space in recent.spaces()]
    now[0] += SHARED_S
    assert 1000 == recent.stats().pool_slots


def test_counters_of_the_engine_are_good_for_longer_while_nothing_moves() -> None:
    """A page that leaves is seen with the next look at the spaces."""
    engine, now = FakeEngine([FakeTarget(7)]), [10.0]
    recent = Recent(engine, SHARED_S, lambda: now[0])
    engine.attach(7)
    recent.spaces_now()
    first = recent.stats()
    now[0] += 2.0
    recent.spaces_now()
    assert first is recent.stats()
    engine.page_out(7)
    now[0] += 1.0
    recent.spaces_now()
    assert 1000 == recent.stats().pool_slots
    now[0] += 4.0
    engine.keeper_restarts = 1
    assert 0 == recent.stats().keeper_restarts
    now[0] += 1.0
    assert 1 == recent.stats().keeper_restarts


def test_without_an_age_nothing_is_shared() -> None:
    """For an engine of few targets that one looks at."""
    engine = FakeEngine([FakeTarget(7)])
    recent = Recent(engine, clock=lambda: 1.0)
    assert [] == recent.spaces()
    engine.attach(7)
    assert [7] == [space.pid for space in recent.spaces()]
