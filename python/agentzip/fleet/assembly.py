"""
The fleet put together: scopes, registry, lifecycle, and the doors through which it is asked.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentzip.fleet.foresight import Foresight
from agentzip.fleet.lifecycle import Lifecycle
from agentzip.fleet.registry import Registry
from agentzip.fleet.rules import Rules
from agentzip.fleet.sandbox_socket import SandboxSocket
from agentzip.fleet.scopes import Scopes
from agentzip.fleet.service import FleetService
from agentzip.fleet.settings import FleetSettings
from agentzip.host.cgroups import Cgroups
from agentzip.pager import Pager
from agentzip.readahead import best_source
from agentzip.recent import Recent
from agentzip.sandboxes import FileReadAhead
from agentzip.web import WebServer

if TYPE_CHECKING:
    # Its checks take longer to import than most commands run.
    from agentzip.config import Scope

__all__ = ["FleetRunner"]


class Door(Protocol):
    """Something through which the fleet is asked."""

    def start(self) -> None:
        """Begin to answer."""

    def close(self) -> None:
        """Answer no more."""


class FleetRunner:
    """
    Everything about sandboxes that one daemon has.

    Args:
        engine: The engine.
        run_dir: Where the HTTP socket is made; it must exist.
        settings: What an operator set.
        before_page_out: Called with the pid before a target's pages leave.
        recent: What the engine counts, shared with others who look at it.

    Raises:
        AgentZipError: a door cannot be opened; nothing is left behind then.
    """

    def __init__(
        self,
        engine: Pager,
        run_dir: Path,
        settings: FleetSettings,
        before_page_out: Callable[[int], None] = lambda _pid: None,
        recent: Recent | None = None,
    ) -> None:
        recent = recent or Recent(engine)
        self._scopes = Scopes(settings.scopes, settings.state_dir)
        self._cgroups = Cgroups()
        registry = Registry(
            self._scopes, self._cgroups, own=lambda: (os.getpid(), recent.stats().keeper_pid)
        )
        self.lifecycle = Lifecycle(
            engine,
            registry,
            settings.rules,
            before_page_out,
            after_look=self._after_look,
            recent=recent,
        )
        self.service = FleetService(self.lifecycle, registry, self._scopes)
        with ExitStack() as opened:
            # Closed in the other order: the ticks read what the control groups keep open.
            opened.callback(self._cgroups.close)
            opened.callback(self.lifecycle.stop)
            opened.callback(self.service.close)
            self._foresight: Foresight | None = None
            if settings.file_readahead:
                self._foresight = Foresight(self.lifecycle.observer, best_source())
                opened.callback(self._foresight.close)
            self._doors: list[Door] = []
            for door in _doors(engine, self.service, run_dir, settings):
                self._doors.append(door)
                opened.callback(door.close)
            self._opened = opened.pop_all()

    def start(self) -> None:
        """Begin to look after the sandboxes, and to answer."""
        if self._foresight is not None:
            self._foresight.start()
        self.lifecycle.start()
        for door in self._doors:
            door.start()

    def stop(self) -> None:
        """Answer no more, and let what is in work end; nobody is given back by this."""
        self._opened.close()

    def file_readahead(self) -> FileReadAhead | None:
        """What is foreseen of the reads of files; None if that is off."""
        return self._foresight.status() if self._foresight else None

    def _after_look(self) -> None:
        if self._foresight is not None:
            self._foresight.look()

    def configure(self, rules: Rules, scopes: "Sequence[Scope]") -> None:
        """Take a changed configuration."""
        self._scopes.configure(scopes)
        self.lifecycle.observer.configure(rules)
        self.lifecycle.hurry()

    def kin(self, pid: int) -> tuple[str, str] | None:
        """Trust domain and image of a process of a sandbox; None for any other process."""
        return self.lifecycle.actions.kin(pid)

    def expected_rest_s(self, pid: int) -> float | None:
        """How long the wait of a process is expected to go on; None if nobody knows."""
        return self.lifecycle.observer.expected_rest_s(pid)


def _doors(
    engine: Pager, service: FleetService, run_dir: Path, settings: FleetSettings
) -> Iterator[Door]:
    yield WebServer(service, run_dir)
    if settings.sandbox_socket is not None:
        yield SandboxSocket(service, settings.sandbox_socket)
    if settings.metrics is not None:
        # Its library is optional.
        from agentzip.metrics import MetricsServer

        yield MetricsServer(engine, service, settings.metrics)
