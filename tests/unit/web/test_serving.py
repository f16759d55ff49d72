"""The server against peers that are slow, careless or hostile."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentzip.errors import AlreadyRunning, InvalidSetting, NotPermitted
from agentzip.web.answers import Answer, Request, answer_json
from agentzip.web.serving import Guest, Limits, UnixHttpServer
from unix_http import UnixConnection, ask, raw_exchange

LIMITS = Limits(connections_max=4, request_bytes_max=4096, request_s=0.5, idle_s=20.0)


class Echo:
    """Answers with what was asked, and notes when it is let go."""

    def __init__(self) -> None:
        self.open = 1

    def answer(self, request: Request) -> Answer:
        """The request."""
        return answer_json([request.method, request.path, request.body.decode()])

    def close(self) -> None:
        """Count."""
        self.open -= 1


@pytest.fixture
def guests() -> list[Echo]:
    """Everybody who was let in."""
    return []


@pytest.fixture
def serve(guests: list[Echo], tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Starts a server with the limits that a test wants."""
    with contextlib.ExitStack() as stack:

        def start(limits: Limits = LIMITS) -> Path:
            def admit(_connection: socket.socket) -> Guest:
                guests.append(Echo())
                return guests[-1]

            server = UnixHttpServer(tmp_path / "web.sock", 0o600, admit, limits)
            server.start()
            stack.callback(server.close)
            return server.path

        yield start


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what must come soon, but on a busy host."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def status_of(answer: bytes) -> int:
    """Status of a raw answer."""
    return int(answer.split()[1])


def test_one_connection_carries_many_requests(
    serve: Callable[..., Path], guests: list[Echo]
) -> None:
    """HTTP/1.1 keeps it open, bodies and all."""
    connection = UnixConnection(serve())
    answers = []
    for number in range(3):
        connection.request("PUT", f"/{number}", f"body {number}")
        answers.append(json.loads(connection.getresponse().read()))
    connection.close()

    assert [["PUT", f"/{number}", f"body {number}"] for number in range(3)] == answers
    assert 1 == len(guests)
    wait_until(lambda: guests[0].open == 0, "the guest is let go")


def test_requests_may_be_sent_ahead(serve: Callable[..., Path]) -> None:
    """Two in one packet are two, and each has the whole allowance."""
    padding = b"x" * 3000
    one = b"PUT /a HTTP/1.1\r\nContent-Length: 3000\r\n\r\n" + padding
    two = b"PUT /b HTTP/1.1\r\nConnection: close\r\nContent-Length: 3000\r\n\r\n" + padding

    answer = raw_exchange(serve(), one + two)

    assert 2 == answer.count(b"HTTP/1.1 200 ")


def test_the_answer_does_not_say_what_we_are_made_of(serve: Callable[..., Path]) -> None:
    """A sandbox has no business with versions."""
    answer = raw_exchange(serve(), b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")

    assert b"Server: agentzip\r\n" in answer


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\xff\xfe\x16\x03\x01 garbage\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 5000 + b"\r\n\r\n", 413),
        (b"GET /" + b"y" * 5000 + b" HTTP/1.1\r\n\r\n", 413),
        (b"x" * 5000, 413),
        (b"PUT / HTTP/1.1\r\nContent-Length: 5000\r\n\r\n", 413),
        (b"PUT / HTTP/1.1\r\nContent-Length: " + b"9" * 50 + b"\r\n\r\n", 413),
        (b"PUT / HTTP/1.1\r\nContent-Length: 4090\r\n\r\n" + b"y" * 4090, 413),
        (b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: 1_0\r\n\r\nxx", 400),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 411),
        (b"TRACE / HTTP/1.1\r\n\r\n", 501),
    ],
)
def test_what_is_no_request_is_refused_and_ends_the_connection(
    serve: Callable[..., Path], guests: list[Echo], data: bytes, status: int
) -> None:
    """One answer with the reason, then nothing more; the next peer is served."""
    path = serve()
    answer = raw_exchange(path, data)

    assert status == status_of(answer)
    assert 1 == answer.count(b"HTTP/1.1 ")
    assert status == json.loads(answer.partition(b"\r\n\r\n")[2])["status"]
    assert 200 == ask(path, "GET", "/")[0]
    wait_until(lambda: all(guest.open == 0 for guest in guests), "both are let go")


