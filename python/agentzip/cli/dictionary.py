"""
Commands about dictionaries: dict train, dict list, dict show.
"""

import logging
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from agentzip import dictionaries, model, training
from agentzip.cli.options import Invocation, JsonOption
from agentzip.cli.output import print_json, print_table, print_text, set_up_logging
from agentzip.control import ControlClient
from agentzip.daemon import EmbeddedDaemon
from agentzip.errors import DaemonUnreachable, InvalidSetting
from agentzip.units import format_bytes, parse_duration, parse_size

__all__ = ["register"]

_SIZES = (4096, 4 * 2**20)
"""Least and largest size that may be asked for."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Make, list and show dictionaries.")
    group.command("train", context_settings={"allow_interspersed_args": False})(train)
    group.command("list")(list_)
    group.command("show")(show)
    app.add_typer(group, name="dict")


def train(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where to write it; facts go beside it.")
    ],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="What to learn from.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="NAME",
            help="Instead of a command: python312, v8 or chromium, as for the prebuilt ones.",
        ),
    ] = None,
    size: Annotated[str, typer.Option("--size", metavar="SIZE", help="Largest size.")] = "256KiB",
    after: Annotated[
        str, typer.Option("--after", metavar="TIME", help="When the command is ready.")
    ] = "5s",
    private: Annotated[
        bool,
        typer.Option("--private", help="Allow traces of this machine: for use on it only."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """
    Make a dictionary from a process that is started for it.

    The command gets an environment without anything of yours, and its largest process is learned
    from.  What holds names or folders of this machine, or does not pay, is refused.
    """
    if out.suffix != dictionaries.SUFFIX:
        raise InvalidSetting(
            f"--out is no dictionary file: {out}", f"give a name that ends in {dictionaries.SUFFIX}"
        )
    if (recipe is None) == (not command):
        raise InvalidSetting("dict train needs a command or --recipe, and not both")
    if recipe is not None and recipe not in training.RECIPES:
        raise InvalidSetting(
            f"--recipe is not known: {recipe!r}", f"choose one of {', '.join(training.RECIPES)}"
        )
    bytes_max = parse_size(size, "--size")
    if not _SIZES[0] <= bytes_max <= _SIZES[1]:
        raise InvalidSetting(f"--size is out of range: {size!r}", "give 4KiB to 4MiB")
    seconds = parse_duration(after, "--after")
    chosen = training.RECIPES[recipe] if recipe else training.command_recipe(command or [])
    invocation: Invocation = context.obj
    flush = set_up_logging(logging.WARNING)
    try:
        # An engine of its own: what is learned here must not mix with what a daemon holds.
        settings = model.Settings(run_dir=invocation.run_dir)
        with EmbeddedDaemon(settings, private=True) as embedded:
            made = training.make(
                embedded.engine,
                chosen,
                bytes_max=bytes_max,
                after_seconds=seconds,
                private=private,
            )
    finally:
        flush()
    dictionaries.write(made.data, made.facts, out)
    if as_json:
        print_json(asdict(made.facts))
    else:
        print_text(f"wrote {out}")
        _tell(made.facts)


def list_(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the prebuilt dictionaries, and with a daemon running those that it holds."""
    facts = [dictionaries.facts_of(path) for path in dictionaries.prebuilt()]
    live = _live(context.obj.run_dir)
    if as_json:
        print_json(
            {
                "prebuilt": [asdict(item) for item in facts],
                "live": None if live is None else [asdict(item) for item in live],
            }
        )
        return
    print_table(
        ["PREBUILT", "SIZE", "GAIN", "MADE", "SOURCE"],
        [
            [item.name, format_bytes(item.bytes), f"{item.gain:.2f}x", item.date, item.source]
            for item in facts
        ],
        right={"SIZE", "GAIN"},
    )
    if live is not None:
        print_text("")
        print_table(
            ["ID", "NAME", "DOMAIN", "SIZE", "PAGES", "STATE"],
            _live_rows(live),
            right={"ID", "SIZE", "PAGES"},
        )


def _live(run_dir: Path) -> list[model.DictionaryInfo] | None:
    """The dictionaries of the running daemon; None if there is no daemon."""
    try:
        with ControlClient(run_dir) as client:
            answers = client.call("dictionaries")
    except DaemonUnreachable:
        return None
    return [model.from_mapping(model.DictionaryInfo, answer) for answer in answers]


def _live_rows(live: Iterable[model.DictionaryInfo]) -> list[list[str]]:
    return [
        [
            str(item.id),
            item.name,
            item.domain or "-",
            format_bytes(item.bytes),
            str(item.uses),
            "dropped" if item.dropped else "in use",
        ]
        for item in live
    ]


def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A prebuilt dictionary, or a file by its path.")
    ],
    as_json: JsonOption = False,
) -> None:
    """
    Show the facts of a dictionary, after checking that they are its own.

    Also says whether it holds traces of the machine that this runs on.
    """
    path = dictionaries.find(name)
    data = dictionaries.read(path)
    facts = dictionaries.facts_of(path)
    found = training.traces(data, training.machine_words())
    if as_json:
        print_json({"path": str(path), **asdict(facts), "traces_of_this_machine": len(found)})
        return
    print_text(str(path))
    _tell(facts)
    print_text(f"traces of this machine: {len(found) or 'none'}")


def _tell(facts: dictionaries.Facts) -> None:
    print_text(
        f"{facts.name}: {format_bytes(facts.bytes)}, made {facts.date} from "
        f"{facts.pages_sampled} pages; gain on other pages of them {facts.gain:.2f}x"
    )
    print_text(f"source: {facts.source}")
    print_text(f"recipe: {facts.recipe}")
    print_text(f"sha256: {facts.sha256}")
    if facts.private:
        print_text("private: it holds traces of the machine that made it; do not pass it on")
