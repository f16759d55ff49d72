"""What people, platforms and sandboxes ask."""

import threading
from pathlib import Path
from typing import Any

import pytest

from agentzip import model
from agentzip.config import Scope
from agentzip.errors import InvalidSetting, NoSuchSandbox, TargetBusy
from agentzip.fleet import service as service_module
from agentzip.fleet.scopes import Rule, Scopes
from agentzip.fleet.service import FleetService
from agentzip.host import memory
from agentzip.policy import breakers
from agentzip.policy.temperature import Thresholds
from agentzip.sandboxes import Fleet
from agentzip.testing import FakeTarget
from unit.fleet.fleet_stage import FleetStage, stage_of


class _Stage:
    """A service over a stage whose host has `available` bytes of memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *pids: int) -> None:
        self.fleet: FleetStage = stage_of(monkeypatch, pids=pids)
        self.scopes = Scopes([Scope(cgroup="agents-*")], folder)
        self.service = FleetService(
            self.fleet.lifecycle,
            self.fleet.registry,  # type: ignore[arg-type]
            self.scopes,
            clock=lambda: self.fleet.now,
        )
        self.available = 1 << 40
        monkeypatch.setattr(memory, "memory_available", lambda: self.available)
        self.fleet.tick()
        self.fleet.tick()

    def out(self, *, learned: int = 0) -> None:
        """Let everything of the sandbox leave in an announced wait."""
        self.service.hint("a", "waiting_user", 600.0)
        for target in self.fleet.engine.targets.values():
            target.learned_pages = learned
        self.fleet.tick()
        assert self.fleet.calls("page_out")


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Stage:
    """A sandbox of one process that waits for nothing yet."""
    return _Stage(monkeypatch, tmp_path, 11)


def test_the_service_is_a_fleet(stage: _Stage) -> None:
    """Mypy checks the assignment."""
    fleet: Fleet = stage.service
    assert ["a"] == [one.name for one in fleet.sandboxes()]


def test_a_hint_that_begins_a_wait_asks_for_a_tick_now(stage: _Stage) -> None:
    """So does one that says that the end is near; one that says that it starts does not."""
    for phase, hurries in (
        ("waiting_model", True),
        ("waiting_user", True),
        ("finishing", True),
        ("done", True),
        ("starting", False),
    ):
        stage.fleet.lifecycle._tick_now.clear()
        report = stage.service.hint("a", phase)
        assert (phase, hurries) == (report.phase, stage.fleet.lifecycle._tick_now.is_set())


def test_a_hint_that_ends_a_wait_brings_the_working_set_home(stage: _Stage) -> None:
    """The answer says how much, the status how long it took, and the breaker learns."""
    stage.out(learned=100)
    life = stage.fleet.life()
    assert not life.announced
    calm = life.breaker.calm
    stage.fleet.pass_time(300.0)
    report = stage.service.hint("a", "running")

    assert ("waiting_user", 100) == (report.former_phase, report.pages_in)
    assert [None] == stage.fleet.engine.wake_bounds
    assert (1, True) == (len(life.wakes_ms), life.announced)
    assert (calm + 1, 0) == (life.breaker.calm, stage.fleet.process(11).out_pages)
    assert (1, 1) == (
        stage.fleet.engine.targets[11].wakes,
        len([one for one in stage.service.sandboxes() if one.wake_p50_ms is not None]),
    )


def test_who_is_about_to_go_on_comes_home_meanwhile_and_is_woken_once(stage: _Stage) -> None:
    """The first word is answered at once, the second when the set is home; nothing leaves then."""
    stage.out(learned=100)
    life = stage.fleet.life()
    stage.fleet.pass_time(300.0)
    first = stage.service.hint("a", "resuming", 2.0)
    stage.fleet.tick()
    out_again = stage.fleet.calls("page_out")[1:]
    stage.fleet.pass_time(2.0)
    second = stage.service.hint("a", "running")

    assert ("resuming", 0) == (first.phase, first.pages_in)
    assert ("resuming", 100) == (second.former_phase, second.pages_in)
    assert [] == out_again
    assert (1, 1, True) == (
        stage.fleet.engine.targets[11].wakes,
        len(life.wakes_ms),
        life.announced,
    )
    assert 0 < life.planned([11], stage.fleet.now, Thresholds()).notice_s <= 1.5
    stage.service.close()


def test_a_service_that_is_closed_wakes_nobody_beforehand(stage: _Stage) -> None:
    """The daemon is about to stop, and brings everything home."""
    stage.out(learned=100)
    stage.service.close()

    assert 0 == stage.service.hint("a", "resuming").pages_in
    assert 0 == stage.service.hint("a", "running").pages_in


def test_what_a_wake_taught_is_kept_as_the_template_at_the_next_page_out(stage: _Stage) -> None:
    """Not while the sandbox waits for its pages, and once for each wake."""
    stage.out(learned=100)
    stage.service.hint("a", "running")
    assert [] == stage.fleet.engine.templates
    stage.service.page_in("a")
    stage.fleet.tick()
    stage.out(learned=100)
    assert [11] == stage.fleet.engine.templates
    stage.service.page_out("a")
    assert [11] == stage.fleet.engine.templates


def test_a_wait_whose_pages_came_back_at_once_teaches_the_breaker(stage: _Stage) -> None:
    """The next wait must be longer to be worth it."""
    stage.out()
    stage.fleet.engine.targets[11].faults += 900
    stage.fleet.tick()
    stage.service.hint("a", "finishing")

    life = stage.fleet.life()
    assert breakers.BreakerState(2.0, 0, 8) == life.breaker
    assert 2.0 == stage.service.sandboxes()[0].min_wait_s


def test_a_running_sandbox_is_not_woken_again(stage: _Stage) -> None:
    """Nothing is to be brought home."""
    stage.service.hint("a", "running")
    woken = stage.fleet.calls("wake")
    assert "running" == stage.service.hint("a", "running").former_phase
    assert woken == stage.fleet.calls("wake")


@pytest.mark.parametrize(
    ("phase", "expect", "word"),
    [
        ("asleep", None, "phase"),
        ("waiting_user", -1.0, "expect"),
        ("waiting_user", float("nan"), "expect"),
        ("waiting_user", 8 * 86400.0, "expect"),
    ],
)
def test_a_hint_that_cannot_be_is_refused(
    stage: _Stage, phase: str, expect: float | None, word: str
) -> None:
    """The message names what, the hint says what instead."""
    with pytest.raises(InvalidSetting, match=word) as caught:
        stage.service.hint("a", phase, expect)
    assert caught.value.hint


def test_nobody_is_asked_about_a_sandbox_that_is_not_there(stage: _Stage) -> None:
    """Each question says so."""
    for ask in (
        lambda: stage.service.hint("b", "running"),
        lambda: stage.service.explain("b"),
        lambda: stage.service.page_out("b"),
        lambda: stage.service.page_in("b"),
        lambda: stage.service.pin("b", pinned=True),
    ):
        with pytest.raises(NoSuchSandbox):
            ask()


def test_a_pinned_sandbox_comes_home_and_stays(stage: _Stage) -> None:
    """Until it is given back to the planner."""
    stage.out()
    stage.service.pin("a", pinned=True)
    assert 0 == stage.fleet.engine.targets[11].pages_out
    stage.fleet.tick()
    assert 0 == stage.fleet.engine.targets[11].pages_out
    assert stage.service.sandboxes()[0].pinned
    stage.service.pin("a", pinned=False)
    stage.fleet.tick(10.0)
    assert stage.fleet.engine.targets[11].pages_out


def test_decisions_are_told_newest_first_with_their_age(stage: _Stage) -> None:
    """By the same clock as the ticks."""
    stage.out()
    stage.service.pin("a", pinned=True)
    stage.fleet.tick()
    stage.fleet.pass_time(3.0)
    decisions = stage.service.explain("a")

    assert ["leave", "page_out"] == [decision.action for decision in decisions][:2]
    assert [3.0, 4.0] == [decision.age_s for decision in decisions][:2]


def test_a_page_out_by_hand_tries_all_and_raises_the_first_refusal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One process that resists does not keep the others in memory."""
    stage = _Stage(monkeypatch, tmp_path, 11, 12)
    assert 2000 == stage.service.page_out("a")
    assert 2000 == stage.service.page_in("a")
    real = stage.fleet.engine.page_out

    def page_out(pid: int, *order: Any) -> model.PageOutReport:
        if pid == 11:
            raise TargetBusy("somebody works on it")
        return real(pid, *order)

    stage.fleet.engine.page_out = page_out  # type: ignore[method-assign,assignment]
    with pytest.raises(TargetBusy):
        stage.service.page_out("a")
    assert 1000 == stage.fleet.engine.targets[12].pages_out


