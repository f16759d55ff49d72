"""
What the fleet of one daemon is started with, taken from a configuration.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agentzip.fleet.rules import Rules, rules_of

if TYPE_CHECKING:
    # Its checks take longer to import than most commands run.
    from agentzip.config import Config, Scope

__all__ = ["FleetSettings", "fleet_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Settings of one fleet."""

    rules: Rules = field(default_factory=Rules)
    scopes: "tuple[Scope, ...]" = ()
    state_dir: Path | None = None
    """Where the scopes that commands add are kept; None keeps them for the fleet's lifetime."""
    sandbox_socket: Path | None = None
    """Socket for the sandboxes themselves; None for none."""
    metrics: str | None = None
    """Loopback address for Prometheus; None for none."""
    file_readahead: bool = False
    """Whether reads of files are foreseen."""


def fleet_settings(config: "Config") -> FleetSettings:
    """The settings that a configuration asks for."""
    from agentzip.config import state_dir

    socket = config.hints.sandbox_socket
    return FleetSettings(
        rules=rules_of(config.policy),
        scopes=tuple(config.scopes),
        state_dir=Path(state_dir(config)),
        sandbox_socket=None if socket is None else Path(socket),
        metrics=config.metrics.listen,
        file_readahead=config.policy.file_readahead,
    )
