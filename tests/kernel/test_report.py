"""
`agentzip bench report` on real sandboxes: a tiny preset from the commands to the two files.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentzip.bench.report.kept import load
from agentzip.bench.report.making import write
from agentzip.bench.report.presets import Preset, Step
from agentzip.bench.report.running import run_preset
from agentzip.host import processes
from agentzip.host.groups import unified_mount
from agentzip.selftest.conditions import wait_until
from agentzip.units import format_bytes
from agentzip.workloads.crew import why_not

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(180)]

_SMALL = "--workload D --sandboxes 2 --turns 2 --think 500ms --size 90MiB"

_TINY = Preset(
    "quick",
    "as small as it can be",
    (
        Step("codecs", "encode", "encode --quick"),
        Step("ablation", "ablation", f"fanout {_SMALL} --mode none,encode"),
    ),
)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for what the benches make; its path is short enough for the engine's socket."""
    if reason := why_not("D") or why_not("A"):
        pytest.skip(reason)
    made = Path(tempfile.mkdtemp(prefix="az-"))
    monkeypatch.setenv("TMPDIR", str(made))
    yield made
    shutil.rmtree(made)


def _left(folder: Path, bench: int) -> list[str]:
    """Files, processes that know the folder, and control groups of a bench."""
    found = [str(path) for path in folder.iterdir()]
    if group := _group(bench):
        found.append(str(group))
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(ProcessLookupError):
                command = processes.process(int(process.name)).command
                found += [command] if str(folder) in command else []
    return found


def _group(bench: int) -> Path | None:
    mount = unified_mount(Path("/"))
    assert mount is not None
    group = mount / f"agentzip-bench-{bench}"
    return group if group.exists() else None


def test_a_tiny_preset_becomes_two_files(folder: Path, tmp_path: Path) -> None:
    """They hold the figures of the commands, and name no address of a network."""
    out = tmp_path / "out"
    kept = run_preset(_TINY, out)
    written = write(kept, out)
    page, text = written.html.read_text(), written.markdown.read_text()

    assert ["", ""] == [one.problem for one in kept.ran]
    assert kept == load(out)
    ablation = json.loads((out / "results" / "ablation.json").read_text())
    for one in ablation["modes"]:
        assert 4 == len(one["turns_s"]) == len(one["wakes_ms"])
        figures = (format_bytes(one["peak_bytes"]), f"{one['wake_ms']['p99']:.0f} ms")
        assert all(figure in page and figure in text for figure in figures)
    encode = json.loads((out / "results" / "encode.json").read_text())
    for one in encode["encodings"]:
        assert f"| {one['page_ratio']:.2f} |" in text
    assert "agentzip bench fanout --workload D --sandboxes 2 --turns 2" in page
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
    assert {"plots/memory-ablation.svg", "plots/latency-ablation.svg"} <= set(pictures)
    assert all((out / picture).stat().st_size > 1000 for picture in pictures)
    assert len(pictures) == page.count('<img alt="')
    for form in (page, text):
        assert [] == re.findall(r"(?i)\b(?:https?|ftp|wss?)://|src=\"(?!data:)|@import", form)
    assert [] == list(folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_report_ends_nothing_is_left(
    folder: Path, tmp_path: Path, end: signal.Signals
) -> None:
    """In the middle of a bench; a killed report takes the bench with it."""
    # A group of its own: what Ctrl-C does on a terminal must not be needed.
    report = subprocess.Popen(
        [
            *(sys.executable, "-m", "agentzip", "bench", "report", "--preset", "quick"),
            *("--only", "workloads", "--out", str(tmp_path / "out")),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert wait_until(lambda: bool(_benches(report.pid)), 60)
        (bench,) = _benches(report.pid)
        assert wait_until(lambda: bool(list(folder.glob("*/data-*"))), 60)
        report.send_signal(end)
        report.wait(120)
        wanted = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
        assert wanted[end] == report.returncode
    finally:
        report.kill()
        report.wait()

    assert wait_until(lambda: not _left(folder, bench), 60), _left(folder, bench)
    # One that only waits for init to hear of its end has no program any more.
    assert wait_until(lambda: not os.path.exists(f"/proc/{bench}/exe"), 10)


def _benches(pid: int) -> list[int]:
    """Children of a process that have made a control group; others (git) have not."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if _group(int(child))]
