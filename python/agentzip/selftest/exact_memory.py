"""
Exactness with the C targets: content that is known page by page.
"""

import os
import random
import threading
import time
from collections.abc import Callable

from agentzip.errors import AgentZipError, TargetGone
from agentzip.selftest.conditions import resident_anonymous_bytes, wait_until
from agentzip.selftest.registry import CheckFailed, add, check
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

__all__ = ["expect"]

_MIB = 2**20
_PAGES_PER_MIB = 256


def expect(condition: bool, message: str) -> None:
    """
    State what must be true.

    Raises:
        CheckFailed: with the message, if it is not.
    """
    if not condition:
        raise CheckFailed(message)


def _rounds(algorithm: str, level: int, mib: int) -> Callable[[Stage], None]:
    """Page out everything, verify, write, and again, with one way of encoding."""

    def run(stage: Stage) -> None:
        stage.open(algorithm=algorithm, level=level)
        target = stage.memory(mib)
        stage.attach(target)
        pages = mib * _PAGES_PER_MIB
        for _ in range(3):
            report = stage.page_out(target)
            expect(report.pages_stored >= pages * 0.95, f"too little left: {report}")
            resident = resident_anonymous_bytes(target.pid)
            expect(resident < mib * _MIB / 10, f"still resident after page out: {resident}")
            target.verify(60)
            stage.page_out(target)
            target.ok("writeall")
            target.verify()
        stage.page_out(target)
        report_in = stage.engine.page_in(target.pid)
        expect(report_in.pages_out == 0, f"page in left pages out: {report_in}")
        target.verify()
        stage.page_out(target)
        stage.note(f"stored {report.bytes_stored} of {report.bytes_logical} bytes")

    return run


for _name, _algorithm, _level, _mib in (
    ("raw", "raw", 0, 32),
    ("lz4", "lz4", 0, 32),
    ("lz4-hc", "lz4", 9, 16),
    ("zstd-3", "zstd", 3, 32),
    ("zstd-19", "zstd", 19, 4),
):
    add(
        f"exact/memory-{_name}",
        f"Every page comes back right when it is encoded with {_name}.",
        _rounds(_algorithm, _level, _mib),
        90.0,
    )


@check("exact/canary")
def canary(stage: Stage) -> None:
    """A single byte that is changed from outside is found: the checks can fail."""
    target = stage.memory(4)
    stage.attach(target)
    stage.page_out(target)
    target.verify()
    start = int(target.ok("where").split()[0].split("-")[0], 16)
    with open(f"/proc/{target.pid}/mem", "r+b", buffering=0) as memory:
        at = start + 100 * 4096 + 77
        byte = os.pread(memory.fileno(), 1, at)
        os.pwrite(memory.fileno(), bytes([byte[0] ^ 1]), at)
        answer = target.command("verify")
        os.pwrite(memory.fileno(), byte, at)
    expect(answer.startswith("bad 1 first=100"), f"the change was not found: {answer}")


@check("exact/busy-threads")
def busy_threads(stage: Stage) -> None:
    """Ten threads that read and write while everything is paged out again and again."""
    target = stage.memory(16)
    target.ok("threads 10")
    stage.attach(target, "when asked")
    moved = 0
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        moved += stage.page_out(target).pages_moved
    target.ok("stop-threads")
    target.verify()
    stage.note(f"{moved} pages moved")


@check("exact/prefetch-race")
def prefetch_race(stage: Stage) -> None:
    """Faults of eight threads and batched page-ins race over the same pages; nobody sleeps on."""
    target = stage.memory(16)
    target.ok("threads 8")
    stage.attach(target, "when asked")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        stage.page_out(target)
        stage.engine.page_in(target.pid)
    target.ok("stop-threads")
    stage.note(f"{stage.engine.stats().faults_already_present} already present")


@check("exact/fork-while-moving")
def fork_while_moving(stage: Stage) -> None:
    """Children and grandchildren of a process with busy threads verify while pages move."""
    target = stage.memory(8)
    target.ok("threads 3")
    stage.attach(target, "when asked")
    with _moving(stage, target):
        for _ in range(12):
            target.ok("fork-verify")
    target.ok("stop-threads")


@check("exact/grow-brk")
def grow_brk(stage: Stage) -> None:
    """A heap that grows by brk while it is paged out."""
    _grow(stage, "brk")


@check("exact/grow-mmap")
def grow_mmap(stage: Stage) -> None:
    """Mappings that appear while memory is paged out."""
    _grow(stage, "mmap")


def _grow(stage: Stage, how: str) -> None:
    target = stage.memory(4)
    stage.attach(target, "when asked")
    with _moving(stage, target):
        for _ in range(24):
            target.ok(f"grow-{how} 1")
            target.verify()
    stage.page_out(target)
    out = stage.bytes_out(target)
    expect(out > 27 * _MIB, f"of 28 MiB only {out} bytes are out")
    target.verify()


