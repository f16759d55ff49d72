"""
Commands that keep an engine alive: daemon, run, attach.

`run` and `attach` use the daemon of the run directory if there is one, and bring their own for
their lifetime if there is none.
"""

import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from agentzip import model
from agentzip.cli import signals
from agentzip.cli.options import (
    AlgorithmOption,
    ConfigOption,
    JsonOption,
    LevelOption,
    PidArgument,
    PoolSizeOption,
    configured_settings,
    typed_options,
)
from agentzip.cli.output import print_json, print_note, print_text, set_up_logging
from agentzip.cli.targets import page_out_text
from agentzip.control import ControlClient
from agentzip.daemon import (
    Daemon,
    EmbeddedDaemon,
    Reloaded,
    confine,
    stop_on_signals,
    tell_manager,
)
from agentzip.errors import (
    AgentZipError,
    AlreadyAttached,
    DaemonUnreachable,
    InvalidSetting,
    NoSuchProcess,
    TargetGone,
)
from agentzip.fleet import FleetSettings, fleet_settings
from agentzip.fleet.scopes import check_name
from agentzip.host import processes
from agentzip.pager import Pager
from agentzip.policy import tiers
from agentzip.uniform import fixed_addresses, uniform_command
from agentzip.units import format_microseconds, parse_duration

__all__ = ["register", "start"]

_LOOK_SECONDS = 0.5
"""How often `attach` in the foreground looks whether the process still lives."""

EngineNow = Callable[[], contextlib.AbstractContextManager["Pager | ControlClient"]]
"""The engine for a few questions in a row: the daemon hangs up on who is silent for long."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("daemon")(daemon)
    app.command("run", context_settings={"allow_interspersed_args": False})(run)
    app.command("attach")(attach)


def daemon(
    context: typer.Context,
    config: ConfigOption = None,
    pool_size: PoolSizeOption = None,
    algorithm: AlgorithmOption = None,
    level: LevelOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Run the daemon in the foreground.

    It looks after the sandboxes that the configuration's scopes and `scope add` select.  SIGTERM or
    Ctrl-C gives every target back and ends it; a second one ends the waiting.  SIGHUP reads the
    configuration again.
    """
    settings, background = configured_settings(context, config, pool_size, algorithm, level)
    options = typed_options(pool_size, algorithm, level)
    service = _configured_daemon(settings, background, config, options)
    # Before the first other thread, which is the one that writes the log.
    confine()
    flush = set_up_logging(logging.INFO)
    try:
        with stop_on_signals(service):
            service.start()
            if as_json:
                print_json(service.about())
            else:
                print_text(f"serving on {service.settings.run_dir}")
            outcome = service.serve()
    finally:
        flush()
    if not outcome.complete:
        raise typer.Exit(1)


def _configured_daemon(
    settings: model.Settings,
    background: tiers.Background,
    path: Path | None,
    options: dict[str, tuple[str, str | int | None]],
) -> Daemon:
    """A daemon that looks after sandboxes, and can read its configuration again."""
    from agentzip import config

    current = config.load_file(path, options)

    def reload() -> Reloaded:
        nonlocal current
        fresh = config.reload(path, current, options)
        current = fresh.effective
        return Reloaded(
            config.to_background(current.config),
            fleet_settings(current.config),
            fresh.changed,
            fresh.waiting,
        )

    return Daemon(
        settings,
        background=background,
        fleet=fleet_settings(current.config),
        reload=reload,
        tell_manager=tell_manager,
    )


