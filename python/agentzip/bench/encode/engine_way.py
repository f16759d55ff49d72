"""
One encoding of the engine on a crew: out, recoded, compacted, measured, touched, home, compared.

Every encoding has an engine of its own in this process, as `agentzip run` has one without a
daemon, so that pool, dictionaries and processor time are those of the encoding alone.
"""

import contextlib
import ctypes
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentzip import model
from agentzip.bench.encode.paging import insist, portions
from agentzip.bench.encode.plan import Encoding
from agentzip.bench.encode.result import EncodingResult, Spread, encoded, grouped, page_ratio
from agentzip.bench.encode.stage import Baseline, note_gain, step_all, undo_and_compare
from agentzip.errors import AgentZipError, InternalError, NotAttached, TargetGone, TargetsRemain
from agentzip.host import memory, processes
from agentzip.pager import Pager, open_engine
from agentzip.policy import tiers
from agentzip.workloads.crew import Sandbox

__all__ = ["EngineWay", "role"]

_DOMAIN = "bench"
"""All sandboxes trust each other: peers and exact duplicates may be used across them."""

_TRAIN_BYTES_MIN = 32 * 2**20
"""A process with less resident uses the dictionary of its sandbox's largest one."""

_WARM_PAGES = 8_000
"""Pages that a warm dictionary is made from; more change it by less than a hundredth."""

_COLD_PAGES = 16_000
"""Pages that a cold dictionary is made from, which may be larger."""

_WARM_DICTIONARY_BYTES = 256 * 1024

_GAIN_MIN = 1.0
"""A dictionary that makes held-out pages no smaller is not used."""

_RECODE_US = 250_000
"""One part of a recode: short, so that the samples say something, and it can be interrupted."""

_PARTS_MAX = 10_000
"""Parts of one background pass; beyond this it does not come to its end."""

_FORGET_SECONDS = 10.0
"""How long the engine may take to notice that targets ended."""


@dataclass(slots=True)
class _Trained:
    """Dictionaries of one sandbox: process -> id; the first one is that of its largest process."""

    ids: dict[int, int | None] = field(default_factory=dict)

    def of(self, pid: int) -> int | None:
        """What a process encodes with; a small one shares that of the largest."""
        return self.ids[pid] if pid in self.ids else next(iter(self.ids.values()), None)


