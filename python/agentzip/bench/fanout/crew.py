"""
The sandboxes of one mode: started one after the other, each in its group, ended together.

The data files are made once and serve every mode; what an agent wrote beside them is removed
before the next one starts.
"""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from agentzip.bench.fanout.places import Places, members, remove_tree
from agentzip.bench.fanout.plan import FanoutPlan
from agentzip.children import Stoppable
from agentzip.errors import InternalError
from agentzip.workloads.crew import TURNING, Sandbox, make_material

__all__ = ["AT_ONCE", "Crew", "Member", "data_folders"]

AT_ONCE = os.cpu_count() or 1
"""Starts, and other work that takes a processor, at one time."""

_WRITTEN = ("profile", "batches")
"""What agents make beside their data."""

_GROUP_SECONDS = 10.0

T = TypeVar("T")


class Member:
    """One sandbox of the crew."""

    def __init__(self, instance: int, sandbox: Sandbox, group: Path) -> None:
        self.instance = instance
        self.sandbox = sandbox
        self.group = group
        self.waiting = False
        """It waits for the model."""
        self.finished = False
        """It has taken all its turns."""

    def pids(self) -> list[int]:
        """Its processes: who is in its group."""
        return members(self.group)


class Crew(Stoppable):
    """
    Sandboxes of one mode; leaving the context ends them.

    Args:
        plan: What is run.
        folders: Their data, from `data_folders`.
        places: Where their groups are.
        merge: Let KSM merge their pages.
    """

    def __init__(
        self, plan: FanoutPlan, folders: list[Path], places: Places, *, merge: bool
    ) -> None:
        self.plan = plan
        self.places = places
        self.members: list[Member] = []
        self._folders = folders
        self._merge = merge

    def start(self, count: int) -> list[Member]:
        """Start the next sandboxes, at most `AT_ONCE`; they load in parallel and are ready then."""
        first = len(self.members)
        for instance in range(first, min(first + count, self.plan.sandboxes)):
            folder = self._folders[instance]
            for name in _WRITTEN:
                shutil.rmtree(folder / name, ignore_errors=True)
            group = self.places.sandbox(instance)
            # In this thread: its end would be the instances' end (launcher.py).
            sandbox = Sandbox(self.plan.workload, instance, folder, merge=self._merge, group=group)
            self.members.append(Member(instance, sandbox, group))
        new = self.members[first:]
        for member in new:
            member.sandbox.wait_until_ready()
        return new

    def for_all(self, work: Callable[[Member], T]) -> list[T]:
        """The same for every sandbox, some at once; results in their order."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="crew") as pool:
            return list(pool.map(work, self.members))

    def stop(self) -> None:
        """End every sandbox and remove its group."""
        for member in self.members:
            member.sandbox.end()
        for member in self.members:
            if not remove_tree(member.group, _GROUP_SECONDS):
                raise InternalError(f"processes remain in {member.group}")
        self.members.clear()


def data_folders(plan: FanoutPlan, folder: Path) -> list[Path]:
    """Make the data of all sandboxes; a folder for each."""
    folders = [folder / f"{plan.workload}-{number:04}" for number in range(plan.sandboxes)]
    make_material(TURNING[plan.workload], folders, plan.data_size)
    return folders
