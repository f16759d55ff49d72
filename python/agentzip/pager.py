"""
The door to the engine: the only module that imports `_native`.

`Pager` is what the rest of the package relies on; `open_engine` gives the real one and
`agentzip.testing.FakeEngine` is another.
The native module is imported on first use, not at import time, so that `agentzip --help`,
`agentzip doctor` and the unit tests work where it is missing or was built for another machine.
"""

from dataclasses import fields
from types import ModuleType
from typing import Protocol

from agentzip import model
from agentzip.errors import InternalError

__all__ = [
    "Pager",
    "analyze",
    "crash_points",
    "describe",
    "features",
    "open_engine",
    "page_size",
    "regions",
]


class Pager(Protocol):
    """What an engine can do; every method may be called from any thread."""

    def adopted(self, *, not_in: tuple[str, ...] = ()) -> list[int]:
        """Pids of targets taken over from a keeper at start; without those of some domains."""

    def attach(
        self, pid: int, start_time: int | None = None, *, domain: str = "", image: str = ""
    ) -> model.AttachReport:
        """
        Borrow a process; raises the exact reason if it is refused.

        A parent of it must not ask for its end with waitpid(2) meanwhile, which also takes the
        stops away that the engine waits for; a pidfd tells of the end and of nothing else.
        """

    def page_out(
        self,
        pid: int,
        ranges: list[tuple[int, int]] | None = None,
        keep: list[tuple[int, int]] | None = None,
        pages_max: int | None = None,
    ) -> model.PageOutReport:
        """Move resident pages of an attached target into the pool."""

    def page_in(self, pid: int, ranges: list[tuple[int, int]] | None = None) -> model.PageInReport:
        """Bring pages of an attached target home."""

    def page_in_space(self, space_id: int) -> model.PageInReport:
        """Bring home all pages of one space, for forked children."""

    def wake(
        self, pid: int, *, pages_max: int | None = None, first: int | None = None
    ) -> model.WakeReport:
        """
        Announce that a sandbox wakes: what it has learned to need comes home.

        Returns when the `first` needed pages are there; the others follow while it runs.
        """

    def set_prefetch(
        self, pid: int, *, replay: bool, window_min: int = 16, window_max: int = 0
    ) -> None:
        """Choose what refaults of a target set off: a replay of its wake, and windows."""

    def learned(self, pid: int) -> model.LearnedSet:
        """What a target needs when it wakes."""

    def hottest(self, pid: int, pages_max: int) -> list[tuple[int, int]]:
        """Of what the next wake is expected to need and is at home, the surest, as ranges."""

    def export_learned(self, pid: int) -> bytes:
        """What a target has learned, independent of its addresses: for others of its image."""

    def import_learned(self, pid: int, data: bytes) -> int:
        """Let a target begin with what another has learned; how many pages it can use."""

    def refaults(self, pid: int) -> list[model.Refault]:
        """Pages that came back because they were touched, since the last call."""

    def detach(
        self, pid: int, memory_floor_bytes: int = model.MEMORY_FLOOR_BYTES
    ) -> model.DetachReport:
        """Bring everything home and remove every trace."""

    def train(
        self,
        pid: int,
        *,
        name: str = "trained",
        bytes_max: int = 262_144,
        pages_max: int = 8_000,
        normalised: bool = False,
    ) -> model.Training:
        """Train a dictionary from a target's own pages and keep it."""

    def add_dictionary(self, data: bytes, *, name: str) -> int:
        """Keep a dictionary that any target may use."""

    def use_dictionary(self, pid: int, dictionary_id: int | None = None) -> None:
        """Choose what the next page outs of a target encode with."""

    def measure_dictionary(self, pid: int, dictionary_id: int) -> float:
        """What a dictionary gains on a sample of the target's pages."""

    def drop_dictionary(self, dictionary_id: int) -> None:
        """Offer a dictionary no more; it lives until its last page is gone."""

    def dictionaries(self) -> list[model.DictionaryInfo]:
        """Every dictionary that is offered or still needed."""

    def dictionary_bytes(self, dictionary_id: int) -> bytes:
        """The bytes of a dictionary, for saving it."""

    def recode(
        self,
        pid: int,
        *,
        tier: str = "cold",
        dictionary_id: int | None = None,
        peer: int | None = None,
        budget_us: int | None = None,
    ) -> model.RecodeReport:
        """Make the stored pages of a target smaller, in the background."""

    def compact(self, budget_us: int | None = None) -> model.CompactReport:
        """Give half-empty pool memory back to the host."""

    def spill(self, pid: int, *, pages_max: int | None = None) -> model.SpillReport:
        """Write stored pages to the swap file, encrypted."""

    def losses(self) -> list[str]:
        """Why pages could not be produced, the last ones."""

    def census(self, pid: int) -> list[model.CensusRow]:
        """Count what of a target is out, by class of memory and by codec."""

    def payload_bytes_out(self) -> int:
        """Encoded bytes that pages that are out need; the rest is copies of pages at home."""

    def release_caches(self) -> None:
        """Drop what can be made again."""

    def regions(self, pid: int) -> list[model.Region]:
        """Every mapping of a process, with what is out."""

    def spaces(self) -> list[model.SpaceStatus]:
        """Every managed address space; of one that has not changed the same object again."""

    def stats(self) -> model.EngineStats:
        """Counters and latencies since the start or the last `reset_stats`."""

    def reset_stats(self) -> None:
        """Start the latency distributions anew."""

    def close(self) -> None:
        """Stop the engine and its keeper; refused while spaces are managed."""


