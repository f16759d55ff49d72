"""
One engine with everything around it: sockets, the pool's upkeep, the sandboxes.

    starting ──► serving ──► stopping ──► stopped
                    │            │
                    │            └─ second signal or deadline: abandoned (the keeper holds the rest)
                    └─ killed: the keeper holds everything; the next daemon takes over

Stopping means giving every target back.  That can take long on a host short of memory, so it runs
in a thread of its own with a deadline, and a second signal ends the waiting at once: whatever is
still out stays with the keeper, and the next daemon on the same run directory goes on from there.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from agentzip import model
from agentzip.control import ControlServer, JsonObject, detach_all
from agentzip.daemon import notify
from agentzip.errors import AgentZipError, TargetsRemain
from agentzip.fleet import FleetRunner, FleetSettings
from agentzip.host import kinship
from agentzip.host.groups import KeeperGroup
from agentzip.pager import Pager, open_engine
from agentzip.policy import tiers
from agentzip.recent import SHARED_S, Recent
from agentzip.upkeep import Upkeep

__all__ = [
    "Daemon",
    "Reloaded",
    "StopOutcome",
    "default_run_dir",
]

_TICK_SECONDS = 1.0
"""How often the daemon looks after itself."""

_STOP_SECONDS_MAX = 120.0
"""How long a stop waits for pages to come home before the rest is left with the keeper."""

_DETACH_RETRY_SECONDS = 0.2
"""Pause between two rounds over targets that could not be given back yet."""

_log = logging.getLogger(__name__)


def default_run_dir() -> Path:
    """Run directory that is used unless another is named."""
    return Path(os.environ.get("AGENTZIP_RUN_DIR") or "/run/agentzip")


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """How a stop ended."""

    complete: bool
    """Every target is as it was found and the engine is closed."""
    targets_left: int
    pages_out: int
    """Pages that are still in the pool; the keeper holds them."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """A configuration that was read again."""

    background: tiers.Background
    fleet: FleetSettings
    changed: list[str]
    """Keys that hold from now on."""
    waiting: list[str]
    """Keys that hold after the next start."""


class Daemon:
    """
    An engine with everything around it.

    Args:
        settings: How the engine runs.
        engine_factory: What opens the engine; tests give a fake.
        stop_seconds_max: Deadline of a stop.
        background: How the pool is looked after.
        fleet: How sandboxes are looked after; None to look after none.
        reload: Reads the configuration again; None where there is none to read.
        tell_manager: Tells the service manager a state of `notify`.
    """

    def __init__(
        self,
        settings: model.Settings,
        engine_factory: Callable[[model.Settings], Pager] = open_engine,
        stop_seconds_max: float = _STOP_SECONDS_MAX,
        background: tiers.Background | None = None,
        fleet: FleetSettings | None = None,
        reload: Callable[[], Reloaded] | None = None,
        tell_manager: Callable[[str], None] = lambda _state: None,
    ) -> None:
        self.settings = settings
        self.engine: Pager
        self._recent: Recent
        self._engine_factory = engine_factory
        self._stop_seconds_max = stop_seconds_max
        self._background = background or tiers.Background()
        self._fleet_settings = fleet
        self._reload = reload
        self._tell_manager = tell_manager
        self._reload_requested = threading.Event()
        self._fleet: FleetRunner | None = None
        self._upkeep: Upkeep | None = None
        self._kin: dict[int, tuple[str, str]] = {}
        self._server: ControlServer | None = None
        self.stop_requested = threading.Event()
        """Set once somebody asked the daemon to end."""
        self._give_up = threading.Event()
        self._known: dict[int, model.SpaceStatus] = {}
        self._pages_lost = 0
        self._keeper_restarts = 0
        self._fault_panics = 0
        self._keeper_group = KeeperGroup(settings.run_dir)
        self._started_at = time.monotonic()
        self._stopped: StopOutcome | None = None

    def start(self) -> None:
        """
        Open the engine, take over what a killed daemon left, begin to answer.

        Raises:
            AgentZipError: the engine cannot start; nothing is left behind then.
        """
        self.settings.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.engine = self._engine_factory(self.settings)
        # Only where sandboxes are looked after are there many targets, and several who look.
        recent = Recent(self.engine, 0.0 if self._fleet_settings is None else SHARED_S)
        self._recent = recent
        try:
            self._upkeep = Upkeep(
                self.engine,
                self._background,
                self._kinship,
                expected_rest_s=self._expected_rest_s,
                recent=recent,
            )
            if self._fleet_settings is not None:
                self._fleet = FleetRunner(
                    self.engine,
                    self.settings.run_dir,
                    self._fleet_settings,
                    self._upkeep.before_page_out,
                    recent,
                )
            self._server = ControlServer(
                self.engine,
                self.settings.run_dir,
                self.request_stop,
                self.about,
                self._kinship,
                self.before_page_out,
                self._fleet.service if self._fleet else None,
            )
        except BaseException:
            if self._fleet is not None:
                self._fleet.stop()
            # With targets taken over the engine stays: closing would be refused, and the keeper
            # is there to hold them until the next start.
            with contextlib.suppress(TargetsRemain):
                self.engine.close()
            raise
        self._server.start()
        self._upkeep.start()
        if self._fleet is not None:
            self._fleet.start()
        self._keeper_group.take(self.engine.stats().keeper_pid)
        adopted = self.engine.adopted()
        if adopted:
            _log.info("took over %d targets from the keeper: %s", len(adopted), adopted)
        self._tell_manager(notify.READY)

    def about(self) -> JsonObject:
        """What `status` says of the daemon itself."""
        foreseen = self._fleet.file_readahead() if self._fleet else None
        return {
            "pid": os.getpid(),
            "run_dir": str(self.settings.run_dir),
            "uptime_seconds": round(time.monotonic() - self._started_at, 1),
            "stopping": self.stop_requested.is_set(),
            "file_readahead": asdict(foreseen) if foreseen else None,
        }

    def before_page_out(self, pid: int) -> None:
        """Prepare the encoding of a target's pages; to be called before each page out."""
        if self._upkeep is not None:
            self._upkeep.before_page_out(pid)

    def _kinship(self, pid: int) -> tuple[str, str]:
        """Trust domain and image of a process, as they were when it was first asked for."""
        of_sandbox = self._fleet.kin(pid) if self._fleet else None
        if of_sandbox is not None:
            return of_sandbox
        known = self._kin.get(pid)
        if known is None:
            known = self._kin[pid] = (kinship.NO_SCOPE, kinship.image_of(pid))
        return known

    def _expected_rest_s(self, pid: int) -> float | None:
        return self._fleet.expected_rest_s(pid) if self._fleet else None

    def request_reload(self) -> None:
        """Ask the daemon to read its configuration again; returns at once."""
        self._reload_requested.set()

    def reload(self) -> None:
        """Take a changed configuration; one with anything wrong in it changes nothing."""
        self._reload_requested.clear()
        if self._reload is None or self._upkeep is None:
            return
        try:
            fresh = self._reload()
        except AgentZipError as error:
            _log.error("the old configuration stays: %s (%s)", error, error.hint)
            return
        self._upkeep.configure(fresh.background)
        if self._fleet is not None:
            self._fleet.configure(fresh.fleet.rules, fresh.fleet.scopes)
        _log.info(
            "read the configuration again; changed: %s", ", ".join(fresh.changed) or "nothing"
        )
        if fresh.waiting:
            _log.warning("hold only after a restart: %s", ", ".join(fresh.waiting))

    def request_stop(self) -> None:
        """Ask the daemon to end; a second time, not to wait any longer."""
        if self.stop_requested.is_set():
            self._give_up.set()
        self.stop_requested.set()

    def serve(self) -> StopOutcome:
        """Run until a stop is requested, then stop."""
        while not self.stop_requested.wait(_TICK_SECONDS):
            if self._reload_requested.is_set():
                self._tell_manager(notify.reloading())
                self.reload()
                self._tell_manager(notify.READY)
            self.tick()
        return self.stop()

    def tick(self) -> None:
        """Look at the engine once and log what changed; an error here never ends the daemon."""
        try:
            seen, stats = self._recent.spaces(), self._recent.stats()
        except AgentZipError as error:
            _log.warning("the engine does not answer: %s", error)
            return
        if seen != list(self._known.values()):
            self._follow({space.id: space for space in seen})
        if stats.pages_lost > self._pages_lost:
            _log.error("%d pages failed their checksum and are poisoned", stats.pages_lost)
        if stats.fault_panics > self._fault_panics:
            # The faults it happened over wait: a target is never answered by a guess.
            _log.error(
                "a bug: fault threads panicked (%d times); what was not answered is tried again",
                stats.fault_panics,
            )
        if stats.keeper_restarts > self._keeper_restarts:
            _log.warning("the keeper died and was replaced (%d times)", stats.keeper_restarts)
        self._keeper_group.take(stats.keeper_pid)
        self._pages_lost = stats.pages_lost
        self._keeper_restarts = stats.keeper_restarts
        self._fault_panics = stats.fault_panics

    def _follow(self, spaces: dict[int, model.SpaceStatus]) -> None:
        """Log which spaces have come and gone."""
        for space_id in self._known.keys() - spaces.keys():
            space = self._known[space_id]
            self._kin.pop(space.pid, None)
            _log.info("space %d is gone (pid %d, %s)", space_id, space.pid, space.command)
        for space_id in spaces.keys() - self._known.keys():
            space = spaces[space_id]
            _log.info("managing space %d (pid %d, %s)", space_id, space.pid, space.command)
        self._known = spaces

    def stop(self) -> StopOutcome:
        """
        Give every target back and close, within the deadline.

        Ctrl-C during the wait counts as a second signal.  Further calls change nothing.
        """
        if self._stopped is not None:
            return self._stopped
        self.stop_requested.set()
        self._tell_manager(notify.STOPPING)
        if self._fleet is not None:
            self._fleet.stop()
        if self._upkeep is not None:
            self._upkeep.stop()
        finished = threading.Event()
        worker = threading.Thread(
            target=self._give_back, args=(finished,), name="detach", daemon=True
        )
        worker.start()
        deadline = time.monotonic() + self._stop_seconds_max
        try:
            # Short waits, because a signal handler runs only between two of them.
            while not finished.wait(0.1) and not self._give_up.is_set():
                if time.monotonic() > deadline:
                    break
        except KeyboardInterrupt:
            _log.warning("interrupted again: not waiting for pages to come home")
        self._give_up.set()
        if self._server is not None:
            self._server.close()
        self._stopped = self._outcome()
        return self._stopped

    def _give_back(self, finished: threading.Event) -> None:
        try:
            while not self._give_up.is_set():
                with contextlib.suppress(AgentZipError):
                    detach_all(self.engine, self._give_up.is_set)
                if not self.engine.spaces():
                    return
                _log.warning("some targets cannot be given back yet; trying again")
                self._give_up.wait(_DETACH_RETRY_SECONDS)
        finally:
            finished.set()

    def _outcome(self) -> StopOutcome:
        spaces = self.engine.spaces()
        if not spaces:
            with contextlib.suppress(TargetsRemain):
                self.engine.close()
                self._keeper_group.remove()
                return StopOutcome(True, 0, 0)
            spaces = self.engine.spaces()
        pages_out = sum(space.pages_out for space in spaces)
        _log.error(
            "%d targets with %d pages out are left with the keeper; start the daemon again with "
            "the same run directory to serve them",
            len(spaces),
            pages_out,
        )
        return StopOutcome(False, len(spaces), pages_out)
