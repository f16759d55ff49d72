"""
Commands about the configuration file: config check, config show.

The checks are imported where they are used: they take longer to import than all other commands.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from agentzip.cli.options import (
    AlgorithmOption,
    ConfigOption,
    JsonOption,
    LevelOption,
    PoolSizeOption,
)
from agentzip.cli.output import print_json, print_table, print_text
from agentzip.errors import InvalidSetting

__all__ = ["register"]

_OPTIONS = {
    "pool_size": ("pool.max_size", "--pool-size"),
    "algorithm": ("compression.algorithm", "--algorithm"),
    "level": ("compression.level", "--level"),
}
"""Options of the commands that start an engine, with the keys that they win over."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Check the configuration file, or show what holds.")
    group.command("check")(check)
    group.command("show")(show)
    app.add_typer(group, name="config")


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration to check.")],
    as_json: JsonOption = False,
) -> None:
    """
    Check a configuration file, changing nothing.

    With --json its problems are data on stdout, an empty list if there are none.
    """
    from agentzip import config

    try:
        config.load_file(file)
    except InvalidSetting:
        if as_json:
            found = config.problems_of(_text(file), str(file), on_host=True)
            print_json([asdict(problem) for problem in found])
        raise
    if as_json:
        print_json([])
    else:
        print_text(f"configuration holds: {file}")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""  # what is wrong with the file itself is in the error


def show(
    file: ConfigOption = None,
    pool_size: PoolSizeOption = None,
    algorithm: AlgorithmOption = None,
    level: LevelOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Show every value that holds, and where it comes from.

    A value comes from an option, else from the file, else it is the default.  Sizes are in bytes
    and durations in seconds unless the key says otherwise.
    """
    from agentzip import config

    given: dict[str, Any] = {"pool_size": pool_size, "algorithm": algorithm, "level": level}
    options = {
        key: (option, given[name])
        for name, (key, option) in _OPTIONS.items()
        if given[name] is not None
    }
    effective = config.load_file(file, options)
    rows = effective.rows()
    if as_json:
        print_json([{"key": key, "value": value, "source": source} for key, value, source in rows])
        return
    print_table(
        ["KEY", "VALUE", "FROM"],
        [[key, _told(value), source] for key, value, source in rows],
    )


def _told(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " ".join(str(item) for item in value) or "none"
    return "-" if value is None else str(value)
