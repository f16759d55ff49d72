"""The socket inside a sandbox: who speaks, for whom, and how much of it."""

import array
import contextlib
import http.client
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentzip import local_socket
from agentzip.errors import Unsupported
from agentzip.fleet.sandbox_socket import SANDBOX_SOCKET, Accounts, SandboxSocket
from fake_fleet import FakeFleet
from unix_http import UnixConnection, ask, raw_exchange

# Connects, hands the connection to its parent, and goes on or ends as it is told.
_PASSER = """
import array, socket, sys
parent = socket.socket(fileno=int(sys.argv[2]))
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
rights = array.array("i", [connection.fileno()])
parent.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
parent.recv(1)
"""

# Says one thing and prints the answer.
_SPEAKER = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(sys.argv[2].encode())
sys.stdout.buffer.write(connection.recv(65536))
"""


@pytest.fixture
def fleet() -> FakeFleet:
    """A host with two sandboxes; this process belongs to the first."""
    return FakeFleet("mine", "other")


@pytest.fixture
def path(fleet: FakeFleet, tmp_path: Path) -> Iterator[Path]:
    """The socket for them."""
    server = SandboxSocket(fleet, tmp_path / SANDBOX_SOCKET)
    server.start()
    yield server.path
    server.close()


@pytest.fixture
def timeless(fleet: FakeFleet, tmp_path: Path) -> Iterator[Path]:
    """The same while no time passes, so that nobody earns the right to a further request."""
    server = SandboxSocket(fleet, tmp_path / "timeless" / "sandbox.sock")
    server._accounts = Accounts(lambda: 100.0)
    server.start()
    yield server.path
    server.close()


@contextlib.contextmanager
def passed_on(path: Path) -> Iterator[tuple[socket.socket, "subprocess.Popen[bytes]"]]:
    """A connection that another process made and handed to us."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", _PASSER, str(path), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
        try:
            size = socket.CMSG_SPACE(array.array("i").itemsize)
            _, control, _, _ = ours.recvmsg(1, size)
            descriptors = array.array("i", control[0][2])
            with socket.socket(fileno=descriptors[0]) as connection:
                connection.settimeout(20)
                yield connection, child
        finally:
            child.kill()
            child.wait()


def put(phase: str) -> bytes:
    """A hint as bytes."""
    body = json.dumps({"phase": phase}).encode()
    head = f"PUT /v1/phase HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def received(connection: socket.socket) -> tuple[int, dict[str, object]]:
    """The next answer on a connection."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, json.loads(response.read())


def test_a_sandbox_speaks_for_itself(path: Path, fleet: FakeFleet) -> None:
    """It names a phase and nobody; who is meant is who connected."""
    told = ask(path, "PUT", "/v1/phase", {"phase": "waiting_model", "expect": "8s"})
    own = ask(path, "GET", "/v1/self")

    assert (200, {"phase": "waiting_model", "former_phase": "running"}) == told
    assert [("mine", "waiting_model", 8.0)] == fleet.heard
    assert ["sandbox"] == fleet.sources
    assert (200, {"phase": "waiting_model", "expected_rest_s": 8.0}) == own


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/sandboxes"),
        ("GET", "/v1/sandboxes/other"),
        ("PUT", "/v1/sandboxes/other/phase"),
        ("POST", "/v1/sandboxes/mine/pin"),
        ("POST", "/v1/sandboxes/other/page-out"),
        ("GET", "/v1/scopes"),
        ("POST", "/v1/scopes"),
        ("GET", "/v1/openapi.json"),
        ("PUT", "/v1/self"),
        ("PUT", "/v1/phase/other"),
    ],
)
def test_nothing_of_the_hosts_is_there(
    path: Path, fleet: FakeFleet, method: str, target: str
) -> None:
    """Neither orders nor anything about others."""
    status, found = ask(path, method, target, {"phase": "done"})

    assert status in {404, 405}
    assert "other" not in found["hint"]
    assert [] == fleet.heard


def test_a_body_cannot_name_another_sandbox(path: Path, fleet: FakeFleet) -> None:
    """A field that is not known is refused, not ignored."""
    for field in ("sandbox", "name", "self"):
        status, _ = ask(path, "PUT", "/v1/phase", {"phase": "done", field: "other"})
        assert 400 == status

    assert [] == fleet.heard


def test_everybody_may_open_it_and_few_may_do_anything(path: Path) -> None:
    """Users of a sandbox have any uid; who belongs to no sandbox is refused."""
    assert 0o666 == stat.S_IMODE(path.stat().st_mode)
    assert 0o755 == stat.S_IMODE(path.parent.stat().st_mode)


def test_a_process_of_no_sandbox_is_refused(path: Path, fleet: FakeFleet) -> None:
    """With the reason, before it has asked anything."""
    fleet.homes.clear()
    status, found = ask(path, "GET", "/v1/self")

    assert 403 == status
    assert "belongs to no sandbox" in found["detail"]


def test_a_process_that_cannot_be_seen_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pid 0 is what the kernel says of a process outside our pid namespace."""
    monkeypatch.setattr(local_socket, "_credentials", lambda _: (0, 0))
    status, found = ask(path, "GET", "/v1/self")

    assert 403 == status
    assert "pid namespace" in found["detail"]


