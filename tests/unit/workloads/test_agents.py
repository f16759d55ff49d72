"""The instances themselves, without a process: their data, their steps, their digests."""

import io
import json
import sys
from pathlib import Path
from typing import cast

import pytest

from agentzip.workloads import crew
from agentzip.workloads.json_agent import ToolAgent
from agentzip.workloads.material import make
from agentzip.workloads.serve import State, serve
from agentzip.workloads.tool_user import ToolUser
from agentzip.workloads.turns import TurnState, serve_turns


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


@pytest.mark.parametrize("kind", ["python", "json", "node", "browser"])
def test_instances_share_no_line_of_data(kind: str, tmp_path: Path) -> None:
    """Each has its own words and records; what is equal is form, not content."""
    first, second = (
        {
            line
            for path in _made(kind, number, tmp_path).iterdir()
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


def _turning(workload: str, folder: Path) -> TurnState:
    if workload == "B":
        return ToolUser(folder)
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    from agentzip.workloads.analyst import Analyst

    return Analyst(folder)


@pytest.mark.parametrize("workload", ["A", "B"])
def test_two_agents_that_take_the_same_turns_say_the_same(workload: str, tmp_path: Path) -> None:
    """That is what lets a run with the pager be compared with one without."""
    folder = _made(crew.TURNING[workload], 0, tmp_path)
    first, second, other = (_turning(workload, folder) for _ in range(3))
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


def test_a_damaged_page_is_found_by_the_agent_itself(tmp_path: Path) -> None:
    """A turn checks what it reads against what it has."""
    agent = ToolUser(_made("json", 0, tmp_path))
    for page in agent.pages:
        page.text += "x"

    assert "page" in cast("list[str]", agent.work(0, 1)["wrong"])


def test_a_turn_has_two_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first says that it is awake, the second that it is done; other lines are as ever."""
    agent = ToolUser(_made("json", 0, tmp_path))
    monkeypatch.setattr(sys, "stdin", io.StringIO("turn 0 7\ndigest\nturn 1\n"))

    serve_turns(agent)

    said = [set(json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    one = "seconds"
    assert [{"recalled", one}, {"answer", one}, {"digest", one}, {"error", one}] == said
