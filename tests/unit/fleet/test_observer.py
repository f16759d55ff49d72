"""Who is there, what each does, and who is attached."""

from dataclasses import replace

import pytest

from agentzip import model
from agentzip.errors import NoSuchProcess, NoSuchSandbox
from agentzip.fleet.rules import Rules
from agentzip.testing import FakeTarget
from unit.fleet.fleet_stage import ACTING, FleetStage, stage_of


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> FleetStage:
    """A sandbox of one process on a host with too much memory in use."""
    return stage_of(monkeypatch)


def _quiet(stage: FleetStage) -> None:
    stage.observer.configure(Rules())


def test_a_new_process_is_attached_within_the_tick_that_finds_it(stage: FleetStage) -> None:
    """With the domain of its sandbox, replay and window."""
    stage.lifecycle.tick()

    assert [11] == list(stage.engine.attached)
    target = stage.engine.targets[11]
    assert ("scope:agents-*", "python") == target.kinship
    assert (True, 16, 256) == target.prefetch
    stage.engine.targets[12] = FakeTarget(12)
    stage.start_times[12] = 1
    stage.registry.put("a", (11, 1), (12, 1))
    stage.tick(0.01)
    assert [11, 12] == list(stage.engine.attached)
    assert [11, 12] == [pid for pid in stage.life().processes if stage.process(pid).attached]