class EngineWay:
    """One encoding at work; a context that leaves every sandbox as it was found."""

    def __init__(self, encoding: Encoding, sandboxes: Sequence[Sandbox], folder: Path) -> None:
        self.encoding = encoding
        self.sandboxes = sandboxes
        self._folder = folder
        self._pids: list[list[int]] = []
        self._sizes: dict[int, int] = {}
        self._cpu = 0.0
        self.result = EncodingResult(encoding.name, len(sandboxes))

    def measure(self, baseline: Baseline, steps: int) -> EncodingResult:
        """Everything, from the page out to the comparison."""
        # What earlier encodings left in this process's heap is not this one's cost.
        ctypes.CDLL(None).malloc_trim(0)
        with self._engine(sum(baseline.rss)) as engine:
            self._attach_all(engine)
            self._bind_dictionaries(engine)
            self._page_out_all(engine)
            if self.encoding.cold:
                self._recode_all(engine)
            self._compact(engine)
            self._note_stored(engine, baseline)
            self._touch(engine, steps)
            self._page_in_all(engine)
            self.result.results_wrong += undo_and_compare(self.sandboxes, steps, baseline)
            self.result.results_wrong += engine.stats().pages_lost
            self._detach_all(engine)
        return self.result

    # ── the engine and its targets ────────────────────────────────────────────────────────────────
    @contextlib.contextmanager
    def _engine(self, bytes_max: int) -> Iterator[Pager]:
        settings = model.Settings(
            run_dir=self._folder / f"run-{self.encoding.name}",
            algorithm=self.encoding.algorithm,
            level=self.encoding.level,
            # Raw pages and every copy kept would fit; the cap is not what is measured here.
            pool_bytes_max=2 * bytes_max + 2**30,
            # What compresses page by page finds no equal ones: that is a merit of the pipeline.
            deduplicate=self.encoding.dictionary == "own",
        )
        engine = open_engine(settings)
        try:
            yield engine
        finally:
            # After an error pages may be out: a sandbox that is let go of would wait for ever.
            # The engine is asked, because a signal may have come right behind an attach.
            for space in engine.spaces():
                if space.pid:
                    with contextlib.suppress(AgentZipError):
                        insist(engine.detach, space.pid, 0)
            _close(engine)

    def _attach_all(self, engine: Pager) -> None:
        for sandbox in self.sandboxes:
            attached: list[int] = []
            self._pids.append(attached)
            for pid in sandbox.pids():
                try:
                    insist(engine.attach, pid, domain=_DOMAIN, image=sandbox.kind)
                    attached.append(pid)
                except AgentZipError as refusal:
                    self.result.refused.append(f"{sandbox.instance}/{role(pid)}: {refusal}")

    def _targets(self) -> list[int]:
        return [pid for pids in self._pids for pid in pids]

    def _drop(self, pid: int) -> None:
        """A process ended by itself, as browsers end their spare ones."""
        if _lives(pid):
            raise InternalError(f"the engine lost process {pid}, which lives")
        self._forget(pid)

    def _forget(self, pid: int) -> None:
        for pids in self._pids:
            if pid in pids:
                pids.remove(pid)

    # ── encoding ──────────────────────────────────────────────────────────────────────────────────
    def _bind_dictionaries(self, engine: Pager) -> None:
        if not self.encoding.dictionary:
            return
        self._sizes = {pid: memory.memory_use(pid).private_dirty for pid in self._targets()}
        own = [self._train(engine, pids) for pids in self._pids]
        for number, pids in enumerate(self._pids):
            # "other": what a dictionary is worth for a sandbox that it was not made from.
            source = number if self.encoding.dictionary == "own" else number - 1
            for pid in pids:
                engine.use_dictionary(pid, own[source].of(pid))

    def _train(self, engine: Pager, pids: list[int], *, cold: bool = False) -> "_Trained":
        """Dictionaries of a sandbox: of its largest process, and of others that are large, too."""
        ordered = sorted(pids, key=lambda pid: -self._sizes[pid])
        chosen = ordered[:1] + [pid for pid in ordered[1:] if self._sizes[pid] >= _TRAIN_BYTES_MIN]
        trained = _Trained()
        for pid in chosen:
            with self._counted():
                training = engine.train(
                    pid,
                    name=f"{self.encoding.name}-{pid}",
                    bytes_max=self._dictionary_bytes(pid, cold),
                    pages_max=_COLD_PAGES if cold else _WARM_PAGES,
                    normalised=cold,
                )
            if training.gain <= _GAIN_MIN:
                engine.drop_dictionary(training.id)
                trained.ids[pid] = None
            else:
                trained.ids[pid] = training.id
        return trained

    def _dictionary_bytes(self, pid: int, cold: bool) -> int:
        return tiers.cold_dictionary_bytes(self._sizes[pid]) if cold else _WARM_DICTIONARY_BYTES

    def _page_out_all(self, engine: Pager) -> None:
        samples: list[float] = []
        for pid in self._targets():
            try:
                for portion in portions(engine.regions(pid)):
                    with self._counted() as used:
                        report = insist(engine.page_out, pid, portion)
                    if report.pool_full:
                        raise InternalError("the bench's pool is full")
                    self.result.pages_deduplicated += report.pages_deduplicated
                    if report.pages_stored:
                        samples.append(used[0] * 1e6 / report.pages_stored)
                # What the portions left: pages that were busy, mappings made meanwhile.
                with self._counted():
                    insist(engine.page_out, pid)
            except (TargetGone, NotAttached):
                self._drop(pid)
        self.result.page_out_us = Spread.of(samples)
        self.result.encode_us = _spread(engine.stats().encode)

    def _recode_all(self, engine: Pager) -> None:
        samples: list[float] = []
        warm = engine.dictionaries()
        first = {role(pid): pid for pid in reversed(self._pids[0])}
        for number, pids in enumerate(self._pids):
            own = self._train(engine, pids, cold=True)
            for pid in list(pids):
                peer = first.get(role(pid)) if self.encoding.peer and number else None
                try:
                    samples += self._recode(engine, pid, own.of(pid), peer)
                except (TargetGone, NotAttached):
                    self._drop(pid)
        self.result.encode_us = Spread.of(samples)
        # No page needs the warm dictionaries any more, or their last ones keep them alive.
        for info in warm:
            engine.drop_dictionary(info.id)

    def _recode(
        self, engine: Pager, pid: int, dictionary: int | None, peer: int | None
    ) -> list[float]:
        """One background pass over one process; microseconds a page, part by part."""
        samples = []
        for _ in range(_PARTS_MAX):
            with self._counted() as used:
                report = engine.recode(
                    pid, dictionary_id=dictionary, peer=peer, budget_us=_RECODE_US
                )
            self.result.pages_delta += report.pages_delta
            if report.pages_seen:
                samples.append(used[0] * 1e6 / report.pages_seen)
            if report.done:
                return samples
        raise InternalError(f"the recode of process {pid} does not end: {report}")

    def _compact(self, engine: Pager) -> None:
        for _ in range(_PARTS_MAX):
            with self._counted():
                report = engine.compact()
            if report.done:
                return
        raise InternalError(f"the compaction does not end: {report}")

    @contextlib.contextmanager
    def _counted(self) -> Iterator[list[float]]:
        """Count the processor time of all threads of this process; the list gets the seconds."""
        used = [0.0]
        began = time.process_time()
        try:
            yield used
        finally:
            used[0] = time.process_time() - began
            self._cpu += used[0]

    # ── measuring ─────────────────────────────────────────────────────────────────────────────────
    def _note_stored(self, engine: Pager, baseline: Baseline) -> None:
        result, stats = self.result, engine.stats()
        index, dictionaries = stats.index_bytes, stats.dictionary_bytes
        note_gain(
            result,
            self.sandboxes,
            baseline,
            pool_bytes=stats.pool_bytes,
            table_bytes=stats.table_bytes + index + dictionaries,
            overhead_bytes=memory.own_overhead([os.getpid(), stats.keeper_pid]),
        )
        rows = [[row for pid in pids for row in engine.census(pid)] for pids in self._pids]
        everything = [row for sandbox in rows for row in sandbox]
        pages, _ = encoded(everything)
        result.cpu_s = self._cpu
        payload = engine.payload_bytes_out()
        result.payload_bytes, result.kept_bytes = payload, stats.pool_payload_bytes - payload
        result.pages_stored = pages
        result.pages_same_filled = sum(row.pages for row in everything) - pages
        result.page_ratio = page_ratio(pages, payload)
        result.page_ratio_net = page_ratio(pages, payload + result.table_bytes)
        result.page_ratio_unique = page_ratio(pages - result.pages_deduplicated, payload)
        result.page_ratio_first = page_ratio(*encoded(rows[0]))
        if len(rows) > 1:
            others = encoded(row for sandbox in rows[1:] for row in sandbox)
            result.page_ratio_others = page_ratio(*others)
        result.pool_waste = stats.pool_waste_bytes / max(1, stats.pool_payload_bytes)
        result.index_bytes, result.dictionary_bytes = index, dictionaries
        result.by_class = grouped(everything, lambda row: row.class_name)
        result.by_codec = grouped(everything, lambda row: row.codec)

    def _touch(self, engine: Pager, steps: int) -> None:
        engine.reset_stats()
        self.result.step_ms = step_all(self.sandboxes, steps)
        stats = engine.stats()
        self.result.fault_us = _spread(stats.fault_service)
        self.result.decode_us = _spread(stats.decode)

    def _page_in_all(self, engine: Pager) -> None:
        pages, elapsed = 0, 0.0
        for pid in self._targets():
            try:
                report = engine.page_in(pid)
            except (TargetGone, NotAttached):
                self._drop(pid)
                continue
            pages += report.pages_in
            elapsed += report.elapsed_us
        self.result.page_in_us = elapsed / pages if pages else None

    def _detach_all(self, engine: Pager) -> None:
        for pid in self._targets():
            try:
                report = insist(engine.detach, pid, 0)
            except (TargetGone, NotAttached):
                self._drop(pid)
                continue
            if not report.complete:
                raise InternalError(f"detach is not complete: {report}")
            self._forget(pid)


def role(pid: int) -> str:
    """What a process is in its sandbox, by its command line; equal ones are peers."""
    try:
        command = processes.process(pid).command
    except AgentZipError:
        return ""
    kinds = re.findall(r"--(?:type|utility-sub-type)=(\S+)", command)
    return "/".join(kinds) or command.split(" ", 1)[0].rsplit("/", 1)[-1]


def _spread(latency: model.Latency) -> Spread | None:
    return Spread(latency.p50_us, latency.p99_us, latency.count) if latency.count else None


def _lives(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return processes.process(pid).state not in "ZX"
    except AgentZipError:
        return False


def _close(engine: Pager) -> None:
    deadline = time.monotonic() + _FORGET_SECONDS
    while True:
        try:
            return engine.close()
        except TargetsRemain:
            # Children that were forked meanwhile have no pid for us; ended ones are noticed soon.
            for space in engine.spaces():
                with contextlib.suppress(AgentZipError):
                    engine.page_in_space(space.id)
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
