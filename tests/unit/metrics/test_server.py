"""Who may ask for the figures, how often they are made, and what a rude client can do."""

import socket
import sys
import threading
import urllib.error
from contextlib import closing

import pytest

from agentzip.errors import InternalError, InvalidSetting
from agentzip.metrics import MetricsServer, parse_address
from agentzip.testing import FakeEngine
from metrics_scraping import SCOPE, BusyEngine, full_fleet, get, serving, value
from sandbox_values import MIB


def test_an_engine_that_does_not_answer_is_told() -> None:
    """Up is 0, and what the fleet knows is there all the same; without a fleet there is no page."""
    engine, fleet = BusyEngine(), full_fleet()
    with serving(fleet, engine) as (scrape, _):
        engine.broken = True
        text = scrape()
        fleet.refusal = InternalError("no fleet")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            scrape()

    assert 0 == value(text, "agentzip_engine_up")
    assert 160 * MIB == value(text, "agentzip_out_bytes", scope=SCOPE)


def test_many_scrapes_at_once_cost_one() -> None:
    """Within a second everybody gets the same text."""
    fleet = full_fleet()
    now = [0.0]
    server = MetricsServer(FakeEngine(), fleet, "127.0.0.1:0", clock=lambda: now[0])
    server.start()
    with closing(server):
        first = get(server.port)
        fleet.found = []
        now[0] = 0.9
        again = get(server.port)
        now[0] = 1.0
        later = get(server.port)

    assert first == again
    assert 0 == value(later, "agentzip_out_bytes", scope=SCOPE)


def test_other_paths_and_rude_clients_change_nothing() -> None:
    """Only /metrics is there; those who connect and say nothing hold nobody up."""
    with serving(full_fleet()) as (scrape, server):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(server.port, "/")
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
        silent[0].sendall(b"\0\xff\r\n\r\n")
        silent[1].sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 100_000)
        assert "agentzip_engine_up" in scrape()
        for connection in silent:
            connection.close()
        assert "agentzip_engine_up" in scrape()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("127.0.0.1:9477", ("127.0.0.1", 9477)),
        ("127.9.9.9:1", ("127.9.9.9", 1)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9477", ("::1", 9477)),
    ],
)
def test_addresses_of_this_machine_are_taken(text: str, place: tuple[str, int]) -> None:
    """Loopback, old and new."""
    assert place == parse_address(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "9477", ":9477", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1"),
        *(
            "127.0.0.1:65536",
            "example.com:1",
            "localhost:1",
            "::1:9477",
            "[127.0.0.1]:1",
            "127.0.0.1:\uff11",
        ),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """The error shows what is right."""
    with pytest.raises(InvalidSetting, match="cannot be listened on") as refusal:
        parse_address(text)

    assert "127.0.0.1:9477" in refusal.value.hint


@pytest.mark.parametrize("text", ["0.0.0.0:9477", "[::]:9477", "192.0.2.7:9477"])
def test_addresses_that_others_reach_are_refused(text: str) -> None:
    """Reading names and sizes of sandboxes takes no permission but to reach the port."""
    with pytest.raises(InvalidSetting, match="reached from other machines") as refusal:
        parse_address(text)

    assert "127.0.0.1 or [::1]" in refusal.value.hint


def test_a_port_that_is_taken_is_bad_input() -> None:
    """The error names the address."""
    with (
        serving(full_fleet()) as (_, server),
        pytest.raises(InvalidSetting, match=str(server.port)),
    ):
        MetricsServer(FakeEngine(), full_fleet(), f"127.0.0.1:{server.port}")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without prometheus-client is told what to install."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(InvalidSetting, match="prometheus-client") as refusal:
        MetricsServer(FakeEngine(), full_fleet(), "127.0.0.1:0")

    assert "agentzip[metrics]" in refusal.value.hint


def test_a_closed_server_leaves_no_thread() -> None:
    """Port and threads are given back."""
    with serving(full_fleet()) as (scrape, server):
        scrape()
        port = server.port
    names = {thread.name for thread in threading.enumerate()}

    assert not {"metrics", "metrics-survey"} & names
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)
