"""
The pool's background work: dictionaries, tiers, compaction, the disk.

`Upkeep` observes the engine, asks `policy.tiers` what is worth doing, and does it in a thread of
its own at the lowest priority.  Whatever fails here costs density, never a page: it is logged, and
the next tick tries again.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from agentzip import dictionaries
from agentzip.errors import AgentZipError
from agentzip.host import processors
from agentzip.pager import Pager
from agentzip.policy import tiers
from agentzip.recent import Recent

__all__ = ["Upkeep"]

_log = logging.getLogger(__name__)

_TRAIN_PAGES_MIN = 2_000
"""Fewer stored pages do not pay for a dictionary of their own."""

_WARM_BYTES = 256 << 10
_WARM_PAGES = 8_000
_COLD_PAGES = 16_000
_PAGE_BYTES = 4096

_PREBUILT = {"python": "python312", "node": "v8", "chrom": "chromium", "headless_shell": "chromium"}
"""Shipped dictionary by the beginning of a program's name."""

_GAIN_MIN = 1.02
"""A shipped dictionary that gains less on a sample of the target's pages is not used for it."""

_NOTHING_OUT_TICKS = 5.0
"""Ticks are so much longer while no page is out: there is nothing that could be made smaller."""

_STOP_LOOK_S = 0.1

_CACHES_IDLE_S = 60.0
"""What finds equal and similar pages is dropped after this time without background work."""


@dataclass(slots=True)
class _Watch:
    """What is remembered of one target between two ticks."""

    tier: tiers.Tier = "warm"
    pages_out: int = 0
    faults: int = 0
    changed_at: float = 0.0
    cold_dictionary: int | None = None
    trained: bool = False


@dataclass(slots=True)
class _Family:
    """Targets of one trust domain and image share a warm dictionary."""

    dictionary: int | None = None
    decided: bool = False