def test_each_process_speaks_for_its_own_sandbox(path: Path, fleet: FakeFleet) -> None:
    """Two processes on one socket file."""
    fleet.homes = _EveryPid("other", fleet.homes)
    words = [sys.executable, "-c", _SPEAKER, str(path), put("waiting_user").decode()]
    out = subprocess.run(words, stdout=subprocess.PIPE, timeout=30, check=True).stdout
    ask(path, "PUT", "/v1/phase", {"phase": "done"})

    assert b"HTTP/1.1 200 " == out[:13]
    assert [("other", "waiting_user", None), ("mine", "done", None)] == fleet.heard


def test_passing_the_descriptor_on_does_not_pass_the_identity_on(
    path: Path, fleet: FakeFleet
) -> None:
    """What we say on a connection that another process made is said for that process."""
    fleet.homes = _EveryPid("other", fleet.homes)
    with passed_on(path) as (connection, _child):
        connection.sendall(put("waiting_user"))
        assert 200 == received(connection)[0]

    assert [("other", "waiting_user", None)] == fleet.heard


class _EveryPid(dict[int, str]):
    """Every process belongs to one sandbox, but for those that are known better."""

    def __init__(self, name: str, known: dict[int, str]) -> None:
        super().__init__(known)
        self._name = name

    def get(self, pid: int, _default: object = None) -> str:
        """The sandbox of a process."""
        return super().get(pid, self._name)


def test_an_identity_ends_with_its_process(path: Path, fleet: FakeFleet) -> None:
    """Its pid may be another's by now, so nothing that is said on its connection counts."""
    fleet.homes = _EveryPid("other", fleet.homes)
    with passed_on(path) as (connection, child):
        connection.sendall(put("waiting_user"))
        before = received(connection)[0]
        child.kill()
        child.wait()
        connection.sendall(put("done"))
        after = received(connection)

    assert 200 == before
    assert 403 == after[0]
    assert "has ended" in str(after[1]["detail"])
    assert ["waiting_user"] == fleet.phases()


def test_who_has_ended_before_we_look_is_nobody(fleet: FakeFleet, tmp_path: Path) -> None:
    """A connection that waited in the kernel's queue while its maker ended and was reaped."""
    fleet.homes = _EveryPid("other", fleet.homes)
    server = SandboxSocket(fleet, tmp_path / SANDBOX_SOCKET)
    try:
        with passed_on(server.path) as (connection, child):
            child.kill()
            child.wait()
            server.start()
            status, found = received(connection)
    finally:
        server.close()

    assert 403 == status
    assert "has ended" in str(found["detail"])


def test_a_process_that_is_moved_speaks_for_where_it_is(path: Path, fleet: FakeFleet) -> None:
    """The process stays the one that connected; its sandbox is looked up for each request."""
    connection = UnixConnection(path)
    for name in ("mine", "other"):
        fleet.homes[os.getpid()] = name
        connection.request("PUT", "/v1/phase", '{"phase": "done"}')
        connection.getresponse().read()
    connection.close()

    assert ["mine", "other"] == [name for name, _, _ in fleet.heard]