@pytest.mark.parametrize(
    "data", [b"", b"GET /\r\n", b"PUT / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"]
)
def test_a_peer_that_hangs_up_early_is_forgotten(
    serve: Callable[..., Path], guests: list[Echo], data: bytes
) -> None:
    """In the middle of a request, before one, or with one of a version without heads."""
    path = serve()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(data)
    assert 200 == ask(path, "GET", "/")[0]

    wait_until(lambda: 2 == len(guests) and not any(guest.open for guest in guests), "let go")


def test_a_request_must_arrive_in_time_however_steadily_it_drips(
    serve: Callable[..., Path], guests: list[Echo]
) -> None:
    """A byte now and then does not prolong the deadline."""
    path = serve()
    ended = threading.Event()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not ended.is_set():
                    connection.sendall(b"x")
                    ended.wait(0.02)

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            wait_until(lambda: bool(guests) and guests[0].open == 0, "the slow one is let go")
        finally:
            ended.set()
            dripping.join()


def test_a_silent_peer_loses_its_place(serve: Callable[..., Path], guests: list[Echo]) -> None:
    """Between two requests as well as before the first."""
    limits = Limits(connections_max=4, request_bytes_max=4096, request_s=20.0, idle_s=0.2)
    path = serve(limits)
    talker = UnixConnection(path)
    talker.request("GET", "/")
    talker.getresponse().read()
    mute = UnixConnection(path)
    mute.connect()

    wait_until(lambda: [0, 0] == [guest.open for guest in guests], "both are let go")
    talker.close()
    mute.close()


def test_a_flood_of_connections_is_told_to_wait(
    serve: Callable[..., Path], guests: list[Echo]
) -> None:
    """Those inside are served on, further ones get 503, and a place that is left is given away."""
    path = serve()
    inside = [UnixConnection(path) for _ in range(LIMITS.connections_max)]
    for connection in inside:
        connection.connect()
    wait_until(lambda: LIMITS.connections_max == len(guests), "all are inside")
    refused = [ask(path, "GET", "/") for _ in range(100)]
    inside[0].request("GET", "/")
    served = json.loads(inside[0].getresponse().read())
    inside[1].close()
    wait_until(lambda: guests[1].open == 0, "a place is free")

    assert {503} == {status for status, _ in refused}
    assert ["GET", "/", ""] == served
    wait_until(lambda: ask(path, "GET", "/")[0] == 200, "the place is given away")
    for connection in inside:
        connection.close()


def test_a_peer_that_does_not_read_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer larger than the buffers waits only so long."""
    monkeypatch.setattr("agentzip.web.serving._SEND_SECONDS", 0.2)
    ended = threading.Event()

    class Talkative(Echo):
        def answer(self, request: Request) -> Answer:
            return Answer(200, b"x" * 50_000_000, request.path)

        def close(self) -> None:
            ended.set()

    server = UnixHttpServer(tmp_path / "web.sock", 0o600, lambda _: Talkative(), LIMITS)
    server.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.path))
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        left = ended.wait(20)
    server.close()

    assert left


def test_who_is_not_let_in_learns_why(tmp_path: Path) -> None:
    """An error of `admit` is the answer to whatever was to be asked."""

    def admit(_connection: socket.socket) -> Guest:
        raise NotPermitted("not today")

    server = UnixHttpServer(tmp_path / "web.sock", 0o600, admit, LIMITS)
    server.start()
    # More than there are places, and more than are kept until they have read: none is lost.
    answers = [ask(server.path, "GET", "/") for _ in range(100)]
    server.close()

    assert {403} == {status for status, _ in answers}
    assert "not today" == answers[0][1]["detail"]


def test_a_closed_server_leaves_nothing(serve: Callable[..., Path], tmp_path: Path) -> None:
    """The socket file goes, and another one may be made."""
    server = UnixHttpServer(tmp_path / "other.sock", 0o600, lambda _: Echo(), LIMITS)
    server.close()

    assert not server.path.exists()
    assert serve().exists()


def test_a_living_server_is_not_replaced_but_a_dead_ones_file_is(
    serve: Callable[..., Path], tmp_path: Path
) -> None:
    """As for the control socket."""
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "web.sock"))
    dead.close()
    path = serve()

    with pytest.raises(AlreadyRunning):
        UnixHttpServer(path, 0o600, lambda _: Echo(), LIMITS)


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    """A file of somebody else's in that place is not removed."""
    file = tmp_path / "web.sock"
    file.write_text("mine")

    with pytest.raises(InvalidSetting):
        UnixHttpServer(file, 0o600, lambda _: Echo(), LIMITS)
    assert "mine" == file.read_text()
