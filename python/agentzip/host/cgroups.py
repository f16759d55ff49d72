"""
The control groups of the host: which of them a scope selects, and which processes are in them.

    v2       one hierarchy
    hybrid   a v2 hierarchy, mostly without controllers, and beside it those of v1: container
             runtimes use these, service managers both
    v1       only those

A *selected* group is the topmost one on its path that a pattern chooses, with all below it.  In a
hybrid layout the same path in both hierarchies is one group.

The host is looked at anew each time, since the kernel tells nobody of a new process in a group.  A
look costs one `stat` for each group of the host and one read for each group of a sandbox; which of
them were frozen or thawed meanwhile the kernel tells of all at once.  Directories are listed only
when they have changed: the link count of one tells how many are in it, so if those that are known
are as many and all are still there, there is no other.
"""

import errno
import os
import re
import resource
import select
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentzip.host.memory import ROOT

__all__ = ["Cgroups", "Group", "Hierarchy", "hierarchies"]

_CONTROLLERS = ("memory", "pids", "freezer", "cpu", "name=systemd")
"""Which v1 hierarchy is looked at: the first that is mounted.  Runtimes make groups in each."""

_MONITORS = re.compile(r"(libpod-|crio-)?conmon(-.*)?", re.DOTALL)
"""Groups of the programs that watch over containers: beside the sandbox, and no part of it."""

_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.EACCES})
"""
What a call says of a group that was removed meanwhile, or that we may not see.  Everything else, as
no free descriptor, says nothing of the group, which must not be taken for empty then.
"""

_READ_BYTES = 4096

_SHORT_BYTES = 2048
"""A read of at most so much was the last one of a file; see `_whole`."""

