"""The fake engine keeps the rules of the real one."""

import pytest

from agentzip import errors, model
from agentzip.pager import Pager
from agentzip.testing import FakeEngine, FakeTarget


def test_the_fake_satisfies_the_protocol() -> None:
    """Whatever takes a Pager takes the fake; mypy checks the assignment."""
    engine: Pager = FakeEngine([FakeTarget(7, pages=10)])
    engine.attach(7)

    assert 10 == engine.page_out(7).pages_moved
    assert 10 == engine.page_in(7).pages_in
    assert engine.detach(7).complete


def test_what_is_not_attached_is_refused() -> None:
    """Page out, page in and detach need an attach first."""
    engine = FakeEngine([FakeTarget(7)])

    for verb in (engine.page_out, engine.page_in, engine.detach):
        with pytest.raises(errors.NotAttached):
            verb(7)


def test_a_second_attach_is_refused() -> None:
    """A process is managed once."""
    engine = FakeEngine([FakeTarget(7)])
    engine.attach(7)

    with pytest.raises(errors.AlreadyAttached):
        engine.attach(7)


def test_a_close_with_targets_is_refused() -> None:
    """Nothing is left without a server."""
    engine = FakeEngine([FakeTarget(7)])
    engine.attach(7)

    with pytest.raises(errors.TargetsRemain):
        engine.close()
    engine.detach(7)
    engine.close()

    assert engine.closed


def test_a_wake_teaches_and_the_next_one_brings() -> None:
    """The first wake finds nothing learned; what it needs is home at the second."""
    engine = FakeEngine([FakeTarget(7, pages=1000, pages_needed=50)])
    engine.attach(7)
    engine.page_out(7)

    assert 0 == engine.wake(7).pages_in
    assert 30 == engine.wake(7, pages_max=30).pages_in
    assert 30 == engine.page_out(7).pages_moved
    assert 50 == engine.wake(7).pages_in
    assert (50, 3) == (engine.learned(7).pages, engine.learned(7).wakes)


def test_what_one_target_has_learned_serves_another() -> None:
    """Anything else than an export is refused."""
    engine = FakeEngine([FakeTarget(7), FakeTarget(8, pages=60)])
    for pid in (7, 8):
        engine.attach(pid)
    engine.wake(7)

    assert 60 == engine.import_learned(8, engine.export_learned(7))
    with pytest.raises(errors.InvalidSetting):
        engine.import_learned(8, b"nonsense")


def test_refaults_are_told_once() -> None:
    """As by the real engine."""
    target = FakeTarget(7, refaults=[model.Refault(0, 4096, 5)])
    engine = FakeEngine([target])
    engine.attach(7)

    assert [model.Refault(0, 4096, 5)] == engine.refaults(7)
    assert [] == engine.refaults(7)


@pytest.mark.parametrize(("low", "high"), [(8, 16), (32, 16), (16, 512)])
def test_a_window_out_of_range_is_refused(low: int, high: int) -> None:
    """By the fake as by the real one."""
    engine = FakeEngine([FakeTarget(7)])
    engine.attach(7)

    with pytest.raises(errors.InvalidSetting, match="window"):
        engine.set_prefetch(7, replay=True, window_min=low, window_max=high)