class _NativePager:
    """The Rust engine behind the protocol; copies its values into those of `model`."""

    def __init__(self, settings: model.Settings) -> None:
        native = _native_module()
        self._native = native
        self._engine = native.Engine(
            native.EngineSettings(
                str(settings.run_dir),
                pool_bytes_max=settings.pool_bytes_max,
                algorithm=settings.algorithm,
                level=settings.effective_level,
                fault_threads=settings.fault_threads,
                stop_limit_us=settings.stop_limit_us,
                chunk_pages=settings.chunk_pages,
                crash_at=settings.crash_at,
                deduplicate=settings.deduplicate,
                disk_path=None if settings.disk_path is None else str(settings.disk_path),
                disk_bytes_max=settings.disk_bytes_max,
            )
        )
        self._copies: dict[object, model.SpaceStatus] = {}
        """Of the spaces as they were told last."""

    def adopted(self, *, not_in: tuple[str, ...] = ()) -> list[int]:
        return list(self._engine.adopted(not_in=list(not_in)))

    def attach(
        self, pid: int, start_time: int | None = None, *, domain: str = "", image: str = ""
    ) -> model.AttachReport:
        report = self._engine.attach(pid, start_time, domain=domain, image=image)
        return model.from_object(model.AttachReport, report)

    def page_out(
        self,
        pid: int,
        ranges: list[tuple[int, int]] | None = None,
        keep: list[tuple[int, int]] | None = None,
        pages_max: int | None = None,
    ) -> model.PageOutReport:
        report = self._engine.page_out(pid, ranges, keep, pages_max)
        return model.from_object(model.PageOutReport, report)

    def page_in(self, pid: int, ranges: list[tuple[int, int]] | None = None) -> model.PageInReport:
        return model.from_object(model.PageInReport, self._engine.page_in(pid, ranges))

    def page_in_space(self, space_id: int) -> model.PageInReport:
        return model.from_object(model.PageInReport, self._engine.page_in_space(space_id))

    def wake(
        self, pid: int, *, pages_max: int | None = None, first: int | None = None
    ) -> model.WakeReport:
        report = self._engine.wake(pid, pages_max=pages_max, first=first)
        return model.from_object(model.WakeReport, report)

    def set_prefetch(
        self, pid: int, *, replay: bool, window_min: int = 16, window_max: int = 0
    ) -> None:
        self._engine.set_prefetch(pid, replay=replay, window_min=window_min, window_max=window_max)

    def learned(self, pid: int) -> model.LearnedSet:
        return model.from_object(model.LearnedSet, self._engine.learned(pid))

    def hottest(self, pid: int, pages_max: int) -> list[tuple[int, int]]:
        return [(start, end) for start, end in self._engine.hottest(pid, pages_max)]

    def export_learned(self, pid: int) -> bytes:
        return bytes(self._engine.export_learned(pid))

    def import_learned(self, pid: int, data: bytes) -> int:
        return int(self._engine.import_learned(pid, data))

    def refaults(self, pid: int) -> list[model.Refault]:
        found = self._engine.refaults(pid)
        return [model.from_object(model.Refault, refault) for refault in found]

    def detach(
        self, pid: int, memory_floor_bytes: int = model.MEMORY_FLOOR_BYTES
    ) -> model.DetachReport:
        return model.from_object(model.DetachReport, self._engine.detach(pid, memory_floor_bytes))

    def train(
        self,
        pid: int,
        *,
        name: str = "trained",
        bytes_max: int = 262_144,
        pages_max: int = 8_000,
        normalised: bool = False,
    ) -> model.Training:
        training = self._engine.train(
            pid, name=name, bytes_max=bytes_max, pages_max=pages_max, normalised=normalised
        )
        return model.from_object(model.Training, training)

    def add_dictionary(self, data: bytes, *, name: str) -> int:
        return int(self._engine.add_dictionary(data, name=name))

    def use_dictionary(self, pid: int, dictionary_id: int | None = None) -> None:
        self._engine.use_dictionary(pid, dictionary_id)

    def measure_dictionary(self, pid: int, dictionary_id: int) -> float:
        return float(self._engine.measure_dictionary(pid, dictionary_id))

    def drop_dictionary(self, dictionary_id: int) -> None:
        self._engine.drop_dictionary(dictionary_id)

    def dictionaries(self) -> list[model.DictionaryInfo]:
        found = self._engine.dictionaries()
        return [model.from_object(model.DictionaryInfo, info) for info in found]

    def dictionary_bytes(self, dictionary_id: int) -> bytes:
        return bytes(self._engine.dictionary_bytes(dictionary_id))

    def recode(
        self,
        pid: int,
        *,
        tier: str = "cold",
        dictionary_id: int | None = None,
        peer: int | None = None,
        budget_us: int | None = None,
    ) -> model.RecodeReport:
        report = self._engine.recode(
            pid, tier=tier, dictionary_id=dictionary_id, peer=peer, budget_us=budget_us
        )
        return model.from_object(model.RecodeReport, report)

    def compact(self, budget_us: int | None = None) -> model.CompactReport:
        return model.from_object(model.CompactReport, self._engine.compact(budget_us))

    def spill(self, pid: int, *, pages_max: int | None = None) -> model.SpillReport:
        report = self._engine.spill(pid, pages_max=pages_max)
        return model.from_object(model.SpillReport, report)

    def losses(self) -> list[str]:
        return list(self._engine.losses())

    def census(self, pid: int) -> list[model.CensusRow]:
        return [model.from_object(model.CensusRow, row) for row in self._engine.census(pid)]

    def payload_bytes_out(self) -> int:
        return int(self._engine.payload_bytes_out())

    def release_caches(self) -> None:
        self._engine.release_caches()

    def regions(self, pid: int) -> list[model.Region]:
        found = self._native.regions(pid, self._engine)
        return [model.from_object(model.Region, region) for region in found]

    def spaces(self) -> list[model.SpaceStatus]:
        # The engine gives the same object again of a space that has not changed: most have not.
        former = self._copies
        self._copies = {
            space: former.get(space) or model.from_object(model.SpaceStatus, space)
            for space in self._engine.spaces()
        }
        return list(self._copies.values())

    def stats(self) -> model.EngineStats:
        return model.from_object(model.EngineStats, self._engine.stats())

    def reset_stats(self) -> None:
        self._engine.reset_stats()

    def close(self) -> None:
        self._engine.close()


