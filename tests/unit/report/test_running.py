"""
Running a preset: commands that fail at once are enough, since each is a process of its own.

What commands that succeed leave behind is in tests/kernel/test_report.py.
"""

import json
from pathlib import Path

import pytest

from agentzip.bench.report import running
from agentzip.bench.report.kept import Kept, Ran, load, log_of, result_of, save
from agentzip.bench.report.presets import PRESETS, SECTIONS, Preset, Step
from agentzip.bench.report.running import problem_of, run_preset
from agentzip.cli import main
from agentzip.errors import InvalidSetting

_BAD = Preset(
    "quick",
    "fails at once",
    (
        Step("ablation", "ablation", "fanout --workload E"),
        Step("knob", "knob", "knob --targets 1ms"),
    ),
)


def _ran(name: str, problem: str = "") -> Ran:
    return Ran(
        section="knob",
        name=name,
        words=("bench", "knob"),
        began="2026-01-01T00:00:00+00:00",
        seconds=1.0,
        exit_code=0,
        problem=problem,
    )


# ── presets ───────────────────────────────────────────────────────────────────────────────────────
def test_every_step_is_a_command_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option of each preset is known to its command, and each name stands once."""
    for preset in PRESETS.values():
        names = [step.name for step in preset.steps]
        assert len(names) == len(set(names))
        for step in preset.steps:
            assert step.section in SECTIONS
            assert 0 == main([*step.words[:2], "--help"])
            known = capsys.readouterr().out
            options = [word for word in step.words if word.startswith("--")]
            assert [] == [option for option in options if option not in known]


def test_the_full_ablation_is_as_large_as_the_published_one() -> None:
    """200 sandboxes, every mode and every peer."""
    words = next(step for step in PRESETS["full"].steps if step.name == "ablation").words

    assert "200" == words[words.index("--sandboxes") + 1]
    assert "none,encode,prefetch,full,zram,zswap,ksm" == words[words.index("--mode") + 1]


# ── a run ─────────────────────────────────────────────────────────────────────────────────────────
def test_a_section_that_fails_is_noted_and_the_rest_goes_on(tmp_path: Path) -> None:
    """With what the command itself said, and its hint."""
    told: list[str] = []
    kept = run_preset(_BAD, tmp_path / "out", tell=told.append)

    assert ["1 of 2: ablation", "2 of 2: knob"] == told
    assert [2, 2] == [one.exit_code for one in kept.ran]
    assert "workload is not known: E; choose from A, B, C, D" in kept.ran[0].problem
    assert "latency targets say nothing" in kept.ran[1].problem
    assert {} == kept.results
    assert not kept.whole
    assert kept == load(tmp_path / "out")


def test_the_command_says_that_a_section_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and a report all the same; made again from what is kept, it is the same."""
    monkeypatch.setitem(PRESETS, "quick", _BAD)
    out = tmp_path / "out"

    assert 1 == main(["bench", "report", "--out", str(out), "--json"])
    answer = json.loads(capsys.readouterr().out)
    page, text = (out / "report.html").read_bytes(), (out / "report.md").read_bytes()
    (out / "report.html").unlink()

    assert 1 == main(["bench", "report", "--from", str(out)])
    assert str(out / "report.html") == answer["html"]
    assert ["ablation", "knob"] == list(answer["failed"])
    assert page == (out / "report.html").read_bytes()
    assert text == (out / "report.md").read_bytes()
    assert b"ablation failed: workload is not known: E" in text


def test_only_runs_sections_again_and_keeps_the_others(tmp_path: Path) -> None:
    """In their order; whoever gives no --only does not overwrite a run of hours."""
    out = tmp_path / "out"
    first = run_preset(_BAD, out)
    again = run_preset(_BAD, out, ["ablation"])

    assert ["ablation", "knob"] == [one.name for one in again.ran]
    assert first.ran[1] == again.ran[1]
    with pytest.raises(InvalidSetting, match="holds a report of preset quick"):
        run_preset(_BAD, out)
    with pytest.raises(InvalidSetting, match="has no section fits"):
        run_preset(_BAD, out, ["fits"])


def test_an_interrupted_command_leaves_the_earlier_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hours have measured is gone only when there is something in its place."""
    kept = Kept("quick", {})
    result_of(tmp_path, "").parent.mkdir()
    result_of(tmp_path, "knob").write_text('{"points": []}')
    kept.replace(_ran("knob"), None)
    save(kept, tmp_path)

    def interrupt(*_words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_Bench", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_preset(_BAD, tmp_path, ["knob"])

    assert {"knob": {"points": []}} == load(tmp_path).results
    assert ["knob.json"] == [file.name for file in log_of(tmp_path, "").parent.iterdir()]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--from", "nowhere"), "there is no report in nowhere"),
        (("--from", "nowhere", "--out", "there"), "--from runs nothing"),
        (("--preset", "huge"), "preset is not known: huge"),
    ],
)
def test_bad_words_are_named(
    words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is run for them."""
    assert 2 == main(["bench", "report", *words])
    assert named in capsys.readouterr().err


# ── how a command ended ───────────────────────────────────────────────────────────────────────────
def test_a_problem_is_told_in_the_words_of_the_command() -> None:
    """Its error; else the last it said; a result that is there but wrong is a problem, too."""
    error = '{"error": {"message": "no cgroup2 mount", "hint": "mount it"}}'

    assert "" == problem_of(0, "a warning", printed=True)
    assert "a check of its own failed" in problem_of(1, "", printed=True)
    assert "no cgroup2 mount; mount it" == problem_of(9, f"a warning\n{error}\n", printed=False)
    assert "exit code 1: 2 / 3 / Bang" == problem_of(1, "1\n2\n3\nBang\n", printed=False)
    assert "exit code -9: it said nothing" == problem_of(-9, "", printed=False)


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    """With the file, not with a trace of ours."""
    (tmp_path / "run.json").write_text('{"preset": "quick"}')

    with pytest.raises(InvalidSetting, match="cannot be read"):
        load(tmp_path)
