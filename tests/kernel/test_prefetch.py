"""
Prefetch on real processes: what a wake needs is learned, and is home before it is touched.

Every target verifies its own pages, so that what was brought early is checked byte by byte.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from agentzip import model
from agentzip.errors import InvalidSetting, NotAttached, TargetBusy
from agentzip.fleet.ranges import pages_in
from agentzip.pager import Pager
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.exact_languages import start_heap
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(110)]

_MIB = 32
_NEEDED = 2000
"""Pages that the memory target touches at a wake, every third one, so that none is a neighbour."""
_WALK = f"walk 100 {_NEEDED} 3"


def _status(engine: Pager, target: Target) -> model.SpaceStatus:
    return next(space for space in engine.spaces() if space.pid == target.pid)


def _faults(engine: Pager, target: Target, line: str) -> int:
    """Faults that a command of the target takes."""
    before = _status(engine, target).faults
    target.ok(line)
    return _status(engine, target).faults - before


def _expects(engine: Pager, target: Target, page: int) -> bool:
    """Whether a page of the target's memory is at home, and expected to be needed."""
    start = int(target.ok("where").split()[0].split("-")[0], 16)
    address = start + page * 4096
    return any(low <= address < high for low, high in engine.hottest(target.pid, 2 * _NEEDED))


@contextmanager
def _asleep(mib: int = _MIB, wakes: int = 1) -> Iterator[tuple[Stage, Target]]:
    """A target whose pages are out, and that has learned from so many wakes."""
    with Stage() as stage:
        target = stage.memory(mib)
        stage.attach(target)
        stage.page_out(target)
        for _ in range(wakes):
            target.ok(_WALK)
            stage.page_out(target)
        yield stage, target
        stage.settle()


def test_an_announced_wake_takes_the_faults_away() -> None:
    """What two wakes needed is home before the third one touches it, but for the sample."""
    with _asleep(wakes=2) as (stage, target):
        learned = stage.engine.learned(target.pid)
        assert _NEEDED <= learned.pages < _NEEDED * 1.1
        report = stage.engine.wake(target.pid)

        assert report.pages_in + report.pages_spared >= _NEEDED
        assert report.pages_lost == 0
        assert _faults(stage.engine, target, _WALK) < _NEEDED * 0.15
        status = _status(stage.engine, target)
        assert status.pages_prefetched == report.pages_in
        # Each stands for those that were brought in its stead.
        assert 3 * report.pages_spared <= status.pages_spared <= 63 * report.pages_spared
        assert status.pages_spared * 0.9 < status.pages_spared_touched <= status.pages_spared
        assert 1 == stage.engine.stats().wake.count
        target.verify()


def test_a_wake_that_is_not_announced_is_seen_and_replayed() -> None:
    """A part of the set faults; the rest is brought meanwhile, or the toucher waits for it."""
    with _asleep(wakes=2) as (stage, target):
        stage.engine.set_prefetch(target.pid, replay=True)
        # The part that shows that it wakes.
        target.ok(f"walk 100 {_NEEDED // 8} 3")
        assert wait_until(lambda: stage.engine.stats().wake.count == 1, 10)

        assert _faults(stage.engine, target, _WALK) < _NEEDED * 0.15
        assert not _status(stage.engine, target).prefetching
        target.verify()


def test_nothing_is_brought_unless_it_was_asked_for() -> None:
    """The engine only learns; replay and windows are policy's."""
    with _asleep(wakes=2) as (stage, target):
        assert _faults(stage.engine, target, _WALK) >= _NEEDED
        status = _status(stage.engine, target)

        assert (0, 0, 0) == (status.pages_prefetched, status.pages_windowed, status.pages_spared)
        assert (3, status.learned_pages) == (status.wakes, stage.engine.learned(target.pid).pages)


def test_what_the_next_wake_needs_and_wrote_is_encoded_for_one_wait() -> None:
    """With LZ4 where that halves it; what the wake only reads keeps the better encoding."""
    with Stage() as stage:
        stage.open(algorithm="zstd")
        target = stage.memory(_MIB)
        stage.attach(target)
        stage.page_out(target)
        for line in (_WALK, f"rewrite 100 {_NEEDED} 6"):
            # The program has some pages beside those that it was told to touch.
            assert _pages_of(stage.engine, target, "lz4") < 20
            target.ok(line)
            stage.page_out(target)
        quick, others = (_pages_of(stage.engine, target, codec) for codec in ("lz4", "zstd"))

        assert 100 < quick <= _NEEDED // 2 + 20
        assert others > quick
        target.verify()
        stage.settle()


def _pages_of(engine: Pager, target: Target, codec: str) -> int:
    return sum(row.pages for row in engine.census(target.pid) if row.codec == codec)


