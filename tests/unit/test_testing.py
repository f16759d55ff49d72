"""The fake engine keeps the rules of the real one."""

import pytest

from agentzip import errors
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
