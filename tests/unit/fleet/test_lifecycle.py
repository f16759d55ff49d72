"""The tick: what leaves when, and what a failure does to it."""

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from agentzip import model
from agentzip.errors import TargetBusy
from agentzip.fleet import lifecycle as lifecycle_module
from agentzip.fleet.rules import Rules
from agentzip.testing import FakeTarget
from unit.fleet.fleet_stage import ACTING, FleetStage, stage_of

ALL = 996
"""Pages of a fake process that can leave: all but its four of code."""


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> FleetStage:
    """A sandbox of one process, seen twice, on a host with too much memory in use."""
    return _seen(stage_of(monkeypatch))


def _seen(stage: FleetStage) -> FleetStage:
    stage.tick()
    stage.tick()
    return stage


def _out(stage: FleetStage, pid: int = 11) -> int:
    return stage.engine.targets[pid].pages_out


def _announce(stage: FleetStage, phase: str = "waiting_user") -> None:
    stage.observer.heard(stage.life(), phase, 600.0)


def test_an_announced_wait_is_acted_on_by_the_next_tick(stage: FleetStage) -> None:
    """However busy the sandbox was until then; the planner's numbers are kept."""
    for _ in range(3):
        stage.tick(1.0, 0.9, 11)
    assert 0 == _out(stage)
    _announce(stage)
    stage.tick(0.01)

    assert ALL == _out(stage)
    _, decision = stage.life().decisions[-1]
    assert ("page_out", 11, ALL) == (decision.action, decision.pid, decision.pages)
    assert decision.gain > decision.cost > 0


def test_a_tool_that_works_in_an_announced_wait_stays(stage: FleetStage) -> None:
    """Who waits for a tool did not say which of its processes that is."""
    for _ in range(3):
        stage.tick(1.0, 0.9, 11)
    _announce(stage, "waiting_tool")
    for _ in range(3):
        stage.tick(1.0, 0.9, 11)
    assert 0 == _out(stage)


def test_a_wait_that_is_seen_leaves_only_when_it_has_lasted(stage: FleetStage) -> None:
    """Without a hint it must be quiet for a while first."""
    for _ in range(12):
        stage.tick(1.0, 0.9, 11)
    stage.tick()
    stage.tick()
    assert 0 == _out(stage)
    for _ in range(200):
        stage.tick()
    assert ALL == _out(stage)


def test_a_quiet_process_of_a_running_sandbox_leaves_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While others of its sandbox work; and the next tick is not at once, over and over."""
    stage = stage_of(monkeypatch, pids=(11, 12))
    for _ in range(200):
        stage.tick(1.0, 0.9, 12)
    assert "running" == stage.life().state.phase
    assert (ALL, 0) == (_out(stage), _out(stage, 12))
    assert 1 == len(stage.calls("page_out"))


def test_nothing_leaves_while_the_host_has_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is told when the wait begins, and again now and then."""
    stage = stage_of(monkeypatch, Rules())
    stage.host = replace(stage.host, available_bytes=15 << 30)
    for _ in range(60):
        stage.tick()

    assert 0 == _out(stage)
    at, decision = stage.life().decisions[-1]
    assert ("leave", 11) == (decision.action, decision.pid)
    assert "nothing leaves" in decision.reason
    assert stage.now - at <= 35


def test_who_goes_on_before_its_turn_is_left(stage: FleetStage) -> None:
    """What was planned is looked at again, and once more when all is prepared."""
    stage.tick(1.0, 0.9, 11)
    _announce(stage)
    plan = stage.lifecycle._plan(stage.now + 0.01)
    assert [11] == [order.pid for order in plan.page_outs]
    stage.pass_time(1.0, 1.0, 11)
    stage.lifecycle._page_out_all(plan.page_outs)
    assert [] == stage.calls("page_out")

    _announce(stage)
    stage.lifecycle.actions._before_page_out = lambda _pid: _announce(stage, "running")
    stage.lifecycle._page_out_all(plan.page_outs)
    assert [] == stage.calls("page_out")


def test_a_pinned_sandbox_stays(stage: FleetStage) -> None:
    """And says so."""
    stage.life().pinned = True
    _announce(stage)
    stage.tick()
    assert 0 == _out(stage)
    assert "it is pinned" == stage.life().decisions[-1][1].reason


def test_pages_that_it_touches_while_it_waits_are_told_to_stay(stage: FleetStage) -> None:
    """Merged and sorted, as the engine takes them."""
    kept: list[object] = []
    real = stage.engine.page_out

    def page_out(pid: int, *order: Any) -> model.PageOutReport:
        kept.append(order[1])
        return real(pid, *order)

    stage.engine.page_out = page_out  # type: ignore[method-assign,assignment]
    stage.process(11).add_restless([(0x5000, 0x6000), (0x1000, 0x2000), (0x2000, 0x3000)])
    _announce(stage)
    stage.tick()
    assert [[(0x1000, 0x3000), (0x5000, 0x6000)]] == kept