def test_what_is_not_needed_any_more_is_forgotten() -> None:
    """After three wakes elsewhere nothing is left of the first habit."""
    with _asleep(wakes=2) as (stage, target):
        for _ in range(4):
            target.ok("walk 7000 300 1")
            stage.page_out(target)
        assert not any(_expects(stage.engine, target, page) for page in range(7000, 7020))
        stage.engine.wake(target.pid)

        assert not _expects(stage.engine, target, 100)
        assert any(_expects(stage.engine, target, page) for page in range(7000, 7020))


def test_the_hottest_pages_are_at_home_and_no_more_than_asked_for() -> None:
    """What the planner lets stay: pages that have left already are not among them."""
    with _asleep(wakes=2) as (stage, target):
        stage.engine.wake(target.pid)
        learned = stage.engine.learned(target.pid)
        here = learned.pages_expected - learned.pages_out
        few = stage.engine.hottest(target.pid, 100)
        every = stage.engine.hottest(target.pid, 2 * _NEEDED)

        assert 0 < learned.pages_out < learned.pages_expected <= learned.pages
        assert (100, here) == (pages_in(few), pages_in(every))


def test_pages_that_are_brought_in_vain_are_found_out() -> None:
    """The spared sample says how much of the prefetch was waste."""
    with _asleep(wakes=2) as (stage, target):
        for _ in range(3):
            stage.engine.wake(target.pid)
            target.ok(f"walk 100 {_NEEDED // 4} 3")
            stage.page_out(target)
        status = _status(stage.engine, target)

        assert status.pages_spared_touched < status.pages_spared * 0.6
        assert stage.engine.wake(target.pid).pages_in < _NEEDED * 0.4


def test_the_rest_of_a_set_follows_its_head() -> None:
    """A wake returns when what is needed first is home; all of it comes without being touched."""
    with _asleep(wakes=2) as (stage, target):
        head = stage.engine.wake(target.pid, first=256)
        assert 256 == head.pages_in
        assert head.pages_following + head.pages_spared >= _NEEDED - 256
        due = 256 + head.pages_following
        assert wait_until(lambda: due == _status(stage.engine, target).pages_prefetched, 10)

        assert _faults(stage.engine, target, _WALK) < _NEEDED * 0.15
        target.verify()


def test_a_page_out_ends_what_follows_a_wake() -> None:
    """Nothing is brought home behind it, and nothing is lost between the two."""
    with _asleep(wakes=2) as (stage, target):
        for _ in range(20):
            stage.engine.wake(target.pid, first=1)
            stage.page_out(target)
            settled = _status(stage.engine, target).pages_out
            time.sleep(0.02)
            assert settled == _status(stage.engine, target).pages_out
        target.verify()


def test_at_most_so_many_pages_are_brought() -> None:
    """`pages_max` bounds a wake; the rest comes when it is touched."""
    with _asleep() as (stage, target):
        assert 500 == stage.engine.wake(target.pid, pages_max=500).pages_in
        target.verify()


def test_one_who_walks_through_memory_is_run_ahead_of() -> None:
    """Windows grow with a walk; for a scattered toucher neighbours do not come along for long."""
    with _asleep(wakes=0) as (stage, target):
        stage.engine.set_prefetch(target.pid, replay=False, window_min=16, window_max=256)
        scattered = _faults(stage.engine, target, "walk 0 400 211")
        # What comes along is given up after some hundred refaults without a neighbour.
        assert _status(stage.engine, target).pages_windowed < 6 * scattered
        assert scattered >= 300
        stage.page_out(target)
        faults = _faults(stage.engine, target, "walk 0 6000 1")

        windowed = _status(stage.engine, target).pages_windowed
        # How many depends on who is faster; what matters is that it pays and is right.
        assert windowed > 1000
        assert faults < 5000
        stage.page_out(target)
        assert stage.engine.learned(target.pid).pages > 4000


@pytest.mark.parametrize(("low", "high"), [(0, 16), (32, 16), (16, 512), (16, 8)])
def test_a_window_out_of_range_is_refused(low: int, high: int) -> None:
    """By the name of the field, and nothing changes."""
    with _asleep(mib=4, wakes=0) as (stage, target), pytest.raises(InvalidSetting, match="window"):
        stage.engine.set_prefetch(target.pid, replay=True, window_min=low, window_max=high)


def test_refaults_are_told_once() -> None:
    """Where, and how long after the page out."""
    with _asleep(wakes=0) as (stage, target):
        stage.engine.refaults(target.pid)
        stage.page_out(target)
        time.sleep(0.05)
        target.ok("walk 500 10 1")
        start = int(target.ok("where").split()[0].split("-")[0], 16)
        told = stage.engine.refaults(target.pid)

        ours = [found for found in told if found.start == start + 500 * 4096]
        assert [(start + 510 * 4096, True)] == [(one.end, one.after_ms >= 50) for one in ours]
        assert [] == stage.engine.refaults(target.pid)


