"""
The commands put together, with the global options and one place where errors become exit codes.
"""

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from agentzip import errors
from agentzip.cli import (
    analysis,
    checks,
    configuration,
    dictionary,
    hint,
    launch,
    measure,
    scopes,
    simulate,
    stats,
    targets,
    top,
    trim,
)
from agentzip.cli.options import Invocation
from agentzip.cli.output import print_error
from agentzip.daemon import default_run_dir

__all__ = ["app", "exit_codes", "main"]

_INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""


def exit_codes() -> dict[int, str]:
    """Every exit code with its meaning; those above 2 are read from the exception tree."""
    codes = {
        0: "done",
        1: "a check failed, or something was left behind",
        2: "bad input: unknown option, or a value out of its range",
    }
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind not in {errors.AgentZipError, errors.InvalidSetting}:
            codes[kind.exit_code] = f"{name}: {(kind.__doc__ or '').strip().rstrip('.')}"
    codes[_INTERRUPTED] = "interrupted by Ctrl-C before the command was done"
    return dict(sorted(codes.items()))


def _epilog() -> str:
    lines = [f"{code:>3}  {meaning}" for code, meaning in exit_codes().items()]
    # The control character asks the help formatter to leave the lines of a paragraph alone.
    heading = "Exit codes (`run` ends with the exit code of its command instead):"
    return "\n".join(["\b", heading, *lines])


app = typer.Typer(
    name="agentzip",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=_epilog(),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"agentzip {metadata.version('agentzip')}\n")
        raise typer.Exit


@app.callback()
def _globals(
    context: typer.Context,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            metavar="DIR",
            help="Where daemon, keeper and socket live; "
            "default $AGENTZIP_RUN_DIR, else /run/agentzip.",
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Take memory pages out of idle AI-agent sandboxes and give them back on touch."""
    chosen = run_dir or default_run_dir()
    context.obj = Invocation(Path(os.path.abspath(chosen)))


launch.register(app)
targets.register(app)
hint.register(app)
trim.register(app)
stats.register(app)
top.register(app)
analysis.register(app)
checks.register(app)
dictionary.register(app)
configuration.register(app)
scopes.register(app)
measure.register(app)
simulate.register(app)


def main(arguments: list[str] | None = None) -> int:
    """
    Run one command.

    Args:
        arguments: Words of the command line; None means those of this process.

    Returns:
        The exit code.
    """
    words = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    # What follows `--` belongs to the command of `run`, its `--json` as well.
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        result = app(words, standalone_mode=False, prog_name="agentzip")
    except errors.AgentZipError as error:
        print_error(error, as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; point stdout elsewhere or the exit would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except typer.TyperException as error:
        describe = getattr(error, "format_message", None)
        message = describe() if describe else str(error)
        if message:
            print_error(errors.InvalidSetting(message, _usage_hint(error)), as_json)
        return int(getattr(error, "exit_code", 2))
    return result if isinstance(result, int) else 0


def _usage_hint(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "agentzip"
    return f"`{path} --help` shows what it takes"
