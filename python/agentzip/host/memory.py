"""
How much memory a process, a set of processes, and the host have.

Sizes come from `smaps_rollup` (one pass in the kernel) and `meminfo`; everything is in bytes.
Every function takes a root path, so that tests can lay out a small `/proc` of their own.
"""

import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agentzip.errors import NoSuchProcess, NotPermitted

__all__ = [
    "ROOT",
    "MemoryUse",
    "kernel_memory",
    "memory_available",
    "memory_total",
    "memory_use",
    "own_overhead",
    "program_memory",
    "sum_use",
    "unmapped_anonymous",
]

ROOT = Path("/")
"""Where `/proc` is looked for unless a caller says otherwise."""

_KERNEL_FIELDS = ("PageTables", "SecPageTables", "SUnreclaim", "KernelStack", "Percpu")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of one process or of several."""

    rss: int
    pss: int
    """Proportional set size: a page shared by n processes counts 1/n."""
    pss_shmem: int
    """The part of `pss` in memfds, tmpfs and shared anonymous memory."""
    private_dirty: int
    pss_file: int = 0
    """The part of `pss` in files of a disk, which MemAvailable does not count as used."""

    def __add__(self, other: "MemoryUse") -> "MemoryUse":
        return MemoryUse(
            self.rss + other.rss,
            self.pss + other.pss,
            self.pss_shmem + other.pss_shmem,
            self.private_dirty + other.private_dirty,
            self.pss_file + other.pss_file,
        )


def memory_use(pid: int, root: Path = ROOT) -> MemoryUse:
    """
    Read the memory of one process.

    Raises:
        NoSuchProcess: there is no such process, or it ended while being read.
        NotPermitted: the kernel does not let us look.
    """
    path = root / "proc" / str(pid) / "smaps_rollup"
    try:
        text = path.read_text()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NoSuchProcess(f"no such process: {pid}") from error
    except PermissionError as error:
        raise NotPermitted(f"cannot read the memory map of process {pid}") from error
    sizes = _kilobyte_fields(text)
    return MemoryUse(
        rss=sizes.get("Rss", 0),
        pss=sizes.get("Pss", 0),
        pss_shmem=sizes.get("Pss_Shmem", 0),
        private_dirty=sizes.get("Private_Dirty", 0),
        pss_file=sizes.get("Pss_File", 0),
    )


def sum_use(pids: Iterable[int], root: Path = ROOT) -> MemoryUse:
    """Memory of several processes together; those that ended meanwhile count nothing."""
    total = MemoryUse(0, 0, 0, 0)
    for pid in pids:
        try:
            total += memory_use(pid, root)
        except NoSuchProcess:
            continue
    return total


def memory_available(root: Path = ROOT) -> int:
    """
    What new programs can take without swapping, in bytes.

    MemAvailable, and the pages in the kernel's per-CPU free lists: they are free, but MemAvailable
    leaves them out, and after a large release they hold more than 100 MiB for a while.
    """
    sizes = _kilobyte_fields((root / "proc" / "meminfo").read_text())
    listed = 0
    try:
        zones = (root / "proc" / "zoneinfo").read_text()
    except OSError:
        zones = ""
    for line in zones.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "count:" and words[1].isdigit():
            listed += int(words[1]) * resource.getpagesize()
    return sizes["MemAvailable"] + listed


def kernel_memory(root: Path = ROOT) -> int:
    """
    What the kernel holds for itself, in bytes: page tables, slabs, stacks, per-CPU areas.

    No PSS has any of it, MemAvailable counts all of it as used.
    """
    sizes = _kilobyte_fields((root / "proc" / "meminfo").read_text())
    return sum(sizes.get(name, 0) for name in _KERNEL_FIELDS)


def program_memory(root: Path = ROOT) -> int:
    """
    What all programs of the host hold that is in no file of a disk, in bytes.

    Anonymous memory, and files in memory: the pool is one.
    """
    sizes = _kilobyte_fields((root / "proc" / "meminfo").read_text())
    return sizes["AnonPages"] + sizes["Shmem"]


def unmapped_anonymous(root: Path = ROOT) -> int:
    """
    Anonymous memory that no process has mapped, in bytes: pages read from swap before anybody
    touches them, and pages whose way out has not ended.

    What the kernel's lists of anonymous pages hold beyond AnonPages and Shmem (proc_meminfo(5)).
    Unevictable pages are on other lists and pages in batches on none, so it is some MiB off; only
    the growth says something.
    """
    sizes = _kilobyte_fields((root / "proc" / "meminfo").read_text())
    listed = sizes["Active(anon)"] + sizes["Inactive(anon)"]
    return listed - sizes["AnonPages"] - sizes["Shmem"]


def memory_total(root: Path = ROOT) -> int:
    """Memory of the host, in bytes."""
    return _kilobyte_fields((root / "proc" / "meminfo").read_text())["MemTotal"]


def own_overhead(pids: Iterable[int], root: Path = ROOT) -> int:
    """
    Memory that daemon and keeper take for themselves.

    Pool and tables live in memfds that both have mapped, and the engine reports their size
    itself, so the shared-memory part is left out here or it would count twice.
    """
    use = sum_use(pids, root)
    return use.pss - use.pss_shmem


def _kilobyte_fields(text: str) -> dict[str, int]:
    """Fields of the form `Name:   123 kB`, in bytes; other lines are passed over."""
    sizes = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0].endswith(":") and words[2] == "kB":
            sizes[words[0][:-1]] = int(words[1]) * 1024
    return sizes
