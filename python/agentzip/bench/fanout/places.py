"""
The control groups of a run, in the unified hierarchy.

    agentzip-bench-PID/
        agent-sandbox-0000.slice    one for each sandbox, made and removed with it
        engine                      the engine of the bench, and its keeper
        daemon                      the daemon; its keeper is in a group below

Only groups of such a name are made or removed, and one of a bench that still lives is left alone.
"""

import contextlib
import os
import re
import time
from pathlib import Path

from agentzip.errors import NotPermitted, Unsupported
from agentzip.host.groups import unified_mount
from agentzip.host.memory import ROOT

__all__ = ["Places", "members", "remove_stale", "remove_tree"]

_NAME = "agentzip-bench-{pid}"
_STALE = re.compile(r"agentzip-bench-(\d+)")


class Places:
    """
    The groups of one bench.

    Raises:
        Unsupported: the host has no unified hierarchy.
        NotPermitted: the kernel lets us make no group.
    """

    def __init__(self, root: Path = ROOT) -> None:
        mount = unified_mount(root)
        if mount is None:
            raise Unsupported(
                "the bench puts each sandbox into a control group of its own: no cgroup2 mount",
                "mount -t cgroup2 none /sys/fs/cgroup/unified",
            )
        self.top = mount / _NAME.format(pid=os.getpid())
        self.engine, self.daemon = self.top / "engine", self.top / "daemon"
        try:
            remove_stale(mount)
            for group in (self.top, self.engine, self.daemon):
                group.mkdir(exist_ok=True)
        except OSError as error:
            raise NotPermitted(
                f"cannot make a control group: {error}", "run as root, outside of containers"
            ) from error

    @property
    def pattern(self) -> str:
        """What selects the sandboxes in a configuration, relative to the hierarchy's root."""
        return f"{self.top.name}/agent-sandbox-*.slice"

    def sandbox(self, instance: int) -> Path:
        """The group of a sandbox, made if it is not there."""
        group = self.top / f"agent-sandbox-{instance:04}.slice"
        group.mkdir(exist_ok=True)
        return group


def members(group: Path) -> list[int]:
    """Pids in a group and below it; none if it is gone."""
    found: list[int] = []
    for file in sorted(group.glob("**/cgroup.procs")):
        with contextlib.suppress(OSError):
            found += [int(line) for line in file.read_text().split()]
    return found


def remove_tree(group: Path, seconds_max: float) -> bool:
    """Remove a group and all below it once they are empty; whether that came to be in time."""
    deadline = time.monotonic() + seconds_max
    while group.exists():
        # The deepest first: a group with children cannot be removed.
        for folder in sorted(group.glob("**/"), key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                folder.rmdir()
        if time.monotonic() > deadline:
            return not group.exists()
        time.sleep(0.02)
    return True


def remove_stale(mount: Path) -> None:
    """Remove empty groups of benches that are no more."""
    for group in mount.glob("agentzip-bench-*"):
        match = _STALE.fullmatch(group.name)
        if match and not Path("/proc", match[1]).exists() and not members(group):
            remove_tree(group, 1.0)
