"""
Exactness under load: random address-space changes, interrupted waits, and a busy control plane.
"""

import contextlib
import errno
import os
import signal
import threading
import time
from pathlib import Path

from agentzip.errors import AgentZipError, TargetBusy
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.exact_memory import expect
from agentzip.selftest.registry import CheckFailed, CheckSkipped, check
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

__all__ = ["interrupted_waits", "run_stress"]

_OPS = 900_000
_OPS_WITH_FORKS = 200_000
_OPS_WITH_MOVES = 80_000
"""Together more than a million operations in each run of the tests."""

_OPS_WITH_PREFETCH = 120_000
_OPS_TANGLED = 50_000
_OPS_ENDLESS = 10**12
_LOOK_SECONDS = 0.1
_ASK_SECONDS = 60.0
"""An answer of a stress target may wait for a page out of a hundred thousand mappings."""

_ASLEEP_SECONDS = 0.02
"""How long a target is left alone between a page out and its wake."""

_PAGE_OUTS = 200
_DETACH_SECONDS = 6.0

_SLOW_LEVEL = 19
"""Of zstd: a page out of some thousand pages takes seconds."""

_WAIT_MS = 500
_WAIT_PAUSE_SECONDS = 0.01
"""Far more often than a wait ends."""

_WAIT_SECONDS_MAX = 15.0

_STORM_PAUSE_SECONDS = 0.0005

_SIGNALS = 200
_SIGNAL_SECONDS_MAX = 0.02
"""Signals come at moments up to this, in which there are some page outs."""

_EPOLL_WAIT = "232 "
"""How /proc/PID/syscall begins for a thread in it."""

_STOP_LIMIT_US_MIN = 1_000
"""The least that the engine takes: on a busy machine a stop often takes longer."""

_STOP_LIMIT_US = 5_000
_HOLD_GIB = 8
_HOLD_MS = 8_000
"""Changing the protection of so many pages locks an address space for a tenth of a second."""


def run_stress(
    stage: Stage,
    operations: int,
    seed: int,
    *options: str,
    prefetch: bool = False,
    seconds_max: float = 150,
    page_outs_min: int = 6,
) -> None:
    """
    Let the target do random operations while everything is paged out without a pause.

    It goes on until it has done `operations` and was paged out `page_outs_min` times: a few
    operations may take less time than one page out.

    Raises:
        CheckFailed: a page was wrong, an operation of ours failed, or it takes too long.
    """
    stage.open(algorithm="lz4")
    target = stage.start(
        *(stage.program("stress"), "--ops", str(_OPS_ENDLESS), "--threads", "4"),
        *("--seed", str(seed), *options),
        verify="",
    )
    stage.attach(target, "when asked")
    if prefetch:
        stage.engine.set_prefetch(target.pid, replay=True, window_min=16, window_max=256)
    _page_out_until(stage, target, operations, prefetch, seconds_max, page_outs_min)


def _page_out_until(
    stage: Stage,
    target: Target,
    operations: int,
    prefetch: bool,
    seconds_max: float,
    page_outs_min: int,
) -> None:
    # One that goes on into a tier takes longer, the program does not.
    fewest = 1 if stage.tier else page_outs_min
    mover = _Mover(stage, target, wake=prefetch)
    deadline = time.monotonic() + seconds_max
    try:
        while (done := _operations(target)) < operations or len(mover.passes) < fewest:
            expect(not mover.failures, f"page out failed: {mover.failures}")
            expect(
                time.monotonic() < deadline,
                f"only {done} of {operations} operations and {len(mover.passes)} of {fewest} "
                f"page outs in {seconds_max:g} s",
            )
            time.sleep(_LOOK_SECONDS)
        line = target.command("finish", _ASK_SECONDS)
    finally:
        mover.end()
    stage.note(f"{line}; {len(mover.passes)} page outs, {sum(mover.passes)} pages moved")
    words = line.split()
    expect(words[0] == "final", f"unexpected: {line}")
    expect(words[4] == "0", f"wrong pages: {line}\n{target.errors()}")
    expect(not mover.failures, f"page out failed: {mover.failures}")
    expect(sum(mover.passes) > 0, "nothing was paged out in the whole run")
    expect(target.wait(10) == 0, "the target ended badly")
    stage.forget(target)


