"""
Which sandboxes there are, and which processes each of them has.

A sandbox is there while it has processes.  Three facts keep one from being taken for another:

- A control group is told by its inode, which the kernel does not use again, and a sandbox ends with
  its last process; what comes into the group later is a new sandbox.
- A process is told by pid and start time.  A pid is looked up in /proc between two reads of its
  group, so what is recorded was in the group with this start time.
- A process belongs to one sandbox: that of the first rule that selects it.

A new sandbox is not only new in name: with `isolation: sandbox` its trust domain is, too.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from agentzip.errors import InvalidSetting, NoSuchProcess
from agentzip.fleet.names import name_of
from agentzip.fleet.scopes import Rule, Scopes
from agentzip.host import gvisor, processes
from agentzip.host.cgroups import Cgroups, Group
from agentzip.host.memory import ROOT
from agentzip.policy import patterns
from agentzip.sandboxes import ScopeStatus

__all__ = ["Changes", "Member", "Registry", "Sandbox"]

_SETTLE_SECONDS = 5.0
"""
How long a new process is read again at each look: it may still be about to become another program,
and a container runtime takes a second to get from its own to that of the sandbox.
"""

_UNREAD_SECONDS = 4.0
"""How long the processes of a group that says what it said are not read one by one."""

_Key = tuple[str, str, int]
"""Pattern of the rule, path of the control group, start time of the named process."""

_Mark = tuple[int, int]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process of a sandbox."""

    pid: int
    start_time: int
    """Clock ticks after boot; with the pid it is the process's identity."""
    sandbox: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """One sandbox as the last look saw it."""

    name: str
    """
    Name of its control group, or `/` and the whole path if another sandbox had the name first,
    as it may be shown;
    `pid-N`, or the name that `run` gave.  It stays the same for the sandbox's life.
    """
    rule: Rule
    cgroup: str
    """Path below the cgroup root; empty for named processes."""
    inode: int
    """That of its control group, in the first hierarchy; 0 for named processes."""
    domain: str
    """Trust domain; fixed when the sandbox appears, since pages are shared from then on."""
    members: tuple[Member, ...]
    """Its processes, by pid; never empty."""
    frozen: bool
    """The freezer or a container pause holds all of it."""
    refused: str
    """Why its processes cannot be attached, empty if they can."""
    first_seen: float
    """When it appeared, on the registry's clock."""

    @property
    def scope(self) -> str:
        """Pattern of the rule that selects it."""
        return self.rule.pattern

    @property
    def enabled(self) -> bool:
        """Whether it is to be paged out."""
        return self.rule.enabled and not self.refused


@dataclass(frozen=True, slots=True)
class Changes:
    """
    What is different from the look before.

    A process that came under another rule has left one sandbox and joined another, whose trust
    domain is another one: what has left comes first.
    """

    appeared: list[Sandbox] = field(default_factory=list)
    vanished: list[Sandbox] = field(default_factory=list)
    joined: list[Member] = field(default_factory=list)
    """New processes, those of new sandboxes too."""
    left: list[Member] = field(default_factory=list)
    """Processes that ended or moved elsewhere; those of vanished sandboxes too."""


@dataclass(slots=True)
class _Process:
    """A member, and what spares reading it again."""

    member: Member
    mark: _Mark
    seen: float
    in_gvisor: bool


@dataclass(slots=True)
class _Entry:
    """A sandbox, and what is known of it beside."""

    sandbox: Sandbox
    inodes: frozenset[tuple[int, int]]
    processes: dict[int, _Process]
    group: Group | None
    settled_at: float
    """From then on none of them is about to become another program."""


@dataclass(slots=True)
class _Claim:
    """What one rule selects at this look: a control group, or a process with those below it."""

    rule: Rule
    group: Group | None
    pids: list[int]
    confirm: Callable[[], Collection[int]]
    """The same pids, read again."""

    @property
    def key(self) -> _Key:
        """What tells it from all others of this look."""
        path = "" if self.group is None else self.group.path
        return self.rule.pattern, path, self.rule.start_time


