"""How `bench files` judges: what was foreseen in time, and what was asked for in vain."""

import json
from pathlib import Path

import pytest

from agentzip.bench import files
from agentzip.bench.files import FilesPlan, FilesResult, judge
from agentzip.cli import main, measure
from agentzip.policy.readahead import Ask, FileId

FILE, OTHER = FileId(1, 10), FileId(1, 11)


def test_a_read_is_a_hit_if_all_of_it_was_asked_for_before() -> None:
    """A part, or too late, is none."""
    asks = [(1.0, Ask(FILE, 0, 4)), (3.0, Ask(FILE, 4, 8))]
    whole = (10, 0, 4, 2.0, 2.1)
    over_the_edge = (10, 2, 6, 2.5, 2.6)
    too_early = (10, 4, 8, 2.9, 3.1)
    in_time = (10, 4, 8, 3.0, 3.1)
    across_two_asks = (10, 2, 6, 4.0, 4.1)
    of_another_file = (11, 0, 4, 5.0, 5.1)
    reads = [whole, over_the_edge, too_early, in_time, across_two_asks, of_another_file]

    assert (3, 0.0) == judge(reads, asks)


def test_pages_beyond_the_last_read_were_asked_for_in_vain() -> None:
    """Pages asked for twice count once; a file that nobody read is all waste."""
    asks = [(1.0, Ask(FILE, 0, 6)), (1.0, Ask(FILE, 2, 8)), (1.0, Ask(OTHER, 0, 8))]

    assert (1, 0.75) == judge([(10, 0, 4, 2.0, 2.1)], asks)


def test_without_asks_nothing_is_foreseen_and_nothing_wasted() -> None:
    """As at the level `none`."""
    assert (0, 0.0) == judge([(10, 0, 4, 2.0, 2.1)], [])


def test_the_command_measures_as_told_and_prints_one_object(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the file it is written as well; for people there is a table."""
    result = FilesResult(
        order="random",
        level="offset",
        source="tracepoints",
        reads=200,
        hit_rate=0.75,
        waste=0.0,
        read_us=120.0,
        total_s=1.5,
        cpu_s=0.1,
    )
    plans: list[FilesPlan] = []

    def run(plan: FilesPlan) -> list[FilesResult]:
        plans.append(plan)
        return [result]

    monkeypatch.setattr(files, "run_files", run)
    monkeypatch.setattr(measure, "set_up_logging", lambda _level: lambda: None)
    words = ["bench", "files", "--files", "20", "--rounds", "2"]
    assert 0 == main([*words, "--json", "--out", str(tmp_path / "deep" / "a.json")])
    printed = capsys.readouterr().out

    assert [FilesPlan(files=20, rounds=2)] == plans
    assert "offset" == json.loads(printed)["results"][0]["level"]
    assert printed == (tmp_path / "deep" / "a.json").read_text()
    assert 0 == main(words)
    assert "75%" in capsys.readouterr().out
    assert 2 == main(["bench", "files", "--files", "1"])
