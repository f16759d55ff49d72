"""The instances themselves, without a process: their data, their steps, their digests."""

import io
import json
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import pytest

from agentzip.workloads import crew
from agentzip.workloads.catalogue import WORKLOADS
from agentzip.workloads.counter import WordCounter
from agentzip.workloads.json_agent import ToolAgent
from agentzip.workloads.material import make
from agentzip.workloads.serve import State, serve
from agentzip.workloads.tool_server import tool_server
from agentzip.workloads.turns import TurnState, serve_turns
from agentzip.workloads.website import web_page

if TYPE_CHECKING:
    import httpx

    from agentzip.workloads.tool_user import ToolUser


def _made(kind: str, instance: int, folder: Path) -> Path:
    made = folder / f"{kind}-{instance}"
    make(kind, instance, 2, made, 0.05)
    return made


def _agent(kind: str, folder: Path) -> State:
    if kind == "json":
        return ToolAgent(folder)
    pytest.importorskip("pandas")
    from agentzip.workloads.python_agent import DataAgent

    return DataAgent(folder)


@pytest.mark.parametrize("kind", ["python", "json"])
def test_a_step_made_twice_takes_its_changes_back(kind: str, tmp_path: Path) -> None:
    """That is what lets digests be compared across steps."""
    agent = _agent(kind, _made(kind, 0, tmp_path))
    before = agent.digest()
    agent.step(5)

    assert before != agent.digest()
    agent.step(5)
    assert before == agent.digest()


@pytest.mark.parametrize("kind", ["python", "json", "tools", "node", "browser"])
def test_instances_share_no_line_of_data(kind: str, tmp_path: Path) -> None:
    """Each has its own words and records; what is equal is form, not content."""
    first, second = (
        {
            line
            for path in _made(kind, number, tmp_path).rglob("*.*")
            for line in path.read_text().splitlines()
            # Headings of tables, and what the program of a page is.
            if len(line) > 200
        }
        for number in range(2)
    )

    assert first
    assert not first & second


def test_material_is_the_same_at_every_run(tmp_path: Path) -> None:
    """A crew that is started again holds the same."""
    first = _made("json", 1, tmp_path / "a")
    second = _made("json", 1, tmp_path / "b")

    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


def test_lines_are_answered_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One object a line, and what is not understood is said, too."""
    agent = ToolAgent(_made("json", 0, tmp_path))
    monkeypatch.setattr(sys, "stdin", io.StringIO("step 2\ndigest\nhello\n"))

    serve(agent)

    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [{"answer", "seconds"}, {"digest", "seconds"}, {"error", "seconds"}] == [
        set(answer) for answer in said
    ]


def test_a_host_that_lacks_something_says_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the program or package."""
    monkeypatch.setenv("PATH", "")

    assert "node" in crew.why_not("node")
    assert "chromium" in crew.why_not("browser")
    assert crew.why_not("json") == ""


@pytest.fixture
def web(tmp_path: Path) -> "Iterator[httpx.Client]":
    """Where the tools of an agent are served that is made in this test."""
    httpx = pytest.importorskip("httpx")
    folder = _made("tools", 0, tmp_path) / "site"
    with tool_server(folder) as url, httpx.Client(base_url=url, trust_env=False) as client:
        yield client


def _tool_user(folder: Path, web: "httpx.Client") -> "ToolUser":
    pytest.importorskip("langchain_core")
    pytest.importorskip("bs4")
    from agentzip.workloads.tool_user import ToolUser

    return ToolUser(folder, web)


def _turning(workload: str, folder: Path, web: "httpx.Client") -> TurnState:
    if workload == "B":
        return _tool_user(folder, web)
    if workload == "busy":
        return WordCounter(folder)
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    from agentzip.workloads.analyst import Analyst

    return Analyst(folder)


