"""The fleet put together, around a fake engine, with real doors."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip.config import Scope
from agentzip.errors import AlreadyRunning
from agentzip.fleet import FleetRunner, FleetSettings, assembly
from agentzip.fleet.lifecycle import Lifecycle
from agentzip.fleet.rules import Rules
from agentzip.host.cgroups import Cgroups
from agentzip.testing import FakeEngine, FakeTarget
from agentzip.web import HTTP_SOCKET_NAME
from unix_http import ask


@pytest.fixture
def engine() -> FakeEngine:
    """A host whose only process is this one."""
    return FakeEngine([FakeTarget(os.getpid())])


@pytest.fixture
def runner(engine: FakeEngine, tmp_path: Path) -> Iterator[FleetRunner]:
    """A fleet that answers, with state and a socket for sandboxes."""
    settings = FleetSettings(
        scopes=(Scope(cgroup="agentzip-no-such-group-*"),),
        state_dir=tmp_path / "state",
        sandbox_socket=tmp_path / "inside" / "sandbox.sock",
    )
    made = FleetRunner(engine, tmp_path, settings)
    made.start()
    yield made
    made.stop()


def test_every_door_is_open_until_the_stop(runner: FleetRunner, tmp_path: Path) -> None:
    """The host's and the sandboxes'; afterwards nothing of them is left, and a stop is enough."""
    status, scopes = ask(tmp_path / HTTP_SOCKET_NAME, "GET", "/v1/scopes")
    assert (200, ["agentzip-no-such-group-*"]) == (status, [one["pattern"] for one in scopes])
    status, _ = ask(tmp_path / "inside" / "sandbox.sock", "PUT", "/v1/phase", {"phase": "done"})
    assert 403 == status
    runner.stop()

    assert not (tmp_path / HTTP_SOCKET_NAME).exists()
    assert not (tmp_path / "inside" / "sandbox.sock").exists()
    runner.stop()


def test_a_reload_replaces_rules_and_scopes(runner: FleetRunner) -> None:
    """Both hold at once for whoever asks."""
    runner.configure(Rules(latency_target_s=0.3), [Scope(cgroup="agentzip-none-*")])

    assert 0.3 == runner.lifecycle.observer.rules.latency_target_s
    assert ["agentzip-none-*"] == [scope.pattern for scope in runner.service.scopes()]


def test_who_is_in_no_sandbox_has_no_kin_and_no_wait(runner: FleetRunner) -> None:
    """The pool's upkeep asks for every process that is attached."""
    assert (None, None) == (runner.kin(os.getpid()), runner.expected_rest_s(os.getpid()))


def test_the_ticks_have_ended_before_the_control_groups_are_closed(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick that reads a closed descriptor's number could read another file."""
    order: list[str] = []
    monkeypatch.setattr(Cgroups, "close", lambda _self: order.append("closed"))
    monkeypatch.setattr(Lifecycle, "stop", lambda _self: order.append("ticks ended"))
    FleetRunner(engine, tmp_path, FleetSettings()).stop()

    assert ["ticks ended", "closed"] == order


def test_a_door_that_cannot_be_opened_leaves_nothing_behind(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doors before it are closed again."""

    def refuse(*_arguments: object) -> None:
        raise AlreadyRunning("somebody is here")

    monkeypatch.setattr(assembly, "SandboxSocket", refuse)
    settings = FleetSettings(sandbox_socket=tmp_path / "sandbox.sock")
    with pytest.raises(AlreadyRunning):
        FleetRunner(engine, tmp_path, settings)
    FleetRunner(engine, tmp_path, FleetSettings()).stop()
