"""
The seam: everything Python may ask of the Rust core.

One class, `Engine`, and plain frozen values that come back from it.
Every method releases the GIL; none calls back into Python.
Addresses are byte addresses in the target; sizes are bytes; durations are microseconds unless the
name says otherwise.  All methods may be called from any thread; two calls that name the same target
are serialised inside.

Every failure is raised as a subclass of `agentzip.errors.AgentZipError`.
"""

from typing import final

PAGE_SIZE: int
"""Base page size in bytes that the core was built for (4096)."""
STATE_FORMAT: int
"""Version of the shared-memory formats (tables, pool); a keeper with another one is refused."""
CRASH_POINTS: list[str]
"""Names of the fault-injection points, in the order of the protocol they belong to."""

@final
class EngineSettings:
    """How one engine runs; immutable."""

    def __init__(
        self,
        run_dir: str,
        *,
        pool_bytes_max: int = ...,
        algorithm: str = "zstd",
        level: int = 3,
        fault_threads: int = 2,
        stop_limit_us: int = 20_000,
        chunk_pages: int = 1024,
        crash_at: str | None = None,
        deduplicate: bool = True,
        disk_path: str | None = None,
        disk_bytes_max: int = 0,
    ) -> None:
        """
        Args:
            run_dir: Directory (made 0700 if missing) for the keeper's socket and the lock.
            pool_bytes_max: Hard cap on the pool's memory.
            algorithm: `zstd`, `lz4` or `raw`.
            level: Level of the algorithm; zstd -7..22, lz4 0 (fast) or 1..12 (HC).
            fault_threads: Number of fault threads (shards), 1..16.
            stop_limit_us: Longest time one thread of a target may be kept stopped.
            chunk_pages: Pages moved per step of a page out, 16..2048.
            crash_at: For tests: `NAME[:N[:ACTION]]`, kill this process at the Nth pass of that
                point, or at the first N `panic`, or seem to hear `again` or `no-memory`.
            deduplicate: Equal pages of a trust domain share one slot of the pool.
            disk_path: File that the coldest pages may be written to, encrypted; None for none.
            disk_bytes_max: Most bytes of that file.

        Raises:
            InvalidSetting: a value is out of its range; the message names it.
        """

@final
class AttachReport:
    pid: int
    stop_us: float
    """How long the one borrowed thread was stopped."""
    attach_us: float
    warnings: list[str]

@final
class PageOutReport:
    pid: int
    pages_moved: int
    """Pages taken out of the address space."""
    pages_stored: int
    """Of those, pages that reached the pool (the rest came back meanwhile)."""
    pages_clean: int
    """Of those stored, pages whose kept copy was still right: nothing was encoded."""
    pages_same_filled: int
    pages_deduplicated: int
    """Of those stored, pages whose contents a slot of the trust domain held already."""
    pages_raw: int
    pages_returned: int
    """Pages the target touched before they were stored; answered from staging."""
    pages_pinned: int
    """Pages that the kernel refused to move (pinned, or still shared after a fork)."""
    regions_skipped: int
    bytes_logical: int
    bytes_stored: int
    chunks: int
    elapsed_us: float
    stop_us: float
    """The one stop of a borrowed thread; 0.0 when there was nothing to move."""
    hold_us: list[float]
    """Per chunk: how long faults of this target had to wait for the move."""
    pool_full: bool
    """True when the page out ended early because the pool reached its cap; nothing was dropped."""
    interrupted: bool
    """True when it ended early because the target wakes (`wake`, or its refaults)."""

@final
class PageInReport:
    pid: int
    pages_in: int
    """Pages brought home by this call."""
    pages_present: int
    """Pages that were home already (the newer content was kept)."""
    pages_lost: int
    """Pages whose stored copy failed its checksum: the toucher gets SIGBUS."""
    pages_out: int
    """Pages still out after the call."""
    elapsed_us: float

@final
class DetachReport:
    pid: int
    pages_in: int
    pages_out: int
    """Pages that could not be brought home; > 0 only when memory was too short (still attached)."""
    complete: bool
    elapsed_us: float
    stop_us: float

