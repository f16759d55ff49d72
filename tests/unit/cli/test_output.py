"""What is printed and where."""

import logging
import sys

import pytest

from agentzip.cli.output import print_table, set_up_logging, with_progress


def test_a_table_on_a_pipe_is_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    """Long cells keep their line, so that a script can still cut columns."""
    print_table(["NAME", "SIZE"], [["x" * 100, "5"]], right={"SIZE"})

    assert 2 == len(capsys.readouterr().out.splitlines())


def test_brackets_in_a_cell_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of regions look like markup and must not be taken for it."""
    print_table(["NAME"], [["[heap]"], ["[bold]x"]])

    assert "[heap]" in capsys.readouterr().out


def test_work_without_a_terminal_shows_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """The result is handed through and stderr stays empty."""
    assert 42 == with_progress("work", 10, lambda: 5, lambda: 42)
    assert "" == capsys.readouterr().err


def test_a_bar_on_a_terminal_does_not_swallow_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Result and error of the work come through the bar."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def broken() -> int:
        raise ZeroDivisionError

    assert 42 == with_progress("work", 10, lambda: 5, lambda: 42)
    with pytest.raises(ZeroDivisionError):
        with_progress("work", 10, lambda: 5, broken)


def test_logs_are_flushed_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    """What was queued is written before the command ends."""
    flush = set_up_logging(logging.INFO)
    logging.getLogger("agentzip.test").info("hello %s", "there")
    flush()

    assert "agentzip.test: hello there" in capfd.readouterr().err