def test_a_template_serves_another_process_with_other_addresses() -> None:
    """Its first wake already finds most of what it needs at home."""
    with _asleep(wakes=2) as (stage, first):
        data = stage.engine.export_learned(first.pid)
        # Rarely the kernel puts the memory right beside another mapping and joins the two, which
        # makes another region of it, or moves all pages in it: then the next process.
        for seed in range(77, 82):
            second = stage.memory(_MIB, seed)
            stage.attach(second)
            usable = stage.engine.import_learned(second.pid, data)
            if usable > _NEEDED * 0.9 and _expects(stage.engine, second, 100):
                break
        assert usable > _NEEDED * 0.9
        assert _expects(stage.engine, second, 100)
        stage.page_out(second)
        stage.engine.wake(second.pid)

        assert _faults(stage.engine, second, _WALK) < _NEEDED * 0.3
        second.verify()


def test_a_template_serves_another_interpreter_with_other_data() -> None:
    """Python heaps of equal programs over different data: most of the first wake is known."""
    with Stage() as stage:
        first = start_heap(stage, 1)
        stage.attach(first, "always")
        stage.page_out(first)
        for _ in range(2):
            # Announced: on a busy host its first faults may be too far apart to be seen as a wake.
            stage.engine.wake(first.pid)
            first.verify()
            stage.page_out(first)
        template = stage.engine.export_learned(first.pid)
        # Where the kernel joins mappings of one of them pages are elsewhere: then the next one.
        rates = []
        for seed in range(2, 7):
            rates.append(_known_at_first_wake(stage, start_heap(stage, seed), template))
            if rates[-1] >= 0.6:
                break
        assert rates[-1] >= 0.6, rates
        stage.settle()


def _known_at_first_wake(stage: Stage, target: Target, template: bytes) -> float:
    """Of what the first wake of a target needed, the share that a template brought home."""
    stage.attach(target, "always")
    stage.page_out(target)
    assert stage.engine.import_learned(target.pid, template) > 0
    stage.engine.wake(target.pid)
    before = _status(stage.engine, target)
    target.verify()
    after = _status(stage.engine, target)
    hits, missed = after.pages_prefetched, after.pages_missed - before.pages_missed
    return hits / (hits + missed)


@pytest.mark.parametrize("data", [b"", b"nonsense", b"AZHABIT1" + bytes(200)])
def test_garbage_is_no_template(data: bytes) -> None:
    """It is refused by name."""
    with _asleep(mib=4, wakes=0) as (stage, target), pytest.raises(InvalidSetting, match="data"):
        stage.engine.import_learned(target.pid, data)


def test_a_page_out_or_a_detach_ends_a_wake_in_progress() -> None:
    """Whoever wants the target gets it soon, and every byte is right."""
    with _asleep(wakes=2) as (stage, target):
        for _ in range(15):
            wakes = [
                threading.Thread(target=stage.engine.wake, args=(target.pid,)) for _ in range(2)
            ]
            for wake in wakes:
                wake.start()
            stage.page_out(target)
            for wake in wakes:
                wake.join()
            target.ok(_WALK)
            stage.page_out(target)
        assert stage.engine.stats().pages_lost == 0
        done = threading.Event()

        def wake_again() -> None:
            with suppress(NotAttached):
                while not done.is_set():
                    stage.engine.wake(target.pid)

        waker = threading.Thread(target=wake_again)
        waker.start()
        try:
            assert stage.detach(target).complete
        finally:
            done.set()
            waker.join()
        target.verify()
        stage.attach(target)


@pytest.mark.parametrize("options", [(), ("--moves", "on"), ("--forks", "on")])
def test_bytes_are_exact_while_mappings_come_and_go(options: tuple[str, ...]) -> None:
    """Unmaps, moves and drops race with wakes, replays and windows; no page is ever wrong."""
    with Stage() as stage:
        engine = stage.open(algorithm="lz4")
        target = stage.start(
            *(stage.program("stress"), "--ops", "40000", "--threads", "4", "--seed", "9"),
            *options,
            verify="",
        )
        stage.attach(target, "always")
        engine.set_prefetch(target.pid, replay=True, window_min=16, window_max=256)
        stop = threading.Event()

        def move() -> None:
            with suppress(Exception):
                while not stop.is_set():
                    with suppress(TargetBusy):
                        engine.page_out(target.pid)
                        stop.wait(0.02)
                        engine.wake(target.pid)

        mover = threading.Thread(target=move)
        mover.start()
        try:
            line = target.read_line(90, "stress")
        finally:
            stop.set()
            mover.join(20)
        assert "0" == line.split()[4], f"{line}\n{target.errors()}"
        assert 0 == engine.stats().pages_lost
        target.wait(10)
        stage.forget(target)
        stage.settle()


def test_what_is_learned_is_counted_and_gone_with_the_target() -> None:
    """16 bytes a page and the notes of the last wake."""
    with _asleep(wakes=2) as (stage, target):
        learned = stage.engine.stats().learned_bytes
        assert 16 * _NEEDED <= learned < 1_000_000
        stage.detach(target)
        stage.forget(target)
        assert 0 == stage.engine.stats().learned_bytes
