"""The local socket: requests, refusals, bounds."""

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip import control, errors, local_socket
from agentzip.control import ControlClient, ControlServer, detach_all, wire
from agentzip.control import server as server_module
from agentzip.testing import FakeEngine, FakeTarget


@pytest.fixture
def engine() -> FakeEngine:
    """A host with two processes."""
    return FakeEngine([FakeTarget(7, pages=100), FakeTarget(8, pages=50)])


@pytest.fixture
def server(engine: FakeEngine, tmp_path: Path) -> Iterator[ControlServer]:
    """A server that answers."""
    found = ControlServer(engine, tmp_path, about=lambda: {"pid": 1})
    found.start()
    yield found
    found.close()


@pytest.fixture
def client(server: ControlServer, tmp_path: Path) -> Iterator[ControlClient]:
    """A client of that server."""
    assert server.path.exists()
    with ControlClient(tmp_path, timeout_seconds=5) as found:
        yield found


def test_the_whole_life_of_a_target_over_the_socket(client: ControlClient) -> None:
    """Attach, page out, look, page in, detach: each report arrives as the daemon made it."""
    assert 7 == client.attach(7).pid
    assert 100 == client.page_out(7).pages_moved
    assert [100] == [space.pages_out for space in client.spaces()]
    assert 100 * 1024 == client.stats().pool_bytes
    assert 100 * 4096 == client.regions(7)[1].out_bytes
    assert 100 == client.page_in(7).pages_in
    assert client.detach(7).complete
    assert [] == client.spaces()


def test_a_client_learns_who_serves_it(client: ControlClient) -> None:
    """`ping` gives the pid, `status` the facts about the daemon."""
    assert os.getpid() == client.ping()
    assert {"pid": 1} == client.about()


def test_an_error_arrives_as_the_class_that_was_raised(client: ControlClient) -> None:
    """Class, message and hint travel."""
    with pytest.raises(errors.NotAttached, match="not attached: 8") as caught:
        client.page_out(8)

    assert errors.NotAttached.hint == caught.value.hint


def test_one_connection_carries_many_requests(client: ControlClient) -> None:
    """An error does not end the connection."""
    with pytest.raises(errors.NoSuchProcess):
        client.attach(99)

    assert os.getpid() == client.ping()


def test_a_wake_and_what_is_learned_travel(client: ControlClient, engine: FakeEngine) -> None:
    """As the engine said it."""
    client.attach(7)
    client.page_out(7)
    client.wake(7)

    assert engine.learned(7) == client.learned(7)
    assert client.learned(7).pages == client.wake(7).pages_in > 0


def test_detach_all_reports_every_target(client: ControlClient) -> None:
    """`detach --all` gives back everything."""
    client.attach(7)
    client.attach(8)

    assert [7, 8] == sorted(report.pid for report in client.detach_all())


@pytest.mark.parametrize(
    ("request_text", "named"),
    [
        ('{"method": "explode"}', "explode"),
        ('{"method": "page_out"}', "pid"),
        ('{"method": "page_out", "params": {"pid": "7"}}', "pid"),
        ('{"method": "page_out", "params": {"pid": true}}', "pid"),
        ('{"method": "page_out", "params": {"pid": 7, "ranges": [[1]]}}', "ranges"),
        ('{"method": "page_out", "params": {"pid": 7, "ranges": 5}}', "request"),
        ('{"method": "attach", "params": {"pid": 7, "start_time": "x"}}', "start_time"),
        ('{"method": "ping", "params": 3}', "params"),
        ("[]", "object"),
        ("not json", "request"),
    ],
)
def test_a_malformed_request_is_bad_input(
    server: ControlServer, request_text: str, named: str
) -> None:
    """What cannot be understood is answered with the name of what is wrong."""
    answer = server.answer(request_text.encode())

    assert "InvalidSetting" == answer["error"]["type"]
    assert 2 == answer["error"]["exit_code"]
    assert named in answer["error"]["message"]


