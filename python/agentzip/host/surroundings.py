"""
What else on this host deals with memory: the kernel's own means, its limits, other daemons.

None of it stops the pager, so nothing here is a `fail`.  Each finding that is not `ok` says why it
matters and the exact change that helps.  No change ever loosens who may do what on the host.
"""

import os
from contextlib import suppress
from pathlib import Path

from agentzip.host.cgroups import Cgroups
from agentzip.host.finding import Finding, read, switched_on
from agentzip.units import format_bytes

__all__ = ["look_around"]

_MAPS_SHARE = 0.8
"""Share of max_map_count from which a process is too near: our helper areas and the splitting of
regions by the program itself need room."""

_COMMIT_BYTES_MIN = 2**30
"""Memory that must be left to be promised where the kernel refuses to promise more than it has."""

_OPEN_FILES_SHARE = 0.8
"""Share of the host's open files from which new targets may find none left."""

_KILLERS = {
    "earlyoom": "start earlyoom with --avoid '^agentzip'",
    "nohang": "put `@BADNESS_ADJ_RE_NAME -1000 /// ^agentzip$` into nohang.conf",
    "oomd": "put the daemon's group under an oomd ruleset that never kills it",
    # The kernel keeps 15 characters of a name.
    "systemd-oomd": "put ManagedOOMPreference=omit into the unit of the daemon",
}
"""Programs that end others when memory is short, and how to keep the daemon out of their reach."""


def look_around(root: Path) -> list[Finding]:
    """
    Look at everything.

    Args:
        root: Where `/proc` and `/sys` are looked for.
    """
    commands = _commands(root)
    return [
        _swap(root),
        _huge_pages(root),
        _khugepaged(root),
        _control_groups(root),
        _pressure(root),
        _same_page_merging(root),
        _damon(root),
        _overcommit(root),
        _userfaultfd_for_all(root),
        _mappings(root, list(commands)),
        _open_files(root),
        _killers(commands),
    ]


def _swap(root: Path) -> Finding:
    name = "swap below the pool"
    areas = [line.split()[0] for line in read(root, "proc/swaps").splitlines()[1:] if line]
    zswap = switched_on(root, "sys/module/zswap/parameters/enabled")
    if not areas:
        state = "no swap is active" + (" (zswap is on, without effect)" if zswap else "")
        return Finding(name, "ok", state)
    compressed = zswap or any("zram" in area for area in areas)
    how = "compressed a second time" if compressed else "written to disk in clear"
    if Cgroups(root).mode == "v2":
        fix = "put the daemon in a control group with memory.swap.max=0"
    else:
        # Without v2 a group cannot be kept from swap altogether, only from using it willingly.
        fix = (
            "give the daemon CAP_IPC_LOCK, so that it can lock its memory, and put it in a memory "
            "group with memory.swappiness=0; memory.swap.max=0 needs control groups v2"
        )
    return Finding(
        name,
        "warn",
        f"active: {', '.join(areas)}{' with zswap' if zswap else ''}; "
        f"pages of the pool may be {how}",
        f"{fix}; leave the host's swap as it is",
        "a page that is compressed twice costs twice and gains nothing, and each fault on it waits "
        "for both",
    )


def _huge_pages(root: Path) -> Finding:
    name = "transparent huge pages"
    mode = _chosen(read(root, "sys/kernel/mm/transparent_hugepage/enabled"))
    if mode != "always":
        return Finding(name, "ok", mode or "not part of this kernel")
    return Finding(
        name,
        "note",
        "always: huge pages are split when they leave and do not come back as huge pages",
        "none needed; programs that must keep theirs can be kept from being attached",
        "a sparse heap takes 2 MiB for each page in use until it first leaves, so the first page "
        "out gains more than later ones, and the program may run slower after it",
    )


def _khugepaged(root: Path) -> Finding:
    folder = "sys/kernel/mm/transparent_hugepage"
    if _chosen(read(root, f"{folder}/enabled")) in {"", "never"}:
        return Finding("khugepaged", "ok", "does nothing: there are no transparent huge pages")
    empty = read(root, f"{folder}/khugepaged/max_ptes_none")
    if empty in {"", "0"}:
        return Finding("khugepaged", "ok", f"max_ptes_none {empty or 'not told'}")
    return Finding(
        "khugepaged",
        "note",
        f"max_ptes_none {empty}: it fills up to {empty} of 512 missing pages to make a huge one",
        f"write 0 to /{folder}/khugepaged/max_ptes_none where sandboxes are sparse",
        "it lets the resident memory of sandboxes grow before they are first paged out; regions "
        "that the pager serves are left alone",
    )


def _control_groups(root: Path) -> Finding:
    name, mode = "control groups", Cgroups(root).mode
    if mode == "v2":
        return Finding(name, "ok", "v2")
    if mode == "hybrid":
        return Finding(
            name,
            "note",
            "hybrid: the controllers are in the v1 hierarchies",
            "start the host with systemd.unified_cgroup_hierarchy=1, if nothing on it needs v1",
            "sandboxes are found in both hierarchies and v1's freezer is seen, but a group has no "
            "memory.swap.max and no memory.reclaim",
        )
    if mode == "v1":
        return Finding(
            name,
            "warn",
            "v1 only",
            "start the host with systemd.unified_cgroup_hierarchy=1",
            "the keeper gets no group of its own, so whoever ends the daemon's group ends both; "
            "a group has no pressure figures, no memory.swap.max and no memory.reclaim",
        )
    return Finding(
        name,
        "warn",
        "none is mounted as a whole",
        "mount the host's /sys/fs/cgroup here, read-only",
        "patterns of scopes find no sandbox; pids and `agentzip run` work",
    )


