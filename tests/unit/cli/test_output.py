"""What is printed and where."""

import logging
import sys

import pytest

from agentzip.cli.output import (
    print_error,
    print_note,
    print_table,
    print_text,
    set_up_logging,
    with_progress,
)
from agentzip.errors import AgentZipError

HOSTILE = "a\x1b[2J\r\u202e\udcff[/x]:boom:"
"""A name that clears the screen, overwrites its line, turns the next words around, is no text, and
looks like markup."""

SHOWN = r"a\x1b[2J\r\u202e\udcff[/x]:boom:"


def test_a_table_on_a_pipe_is_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    """Long cells keep their line, so that a script can still cut columns."""
    print_table(["NAME", "SIZE"], [["x" * 100, "5"]], right={"SIZE"})

    assert 2 == len(capsys.readouterr().out.splitlines())


def test_brackets_in_a_cell_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of regions look like markup and must not be taken for it."""
    print_table(["NAME"], [["[heap]"], ["[bold]x"]])

    assert "[heap]" in capsys.readouterr().out


def test_a_hostile_name_is_read_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    """In tables, lines, errors and notes; only our own lines are lines."""
    print_table(["NAME"], [[HOSTILE]])
    print_text(f"first {HOSTILE}\nsecond")
    print_note(HOSTILE)
    print_error(AgentZipError(f"no such sandbox: {HOSTILE}"), as_json=False)
    said = capsys.readouterr()

    assert ["NAME", SHOWN, f"first {SHOWN}", "second"] == said.out.splitlines()
    assert [SHOWN, f"error: no such sandbox: {SHOWN}"] == said.err.splitlines()


def test_nobody_writes_a_line_of_the_log_but_us(capfd: pytest.CaptureFixture[str]) -> None:
    """A message stays one line, and so does each of a traceback; the traceback is there."""
    flush = set_up_logging(logging.INFO)
    log = logging.getLogger("agentzip.test")
    log.warning("process %d (%s)", 5, "x\n2026 WARNING agentzip: forged\x1b[A")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("it failed")
    flush()
    lines = capfd.readouterr().err.splitlines()

    assert lines[0].endswith(r"process 5 (x\n2026 WARNING agentzip: forged\x1b[A)")
    assert lines[1].endswith("agentzip.test: it failed")
    assert "Traceback (most recent call last):" == lines[2]
    assert f"ValueError: {SHOWN}" == lines[-1]


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