@final
class SpaceStatus:
    """One managed address space: an attached target, or a child that was forked from one."""

    id: int
    pid: int
    """Process id; 0 for a forked child that was never attached itself."""
    parent_id: int
    """Space this one was forked from; 0 if none."""
    command: str
    state: str
    """`attached`, `child`, `attaching`, `detaching` or `gone`."""
    pages_out: int
    pages_staged: int
    pages_kept: int
    """Pages at home whose pool copy is kept so that they can leave again without encoding."""
    pages_same_filled: int
    pages_lost: int
    bytes_logical: int
    """4096 x pages out."""
    bytes_pool: int
    """Encoded bytes of its pages; a slot shared with a forked child counts for both."""
    bytes_table: int
    faults: int
    faults_zero: int
    """Faults on never-populated pages, answered with zero pages."""
    wakes: int
    """Announced or seen, since the attach or the takeover: what is learned dies with the engine."""
    pages_prefetched: int
    """Learned pages brought by wakes; precision x these are hits."""
    pages_spared: int
    pages_spared_touched: int
    """What the pages left to fault, and of them those that did, stand for: precision is their
    quotient, waste is 1 minus it."""
    pages_missed: int
    """Faults in a wake on what it did not mean to bring; hit rate = hits / (hits + these)."""
    pages_late: int
    """Learned pages that were touched before a wake had brought them."""
    pages_windowed: int
    """Pages brought because a neighbour was touched."""
    learned_pages: int
    refaults_dropped: int
    """Pages that `refaults` cannot tell any more, because nobody asked in time."""
    prefetching: bool

@final
class WakeReport:
    """What a wake brought home."""

    pid: int
    pages_in: int
    pages_following: int
    pages_present: int
    """Learned pages that were home already."""
    pages_spared: int
    """Learned pages left to fault, to see whether they are needed."""
    pages_lost: int
    """Learned pages that cannot be produced: who touches them gets SIGBUS."""
    elapsed_us: float

@final
class LearnedSet:
    """Pages that a target needs when it wakes."""

    pid: int
    pages: int
    pages_expected: int
    """Of them, those that the next wake is expected to need."""
    pages_out: int
    """Of those expected, the ones that are out now."""
    wakes: int

@final
class Refault:
    """Pages in a row that came back because they were touched."""

    start: int
    end: int
    after_ms: int
    """Milliseconds after the end of the page out that came before."""

@final
class Training:
    """A dictionary that was trained and kept."""

    id: int
    bytes: int
    pages_sampled: int
    gain: float
    """Encoded size of held-out pages without the dictionary, divided by that with it."""
    cpu_us: float

@final
class DictionaryInfo:
    id: int
    name: str
    domain: str
    """Hash of the trust domain whose pages made it; empty for one that anybody may use."""
    bytes: int
    uses: int
    """Stored pages that need it."""
    dropped: bool
    """Not offered for new pages any more; it goes with its last page."""

@final
class RecodeReport:
    """What a background pass over the stored pages of one target did."""

    pid: int
    pages_seen: int
    """Stored pages that the tier could improve; each was decoded and tried."""
    pages_recoded: int
    pages_delta: int
    """Of those recoded, pages stored as a difference to similar ones."""
    bytes_before: int
    """Encoded bytes of the pages recoded, before; `bytes_after` the same, now."""
    bytes_after: int
    cpu_us: float
    done: bool
    """The whole target was passed; if not, the next call goes on where this one ended."""
    preempted: bool
    """The pass gave way to a fault of the target or to another operation on it."""

@final
class CompactReport:
    pages_moved: int
    bytes_before: int
    """Memory of the pool before; `bytes_after` the same, now."""
    bytes_after: int
    cpu_us: float
    done: bool

@final
class SpillReport:
    pid: int
    pages_spilled: int
    bytes_spilled: int
    """Pool bytes that those pages gave up."""
    cpu_us: float
    stopped: str
    """Why it ended early, in words; empty if it did not. Nothing is lost then."""

@final
class CensusRow:
    """Pages of a target that are out, of one class of memory and in one encoding."""

    class_name: str
    codec: str
    """`raw`, `lz4`, `zstd`, `zstd-dict`, `cold`, `delta`, `disk`, or `same` (same-filled)."""
    pages: int
    bytes: int
    """Encoded bytes; a slot that several pages share counts for each."""

@final
class Latency:
    """A latency distribution, recorded since the engine started or `reset_stats`."""

    count: int
    p50_us: float
    p99_us: float
    max_us: float
    mean_us: float