def open_engine(settings: model.Settings) -> Pager:
    """
    Start the real engine; it takes over from a keeper left behind in the run directory.

    Raises:
        Unsupported, NotPermitted, AlreadyRunning, IncompatibleState: see `_native.pyi`.
        InternalError: the native module is missing or does not load.
    """
    return _NativePager(settings)


def analyze(
    pid: int, *, algorithm: str = "zstd", level: int = 3, pages_max: int = 2_000
) -> model.Analysis:
    """Sample a live process without attaching: what a page out would gain, by class."""
    found = _native_module().analyze(pid, algorithm=algorithm, level=level, pages_max=pages_max)
    values = {field.name: getattr(found, field.name) for field in fields(model.Analysis)}
    values["classes"] = [model.from_object(model.ClassForecast, row) for row in found.classes]
    values["stays"] = [model.from_object(model.Stay, stay) for stay in found.stays]
    return model.Analysis(**values)


def describe(pid: int) -> model.TargetInfo:
    """Check that a process could be attached, touching nothing; raises the refusal if not."""
    return model.from_object(model.TargetInfo, _native_module().describe(pid))


def regions(pid: int) -> list[model.Region]:
    """Every mapping of a process with the pager's decision, without an engine."""
    return [model.from_object(model.Region, region) for region in _native_module().regions(pid)]


def features() -> dict[str, str]:
    """Feature name -> empty string if this kernel allows it, else the exact cause."""
    return dict(_native_module().features())


def crash_points() -> list[str]:
    """Names of the fault-injection points."""
    return list(_native_module().CRASH_POINTS)


def page_size() -> int:
    """Page size that the core was built for."""
    return int(_native_module().PAGE_SIZE)


def _native_module() -> ModuleType:
    try:
        from agentzip import _native
    except ImportError as error:
        raise InternalError(
            f"the native module does not load: {error}",
            "build it with `make setup`, or install the wheel made for this machine",
        ) from error
    return _native