def test_short_memory_is_shared_out_among_the_processes_of_a_wake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What does not fit comes page by page, as it is touched; no process gets it twice."""
    monkeypatch.setattr(service_module, "_ADMISSION_S_MAX", 0.0)
    stage = _Stage(monkeypatch, tmp_path, 11, 12)
    stage.out(learned=100)
    stage.fleet.tick()
    stage.available = service_module._MEMORY_FLOOR_BYTES + 130 * 4096
    report = stage.service.hint("a", "running")

    assert [30, 100] == sorted(bound or 0 for bound in stage.fleet.engine.wake_bounds)
    assert 130 == report.pages_in


def test_wakes_are_let_in_in_the_order_of_their_coming(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second waits until there is room, and the first is not overtaken."""
    stage = _Stage(monkeypatch, tmp_path, 11)
    stage.out(learned=100)
    stage.fleet.tick()
    stage.available = 0
    monkeypatch.setattr(service_module, "_ADMISSION_LOOK_S", 0.001)
    first = breakers.Wake("earlier", 50, stage.fleet.now - 1.0)
    with stage.service._room:
        stage.service._waking.append(first)
    stage.available = service_module._MEMORY_FLOOR_BYTES + 120 * 4096
    done: list[int] = []
    waker = threading.Thread(
        target=lambda: done.append(stage.service.hint("a", "running").pages_in)
    )
    waker.start()
    while len(stage.service._waking) < 2:
        assert waker.is_alive()
    assert [] == done
    with stage.service._room:
        stage.service._waking.remove(first)
        stage.service._room.notify_all()
    waker.join(10)
    assert [100] == done


