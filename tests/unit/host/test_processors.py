"""How busy the processors are, from a small /proc."""

import os
from pathlib import Path

import pytest

from agentzip.errors import NoSuchProcess
from agentzip.host.processors import (
    ProcessorTimes,
    busy_share,
    processor_times,
    seconds_taken,
    waiting_share,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with a /proc of its own."""
    (tmp_path / "proc" / "pressure").mkdir(parents=True)
    return tmp_path


def test_guests_are_not_counted_twice(root: Path) -> None:
    """Time of guests is in the user's already."""
    (root / "proc" / "stat").write_text("cpu  10 1 5 80 4 0 0 0 9 1\ncpu0 1 1 1 1 1 1 1 1 1 1\n")

    assert ProcessorTimes(84, 100) == processor_times(root)


def test_the_busy_share_lies_between_two_looks() -> None:
    """And is unknown if no time has passed."""
    look = ProcessorTimes(80, 100)

    assert busy_share(look, ProcessorTimes(90, 140)) == pytest.approx(0.75)
    assert busy_share(look, look) is None


def test_the_waiting_share_is_that_of_the_last_minute(root: Path) -> None:
    """Of the line that counts any task."""
    (root / "proc" / "pressure" / "cpu").write_text(
        "some avg10=1.00 avg60=62.50 avg300=3.00 total=1\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    )

    assert waiting_share(root) == pytest.approx(0.625)


def test_a_kernel_without_pressure_tells_nothing(root: Path) -> None:
    """No file, or nothing in it."""
    assert waiting_share(root) is None
    (root / "proc" / "pressure" / "cpu").write_text("")
    assert waiting_share(root) is None


def test_what_a_process_has_taken_is_user_and_system_time(root: Path) -> None:
    """In seconds; parentheses in its name do not mislead."""
    fields = ["S", *["0"] * 10, "300", "200", *["0"] * 30]
    (root / "proc" / "7").mkdir()
    (root / "proc" / "7" / "stat").write_text(f"7 (a) 1 (b) {' '.join(fields)}\n")

    assert 500 / os.sysconf("SC_CLK_TCK") == seconds_taken(7, root)
    with pytest.raises(NoSuchProcess, match="8"):
        seconds_taken(8, root)