def _operations(target: Target) -> int:
    """How many operations a stress target has done; none of them may have gone wrong."""
    counts = target.command("status", _ASK_SECONDS)
    expect(counts.split()[3] == "0", f"wrong pages: {counts}\n{target.errors()}")
    return int(counts.split()[1])


class _Mover:
    """A thread that pages a target out without a pause, until the target ends or it is told to."""

    def __init__(self, stage: Stage, target: Target, *, wake: bool) -> None:
        self.passes: list[int] = []
        """Pages that each page out has moved."""
        self.failures: list[str] = []
        self._stage, self._target, self._wake = stage, target, wake
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._move)
        self._thread.start()

    def _move(self) -> None:
        while not self._stop.is_set():
            try:
                self.passes.append(self._stage.page_out(self._target).pages_moved)
                # Every other wake is left to be seen.
                asleep = self._wake and not self._stop.wait(_ASLEEP_SECONDS)
                if asleep and len(self.passes) % 2:
                    self._stage.engine.wake(self._target.pid)
            except (AgentZipError, OSError) as error:
                # The last page out may meet a target that has just ended.
                if not self._stop.wait(0.2) and self._target.alive():
                    self.failures.append(repr(error))
                return

    def end(self) -> None:
        """Stop paging out."""
        self._stop.set()
        self._thread.join(20)


@check("exact/stress", 170)
def stress(stage: Stage) -> None:
    """Four threads change their address space at random while everything is paged out."""
    run_stress(stage, _OPS, 11)


@check("exact/stress-forks", 170)
def stress_forks(stage: Stage) -> None:
    """The same with children that verify what they inherited."""
    run_stress(stage, _OPS_WITH_FORKS, 12, "--forks", "on")


@check("exact/stress-moves", 170)
def stress_moves(stage: Stage) -> None:
    """Threads move mappings to places that others have just left: events come out of order."""
    run_stress(stage, _OPS_WITH_MOVES, 13, "--moves", "on")


@check("exact/stress-prefetch", 170)
def stress_prefetch(stage: Stage) -> None:
    """Wakes and windows bring pages home while mappings move, come and go."""
    run_stress(stage, _OPS_WITH_PREFETCH, 15, "--moves", "on", "--forks", "on", prefetch=True)


@check("exact/tangled-moves", 120)
def tangled_moves(stage: Stage) -> None:
    """Threads move their mappings to where another's has just been, and do nothing else."""
    stage.open(algorithm="lz4")
    target = stage.start(stage.program("tangle"), "8", verify="")
    stage.attach(target, "when asked")
    _page_out_until(stage, target, _OPS_TANGLED, False, 100, 6)


@check("exact/detach-under-moves", 90)
def detach_under_moves(stage: Stage) -> None:
    """Nothing is left away when a program that moves its mappings is detached again and again."""
    engine = stage.open(algorithm="lz4")
    target = stage.start(
        *(stage.program("stress"), "--ops", str(10**9), "--threads", "1", "--seed", "14"),
        verify="",
    )
    detached = moved = 0
    deadline = time.monotonic() + _DETACH_SECONDS
    while time.monotonic() < deadline:
        try:
            engine.attach(target.pid)
        except TargetBusy:
            continue
        with contextlib.suppress(TargetBusy):
            moved += engine.page_out(target.pid).pages_moved
        while True:
            with contextlib.suppress(TargetBusy):
                if engine.detach(target.pid).complete:
                    break
        detached += 1
    target.send("finish")
    line = target.read_line(30, "finish")
    stage.note(f"{line}; {detached} detaches, {moved} pages moved")
    expect(line.split()[4] == "0", f"wrong pages: {line}\n{target.errors()}")
    expect(detached > 10, f"only {detached} detaches")
    expect(target.wait(10) == 0, "the target ended badly")


