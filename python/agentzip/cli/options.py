"""
Option types that several commands share, and the state that the global options leave.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from agentzip import model, units
from agentzip.policy import tiers

__all__ = [
    "AlgorithmOption",
    "CgroupOption",
    "ConfigOption",
    "Invocation",
    "JsonOption",
    "LevelOption",
    "PidArgument",
    "PoolSizeOption",
    "configured_settings",
    "settings_of",
    "typed_options",
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print data as JSON, errors too.")]

PidArgument = Annotated[
    int, typer.Argument(metavar="PID", min=1, help="Process id, seen from this pid namespace.")
]

PoolSizeOption = Annotated[
    str | None,
    typer.Option(
        "--pool-size", metavar="SIZE", help="Hard cap of the pool, like 512MiB; default 8GB."
    ),
]

AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        "--algorithm", metavar="NAME", help="zstd (denser, the default), lz4 (faster) or raw."
    ),
]

LevelOption = Annotated[
    int | None,
    typer.Option(
        "--level", metavar="N", help="zstd: -7 to 22, default 3; lz4: 0 to 12, default 0 (fast)."
    ),
]

CgroupOption = Annotated[
    str | None,
    typer.Option(
        "--cgroup",
        metavar="G",
        help="Only sandboxes of the scope with this pattern, or of this name or control group.",
    ),
]

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Instead of /etc/agentzip/config.yaml, if that exists."
    ),
]

_CONFIG = Path("/etc/agentzip/config.yaml")
"""As `agentzip.config` has it, which is not imported where there is no file; a test compares."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """What the global options said."""

    run_dir: Path


def settings_of(
    context: typer.Context, pool_size: str | None, algorithm: str | None, level: int | None
) -> model.Settings:
    """
    Settings of an engine from what was typed.

    Raises:
        InvalidSetting: a value cannot be used; the message names the field.
    """
    invocation: Invocation = context.obj
    return model.Settings(
        run_dir=invocation.run_dir,
        pool_bytes_max=units.parse_size(pool_size or "8GB", "--pool-size"),
        algorithm=algorithm or "zstd",
        level=level,
    )


def configured_settings(
    context: typer.Context,
    file: Path | None,
    pool_size: str | None,
    algorithm: str | None,
    level: int | None,
) -> tuple[model.Settings, tiers.Background]:
    """
    Settings from the configuration file, and from what was typed, which wins.

    Returns:
        How the engine runs, and how its pool is looked after.

    Raises:
        InvalidSetting: a value cannot be used; the message names key or option.
    """
    if file is None and not _CONFIG.exists():
        return settings_of(context, pool_size, algorithm, level), tiers.Background()
    from agentzip import config

    held = config.load_file(file, typed_options(pool_size, algorithm, level)).config
    invocation: Invocation = context.obj
    return config.to_settings(held, invocation.run_dir), config.to_background(held)


def typed_options(
    pool_size: str | None, algorithm: str | None, level: int | None
) -> dict[str, tuple[str, str | int | None]]:
    """What was typed, by the key of the configuration that it stands for."""
    typed: dict[str, tuple[str, str | int | None]] = {
        "pool.max_size": ("--pool-size", pool_size),
        "compression.algorithm": ("--algorithm", algorithm),
        "compression.level": ("--level", level),
    }
    return {key: item for key, item in typed.items() if item[1] is not None}
