"""The demo's agent on a small file; skipped where numpy and pandas are not installed."""

from pathlib import Path

import pytest

from agentzip.demo import orders

pytest.importorskip("numpy", reason="the demo's agents need numpy")
pytest.importorskip("pandas", reason="the demo's agents need pandas")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of two hundred orders."""
    path = tmp_path / "orders.csv"
    orders.main(["--seed", "3", "--rows", "200", "--out", str(path)])
    return path


def test_a_tool_call_changes_no_state(data: Path) -> None:
    """The digest before and after a tool call is the same, or the demo's check would be void."""
    from agentzip.demo.agent import State

    state = State(data)
    before = state.digest()
    answer = state.tool(3)

    assert answer == state.tool(3)
    assert before == state.digest()


def test_the_digest_covers_every_part(data: Path) -> None:
    """A change anywhere in the state shows."""
    from agentzip.demo.agent import State

    state = State(data)
    digests = [state.digest()]
    state.notes[next(iter(state.notes))] += "!"
    digests.append(state.digest())
    next(iter(state.baskets.values()))[0]["price"] = -1.0
    digests.append(state.digest())
    state.merged.loc[5, "city"] = "Nowhere"
    digests.append(state.digest())
    state.messages[0]["content"] = ""
    digests.append(state.digest())
    state.similarity[0, 0] += 1
    digests.append(state.digest())

    assert len(digests) == len(set(digests))