def test_who_was_left_attached_and_is_in_no_sandbox_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the daemon before this one; those that somebody attached by hand stay."""
    adopted = {11: "scope:agents-*", 12: "scope:former-*", 13: "default", 14: ""}
    stage = stage_of(monkeypatch, adopted=adopted)
    stage.tick()

    assert [12] == stage.calls("detach")
    assert {11, 13, 14} == set(stage.engine.attached)
    stage.tick()
    assert [12] == stage.calls("detach")


def test_a_refused_process_is_tried_again_after_a_minute(stage: FleetStage) -> None:
    """Until then the reason stands in its status."""
    stage.registry.put("a", (11, 99))
    stage.lifecycle.tick()
    assert "no such process" in stage.life().status(stage.now).left_alone
    for _ in range(59):
        stage.tick()
    assert [11] == stage.calls("attach")
    stage.engine.targets[11].start_time = stage.start_times[11] = 99
    stage.tick(2.0)

    assert [11, 11] == stage.calls("attach")
    assert [11] == list(stage.engine.attached)
    assert "" == stage.life().status(stage.now).left_alone


def test_a_pid_used_again_is_attached_and_not_given_back(stage: FleetStage) -> None:
    """By a new process of the same sandbox, or of another one."""
    stage.lifecycle.tick()
    stage.engine.end_target(11)
    stage.engine.targets[11] = FakeTarget(11, start_time=2)
    stage.start_times[11] = 2
    stage.registry.put("a", (11, 2))
    stage.tick()
    assert [11] == list(stage.engine.attached)
    assert [] == stage.calls("detach")
    stage.engine.end_target(11)
    stage.engine.targets[11] = FakeTarget(11, start_time=3)
    stage.start_times[11] = 3
    stage.registry.drop("a")
    stage.registry.put("b", (11, 3))
    stage.tick()

    assert [11] == list(stage.engine.attached)
    assert [] == stage.calls("detach")
    assert ["b"] == list(stage.observer.lives)


def test_a_release_that_comes_late_does_not_take_who_has_the_pid_now(stage: FleetStage) -> None:
    """It waited behind others while the pid was given to another process."""
    stage.lifecycle.tick()
    stage.registry.drop("a")
    submitted = stage.lifecycle.actions._pool.submit
    late = []
    stage.lifecycle.actions._pool.submit = (  # type: ignore[method-assign]
        lambda *work: late.append(work)  # type: ignore[assignment]
    )
    stage.tick_only()
    stage.engine.end_target(11)
    stage.engine.targets[11] = FakeTarget(11, start_time=2)
    stage.start_times[11] = 2
    stage.registry.put("b", (11, 2))
    stage.tick_only()
    stage.lifecycle.actions._pool.submit = submitted  # type: ignore[method-assign]
    for work, *arguments in late:
        work(*arguments)

    assert [11] == list(stage.engine.attached)
    assert [] == stage.calls("detach")


def test_a_sandbox_that_vanished_is_released_and_forgotten(stage: FleetStage) -> None:
    """Another one of the same name begins anew."""
    stage.lifecycle.tick()
    first = stage.life()
    stage.registry.drop("a")
    stage.tick()
    assert {} == stage.engine.attached
    with pytest.raises(NoSuchSandbox):
        stage.observer.life("a")
    stage.registry.put("a", (11, 1))
    stage.tick()
    assert first is not stage.life()


def test_a_scope_that_is_switched_off_gives_back_and_on_takes_again(stage: FleetStage) -> None:
    """The sandbox is still known."""
    _quiet(stage)
    stage.lifecycle.tick()
    stage.engine.page_out(11)
    rule = stage.life().sandbox.rule
    stage.registry.change("a", rule=replace(rule, enabled=False))
    stage.tick()
    assert ({}, 0) == (stage.engine.attached, stage.engine.targets[11].pages_out)
    assert {} == stage.life().processes
    stage.registry.change("a", rule=rule)
    stage.tick()
    assert [11] == list(stage.engine.attached)


def test_what_cannot_be_given_back_now_is_given_back_later(stage: FleetStage) -> None:
    """Memory was short; until then it is served."""
    _quiet(stage)
    stage.lifecycle.tick()
    stage.engine.page_out(11)
    stage.engine.targets[11].pages_stuck = 10
    stage.registry.drop("a")
    stage.tick()
    assert [11] == list(stage.engine.attached)
    stage.engine.targets[11].pages_stuck = 0
    stage.tick()
    assert [11] == list(stage.engine.attached)
    stage.tick(10.0)
    assert {} == stage.engine.attached


def test_a_process_that_became_another_program_is_attached_anew(stage: FleetStage) -> None:
    """Its old space is gone; nothing that was known of it holds."""
    _quiet(stage)
    stage.lifecycle.tick()
    before = stage.process(11)
    before.add_restless([(0, 4096)])
    del stage.engine.attached[11]
    stage.tick()

    assert [11] == list(stage.engine.attached)
    assert before is not stage.process(11)
    assert [] == stage.process(11).restless


def test_a_process_of_the_daemon_before_is_taken_over(stage: FleetStage) -> None:
    """It is attached already; it gets replay and window like any other."""
    stage.engine.attach(11, domain="scope:agents-*", image="python")
    stage.lifecycle.tick()

    assert stage.process(11).attached
    assert (True, 16, 256) == stage.engine.targets[11].prefetch
    assert [] == stage.calls("detach")


def test_a_process_that_moves_to_another_trust_domain_leaves_the_first(stage: FleetStage) -> None:
    """It may not go on to share pages with those it shared with before."""
    _quiet(stage)
    stage.lifecycle.tick()
    stage.engine.page_out(11)
    stage.registry.drop("a")
    stage.registry.put("b", (11, 1), domain="sandbox:11:1")
    stage.tick()

    assert [11] == stage.calls("detach")
    assert ("sandbox:11:1", "python") == stage.engine.targets[11].kinship
    assert [11] == list(stage.engine.attached)


def test_no_engine_call_is_made_under_the_lock(stage: FleetStage) -> None:
    """Whoever gives a hint would wait for it."""
    for cores in (0.9, 0.9, 0.9, 0.0, 0.0, 0.0, 0.0):
        stage.tick(1.0, cores, 11)
    stage.observer.heard(stage.life(), "waiting_user", 600.0)
    stage.tick()
    stage.engine.targets[11].faults += 5
    stage.tick()
    stage.observer.configure(replace(ACTING, prefetch_window=(32, 64)))

    assert stage.calls("page_out")
    assert [] == stage.engine.held


def test_a_reload_changes_latency_targets_and_windows(stage: FleetStage) -> None:
    """Of the sandboxes that are there; one with a target of its own keeps it."""
    stage.engine.targets[12] = FakeTarget(12)
    stage.start_times[12] = 1
    stage.registry.put("b", (12, 1))
    rule = replace(stage.registry.of["b"].rule, latency_target=0.5)
    stage.registry.change("b", rule=rule)
    stage.lifecycle.tick()
    stage.observer.configure(Rules(latency_target_s=0.1, prefetch_window=(32, 64)))

    assert (0.1, 0.5) == (stage.life("a").latency_target_s, stage.life("b").latency_target_s)
    assert {(True, 32, 64)} == {stage.engine.targets[pid].prefetch for pid in (11, 12)}
    stage.registry.change("b", rule=replace(rule, latency_target=0.7))
    stage.tick()
    assert 0.7 == stage.life("b").latency_target_s


def test_ticks_that_follow_each_other_closely_are_no_looks(stage: FleetStage) -> None:
    """A hundredth of a second of work within a twentieth of one is not a fifth of a core."""
    _quiet(stage)
    for _ in range(4):
        stage.tick()
    assert "waiting_model" == stage.life().state.phase
    looked_at = stage.life().looked_at
    for _ in range(4):
        stage.tick(0.05, 0.2, 11)

    assert "waiting_model" == stage.life().state.phase
    assert looked_at == stage.life().looked_at


def test_refaults_in_a_wait_make_pages_restless(stage: FleetStage) -> None:
    """What came back before the page out belongs to the time awake."""
    target = stage.engine.targets
    stage.lifecycle.tick()
    target[11].refaults = [model.Refault(0x1000, 0x2000, 0)]
    stage.observer.heard(stage.life(), "waiting_user", 600.0)
    stage.tick()
    assert [11] == stage.calls("page_out")
    assert [] == stage.process(11).restless
    target[11].faults += 1
    target[11].refaults = [model.Refault(0x5000, 0x7000, 0)]
    stage.tick()

    assert [(0x5000, 0x7000)] == stage.process(11).restless


def test_the_rest_of_a_wait_is_told_by_pid(stage: FleetStage) -> None:
    """None for who is in no sandbox."""
    stage.lifecycle.tick()
    stage.observer.heard(stage.life(), "waiting_user", 600.0)
    stage.pass_time(100.0)

    assert 500.0 == stage.observer.expected_rest_s(11)
    assert None is stage.observer.expected_rest_s(99)


def test_stopping_attaches_nobody_new(stage: FleetStage) -> None:
    """A stop does not wait for three hundred attaches."""
    stage.observer.closing = True
    stage.lifecycle.tick()
    assert {} == stage.engine.attached


def test_a_process_that_ends_while_it_is_attached_is_no_error(stage: FleetStage) -> None:
    """The next look says that it has gone."""

    def gone(pid: int, **_how: object) -> None:
        raise NoSuchProcess(f"no such process: {pid}")

    stage.engine.set_prefetch = gone  # type: ignore[method-assign]
    stage.lifecycle.tick()
    assert not stage.process(11).attached
