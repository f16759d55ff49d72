"""
Exactness under load: random address-space changes, interrupted waits, and a busy control plane.
"""

import contextlib
import threading
import time

from agentzip.errors import AgentZipError, TargetBusy
from agentzip.selftest.exact_memory import expect
from agentzip.selftest.registry import CheckFailed, CheckSkipped, check
from agentzip.selftest.stage import Stage

__all__ = ["interrupted_waits", "run_stress"]

_OPS = 900_000
_OPS_WITH_FORKS = 200_000
_OPS_WITH_MOVES = 80_000
"""Together more than a million operations in each run of the tests."""

_OPS_WITH_PREFETCH = 120_000
_ASLEEP_SECONDS = 0.02
"""How long a target is left alone between a page out and its wake."""

_PAGE_OUTS = 200
_DETACH_SECONDS = 6.0

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

    Raises:
        CheckFailed: a page was wrong, an operation of ours failed, or it takes too long.
    """
    stage.open(algorithm="lz4")
    target = stage.start(
        *(stage.program("stress"), "--ops", str(operations), "--threads", "4"),
        *("--seed", str(seed), *options),
        verify="",
    )
    stage.attach(target, "when asked")
    if prefetch:
        stage.engine.set_prefetch(target.pid, replay=True, window_min=16, window_max=256)
    stop = threading.Event()
    passes: list[int] = []
    failures: list[str] = []

    def move() -> None:
        while not stop.is_set():
            try:
                passes.append(stage.page_out(target).pages_moved)
                # Every other wake is left to be seen.
                if prefetch and not stop.wait(_ASLEEP_SECONDS) and len(passes) % 2:
                    stage.engine.wake(target.pid)
            except (AgentZipError, OSError) as error:
                # The last page out may meet a target that has just ended.
                if not stop.wait(0.2) and target.alive():
                    failures.append(repr(error))
                return

    mover = threading.Thread(target=move)
    mover.start()
    try:
        line = target.read_line(seconds_max, "stress")
    finally:
        stop.set()
        mover.join(20)
    stage.note(f"{line}; {len(passes)} page outs, {sum(passes)} pages moved")
    words = line.split()
    expect(words[0] == "final", f"unexpected: {line}")
    expect(words[4] == "0", f"wrong pages: {line}\n{target.errors()}")
    expect(int(words[2]) >= operations - 4, f"too few operations: {line}")
    expect(not failures, f"page out failed: {failures}")
    # One that goes on into a tier takes longer, the program does not.
    fewest = 1 if stage.tier else page_outs_min
    expect(len(passes) >= fewest, f"only {len(passes)} page outs in the whole run")
    expect(sum(passes) > 0, "nothing was paged out in the whole run")
    expect(target.wait(10) == 0, "the target ended badly")
    stage.forget(target)


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
    target = stage.start(stage.program("eintr"))
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


@check("exact/status-during-moves")
def status_during_moves(stage: Stage) -> None:
    """Asking for the state never blocks or fails while pages move."""
    targets = [stage.memory(8, seed) for seed in (1, 2)]
    for target in targets:
        stage.attach(target)
    asker = _Asker(stage)
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        for target in targets:
            stage.page_out(target)
            target.ok("verify")
            stage.engine.page_in(target.pid)
    asker.end()
    expect(not asker.failures, f"questions failed: {asker.failures}")
    # Generous: four threads of questions share the processor with the work itself.
    expect(asker.slowest < 5.0, f"the slowest answer took {asker.slowest:.2f} s")
    stage.note(f"slowest answer {asker.slowest * 1000:.0f} ms")


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
