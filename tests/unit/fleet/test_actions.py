"""What is done with the engine for sandboxes."""

import logging
import threading

import pytest

from agentzip.errors import NotAttached, TargetBusy
from agentzip.fleet.actions import Actions
from agentzip.fleet.registry import Member
from agentzip.host import kinship
from agentzip.testing import FakeTarget
from unit.fleet.fleet_stage import TracedEngine

WINDOW = (16, 256)


def _member(pid: int) -> Member:
    return Member(pid=pid, start_time=1, sandbox="a", command="agent")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> TracedEngine:
    """Three processes of one image."""
    monkeypatch.setattr(kinship, "image_of", lambda _pid: "python")
    return TracedEngine([FakeTarget(pid) for pid in (1, 2, 3)])


def test_the_next_process_of_an_image_begins_with_what_another_learned(
    engine: TracedEngine,
) -> None:
    """In the same trust domain only."""
    actions = Actions(engine)
    actions.attach(_member(1), "mine", WINDOW)
    engine.targets[1].learned_pages = 77
    actions.keep_template(1)
    actions.attach(_member(2), "mine", WINDOW)
    actions.attach(_member(3), "theirs", WINDOW)

    assert [77, 0] == [engine.targets[pid].learned_pages for pid in (2, 3)]
    assert (("mine", "python"), None) == (actions.kin(1), actions.kin(9))


def test_those_that_have_not_woken_yet_are_taught_as_soon_as_one_has(
    engine: TracedEngine,
) -> None:
    """In a fan-out all begin together; only those of the trust domain, and each once."""
    actions = Actions(engine)
    for pid, domain in ((1, "mine"), (2, "mine"), (3, "theirs")):
        actions.attach(_member(pid), domain, WINDOW)
    engine.targets[1].learned_pages = 77
    actions.keep_template(1)
    engine.targets[1].learned_pages = 99
    actions.keep_template(1)
    actions.close()

    assert [77, 0] == [engine.targets[pid].learned_pages for pid in (2, 3)]


def test_who_has_woken_or_gone_is_not_taught(engine: TracedEngine) -> None:
    """What it knows of itself is better, and a pid may be another process by now."""
    actions = Actions(engine)
    for pid in (1, 2, 3):
        actions.attach(_member(pid), "mine", WINDOW)
    actions.release(3)
    engine.targets[1].learned_pages = engine.targets[2].learned_pages = 5
    actions.keep_template(2)
    engine.targets[1].learned_pages = 77
    actions.keep_template(1)
    actions.close()

    assert [77, 5] == [engine.targets[pid].learned_pages for pid in (1, 2)]
    assert {} == actions._untaught


def test_templates_are_bounded_and_the_oldest_is_forgotten(
    engine: TracedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that runs a thousand images remembers the last 256."""
    actions = Actions(engine)
    for number in range(300):
        monkeypatch.setattr(kinship, "image_of", lambda _pid, number=number: f"image {number}")
        actions.attach(_member(1), "mine", WINDOW)
        actions.keep_template(1)
    assert 256 == len(actions._templates)
    assert ("mine", "image 44") in actions._templates
    assert ("mine", "image 43") not in actions._templates


def test_a_wake_goes_on_without_those_that_fail(
    engine: TracedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Who has gone is no news; another failure is logged, and served page by page."""
    actions = Actions(engine)
    for pid in (1, 2):
        actions.attach(_member(pid), "mine", WINDOW)
        engine.targets[pid].learned_pages = 10
        engine.page_out(pid)
    with caplog.at_level(logging.WARNING):
        reports = actions.wake({1: None, 2: 4, 3: None})
    assert {1: 10, 2: 4} == {report.pid: report.pages_in for report in reports}
    assert "" == caplog.text

    def busy(_pid: int, **_bound: object) -> None:
        raise TargetBusy("somebody works on it")

    engine.wake = busy  # type: ignore[method-assign,assignment]
    with caplog.at_level(logging.WARNING):
        assert [] == actions.wake({1: None})
    assert "somebody works on it" in caplog.text


def test_a_page_out_that_is_not_to_be_any_more_is_not_done(engine: TracedEngine) -> None:
    """It is asked last, when all is prepared."""
    prepared: list[int] = []
    actions = Actions(engine, prepared.append)
    actions.attach(_member(1), "mine", WINDOW)

    assert None is actions.page_out(1, 0, [], None, lambda: not prepared)
    assert [1] == prepared
    report = actions.page_out(1, 0, [], 7)
    assert report is not None
    assert 7 == report.pages_moved


def test_the_hottest_pages_of_a_working_set_stay(engine: TracedEngine) -> None:
    """As many as told, in the order in which the engine names them, beside the restless ones."""
    kept: list[object] = []

    def page_out(*order: object) -> None:
        kept.append(order[2])
        raise NotAttached("enough seen")

    actions = Actions(engine)
    actions.attach(_member(1), "mine", WINDOW)
    engine.targets[1].learned_pages = 50
    engine.page_out = page_out  # type: ignore[method-assign,assignment]
    for pages in (3, 0):
        with pytest.raises(NotAttached):
            actions.page_out(1, pages, [(0x1000, 0x2000)] if pages else [], None)

    assert [[(0x1000, 0x2000), (0x12_F000, 0x13_2000)], None] == kept


def test_what_cannot_be_detached_is_said_and_kept_for_later(
    engine: TracedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the reason; who has gone is forgotten."""
    actions = Actions(engine)
    for pid in (1, 2):
        actions.attach(_member(pid), "mine", WINDOW)
    engine.targets[1].detach_error = TargetBusy("somebody works on it")
    with caplog.at_level(logging.WARNING):
        for pid in (1, 2, 3):
            actions._leaving.add(pid)
            actions._detach(pid)
    assert "process 1 cannot be given back now: somebody works on it" in caplog.text
    assert {1} == actions._leaving
    engine.targets[1].detach_error = None
    actions.release_rest()
    actions._pool.submit(threading.Event).result(10)
    actions.close()
    assert ({}, set()) == (engine.attached, actions._leaving)


def test_a_close_does_not_wait_for_what_has_not_begun(engine: TracedEngine) -> None:
    """Three hundred releases in the queue are the stop's work, which does it with a deadline."""
    actions = Actions(engine)
    gate, begun = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        begun.release()
        gate.wait(10)

    for _ in range(4):
        actions._pool.submit(block)
    for _ in range(4):
        assert begun.acquire(timeout=10)
    actions.attach(_member(1), "mine", WINDOW)
    actions.release(1)
    waiting = threading.Thread(target=lambda: reports.append(actions.wake({2: None})))
    reports: list[object] = []
    waiting.start()
    closer = threading.Thread(target=actions.close)
    closer.start()
    waiting.join(10)
    assert [[]] == reports
    gate.set()
    closer.join(10)

    assert not closer.is_alive()
    assert [1] == list(engine.attached)
    actions.release(1)
