"""
The control groups of the host: which of them a scope selects, and which processes are in them.

    v2       one hierarchy
    hybrid   a v2 hierarchy, mostly without controllers, and beside it those of v1: container
             runtimes use these, service managers both
    v1       only those

A *selected* group is the topmost one on its path that a pattern chooses, with all below it.  In a
hybrid layout the same path in both hierarchies is one group.

The host is looked at anew each time, since the kernel tells nobody of a new process in a group.  A
look costs one read for each group of a sandbox, and one `stat` for each other group of the host (in
v1 for all); which of them were frozen or thawed meanwhile the kernel tells of all at once.
"""

import errno
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentzip.host.cgroup_tree import GONE, Hierarchy, Node, Tree, read_whole
from agentzip.host.kernel_text import lines_of
from agentzip.host.memory import ROOT

__all__ = ["Cgroups", "Group", "Hierarchy", "hierarchies"]

_CONTROLLERS = ("memory", "pids", "freezer", "cpu", "name=systemd")
"""Which v1 hierarchy is looked at: the first that is mounted.  Runtimes make groups in each."""


@dataclass(frozen=True, slots=True)
class Group:
    """A selected control group, with all below it."""

    path: str
    """Below the root of its hierarchy, without a `/` at either end."""
    choice: int
    """Position of the pattern that selects it."""
    inodes: frozenset[tuple[int, int]]
    """
    Its inode in each hierarchy.  The kernel counts them up through the whole uptime, so a group
    that was removed and made again has another.
    """
    pids: frozenset[int]
    """Every process in it, as this pid namespace numbers them."""
    strangers: int
    """How many processes of it are outside of this pid namespace."""
    frozen: bool
    """None of its processes can run: the freezer, or a paused container."""


def hierarchies(root: Path = ROOT) -> list[Hierarchy]:
    """Every mounted hierarchy as a whole, v2 first; part of one that is mounted is left out."""
    found: dict[tuple[int, frozenset[str]], tuple[int, Hierarchy]] = {}
    with suppress(OSError):
        for line in lines_of(root / "proc" / "self" / "mountinfo"):
            head, _, tail = line.partition(" - ")
            kind, _, rest = tail.partition(" ")
            if kind not in {"cgroup", "cgroup2"}:
                continue
            top, place = head.split(" ")[3:5]
            # The host's hierarchy in a container shows where its top is from the container's own.
            above = [name for name in top.split("/") if name]
            if set(above) - {".."}:
                continue
            place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place)
            version = 2 if kind == "cgroup2" else 1
            controllers = frozenset() if version == 2 else frozenset(rest.split()[-1].split(","))
            hierarchy = Hierarchy(str(root / place.lstrip("/")), version, controllers)
            known = found.get((version, controllers))
            if known is None or len(above) > known[0]:
                found[version, controllers] = (len(above), hierarchy)
    return sorted((kept for _, kept in found.values()), key=lambda kept: -kept.version)


