"""
A small host of our own: /proc and control groups as plain directories.

The kernel's own behaviour (frozen groups, ENODEV after a removal) is in tests/kernel.
"""

import shutil
from pathlib import Path

__all__ = ["FakeHost"]


class FakeHost:
    """
    Processes and control groups below one directory.

    Args:
        root: Where.
        v1: Names of v1 hierarchies to have.
        v2: Where the unified hierarchy is mounted, below /sys/fs/cgroup; None for none.
    """

    def __init__(self, root: Path, v1: tuple[str, ...] = (), v2: str | None = "") -> None:
        self.root = root
        self._mounts = root / "sys" / "fs" / "cgroup"
        self._mounts.mkdir(parents=True)
        self.started = 1000
        lines = []
        self.unified = self._mounts / (v2 or "")
        if v2 is not None:
            self.unified.mkdir(exist_ok=True)
            lines.append(f"41 31 0:38 / /sys/fs/cgroup/{v2} rw - cgroup2 cgroup2 rw".rstrip())
        for name in v1:
            (self._mounts / name).mkdir()
            lines.append(f"35 31 0:32 / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}")
        proc = root / "proc"
        (proc / "self").mkdir(parents=True)
        (proc / "self" / "mountinfo").write_text("\n".join(lines) + "\n")
        (proc / "sys" / "kernel" / "random").mkdir(parents=True)
        self.boot("one")

    def boot(self, name: str) -> None:
        """Say which boot this is."""
        (self.root / "proc" / "sys" / "kernel" / "random" / "boot_id").write_text(name + "\n")

    def start(self, pid: int, command: str = "agent", parent: int = 1, flags: int = 0) -> int:
        """Start a process, in place of one that had the pid; returns its start time."""
        self.end(pid)
        self.started += 1
        folder = self.root / "proc" / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True)
        (folder / "task" / str(pid) / "children").write_text("")
        rest = ["0"] * 40
        rest[0], rest[1], rest[6], rest[19] = "S", str(parent), str(flags), str(self.started)
        (folder / "stat").write_text(f"{pid} (x) {' '.join(rest)}\n")
        (folder / "cmdline").write_bytes(command.encode() + b"\0")
        above = self.root / "proc" / str(parent) / "task" / str(parent) / "children"
        if above.exists():
            above.write_text(above.read_text() + f"{pid} ")
        return self.started

    def end(self, pid: int) -> None:
        """End a process, if there is one."""
        shutil.rmtree(self.root / "proc" / str(pid), ignore_errors=True)

    def group(
        self, path: str, *pids: int, frozen: bool = False, hierarchy: str | None = None
    ) -> Path:
        """Make a group, or say what is in it now."""
        tree = self.unified if hierarchy is None else self._mounts / hierarchy
        folder = tree / path
        folder.mkdir(parents=True, exist_ok=True)
        above = folder
        while above != tree:
            if not (above / "cgroup.procs").exists():
                (above / "cgroup.procs").write_text("")
            above = above.parent
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        if hierarchy is None:
            (folder / "cgroup.events").write_text(f"populated 1\nfrozen {int(frozen)}\n")
        if hierarchy == "freezer":
            (folder / "freezer.state").write_text("FROZEN\n" if frozen else "THAWED\n")
        return folder

    def remove(self, path: str, hierarchy: str | None = None) -> None:
        """Remove a group with all below it."""
        shutil.rmtree((self.unified if hierarchy is None else self._mounts / hierarchy) / path)
