"""
A fake engine, public: for the unit tests of this package and of programs built on it.

`FakeEngine` keeps the rules of the `Pager` protocol (one attach per process, nothing without one)
but touches no process: a target is a number of pages, home or out; durations are constants.
"""

import threading
from dataclasses import dataclass, field

from agentzip import model
from agentzip.errors import (
    AgentZipError,
    AlreadyAttached,
    InvalidSetting,
    NoSuchProcess,
    NotAttached,
    TargetsRemain,
)

__all__ = ["FakeEngine", "FakeTarget"]

_PAGE_BYTES = 4096
_STORED_PAGE_BYTES = 1024
"""Every fake page encodes to a quarter, so that expected values can be done in the head."""
_HEAP_START = 0x10_0000
_LEARNED_MAGIC = b"learned pages: "


@dataclass
class FakeTarget:
    """A process of the fake host."""

    pid: int
    pages: int = 1000
    command: str = "python agent.py"
    start_time: int = 1
    detach_error: AgentZipError | None = None
    """What a detach of this process is refused with."""
    pages_out: int = 0
    pages_stuck: int = 0
    """Pages that no page in brings home, as on a host without free memory."""
    parent_id: int = 0
    space_id: int = 0
    faults: int = 0
    kinship: tuple[str, str] = ("", "")
    """Trust domain and image that it was attached with."""
    dictionary_id: int | None = None
    tier: str = "warm"
    pages_needed: int = 100
    """Pages that it touches at each wake, and that the first wake teaches."""
    learned_pages: int = 0
    wakes: int = 0
    pages_prefetched: int = 0
    prefetch: tuple[bool, int, int] = (False, 16, 0)
    """Replay, smallest and largest window, as set last."""
    refaults: list[model.Refault] = field(default_factory=list)
    """What the next call of `FakeEngine.refaults` tells."""


