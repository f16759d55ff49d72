"""Requests of strangers: whatever arrives is answered, by what was asked or by a refusal."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentzip import errors
from agentzip.control import ControlServer, wire
from agentzip.sandboxes import PHASES
from agentzip.testing import FakeEngine, FakeTarget
from agentzip.web import WebServer, host, inside
from agentzip.web.answers import Answer, Request
from agentzip.web.routes import dispatch
from fake_fleet import FakeFleet
from fuzz_cases import cases
from unix_http import raw_exchange

_NAME = "box/1"
_METHODS = sorted(
    {"attach", "page_out", "ping", "wake", "hint", "scopes", "pin", "census"}
    | {"detach", "inspect", "learned", "page_in", "stats", "status", "sandboxes", "shutdown"}
)
_PARAMS = ("pid", "ranges", "start_time", "sandbox", "phase", "expect", "pattern", "min_wait")
_NUMBERS = st.integers() | st.floats() | st.sampled_from([0, 7, 8, 2**63, -1, 10**400])
_PLAIN = st.none() | st.booleans() | _NUMBERS | st.text(max_size=12)
_JSON = st.recursive(
    _PLAIN | st.sampled_from([_NAME, *PHASES, "8s"]),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=6), below),
    max_leaves=12,
)
_REQUESTS = st.fixed_dictionaries(
    {"method": st.sampled_from(_METHODS) | _JSON},
    optional={"params": st.dictionaries(st.sampled_from(_PARAMS) | st.text(), _JSON) | _JSON},
)
_HEADS = st.lists(
    st.sampled_from(
        [
            *(b"GET ", b"PUT ", b"POST ", b"/v1/sandboxes", b"/%62ox%2F1", b"/phase", b" HTTP/1.1"),
            *(b"\r\n", b"\n", b"\r\n\r\n", b"Content-Length: 3", b"Content-Length: -1", b"{}\n"),
            *(b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Host: x", b"\x00", b"\xff"),
            b"Content-Length: 99999999999999999999",
        ]
    )
    | st.binary(max_size=8),
    max_size=14,
).map(b"".join)


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlServer]:
    """An operator's socket; nobody connects to it here."""
    engine = FakeEngine([FakeTarget(7, pages=4), FakeTarget(8, pages=4)])
    server = ControlServer(engine, tmp_path_factory.mktemp("run"), fleet=FakeFleet(_NAME))
    yield server
    server.close()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a server that speaks HTTP."""
    server = WebServer(FakeFleet(_NAME), tmp_path_factory.mktemp("web"))
    server.start()
    yield server.path
    server.close()


def _is_refused_or_answered(answer: dict[str, Any]) -> None:
    """One of the two, as one line; a refusal blames the request and not us."""
    assert 1 == wire.line_of(answer).count(b"\n")
    assert {"result"} == set(answer) or {"error"} == set(answer)
    if "error" in answer:
        assert not isinstance(wire.error_of(answer["error"]), errors.InternalError), answer


@cases(300)
@given(st.binary(max_size=100) | st.text('[]{}",:0e-Nan\\u', max_size=100).map(str.encode))
def test_any_line_is_answered_by_the_operators_socket(control: ControlServer, line: bytes) -> None:
    """Bytes, and all that looks nearly like JSON."""
    _is_refused_or_answered(control.answer(line))


@cases(400)
@given(_REQUESTS)
def test_any_request_is_answered_by_the_operators_socket(
    control: ControlServer, request: dict[str, Any]
) -> None:
    """Known methods with wrong parameters, right ones with wrong values."""
    _is_refused_or_answered(control.answer(wire.line_of(request)))


@pytest.mark.parametrize("sign", ["[", '{"a":'])
def test_deep_nesting_is_the_requests_fault(control: ControlServer, sign: str) -> None:
    """It is refused before it costs a stack."""
    _is_refused_or_answered(control.answer(sign.encode() * 10_000))


@cases(300)
@given(_JSON)
def test_any_error_answer_becomes_an_error(answer: Any) -> None:
    """What a daemon of another version answers, its client can show."""
    values = answer if isinstance(answer, dict) else {"type": answer, "message": answer}

    assert isinstance(wire.error_of(values), errors.AgentZipError)


@cases(400)
@given(
    st.sampled_from(["GET", "PUT", "POST", "DELETE", "get", ""]),
    st.sampled_from([route.path for route in (*host.ROUTES, *inside.ROUTES)])
    | st.text("/v1sandboxe{}%2F?#.\\\u00e9", max_size=30),
    st.sampled_from(["box%2F1", "box/1", "%", "%ff", "..", "%00", ""]),
    st.binary(max_size=30) | _JSON.map(lambda value: json.dumps(value).encode()),
)
def test_any_route_answers_or_refuses(method: str, path: str, name: str, body: bytes) -> None:
    """Both tables, with any name and any body."""
    fleet = FakeFleet(_NAME)
    for part in ("{name}", "{pattern}"):
        path = path.replace(part, name)
    for routes, given_names in ((host.ROUTES, None), (inside.ROUTES, {"self": _NAME})):
        try:
            found = dispatch(routes, fleet, Request(method, path, body), given_names)
        except errors.InternalError:
            raise
        except errors.AgentZipError:
            continue
        assert isinstance(found, Answer)


@cases(60)
@given(_HEADS)
def test_any_bytes_on_a_connection_end_in_an_answer_or_a_close(web: Path, data: bytes) -> None:
    """And the next peer is served."""
    raw_exchange(web, data + b"\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n")

    assert raw_exchange(
        web, b"GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    ).startswith(b"HTTP/1.1 200 ")