@final
class EngineStats:
    pool_bytes: int
    """Memory the pool really takes (whole spans), never above the cap."""
    pool_payload_bytes: int
    """Encoded bytes in live slots."""
    pool_bytes_max: int
    pool_slots: int
    pool_waste_bytes: int
    """Memory of the pool that holds no encoded byte: rounding, and free parts of spans."""
    table_bytes: int
    index_bytes: int
    """Memory of the books on slots and of what finds equal and similar pages."""
    dictionary_bytes: int
    """Memory of dictionaries and layouts, with their decoding tables."""
    learned_bytes: int
    """Memory of what targets have learned; it is this process's own, as `index_bytes` is."""
    disk_bytes: int
    """Bytes of the swap file that are taken."""
    disk_bytes_max: int
    faults: int
    faults_zero: int
    faults_disk: int
    faults_already_present: int
    """EEXIST answers: the page was home already; the toucher was woken explicitly."""
    faults_retried: int
    """Faults put aside (EAGAIN, page in motion) and served later."""
    fault_panics: int
    """Panics of fault threads: a bug, survived; what was not answered is tried again."""
    pages_lost: int
    events_fork: int
    events_remap: int
    events_remove: int
    events_unmap: int
    fault_service: Latency
    """From reading the fault message to the end of UFFDIO_COPY."""
    decode: Latency
    encode: Latency
    stop: Latency
    hold: Latency
    wake: Latency
    """From a wake, announced or seen, until the learned set is home."""
    keeper_pid: int
    keeper_restarts: int

@final
class Region:
    """One mapping of a process, as `inspect` shows it."""

    start: int
    end: int
    protection: str
    name: str
    kind: str
    """
    `heap`, `anonymous`, `stack`, `file`, `file-private-written`, `shared`, `special` or `helper`.
    """
    class_name: str
    """What it holds, as far as can be told: `interpreter heap`, `v8 heap`, `array`, ..."""
    resident_bytes: int
    out_bytes: int
    movable: bool
    reason: str
    """Why the region may or may not leave, in a short sentence."""

@final
class ClassForecast:
    """What is to be expected of one class of memory of a process."""

    class_name: str
    resident_bytes: int
    movable_bytes: int
    """Of those resident, bytes in regions that may leave."""
    pages: int
    """Pages that would leave; the kernel's zero page, which is not resident memory, counts."""
    pages_sampled: int
    pages_same_filled: int
    """Of those sampled, pages that repeat one word: an entry, no bytes."""
    pages_raw: int
    """Of those sampled, pages that no encoder makes smaller."""
    pages_equal: int
    """Of those sampled, pages equal to another one of the sample; counted once."""
    stored_bytes: int
    """Encoded bytes of all its pages, as predicted."""
    stored_bytes_dictionary: int
    """The same with a dictionary made from one half of the sample, measured on the other."""

@final
class Stay:
    """Memory of a process that may not leave."""

    reason: str
    resident_bytes: int

@final
class Analysis:
    """What is to be expected of a page out of a process."""

    pid: int
    command: str
    rss_bytes: int
    pss_bytes: int
    leaving_pss_bytes: int
    """Of `pss_bytes`, what would leave."""
    pool_bytes: int
    """Memory that the pool would take."""
    pool_bytes_dictionary: int
    """The same with a dictionary; the dictionary's own bytes come on top."""
    table_bytes: int
    """Memory of the page table: 16 bytes a page, more where pages are scattered."""
    dictionary_bytes: int
    """0: none was tried, because the sample is too small or pages are stored as they are."""
    classes: list[ClassForecast]
    stays: list[Stay]
    cpu_us: float

@final
class TargetInfo:
    """What can be said of a process before attaching."""

    pid: int
    start_time: int
    """Field 22 of /proc/PID/stat, clock ticks after boot: with the pid, an identity."""
    command: str
    threads: int
    seccomp: int