def test_a_wake_repairs_what_a_page_out_of_before_takes_away(stage: _Stage) -> None:
    """One that was decided before the hint may run behind the wake; then it is brought again."""
    stage.out(learned=100)
    stage.fleet.tick()
    engine = stage.fleet.engine
    engine.gate = threading.Event()
    engine.entered.clear()
    life, process = stage.fleet.life(), stage.fleet.process(11)
    late = threading.Thread(target=lambda: stage.fleet.lifecycle.page_out(life, process))
    late.start()
    assert engine.entered.wait(10)
    answers: list[int] = []
    hint = threading.Thread(
        target=lambda: answers.append(stage.service.hint("a", "running").pages_in)
    )
    hint.start()
    while not engine.wake_bounds:
        assert hint.is_alive()
    engine.gate.set()
    late.join(10)
    hint.join(10)

    assert [200] == answers
    assert 900 == engine.targets[11].pages_out


def test_scopes_are_changed_for_good_and_the_next_tick_is_now(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry says how many sandboxes each has."""
    monkeypatch.setattr(stage.service, "_registry", _Statuses(stage.scopes), raising=True)
    stage.fleet.lifecycle._tick_now.clear()
    assert "more-*" == stage.service.scope_add("more-*", "sandbox").pattern
    assert stage.fleet.lifecycle._tick_now.is_set()
    assert not stage.service.scope_enable("more-*", enabled=False).enabled
    assert "more-*" == stage.service.scope_remove("more-*").pattern
    assert ["agents-*"] == [rule.pattern for rule in stage.scopes.rules()]


class _Statuses:
    """The part of a registry that tells of scopes."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes

    def status(self, rule: Rule) -> Rule:
        """The rule itself has what the test looks at."""
        return rule


def test_sandboxes_are_sorted_by_name(stage: _Stage) -> None:
    """Whatever the order of their coming."""
    for pid, name in ((13, "c"), (12, "b")):
        stage.fleet.engine.targets[pid] = FakeTarget(pid)
        stage.fleet.start_times[pid] = 1
        stage.fleet.registry.put(name, (pid, 1))
    stage.fleet.tick()
    assert ["a", "b", "c"] == [one.name for one in stage.service.sandboxes()]
