"""Pressure stall information from a small /proc of our own."""

from pathlib import Path

import pytest

from agentzip.host.pressure import memory_pressure


def _file(root: Path, text: str) -> Path:
    folder = root / "proc" / "pressure"
    folder.mkdir(parents=True)
    (folder / "memory").write_text(text)
    return root


def test_pressure_is_the_share_of_the_last_ten_seconds(tmp_path: Path) -> None:
    """That of some task, not of all."""
    text = (
        "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\n"
        "full avg10=7.00 avg60=0.00 avg300=0.00 total=3\n"
    )
    assert 0.125 == memory_pressure(_file(tmp_path, text))


def test_a_kernel_without_it_says_nothing(tmp_path: Path) -> None:
    """No file, as without CONFIG_PSI; the planner takes that for no pressure."""
    assert None is memory_pressure(tmp_path)


def test_a_kernel_started_without_it_says_nothing(tmp_path: Path) -> None:
    """With psi=0 the file is there, and reading it fails: here it is a folder."""
    (tmp_path / "proc" / "pressure" / "memory").mkdir(parents=True)
    assert None is memory_pressure(tmp_path)


@pytest.mark.parametrize("text", ["", "full avg10=7.00\n", "some total=1\n"])
def test_what_is_not_there_is_not_guessed(tmp_path: Path, text: str) -> None:
    """A file of another shape is no pressure of zero."""
    assert None is memory_pressure(_file(tmp_path, text))
