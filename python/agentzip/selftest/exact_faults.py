"""
Faults that cannot be answered at once: the toucher waits, nothing spins, nobody else notices.

The refusals are staged at a named point of the engine (`crash_at`), or by taking away what the
engine needs.  The engine runs in this process, so its processor time is this process's.
"""

import resource
import time

from agentzip.selftest.conditions import wait_until
from agentzip.selftest.exact_memory import expect
from agentzip.selftest.registry import check
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

__all__ = ["faults_that_panic"]

_FOREVER = 10**9
_WATCHED_SECONDS = 3.0
"""How long the processor time of a failure that lasts is measured."""

_CPU_PART_MAX = 0.10
"""What such a failure may take of a processor."""

_RETRIED_SECONDS_MAX = 0.25
"""A fault refused some times is answered this soon, with room for a busy machine."""

_PANICS = 8
_CHURN_MS = 10


def _touch_seconds(target: Target) -> float:
    started = time.monotonic()
    target.ok("touch 5")
    return time.monotonic() - started


def _touch_out(stage: Stage, crash_at: str) -> tuple[Target, float]:
    """Touch a page of a target that is out, with an engine armed like this; the time it took."""
    stage.open(crash_at=crash_at)
    target = stage.memory(4)
    stage.attach(target)
    stage.page_out(target)
    return target, _touch_seconds(target)


class _Processor:
    """How much processor time this process, engine included, took since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._used = time.process_time()

    def part(self) -> float:
        """The part of one processor."""
        used = time.process_time() - self._used
        return used / (time.monotonic() - self._began)


@check("exact/fault-retried-by-time")
def fault_retried_by_time(stage: Stage) -> None:
    """A fault that the kernel refused is tried again although nothing else happens."""
    target, seconds = _touch_out(stage, "fault.decoded:20:again")
    retried = stage.engine.stats().faults_retried
    stage.note(f"answered after {seconds * 1000:.1f} ms and {retried} refusals")
    expect(retried >= 20, f"the refusals were not met: {retried}")
    expect(seconds < _RETRIED_SECONDS_MAX, f"answered after {seconds:.2f} s")
    target.verify()


@check("exact/fault-refused-often")
def fault_refused_often(stage: Stage) -> None:
    """A fault refused a thousand times costs little, and what is written then is kept."""
    stage.open(crash_at="fault.decoded:1000:again")
    target = stage.memory(4)
    stage.attach(target)
    stage.page_out(target)
    processor = _Processor()
    seconds = _touch_seconds(target)
    part = processor.part()
    stage.note(f"answered after {seconds:.1f} s with {part:.2%} of a processor")
    retried = stage.engine.stats().faults_retried
    expect(retried >= 1000, f"the refusals were not met: {retried}")
    expect(part < _CPU_PART_MAX, f"{part:.1%} of a processor for waiting")
    target.ok("write 5")
    stage.page_out(target)
    target.verify()
    target.ok("writeall")
    stage.page_out(target)
    target.verify()


def _watch_in_vain(stage: Stage, crash_at: str) -> None:
    """One target's faults can never be answered; another one, of the same thread, is served."""
    engine = stage.open(fault_threads=1, crash_at=crash_at)
    waiting, served = stage.memory(4, 1), stage.memory(1, 2)
    # Leaves stacks behind that the next threads use again, and give back when they end: each
    # gives an event that waits to be read.
    served.ok("churn 50")
    for target in (waiting, served):
        stage.attach(target, "when asked")
    stage.page_out(waiting)
    # Begins to watch it and moves nothing: it never touches the point.
    engine.page_out(served.pid, [(0x10000, 0x11000)])
    waiting.send("touch 5")

    def tries() -> int:
        stats = engine.stats()
        return stats.faults_retried + stats.fault_panics

    # The first message of a panic loads what names the lines: not a cost of waiting.
    expect(wait_until(lambda: tries() > 0, 5), "the fault was never tried")
    processor = _Processor()
    slowest, deadline = 0.0, time.monotonic() + _WATCHED_SECONDS
    for _ in range(4):
        started = time.monotonic()
        served.ok(f"churn {_CHURN_MS}")
        slowest = max(slowest, time.monotonic() - started - _CHURN_MS / 1000)
    answer = waiting.poll_line(deadline - time.monotonic(), "touch")
    part, stats = processor.part(), engine.stats()
    stage.note(f"{part:.2%} of a processor, {stats.faults_retried} tries")
    stage.note(f"{stats.fault_panics} panics; the other target within {slowest * 1000:.0f} ms")
    expect(answer is None, f"answered although it could not be: {answer}")
    expect(waiting.alive(), f"the target ended: {waiting.ending()}")
    expect(stats.events_remove > 3, f"nothing was asked for the other one: {stats}")
    expect(tries() > 3, f"it was not tried again: {stats}")
    expect(part < _CPU_PART_MAX, f"{part:.1%} of a processor for waiting")
    expect(slowest < 1.0, f"the other target waited {slowest:.2f} s")
    waiting.kill()
    waiting.wait(10)
    stage.forget(waiting)