@check("exact/locked-address-space", 90)
def locked_address_space(stage: Stage) -> None:
    """A program whose address space is locked for long is let go of, not kept stopped as long."""
    engine = stage.open(stop_limit_us=_STOP_LIMIT_US)
    target = stage.memory(1)
    held = int(target.ok(f"hold-lock {_HOLD_GIB} {_HOLD_MS}", 60))
    if held * 1000 < 8 * _STOP_LIMIT_US:
        raise CheckSkipped(f"this machine changes {_HOLD_GIB} GiB of pages in {held} ms")
    stops, busy, slowest = [], 0, 0.0
    deadline = time.monotonic() + _HOLD_MS / 1000
    while time.monotonic() < deadline:
        try:
            stops.append(engine.attach(target.pid).stop_us / 1000)
            stops.append(stage.detach(target).stop_us / 1000)
        except TargetBusy:
            busy += 1
        started = time.monotonic()
        target.ok("ping")
        slowest = max(slowest, time.monotonic() - started)
    stage.note(f"locked for {held} ms; {len(stops)} stops, {busy} times undone")
    stage.note(f"longest stop {max(stops, default=0):.1f} ms, slowest answer {slowest * 1000:.0f}")
    expect(len(stops) + busy > 1, f"only {len(stops)} stops and {busy} tries")
    expect(max(stops, default=0) < held / 2, f"stopped for {max(stops):.0f} of {held} ms")
    if engine.spaces():
        stage.detach(target)
    stage.attach(target, "when asked")
    stage.page_out(target)


@check("exact/interrupted-waits", 90)
def interrupted_waits(stage: Stage) -> None:
    """No blocking call of the target returns EINTR over two hundred page outs."""
    # The second has no thread in a call that the kernel makes again by itself.
    for words in ((), ("exposed",)):
        target = stage.start(stage.program("eintr"), *words)
        stage.attach(target)
        moved = 0
        for _ in range(_PAGE_OUTS):
            target.ok("fill")
            moved += stage.page_out(target).pages_moved
        report = target.ok("report")
        interrupted = [word for word in report.split() if not word.endswith("=0/0")]
        stage.note(f"{moved} pages moved in {_PAGE_OUTS} page outs")
        expect(moved > _PAGE_OUTS * 100, f"too few pages moved: {moved}")
        expect(not interrupted, f"calls that returned (EINTR/other): {interrupted}")


@check("exact/timed-waits")
def timed_waits(stage: Stage) -> None:
    """A wait of a process with one thread ends by its timeout, however often it is paged out."""
    _expect_timeouts(stage)


@check("exact/timed-waits-late")
def timed_waits_late(stage: Stage) -> None:
    """The same when stops often come too late, and the thread is let go of without a page out."""
    stage.open(stop_limit_us=_STOP_LIMIT_US_MIN)
    _expect_timeouts(stage)


@check("exact/ignored-signals")
def ignored_signals(stage: Stage) -> None:
    """A wait that is paged out all the time is not ended by signals that the program ignores."""
    _expect_timeouts(stage, signal.SIGURG)


@check("exact/handled-signals")
def handled_signals(stage: Stage) -> None:
    """A signal with a handler ends the wait that it meets, also in the middle of a page out."""
    target = stage.start(stage.program("timed"))
    stage.attach(target)
    command = "wait epoll_wait -1"
    where = Path(f"/proc/{target.pid}/syscall")
    stops = 0
    for number in range(_SIGNALS):
        target.send(command)
        waits = wait_until(lambda: where.read_text().startswith(_EPOLL_WAIT), _WAIT_SECONDS_MAX)
        expect(waits, f"it does not wait but in {where.read_text()}")
        moment = number * _SIGNAL_SECONDS_MAX / _SIGNALS
        sender = threading.Timer(moment, os.kill, (target.pid, signal.SIGUSR1))
        sender.start()
        answer, stopped = _paged_out_until_answer(stage, target, command, pause_seconds=0.0005)
        stops += stopped
        expect(answer.split()[1:3] == ["-1", str(errno.EINTR)], f"the wait ended with {answer}")
    stage.note(f"{_SIGNALS} signals, {stops} page outs")


