"""
A daemon for the lifetime of one command.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from agentzip import model
from agentzip.daemon.confinement import keep_out_of_core_dumps
from agentzip.daemon.serving import Daemon, StopOutcome
from agentzip.fleet import FleetSettings
from agentzip.pager import Pager, open_engine
from agentzip.policy import tiers

__all__ = ["EmbeddedDaemon"]


class EmbeddedDaemon:
    """
    A daemon inside a command, as a context manager; it always detaches on the way out.

    Args:
        settings: How the engine runs.  Its run directory is used as it is.
        private: Make an own directory below the run directory instead, removed at the end; for
            commands that nobody else needs to reach.
        engine_factory: What opens the engine; tests give a fake.
        background: How the pool is looked after.
        fleet: Look after sandboxes, too; None for an engine of targets alone.
    """

    def __init__(
        self,
        settings: model.Settings,
        *,
        private: bool = False,
        engine_factory: Callable[[model.Settings], Pager] = open_engine,
        background: tiers.Background | None = None,
        fleet: FleetSettings | None = None,
    ) -> None:
        self._settings = settings
        self._private = private
        self._engine_factory = engine_factory
        self._background = background
        self._fleet = fleet
        self._daemon: Daemon | None = None
        self.outcome: StopOutcome | None = None
        """How the stop ended; None while it runs."""

    @property
    def daemon(self) -> Daemon:
        """The daemon; only inside the `with` block."""
        if self._daemon is None:
            raise RuntimeError("an embedded daemon is used only within its `with` block")
        return self._daemon

    @property
    def engine(self) -> Pager:
        """The engine of the daemon."""
        return self.daemon.engine

    def __enter__(self) -> Self:
        keep_out_of_core_dumps()
        settings = self._settings
        if self._private:
            settings.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = tempfile.mkdtemp(prefix=f"own-{os.getpid()}-", dir=settings.run_dir)
            settings = replace(settings, run_dir=Path(folder))
        daemon = Daemon(
            settings, self._engine_factory, background=self._background, fleet=self._fleet
        )
        try:
            daemon.start()
        except BaseException:
            self._remove(settings.run_dir)
            raise
        self._daemon = daemon
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        daemon = self.daemon
        self.outcome = daemon.stop()
        # While the keeper holds pages, its directory is the way back to them.
        if self.outcome.complete:
            self._remove(daemon.settings.run_dir)

    def _remove(self, run_dir: Path) -> None:
        if self._private:
            shutil.rmtree(run_dir, ignore_errors=True)
