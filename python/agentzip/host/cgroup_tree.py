"""
One hierarchy of control groups, with what is remembered of it from one look to the next.

Says which groups are there, and reads their files.  A v2 hierarchy counts its groups: if those that
are known are as many, and all are still there, there is no other; and who can be read is there.
Where nothing is counted, the link count of a directory tells how many are in it.  Directories are
listed only when they have changed.
"""

import errno
import os
import re
import resource
import select
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["GONE", "Hierarchy", "Node", "Tree", "read_whole"]

_MONITORS = re.compile(r"(libpod-|crio-)?conmon(-.*)?", re.DOTALL)
"""Groups of the programs that watch over containers: beside the sandbox, and no part of it."""

GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.EACCES})
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


@dataclass(slots=True, eq=False)
class Node:
    """A directory as it was looked at last, with its files that are kept open."""

    path: str
    place: str
    """The same from the root of the file system."""
    inode: int
    children: list["Node"] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    frozen: bool | None = None
    """As its `cgroup.events` said; None if that was not read, or has changed since."""

    @property
    def below(self) -> list["Node"]:
        """The groups right below it, without those of container monitors."""
        return [child for child in self.children if not _is_monitor(child)]

    def size(self) -> int:
        """How many are below it, those of monitors and what is below them too."""
        return sum(1 + child.size() for child in self.children)

    def all(self) -> list["Node"]:
        """It and all below it."""
        found = [self]
        # The list grows while it is gone through.
        for node in found:
            found += node.below
        return found


class Tree:
    """One hierarchy, with what is remembered of it from one look to the next."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.version = hierarchy.version
        self._top = Node("", hierarchy.mount, 0)
        # Reading an open file takes a fifth of opening, reading and closing it.  In v1 it would say
        # what it said before, as the kernel keeps a list for a second after each read.
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._room = limit // _DESCRIPTORS_PART if hierarchy.version == 2 else 0
        # The kernel says of an open `cgroup.events` whether it changed since it was read.
        self._events = select.epoll()
        self._watched: dict[int, Node] = {}
        self._counts = hierarchy.version == 2
        self._known: int | None = None
        """How many groups there were when all had been looked at."""
        self.changed = True
        """A group came or went since somebody set this to False."""
        self.trusted = False
        """The kernel counts as many groups as are known: who can be read is there."""
        self.mistaken = False
        """It is so only because another has come in the place of one that has gone."""

    def look(self) -> None:
        """
        See which groups are there.

        Raises:
            OSError: the host cannot be looked at now.
        """
        if self._watched:
            for descriptor, _ in self._events.poll(0):
                self._watched[descriptor].frozen = None
        count = self._count()
        self.trusted = count is not None and count == self._known and not self.mistaken
        if self.trusted:
            self._look_below(self._top)
            if not self.mistaken:
                return
        # If this fails midway nothing is known.
        self.trusted, self.mistaken, self._known = False, False, None
        if self.is_there(self._top):
            self._look_below(self._top)
        if count is not None:
            self._known = self._top.size()

    def _count(self) -> int | None:
        """How many groups the kernel counts; None where it does not (before Linux 4.14, v1)."""
        if not self._counts:
            return None
        try:
            text = self.read(self._top, "cgroup.stat")
        except OSError as error:
            if error.errno not in GONE:
                raise
            self._counts = False
            return None
        return int(text.split(None, 2)[1])

    def is_frozen(self, node: Node) -> bool:
        """Whether none of a v2 group's processes can run; raises OSError if it has gone."""
        if node.frozen is not None:
            return node.frozen
        frozen = b"frozen 1" in self.read(node, "cgroup.events")
        descriptor = node.files.get("cgroup.events")
        # Plain files, of which a test's host is made, have a size and tell of no change.
        if descriptor is not None and not os.fstat(descriptor).st_size:
            if descriptor not in self._watched:
                if self._events.closed:
                    self._events = select.epoll()
                self._events.register(descriptor, select.EPOLLPRI)
                self._watched[descriptor] = node
            node.frozen = frozen
        return frozen

    def selected(self, choose: Callable[[str], int | None]) -> list[tuple[int, Node]]:
        """Each topmost group that is chosen, with the choice."""
        found = []
        waiting = self._top.below
        while waiting:
            node = waiting.pop()
            choice = choose(node.path)
            if choice is None:
                waiting += node.below
            else:
                found.append((choice, node))
        return found

    def close(self) -> None:
        """Close all files; the next look sees everything anew."""
        self.forget(self._top)
        self._events.close()
        self._known = None

    def read(self, node: Node, name: str) -> bytes:
        """
        A file of a group.

        Raises:
            OSError: the group has gone, or has no such file.
        """
        descriptor = node.files.get(name)
        if descriptor is None:
            if not self._room:
                return read_whole(f"{node.place}/{name}")
            descriptor = os.open(f"{node.place}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            node.files[name] = descriptor
            self._room -= 1
        return _whole(descriptor)

    def _look_below(self, node: Node) -> None:
        """Look at all groups below one that is there."""
        # All are looked at, those of container monitors too: the link count speaks of all.
        looked = [(self.trusted and child.files) or self.is_there(child) for child in node.children]
        if not all(looked):
            # One has gone, so another may have come without a change of the link count.
            self._list(node)
            for child in list(node.children):
                if not self.is_there(child):
                    node.children.remove(child)
                    self.forget(child)
        for child in node.children:
            if child.children:
                self._look_below(child)

    def is_there(self, node: Node) -> bool:
        """Look at a directory; returns whether it is still there."""
        try:
            facts = os.stat(node.place)
        except OSError as error:
            if error.errno in GONE:
                return False
            raise
        if facts.st_ino != node.inode and node is not self._top:
            return False
        # A directory has a link for itself, one from above, and one from each directory in it.
        if facts.st_nlink != 2 + len(node.children):
            self._list(node)
        return True

    def _list(self, node: Node) -> None:
        """Read which directories are in one; those that were known keep what is known of them."""
        self.changed, self.mistaken = True, self.trusted
        known = {child.inode: child for child in node.children}
        children = []
        for name in _directories(node.place):
            path = f"{node.path}/{name}" if node.path else name
            place = f"{node.place}/{name}"
            try:
                inode = os.stat(place).st_ino
            except OSError as error:
                if error.errno in GONE:
                    continue
                raise
            child = known.get(inode)
            if child is None or child.path != path:
                child = Node(path, place, inode)
            else:
                del known[inode]
            children.append(child)
        node.children = children
        for child in known.values():
            self.forget(child)

    def forget(self, node: Node) -> None:
        """Close the files of a group and of all below it."""
        for child in node.children:
            self.forget(child)
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
        if error.errno in GONE:
            return []
        raise


def _is_monitor(node: Node) -> bool:
    return "conmon" in node.path and _MONITORS.fullmatch(node.path.rpartition("/")[2]) is not None


def read_whole(path: str) -> bytes:
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
