"""The pool's background work with a fake engine."""

import os
import threading
import time

import pytest

from agentzip.errors import AgentZipError
from agentzip.policy import tiers
from agentzip.testing import FakeEngine, FakeTarget
from agentzip.upkeep import Upkeep

PAGES = 70_000


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _upkeep(
    *pids: int, settings: tiers.Background | None = None
) -> tuple[FakeEngine, Upkeep, _Clock]:
    engine = FakeEngine([FakeTarget(pid, pages=PAGES) for pid in pids])
    clock = _Clock()
    upkeep = Upkeep(engine, settings or tiers.Background(), lambda _pid: ("domain", "image"), clock)
    for pid in pids:
        engine.attach(pid, domain="domain", image="image")
        engine.page_out(pid)
    return engine, upkeep, clock


def test_pages_that_wait_long_become_cold_with_a_dictionary_of_their_own() -> None:
    """The second target of an image refers to the first."""
    engine, upkeep, clock = _upkeep(7, 8)
    upkeep.step()
    clock.now = 100_000.0

    first, second = upkeep.step(), upkeep.step()

    assert [tiers.Move] * 2 == [type(action) for action in first + second]
    moves = [action for action in first + second if isinstance(action, tiers.Move)]
    assert [(7, None), (8, 7)] == [(move.pid, move.peer) for move in moves]
    assert ["cold", "cold"] == [engine.targets[pid].tier for pid in (7, 8)]
    assert 3 == len(engine.dictionaries()), "one for the family, one for each target"


def test_a_page_out_makes_a_target_warm_again() -> None:
    """What left just now is not cold because the rest is."""
    engine, upkeep, clock = _upkeep(7)
    upkeep.step()
    clock.now = 100_000.0
    upkeep.step()
    engine.page_in(7)
    upkeep.step()
    engine.page_out(7)

    assert upkeep.step() == []


def test_the_dictionary_of_a_target_goes_with_it() -> None:
    """Nothing trained outlives the process whose memory it was made from, but for its family's."""
    engine, upkeep, clock = _upkeep(7)
    upkeep.step()
    clock.now = 100_000.0
    upkeep.step()
    assert 2 == len(engine.dictionaries())

    engine.end_target(7)
    upkeep.step()

    assert 1 == len(engine.dictionaries())


def test_no_dictionary_means_none() -> None:
    """`compression.dictionary: none` trains nothing and loads nothing."""
    settings = tiers.Background(dictionary="none")
    engine, upkeep, clock = _upkeep(7, settings=settings)
    upkeep.before_page_out(7)
    upkeep.step()
    clock.now = 100_000.0
    upkeep.step()

    assert engine.dictionaries() == []
    assert engine.targets[7].dictionary_id is None


def test_the_next_page_out_uses_the_dictionary_of_the_family() -> None:
    """The first target of an image trains it for all."""
    engine, upkeep, _clock = _upkeep(7, 8)
    upkeep.step()
    upkeep.before_page_out(8)

    assert engine.dictionaries()[0].id == engine.targets[8].dictionary_id


def test_a_python_process_gets_the_shipped_dictionary_until_there_is_a_trained_one() -> None:
    """This very process is one; nothing of it is touched."""
    pid = os.getpid()
    engine = FakeEngine([FakeTarget(pid)])
    upkeep = Upkeep(engine, tiers.Background(dictionary="prebuilt"), lambda _pid: ("d", "i"))
    engine.attach(pid)
    upkeep.before_page_out(pid)

    assert ["python312"] == [info.name for info in engine.dictionaries()]
    assert engine.targets[pid].dictionary_id == engine.dictionaries()[0].id


def test_background_work_ends_when_it_is_told_to() -> None:
    """The thread stops within its tick."""
    _engine, upkeep, _clock = _upkeep(7)
    upkeep.start(tick_s=0.01)
    upkeep.stop()


@pytest.mark.timeout(20)
def test_work_of_the_lowest_priority_does_not_hold_up_the_end() -> None:
    """On a busy host it would not get on: it is an ordinary thread from then on."""
    engine, upkeep, _clock = _upkeep(7)
    begun = threading.Event()

    def train(*_arguments: object, **_options: object) -> None:
        thread = threading.get_native_id()
        begun.set()
        os.setpriority(os.PRIO_PROCESS, thread, 19)
        while os.getpriority(os.PRIO_PROCESS, thread) == 19:
            time.sleep(0.01)
        raise AgentZipError("ended")

    engine.train = train  # type: ignore[method-assign,assignment]
    upkeep.start(tick_s=0.01)
    assert begun.wait(10)

    upkeep.stop()