@final
class Engine:
    """The pager of one host: its pool, its fault threads, its keeper and all attached targets."""

    def __init__(self, settings: EngineSettings) -> None:
        """
        Start the engine; take over from a keeper left behind by a killed one.

        Raises:
            Unsupported: the kernel lacks what the pager needs (the message names the feature).
            NotPermitted: a capability or device is missing.
            AlreadyRunning: another live engine owns `run_dir`.
            IncompatibleState: the keeper holds a state format this version does not know.
        """

    def adopted(self, *, not_in: list[str] = ...) -> list[int]:
        """Pids of targets taken over at start; without those of some trust domains."""

    def attach(
        self, pid: int, start_time: int | None = None, *, domain: str = "", image: str = ""
    ) -> AttachReport:
        """
        Borrow a process: from now on its memory can be paged out.

        Args:
            pid: Process (thread group) id.
            start_time: If given, the `TargetInfo.start_time` the pid must still have.
            domain: Trust domain; equal pages, similar pages and trained dictionaries are shared
                inside one only.
            image: What it was made from; targets of one image resemble each other.

        Raises:
            NoSuchProcess, PidReused, NotPermitted, AlreadyTraced, OwnProcess, KernelThread,
            WrongArchitecture, AlreadyAttached, TargetBusy, TargetGone, Unsupported.
        """

    def page_out(
        self,
        pid: int,
        ranges: list[tuple[int, int]] | None = None,
        keep: list[tuple[int, int]] | None = None,
        pages_max: int | None = None,
    ) -> PageOutReport:
        """
        Move resident pages into the pool.

        Args:
            pid: An attached target.
            ranges: (start, end) byte ranges to consider; None means every movable region.
            keep: (start, end) byte ranges that must stay resident.
            pages_max: No step of `chunk_pages` begins once so many pages have moved.

        Raises:
            NotAttached, TargetBusy, TargetGone.
        """

    def page_in(self, pid: int, ranges: list[tuple[int, int]] | None = None) -> PageInReport:
        """Bring pages home; raises NotAttached, TargetGone, NotEnoughMemory."""

    def wake(
        self, pid: int, *, pages_max: int | None = None, first: int | None = None
    ) -> WakeReport:
        """
        Announce that a sandbox wakes: bring what it has learned to need, at most `pages_max`.

        Returns when the `first` needed pages are home; the others follow while it runs.  Waits for
        a page out in progress, and ends early for the next operation on the target.

        Raises:
            NotAttached, TargetGone.
        """

    def set_prefetch(
        self, pid: int, *, replay: bool, window_min: int = 16, window_max: int = 0
    ) -> None:
        """
        Choose what refaults set off; nothing at first.

        Args:
            pid: An attached target.
            replay: A burst of refaults of learned pages is a wake: bring the set home.
            window_min: Pages brought around refaults beside each other, at first (16..256).
            window_max: The same if that pays; 0: never any.

        Raises:
            NotAttached; InvalidSetting: a size is out of its range.
        """

    def learned(self, pid: int) -> LearnedSet:
        """What a target needs when it wakes; raises NotAttached."""

    def hottest(self, pid: int, pages_max: int) -> list[tuple[int, int]]:
        """Of what is expected and at home, the surest pages: (start, end), the surest first."""

    def export_learned(self, pid: int) -> bytes:
        """What is learned, independent of addresses; raises NotAttached, TargetGone."""

    def import_learned(self, pid: int, data: bytes) -> int:
        """
        Let a target begin with what another one has learned; returns how many pages it can use.

        Raises:
            NotAttached, TargetGone; InvalidSetting: the data is no learned set.
        """

    def refaults(self, pid: int) -> list[Refault]:
        """
        Pages that came back because they were touched, since the last call, oldest first.

        The last 4096 pages are kept, none of while a page out ran; raises NotAttached.
        """

    def detach(self, pid: int, memory_floor_bytes: int = 67_108_864) -> DetachReport:
        """
        Bring every page home, remove every trace, forget the target.

        Stops before MemAvailable would fall below the floor; then `complete` is False, the target
        stays attached and served, and the call can be repeated.

        Raises:
            NotAttached.
        """

    def train(
        self,
        pid: int,
        *,
        name: str = "trained",
        bytes_max: int = 262_144,
        pages_max: int = 8_000,
        normalised: bool = False,
    ) -> Training:
        """
        Train a dictionary from a target's own pages, resident and stored, and keep it.

        It lives in shared memory as long as pages need it, also across a kill -9 of this process.

        Args:
            pid: An attached target.
            name: What people will see.
            bytes_max: Largest dictionary.
            pages_max: Most pages to sample.
            normalised: For the cold tier: addresses are replaced by region and offset first.

        Raises:
            NotAttached; InvalidSetting: there are too few pages.
        """

    def add_dictionary(self, data: bytes, *, name: str) -> int:
        """
        Keep a dictionary that any target may use; returns its id.

        Raises:
            InternalError: the bytes are no zstd dictionary.
        """

    def use_dictionary(self, pid: int, dictionary_id: int | None = None) -> None:
        """
        Choose what the next page outs of a target encode with; None for no dictionary.

        Raises:
            NotAttached; InvalidSetting: no such dictionary, or one of another trust domain.
        """

    def measure_dictionary(self, pid: int, dictionary_id: int) -> float:
        """
        Encoded size of a sample of the target's pages without it, divided by that with it.

        Raises:
            NotAttached; InvalidSetting: as for `use_dictionary`.
        """

    def drop_dictionary(self, dictionary_id: int) -> None:
        """
        Offer a dictionary no more; it lives until its last page is gone.

        Raises:
            InvalidSetting: there is no such dictionary.
        """

    def dictionaries(self) -> list[DictionaryInfo]: ...
    def dictionary_bytes(self, dictionary_id: int) -> bytes:
        """
        The bytes of a dictionary, for saving it.

        Raises:
            InvalidSetting: there is no such dictionary.
        """

    def recode(
        self,
        pid: int,
        *,
        tier: str = "cold",
        dictionary_id: int | None = None,
        peer: int | None = None,
        budget_us: int | None = None,
    ) -> RecodeReport:
        """
        Make the stored pages of a target smaller, at the lowest priority.

        Gives way to faults of the target and to other operations on it; call again to go on.

        Args:
            pid: An attached target.
            tier: `warm` (a dictionary), `cold` (a dictionary at a high level, and differences to
                similar pages) or `frozen` (the same at the highest level).
            dictionary_id: What independent pages are encoded with.
            peer: A target of the same trust domain whose pages may lead, too.
            budget_us: Stop after this time; None passes the whole target.

        Raises:
            NotAttached; InvalidSetting: tier, dictionary or peer cannot be.
        """

    def compact(self, budget_us: int | None = None) -> CompactReport:
        """Give pool memory that is half empty back to the host."""

    def spill(self, pid: int, *, pages_max: int | None = None) -> SpillReport:
        """
        Write stored pages of a target to the swap file, encrypted.

        Each is flushed, read back and compared before the pool gives it up.

        Raises:
            NotAttached; InvalidSetting: there is no swap file.
        """

    def losses(self) -> list[str]:
        """Why pages could not be produced, the last ones; each toucher got SIGBUS."""

    def census(self, pid: int) -> list[CensusRow]:
        """
        Count what of a target is out, by class of memory and by codec.

        Raises:
            NotAttached.
        """

    def payload_bytes_out(self) -> int:
        """Encoded bytes that pages that are out need; the rest is copies of pages at home."""

    def release_caches(self) -> None:
        """Drop what finds equal and similar pages; it is made again when needed."""

    def page_in_space(self, space_id: int) -> PageInReport:
        """Bring home all pages of one space by its id (forked children have no pid here)."""

    def spaces(self) -> list[SpaceStatus]:
        """By id; of a space that has not changed since the last call the same object again."""

    def stats(self) -> EngineStats: ...
    def reset_stats(self) -> None: ...
    def close(self) -> None:
        """Stop the fault threads and the keeper; raises TargetsRemain while spaces are managed."""

