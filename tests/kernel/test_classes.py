"""
What a process holds is recognised, in memory and when it is out.
"""

import mmap
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentzip import model, pager
from agentzip.selftest.stage import Stage

pytestmark = pytest.mark.timeout(90)

_NEEDS_PAGER = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/userfaultfd").exists(),
    reason="needs root and /dev/userfaultfd",
)

_PYTHON = """
import array, sys, threading
objects = [{"number": number, "name": f"item {number}"} for number in range(60_000)]
numbers = array.array("d", [0.0]) * 2_000_000
for index in range(len(numbers)):
    numbers[index] = index / 3
thread = threading.Thread(target=threading.Event().wait, daemon=True)
thread.start()
print("ready", flush=True)
sys.stdin.readline()
print(sum(item["number"] for item in objects), sum(numbers), flush=True)
"""

_NODE = """
const items = [];
for (let i = 0; i < 150000; i++) items.push({id: i, name: 'item ' + i, list: [i, i + 1]});
const numbers = new Float64Array(2000000).map((_, i) => i / 3);
console.log('ready');
process.stdin.once('data', () => {
  console.log(items.reduce((sum, item) => sum + item.list[1], 0), numbers.at(-1));
  process.exit(0);
});
"""


class _Program:
    """A program that fills its memory and waits for a line."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert "ready\n" == self.process.stdout.readline()
        self.pid = self.process.pid

    def finish(self) -> str:
        """Let it read its memory; returns what it found."""
        answer, _ = self.process.communicate("\n", timeout=40)
        assert 0 == self.process.returncode
        return answer.strip()

    def end(self) -> None:
        """End it, whatever it does."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.communicate()


@pytest.fixture(name="started")
def _started() -> Iterator[list[_Program]]:
    programs: list[_Program] = []
    yield programs
    for program in programs:
        program.end()


def _resident(regions: list[model.Region]) -> Counter[str]:
    found: Counter[str] = Counter()
    for region in regions:
        found[region.class_name] += region.resident_bytes
    return found


def _out(regions: list[model.Region]) -> Counter[str]:
    found: Counter[str] = Counter()
    for region in regions:
        found[region.class_name] += region.out_bytes
    return found


def _check(program: _Program, expected: dict[str, int]) -> None:
    """The classes that must hold so many bytes, seen in every way; little may be unknown."""
    with Stage() as stage:
        before = stage.engine.regions(program.pid)
        stage.engine.attach(program.pid)
        report = stage.engine.page_out(program.pid)
        after = stage.engine.regions(program.pid)
        census: Counter[str] = Counter()
        for row in stage.engine.census(program.pid):
            census[row.class_name] += row.pages * mmap.PAGESIZE
        stage.engine.detach(program.pid)

        assert report.pages_moved * mmap.PAGESIZE > sum(expected.values())
        for way in (_resident(before), _out(after), census):
            for name, least in expected.items():
                assert least <= way[name], (name, way)
            assert way["other"] * 10 < way.total(), way
        # What is out was classed as it was in memory, from its pages in the pool.
        assert _out(after).keys() - {"other"} <= _resident(before).keys()
        assert census.total() == sum(region.out_bytes for region in after)


@_NEEDS_PAGER
def test_a_python_process(started: list[_Program]) -> None:
    """Small objects, an array of numbers, stacks, libraries."""
    started.append(_Program(sys.executable, "-c", _PYTHON))

    _check(started[0], {"interpreter heap": 8 << 20, "array": 14 << 20, "stack": 4096})

    objects, numbers = started[0].finish().split()
    assert 60_000 * 59_999 // 2 == int(objects)
    assert float(numbers) > 0


@_NEEDS_PAGER
def test_a_node_process(started: list[_Program]) -> None:
    """Objects in the heap of V8, a typed array beside it."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this host")
    started.append(_Program(node, "-e", _NODE))

    _check(started[0], {"v8 heap": 16 << 20, "array": 14 << 20})

    assert 150_000 * 150_001 // 2 == int(started[0].finish().split()[0])


def test_files_are_left_and_say_why(started: list[_Program], tmp_path: Path) -> None:
    """Mapped files: their class, and a reason that names the skip list for types on it."""
    names = ("a.jpg", "b.png", "c.zip", "d.mp4", "e.h5", "f.safetensors", "g.txt")
    for name in names:
        (tmp_path / name).write_bytes(os.urandom(8192))
    code = (
        "import mmap, sys\n"
        "files = [open(name, 'rb') for name in sys.argv[1:]]\n"
        "maps = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files]\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    paths = [str(tmp_path / name) for name in names]
    started.append(_Program(sys.executable, "-c", code, *paths))

    regions = {region.name: region for region in pager.regions(started[0].pid)}

    for path in paths:
        region = regions[path]
        assert ("file cache", False) == (region.class_name, region.movable)
        assert path.endswith(".txt") != ("skip list" in region.reason), region
