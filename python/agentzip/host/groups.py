"""
Control groups of single processes: the daemon's, its keeper's, and a target's that may be frozen.

Who ends a service often ends whatever is in its group, so a keeper that shares the daemon's group
dies with it, and every page that is out is lost.  The daemon therefore puts its keeper into a group
of its own, below the one it is in itself, where the kernel lets it; no group of anybody else is
changed.  That helps against everybody who ends the members of one group.  A service manager that
ends a group with all below it must be told not to: `doctor` says how.
"""

import os
import re
import time
import zlib
from contextlib import suppress
from pathlib import Path

from agentzip.errors import TargetBusy
from agentzip.host.cgroups import Hierarchy, hierarchies
from agentzip.host.kernel_text import lines_of
from agentzip.host.memory import ROOT

__all__ = ["KeeperGroup", "group_of", "is_frozen", "refuse_frozen", "unified_mount"]

_EMPTY_SECONDS = 1.0
"""How long a group may still count a process that has just ended."""


def group_of(pid: int, root: Path = ROOT) -> str | None:
    """Path of a process's group in the unified hierarchy; None if that cannot be seen."""
    with suppress(OSError):
        for line in lines_of(root / "proc" / str(pid) / "cgroup"):
            if line.startswith("0::"):
                return line[3:]
    return None


def is_frozen(pid: int, root: Path = ROOT) -> bool:
    """
    Whether a process cannot run because its group, or one above, is frozen.

    What borrows a thread of such a process waits until somebody thaws it.
    """
    with suppress(OSError):
        lines = lines_of(root / "proc" / str(pid) / "cgroup")
        groups = [line.split(":", 2) for line in lines]
        return any(
            _says_frozen(hierarchy, *group) for hierarchy in hierarchies(root) for group in groups
        )
    return False


def _says_frozen(hierarchy: Hierarchy, number: str, controllers: str, path: str) -> bool:
    """Whether one line of a process's groups names a frozen one in this hierarchy."""
    folder = Path(hierarchy.mount) / path.lstrip("/")
    with suppress(OSError):
        if hierarchy.version == 2 and number == "0":
            return "frozen 1" in (folder / "cgroup.events").read_text()
        if "freezer" in hierarchy.controllers & set(controllers.split(",")):
            # On its way there counts as well: FREEZING.
            return (folder / "freezer.state").read_text().startswith("FR")
    return False


def refuse_frozen(pid: int, root: Path = ROOT) -> None:
    """
    Refuse what needs a thread of a process that cannot run.

    Raises:
        TargetBusy: its control group is frozen.
    """
    if is_frozen(pid, root):
        raise TargetBusy(f"process {pid} is frozen: none of its threads can be borrowed")


def unified_mount(root: Path) -> Path | None:
    """Where the unified hierarchy is mounted with its own root at the top."""
    with suppress(OSError):
        for line in lines_of(root / "proc" / "self" / "mountinfo"):
            fields, _, tail = line.partition(" - ")
            if tail.startswith("cgroup2 "):
                source, place = fields.split(" ")[3:5]
                place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place)
                return root / place.lstrip("/") if source == "/" else None
    return None


class KeeperGroup:
    """
    The group of one run directory's keeper.

    Args:
        run_dir: Names the group, so that the next daemon on it finds the same one.
        root: Where `/proc` and the mount of the hierarchy are looked for.
    """

    def __init__(self, run_dir: Path, root: Path = ROOT) -> None:
        self._folder: Path | None = None
        self._pid = 0
        own, mount = group_of(os.getpid(), root), unified_mount(root)
        # Nobody can end the root group, and what we cannot see we leave alone.
        if mount is not None and own and own != "/" and ".." not in own:
            number = zlib.crc32(str(run_dir.resolve()).encode())
            self._folder = mount / own.lstrip("/") / f"agentzip-keeper-{number:08x}"

    def take(self, pid: int) -> bool:
        """Put the keeper in; returns whether it is in there now."""
        if self._folder is None or pid <= 0:
            return False
        if pid == self._pid:
            return True
        # Not ours to change, or without room for one more: it stays where it is, as before.
        with suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            (self._folder / "cgroup.procs").write_text(str(pid))
            self._pid = pid
        return pid == self._pid

    def remove(self) -> None:
        """Remove the group when the keeper has ended; one that still holds it stays."""
        deadline = time.monotonic() + _EMPTY_SECONDS
        while self._folder is not None and self._folder.exists():
            with suppress(OSError):
                self._folder.rmdir()
                return
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