class FakeEngine:
    """
    An engine without a kernel.

    Args:
        targets: Processes that exist on the fake host.
        adopted: Pids taken over at start; they must be among the targets.
    """

    def __init__(
        self, targets: list[FakeTarget] | None = None, adopted: list[int] | None = None
    ) -> None:
        self.targets = {target.pid: target for target in targets or []}
        self.attached: dict[int, FakeTarget] = {}
        self.children: dict[int, FakeTarget] = {}
        self.closed = False
        self.pages_lost = 0
        self.keeper_restarts = 0
        self.fault_panics = 0
        self.calls: list[tuple[str, int]] = []
        # Guards everything above; the control server calls from several threads.
        self._lock = threading.RLock()
        self._next_space = 1
        self._dictionaries: dict[int, model.DictionaryInfo] = {}
        self._adopted = list(adopted or [])
        for pid in self._adopted:
            self._manage(self.targets[pid])

    def add_child(self, parent_pid: int, pages_out: int) -> int:
        """Make a forked child of an attached target; returns its space id."""
        with self._lock:
            parent = self.attached[parent_pid]
            child = FakeTarget(0, pages_out, parent.command, 0, pages_out=pages_out)
            child.parent_id = parent.space_id
            child.space_id = self._take_space_id()
            self.children[child.space_id] = child
            return child.space_id

    def end_target(self, pid: int) -> None:
        """Let a process exit: its space goes, as with the real engine."""
        with self._lock:
            self.targets.pop(pid, None)
            self.attached.pop(pid, None)

    def adopted(self, *, not_in: tuple[str, ...] = ()) -> list[int]:
        """Pids of targets taken over at start; without those of some domains."""
        return [pid for pid in self._adopted if self.targets[pid].kinship[0] not in not_in]

    def attach(
        self, pid: int, start_time: int | None = None, *, domain: str = "", image: str = ""
    ) -> model.AttachReport:
        """Start to manage a process."""
        with self._lock:
            self.calls.append(("attach", pid))
            target = self.targets.get(pid)
            if target is None or (start_time is not None and start_time != target.start_time):
                raise NoSuchProcess(f"no such process: {pid}")
            if pid in self.attached:
                raise AlreadyAttached(f"already attached: {pid}")
            self._manage(target)
            target.kinship = (domain, image)
            return model.AttachReport(pid, 200.0, 900.0, [])

    def page_out(
        self,
        pid: int,
        ranges: list[tuple[int, int]] | None = None,
        keep: list[tuple[int, int]] | None = None,
        pages_max: int | None = None,
    ) -> model.PageOutReport:
        """Count every page as out; ranges are not modelled."""
        with self._lock:
            self.calls.append(("page_out", pid))
            target = self._managed(pid)
            moved = target.pages - target.pages_out
            if pages_max is not None:
                moved = min(moved, pages_max)
            target.pages_out += moved
            return model.PageOutReport(
                pid=pid,
                pages_moved=moved,
                pages_stored=moved,
                pages_clean=0,
                pages_same_filled=0,
                pages_deduplicated=0,
                pages_raw=0,
                pages_returned=0,
                pages_pinned=0,
                regions_skipped=0,
                bytes_logical=moved * _PAGE_BYTES,
                bytes_stored=moved * _STORED_PAGE_BYTES,
                chunks=-(-moved // 1024),
                elapsed_us=10.0 * moved,
                stop_us=150.0 if moved else 0.0,
                hold_us=[100.0] * -(-moved // 1024),
                pool_full=False,
                interrupted=False,
            )

    def page_in(self, pid: int, ranges: list[tuple[int, int]] | None = None) -> model.PageInReport:
        """Count every page as home."""
        with self._lock:
            self.calls.append(("page_in", pid))
            return self._bring_home(self._managed(pid))

    def page_in_space(self, space_id: int) -> model.PageInReport:
        """Count every page of a child as home; the child is forgotten then."""
        with self._lock:
            self.calls.append(("page_in_space", space_id))
            child = self.children.get(space_id)
            if child is None:
                raise NotAttached(f"no such space: {space_id}")
            report = self._bring_home(child)
            if not report.pages_out:
                del self.children[space_id]
            return report

    def wake(
        self, pid: int, *, pages_max: int | None = None, first: int | None = None
    ) -> model.WakeReport:
        """Count the learned pages as home, and learn those that are needed."""
        with self._lock:
            self.calls.append(("wake", pid))
            target = self._managed(pid)
            wanted = target.pages if pages_max is None else pages_max
            brought = min(wanted, target.learned_pages, target.pages_out)
            present = min(target.learned_pages, target.pages) - brought
            target.pages_out -= brought
            target.pages_prefetched += brought
            target.wakes += 1
            target.learned_pages = max(target.learned_pages, target.pages_needed)
            return model.WakeReport(pid, brought, 0, present, 0, 0, 2.0 * brought)

    def set_prefetch(
        self, pid: int, *, replay: bool, window_min: int = 16, window_max: int = 0
    ) -> None:
        """Remember the choice."""
        with self._lock:
            if window_max and not 16 <= window_min <= window_max <= 256:
                raise InvalidSetting(f"window is out of range: {window_min}..{window_max}")
            self._managed(pid).prefetch = (replay, window_min, window_max)

    def learned(self, pid: int) -> model.LearnedSet:
        """The first pages of the heap, which leave first; all are expected."""
        target = self._managed(pid)
        pages, out = target.learned_pages, min(target.learned_pages, target.pages_out)
        return model.LearnedSet(pid, pages, pages, out, target.wakes)

    def hottest(self, pid: int, pages_max: int) -> list[tuple[int, int]]:
        """The last ones of the learned pages."""
        learned = self.learned(pid)
        start, end = (_HEAP_START + n * _PAGE_BYTES for n in (learned.pages_out, learned.pages))
        return [(max(start, end - pages_max * _PAGE_BYTES), end)] if start < end else []

    def export_learned(self, pid: int) -> bytes:
        """The number of learned pages, in words."""
        with self._lock:
            return _LEARNED_MAGIC + str(self._managed(pid).learned_pages).encode()

    def import_learned(self, pid: int, data: bytes) -> int:
        """What another target has learned, as far as this one has pages."""
        with self._lock:
            target = self._managed(pid)
            number = data.removeprefix(_LEARNED_MAGIC)
            if number == data or not number.isdigit():
                raise InvalidSetting("data: it is no learned set")
            usable = min(int(number), target.pages)
            target.learned_pages = max(target.learned_pages, usable)
            return usable

    def refaults(self, pid: int) -> list[model.Refault]:
        """What the target was given, once."""
        with self._lock:
            target = self._managed(pid)
            told, target.refaults = target.refaults, []
            return told

    def detach(
        self, pid: int, memory_floor_bytes: int = model.MEMORY_FLOOR_BYTES
    ) -> model.DetachReport:
        """Bring everything home and forget the process, unless pages are stuck."""
        with self._lock:
            self.calls.append(("detach", pid))
            target = self._managed(pid)
            if target.detach_error is not None:
                raise target.detach_error
            report = self._bring_home(target)
            if complete := report.pages_out == 0:
                del self.attached[pid]
            return model.DetachReport(
                pid, report.pages_in, report.pages_out, complete, report.elapsed_us, 150.0
            )

    def regions(self, pid: int) -> list[model.Region]:
        """One heap and one code region."""
        with self._lock:
            target = self.targets.get(pid)
            if target is None:
                raise NoSuchProcess(f"no such process: {pid}")
            heap_end = _HEAP_START + target.pages * _PAGE_BYTES
            out = target.pages_out * _PAGE_BYTES
            resident = target.pages * _PAGE_BYTES - out
            return [
                model.Region(
                    0x1000, 0x5000, "r-xp", "/bin/true", "file", "code", 16384, 0, False, "a file"
                ),
                model.Region(
                    _HEAP_START,
                    heap_end,
                    "rw-p",
                    "[heap]",
                    "heap",
                    "interpreter heap",
                    resident,
                    out,
                    True,
                    "private",
                ),
            ]

    def train(
        self,
        pid: int,
        *,
        name: str = "trained",
        bytes_max: int = 262_144,
        pages_max: int = 8_000,
        normalised: bool = False,
    ) -> model.Training:
        """Keep a dictionary of the full size that gains a tenth."""
        with self._lock:
            target = self._managed(pid)
            domain = f"{target.kinship[0]}{'*' if normalised else ''}"
            number = self._keep_dictionary(name, domain, bytes_max)
            return model.Training(number, bytes_max, min(target.pages, pages_max), 1.1, 1000.0)

    def add_dictionary(self, data: bytes, *, name: str) -> int:
        """Keep a dictionary for everybody."""
        with self._lock:
            return self._keep_dictionary(name, "", len(data))

    def use_dictionary(self, pid: int, dictionary_id: int | None = None) -> None:
        """Remember the choice."""
        with self._lock:
            if dictionary_id is not None:
                self._dictionary(dictionary_id)
            self._managed(pid).dictionary_id = dictionary_id

    def measure_dictionary(self, pid: int, dictionary_id: int) -> float:
        """Every dictionary gains a tenth."""
        with self._lock:
            self._managed(pid)
            self._dictionary(dictionary_id)
            return 1.1

    def drop_dictionary(self, dictionary_id: int) -> None:
        """Forget a dictionary at once; fake pages do not need it."""
        with self._lock:
            self._dictionary(dictionary_id)
            del self._dictionaries[dictionary_id]

    def dictionaries(self) -> list[model.DictionaryInfo]:
        """Every dictionary kept."""
        with self._lock:
            return list(self._dictionaries.values())

    def dictionary_bytes(self, dictionary_id: int) -> bytes:
        """As many zeros as the dictionary is long."""
        with self._lock:
            return bytes(self._dictionary(dictionary_id).bytes)

    def recode(
        self,
        pid: int,
        *,
        tier: str = "cold",
        dictionary_id: int | None = None,
        peer: int | None = None,
        budget_us: int | None = None,
    ) -> model.RecodeReport:
        """Pass all pages at once; they halve."""
        with self._lock:
            self.calls.append(("recode", pid))
            target = self._managed(pid)
            if dictionary_id is not None:
                self._dictionary(dictionary_id)
            if peer is not None:
                self._managed(peer)
            target.tier = tier
            pages = 0 if budget_us == 0 else target.pages_out
            before = pages * _STORED_PAGE_BYTES
            return model.RecodeReport(
                pid, pages, pages, 0, before, before // 2, 100.0 * pages, budget_us != 0, False
            )

    def compact(self, budget_us: int | None = None) -> model.CompactReport:
        """Find nothing to move."""
        pool = self.stats().pool_bytes
        return model.CompactReport(0, pool, pool, 0.0, budget_us != 0)

    def spill(self, pid: int, *, pages_max: int | None = None) -> model.SpillReport:
        """Refuse: the fake host has no swap file."""
        with self._lock:
            self._managed(pid)
            raise InvalidSetting("disk_path: no swap file is configured")

    def losses(self) -> list[str]:
        """Nothing is ever lost."""
        return []

    def census(self, pid: int) -> list[model.CensusRow]:
        """One class, one codec."""
        with self._lock:
            pages = self._managed(pid).pages_out
            return [model.CensusRow("interpreter heap", "zstd", pages, pages * _STORED_PAGE_BYTES)]

    def payload_bytes_out(self) -> int:
        """No copy of a page at home is kept."""
        return self.stats().pool_payload_bytes

    def release_caches(self) -> None:
        """Nothing is cached."""

    def spaces(self) -> list[model.SpaceStatus]:
        """Status of all managed targets and children."""
        with self._lock:
            managed = [*self.attached.values(), *self.children.values()]
            return [
                model.SpaceStatus(
                    id=target.space_id,
                    pid=target.pid,
                    parent_id=target.parent_id,
                    command=target.command,
                    state="attached" if target.pid else "child",
                    pages_out=target.pages_out,
                    pages_staged=0,
                    pages_kept=0,
                    pages_same_filled=0,
                    pages_lost=0,
                    bytes_logical=target.pages_out * _PAGE_BYTES,
                    bytes_pool=target.pages_out * _STORED_PAGE_BYTES,
                    bytes_table=_PAGE_BYTES,
                    faults=target.faults,
                    faults_zero=0,
                    wakes=target.wakes,
                    pages_prefetched=target.pages_prefetched,
                    pages_spared=0,
                    pages_spared_touched=0,
                    pages_missed=0,
                    pages_late=0,
                    pages_windowed=0,
                    learned_pages=target.learned_pages,
                    refaults_dropped=0,
                    prefetching=False,
                )
                for target in managed
            ]

    def stats(self) -> model.EngineStats:
        """Counters derived from the targets."""
        with self._lock:
            spaces = self.spaces()
            pool = sum(space.bytes_pool for space in spaces)
            quiet = model.Latency(0, 0.0, 0.0, 0.0, 0.0)
            return model.EngineStats(
                pool_bytes=pool,
                pool_payload_bytes=pool,
                pool_bytes_max=10**9,
                pool_slots=sum(space.pages_out for space in spaces),
                pool_waste_bytes=0,
                index_bytes=0,
                dictionary_bytes=sum(info.bytes for info in self._dictionaries.values()),
                learned_bytes=16 * sum(space.learned_pages for space in spaces),
                disk_bytes=0,
                disk_bytes_max=0,
                table_bytes=sum(space.bytes_table for space in spaces),
                faults=sum(space.faults for space in spaces),
                faults_zero=0,
                faults_disk=0,
                faults_already_present=0,
                faults_retried=0,
                fault_panics=self.fault_panics,
                pages_lost=self.pages_lost,
                events_fork=0,
                events_remap=0,
                events_remove=0,
                events_unmap=0,
                **dict.fromkeys(model.LATENCIES, quiet),
                keeper_pid=0,
                keeper_restarts=self.keeper_restarts,
            )

    def reset_stats(self) -> None:
        """Nothing is recorded, so nothing is reset."""

    def close(self) -> None:
        """Refuse while spaces are managed."""
        with self._lock:
            if self.attached or self.children:
                raise TargetsRemain(f"{len(self.spaces())} spaces are still managed")
            self.closed = True

    def _manage(self, target: FakeTarget) -> None:
        target.space_id = self._take_space_id()
        self.attached[target.pid] = target

    def _take_space_id(self) -> int:
        self._next_space += 1
        return self._next_space - 1

    def _keep_dictionary(self, name: str, domain: str, length: int) -> int:
        number = max(self._dictionaries, default=0) + 1
        self._dictionaries[number] = model.DictionaryInfo(number, name, domain, length, 0, False)
        return number

    def _dictionary(self, dictionary_id: int) -> model.DictionaryInfo:
        found = self._dictionaries.get(dictionary_id)
        if found is None:
            raise InvalidSetting(
                f"dictionary is not known: {dictionary_id}", "`agentzip dict list` shows all"
            )
        return found

    def _managed(self, pid: int) -> FakeTarget:
        target = self.attached.get(pid)
        if target is None:
            raise NotAttached(f"not attached: {pid}")
        return target

    def _bring_home(self, target: FakeTarget) -> model.PageInReport:
        brought = target.pages_out - target.pages_stuck
        target.pages_out -= brought
        return model.PageInReport(
            pid=target.pid,
            pages_in=brought,
            pages_present=target.pages - target.pages_out - brought,
            pages_lost=0,
            pages_out=target.pages_out,
            elapsed_us=2.0 * brought,
        )