@pytest.mark.parametrize("workload", ["A", "B", "busy"])
def test_two_agents_that_take_the_same_turns_say_the_same(
    workload: str, tmp_path: Path, web: "httpx.Client"
) -> None:
    """That is what lets a run with the pager be compared with one without."""
    folder = _made(WORKLOADS[workload].kind, 0, tmp_path)
    first, second, other = (_turning(workload, folder, web) for _ in range(3))
    choices = [11, 22, 33]

    said = [(first.work(number, choice), first.recall()) for number, choice in enumerate(choices)]
    again = [
        (second.work(number, choice), second.recall()) for number, choice in enumerate(choices)
    ]
    for number, choice in enumerate([44, 55, 66]):
        other.work(number, choice)

    assert said == again
    assert [[]] * 3 == [answer["wrong"] for answer, _ in said]
    assert first.digest() == second.digest()
    assert first.digest() != other.digest()


@pytest.mark.parametrize("damage", ["page", "records", "results", "search"])
def test_what_is_damaged_is_found_by_the_agent_itself(
    damage: str, tmp_path: Path, web: "httpx.Client"
) -> None:
    """A turn checks what it has against what it gets, and what it gets in two ways."""
    agent = _tool_user(_made("tools", 0, tmp_path), web)
    assert [] == agent.work(0, 1)["wrong"]
    match damage:
        case "page":
            agent.seen = {name: text + "x" for name, text in agent.seen.items()}
        case "records":
            agent.records = {name: rows[1:] for name, rows in agent.records.items()}
        case "results":
            agent.results = [found[1:] for found in agent.results]
        case "search":
            for document in agent.documents:
                document.page_content = document.page_content[::-1]

    assert damage in cast("list[str]", agent.work(1, 1)["wrong"])


def test_an_agent_that_counts_on_finds_damage_between_turns(tmp_path: Path) -> None:
    """However far it came, its digest is that of one that did not count on."""
    agent, other = (WordCounter(_made("json", 0, tmp_path)) for _ in range(2))
    agent.count_on()
    assert other.work(0, 5) == agent.work(0, 5)
    assert other.digest() == agent.digest()

    damaged = agent.counts[(agent._next + 1) % len(agent.counts)]
    damaged["damaged"] += 1
    agent.count_on()
    del damaged["damaged"]
    assert ["count"] == agent.work(1, 5)["wrong"]
    assert [] == agent.work(2, 5)["wrong"]


def test_a_tool_server_ends_with_its_agent(tmp_path: Path) -> None:
    """It serves files, and nobody answers after the block."""
    (tmp_path / "a.json").write_text("{}")
    with tool_server(tmp_path) as url:
        port = urlsplit(url).port
        link = HTTPConnection("127.0.0.1", port)
        link.request("GET", "/a.json")
        assert b"{}" == link.getresponse().read()
        link.close()
    with pytest.raises(ConnectionRefusedError):
        HTTPConnection("127.0.0.1", port).connect()


def test_documents_become_pages_of_their_kind() -> None:
    """Source gets an element around every token; HTML stays, but for what is not HTML in it."""
    code = web_page("x.py", "def found(a):\n    return a < 1\n", ["page-000.html"])
    article = web_page("x.txt", "A head\n\nText & more.", [])
    real = web_page("x.html", '<?xml version="1.0"?>\n<html><p>Text</p></html>', [])

    assert '<span class="nf">found</span>' in code
    assert '<a href="/page-000.html">' in code
    assert "<p>Text &amp; more.</p>" in article
    assert "\n<html><p>Text</p></html>" == real


def test_a_turn_has_two_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first says that it is awake, the second that it is done."""
    agent = WordCounter(_made("json", 0, tmp_path))
    monkeypatch.setattr(sys, "stdin", io.StringIO("turn 0 7\ndigest\nturn 1\n"))

    serve_turns(agent)

    said = [set(json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    one = "seconds"
    assert [{"recalled", one}, {"answer", one}, {"digest", one}, {"error", one}] == said