@check("exact/fault-refused-for-ever")
def fault_refused_for_ever(stage: Stage) -> None:
    """A fault that the kernel always refuses is not tried at full speed; others are served."""
    _watch_in_vain(stage, f"fault.decoded:{_FOREVER}:again")


@check("exact/fault-without-memory")
def fault_without_memory(stage: Stage) -> None:
    """A fault for which there is never memory is not tried at full speed; others are served."""
    _watch_in_vain(stage, f"fault.decoded:{_FOREVER}:no-memory")


@check("exact/fault-always-panics")
def fault_always_panics(stage: Stage) -> None:
    """A fault over which the engine always panics waits, without a storm; others are served."""
    _watch_in_vain(stage, f"fault.decoded:{_FOREVER}:panic")
    # 0.5 ms doubled each time: not more than this in three seconds.
    panics = stage.engine.stats().fault_panics
    expect(3 < panics < 16, f"panics in {_WATCHED_SECONDS:g} s: {panics}")


def _survive(stage: Stage, point: str, *, busy: bool) -> None:
    """Panics at a point; where nobody is busy no other fault makes up for one that was lost."""
    engine = stage.open(crash_at=f"{point}:{_PANICS}:panic")
    targets = [stage.memory(4, 1), stage.memory(4, 2)]
    for target in targets:
        if busy:
            target.ok("threads 2")
        stage.attach(target, "when asked")
        stage.page_out(target)
    for target in targets:
        target.send("verify")
    started = time.monotonic()
    for target in targets:
        answer = target.read_line(5.0, "verify")
        expect(answer.startswith("ok"), f"wrong after panics: {answer}")
    seconds = time.monotonic() - started
    # More faults, until all panics are behind us.
    deadline = time.monotonic() + 10
    while engine.stats().fault_panics < _PANICS and time.monotonic() < deadline:
        for target in targets:
            stage.page_out(target)
            target.verify()
    panics = engine.stats().fault_panics
    stage.note(f"{panics} panics; all verified after {seconds * 1000:.0f} ms")
    expect(panics == _PANICS, f"panics that were counted: {panics}")
    for target in targets:
        if busy:
            target.ok("stop-threads")
        stage.page_out(target)
        target.verify()


@check("exact/fault-panics-early")
def faults_that_panic_early(stage: Stage) -> None:
    """Panics between reading faults and answering them lose none of them."""
    _survive(stage, "fault.read", busy=False)


@check("exact/fault-panics")
def faults_that_panic(stage: Stage) -> None:
    """Panics in the middle of an answer are counted, and every fault is answered all the same."""
    _survive(stage, "fault.decoded", busy=True)


@check("exact/fault-panics-late")
def faults_that_panic_late(stage: Stage) -> None:
    """Panics between putting a page in place and waking who waits for it leave nobody asleep."""
    _survive(stage, "fault.installed", busy=False)


@check("exact/waker-stuck")
def waker_stuck(stage: Stage) -> None:
    """Who has his page goes on although the thread that wakes him does not get to it."""
    target, seconds = _touch_out(stage, "fault.to_wake:1:pause")
    stage.note(f"awake after {seconds * 1000:.1f} ms")
    expect(seconds < _RETRIED_SECONDS_MAX, f"woken after {seconds:.2f} s")
    target.verify()


@check("exact/fork-without-descriptors")
def fork_without_descriptors(stage: Stage) -> None:
    """A fork for whose child there is no descriptor waits without spinning, and then goes on."""
    stage.open()
    target = stage.memory(4)
    stage.attach(target)
    stage.page_out(target)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A process is refused descriptors from this number on: all that are free.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        target.send("fork-verify")
        processor = _Processor()
        answer = target.poll_line(_WATCHED_SECONDS, "fork-verify")
        part = processor.part()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    stage.note(f"{part:.2%} of a processor")
    expect(answer is None, f"the child ran without a descriptor: {answer}")
    expect(part < _CPU_PART_MAX, f"{part:.1%} of a processor for waiting")
    answer = target.read_line(20, "fork-verify")
    expect(answer.startswith("ok"), answer)
