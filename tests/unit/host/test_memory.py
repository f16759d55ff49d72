"""Memory sizes from a small /proc of our own."""

import resource
from pathlib import Path

import pytest

from agentzip.errors import NoSuchProcess
from agentzip.host.memory import (
    MemoryUse,
    kernel_memory,
    memory_available,
    memory_total,
    memory_use,
    own_overhead,
    program_memory,
    sum_use,
    unmapped_anonymous,
)

ROLLUP = """\
55d0c0a00000-7ffd2d5fe000 ---p 00000000 00:00 0                          [rollup]
Rss:                 400 kB
Pss:                 300 kB
Pss_Dirty:           200 kB
Pss_Anon:            180 kB
Pss_File:             20 kB
Pss_Shmem:           100 kB
Private_Dirty:       150 kB
VmFlags: rd wr
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with processes 10 and 11."""
    for pid in (10, 11):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "smaps_rollup").write_text(ROLLUP)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   5 kB\nHuge: 1\n")
    return tmp_path


def test_the_memory_of_a_process_is_in_bytes(root: Path) -> None:
    """Kilobytes of the kernel become bytes."""
    expected = MemoryUse(400 * 1024, 300 * 1024, 100 * 1024, 150 * 1024, pss_file=20 * 1024)

    assert expected == memory_use(10, root)


def test_processes_that_ended_count_nothing(root: Path) -> None:
    """A sum over processes survives their exits."""
    found = sum_use([10, 11, 12], root)

    assert (600 * 1024, 40 * 1024) == (found.pss, found.pss_file)


def test_a_missing_process_is_an_error(root: Path) -> None:
    """One process by name must exist."""
    with pytest.raises(NoSuchProcess, match="12"):
        memory_use(12, root)


def test_the_overhead_leaves_the_pool_out(root: Path) -> None:
    """Shared memory is counted by the engine as pool and tables, so not here."""
    assert 400 * 1024 == own_overhead([10, 11], root)


def test_available_memory_is_read(root: Path) -> None:
    """MemAvailable, in bytes; and MemTotal."""
    assert (5 * 1024, 9 * 1024) == (memory_available(root), memory_total(root))


def test_the_kernels_own_memory_and_that_of_programs(root: Path) -> None:
    """Fields that a kernel does not have count nothing."""
    lines = ("AnonPages: 7 kB", "Shmem: 2 kB", "Cached: 100 kB", "PageTables: 3 kB", "Percpu: 4 kB")
    (root / "proc" / "meminfo").write_text("\n".join(lines))

    assert (7 * 1024, 9 * 1024) == (kernel_memory(root), program_memory(root))


def test_anonymous_memory_that_nobody_has_mapped(root: Path) -> None:
    """What is on the lists and neither mapped nor shared."""
    lines = ("Active(anon): 5 kB", "Inactive(anon): 9 kB", "AnonPages: 7 kB", "Shmem: 2 kB")
    (root / "proc" / "meminfo").write_text("\n".join(lines))

    assert 5 * 1024 == unmapped_anonymous(root)


def test_pages_in_per_cpu_lists_are_available(root: Path) -> None:
    """Free pages that MemAvailable leaves out count as well."""
    (root / "proc" / "zoneinfo").write_text("Node 0\n    cpu: 0\n              count: 3\n")

    assert 5 * 1024 + 3 * resource.getpagesize() == memory_available(root)