@check("exact/clean-pages")
def clean_pages(stage: Stage) -> None:
    """Pages that were only read leave again without being encoded."""
    target = stage.memory(32)
    stage.attach(target)
    stage.page_out(target)
    target.verify()
    second = stage.page_out(target)
    # A page of one value is recognised faster than it could be compared with a kept copy.
    encoded = second.pages_moved - second.pages_clean - second.pages_same_filled
    expect(encoded < 0.1 * second.pages_moved, f"encoded again: {second}")
    target.verify()
    for index in range(0, 8192, 16):
        target.ok(f"write {index}")
    third = stage.page_out(target)
    stale = third.pages_clean - (second.pages_clean - 512 * 6 // 8)
    expect(stale < 64, f"written pages count as clean: {third} after {second}")
    target.verify()
    stage.note(f"{second.pages_clean} of {second.pages_moved} clean")


@check("exact/pool-full")
def pool_full(stage: Stage) -> None:
    """At the cap of the pool the page out stops and nothing is dropped."""
    stage.open(algorithm="raw", pool_bytes_max=8 * _MIB)
    target = stage.memory(48)
    stage.attach(target)
    for _ in range(3):
        report = stage.page_out(target)
        expect(report.pool_full, f"not full: {report}")
        taken = stage.engine.stats().pool_bytes
        expect(taken <= 8 * _MIB, f"the pool is above its cap: {taken}")
        target.verify()
    target.ok("writeall")


@check("exact/detach-without-memory")
def detach_without_memory(stage: Stage) -> None:
    """A detach that would leave too little memory stops, keeps serving, and can be repeated."""
    target = stage.memory(32)
    stage.attach(target)
    stage.page_out(target)
    report = stage.detach(target, 2**62)
    expect(not report.complete, f"complete although memory was too short: {report}")
    expect(report.pages_out > 0, f"pages came home although memory was too short: {report}")
    target.verify()
    stage.page_out(target)


@check("exact/leader-exit")
def leader_exit(stage: Stage) -> None:
    """A process whose first thread is gone is served, or refused for a stated reason."""
    target = stage.memory(8)
    target.ok("leader-exit")
    try:
        stage.attach(target)
    except AgentZipError as refusal:
        stage.note(f"refused: {refusal}")
        target.verify()
        return
    stage.page_out(target)
    target.verify()
    stage.page_out(target)


@check("exact/thread-churn")
def thread_churn(stage: Stage) -> None:
    """Attach, page out and detach while threads come and go all the time."""
    target = stage.memory(4)
    for _ in range(5):
        target.send("churn 400")
        stage.attach(target, "when asked")
        stage.page_out(target)
        answer = target.read_line(20, "churn")
        expect(answer.startswith("ok"), answer)
        stage.detach(target)
    stage.attach(target)


@check("exact/attach-detach")
def attach_detach(stage: Stage) -> None:
    """Attaching and detaching many times leaves nothing that adds up."""
    target = stage.memory(4)
    for _ in range(60):
        stage.attach(target)
        stage.page_out(target)
        stage.detach(target)
    stage.attach(target)
    ours = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        stage.detach(target)
        stage.attach(target)
    now = len(os.listdir("/proc/self/fd"))
    expect(now <= ours, f"descriptors of the daemon add up: {ours} -> {now}")


@check("exact/exit-during-page-out")
def exit_during_page_out(stage: Stage) -> None:
    """A target that exits in the middle of a page out leaves nothing behind."""
    dice = random.Random(1)  # noqa: S311 - moments, not keys
    for _ in range(12):
        target = stage.memory(16)
        stage.attach(target)
        with _moving(stage, target):
            time.sleep(dice.uniform(0, 0.02))
            target.send("exit")
            target.wait(10)
        stage.forget(target)
        _expect_forgotten(stage)


@check("exact/kill-during-page-in")
def kill_during_page_in(stage: Stage) -> None:
    """A target that is killed in the middle of a page in leaves nothing behind."""
    dice = random.Random(2)  # noqa: S311 - moments, not keys
    for _ in range(12):
        target = stage.memory(16)
        stage.attach(target)
        stage.page_out(target)
        killer = threading.Timer(dice.uniform(0, 0.01), target.kill)
        killer.start()
        try:
            stage.engine.page_in(target.pid)
        except AgentZipError as gone:
            expect(isinstance(gone, TargetGone), f"the wrong error: {gone!r}")
        killer.join()
        target.wait(10)
        stage.forget(target)
        _expect_forgotten(stage)


@check("exact/exec-during-page-out")
def exec_during_page_out(stage: Stage) -> None:
    """A target that becomes another program in the middle of a page out runs on, untouched."""
    dice = random.Random(3)  # noqa: S311 - moments, not keys
    target = stage.memory(16)
    for _ in range(12):
        stage.attach(target)
        with _moving(stage, target):
            time.sleep(dice.uniform(0, 0.02))
            target.send("exec")
            line = target.read_line(20, "exec")
        expect(line.startswith("ready"), f"after exec: {line}")
        target.verify()
        stage.forget(target)
        _expect_forgotten(stage)
    stage.attach(target)


def _expect_forgotten(stage: Stage) -> None:
    engine = stage.engine

    def forgotten() -> bool:
        return engine.stats().pool_slots == 0 and not engine.spaces()

    if not wait_until(forgotten, 3):
        slots, spaces = engine.stats().pool_slots, engine.spaces()
        raise CheckFailed(f"a gone target is remembered: {slots} slots, {spaces}")


class _moving:  # noqa: N801 - reads as a statement: with _moving(...)
    """Pages a target out again and again in a thread, until the block ends or it is gone."""

    def __init__(self, stage: Stage, target: Target) -> None:
        self._engine = stage.engine
        self._pid = target.pid
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._move)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        if self._thread.is_alive():
            raise CheckFailed("a page out does not return")
        if self._error is not None:
            raise CheckFailed(f"page out failed: {self._error!r}")

    def _move(self) -> None:
        while not self._stop.is_set():
            try:
                self._engine.page_out(self._pid)
            except (ProcessLookupError, AgentZipError) as error:
                # The exit or exec may come first: then the target is gone or not attached.
                if type(error).__name__ not in {"TargetGone", "NotAttached", "TargetBusy"}:
                    self._error = error
                    return
                self._stop.wait(0.001)
