"""
Files of a host on which nothing interferes with the pager, for tests that change one of them.
"""

from pathlib import Path

__all__ = ["QUIET", "lay_out"]

QUIET = {
    "proc/swaps": "Filename Type Size Used Priority\n",
    "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
    "proc/meminfo": "MemTotal: 8000000 kB\nCommitLimit: 4000000 kB\nCommitted_AS: 500000 kB\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "proc/sys/vm/unprivileged_userfaultfd": "0\n",
    "proc/sys/vm/max_map_count": "100\n",
    "proc/sys/fs/file-nr": "1843\t0\t100000\n",
    "proc/1/comm": "systemd\n",
    "proc/1/maps": "a\nb\nc\n",
    "sys/kernel/mm/ksm/run": "0\n",
    "sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds": "0\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none": "0\n",
    "sys/module/zswap/parameters/enabled": "N\n",
}
"""Path below the root to what it holds."""


def lay_out(root: Path, files: dict[str, str]) -> Path:
    """Write the files below a root, over those that are there; returns the root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
