"""
Commands about scopes: scope add, enable, disable, remove, list.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer

from agentzip.cli.options import Invocation, JsonOption
from agentzip.cli.output import print_json, print_table, print_text
from agentzip.control import ControlClient
from agentzip.errors import InvalidSetting
from agentzip.sandboxes import ScopeStatus

__all__ = ["register"]

CgroupOption = Annotated[
    str | None,
    typer.Option(
        "--cgroup", metavar="PATTERN", help="Pattern of control groups, like 'agent-sandbox-*'."
    ),
]

ProcessOption = Annotated[
    int | None,
    typer.Option("--pid", metavar="PID", min=1, help="A process with all that it starts."),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Say which sandboxes the daemon looks after; kept over restarts.")
    group.command("add")(add)
    group.command("enable")(enable)
    group.command("disable")(disable)
    group.command("remove")(remove)
    group.command("list")(list_scopes)
    app.add_typer(group, name="scope")


def add(
    context: typer.Context,
    cgroup: CgroupOption = None,
    pid: ProcessOption = None,
    isolation: Annotated[
        str,
        typer.Option(
            "--isolation",
            metavar="KIND",
            help="scope: its sandboxes share equal pages; sandbox: they share nothing.",
        ),
    ] = "scope",
    as_json: JsonOption = False,
) -> None:
    """
    Select more sandboxes.

    A scope that is there already is enabled.  Without a `/` a pattern matches names of control
    groups wherever they are, with one the whole path.
    """
    pattern = _pattern(cgroup, pid)
    _ask(context, as_json, "added", lambda client: client.scope_add(pattern, isolation))


def enable(
    context: typer.Context,
    cgroup: CgroupOption = None,
    pid: ProcessOption = None,
    as_json: JsonOption = False,
) -> None:
    """Switch a scope on."""
    pattern = _pattern(cgroup, pid)
    _ask(context, as_json, "enabled", lambda client: client.scope_enable(pattern, enabled=True))


def disable(
    context: typer.Context,
    cgroup: CgroupOption = None,
    pid: ProcessOption = None,
    as_json: JsonOption = False,
) -> None:
    """Switch a scope off. Its sandboxes are given back."""
    pattern = _pattern(cgroup, pid)
    _ask(context, as_json, "disabled", lambda client: client.scope_enable(pattern, enabled=False))


def remove(
    context: typer.Context,
    cgroup: CgroupOption = None,
    pid: ProcessOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a scope that a command added. Its sandboxes are given back."""
    pattern = _pattern(cgroup, pid)
    _ask(context, as_json, "removed", lambda client: client.scope_remove(pattern))


def list_scopes(context: typer.Context, as_json: JsonOption = False) -> None:
    """
    List scopes in the order in which they select.

    Of several that match a control group the first decides, also one that is off.
    """
    with _client(context) as client:
        scopes = client.scopes()
    if as_json:
        print_json([asdict(scope) for scope in scopes])
        return
    if not scopes:
        print_text("no scopes; add one: agentzip scope add --cgroup PATTERN")
        return
    print_table(
        ["SCOPE", "ENABLED", "ISOLATION", "FROM", "SANDBOXES"],
        [
            [
                scope.pattern,
                "yes" if scope.enabled else "no",
                scope.isolation,
                scope.source,
                str(scope.sandboxes),
            ]
            for scope in scopes
        ],
        right={"SANDBOXES"},
    )


def _client(context: typer.Context) -> ControlClient:
    invocation: Invocation = context.obj
    return ControlClient(invocation.run_dir)


def _pattern(cgroup: str | None, pid: int | None) -> str:
    if (cgroup is None) == (pid is None):
        raise InvalidSetting(
            "scope needs --cgroup or --pid, and not both",
            "`agentzip scope list` shows what is there",
        )
    return f"pid:{pid}" if cgroup is None else cgroup


def _ask(
    context: typer.Context,
    as_json: bool,
    done: str,
    ask: Callable[[ControlClient], ScopeStatus],
) -> None:
    with _client(context) as client:
        scope = ask(client)
    if as_json:
        print_json(asdict(scope))
    else:
        print_text(f"scope {scope.pattern} is {done}")
