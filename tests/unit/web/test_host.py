"""HTTP for the host: every route over a real socket, with a real client."""

import json
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openapi_schema_validator
import pytest

from agentzip import errors, local_socket
from agentzip.sandboxes import PHASES, Fleet
from agentzip.web import WebServer, host_document
from agentzip.web.answers import status_of
from agentzip.web.host import ROUTES
from agentzip.web.routes import encode_name
from fake_fleet import FakeFleet
from unix_http import UnixConnection, ask

NAME = "agents.slice/box 1"
"""With all that must be encoded in a path."""


@pytest.fixture
def fleet() -> FakeFleet:
    """A host with one sandbox."""
    return FakeFleet(NAME)


@pytest.fixture
def path(fleet: FakeFleet, tmp_path: Path) -> Iterator[Path]:
    """The socket of a server for that host."""
    server = WebServer(fleet, tmp_path)
    server.start()
    yield server.path
    server.close()


def of_sandbox(tail: str = "", name: str = NAME) -> str:
    """Path of a sandbox."""
    return f"/v1/sandboxes/{encode_name(name)}{tail}"


def test_a_hint_reaches_the_fleet(path: Path, fleet: FakeFleet) -> None:
    """Phase and wait arrive, in seconds, whether they were sent as text or as a number."""
    first = ask(path, "PUT", of_sandbox("/phase"), {"phase": "waiting_model", "expect": "8s"})
    second = ask(path, "PUT", of_sandbox("/phase"), {"phase": "waiting_tool", "expect": 0.5})
    third = ask(path, "PUT", of_sandbox("/phase"), {"phase": "running"})

    assert (200, "running") == (first[0], first[1]["former_phase"])
    assert (200, 0) == (second[0], second[1]["pages_in"])
    assert (200, 7) == (third[0], third[1]["pages_in"])
    expected = [("waiting_model", 8.0), ("waiting_tool", 0.5), ("running", None)]
    assert [(NAME, phase, wait) for phase, wait in expected] == fleet.heard
    assert {"http"} == set(fleet.sources)


def test_sandboxes_are_listed_and_found_by_name(path: Path, fleet: FakeFleet) -> None:
    """A name with a slash and a blank is percent-encoded."""
    fleet.of["other"] = fleet.of[NAME]

    assert [NAME, NAME] == [found["name"] for found in ask(path, "GET", "/v1/sandboxes")[1]]
    assert (200, NAME) == (
        ask(path, "GET", of_sandbox())[0],
        ask(path, "GET", of_sandbox())[1]["name"],
    )
    assert "page_out" == ask(path, "GET", of_sandbox("/decisions"))[1][0]["action"]


def test_orders_are_carried_out(path: Path, fleet: FakeFleet) -> None:
    """Pages out and in, pinned and not."""
    assert (200, {"sandbox": NAME, "pages": 100}) == ask(path, "POST", of_sandbox("/page-out"))
    assert (200, {"sandbox": NAME, "pages": 100}) == ask(path, "POST", of_sandbox("/page-in"))
    assert (204, None) == ask(path, "POST", of_sandbox("/pin"))
    assert fleet.of[NAME].pinned
    assert (204, None) == ask(path, "POST", of_sandbox("/unpin"))
    assert not fleet.of[NAME].pinned


def test_scopes_are_added_switched_and_removed(path: Path) -> None:
    """A pattern with a slash is percent-encoded like a name."""
    pattern = "kubepods.slice/*/agent-*"
    at = f"/v1/scopes/{encode_name(pattern)}"

    added = ask(path, "POST", "/v1/scopes", {"pattern": pattern, "isolation": "sandbox"})
    listed = ask(path, "GET", "/v1/scopes")
    switched = ask(path, "PATCH", at, {"enabled": False})
    removed = ask(path, "DELETE", at)
    gone = ask(path, "DELETE", at)

    assert (200, "sandbox") == (added[0], added[1]["isolation"])
    assert [pattern] == [scope["pattern"] for scope in listed[1]]
    assert (200, False) == (switched[0], switched[1]["enabled"])
    assert 200 == removed[0]
    assert (404, "urn:agentzip:NoSuchScope") == (gone[0], gone[1]["type"])


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "told"),
    [
        ("GET", of_sandbox(name="nobody"), None, 404, "nobody"),
        ("POST", of_sandbox("/pin", "nobody"), None, 404, "nobody"),
        ("PUT", of_sandbox("/phase"), {"phase": "asleep"}, 400, "asleep"),
        ("PUT", of_sandbox("/phase"), {}, 400, "phase is missing"),
        ("PUT", of_sandbox("/phase"), {"phase": 3}, 400, "phase is not a string"),
        ("PUT", of_sandbox("/phase"), {"phase": "done", "wait": 1}, 400, "wait is not known"),
        ("PUT", of_sandbox("/phase"), {"phase": "done", "expect": True}, 400, "expect"),
        ("PUT", of_sandbox("/phase"), {"phase": "done", "expect": "8"}, 400, "expect"),
        ("PUT", of_sandbox("/phase"), {"phase": "done", "expect": -1}, 400, "expect"),
        ("PUT", of_sandbox("/phase"), {"phase": "done", "expect": 1e9}, 400, "expect"),
        ("PUT", of_sandbox("/phase"), {"phase": "done", "expect": float("nan")}, 400, "expect"),
        ("PUT", of_sandbox("/phase"), ["done"], 400, "object"),
        ("PUT", of_sandbox("/phase"), None, 400, "JSON"),
        ("PATCH", "/v1/scopes/x", {"enabled": 1}, 400, "enabled"),
        ("GET", "/v1/sandboxes?all=1", None, 400, "all=1"),
        ("GET", "/v1/sandboxes/%ff", None, 400, "UTF-8"),
        ("DELETE", of_sandbox(), None, 405, "DELETE"),
        ("GET", "/v2/sandboxes", None, 404, "/v2/sandboxes"),
        ("GET", "/v1/sandboxes/", None, 404, ""),
        ("BREW", "/v1/sandboxes", None, 501, "BREW"),
    ],
)
def test_what_is_refused_says_why(
    path: Path, method: str, target: str, body: object, status: int, told: str
) -> None:
    """A problem document (RFC 9457) with the status that fits and the cause in words."""
    connection = UnixConnection(path)
    connection.request(method, target, None if body is None else json.dumps(body))
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.close()

    assert status == response.status == found["status"]
    assert "application/problem+json" == response.headers["Content-Type"]
    assert {"type", "title", "status", "detail", "hint"} == set(found)
    assert told in found["detail"]