def analyze(
    pid: int, *, algorithm: str = "zstd", level: int = 3, pages_max: int = 2_000
) -> Analysis:
    """
    Sample a live process without attaching, and say what a page out would gain.

    Only pages in memory are read, through /proc/PID/mem; nothing is stopped, traced or changed.
    Equal pages outside of the sample are not known, so the prediction errs to the cautious side.

    Args:
        pid: Process (thread group) id.
        algorithm: `zstd`, `lz4` or `raw`.
        level: Level of the algorithm.
        pages_max: Most pages to read, 64 to 20000; a small class of memory is sampled beyond it.

    Raises:
        The refusals of `Engine.attach`; TargetGone: it ended or became another program meanwhile;
        Unsupported: the kernel cannot tell which pages are in memory.
    """

def describe(pid: int) -> TargetInfo:
    """Check that a process could be attached, touching nothing; raises as `Engine.attach`."""

def regions(pid: int, engine: Engine | None = None) -> list[Region]:
    """Every mapping of a process with the pager's decision; with an engine also what is out."""

def features() -> dict[str, str]:
    """
    Probe what this kernel allows: feature name -> "" if it works, else the exact cause.

    Keys: userfaultfd_device, uffd_move, uffd_poison, uffd_wp_async, pagemap_scan, pidfd_thread,
    pidfd_getfd, ptrace, suspend_seccomp.
    """
