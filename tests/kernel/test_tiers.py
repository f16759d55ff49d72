"""
Every tier on real processes: what was made smaller comes back bit for bit, and domains stay apart.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentzip.errors import InvalidSetting
from agentzip.pager import Pager
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.exact_languages import start_heap
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

pytestmark = pytest.mark.timeout(110)


def _cold(engine: Pager, pid: int, peer: int | None = None, tier: str = "cold") -> int:
    """Bring stored pages of a target into a tier; returns how many became deltas."""
    training = engine.train(pid, bytes_max=1 << 20, pages_max=4000, normalised=True)
    # The highest level takes milliseconds a page: a part of the pages is enough.
    budget = 3_000_000 if tier == "frozen" else None
    report = engine.recode(pid, tier=tier, dictionary_id=training.id, peer=peer, budget_us=budget)
    assert report.done or budget
    engine.drop_dictionary(training.id)
    return report.pages_delta


def _python(stage: Stage, seed: int) -> Target:
    return start_heap(stage, seed)


@pytest.mark.parametrize("tier", ["cold", "frozen"])
def test_a_python_heap_comes_back_from_a_tier(tier: str) -> None:
    """Two processes, the second as differences to the first; each verifies every page."""
    with Stage() as stage:
        engine = stage.open(algorithm="zstd")
        first, second = (_python(stage, seed) for seed in (1, 2))
        for target in (first, second):
            stage.attach(target, "always")
            stage.page_out(target)
        warm = engine.stats().pool_payload_bytes

        _cold(engine, first.pid, tier=tier)
        deltas = _cold(engine, second.pid, first.pid, tier=tier)

        assert deltas > 0 or tier == "frozen"
        assert engine.stats().pool_payload_bytes < warm
        stage.settle()


def test_a_trained_dictionary_serves_page_outs_until_its_last_page_is_gone() -> None:
    """Dropped means not offered: pages made with it are still read."""
    with Stage() as stage:
        engine = stage.open(algorithm="zstd")
        target = _python(stage, 3)
        stage.attach(target, "always")
        training = engine.train(target.pid, pages_max=4000)
        engine.use_dictionary(target.pid, training.id)
        stage.page_out(target)
        info = engine.dictionaries()[0]
        assert info.uses > 1000
        engine.drop_dictionary(training.id)
        assert engine.dictionaries()[0].dropped

        target.verify()
        engine.page_in(target.pid)
        stage.settle()


def test_a_cold_pass_leaves_nothing_to_the_warm_dictionary() -> None:
    """Copies of pages that are home again count as kept, and go with the pass as well."""
    with Stage() as stage:
        engine = stage.open(algorithm="zstd")
        target = _python(stage, 7)
        stage.attach(target, "always")
        warm = engine.train(target.pid, pages_max=4000).id
        engine.use_dictionary(target.pid, warm)
        stage.page_out(target)
        regions = [region for region in engine.regions(target.pid) if region.movable]
        some = max(regions, key=lambda region: region.end - region.start)
        everything = engine.stats().pool_payload_bytes
        all_out = engine.payload_bytes_out()
        engine.page_in(
            target.pid, [(some.start, some.start + (some.end - some.start) // 8192 * 4096)]
        )
        assert everything == all_out == engine.stats().pool_payload_bytes
        assert engine.payload_bytes_out() < all_out

        _cold(engine, target.pid)
        engine.use_dictionary(target.pid)
        engine.drop_dictionary(warm)
        engine.release_caches()

        assert "zstd-dict" not in {row.codec for row in engine.census(target.pid)}
        assert warm not in {info.id for info in engine.dictionaries()}
        stage.settle()


def test_what_a_dictionary_was_needed_for_is_gone_with_the_target() -> None:
    """No dictionary stays behind a detach."""
    with Stage() as stage:
        engine = stage.open(algorithm="zstd")
        target = _python(stage, 4)
        stage.attach(target, "always")
        stage.page_out(target)
        _cold(engine, target.pid)
        engine.detach(target.pid)
        stage.forget(target)
        engine.release_caches()
        deadline = time.monotonic() + 5
        while engine.dictionaries() and time.monotonic() < deadline:
            time.sleep(0.1)

        assert engine.dictionaries() == []
        assert engine.stats().pool_slots == 0


def test_equal_pages_are_stored_once_in_a_domain_and_twice_in_two() -> None:
    """Three equal targets, two of one domain: half as much is shared as could be."""
    with Stage() as stage:
        engine = stage.open(algorithm="zstd")
        targets = [stage.memory(8, 5) for _ in range(3)]
        for target, domain in zip(targets, ("a", "a", "b"), strict=True):
            engine.attach(target.pid, domain=domain)
        alone, shared, apart = (engine.page_out(target.pid) for target in targets)

        assert alone.pages_deduplicated < alone.pages_stored // 4
        assert shared.pages_deduplicated > shared.pages_stored // 2
        assert apart.pages_deduplicated == alone.pages_deduplicated
        for target in targets:
            target.verify()
            engine.detach(target.pid)


def test_peers_and_dictionaries_never_cross_a_domain() -> None:
    """Refused by name; nothing changes."""
    with Stage() as stage:
        engine = stage.open(algorithm="zstd")
        one, other = (_python(stage, seed) for seed in (1, 2))
        engine.attach(one.pid, domain="a")
        engine.attach(other.pid, domain="b")
        training = engine.train(one.pid, pages_max=2000)

        with pytest.raises(InvalidSetting, match="domain"):
            engine.use_dictionary(other.pid, training.id)
        with pytest.raises(InvalidSetting, match="domain"):
            engine.recode(other.pid, peer=one.pid)
        with pytest.raises(InvalidSetting, match="tier"):
            engine.recode(other.pid, tier="lukewarm")
        with pytest.raises(InvalidSetting, match="dictionary"):
            engine.use_dictionary(one.pid, 4711)
        for target in (one, other):
            engine.detach(target.pid)


def test_a_pool_full_of_holes_shrinks() -> None:
    """Half of the targets end; what they leave is scattered, until it is compacted."""
    with Stage() as stage:
        engine = stage.open(algorithm="zstd")
        targets = [_python(stage, seed) for seed in range(1, 5)]
        for target in targets:
            stage.attach(target, "always")
        # In turns, so that their slots lie side by side in every span.
        regions = {
            target.pid: [
                (region.start, region.end)
                for region in engine.regions(target.pid)
                if region.movable and region.resident_bytes
            ]
            for target in targets
        }
        for number in range(max(map(len, regions.values()))):
            for pid, ranges in regions.items():
                if number < len(ranges):
                    engine.page_out(pid, ranges[number : number + 1])
        for target in targets[::2]:
            engine.detach(target.pid)
            stage.forget(target)
        holed = engine.stats()
        report = engine.compact()
        after = engine.stats()

        assert report.done
        assert report.pages_moved > 0
        assert after.pool_bytes < holed.pool_bytes
        assert after.pool_payload_bytes == holed.pool_payload_bytes
        assert after.pool_waste_bytes <= 0.02 * after.pool_payload_bytes + 256 * 4096
        stage.settle()


def test_a_pass_gives_way_to_a_fault_and_goes_on_later() -> None:
    """It looks up every 32 pages; whoever woke is served first, and what was done stays done."""
    with Stage() as stage:
        engine = stage.open(algorithm="zstd")
        target = _python(stage, 6)
        stage.attach(target, "always")
        stage.page_out(target)
        # At this level a page takes longer than all that comes before the first look.
        budget_us = 100
        while not (
            look := engine.recode(target.pid, tier="frozen", budget_us=budget_us)
        ).pages_seen:
            budget_us *= 2
        assert look.pages_seen <= 32
        assert (False, False) == (look.done, look.preempted)
        before = _recoded(engine, target)
        with ThreadPoolExecutor(1) as background:
            passing = background.submit(engine.recode, target.pid, tier="frozen")
            assert wait_until(lambda: _recoded(engine, target) > before, 20)
            target.verify()
            report = passing.result(20)

        assert (False, True) == (report.done, report.preempted)
        stage.page_out(target)
        while not engine.recode(target.pid, tier="cold").done:
            pass
        stage.settle()


def _recoded(engine: Pager, target: Target) -> int:
    """Stored pages that a pass has made smaller so far."""
    rows = engine.census(target.pid)
    return sum(row.pages for row in rows if row.codec in {"cold", "delta"})


def test_a_freed_slot_is_wiped() -> None:
    """Nothing of a page is left in the pool once its last owner is gone."""
    with Stage() as stage:
        engine = stage.open(algorithm="raw")
        stays, goes = stage.memory(1, 9), stage.memory(1, 10)
        places = {target.pid: _content(target) for target in (stays, goes)}
        needles = _needles(goes.pid, *places[goes.pid])
        for target in (stays, goes):
            stage.attach(target)
        # In turns, so that their slots share spans: a span that is given back proves nothing.
        for part in range(16):
            for pid, (start, end) in places.items():
                step = (end - start) // 16
                engine.page_out(pid, [(start + part * step, start + (part + 1) * step)])
        pool = next(
            int(entry.name)
            for entry in Path("/proc/self/fd").iterdir()
            if "memfd:agentzip:pool" in os.readlink(entry)
        )
        before, present = _data(pool), engine.stats().pool_bytes
        assert engine.detach(goes.pid).complete
        stage.forget(goes)
        after, left = _data(pool), engine.stats().pool_bytes

        assert len(needles) > 100
        assert all(needle in before for needle in needles)
        assert left > present * 0.75, "the spans were given back"
        assert not [needle for needle in needles if needle in after]
        stage.settle()


def _content(target: Target) -> tuple[int, int]:
    start, end = target.ok("where").split()[0].split("-")
    return int(start, 16), int(end, 16)


def _needles(pid: int, start: int, end: int) -> list[bytes]:
    """A part of each page that cannot be there by chance."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        data = os.pread(memory.fileno(), end - start, start)
    parts = [data[at + 1024 : at + 1088] for at in range(0, len(data), 4096)]
    return [part for part in parts if len(set(part)) > 16]


def _data(descriptor: int) -> bytes:
    """Everything that a memfd holds, without its holes."""
    size, offset, parts = os.fstat(descriptor).st_size, 0, []
    while offset < size:
        try:
            offset = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError:  # Nothing but a hole is left.
            break
        parts.append(os.pread(descriptor, 2**20, offset))
        offset += len(parts[-1])
    return b"".join(parts)
