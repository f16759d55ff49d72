"""
The stage of one check: its folder, its engine, its targets, and the common end.

A check only says what is special about it.  That every target is alive and right afterwards, that
nothing of the pager is left in it and nothing of it in the pool, is checked here, for all.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

from agentzip import model
from agentzip.children import Stoppable
from agentzip.errors import AgentZipError, TargetBusy
from agentzip.pager import Pager, open_engine
from agentzip.selftest.build import ensure_built
from agentzip.selftest.conditions import (
    Snapshot,
    assert_free,
    assert_no_trace,
    assert_same,
    snapshot,
    wait_until,
)
from agentzip.selftest.registry import CheckFailed
from agentzip.selftest.targets import Target
from agentzip.selftest.tiers import DISK_BYTES_MAX, brought, expect_nothing_kept, forced

__all__ = ["Changes", "Stage"]

Changes = Literal["never", "when asked", "always"]
"""When a target changes its own mappings, descriptors and threads."""

_POOL_BYTES_MAX = 2**30
_BUSY_RETRIES = 20
"""How often an operation is tried again when no thread could be borrowed."""

_FREED_SECONDS = 3.0
"""How long after the last detach the pool may still hold pages of children that just ended."""


class Stage(Stoppable):
    """
    Everything one check works with; leaving it ends every target and the engine.

    Args:
        tier: Where everything that is paged out is brought, one of `registry.TIERS`.
    """

    def __init__(self, tier: str | None = None) -> None:
        self.tier = tier
        self.folder = Path(tempfile.mkdtemp(prefix="agentzip-check-"))
        # Targets of other users must reach their program in it; the engine's own part is 0700.
        self.folder.chmod(0o755)
        self.notes: list[str] = []
        self._engine: Pager | None = None
        self._keeper_pids: set[int] = set()
        self._targets: list[Target] = []
        self._attached: dict[int, Target] = {}
        self._before: dict[int, Snapshot] = {}
        self._changes: dict[int, Changes] = {}

    def stop(self) -> None:
        """End every target and the engine."""
        # Targets first: a target without an engine behind it would wait for ever.
        for target in self._targets:
            target.stop()
        if self._engine is not None:
            for pid in self._attached:
                with suppress(AgentZipError):
                    self._engine.detach(pid, 0)
            with suppress(AgentZipError):
                self._engine.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ── making things ─────────────────────────────────────────────────────────────────────────────
    @property
    def engine(self) -> Pager:
        """The engine of this check, with default settings unless `open` was called before."""
        return self._engine or self.open()

    @property
    def run_dir(self) -> Path:
        """Where the engine keeps its lock and its keeper's socket."""
        return self.folder / "run"

    def open(
        self,
        *,
        algorithm: str = "lz4",
        level: int | None = None,
        pool_bytes_max: int = _POOL_BYTES_MAX,
        chunk_pages: int = 1024,
        fault_threads: int = 2,
        stop_limit_us: int = 20_000,
        crash_at: str | None = None,
        disk_path: Path | None = None,
        disk_bytes_max: int = 0,
    ) -> Pager:
        """Start the engine with settings of the check's own."""
        if self.tier == "disk" and disk_path is None:
            disk_path, disk_bytes_max = self.folder / "swap", DISK_BYTES_MAX
        engine = open_engine(
            model.Settings(
                run_dir=self.run_dir,
                algorithm=algorithm,
                level=level,
                pool_bytes_max=pool_bytes_max,
                chunk_pages=chunk_pages,
                fault_threads=fault_threads,
                stop_limit_us=stop_limit_us,
                crash_at=crash_at,
                disk_path=disk_path,
                disk_bytes_max=disk_bytes_max,
            )
        )
        self._engine = forced(engine, self.tier) if self.tier else engine
        return self._engine

    def program(self, name: str) -> str:
        """Path of a compiled target, copied to where every user can run it."""
        copy = self.folder / name
        if not copy.exists():
            shutil.copy2(ensure_built() / name, copy)
            copy.chmod(0o755)
        return str(copy)

    def start(self, *arguments: str, verify: str = "verify") -> Target:
        """Start a target that is ended with the check."""
        target = Target(arguments, verify=verify)
        self._targets.append(target)
        return target

    def memory(self, mib: int, seed: int = 1) -> Target:
        """Start the C target that holds `mib` MiB of known pages."""
        return self.start(self.program("memory"), str(mib), str(seed))

    # ── verbs ─────────────────────────────────────────────────────────────────────────────────────
    def attach(self, target: Target, changes: Changes = "never") -> model.AttachReport:
        """
        Attach, and see that the target holds nothing of ours that it could use.

        Args:
            target: One that was started here.
            changes: When the target changes its own mappings, descriptors or threads; decides what
                can be compared at the end.
        """
        before = snapshot(target.pid)
        report = self._attach_patiently(target.pid)
        self._attached[target.pid] = target
        self._before[target.pid] = before
        self._changes[target.pid] = changes
        held = set(snapshot(target.pid).descriptors) - set(before.descriptors)
        if any("userfaultfd" in link for _, link in held):
            raise CheckFailed(f"the target was left with descriptors: {sorted(held)}")
        return report

    def _attach_patiently(self, pid: int) -> model.AttachReport:
        for _ in range(_BUSY_RETRIES):
            with suppress(TargetBusy):
                return self.engine.attach(pid)
        return self.engine.attach(pid)

    def page_out(self, target: Target) -> model.PageOutReport:
        """
        Move everything movable of a target into the pool.

        A target with busy threads on a busy machine may not lend one within the stop limit; that
        is an answer, not a fault, so it is asked again.
        """
        for _ in range(_BUSY_RETRIES):
            with suppress(TargetBusy):
                return self.engine.page_out(target.pid)
        return self.engine.page_out(target.pid)

    def detach(self, target: Target, memory_floor_bytes: int = 2**26) -> model.DetachReport:
        """Leave a target as found, asking again while no thread can be borrowed."""
        for _ in range(_BUSY_RETRIES):
            with suppress(TargetBusy):
                return self.engine.detach(target.pid, memory_floor_bytes)
        return self.engine.detach(target.pid, memory_floor_bytes)

    def forget(self, target: Target) -> None:
        """The target is meant to be gone: the common end does not ask for it."""
        self._attached.pop(target.pid, None)

    def bytes_out(self, target: Target, start: int = 0, end: int = 2**64) -> int:
        """Bytes that are out now, of the mappings that overlap a range."""
        return sum(
            region.out_bytes
            for region in self.engine.regions(target.pid)
            if region.start < end and start < region.end
        )

    def note(self, text: str) -> None:
        """Add a figure to the detail of the result."""
        self.notes.append(text)

    # ── the common end ────────────────────────────────────────────────────────────────────────────
    def settle(self) -> None:
        """
        Check what must hold after every check, detaching on the way.

        Raises:
            CheckFailed: naming what does not hold.
        """
        for pid, target in list(self._attached.items()):
            self._settle_target(pid, target)
        if self._engine is None:
            return
        engine = self._engine

        def freed() -> bool:
            return engine.stats().pool_slots == 0 and not engine.spaces()

        if not wait_until(freed, _FREED_SECONDS):
            stats, spaces = engine.stats(), engine.spaces()
            raise CheckFailed(f"left in the pool: {stats.pool_slots} slots, spaces {spaces}")
        if engine.stats().pages_lost:
            raise CheckFailed(f"pages lost: {engine.stats().pages_lost}; {engine.losses()}")
        if self.tier:
            self.note(f"{brought(engine)} pages brought into {self.tier}")
        expect_nothing_kept(engine)
        keeper = engine.stats().keeper_pid
        engine.close()
        self._engine = None
        if not wait_until(lambda: not _is_running(keeper), _FREED_SECONDS):
            raise CheckFailed(f"the keeper still runs after close: {keeper}")

    def _settle_target(self, pid: int, target: Target) -> None:
        if not target.alive():
            raise CheckFailed(f"the target ended: {target.ending()}")
        target.verify()
        assert_free(pid)
        report = self.detach(target)
        if not report.complete or report.pages_out:
            raise CheckFailed(f"detach is not complete: {report}")
        del self._attached[pid]
        assert_free(pid)
        if not target.alive():
            raise CheckFailed(f"the target ended after the detach: {target.ending()}")
        # Compared before it is asked again: an answer may make the target's own heap grow.
        if self._changes[pid] == "never":
            assert_same(self._before[pid], snapshot(pid))
        else:
            assert_no_trace(self._before[pid], snapshot(pid))
        target.verify()
        if self._changes[pid] == "when asked":
            self._expect_no_trace(target)

    def _expect_no_trace(self, target: Target) -> None:
        """Attach once more to a target that is idle now; nothing at all may be different after."""
        before = snapshot(target.pid)
        self._attach_patiently(target.pid)
        self.page_out(target)
        self.detach(target)
        assert_same(before, snapshot(target.pid))
        target.verify()


def _is_running(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        stat = (Path("/proc") / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"