class Upkeep:
    """
    Background work for one engine.

    Args:
        engine: The engine.
        settings: What an operator sets.
        kinship: (domain, image) of a target by its pid.
        clock: Seconds, for tests.
        expected_rest_s: How long a target's wait is expected to go on, by its pid; None if nobody
            knows.
        recent: What the engine counts, shared with others who look at it.
    """

    def __init__(
        self,
        engine: Pager,
        settings: tiers.Background,
        kinship: Callable[[int], tuple[str, str]],
        clock: Callable[[], float] = time.monotonic,
        expected_rest_s: Callable[[int], float | None] = lambda _pid: None,
        recent: Recent | None = None,
    ) -> None:
        self._engine = engine
        self._recent = recent or Recent(engine)
        self._settings = settings
        self._kinship = kinship
        self._expected_rest_s = expected_rest_s
        self._clock = clock
        self._watches: dict[int, _Watch] = {}
        self._families: dict[tuple[str, str], _Family] = {}
        self._prebuilt: dict[str, int] = {}
        self._worked_at = clock()
        self._ticks = processors.processor_times()
        self._any_out = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, tick_s: float = 1.0) -> None:
        """Work in the background until `stop`."""

        def run() -> None:
            while not self._stop.wait(tick_s if self._any_out else tick_s * _NOTHING_OUT_TICKS):
                try:
                    self.step()
                except AgentZipError as error:
                    _log.warning("background work on the pool failed: %s", error)

        self._thread = threading.Thread(target=run, name="upkeep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the background work; waits for the action in progress."""
        self._stop.set()
        if self._thread is None:
            return
        while self._thread.is_alive():
            # At its own priority a busy host would keep it here for minutes.  Again and again,
            # as an action that begins just now lowers it.
            if self._thread.native_id is not None:
                processors.end_background(self._thread.native_id)
            self._thread.join(_STOP_LOOK_S)

    def configure(self, settings: tiers.Background) -> None:
        """Take changed settings; they hold from the next tick."""
        self._settings = settings

    def before_page_out(self, pid: int) -> None:
        """Choose the dictionary that a target's pages are encoded with when they leave."""
        family = self._families.setdefault(self._kinship(pid), _Family())
        with contextlib.suppress(AgentZipError):
            number = family.dictionary
            if number is None:
                number = self._prebuilt_for(pid)
            self._engine.use_dictionary(pid, number)

    def step(self) -> list[tiers.Action]:
        """One tick: observe, plan, act; returns what was done."""
        targets = self._observe()
        self._any_out = bool(targets)
        self._train_families(targets)
        actions = tiers.plan(targets, self._host(), self._settings.rules)
        done = []
        for action in actions:
            if self._stop.is_set():
                break
            try:
                self._act(action)
            except AgentZipError as error:
                # The target may have gone, or somebody works on it: the next tick decides anew.
                _log.info("background work was not done: %s", error)
            else:
                done.append(action)
        now = self._clock()
        if done:
            self._worked_at = now
        elif now - self._worked_at > _CACHES_IDLE_S:
            self._engine.release_caches()
            self._worked_at = now
        return done

    def _observe(self) -> list[tiers.TargetState]:
        now = self._clock()
        states = []
        spaces = {space.pid: space for space in self._recent.spaces() if space.pid}
        for gone in self._watches.keys() - spaces.keys():
            self._forget(gone)
        for pid, space in spaces.items():
            watch = self._watches.setdefault(pid, _Watch(changed_at=now))
            if space.pages_out > watch.pages_out:
                # Pages that left just now are warm, whatever the others are.
                watch.tier = "warm"
            if (space.pages_out, space.faults) != (watch.pages_out, watch.faults):
                watch.pages_out, watch.faults = space.pages_out, space.faults
                watch.changed_at = now
            if not space.pages_out:
                continue
            domain, image = self._kinship(pid)
            idle_s, rest_s = now - watch.changed_at, self._expected_rest_s(pid)
            states.append(
                tiers.TargetState(
                    pid=pid,
                    domain=domain,
                    image=image,
                    tier=watch.tier,
                    pages_out=space.pages_out,
                    bytes_pool=space.bytes_pool,
                    idle_s=idle_s,
                    expected_wait_s=None if rest_s is None else idle_s + rest_s,
                )
            )
        return states

    def _forget(self, pid: int) -> None:
        watch = self._watches.pop(pid)
        if watch.cold_dictionary is not None:
            with contextlib.suppress(AgentZipError):
                self._engine.drop_dictionary(watch.cold_dictionary)

    def _host(self) -> tiers.HostState:
        stats = self._recent.stats()
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return tiers.HostState(
            memory_bytes=pages * size,
            cores=os.cpu_count() or 1,
            cpu_idle_share=self._idle_share(),
            pool_bytes=stats.pool_bytes,
            pool_bytes_max=stats.pool_bytes_max,
            pool_waste_bytes=stats.pool_waste_bytes,
            disk_bytes_free=max(0, stats.disk_bytes_max - stats.disk_bytes),
        )

    def _idle_share(self) -> float:
        """Of all processors, since the last look."""
        before, self._ticks = self._ticks, processors.processor_times()
        busy = processors.busy_share(before, self._ticks)
        return 1.0 if busy is None else 1.0 - busy

    def _act(self, action: tiers.Action) -> None:
        match action:
            case tiers.Compact(budget_s):
                self._engine.compact(_micros(budget_s))
            case tiers.Spill(pid, pages_max):
                report = self._engine.spill(pid, pages_max=pages_max)
                if report.stopped:
                    _log.warning("the disk tier takes no more pages: %s", report.stopped)
            case tiers.Move():
                self._move(action)

    def _move(self, move: tiers.Move) -> None:
        watch = self._watches[move.pid]
        if move.tier != "warm" and not watch.trained:
            watch.trained = True
            watch.cold_dictionary = self._train(move.pid, cold=True)
            if self._stop.is_set():
                return
        # That of the family is there anyway, and better than none.
        family = self._families.get(self._kinship(move.pid), _Family())
        report = self._engine.recode(
            move.pid,
            tier=move.tier,
            dictionary_id=watch.cold_dictionary or family.dictionary,
            peer=move.peer,
            budget_us=_micros(move.budget_s),
        )
        if report.done:
            watch.tier = move.tier

    def _train(self, pid: int, *, cold: bool) -> int | None:
        """A dictionary of the target's own pages, if it pays for itself."""
        if self._settings.dictionary != "auto":
            return None
        space = next((space for space in self._engine.spaces() if space.pid == pid), None)
        if space is None or space.pages_out < _TRAIN_PAGES_MIN:
            return None
        cold_bytes = tiers.cold_dictionary_bytes(space.pages_out * _PAGE_BYTES)
        training = self._engine.train(
            pid,
            name="own",
            bytes_max=cold_bytes if cold else _WARM_BYTES,
            pages_max=_COLD_PAGES if cold else _WARM_PAGES,
            normalised=cold,
        )
        if tiers.pays_for_itself(training.gain, space.bytes_pool, training.bytes):
            return training.id
        self._engine.drop_dictionary(training.id)
        return None

    def _train_families(self, targets: list[tiers.TargetState]) -> None:
        """One warm dictionary per family, from the first target that has enough pages out."""
        for target in targets:
            family = self._families.setdefault((target.domain, target.image), _Family())
            if family.decided or target.pages_out < _TRAIN_PAGES_MIN:
                continue
            family.decided = True
            family.dictionary = self._train(target.pid, cold=False)
            return

    def _prebuilt_for(self, pid: int) -> int | None:
        """The shipped dictionary for what runs there, if there is one that gains on its pages."""
        wanted = self._settings.dictionary
        if wanted == "none":
            return None
        program = _program(pid)
        name = next((name for prefix, name in _PREBUILT.items() if program.startswith(prefix)), "")
        if not name or (isinstance(wanted, tuple) and name not in wanted):
            return None
        if name not in self._prebuilt:
            data = dictionaries.read(dictionaries.find(name))
            self._prebuilt[name] = self._engine.add_dictionary(data, name=name)
        number = self._prebuilt[name]
        gain = self._engine.measure_dictionary(pid, number)
        return number if gain >= _GAIN_MIN else None


def _program(pid: int) -> str:
    """Name of the program, empty if it has gone."""
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    return ""


def _micros(seconds: float) -> int:
    return max(1, int(seconds * 1e6))