def test_a_large_process_leaves_in_parts_without_waiting_for_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each part asks for the next tick at once; the whole is one wait to the breaker."""
    small = replace(ACTING, planning=replace(ACTING.planning, pages_per_tick_max=300))
    stage = _seen(stage_of(monkeypatch, small))
    _announce(stage)
    for pages in (300, 600, 900):
        stage.lifecycle._tick_now.clear()
        stage.tick(0.01)
        assert pages == _out(stage)
        assert stage.lifecycle._tick_now.is_set()
    assert 900 == stage.process(11).out_pages
    stage.lifecycle._tick_now.clear()
    stage.tick(0.01)
    assert not stage.lifecycle._tick_now.is_set()


def test_a_page_out_that_fails_is_tried_again_a_second_later(stage: FleetStage) -> None:
    """Not at once: it would fail again, and again."""
    stage.tick()
    stage.engine.page_out_error = TargetBusy("somebody works on it")
    _announce(stage)
    stage.lifecycle._tick_now.clear()
    stage.tick()
    assert not stage.lifecycle._tick_now.is_set()
    assert stage.lifecycle._leaving_pids[11] == 0
    stage.engine.page_out_error = None
    stage.tick()
    assert ALL == _out(stage)


def test_a_bug_in_one_page_out_does_not_take_the_others_along(
    stage: FleetStage, caplog: pytest.LogCaptureFixture
) -> None:
    """It is loud, and the next process has its turn."""
    _announce(stage)
    stage.engine.page_out_error = ZeroDivisionError("a bug")
    with caplog.at_level(logging.ERROR):
        stage.tick()
    assert "a bug: page out of process 11 failed" in caplog.text
    stage.engine.page_out_error = None
    stage.tick()
    assert ALL == _out(stage)


def test_an_interrupted_page_out_does_not_say_what_cannot_leave(stage: FleetStage) -> None:
    """What is still there was only not reached."""
    real = stage.engine.page_out

    def interrupted(pid: int, *_order: object) -> model.PageOutReport:
        return replace(real(pid, None, None, 300), interrupted=True)

    stage.engine.page_out = interrupted  # type: ignore[method-assign,assignment]
    stay = stage.process(11).stay_pages
    _announce(stage)
    stage.tick()
    assert 300 == _out(stage)
    assert stage.process(11).stay_pages in (None, stay, 4)
    stage.engine.page_out = real  # type: ignore[method-assign]
    stage.tick()
    assert ALL == _out(stage)


def test_a_tick_that_raises_does_not_end_the_loop(
    stage: FleetStage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a host that cannot be looked at nor a bug; the first is no bug in the log."""
    monkeypatch.setattr(lifecycle_module, "_TICK_S", 0.001)
    ticks = threading.Semaphore(0)
    errors = [OSError("too many open files"), TargetBusy("busy"), ZeroDivisionError("bug")]

    def tick() -> None:
        ticks.release()
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr(stage.lifecycle, "tick", tick)
    with caplog.at_level(logging.WARNING):
        stage.lifecycle.start()
        for _ in range(5):
            assert ticks.acquire(timeout=10)
        stage.lifecycle.stop()
    assert [logging.WARNING, logging.WARNING, logging.ERROR] == [
        record.levelno for record in caplog.records
    ]


def test_a_stop_waits_for_the_page_out_in_progress_and_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two are planned; the second is never begun."""
    stage = _seen(stage_of(monkeypatch, pids=(11, 12)))
    _announce(stage)
    stage.engine.gate = threading.Event()
    stage.pass_time(0.01)
    stage.lifecycle.tick()
    assert stage.engine.entered.wait(10)
    stopper = threading.Thread(target=stage.lifecycle.stop)
    stopper.start()
    stage.lifecycle._stop.wait(10)
    assert stopper.is_alive()
    stage.engine.gate.set()
    stopper.join(10)

    assert not stopper.is_alive()
    assert 1 == len(stage.calls("page_out"))
    # A hint that comes now is heard and brings nothing: the daemon gives everything back anyway.
    assert [] == stage.lifecycle.actions.wake({11: None})


def test_a_tick_during_a_page_out_plans_nothing_new(stage: FleetStage) -> None:
    """It still looks, attaches and forgets."""
    _announce(stage)
    stage.engine.gate = threading.Event()
    stage.pass_time(0.01)
    stage.lifecycle.tick()
    assert stage.engine.entered.wait(10)
    stage.engine.targets[12] = FakeTarget(12)
    stage.start_times[12] = 1
    stage.registry.put("b", (12, 1))
    stage.tick_only()
    assert [11, 12] == list(stage.engine.attached)
    stage.engine.gate.set()
    stage.settle()
    assert [11] == stage.calls("page_out")


def test_a_storm_of_refaults_cuts_what_leaves(stage: FleetStage) -> None:
    """Counted over at least half a second, however often the tick comes."""
    stage.tick()
    stage.engine.targets[11].faults += 1_000_000
    stage.tick(1.0)
    assert 0.5 == stage.lifecycle._storm.factor
    for _ in range(10):
        stage.tick(0.01)
    assert 0.5 == stage.lifecycle._storm.factor
    stage.tick(1.0)
    assert 0.6 == stage.lifecycle._storm.factor


def test_rules_of_a_reload_hold_from_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that had enough has too much in use by the new watermarks."""
    stage = _seen(stage_of(monkeypatch, Rules()))
    _announce(stage)
    stage.tick()
    assert 0 == _out(stage)
    stage.observer.configure(ACTING)
    stage.tick(5.0)
    assert ALL == _out(stage)