class Registry:
    """
    All sandboxes.

    One thread refreshes; every other method may be called from any thread.

    Args:
        scopes: What selects them.
        cgroups: The control groups of the host.
        own: Pids that are never part of a sandbox: the daemon's and its keeper's.
        root: Where `/proc` is looked for.
        clock: Seconds.
    """

    def __init__(
        self,
        scopes: Scopes,
        cgroups: Cgroups,
        own: Callable[[], Iterable[int]] = lambda: (),
        root: Path = ROOT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scopes = scopes
        self._cgroups = cgroups
        self._own = own
        self._root = root
        self._clock = clock
        self._rules: tuple[Rule, ...] | None = None
        self._of_groups: list[Rule] = []
        self._choose: Callable[[str], int | None] = lambda _path: None
        self._told: set[str] = set()
        self._groups: list[Group] = []
        self._read_at = float("-inf")
        """When the processes of all groups were read last."""
        self._settled_at = float("inf")
        """From then on nothing changes unless a group says so; see `_is_left_unread`."""
        self._entries: dict[_Key, _Entry] = {}
        # Both are replaced as a whole, so readers need no lock.
        self._by_name: dict[str, Sandbox] = {}
        self._by_pid: dict[int, _Process] = {}
        # Held while a name is given to a process, so that two do not get the same one.
        self._naming = threading.Lock()

    def sandboxes(self) -> list[Sandbox]:
        """Every sandbox, sorted by name."""
        return sorted(self._by_name.values(), key=lambda sandbox: sandbox.name)

    def find(self, name: str) -> Sandbox | None:
        """The sandbox of this name."""
        return self._by_name.get(name)

    def sandbox_of(self, pid: int) -> str | None:
        """Name of the sandbox that a living process belonged to at the last look."""
        known = self._by_pid.get(pid)
        if known is None:
            return None
        if known.mark != processes.mark(pid, self._root):
            # Forgotten by the kernel's cache, or the pid of another process by now.
            try:
                found = processes.process(pid, self._root)
            except NoSuchProcess:
                return None
            if found.start_time != known.member.start_time:
                return None
        return known.member.sandbox

    def statuses(self) -> list[ScopeStatus]:
        """Every scope, in the order in which they select."""
        return [self.status(rule) for rule in self._scopes.rules()]

    def status(self, rule: Rule) -> ScopeStatus:
        """A scope with the number of its sandboxes at the last look."""
        return ScopeStatus(
            pattern=rule.pattern,
            enabled=rule.enabled,
            isolation=rule.isolation,
            source=rule.source,
            sandboxes=sum(found.scope == rule.pattern for found in self._by_name.values()),
        )

    def run(self, name: str, pid: int, start_time: int) -> ScopeStatus:
        """
        Let a process and its descendants be a sandbox of this name for as long as they live.

        It is there from the next look on.

        Raises:
            InvalidSetting: the name cannot be used or is taken, or the process is in a sandbox.
            NoSuchProcess: it has ended, or the pid names another one now.
        """
        with self._naming:
            taken = self._by_name.get(name)
            if taken is not None and taken.scope != f"run:{name}":
                raise InvalidSetting(f"sandbox name is in use: {name}", "choose another")
            if (home := self.sandbox_of(pid)) not in {None, name}:
                raise InvalidSetting(
                    f"process {pid} is in a sandbox already: {home}",
                    "start it outside of the control groups that the scopes select",
                )
            for rule in self._scopes.rules():
                # A name is free as soon as its last process has ended, not one look later.
                if rule.pattern == f"run:{name}" and not self._tree(rule, frozenset()):
                    self._scopes.ended(rule)
            return self.status(self._scopes.run(name, pid, start_time))

    def refresh(self) -> Changes:
        """
        Look at the host once.

        Raises:
            OSError: it cannot be looked at now, for want of descriptors or memory; what was known
                is still known.
        """
        rules = self._scopes.rules()
        if rules is not self._rules:
            self._rules = rules
            self._of_groups = [rule for rule in rules if not rule.pid]
            self._choose = patterns.chooser([rule.pattern for rule in self._of_groups])
            self._read_at = float("-inf")
        changes, now = Changes(), self._clock()
        groups = self._cgroups.find(self._choose)
        read_all = now >= self._read_at + _UNREAD_SECONDS
        # A group that says what it said is the same object.
        if not read_all and self._settled_at < now and groups == self._groups:
            return changes
        taken = set(self._own())
        names = self._names_kept(groups)
        entries: dict[_Key, _Entry] = {}
        goes_on: set[_Key] = set()
        for claim in self._claims(groups, taken):
            former = self._former(claim.key, claim.group)
            unread = former is not None and not read_all and _is_left_unread(claim, former, now)
            entry = former if unread else self._entry(claim, former, names, now, changes)
            if entry is None:
                self._end(claim.rule)
                continue
            taken.update(entry.processes)
            entries[claim.key] = entry
            if former is None:
                changes.appeared.append(entry.sandbox)
            else:
                goes_on.add(claim.key)
        for key, entry in self._entries.items():
            if key not in goes_on:
                changes.vanished.append(entry.sandbox)
                changes.left.extend(entry.sandbox.members)
        self._entries, self._groups = entries, groups
        self._read_at = now if read_all else self._read_at
        settled_at = max((entry.settled_at for entry in entries.values()), default=now)
        # Of the children of a named process nobody tells.
        self._settled_at = float("inf") if len(self._of_groups) < len(rules) else settled_at
        self._by_name = {entry.sandbox.name: entry.sandbox for entry in entries.values()}
        self._by_pid = {
            pid: process for entry in entries.values() for pid, process in entry.processes.items()
        }
        return changes

    def _former(self, key: _Key, group: Group | None) -> _Entry | None:
        """The sandbox of the look before that a claim goes on with."""
        former = self._entries.get(key)
        # A group that a runtime makes in one hierarchy after the other is still one group.
        return former if former is None or group is None or former.inodes & group.inodes else None

    def _names_kept(self, groups: list[Group]) -> set[str]:
        """Names of the sandboxes that are still there; a new one takes none of them."""
        kept = set()
        for group in groups:
            former = self._former((self._of_groups[group.choice].pattern, group.path, 0), group)
            if former is not None:
                kept.add(former.sandbox.name)
        return kept | {rule.sandbox_name for rule in self._rules or () if rule.pid}

    def _claims(self, groups: list[Group], taken: set[int]) -> Iterator[_Claim]:
        """What each rule selects, in the order of the rules; `taken` grows meanwhile."""
        for group in sorted(groups, key=lambda found: (found.choice, found.path)):
            rule, confirm = self._of_groups[group.choice], partial(self._cgroups.pids, group.path)
            if group.strangers and group.path not in self._told:
                self._told.add(group.path)
                _log.warning(
                    "%d processes of %s are outside of the daemon's pid namespace and left alone; "
                    "start the daemon in that of the host",
                    group.strangers,
                    group.path,
                )
            yield _Claim(rule, group, sorted(group.pids - taken), confirm)
        self._told &= {group.path for group in groups}
        for rule in self._rules or ():
            if rule.pid:
                find = partial(self._tree, rule, frozenset(taken))
                yield _Claim(rule, None, sorted(find()), find)

    def _tree(self, rule: Rule, taken: frozenset[int]) -> set[int]:
        """
        The process of a rule with all below it.

        Who was in the sandbox stays, though its parent has ended; only a process whose parent
        starts it and ends between two looks is missed.
        """
        former = self._entries.get((rule.pattern, "", rule.start_time))
        known = [] if former is None else list(former.sandbox.members)
        starts = [(rule.pid, rule.start_time)] + [(one.pid, one.start_time) for one in known]
        waiting = [pid for pid, start in starts if processes.is_alive(pid, start, self._root)]
        found: set[int] = set()
        while waiting:
            pid = waiting.pop()
            if pid not in found and pid not in taken:
                found.add(pid)
                waiting.extend(processes.children(pid, self._root))
        return found

    def _end(self, rule: Rule) -> None:
        """Forget the rule of a process that has ended."""
        if rule.pid and not processes.is_alive(rule.pid, rule.start_time, self._root):
            self._scopes.ended(rule)

    def _entry(
        self,
        claim: _Claim,
        former: _Entry | None,
        names: set[str],
        now: float,
        changes: Changes,
    ) -> _Entry | None:
        """The sandbox that a claim makes; None if it has no processes."""
        kept, fresh = self._sorted_out(claim, {} if former is None else former.processes, now)
        if not kept and not fresh:
            return None
        group, rule = claim.group, claim.rule
        if former is not None and not fresh and _as_before(claim, former, kept):
            former.group = claim.group
            return former
        if former is None:
            name = rule.sandbox_name if group is None else name_of(group.path, names)
            names.add(name)
        else:
            name = former.sandbox.name
        for pid, (mark, info) in fresh.items():
            member = Member(pid=pid, start_time=info.start_time, sandbox=name, command=info.command)
            kept[pid] = _Process(member, mark, now, gvisor.holds_sandbox(info, self._root))
            changes.joined.append(member)
        if former is not None:
            changes.left.extend(
                process.member
                for pid, process in former.processes.items()
                if pid not in kept or kept[pid].member.start_time != process.member.start_time
            )
        members = tuple(kept[pid].member for pid in sorted(kept))
        frozen = group is not None and group.frozen
        refused = gvisor.REASON if any(one.in_gvisor for one in kept.values()) else ""
        inodes = frozenset() if group is None else group.inodes
        if former is None:
            sandbox = Sandbox(
                name=name,
                rule=rule,
                cgroup="" if group is None else group.path,
                inode=min(inodes, default=(0, 0))[1],
                domain=_domain_of(rule, members),
                members=members,
                frozen=frozen,
                refused=refused,
                first_seen=now,
            )
        else:
            sandbox = replace(
                former.sandbox, rule=rule, members=members, frozen=frozen, refused=refused
            )
        settled_at = max(one.seen for one in kept.values()) + _SETTLE_SECONDS
        return _Entry(sandbox, inodes, kept, group, settled_at)

    def _sorted_out(
        self, claim: _Claim, known: dict[int, _Process], now: float
    ) -> tuple[dict[int, _Process], dict[int, tuple[_Mark, processes.ProcessInfo]]]:
        """The processes of a claim that were members before, and those that are new."""
        kept: dict[int, _Process] = {}
        fresh: dict[int, tuple[_Mark, processes.ProcessInfo]] = {}
        for pid in claim.pids:
            mark, process = processes.mark(pid, self._root), known.get(pid)
            if mark is None:
                continue
            settled = process is not None and now - process.seen > _SETTLE_SECONDS
            if process is not None and settled and process.mark == mark:
                kept[pid] = process
                continue
            try:
                info = processes.process(pid, self._root)
            except NoSuchProcess:
                continue
            if info.kernel or info.state in "ZX":
                continue
            if process is not None and process.member.start_time == info.start_time:
                kept[pid] = self._read_again(process, mark, info)
            else:
                fresh[pid] = (mark, info)
        if fresh:
            # A pid that was handed out again meanwhile, to a process elsewhere, is not in there.
            inside = claim.confirm()
            fresh = {pid: facts for pid, facts in fresh.items() if pid in inside}
        return kept, fresh

    def _read_again(self, process: _Process, mark: _Mark, info: processes.ProcessInfo) -> _Process:
        member = process.member
        # A process that is ending has no arguments any more, only a name.
        if member.command != info.command and not info.command.startswith("["):
            member = replace(member, command=info.command)
        return _Process(member, mark, process.seen, gvisor.holds_sandbox(info, self._root))


def _is_left_unread(claim: _Claim, former: _Entry, now: float) -> bool:
    """
    Whether a sandbox is taken to be as it was, because its group says what it said.

    Only a pid that ended and was handed out again *in the same group* goes unseen by that, for
    `_UNREAD_SECONDS` at most: it cannot mix two sandboxes.
    """
    return (
        claim.group is not None
        and claim.group is former.group
        and claim.rule is former.sandbox.rule
        and former.settled_at < now
        and former.processes.keys() == set(claim.pids)
    )


def _as_before(claim: _Claim, former: _Entry, kept: dict[int, _Process]) -> bool:
    """Whether there is nothing new about a sandbox, which is so for most at most looks."""
    group, sandbox = claim.group, former.sandbox
    return (
        claim.rule is sandbox.rule
        and kept == former.processes
        and (group is None or (group.frozen, group.inodes) == (sandbox.frozen, former.inodes))
    )


def _domain_of(rule: Rule, members: tuple[Member, ...]) -> str:
    """
    The trust domain of a new sandbox.

    Told by its eldest process where it is alone: no two sandboxes of a boot have that in common.
    """
    if rule.isolation == "sandbox" or rule.pid:
        eldest = min(members, key=lambda member: (member.start_time, member.pid))
        return f"sandbox:{eldest.pid}:{eldest.start_time}"
    return f"scope:{rule.pattern}"
