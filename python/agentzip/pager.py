"""
The door to the engine: the only module that imports `_native`.

`Pager` is what the rest of the package relies on; `open_engine` gives the real one and
`agentzip.testing.FakeEngine` is another.
The native module is imported on first use, not at import time, so that `agentzip --help`,
`agentzip doctor` and the unit tests work where it is missing or was built for another machine.
"""

from types import ModuleType
from typing import Protocol

from agentzip import model
from agentzip.errors import InternalError

__all__ = ["Pager", "crash_points", "describe", "features", "open_engine", "page_size", "regions"]


class Pager(Protocol):
    """What an engine can do; every method may be called from any thread."""

    def adopted(self) -> list[int]:
        """Pids of targets taken over from a keeper at start."""

    def attach(self, pid: int, start_time: int | None = None) -> model.AttachReport:
        """Borrow a process; raises the exact reason if it is refused."""

    def page_out(
        self,
        pid: int,
        ranges: list[tuple[int, int]] | None = None,
        keep: list[tuple[int, int]] | None = None,
    ) -> model.PageOutReport:
        """Move resident pages of an attached target into the pool."""

    def page_in(self, pid: int, ranges: list[tuple[int, int]] | None = None) -> model.PageInReport:
        """Bring pages of an attached target home."""

    def page_in_space(self, space_id: int) -> model.PageInReport:
        """Bring home all pages of one space, for forked children."""

    def detach(
        self, pid: int, memory_floor_bytes: int = model.MEMORY_FLOOR_BYTES
    ) -> model.DetachReport:
        """Bring everything home and remove every trace."""

    def regions(self, pid: int) -> list[model.Region]:
        """Every mapping of a process, with what is out."""

    def spaces(self) -> list[model.SpaceStatus]:
        """Every managed address space."""

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
            )
        )

    def adopted(self) -> list[int]:
        return list(self._engine.adopted())

    def attach(self, pid: int, start_time: int | None = None) -> model.AttachReport:
        return model.from_object(model.AttachReport, self._engine.attach(pid, start_time))

    def page_out(
        self,
        pid: int,
        ranges: list[tuple[int, int]] | None = None,
        keep: list[tuple[int, int]] | None = None,
    ) -> model.PageOutReport:
        return model.from_object(model.PageOutReport, self._engine.page_out(pid, ranges, keep))

    def page_in(self, pid: int, ranges: list[tuple[int, int]] | None = None) -> model.PageInReport:
        return model.from_object(model.PageInReport, self._engine.page_in(pid, ranges))

    def page_in_space(self, space_id: int) -> model.PageInReport:
        return model.from_object(model.PageInReport, self._engine.page_in_space(space_id))

    def detach(
        self, pid: int, memory_floor_bytes: int = model.MEMORY_FLOOR_BYTES
    ) -> model.DetachReport:
        return model.from_object(model.DetachReport, self._engine.detach(pid, memory_floor_bytes))

    def regions(self, pid: int) -> list[model.Region]:
        found = self._native.regions(pid, self._engine)
        return [model.from_object(model.Region, region) for region in found]

    def spaces(self) -> list[model.SpaceStatus]:
        return [model.from_object(model.SpaceStatus, space) for space in self._engine.spaces()]

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
