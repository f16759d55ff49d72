"""
`python -m agentzip.selftest.engine_host --run-dir DIR`: an engine that may be killed.

The crash checks need a daemon whose sudden death they survive.  This is the smallest one: it opens
an engine and does what it is told over a line protocol of JSON objects, one command and one answer
per line.  `churn` moves the memory of its targets from threads until `halt`.
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
from agentzip.errors import AgentZipError, TargetBusy
from agentzip.pager import Pager, open_engine

__all__ = ["Host", "main"]

Answer = dict[str, Any]

_BUSY_RETRIES = 20


class Host:
    """Commands over one engine."""

    def __init__(self, engine: Pager) -> None:
        self.engine = engine
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[str] = []

    def attach(self, pid: int) -> Answer:
        """Attach, trying again while no thread can be borrowed."""
        for _ in range(_BUSY_RETRIES):
            with suppress(TargetBusy):
                return asdict(self.engine.attach(pid))
        return asdict(self.engine.attach(pid))

    def page_out(self, pid: int) -> Answer:
        """Move everything out."""
        return asdict(self.engine.page_out(pid))

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

    def close(self) -> Answer:
        """Stop the engine and its keeper."""
        self.engine.close()
        return {}

    def churn(self, pids: list[int], seed: int, reattach: bool) -> Answer:
        """Start to move the memory of these targets at random."""
        self._stop.clear()
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
            thread.join()
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
                self._step(pid, dice.random(), reattach)
            except TargetBusy:
                continue
            except AgentZipError as error:
                self._errors.append(f"{pid}: {error!r}")
                return

    def _step(self, pid: int, chance: float, reattach: bool) -> None:
        if reattach and chance < 0.3:
            self.engine.detach(pid)
            self.attach(pid)
        elif chance < 0.45:
            self.engine.page_in(pid)
        else:
            self.engine.page_out(pid)

    def answer(self, request: Answer) -> Answer:
        """Carry out one command."""
        name = request.pop("do")
        commands: dict[str, Callable[..., Answer]] = {
            "attach": self.attach,
            "page_out": self.page_out,
            "page_in": self.page_in,
            "detach": self.detach,
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
    options = parser.parse_args()
    engine = open_engine(
        model.Settings(
            run_dir=Path(options.run_dir),
            algorithm="lz4",
            chunk_pages=256,
            pool_bytes_max=options.pool_bytes_max,
            crash_at=options.crash_at,
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