def attach(
    context: typer.Context,
    pid: PidArgument,
    config: ConfigOption = None,
    pool_size: PoolSizeOption = None,
    algorithm: AlgorithmOption = None,
    level: LevelOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Make a process ready to be paged out.

    With a running daemon this returns at once.  Without one it stays in the foreground, answers
    the other commands, and gives the process back at Ctrl-C.
    """
    settings, background = configured_settings(context, config, pool_size, algorithm, level)
    try:
        client = ControlClient(settings.run_dir)
    except DaemonUnreachable:
        _attach_in_foreground(EmbeddedDaemon(settings, background=background), pid, as_json)
        return
    with client:
        _show_attach(client.attach(pid), as_json)


def _attach_in_foreground(embedded: EmbeddedDaemon, pid: int, as_json: bool) -> None:
    target = processes.process(pid)
    flush = set_up_logging(logging.WARNING)
    ended = threading.Event()
    try:
        with embedded, stop_on_signals(embedded.daemon):
            report = embedded.engine.attach(pid, target.start_time)
            _show_attach(report, as_json)
            if sys.stderr.isatty():
                print_note("serving it until Ctrl-C")
            while not embedded.daemon.stop_requested.wait(_LOOK_SECONDS):
                embedded.daemon.tick()
                if not processes.is_alive(pid, target.start_time):
                    ended.set()
                    break
            # Inside the `with`: the second Ctrl-C must still be caught while pages come home.
            outcome = embedded.daemon.stop()
    finally:
        flush()
    if not outcome.complete:
        raise typer.Exit(1)
    if not as_json:
        print_text(f"process {pid} {'has ended' if ended.is_set() else 'is detached'}")


def _show_attach(report: model.AttachReport, as_json: bool) -> None:
    if as_json:
        print_json(asdict(report))
        return
    print_text(
        f"attached process {report.pid} in {format_microseconds(report.attach_us)}, "
        f"one thread was stopped for {format_microseconds(report.stop_us)}"
    )
    for warning in report.warnings:
        print_note(f"warning: {warning}")


def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run.")],
    page_out_after: Annotated[
        str | None,
        typer.Option(
            "--page-out-after",
            metavar="TIME",
            help="Take its pages out once, so long after the start, like 10s.",
        ),
    ] = None,
    uniform: Annotated[
        bool,
        typer.Option(
            "--uniform",
            help="Start it without address and hash randomisation: compresses better beside its "
            "like, but exploits get easier inside it (docs/uniform.md).",
        ),
    ] = False,
    sandbox: Annotated[
        str | None,
        typer.Option(
            "--sandbox",
            metavar="NAME",
            help="Let it be a sandbox of this name, with all that it starts: the daemon decides "
            "when its pages leave and come back.",
        ),
    ] = None,
    config: ConfigOption = None,
    pool_size: PoolSizeOption = None,
    algorithm: AlgorithmOption = None,
    level: LevelOption = None,
    as_json: JsonOption = False,
) -> int:
    """
    Start a command as an attached sandbox.

    Signals are passed on to the command, and its exit code is returned (128 + N if signal N ended
    it).  With --json the last line of stdout is an object about the run.
    """
    settings, background = configured_settings(context, config, pool_size, algorithm, level)
    fleet = None
    if sandbox is not None:
        check_name(sandbox)
        fleet = _fleet_of_one(config)
    delay = None if page_out_after is None else parse_duration(page_out_after, "--page-out-after")
    flush = set_up_logging(logging.WARNING)
    relay = signals.Relay()
    try:
        # The engine first: if it cannot work here, the command has not been started.
        with _some_engine(settings, background, fleet) as engine_now:
            child = start(command, uniform)
            relay.pass_on_to(child)
            if sandbox is None:
                facts = _accompany(engine_now, child.pid, relay, delay)
            else:
                facts = _accompany_sandbox(settings.run_dir, sandbox, child.pid, relay, delay)
    finally:
        relay.close()
        flush()
    code = child.returncode if child.returncode >= 0 else 128 - child.returncode
    if as_json:
        print_json({"pid": child.pid, "exit_code": code, **facts})
    return code


def _fleet_of_one(path: Path | None) -> FleetSettings:
    """For one sandbox that brings its own engine: the rules of the configuration, no scopes."""
    from agentzip import config

    return FleetSettings(rules=fleet_settings(config.load_file(path).config).rules)


def start(command: list[str], uniform: bool) -> "subprocess.Popen[bytes]":
    """
    Start the command of `run`.

    Raises:
        InvalidSetting: it is not found, or is no program.
    """
    try:
        if uniform:
            argv, environment = uniform_command(command)
            with fixed_addresses():
                return subprocess.Popen(argv, env=environment)
        return subprocess.Popen(command)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidSetting(
            f"command is not found: {command[0]!r}", "give its path, or install it"
        ) from error
    except OSError as error:
        raise InvalidSetting(
            f"command cannot be started: {error}", "check that the file is a program and may run"
        ) from error


def _accompany(
    engine_now: EngineNow, pid: int, relay: signals.Relay, delay: float | None
) -> dict[str, object]:
    """
    Attach the command, page it out when its time comes, wait for its end.

    Once the command runs, no failure of ours may end it: it is reported, and the command goes on
    as it would without us.
    """
    facts: dict[str, object] = {"attach": None, "page_out": None}
    try:
        with engine_now() as engine:
            facts["attach"] = asdict(engine.attach(pid))
        if not relay.wait(delay):
            with engine_now() as engine:
                report = _page_out_tree(engine, pid)
            facts["page_out"] = asdict(report)
            if sys.stderr.isatty():
                print_note(page_out_text(report))
    except (TargetGone, NoSuchProcess):
        pass  # it was over before we were; its exit code says the rest
    except AgentZipError as error:
        print_note(f"warning: the command runs on, but without AgentZip: {error}")
    relay.wait(None)
    return facts


def _accompany_sandbox(
    run_dir: Path, name: str, pid: int, relay: signals.Relay, delay: float | None
) -> dict[str, object]:
    """
    Let the command be a sandbox, page it out when its time comes, wait for its end.

    As in `_accompany`, no failure of ours ends the command.
    """
    facts: dict[str, object] = {"sandbox": None, "page_out": None}
    try:
        start_time = processes.process(pid).start_time
        with ControlClient(run_dir) as client:
            facts["sandbox"] = asdict(client.sandbox_run(name, pid, start_time))
        if not relay.wait(delay):
            with ControlClient(run_dir) as client:
                facts["page_out"] = {"pages_moved": client.sandbox_page_out(name)}
    except (TargetGone, NoSuchProcess):
        pass  # it was over before we were; its exit code says the rest
    except AgentZipError as error:
        print_note(f"warning: the command runs on, but without AgentZip: {error}")
    relay.wait(None)
    return facts


def _page_out_tree(engine: "Pager | ControlClient", pid: int) -> model.PageOutReport:
    """Page out the command and the processes it has started; the report is the command's own."""
    report = engine.page_out(pid)
    for child in processes.descendants(pid):
        try:
            with contextlib.suppress(AlreadyAttached):
                engine.attach(child.pid, child.start_time)
            engine.page_out(child.pid)
        except (TargetGone, NoSuchProcess):
            continue
        except AgentZipError as error:
            print_note(f"warning: process {child.pid} ({child.command}) stays: {error}")
    return report


@contextlib.contextmanager
def _some_engine(
    settings: model.Settings, background: tiers.Background, fleet: FleetSettings | None
) -> Iterator[EngineNow]:
    """The running daemon if there is one, else an own one."""
    try:
        ControlClient(settings.run_dir).close()
    except DaemonUnreachable:
        with EmbeddedDaemon(settings, background=background, fleet=fleet) as embedded:
            yield lambda: contextlib.nullcontext(embedded.engine)
        return
    yield lambda: ControlClient(settings.run_dir)
