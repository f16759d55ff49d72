"""
The engine without a daemon's decisions, in a process of its own, so that its costs can be told.

It answers one JSON object a line on a Unix socket, each connection in a thread of its own; when its
stdin ends it gives every target back, closes the engine and with it the keeper, and ends.  A bench
that is killed closes that pipe, too.

    python -m agentzip.bench.fanout.engine_process RUN_DIR POOL_BYTES
"""

import contextlib
import json
import os
import signal
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentzip import model
from agentzip.bench.encode.paging import insist, portions
from agentzip.control import detach_all
from agentzip.errors import AgentZipError, AlreadyAttached, TargetsRemain
from agentzip.host import kinship
from agentzip.pager import Pager, open_engine
from agentzip.policy.prefetch import HEAD_PAGES
from agentzip.policy.tiers import Background, Rules
from agentzip.upkeep import Upkeep

__all__ = ["SOCKET_NAME", "EngineService", "main"]

SOCKET_NAME = "bench.sock"

_DOMAIN = "bench"
"""All sandboxes trust each other: equal pages and dictionaries may be shared."""

_GIVE_BACK_SECONDS = 60.0

_NEVER_S = 1e9
"""Pages stay in the tier that they left for: moving them on is the daemon's schedule."""


class EngineService:
    """What the bench may ask the engine."""

    def __init__(self, engine: Pager) -> None:
        self._engine = engine
        rules = Rules(cold_after_s=_NEVER_S, frozen_after_s=_NEVER_S)
        self._images: dict[int, str] = {}
        self._awake: set[int] = set()
        """Targets that went on since their last page out began."""
        self._page_outs_us = 0.0
        """Two threads may add at the same time; one page out that is not counted is no matter."""
        self._upkeep = Upkeep(engine, Background(rules=rules), self._kinship)
        self.calls: dict[str, Callable[..., Any]] = {
            "add": self.add,
            "out": self.out,
            "stay": self.stay,
            "wake": self.wake,
            "state": self.state,
        }

    def add(self, pid: int, prefetch: bool) -> None:
        """Attach a process; with its learned set replayed if asked for."""
        with contextlib.suppress(AlreadyAttached):
            domain, image = self._kinship(pid)
            insist(self._engine.attach, pid, domain=domain, image=image)
        if prefetch:
            self._engine.set_prefetch(pid, replay=True, window_min=16, window_max=256)

    def out(self, pid: int) -> None:
        """Page everything out that may leave, in portions, until the sandbox goes on."""
        self._awake.discard(pid)
        self._upkeep.before_page_out(pid)
        for portion in portions(self._engine.regions(pid)):
            if pid in self._awake:
                return
            report = insist(self._engine.page_out, pid, portion)
            self._page_outs_us += report.elapsed_us

    def stay(self, pid: int) -> None:
        """End a page out that is under way: the sandbox goes on."""
        self._awake.add(pid)

    def wake(self, pid: int) -> None:
        """The same, and what the last wakes needed comes home."""
        self.stay(pid)
        self._engine.wake(pid, first=HEAD_PAGES)

    def state(self) -> dict[str, Any]:
        """Counters of the engine and of every target."""
        spaces = [asdict(space) for space in self._engine.spaces()]
        stats = asdict(self._engine.stats())
        return {"stats": stats, "spaces": spaces, "page_outs_s": self._page_outs_us / 1e6}

    def start(self) -> None:
        """Begin the pool's upkeep: dictionaries, and compaction."""
        self._upkeep.start()

    def close(self) -> None:
        """Give everything back and end the engine."""
        self._upkeep.stop()
        deadline = time.monotonic() + _GIVE_BACK_SECONDS
        while True:
            with contextlib.suppress(AgentZipError):
                detach_all(self._engine)
            try:
                return self._engine.close()
            except TargetsRemain:
                # Ended ones are noticed soon, busy ones are free again soon.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _kinship(self, pid: int) -> tuple[str, str]:
        if pid not in self._images:
            self._images[pid] = kinship.image_of(pid)
        return _DOMAIN, self._images[pid]


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, path: Path, service: EngineService) -> None:
        super().__init__(str(path), _Connection)
        self.service = service


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        calls = self.server.service.calls
        for line in self.rfile:
            asked = json.loads(line)
            try:
                answer = {"result": calls[asked.pop("call")](**asked)}
            except AgentZipError as error:
                answer = {"error": str(error), "kind": type(error).__name__}
            # A bench that was killed waits for no answer.
            with contextlib.suppress(BrokenPipeError):
                self.wfile.write(json.dumps(answer).encode() + b"\n")


def main(arguments: list[str] | None = None) -> None:
    """Serve until stdin ends."""
    run_dir, pool_bytes = sys.argv[1:] if arguments is None else arguments
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder = Path(run_dir)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = open_engine(model.Settings(run_dir=folder, pool_bytes_max=int(pool_bytes)))
    service = EngineService(engine)
    service.start()
    server = _Server(folder / SOCKET_NAME, service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"ready {os.getpid()}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()
    service.close()


if __name__ == "__main__":
    main()
