"""
`python -m agentzip.selftest.engine_host --run-dir DIR`: an engine that may be killed.

The crash checks need a daemon whose sudden death they survive.  This is the smallest one: it opens
an engine and does what it is told over a line protocol of JSON objects, one command and one answer
per line.  `churn` moves the memory of its targets from threads until `halt`: out, home, and between
the tiers, so that a death at any moment finds some of it on its way.
"""

import argparse
import json
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentzip import model
from agentzip.errors import AgentZipError, InvalidSetting, NotAttached, TargetBusy
from agentzip.host import processors
from agentzip.pager import Pager, open_engine
from agentzip.selftest import tiers

__all__ = ["Host", "main"]

Answer = dict[str, Any]

_BUSY_RETRIES = 20

_PASS_US = 60_000
"""How long one tier move of the churn takes: many are begun, few are done."""

_JOIN_SECONDS = 0.1
_SPILLED_PAGES = 300
_TRAINED_BYTES = 2**16
_TRAINED_PAGES = 400


class Host:
    """Commands over one engine."""

    def __init__(self, engine: Pager) -> None:
        self.engine = engine
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[str] = []
        self._pids: list[int] = []

    def attach(self, pid: int) -> Answer:
        """Attach, trying again while no thread can be borrowed."""
        for _ in range(_BUSY_RETRIES):
            with suppress(TargetBusy):
                return asdict(self.engine.attach(pid))
        return asdict(self.engine.attach(pid))

    def wake(self, pid: int) -> Answer:
        """Bring home what a target has learned."""
        return asdict(self.engine.wake(pid))

    def page_out(self, pid: int, ranges: list[tuple[int, int]] | None = None) -> Answer:
        """Move everything out, or what is in some ranges."""
        return asdict(self.engine.page_out(pid, ranges and [(low, high) for low, high in ranges]))

    def page_in(self, pid: int) -> Answer:
        """Bring everything home."""
        return asdict(self.engine.page_in(pid))

    def detach(self, pid: int) -> Answer:
        """Leave a target as found."""
        return asdict(self.engine.detach(pid))

    def stats(self) -> Answer:
        """Counters of the engine."""
        return asdict(self.engine.stats())

    def spaces(self) -> Answer:
        """Managed address spaces."""
        return {"spaces": [asdict(space) for space in self.engine.spaces()]}

    def train(self, pid: int) -> Answer:
        """Train a dictionary for the cold tier, named after its target."""
        training = self.engine.train(
            pid,
            name=str(pid),
            bytes_max=_TRAINED_BYTES,
            pages_max=_TRAINED_PAGES,
            normalised=True,
        )
        return asdict(training)

    def recode(self, pid: int, peer: int | None, dictionary_id: int | None) -> Answer:
        """Pass a target into the cold tier; nobody else may be at work on it."""
        while True:
            report = self.engine.recode(pid, tier="cold", dictionary_id=dictionary_id, peer=peer)
            if report.done:
                return asdict(report)

    def spill(self, pid: int, pages_max: int) -> Answer:
        """Write stored pages to the disk."""
        return asdict(self.engine.spill(pid, pages_max=pages_max))

    def census(self, pid: int) -> Answer:
        """How many pages there are of each codec."""
        pages: dict[str, int] = {}
        for row in self.engine.census(pid):
            pages[row.codec] = pages.get(row.codec, 0) + row.pages
        return pages

    def dictionaries(self) -> Answer:
        """Every dictionary, and how many stored pages need it."""
        return {str(info.id): info.uses for info in self.engine.dictionaries()}

    def release_caches(self) -> Answer:
        """Drop what can be made again."""
        self.engine.release_caches()
        return {}

    def give_up(self) -> Answer:
        """Drop everything that no page needs."""
        tiers.give_up(self.engine)
        return {}

    def kept(self) -> Answer:
        """What is there beside the pool."""
        return {"kept": tiers.kept(self.engine)}

    def close(self) -> Answer:
        """Stop the engine and its keeper."""
        self.engine.close()
        return {}

    def churn(self, pids: list[int], seed: int, reattach: bool) -> Answer:
        """Start to move the memory of these targets at random."""
        self._stop.clear()
        self._pids = pids
        self._threads = [
            threading.Thread(target=self._churn, args=(pid, seed + pid, reattach)) for pid in pids
        ]
        for thread in self._threads:
            thread.start()
        return {}

    def halt(self) -> Answer:
        """End the churn; answers with what went wrong in it."""
        self._stop.set()
        for thread in self._threads:
            while thread.is_alive():
                # At the lowest priority a recode under load outlasts its caller's patience.
                if thread.native_id is not None:
                    processors.end_background(thread.native_id)
                thread.join(_JOIN_SECONDS)
        self._threads = []
        errors, self._errors = self._errors, []
        return {"errors": errors}

    def errors(self) -> Answer:
        """What went wrong in the churn so far."""
        return {"errors": list(self._errors)}

    def _churn(self, pid: int, seed: int, reattach: bool) -> None:
        dice = random.Random(seed)  # noqa: S311 - order of work, not keys
        while not self._stop.is_set():
            try:
                self._step(pid, dice, reattach)
            except TargetBusy:
                continue
            except AgentZipError as error:
                self._errors.append(f"{pid}: {error!r}")
                return

    def _step(self, pid: int, dice: random.Random, reattach: bool) -> None:
        chance = dice.random()
        if chance < 0.35:
            self._move_between_tiers(pid, dice)
        elif reattach and chance < 0.55:
            self.engine.detach(pid)
            self.attach(pid)
        elif chance < 0.65:
            self.engine.page_in(pid)
        elif chance < 0.75:
            # Settings die with the engine; from here on refaults bring pages as well.
            self.engine.set_prefetch(pid, replay=True, window_min=16, window_max=256)
            self.engine.wake(pid)
        else:
            self.engine.page_out(pid)

    def _move_between_tiers(self, pid: int, dice: random.Random) -> None:
        chance = dice.random()
        if chance < 0.1:
            self._choose_dictionary(pid, dice)
        elif chance < 0.5:
            tier = dice.choice(["warm", "cold", "cold", "cold", "frozen"])
            peer = dice.choice([None, *(other for other in self._pids if other != pid)])
            # A peer may be between a detach and an attach.
            with suppress(NotAttached):
                self.engine.recode(
                    pid, tier=tier, dictionary_id=self._own(pid), peer=peer, budget_us=_PASS_US
                )
        elif chance < 0.75:
            self.engine.spill(pid, pages_max=_SPILLED_PAGES)
        elif chance < 0.95:
            self.engine.compact(_PASS_US)
        else:
            self.engine.release_caches()

    def _own(self, pid: int) -> int | None:
        """The dictionary of a target, which may be older than this process."""
        known = self.engine.dictionaries()
        return next((d.id for d in known if d.name == str(pid) and not d.dropped), None)

    def _choose_dictionary(self, pid: int, dice: random.Random) -> None:
        own = self._own(pid)
        if own is None:
            # Refused while most of it is at home and the rest is too little.
            with suppress(InvalidSetting):
                self.train(pid)
        elif dice.random() < 0.3:
            self.engine.drop_dictionary(own)
        else:
            self.engine.use_dictionary(pid, dice.choice([None, own]))

    def answer(self, request: Answer) -> Answer:
        """Carry out one command."""
        name = request.pop("do")
        commands: dict[str, Callable[..., Answer]] = {
            "attach": self.attach,
            "page_out": self.page_out,
            "page_in": self.page_in,
            "detach": self.detach,
            "train": self.train,
            "wake": self.wake,
            "recode": self.recode,
            "spill": self.spill,
            "census": self.census,
            "dictionaries": self.dictionaries,
            "release_caches": self.release_caches,
            "give_up": self.give_up,
            "kept": self.kept,
            "stats": self.stats,
            "spaces": self.spaces,
            "churn": self.churn,
            "halt": self.halt,
            "errors": self.errors,
            "close": self.close,
        }
        try:
            return {"ok": commands[name](**request)}
        except AgentZipError as error:
            return {"error": type(error).__name__, "message": str(error)}


def main() -> int:
    """Open the engine, say which targets it took over, and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--crash-at")
    parser.add_argument("--pool-bytes-max", type=int, default=2**30)
    parser.add_argument("--chunk-pages", type=int, default=256)
    options = parser.parse_args()
    engine = open_engine(
        model.Settings(
            run_dir=Path(options.run_dir),
            algorithm="lz4",
            chunk_pages=options.chunk_pages,
            pool_bytes_max=options.pool_bytes_max,
            crash_at=options.crash_at,
            disk_path=Path(options.run_dir) / "swap",
            disk_bytes_max=tiers.DISK_BYTES_MAX,
        )
    )
    host = Host(engine)
    _say({"ok": {"adopted": engine.adopted(), "keeper_pid": engine.stats().keeper_pid}})
    for line in sys.stdin:
        _say(host.answer(json.loads(line)))
    return 0


def _say(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
