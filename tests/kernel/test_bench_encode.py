"""
`agentzip bench encode` on real processes: small, but the whole path.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentzip.bench.encode import EncodePlan, kernel_ways, run_encode, to_json
from agentzip.host import processes
from agentzip.selftest.conditions import wait_until

pytestmark = pytest.mark.timeout(110)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of its own; not pytest's, whose paths are too long for the engine's socket."""
    made = Path(tempfile.mkdtemp(prefix="az-"))
    yield made
    shutil.rmtree(made)


def _left(folder: Path) -> list[str]:
    """Files in the folder, and processes that were started with something in it."""
    found = [str(path) for path in folder.iterdir()]
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(ProcessLookupError):
                command = processes.process(int(process.name)).command
                found += [command] if str(folder) in command else []
    return found


def test_a_quick_run_measures_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two encodings on two sandboxes: figures that can be, no wrong result, nothing left."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    result = run_encode(EncodePlan.quick())
    found = json.loads(json.dumps(to_json(result)))

    assert 0 == found["results_wrong"]
    assert ["lz4", "zstd-3"] == [one["name"] for one in found["encodings"]]
    lz4, zstd = found["encodings"]
    assert 1.5 < lz4["page_ratio"] < zstd["page_ratio"] < 10
    for one in found["encodings"]:
        assert one["pages_stored"] > 1000
        assert one["encode_us"]["p50"] > 0
        assert one["decode_us"]["count"] > 0
        assert 0 < one["ratio_pss"] < one["ratio"] < one["page_ratio"]
        classes = found["by_class"][one["name"]]
        stored = one["pages_stored"] + one["pages_same_filled"]
        assert stored == sum(group["pages"] for group in classes.values())
    assert [] == _left(folder)


@pytest.mark.slow
def test_the_pipeline_beats_the_plain_encoder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dictionary, then deltas against a peer: each step stores fewer bytes."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    names = ("zstd-3", "warm", "cold-peer")
    plan = EncodePlan(("json",), names, sandboxes=2, size=0.1, steps=2)

    result = run_encode(plan)

    ratios = [one.page_ratio for one in result.workloads[0].encodings]
    assert 0 == result.results_wrong
    assert ratios == sorted(ratios)
    assert len(names) == len(set(ratios))


@pytest.mark.parametrize("kind", ["python", "node"])
def test_other_workloads_come_home_as_they_were(kind: str) -> None:
    """Their digests are the same after a page out, faults, and a page in."""
    plan = EncodePlan((kind,), ("zstd-3",), sandboxes=1, size=0.1, steps=2)
    result = run_encode(plan)
    if reason := result.skipped.get(kind):
        pytest.skip(reason)

    assert 0 == result.results_wrong
    assert result.workloads[0].encodings[0].page_ratio > 1.5


def test_ksm_is_measured_where_the_kernel_has_it() -> None:
    """On the same processes; it keeps books of their pages, and nothing stays merged."""
    if reason := kernel_ways.ksm_why_not():
        pytest.skip(reason)
    result = run_encode(EncodePlan(("json",), ("ksm",), sandboxes=2, size=0.1, steps=2))

    assert {} == result.workloads[0].skipped
    assert 0 == result.results_wrong
    assert result.workloads[0].encodings[0].page_ratio >= 1.0
    assert "" == kernel_ways.ksm_why_not()


def test_an_end_by_signal_leaves_nothing(folder: Path) -> None:
    """SIGTERM in the middle of a run ends its sandboxes and removes its files."""
    bench = subprocess.Popen(
        [
            *(sys.executable, "-m", "agentzip", "bench", "encode", "--workload", "json"),
            *("--sandboxes", "2", "--size", "0.1", "--encodings", "zstd-3,zstd-9,zstd-19"),
        ],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        # An engine's run directory: the sandboxes are up and pages are leaving.
        assert wait_until(lambda: bool(list(folder.glob("*/run-zstd-*"))), 60)
        bench.terminate()
        assert 143 == bench.wait(60)
    finally:
        bench.kill()
        bench.wait()

    assert [] == _left(folder)