def test_a_sandbox_cannot_take_the_places_of_others(path: Path, fleet: FakeFleet) -> None:
    """The fifth connection of one is refused while those of another are welcome."""
    held = [UnixConnection(path) for _ in range(4)]
    for connection in held:
        connection.connect()
        connection.request("GET", "/v1/self")
        assert b"running" in connection.getresponse().read()
    flood = [ask(path, "GET", "/v1/self")[0] for _ in range(100)]
    fleet.homes[os.getpid()] = "other"
    other = ask(path, "GET", "/v1/self")[0]
    for connection in held:
        connection.close()

    assert {429} == set(flood)
    assert 200 == other


def test_a_place_is_free_again_when_its_connection_ends(path: Path) -> None:
    """However it ends."""
    for number in range(12):
        if number % 2:
            raw_exchange(path, b"\x00garbage\r\n\r\n")
        else:
            with socket.socket(socket.AF_UNIX) as silent:
                silent.connect(str(path))
        _until(lambda: ask(path, "GET", "/v1/self")[0] == 200)


def test_connecting_without_a_word_counts_as_talking(timeless: Path) -> None:
    """It costs the host as much."""

    def connect() -> int:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.settimeout(20)
            silent.connect(str(timeless))
            silent.shutdown(socket.SHUT_WR)
            answer = silent.recv(4096)
        return int(answer.split()[1]) if answer else 0

    assert [0] * 20 + [429] * 80 == [connect() for _ in range(100)]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "no place became free"
        time.sleep(0.1)


def test_who_talks_too_much_is_not_heard(timeless: Path, fleet: FakeFleet) -> None:
    """Of many requests at once twenty are, and those of another sandbox all the same."""
    connection = UnixConnection(timeless)
    answers = []
    for _ in range(100):
        connection.request("PUT", "/v1/phase", '{"phase": "running"}')
        response = connection.getresponse()
        response.read()
        answers.append((response.status, response.headers["Retry-After"]))
    heard = len(fleet.heard)
    fleet.homes[os.getpid()] = "other"
    other = ask(timeless, "GET", "/v1/self")[0]
    connection.close()

    assert [(200, None)] * 20 + [(429, "1")] * 80 == answers
    assert 20 == heard
    assert 200 == other


def test_requests_are_counted_over_connections_and_come_back_with_time() -> None:
    """Twenty at once, then one each twentieth of a second; connecting anew changes nothing."""
    now = 100.0
    accounts = Accounts(lambda: now)

    def connected() -> bool:
        if accounts.open("a") is not None:
            return False
        accounts.close("a")
        return True

    first = [connected() for _ in range(15)] + [accounts.charge("a") is None for _ in range(15)]
    now += 0.26
    later = [connected() for _ in range(30)]
    now += 3600
    after_a_pause = [accounts.charge("a") is None for _ in range(30)]

    assert [20, 5, 20] == [sum(first), sum(later), sum(after_a_pause)]
    assert accounts.open("b") is None


def test_sandboxes_that_are_gone_are_forgotten() -> None:
    """The accounts of many short lives do not pile up; open ones stay."""
    now = 100.0
    accounts = Accounts(lambda: now)
    accounts.open("lasting")
    for number in range(5000):
        now += 0.01
        accounts.open(f"short {number}")
        accounts.close(f"short {number}")

    assert len(accounts._of) <= 1024
    assert 1 == accounts._of["lasting"].connections


def test_an_old_kernel_is_refused(
    fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a peer's pidfd nobody could be told apart from who got his pid."""
    monkeypatch.setattr(local_socket, "_SO_PEERPIDFD", 9999)

    with pytest.raises(Unsupported, match="does not name"):
        SandboxSocket(fleet, tmp_path / SANDBOX_SOCKET)


def test_processes_are_let_go(path: Path, fleet: FakeFleet) -> None:
    """No descriptor of theirs stays behind, whether they were served or refused."""
    for _ in range(30):
        ask(path, "GET", "/v1/self")
    fleet.homes.clear()
    refused = [ask(path, "GET", "/v1/self")[0] for _ in range(10)]

    assert {403} == set(refused)
    _until(lambda: not [name for name in _open_files() if "pidfd" in name])


def _open_files() -> list[str]:
    """What our descriptors lead to; the one that lists them is gone by then."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found