def test_a_bug_reaches_the_caller(
    server: ControlServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unforeseen exception becomes an internal error and the server goes on."""

    def broken() -> None:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr(engine, "stats", broken)
    answer = server.answer(b'{"method": "stats"}')

    assert "InternalError" == answer["error"]["type"]
    assert "by accident" in answer["error"]["message"]


def test_only_the_owner_may_open_the_socket(server: ControlServer) -> None:
    """Mode 0600."""
    assert 0o600 == stat.S_IMODE(server.path.stat().st_mode)


def test_another_user_is_refused(
    server: ControlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that is neither root nor the daemon's user gets a refusal and no answer."""
    assert server.path.exists()
    monkeypatch.setattr(local_socket, "_credentials", lambda _: (1, os.geteuid() + 12345))

    with ControlClient(tmp_path, timeout_seconds=5) as client, pytest.raises(errors.NotPermitted):
        client.ping()


def test_a_refused_peer_that_is_slow_hears_why(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is not closed under its request."""
    monkeypatch.setattr(local_socket, "_credentials", lambda _: (1, os.geteuid() + 12345))

    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(5)
        raw.connect(str(server.path))
        time.sleep(0.2)
        raw.sendall(b'{"method": "ping"}\n')
        answer = json.loads(raw.makefile("rb").readline())

    assert "NotPermitted" == answer["error"]["type"]


def test_a_request_that_is_too_long_ends_the_connection(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of a request is bounded."""
    monkeypatch.setattr(server_module, "REQUEST_BYTES_MAX", 100)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(5)
        raw.connect(str(server.path))
        raw.sendall(b"x" * 100)
        answer = json.loads(raw.makefile("rb").readline())

    assert "too long" in answer["error"]["message"]


def test_a_stale_socket_is_replaced(engine: FakeEngine, tmp_path: Path) -> None:
    """The file that a killed daemon leaves does not stop the next one."""
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / control.SOCKET_NAME))
    dead.close()

    ControlServer(engine, tmp_path).close()

    assert not (tmp_path / control.SOCKET_NAME).exists()


def test_a_living_daemon_is_not_replaced(server: ControlServer, engine: FakeEngine) -> None:
    """A second server on the same socket is refused."""
    with pytest.raises(errors.AlreadyRunning):
        ControlServer(engine, server.path.parent)


def test_nobody_there_is_said(tmp_path: Path) -> None:
    """Without a daemon the client says so and how to start one."""
    with pytest.raises(errors.DaemonUnreachable) as caught:
        ControlClient(tmp_path)

    assert "agentzip daemon" in caught.value.hint


def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    """A daemon that is busy refuses nobody whose time is not up."""
    path = tmp_path / control.SOCKET_NAME
    with local_socket.listen(path, 0o600, 0) as listener, socket.socket(socket.AF_UNIX) as first:
        first.connect(str(path))
        with pytest.raises(errors.DaemonUnreachable):
            ControlClient(tmp_path, timeout_seconds=0.05)

        def serve() -> None:
            listener.accept()[0].close()

        room = threading.Timer(0.2, serve)
        room.start()
        ControlClient(tmp_path, timeout_seconds=20).close()
        room.join()


def test_shutdown_asks_the_daemon(engine: FakeEngine, tmp_path: Path) -> None:
    """The request is handed on, and answered before anything ends."""
    asked: list[bool] = []
    server = ControlServer(engine, tmp_path, lambda: asked.append(True))
    server.start()
    with ControlClient(tmp_path, timeout_seconds=5) as client:
        client.shutdown()
    server.close()

    assert [True] == asked


def test_forked_children_are_given_back_too(engine: FakeEngine) -> None:
    """Detaching everything brings home the pages of children that have no pid here."""
    engine.attach(7)
    engine.add_child(7, pages_out=30)

    reports = detach_all(engine)

    assert [(7, 0), (0, 30)] == [(report.pid, report.pages_in) for report in reports]
    assert [] == engine.spaces()


def test_one_target_that_resists_does_not_hold_the_others(engine: FakeEngine) -> None:
    """All are tried, and the refusal is reported afterwards."""
    engine.targets[7].detach_error = errors.TargetBusy("no thread can be borrowed")
    engine.attach(7)
    engine.attach(8)

    with pytest.raises(errors.TargetBusy):
        detach_all(engine)

    assert [7] == [space.pid for space in engine.spaces()]


def test_an_unknown_error_class_becomes_an_internal_error() -> None:
    """A newer daemon may raise what this client does not know."""
    error = wire.error_of({"type": "Sunspots", "message": "flare"})

    assert errors.InternalError is type(error)
    assert "Sunspots: flare" == str(error)