_DESCRIPTORS_PART = 8
"""
Files of one hierarchy that are kept open: this part of the process's limit.  Beyond it each is
opened when it is read, which costs time and nothing else.
"""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of control groups."""

    mount: str
    version: int
    controllers: frozenset[str]


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
        for line in (root / "proc" / "self" / "mountinfo").read_text().splitlines():
            head, _, tail = line.partition(" - ")
            kind, _, rest = tail.partition(" ")
            if kind not in {"cgroup", "cgroup2"}:
                continue
            top, place = head.split()[3:5]
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
        self._trees = [_Tree(hierarchy) for hierarchy in kept]
        self._places: dict[str, list[_Place]] = {}
        self._looks: dict[str, _Look] = {}

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
        places: dict[str, list[_Place]] = {}
        for number, tree in enumerate(self._trees):
            tree.take_events()
            for choice, node in tree.selected(choose):
                places.setdefault(node.path, []).append(_Place(number, tree, node, choice))
        contents = self._contents(places)
        self._places = places
        self._looks = {
            path: _look(found, contents[path], self._looks.get(path))
            for path, found in places.items()
        }
        return [self._looks[path].group for path in sorted(places)]

    def pids(self, path: str) -> frozenset[int]:
        """Every process that is now in a group that the last `find` found, or below it."""
        found = [place for place in self._places.get(path, []) if place.tree.is_there(place.node)]
        return _pids_in(self._contents({path: found})[path]) - {0} if found else frozenset()

    def memory_bytes(self, path: str) -> int | None:
        """What the kernel charges to a group with all below it; None if nothing counts it."""
        places = [f"{mount}/{path}/memory.current" for mount in self._unified]
        if self._memory is not None:
            places.append(f"{self._memory.mount}/{path}/memory.usage_in_bytes")
        for place in places:
            with suppress(OSError, ValueError):
                return int(_read(place))
        return None

    def _contents(self, places: dict[str, list["_Place"]]) -> dict[str, "_Contents"]:
        """
        Of each path: what each group that has processes says of them, and whether it is frozen.

        One kind of call after the other for all groups: calls of two kinds in turn take twice as
        long.  In a hybrid layout a runtime puts a process into both hierarchies or into v1 alone,
        so v1 is read where nothing is in the first.
        """
        trees = {path: found[0].tree for path, found in places.items()}
        below = {path: trees[path].below(found[0].node) for path, found in places.items()}
        texts = {
            path: [(node, self._processes(trees[path], node)) for node in nodes]
            for path, nodes in below.items()
        }
        contents: dict[str, _Contents] = {}
        others: dict[str, list[_Place]] = {}
        for path, read in texts.items():
            older = any(place.tree.version == 1 for place in places[path])
            contents[path] = tuple(
                (text, self._is_frozen(trees[path], node, older)) for node, text in read if text
            )
            if not contents[path] and len(places[path]) > 1:
                others[path] = places[path][1:]
        return contents | self._contents(others) if others else contents

    def _processes(self, tree: "_Tree", node: "_Node") -> bytes:
        try:
            return tree.read(node, "cgroup.procs")
        except OSError as error:
            if error.errno in _GONE:
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
            status = _read(str(self._root / "proc" / str(thread) / "status"))
            return f"\nTgid:\t{thread}\n".encode() in status
        return False

    def _is_frozen(self, tree: "_Tree", node: "_Node", older: bool) -> bool:
        try:
            if tree.version == 2 and tree.is_frozen(node):
                return True
            if older and self._freezer is not None:
                return _read(f"{self._freezer.mount}/{node.path}/freezer.state") == b"FROZEN\n"
        except OSError:
            pass  # the group has just gone, or that hierarchy does not have it
        return False


_Contents = tuple[tuple[bytes, bool], ...]


def _pids_in(contents: _Contents) -> frozenset[int]:
    return frozenset(int(word) for text, _ in contents for word in text.split())


@dataclass(slots=True)
class _Look:
    """A group, and what it was made of."""

    group: Group
    contents: _Contents


@dataclass(slots=True)
class _Place:
    """Where a group is in one hierarchy."""

    number: int
    tree: "_Tree"
    node: "_Node"
    choice: int


def _look(places: list[_Place], contents: _Contents, former: _Look | None) -> _Look:
    """A group as it is now; the same object as before if nothing about it has changed."""
    inodes = frozenset((place.number, place.node.inode) for place in places)
    first = places[0]
    if former is not None and former.contents == contents:
        known = former.group
        if known.inodes == inodes and known.choice == first.choice:
            return former
    pids = _pids_in(contents)
    group = Group(
        path=first.node.path,
        choice=first.choice,
        inodes=inodes,
        pids=pids - {0},
        # The kernel shows 0 for a process that this pid namespace has no number for.
        strangers=sum(text.split().count(b"0") for text, _ in contents),
        frozen=bool(pids) and all(frozen for _, frozen in contents),
    )
    return _Look(group, contents)


@dataclass(slots=True, eq=False)
class _Node:
    """A directory as it was looked at last, with its files that are kept open."""

    path: str
    place: str
    """The same from the root of the file system."""
    inode: int
    children: list["_Node"] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    frozen: bool | None = None
    """As its `cgroup.events` said; None if that was not read, or has changed since."""


class _Tree:
    """One hierarchy, with what is remembered of it from one look to the next."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.version = hierarchy.version
        self._top = _Node("", hierarchy.mount, 0)
        # Reading an open file takes a fifth of opening, reading and closing it.  In v1 it would say
        # what it said before, as the kernel keeps a list for a second after each read.
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._room = limit // _DESCRIPTORS_PART if hierarchy.version == 2 else 0
        # The kernel says of an open `cgroup.events` whether it changed since it was read.
        self._events = select.poll()
        self._watched: dict[int, _Node] = {}

    def take_events(self) -> None:
        """Forget what is known of groups whose events have changed since the last look."""
        if self._watched:
            for descriptor, _ in self._events.poll(0):
                self._watched[descriptor].frozen = None

    def is_frozen(self, node: _Node) -> bool:
        """Whether none of a v2 group's processes can run; raises OSError if it has gone."""
        if node.frozen is not None:
            return node.frozen
        frozen = b"frozen 1" in self.read(node, "cgroup.events")
        descriptor = node.files.get("cgroup.events")
        # Plain files, of which a test's host is made, have a size and tell of no change.
        if descriptor is not None and not os.fstat(descriptor).st_size:
            if descriptor not in self._watched:
                self._events.register(descriptor, select.POLLPRI)
                self._watched[descriptor] = node
            node.frozen = frozen
        return frozen

    def selected(self, choose: Callable[[str], int | None]) -> list[tuple[int, _Node]]:
        """Each topmost group that is chosen, with the choice."""
        found = []
        waiting = list(self._children(self._top)) if self.is_there(self._top) else []
        while waiting:
            node = waiting.pop()
            choice = choose(node.path)
            if choice is None:
                waiting += self._children(node)
            else:
                found.append((choice, node))
        return found

    def below(self, node: _Node) -> list[_Node]:
        """A group that was just looked at, and all below it."""
        found = [node]
        # The list grows while it is gone through.
        for above in found:
            if above.children:
                found += self._children(above)
        return found

    def close(self) -> None:
        """Close all files."""
        self._forget(self._top)

    def read(self, node: _Node, name: str) -> bytes:
        """
        A file of a group.

        Raises:
            OSError: the group has gone, or has no such file.
        """
        descriptor = node.files.get(name)
        if descriptor is None:
            if not self._room:
                return _read(f"{node.place}/{name}")
            descriptor = os.open(f"{node.place}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            node.files[name] = descriptor
            self._room -= 1
        return _whole(descriptor)

    def _children(self, node: _Node) -> list[_Node]:
        """The groups right below one that was just looked at, each as it is now."""
        # All are looked at, those of container monitors too: the link count speaks of all.
        looked = [self.is_there(child) for child in node.children]
        if not all(looked):
            # One has gone, so another may have come without a change of the link count.
            self._list(node)
            for child in list(node.children):
                if not self.is_there(child):
                    node.children.remove(child)
                    self._forget(child)
        return [child for child in node.children if not _is_monitor(child)]

    def is_there(self, node: _Node) -> bool:
        """Look at a directory; returns whether it is still there."""
        try:
            facts = os.stat(node.place)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise
        if facts.st_ino != node.inode and node is not self._top:
            return False
        # A directory has a link for itself, one from above, and one from each directory in it.
        if facts.st_nlink != 2 + len(node.children):
            self._list(node)
        return True

    def _list(self, node: _Node) -> None:
        """Read which directories are in one; those that were known keep what is known of them."""
        known = {child.inode: child for child in node.children}
        children = []
        for name in _directories(node.place):
            path = f"{node.path}/{name}" if node.path else name
            place = f"{node.place}/{name}"
            try:
                inode = os.stat(place).st_ino
            except OSError as error:
                if error.errno in _GONE:
                    continue
                raise
            child = known.get(inode)
            if child is None or child.path != path:
                child = _Node(path, place, inode)
            else:
                del known[inode]
            children.append(child)
        node.children = children
        for child in known.values():
            self._forget(child)

    def _forget(self, node: _Node) -> None:
        for child in node.children:
            self._forget(child)
        self._room += len(node.files)
        for descriptor in node.files.values():
            if self._watched.pop(descriptor, None) is not None:
                self._events.unregister(descriptor)
            os.close(descriptor)
        node.files, node.frozen = {}, None


def _directories(place: str) -> list[str]:
    try:
        with os.scandir(place) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in _GONE:
            return []
        raise


def _is_monitor(node: _Node) -> bool:
    return "conmon" in node.path and _MONITORS.fullmatch(node.path.rpartition("/")[2]) is not None


def _with_controller(mounted: list[Hierarchy], name: str) -> Hierarchy | None:
    return next((found for found in mounted if name in found.controllers), None)


def _read(path: str) -> bytes:
    """A whole file of the kernel; Python's own files take four times as long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _whole(descriptor)
    finally:
        os.close(descriptor)


def _whole(descriptor: int) -> bytes:
    """
    All that an open file of the kernel says now.

    The kernel fills a page with whole lines at each read, so one that is far from full was the
    last; to be told so would cost another walk over the group's processes.
    """
    text = os.pread(descriptor, _READ_BYTES, 0)
    last = len(text)
    while last > _SHORT_BYTES:
        more = os.pread(descriptor, _READ_BYTES, len(text))
        text += more
        last = len(more)
    return text