def _pressure(root: Path) -> Finding:
    if read(root, "proc/pressure/memory"):
        return Finding("pressure (PSI)", "ok", "memory pressure is told")
    return Finding(
        "pressure (PSI)",
        "warn",
        "there is no /proc/pressure/memory that can be read",
        "start the host with psi=1; the kernel needs CONFIG_PSI",
        "the planner then knows how full memory is, and not whether anybody waits for it",
    )


def _same_page_merging(root: Path) -> Finding:
    name = "same-page merging (KSM)"
    if read(root, "sys/kernel/mm/ksm/run") != "1":
        return Finding(name, "ok", "not running")
    merged = read(root, "sys/kernel/mm/ksm/pages_sharing") or "0"
    return Finding(
        name,
        "note",
        f"running; {merged} pages are merged",
        "do not let sandboxes ask for it (MADV_MERGEABLE, MemoryKSM=); the pool stores equal pages "
        "once anyway",
        "a merged page must become several again before it can leave, which takes memory just when "
        "there is little; ksmd takes processor time for what the pool does anyway",
    )


def _damon(root: Path) -> Finding:
    if switched_on(root, "sys/module/damon_reclaim/parameters/enabled"):
        return Finding(
            "DAMON",
            "warn",
            "damon_reclaim is on: the kernel pages out what it takes for cold",
            "write N to /sys/module/damon_reclaim/parameters/enabled",
            "it takes the same pages as the planner and puts them into the host's swap",
        )
    if (root / "sys/kernel/mm/damon/admin").is_dir():
        return Finding("DAMON", "ok", "present, nothing is reclaimed by it")
    return Finding("DAMON", "ok", "not part of this kernel; the age of pages is told by refaults")


def _overcommit(root: Path) -> Finding:
    name, mode = "overcommit", read(root, "proc/sys/vm/overcommit_memory")
    if mode != "2":
        return Finding(name, "ok", mode or "not told")
    left = _meminfo(root, "CommitLimit") - _meminfo(root, "Committed_AS")
    return Finding(
        name,
        "note" if left >= _COMMIT_BYTES_MIN else "warn",
        f"2 (strict): {format_bytes(left)} can still be promised",
        f"keep {format_bytes(_COMMIT_BYTES_MIN)} free: raise vm.overcommit_ratio, or start less",
        "memory that is out stays promised to its program, so strict accounting lets a host take "
        "no more sandboxes than without us; helper areas in targets need some of it, too",
    )


def _userfaultfd_for_all(root: Path) -> Finding:
    name = "userfaultfd for everybody"
    if read(root, "proc/sys/vm/unprivileged_userfaultfd") != "1":
        return Finding(name, "ok", "off; the pager does not need it")
    return Finding(
        name,
        "note",
        "on: every program may hold faults of the kernel itself",
        "write 0 to /proc/sys/vm/unprivileged_userfaultfd",
        "the pager opens /dev/userfaultfd instead, and inside a sandbox it is an aid for exploits",
    )


def _mappings(root: Path, pids: list[int]) -> Finding:
    name = "mappings of a process"
    limit = int(read(root, "proc/sys/vm/max_map_count") or 65530)
    pid, most = max(
        ((pid, read(root, f"proc/{pid}/maps").count("\n") + 1) for pid in pids),
        key=lambda found: found[1],
        default=(0, 0),
    )
    if most < limit * _MAPS_SHARE:
        return Finding(name, "ok", f"at most {most} of {limit} (process {pid})")
    return Finding(
        name,
        "warn",
        f"process {pid} has {most} of the {limit} that are allowed",
        f"write {limit * 4} to /proc/sys/vm/max_map_count, and vm.max_map_count={limit * 4} into a "
        "file in /etc/sysctl.d",
        "at the limit the program's own mmap fails, and it cannot be attached",
    )


def _open_files(root: Path) -> Finding:
    name, words = "open files of the host", read(root, "proc/sys/fs/file-nr").split()
    if len(words) != 3:
        return Finding(name, "ok", "not told")
    taken, most = int(words[0]), int(words[2])
    if taken < most * _OPEN_FILES_SHARE:
        return Finding(name, "ok", f"{taken} of {most}")
    return Finding(
        name,
        "warn",
        f"{taken} of {most} are taken",
        f"write {most * 2} to /proc/sys/fs/file-max, or find who keeps so many",
        "a target takes a handful of descriptors; without them it is refused",
    )


def _killers(commands: dict[int, str]) -> Finding:
    name = "killers of memory hogs"
    found = {
        killer: pid
        for pid, command in commands.items()
        for killer in _KILLERS
        if command == killer[:15]
    }
    if not found:
        return Finding(name, "ok", "none is running")
    told = ", ".join(f"{killer} (process {pid})" for killer, pid in sorted(found.items()))
    return Finding(
        name,
        "warn",
        f"running: {told}",
        "; ".join(_KILLERS[killer] for killer in sorted(found)),
        "the daemon and its keeper hold the memory of all sandboxes and look like one hog; ended "
        "together they take every page that is out with them",
    )


def _commands(root: Path) -> dict[int, str]:
    """Name of every process, by pid."""
    found = {}
    with suppress(OSError):
        for name in os.listdir(root / "proc"):
            if name.isdigit():
                found[int(name)] = read(root, f"proc/{name}/comm")
    return found


def _chosen(text: str) -> str:
    """The word in brackets of a list of choices."""
    return text.partition("[")[2].partition("]")[0]


def _meminfo(root: Path, name: str) -> int:
    for line in read(root, "proc/meminfo").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
