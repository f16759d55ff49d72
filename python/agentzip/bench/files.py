"""
How many file reads are foreseen: at file level, at offset level, and with both.

A process reads many small files with random names, cold, once in the order of their directory and
once in an order that nobody can know.  A read is a *hit* if all of its pages had been asked for
before it began.  Beside the hit rate stands what the reads took, because the kernel's own readahead
foresees runs within a file as well: the hit rate alone is no gain.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from agentzip.children import Child
from agentzip.errors import InternalError
from agentzip.policy.readahead import Ask
from agentzip.readahead import ReadAhead, best_source

__all__ = ["FilesPlan", "FilesResult", "judge", "print_files", "run_files"]

_READER = Path(__file__).with_name("targets") / "reader.py"
_LEVELS = {
    "none": (False, False),
    "file": (False, True),
    "offset": (True, False),
    "both": (True, True),
}
"""Whether runs within files, and the order of directories, are followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesPlan:
    """What is read, and how often."""

    files: int = 300
    step_bytes: int = 16 << 10
    work_us: int = 200
    """What the reader does between two reads."""
    rounds: int = 3
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesResult:
    """One level in one order, medians over the rounds."""

    order: str
    """`directory`, or `random`."""
    level: str
    source: str
    reads: int
    hit_rate: float
    waste: float
    """Share of the pages asked for that nobody read."""
    read_us: float
    """Mean time of a read."""
    total_s: float
    cpu_s: float
    """Processor time of the foresight."""


def run_files(plan: FilesPlan) -> list[FilesResult]:
    """Measure every level in both orders, the levels in turn within each round."""
    results: dict[tuple[str, str], list[FilesResult]] = {}
    with tempfile.TemporaryDirectory(prefix="agentzip-files-", dir=_disk()) as folder:
        paths = _make_files(Path(folder), plan)
        for number in range(plan.rounds):
            for order in ("directory", "random"):
                chosen = list(paths)
                if order == "random":
                    random.Random(plan.seed + number).shuffle(chosen)  # noqa: S311
                # Whoever comes first finds what is below our kernel, a host's cache, cold as well.
                first = number % len(_LEVELS)
                for level in [*_LEVELS, *_LEVELS][first : first + len(_LEVELS)]:
                    results.setdefault((order, level), []).append(
                        _run_once(plan, chosen, order, level, Path(folder))
                    )
    return [
        _middle(results[order, level]) for order in ("directory", "random") for level in _LEVELS
    ]


def print_files(results: list[FilesResult], console: Any) -> None:
    """The results as a table."""
    from rich.table import Table

    table = Table(title="file reads foreseen")
    for name in ("order", "level", "reads", "hits", "waste", "us a read", "s in all", "CPU s"):
        table.add_column(name, justify="left" if name in {"order", "level"} else "right")
    for result in results:
        table.add_row(
            result.order,
            result.level,
            str(result.reads),
            f"{result.hit_rate:.0%}",
            f"{result.waste:.0%}",
            f"{result.read_us:.0f}",
            f"{result.total_s:.2f}",
            f"{result.cpu_s:.3f}",
        )
    console.print(table)


def _disk() -> str:
    """A folder on a disk: in a memory file system every read is a hit."""
    return "/var/tmp"  # noqa: S108 - a fresh directory of our own is made in it


def _make_files(folder: Path, plan: FilesPlan) -> list[str]:
    """Files of 16 KiB to 1 MiB with random names, in the order of their directory."""
    draw = random.Random(plan.seed)  # noqa: S311
    for _ in range(plan.files):
        size = int(min(max(draw.lognormvariate(11.8, 1.0), 16 << 10), 1 << 20))
        name = f"{draw.getrandbits(64):016x}"
        (folder / name).write_bytes(draw.randbytes(size))
    os.sync()
    return [entry.path for entry in os.scandir(folder)]


def _drop_from_cache(paths: list[str]) -> None:
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


@contextmanager
def _foresight(level: str, pid: int, asks: list[tuple[float, Ask]]) -> Iterator[str]:
    """Foresight at a level for a process; gives the name of the source."""
    offsets, directories = _LEVELS[level]
    if not (offsets or directories):
        yield ""
        return
    source = best_source()
    ahead = ReadAhead(
        source,
        offsets=offsets,
        directories=directories,
        told=lambda ask: asks.append((time.monotonic(), ask)),
    )
    ahead.watch([pid])
    ahead.start()
    try:
        yield source.name
    finally:
        ahead.close()


def _run_once(
    plan: FilesPlan, paths: list[str], order: str, level: str, folder: Path
) -> FilesResult:
    _drop_from_cache(paths)
    asks: list[tuple[float, Ask]] = []
    with tempfile.NamedTemporaryFile("w", dir=folder.parent, suffix=".list") as listing:
        listing.write("\n".join(paths))
        listing.flush()
        process = subprocess.Popen(
            [sys.executable, _READER, listing.name, str(plan.step_bytes), str(plan.work_us / 1e6)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with Child(process):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            with _foresight(level, process.pid, asks) as source:
                # The source has to know the process before it reads.
                time.sleep(0.3 if source else 0)
                cpu, began = time.process_time(), time.monotonic()
                process.stdin.write(b"go\n")
                process.stdin.flush()
                lines = process.stdout.read().decode().splitlines()
                total, cpu = time.monotonic() - began, time.process_time() - cpu
    reads = [tuple(float(word) for word in line.split()) for line in lines]
    if not reads:
        raise InternalError("the reader of bench files read nothing")
    hits, waste = judge(reads, asks)
    return FilesResult(
        order=order,
        level=level,
        source=source,
        reads=len(reads),
        hit_rate=hits / len(reads),
        waste=waste,
        read_us=sum(end - begin for *_, begin, end in reads) / len(reads) * 1e6,
        total_s=total,
        cpu_s=cpu,
    )


def judge(
    reads: Sequence[tuple[float, ...]], asks: Sequence[tuple[float, Ask]]
) -> tuple[int, float]:
    """
    Compare what was read with what had been asked for.

    Args:
        reads: Inode, first page, end page, begin and end of each read, in seconds.
        asks: When the kernel had taken each ask, by the same clock, and the ask.

    Returns:
        Reads all of whose pages had been asked for before they began, and the share of the pages
        asked for that nobody read.
    """
    asked: dict[int, list[tuple[float, int, int]]] = {}
    for at, ask in asks:
        asked.setdefault(ask.file.inode, []).append((at, ask.start, ask.end))
    hits, used = 0, 0
    last: dict[int, int] = {}
    for inode, start, end, began, _ in reads:
        last[int(inode)] = max(last.get(int(inode), 0), int(end))
        covered = {
            page
            for at, first, behind in asked.get(int(inode), [])
            if at <= began
            for page in range(first, behind)
        }
        hits += covered.issuperset(range(int(start), int(end)))
    total = 0
    for inode, ranges in asked.items():
        pages = {page for _, first, behind in ranges for page in range(first, behind)}
        # A file is asked for only up to its end, so what is beyond the last read was not wanted.
        total += len(pages)
        used += sum(page < last.get(inode, 0) for page in pages)
    return hits, 1 - used / total if total else 0.0


def _middle(group: list[FilesResult]) -> FilesResult:
    """Each figure's median over the rounds."""
    values = [asdict(result) for result in group]
    chosen = {
        name: median(value[name] for value in values)
        for name in ("hit_rate", "waste", "read_us", "total_s", "cpu_s")
    }
    return FilesResult(**{**values[0], **chosen})
