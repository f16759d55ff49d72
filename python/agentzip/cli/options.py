"""
Option types that several commands share, and the state that the global options leave.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from agentzip import model, units

__all__ = [
    "AlgorithmOption",
    "Invocation",
    "JsonOption",
    "LevelOption",
    "PidArgument",
    "PoolSizeOption",
    "settings_of",
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print data as JSON, errors too.")]

PidArgument = Annotated[
    int, typer.Argument(metavar="PID", min=1, help="Process id, seen from this pid namespace.")
]

PoolSizeOption = Annotated[
    str,
    typer.Option("--pool-size", metavar="SIZE", help="Hard cap of the pool, like 8GB or 512MiB."),
]

AlgorithmOption = Annotated[
    str, typer.Option("--algorithm", metavar="NAME", help="zstd (denser), lz4 (faster) or raw.")
]

LevelOption = Annotated[
    int | None,
    typer.Option(
        "--level", metavar="N", help="zstd: -7 to 22, default 3; lz4: 0 to 12, default 0 (fast)."
    ),
]


@dataclass(frozen=True, slots=True)
class Invocation:
    """What the global options said."""

    run_dir: Path


def settings_of(
    context: typer.Context, pool_size: str, algorithm: str, level: int | None
) -> model.Settings:
    """
    Settings of an engine from what was typed.

    Raises:
        InvalidSetting: a value cannot be used; the message names the field.
    """
    invocation: Invocation = context.obj
    return model.Settings(
        run_dir=invocation.run_dir,
        pool_bytes_max=units.parse_size(pool_size, "--pool-size"),
        algorithm=algorithm,
        level=level,
    )
