"""
An engine whose every page out goes on into one tier, so that all checks meet that tier's pages.

The checks know nothing of tiers: what they page out is made smaller, or written to the disk, before
the page out returns.  What comes back is what the tier stored.  A pass may be short of time or give
way to faults; what it left as it was is read from there, which is right as well.
"""

import threading
import time
from contextlib import suppress
from typing import Any, cast

from agentzip import model
from agentzip.errors import InvalidSetting, NoSuchProcess, NotAttached, TargetGone
from agentzip.pager import Pager
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.registry import TIERS, CheckFailed

__all__ = ["DISK_BYTES_MAX", "brought", "expect_nothing_kept", "forced", "give_up", "kept"]

DISK_BYTES_MAX = 2**30
"""Most bytes of a check's swap file."""

_PASS_SECONDS = {"warm": 1.0, "cold": 1.0, "frozen": 0.4}
"""
How long one page out may be made smaller: most checks have some thousand pages.  At the highest
level a page takes milliseconds, so a part of them has to do.
"""

_PREEMPTIONS = 8
"""How often a pass gives way to a busy program before it is left alone until the next page out."""

_TRAINED_BYTES = 2**17
_TRAINED_PAGES = 1000
_REFUSALS = 3
"""How often a training of one target may be refused before it goes without a dictionary."""

_TRAININGS = 8
"""Dictionaries of one check: background work is slow where others are busy."""

_FREED_SECONDS = 3.0
"""How long after the last detach something may still be kept for pages that are gone."""


def forced(engine: Pager, tier: str) -> Pager:
    """
    An engine that brings what it pages out into a tier.

    Args:
        engine: Does all the work; opened with a swap file for the disk tier.
        tier: One of `registry.TIERS`.
    """
    assert tier in TIERS, tier
    return cast("Pager", _Forced(engine, tier))


def brought(engine: Pager) -> int:
    """Pages that an engine of `forced` has brought into its tier so far."""
    return cast("_Forced", engine).brought


class _Forced:
    """What differs from the engine behind it; all else is asked of that one."""

    def __init__(self, engine: Pager, tier: str) -> None:
        self.brought = 0
        self._engine = engine
        self._tier = tier
        self._lock = threading.Lock()
        self._dictionaries: dict[int, int | None] = {}
        self._refusals: dict[int, int] = {}
        self._trainings = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def page_out(
        self,
        pid: int,
        ranges: list[tuple[int, int]] | None = None,
        keep: list[tuple[int, int]] | None = None,
    ) -> model.PageOutReport:
        if self._tier == "warm":
            self._engine.use_dictionary(pid, self._dictionary(pid))
        report = self._engine.page_out(pid, ranges, keep)
        # It may end, or become another program, at any moment; the page out was one all the same.
        with suppress(TargetGone, NotAttached, NoSuchProcess):
            self._press(pid)
        return report

    def detach(
        self, pid: int, memory_floor_bytes: int = model.MEMORY_FLOOR_BYTES
    ) -> model.DetachReport:
        report = self._engine.detach(pid, memory_floor_bytes)
        if report.complete:
            self._forget(pid)
        return report

    def _press(self, pid: int) -> None:
        if self._tier == "disk":
            spilled = self._engine.spill(pid)
            self.brought += spilled.pages_spilled
            if spilled.stopped:
                raise CheckFailed(f"a spill ended early: {spilled.stopped}")
            return
        dictionary, peer = self._dictionary(pid), self._peer(pid)
        deadline = time.monotonic() + _PASS_SECONDS[self._tier]
        preempted = 0
        while preempted < _PREEMPTIONS and (left := deadline - time.monotonic()) > 0:
            report = self._engine.recode(
                pid,
                tier=self._tier,
                dictionary_id=dictionary,
                peer=peer,
                budget_us=round(left * 1e6) + 1,
            )
            self.brought += report.pages_recoded
            preempted += report.preempted
            if report.done:
                return

    def _dictionary(self, pid: int) -> int | None:
        """One of the target's own pages, trained when first needed."""
        with self._lock:
            if pid not in self._dictionaries:
                if self._trainings == _TRAININGS:
                    return None
                try:
                    self._dictionaries[pid] = self._engine.train(
                        pid,
                        bytes_max=_TRAINED_BYTES,
                        pages_max=_TRAINED_PAGES,
                        normalised=self._tier != "warm",
                    ).id
                except InvalidSetting:  # Too few pages: another time, or never.
                    self._refusals[pid] = self._refusals.get(pid, 0) + 1
                    if self._refusals[pid] == _REFUSALS:
                        self._dictionaries[pid] = None
                    return None
                self._trainings += 1
            return self._dictionaries[pid]

    def _peer(self, pid: int) -> int | None:
        others = [space.pid for space in self._engine.spaces() if space.state == "attached"]
        return next((other for other in others if other not in {0, pid}), None)

    def _forget(self, pid: int) -> None:
        with self._lock:
            self._refusals.pop(pid, None)
            known = self._dictionaries.pop(pid, None)
            # Equal pages make equal dictionaries, which are one.
            if known is not None and known not in self._dictionaries.values():
                self._engine.drop_dictionary(known)


def give_up(engine: Pager) -> None:
    """Offer no dictionary any more, and drop what can be made again."""
    for info in engine.dictionaries():
        if not info.dropped:
            engine.drop_dictionary(info.id)
    engine.release_caches()


def kept(engine: Pager) -> str:
    """What is kept for stored pages beside the pool, in words; empty if nothing is."""
    stats, dictionaries = engine.stats(), engine.dictionaries()
    if not dictionaries and not stats.dictionary_bytes and not stats.disk_bytes:
        return ""
    return (
        f"{len(dictionaries)} dictionaries {dictionaries[:3]}, {stats.dictionary_bytes} bytes of "
        f"dictionaries and layouts, {stats.disk_bytes} bytes on the disk"
    )


def expect_nothing_kept(engine: Pager) -> None:
    """
    No dictionary, layout or record outlives the last page that needs it.

    Raises:
        CheckFailed: something is still kept.
    """
    give_up(engine)
    if not wait_until(lambda: not kept(engine), _FREED_SECONDS):
        raise CheckFailed(f"kept although no page needs it: {kept(engine)}")
