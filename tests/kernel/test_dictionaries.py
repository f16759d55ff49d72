"""Dictionaries trained by the real engine from real processes."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip import dictionaries
from agentzip.cli import main
from agentzip.errors import DictionaryRefused
from agentzip.host import processes
from podman_host import short_folder

_AGENT = """
import json, time
held = [{"name": f"customer {i}", "items": [i, i + 1], "text": f"ordered {i * 7}"}
        for i in range(60_000)]
time.sleep(100)
"""


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path is not too long for a socket in it, also with workers."""
    with short_folder() as folder:
        yield folder


def _train(folder: Path, *words: str) -> int:
    out = ["--json", "--out", str(folder / "made.zdict")]
    return main(["--run-dir", str(folder / "run"), "dict", "train", *out, *words])


def test_a_command_becomes_a_dictionary(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It pays on pages it was not made from, fits its size, and leaves no process behind."""
    command = [sys.executable, "-I", "-c", _AGENT]
    # The interpreter lies below this checkout, and so its paths are traces: allowed here.
    code = _train(short_path, "--size", "64KiB", "--after", "2s", "--private", "--", *command)
    facts = json.loads(capsys.readouterr().out)

    assert 0 == code
    assert 4096 <= facts["bytes"] <= 64 * 1024
    assert facts["gain"] > 1.02
    assert dictionaries.read(short_path / "made.zdict")
    assert [] == [p for p in processes.descendants(os.getpid()) if p.state not in "ZX"]


def test_a_dictionary_with_traces_is_not_written(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the process holds of this machine is found in what was trained from it."""
    folder = f"{os.getcwd()}/some/file"
    program = (
        "import time\n"
        f"held = [{folder!r} + str(i % 50) + 'x' * (i % 300) for i in range(100_000)]\n"
        "time.sleep(100)\n"
    )
    code = _train(short_path, "--after", "2s", "--", sys.executable, "-I", "-c", program)

    assert DictionaryRefused.exit_code == code
    assert "holds traces of this machine" in capsys.readouterr().err
    assert not (short_path / "made.zdict").exists()


@pytest.mark.timeout(200)
def test_a_committed_recipe_works(short_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recipe of `v8` makes what is in the package: nothing of this machine, and it pays."""
    if shutil.which("node") is None:
        pytest.skip("no node on this host")
    code = _train(short_path, "--recipe", "v8")
    facts = json.loads(capsys.readouterr().out)

    assert 0 == code
    assert "v8" == facts["name"]
    assert not facts["private"]
    assert facts["gain"] > 1.02