def _expect_timeouts(stage: Stage, storm: signal.Signals | None = None) -> None:
    """Let a target wait in one call after the other, under page outs and a storm of a signal."""
    target = stage.start(stage.program("timed"))
    stage.attach(target)
    over = threading.Event()

    def send() -> None:
        while storm is not None and not over.wait(_STORM_PAUSE_SECONDS):
            os.kill(target.pid, storm)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for call, result, why in (
            ("epoll_wait", 0, 0),
            ("epoll_pwait2", 0, 0),
            ("sigtimedwait", -1, errno.EAGAIN),
        ):
            command = f"wait {call} {_WAIT_MS}"
            target.send(command)
            answer, stops = _paged_out_until_answer(stage, target, command)
            *actual, lasted_ms = [int(word) for word in answer.split()[1:]]
            expect([result, why] == actual, f"{call} returned {actual}, not {[result, why]}")
            expect(lasted_ms >= _WAIT_MS, f"{call} ended after {lasted_ms} of {_WAIT_MS} ms")
            stage.note(f"{call}: {lasted_ms} ms, {stops} page outs")
    finally:
        over.set()
        sender.join()


def _paged_out_until_answer(
    stage: Stage, target: Target, command: str, pause_seconds: float = _WAIT_PAUSE_SECONDS
) -> tuple[str, int]:
    """Page a waiting target out without end; its answer, and how often that was done or tried."""
    tries = 0
    deadline = time.monotonic() + _WAIT_SECONDS_MAX
    while (answer := target.poll_line(pause_seconds, command)) is None:
        expect(time.monotonic() < deadline, f"{command}: no end under {tries} page outs")
        # Home again, so that the next page out has something to move.
        stage.engine.page_in(target.pid)
        with contextlib.suppress(TargetBusy):
            stage.engine.page_out(target.pid)
        tries += 1
    return answer, tries


@check("exact/status-during-moves", 90)
def status_during_moves(stage: Stage) -> None:
    """Asking for the state never blocks or fails while pages move."""
    stage.open(algorithm="zstd", level=_SLOW_LEVEL)
    targets = [stage.memory(6, seed) for seed in (1, 2)]
    for target in targets:
        stage.attach(target)
    asker = _Asker(stage)
    # Who waited for a page out would wait for all of it.
    longest = max(stage.page_out(target).elapsed_us for target in targets) / 1e6
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        for target in targets:
            target.ok("verify")
            stage.engine.page_in(target.pid)
            # What was only read leaves again without being encoded.
            stage.page_out(target)
    asker.end()
    stage.note(f"slowest answer {asker.slowest * 1000:.0f} ms, a page out {longest * 1000:.0f} ms")
    expect(not asker.failures, f"questions failed: {asker.failures}")
    expect(longest > 0.5, f"a page out took only {longest:.2f} s: nothing could be waited for")
    expect(asker.slowest < longest / 2, f"{asker.slowest:.2f} s of {longest:.2f} s")


class _Asker:
    """Four threads that ask for everything there is to ask, without a pause."""

    def __init__(self, stage: Stage) -> None:
        self.slowest = 0.0
        self.failures: list[str] = []
        self._engine = stage.engine
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(4)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self._engine.stats()
                for space in self._engine.spaces():
                    self._engine.regions(space.pid)
            except AgentZipError as error:
                self.failures.append(repr(error))
                return
            self.slowest = max(self.slowest, time.monotonic() - started)

    def end(self) -> None:
        """Stop asking."""
        self._stop.set()
        for thread in self._threads:
            thread.join(10)
            if thread.is_alive():
                raise CheckFailed("a question for the state does not return")