class Cgroups:
    """
    The control groups of this host.

    Args:
        root: Where `/proc` and the mounts are looked for.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        mounted = hierarchies(root)
        unified = [found for found in mounted if found.version == 2][:1]
        self._unified = [found.mount for found in unified]
        self._freezer = _with_controller(mounted, "freezer")
        self._memory = _with_controller(mounted, "memory")
        older = (_with_controller(mounted, name) for name in _CONTROLLERS)
        kept = unified + [found for found in older if found is not None][:1]
        self._trees = [Tree(hierarchy) for hierarchy in kept]
        self._choose: Callable[[str], int | None] | None = None
        self._chosen: dict[str, _Chosen] = {}

    @property
    def mode(self) -> str:
        """`v2`, `hybrid`, `v1`, or `none` where there are no control groups to be seen."""
        versions = [tree.version for tree in self._trees]
        return {(2,): "v2", (2, 1): "hybrid", (1,): "v1"}.get(tuple(versions), "none")

    def close(self) -> None:
        """Close what is kept open; the next look opens it again."""
        for tree in self._trees:
            tree.close()

    def find(self, choose: Callable[[str], int | None]) -> list[Group]:
        """
        Every selected group, sorted by path.

        Args:
            choose: Position of the pattern that selects a path, or None.

        Raises:
            OSError: the host cannot be looked at now, for want of descriptors or memory.
        """
        for tree in self._trees:
            tree.look()
        if choose is not self._choose or any(tree.changed for tree in self._trees):
            self._chosen = self._chosen_by(choose)
            self._choose = choose
            for tree in self._trees:
                tree.changed = False
        for chosen, contents in self._contents(self._chosen.values()):
            if chosen.group is None or contents != chosen.contents:
                chosen.contents, chosen.group = contents, _group(chosen, contents)
        if any(tree.mistaken for tree in self._trees):
            return self.find(choose)
        return [chosen.group for chosen in self._chosen.values() if chosen.group is not None]

    def pids(self, path: str) -> frozenset[int]:
        """Every process that is now in a group that the last `find` found, or below it."""
        chosen = self._chosen.get(path)
        # Its own name may be another group's by now.
        there = [place for place in chosen.places if place.is_there()] if chosen else []
        if chosen is None or not there:
            return frozenset()
        ((_, contents),) = self._contents([replace(chosen, places=there)])
        return _pids_in(contents) - {0}

    def memory_bytes(self, path: str) -> int | None:
        """What the kernel charges to a group with all below it; None if nothing counts it."""
        places = [f"{mount}/{path}/memory.current" for mount in self._unified]
        if self._memory is not None:
            places.append(f"{self._memory.mount}/{path}/memory.usage_in_bytes")
        for place in places:
            with suppress(OSError, ValueError):
                return int(read_whole(place))
        return None

    def _chosen_by(self, choose: Callable[[str], int | None]) -> dict[str, "_Chosen"]:
        """What is selected of the groups that are there, by path; what was before is kept."""
        places: dict[str, list[_Place]] = {}
        choices: dict[str, int] = {}
        inodes: dict[str, set[tuple[int, int]]] = {}
        for number, tree in enumerate(self._trees):
            for choice, node in tree.selected(choose):
                places.setdefault(node.path, []).append(_Place(tree, node, node.all()))
                choices.setdefault(node.path, choice)
                inodes.setdefault(node.path, set()).add((number, node.inode))
        found = {
            path: _Chosen(path, choices[path], frozenset(inodes[path]), places[path])
            for path in sorted(places)
        }
        for path, former in self._chosen.items():
            chosen = found.get(path)
            if chosen is None or chosen.inodes != former.inodes:
                # Who is not read may not be taken for being there, and needs no descriptors.
                for place in former.places:
                    place.tree.forget(place.node)
            elif chosen.choice == former.choice:
                chosen.contents, chosen.group = former.contents, former.group
        return found

    def _contents(self, wanted: Iterable["_Chosen"]) -> list[tuple["_Chosen", "_Contents"]]:
        """
        What each group that has processes says of them, and whether it is frozen.

        One kind of call after the other for all groups: calls of two kinds in turn take twice as
        long.
        """
        read = [(chosen, *self._texts(chosen)) for chosen in wanted]
        return [
            (
                chosen,
                [
                    (text, self._is_frozen(place.tree, node, chosen.older))
                    for node, text in zip(place.nodes, texts, strict=True)
                    if text
                ],
            )
            for chosen, place, texts in read
        ]

    def _texts(self, chosen: "_Chosen") -> tuple["_Place", list[bytes]]:
        """Of the first hierarchy that has processes: a runtime may put them into v1 alone."""
        for place in chosen.places:
            texts = [self._processes(place.tree, node) for node in place.nodes]
            if any(texts):
                break
        return place, texts

    def _processes(self, tree: Tree, node: Node) -> bytes:
        try:
            return tree.read(node, "cgroup.procs")
        except OSError as error:
            if error.errno in GONE:
                tree.mistaken = tree.trusted
                return b""
            if error.errno != errno.EOPNOTSUPP:
                raise
        # A threaded group: its processes count in the group that its threads' resources come from,
        # which lies above.  Those whose first thread is here are taken as being here, too.
        with suppress(OSError):
            threads = tree.read(node, "cgroup.threads").split()
            return b"\n".join(thread for thread in threads if self._leads(int(thread)))
        return b""

    def _leads(self, thread: int) -> bool:
        with suppress(OSError):
            status = read_whole(str(self._root / "proc" / str(thread) / "status"))
            return f"\nTgid:\t{thread}\n".encode() in status
        return False

    def _is_frozen(self, tree: Tree, node: Node, older: bool) -> bool:
        try:
            if tree.version == 2 and tree.is_frozen(node):
                return True
            if older and self._freezer is not None:
                return read_whole(f"{self._freezer.mount}/{node.path}/freezer.state") == b"FROZEN\n"
        except OSError:
            pass  # the group has just gone, or that hierarchy does not have it
        return False


_Contents = list[tuple[bytes, bool]]


def _pids_in(contents: _Contents) -> frozenset[int]:
    return frozenset(int(word) for text, _ in contents for word in text.split())


@dataclass(slots=True)
class _Place:
    """Where a group is in one hierarchy."""

    tree: Tree
    node: Node
    nodes: list[Node]
    """It and all below it."""

    def is_there(self) -> bool:
        """Look at it, and say whether it is still there."""
        return self.tree.is_there(self.node)


@dataclass(slots=True)
class _Chosen:
    """A selected group, with what was made of it last."""

    path: str
    choice: int
    inodes: frozenset[tuple[int, int]]
    places: list[_Place]
    contents: _Contents = field(default_factory=list)
    group: Group | None = None

    @property
    def older(self) -> bool:
        """Whether it is in a v1 hierarchy, too."""
        return self.places[-1].tree.version == 1


def _group(chosen: _Chosen, contents: _Contents) -> Group:
    pids = _pids_in(contents)
    return Group(
        path=chosen.path,
        choice=chosen.choice,
        inodes=chosen.inodes,
        pids=pids - {0},
        # The kernel shows 0 for a process that this pid namespace has no number for.
        strangers=sum(text.split().count(b"0") for text, _ in contents),
        frozen=bool(pids) and all(frozen for _, frozen in contents),
    )


def _with_controller(mounted: list[Hierarchy], name: str) -> Hierarchy | None:
    return next((found for found in mounted if name in found.controllers), None)