def test_a_phase_that_is_not_known_names_those_that_are(path: Path) -> None:
    """The hint lists them."""
    found = ask(path, "PUT", of_sandbox("/phase"), {"phase": "asleep"})[1]

    assert all(phase in found["hint"] for phase in PHASES)


def test_a_method_that_is_not_allowed_names_those_that_are(path: Path) -> None:
    """As HTTP asks for."""
    connection = UnixConnection(path)
    connection.request("PUT", "/v1/scopes")
    response = connection.getresponse()
    response.read()
    connection.close()

    assert (405, "GET, POST") == (response.status, response.headers["Allow"])


def test_deep_nesting_is_bad_input(path: Path) -> None:
    """A body that a parser chokes on is the sender's mistake, not ours."""
    connection = UnixConnection(path)
    connection.request("POST", "/v1/scopes", "[" * 50_000)
    response = connection.getresponse()
    response.read()
    connection.close()

    assert 400 == response.status


def test_a_bug_is_told_and_does_not_end_the_server(
    path: Path, fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 with the error in words; the same connection goes on."""

    def broken() -> None:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr(fleet, "sandboxes", broken)
    connection = UnixConnection(path)
    connection.request("GET", "/v1/sandboxes")
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.request("GET", "/v1/health")
    after = connection.getresponse()
    after.read()
    connection.close()

    assert (500, "urn:agentzip:InternalError") == (response.status, found["type"])
    assert "by accident" in found["detail"]
    assert 200 == after.status


def test_only_the_owner_may_open_the_socket(path: Path) -> None:
    """Mode 0600."""
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


def test_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever got hold of a descriptor is still asked who he is."""
    monkeypatch.setattr(local_socket, "_credentials", lambda _: (1, 12345))

    status, found = ask(path, "GET", "/v1/health")

    assert (403, "urn:agentzip:NotPermitted") == (status, found["type"])


def test_curl_is_served(path: Path, fleet: FakeFleet) -> None:
    """The client that everybody has."""
    if shutil.which("curl") is None:
        pytest.skip("no curl on this host")
    data = '{"phase": "waiting_model", "expect": "8s"}'
    words = ["curl", "-sf", "--unix-socket", str(path), "-X", "PUT", "--data", data]
    target = f"http://localhost{of_sandbox('/phase')}"
    result = subprocess.run([*words, target], capture_output=True, text=True, check=True)

    assert "waiting_model" == json.loads(result.stdout)["phase"]
    assert [(NAME, "waiting_model", 8.0)] == fleet.heard


BODIES: dict[str, Any] = {
    "PUT /v1/sandboxes/{name}/phase": {"phase": "waiting_user", "expect": "1min"},
    "POST /v1/scopes": {"pattern": "p"},
    "PATCH /v1/scopes/{pattern}": {"enabled": False},
}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_answers_as_its_document_says(path: Path, fleet: Fleet, route: Any) -> None:
    """Bodies and answers fit the schemas of /v1/openapi.json, refusals the problem's."""
    fleet.scope_add("p")
    document = ask(path, "GET", "/v1/openapi.json")[1]
    operation = document["paths"][route.path][route.method.lower()]
    body = BODIES.get(f"{route.method} {route.path}")
    target = route.path.replace("{name}", encode_name(NAME)).replace("{pattern}", "p")
    status, found = ask(path, route.method, target, body)

    if body is not None:
        _check(document, operation["requestBody"]["content"]["application/json"], body)
    assert str(status) in operation["responses"]
    if status == 200:
        _check(document, operation["responses"]["200"]["content"]["application/json"], found)
    for kind in route.raises:
        assert str(int(status_of(kind))) in operation["responses"]
    if errors.NoSuchSandbox in route.raises:
        missing = route.path.replace("{name}", "nobody")
        status, found = ask(path, route.method, missing, body)
        content = operation["responses"]["404"]["content"]["application/problem+json"]
        assert 404 == status
        _check(document, content, found)


def _check(document: dict[str, Any], content: dict[str, Any], value: object) -> None:
    schema = {**content["schema"], "components": document["components"]}
    openapi_schema_validator.validate(value, schema, cls=openapi_schema_validator.OAS31Validator)


def test_the_document_is_served_as_it_is_written(path: Path) -> None:
    """What a client downloads is what this version answers by."""
    assert (200, host_document()) == ask(path, "GET", "/v1/openapi.json")
