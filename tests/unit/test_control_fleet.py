"""Sandboxes and scopes over the socket."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip import errors
from agentzip.control import ControlClient, ControlServer
from agentzip.host import processes
from agentzip.sandboxes import Fleet
from agentzip.testing import FakeEngine
from unit.fake_fleet import FakeFleet, status


@pytest.fixture
def fleet() -> FakeFleet:
    """Two sandboxes."""
    return FakeFleet("a", "b")


@pytest.fixture
def server(fleet: Fleet, tmp_path: Path) -> Iterator[ControlServer]:
    """A server that has them."""
    found = ControlServer(FakeEngine([]), tmp_path, fleet=fleet)
    found.start()
    yield found
    found.close()


@pytest.fixture
def client(server: ControlServer) -> Iterator[ControlClient]:
    """A client of that server."""
    with ControlClient(server.path.parent, timeout_seconds=5) as found:
        yield found


def test_sandboxes_arrive_as_they_are(client: ControlClient) -> None:
    """Figures that are not known yet stay unknown."""
    assert [status("a"), status("b")] == client.sandboxes()


def test_what_a_sandbox_is_asked_reaches_it(client: ControlClient, fleet: FakeFleet) -> None:
    """Hints, pages, pins, and why."""
    report = client.hint("a", "waiting_model", 8.0)
    assert ("a", "waiting_model", "starting", 5) == (
        report.sandbox,
        report.phase,
        report.former_phase,
        report.pages_in,
    )
    client.hint("b", "running")
    assert ["too dear"] == [decision.reason for decision in client.explain("b")]
    assert (11, 12) == (client.sandbox_page_out("a"), client.sandbox_page_in("b"))
    client.pin("a", pinned=True)

    assert [
        ("hint", "a", "waiting_model", 8.0, "cli"),
        ("hint", "b", "running", None, "cli"),
        ("explain", "b"),
        ("page_out", "a"),
        ("page_in", "b"),
        ("pin", "a", True),
    ] == fleet.asked
    with pytest.raises(errors.NoSuchSandbox, match="no sandbox has this name: c"):
        client.explain("c")


def test_scopes_are_added_switched_and_removed(client: ControlClient) -> None:
    """Each answer is the scope as it is now."""
    added = client.scope_add("agent-*", "sandbox")
    assert ("agent-*", True, "sandbox", "command") == (
        added.pattern,
        added.enabled,
        added.isolation,
        added.source,
    )
    assert not client.scope_enable("agent-*", enabled=False).enabled
    own = processes.process(os.getpid())
    assert "run:demo" == client.sandbox_run("demo", own.pid, own.start_time).pattern
    assert ["agent-*", "run:demo"] == [scope.pattern for scope in client.scopes()]
    client.scope_remove("agent-*")
    with pytest.raises(errors.NoSuchScope, match="agent-"):
        client.scope_enable("agent-*", enabled=True)


@pytest.mark.parametrize(
    ("method", "params", "named"),
    [
        ("hint", {"sandbox": "a"}, "phase"),
        ("hint", {"sandbox": 5, "phase": "running"}, "sandbox"),
        ("hint", {"sandbox": "a", "phase": "running", "expect_s": "8"}, "expect_s"),
        ("hint", {"sandbox": "a", "phase": "running", "expect_s": True}, "expect_s"),
        ("pin", {"sandbox": "a"}, "pinned"),
        ("pin", {"sandbox": "a\n", "pinned": True}, "sandbox"),
        ("scope_add", {}, "pattern"),
        ("scope_add", {"pattern": "a", "isolation": None}, "isolation"),
        ("scope_enable", {"pattern": "a", "enabled": "yes"}, "enabled"),
        ("sandbox_run", {"name": "a", "pid": 0, "start_time": 1}, "pid"),
    ],
)
def test_a_wrong_parameter_is_named(
    client: ControlClient, method: str, params: dict[str, object], named: str
) -> None:
    """Nothing is guessed."""
    with pytest.raises(errors.InvalidSetting, match=named):
        client.call(method, params)


def test_an_engine_of_one_command_says_that_it_has_no_sandboxes(tmp_path: Path) -> None:
    """And how to get them."""
    server = ControlServer(FakeEngine([]), tmp_path)
    server.start()
    try:
        with ControlClient(tmp_path, timeout_seconds=5) as client:
            with pytest.raises(
                errors.DaemonUnreachable, match="looks after no sandboxes"
            ) as caught:
                client.sandboxes()
            assert "agentzip daemon" in caught.value.hint
            assert os.getpid() == client.ping()
    finally:
        server.close()
