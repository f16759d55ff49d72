"""
The sandboxes of one mode: started one after the other, each in its group, ended together.

The data files are made once and serve every mode; what an agent wrote beside them is removed
before the next one starts.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar, cast

from agentzip.bench.fanout.places import Places, members, remove_tree
from agentzip.bench.fanout.plan import FanoutPlan
from agentzip.children import Stoppable
from agentzip.errors import InternalError
from agentzip.workloads.command import Command
from agentzip.workloads.crew import Material, Sandbox, make_material

__all__ = ["AT_ONCE", "Crew", "Member", "data_folders"]

AT_ONCE = os.cpu_count() or 1
"""Starts, and other work that takes a processor, at one time."""

_WRITTEN = ("profile", "batches")
"""What agents make beside their data."""

_GROUP_SECONDS = 10.0

T = TypeVar("T")


class Running(Protocol):
    """What an agent and a command have in common."""

    def wait_until_ready(self) -> None:
        """Wait for the end of the loading."""

    def end(self) -> None:
        """End it and everything below it; twice does no harm."""


class Member:
    """One sandbox of the crew."""

    def __init__(self, instance: int, running: Running, group: Path) -> None:
        self.instance = instance
        self.running = running
        self.group = group
        self.waiting = False
        """It waits for the model or a person; a command may wait at any time."""
        self.finished = False
        """It has taken all its turns."""
        self.gone = False
        """It has ended by itself."""

    @property
    def sandbox(self) -> Sandbox:
        """The agent; a plan without a command has nothing else."""
        return cast("Sandbox", self.running)

    @property
    def command(self) -> Command:
        """The command; a plan with one has nothing else."""
        return cast("Command", self.running)

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
        environment: Variables for commands.
    """

    def __init__(
        self,
        plan: FanoutPlan,
        folders: list[Path],
        places: Places,
        *,
        merge: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.plan = plan
        self.places = places
        self.members: list[Member] = []
        self._folders = folders
        self._merge = merge
        self._environment = environment or {}

    def start(self, count: int) -> list[Member]:
        """Start the next sandboxes, at most `AT_ONCE`; they load in parallel and are ready then."""
        first = len(self.members)
        for instance in range(first, min(first + count, self.plan.sandboxes)):
            group = self.places.sandbox(instance)
            # In this thread: its end would be the instances' end (launcher.py).
            self.members.append(Member(instance, self._start_one(instance, group), group))
        new = self.members[first:]
        for member in new:
            member.running.wait_until_ready()
        return new

    def _start_one(self, instance: int, group: Path) -> Running:
        folder = self._folders[instance]
        for name in _WRITTEN:
            shutil.rmtree(folder / name, ignore_errors=True)
        if self.plan.command:
            return Command(
                self.plan.command,
                instance,
                folder / "output",
                group=group,
                environment=self._environment,
                merge=self._merge,
            )
        name = self.plan.name_of(instance)
        return Sandbox(name, instance, folder, merge=self._merge, group=group)

    def for_all(self, work: Callable[[Member], T]) -> list[T]:
        """The same for every sandbox, some at once; results in their order."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="crew") as pool:
            return list(pool.map(work, self.members))

    def stop(self) -> None:
        """End every sandbox and remove its group."""
        for member in self.members:
            member.running.end()
        for member in self.members:
            if not remove_tree(member.group, _GROUP_SECONDS):
                raise InternalError(f"processes remain in {member.group}")
        self.members.clear()


def data_folders(plan: FanoutPlan, folder: Path) -> list[Path]:
    """Make the data of all sandboxes; a folder for each, which is empty for a command."""
    folders = [folder / f"sandbox-{number:04}" for number in range(plan.sandboxes)]
    if plan.command:
        for own in folders:
            own.mkdir(parents=True)
    else:
        make_material(
            [
                Material(plan.workload_of(number).kind, own, plan.data_size(number))
                for number, own in enumerate(folders)
            ]
        )
    return folders
