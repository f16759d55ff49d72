"""
`agentzip simulate`: from a few measured sandboxes to a fleet.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentzip.cli.options import JsonOption
from agentzip.cli.output import print_text
from agentzip.errors import InvalidSetting
from agentzip.units import parse_duration, parse_size

if TYPE_CHECKING:
    from rich.console import Console

    from agentzip.simulation.model import HostShape
    from agentzip.simulation.profiles import Measured, Profile

__all__ = ["register"]

_PIPE_COLUMNS = 140
"""Width of tables that are not printed on a terminal."""

_SANDBOXES_MAX = 100_000
"""Packings of more take minutes to make."""

_HOST_MEMORY_MIN = 2**29
"""Below, what wakes must leave to the host is most of it."""

FromOption = Annotated[
    list[Path],
    typer.Option(
        "--from", metavar="FILE", help="JSON of `bench fanout`; several are mixed, as many of each."
    ),
]
ValidateOption = Annotated[
    Path | None,
    typer.Option("--validate", metavar="FILE", help="JSON of a larger run to compare with."),
]
SandboxesOption = Annotated[
    str, typer.Option("--sandboxes", metavar="LIST", help="How many the fleet has.")
]
ModeOption = Annotated[
    str, typer.Option("--mode", metavar="LIST", help="Of none, encode, prefetch, full.")
]
HostMemoryOption = Annotated[
    str, typer.Option("--host-memory", metavar="SIZE", help="Memory of each host.")
]
ReserveOption = Annotated[
    str, typer.Option("--reserve", metavar="SIZE", help="Of it, what kernel and others take.")
]
CoresOption = Annotated[
    int, typer.Option("--cores", metavar="N", min=1, max=1024, help="Cores of each host.")
]
PoolOption = Annotated[
    str | None,
    typer.Option("--pool-size", metavar="SIZE", help="Cap of the pool; default half the memory."),
]
TurnsOption = Annotated[
    int, typer.Option("--turns", metavar="T", min=2, max=1000, help="Turns of each sandbox.")
]
ThinkOption = Annotated[
    str | None,
    typer.Option("--think", metavar="TIME", help="Mean think time; default as measured."),
]
StormOption = Annotated[
    float,
    typer.Option(
        "--storm", metavar="PERCENT", min=0, max=100, help="Sandboxes that wake at one moment."
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--latency-target", metavar="TIME", help="policy.latency_target; default as measured."
    ),
]
TurnBoundOption = Annotated[
    str | None, typer.Option("--turn-p99", metavar="TIME", help="Most that a host may show.")
]
WakeBoundOption = Annotated[
    str | None, typer.Option("--wake-p99", metavar="TIME", help="The same for wakes.")
]


def register(app: typer.Typer) -> None:
    """Add `agentzip simulate`."""
    app.command("simulate")(simulate)


def simulate(
    *,
    profiles: FromOption,
    validate: ValidateOption = None,
    sandboxes: SandboxesOption = "500,5000",
    mode: ModeOption = "none,full",
    host_memory: HostMemoryOption = "64GiB",
    reserve: ReserveOption = "1GiB",
    cores: CoresOption = 16,
    pool_size: PoolOption = None,
    turns: TurnsOption = 6,
    think: ThinkOption = None,
    storm: StormOption = 0.0,
    latency_target: TargetOption = None,
    turn_p99: TurnBoundOption = None,
    wake_p99: WakeBoundOption = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="One seed, one result.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """
    Extrapolate a few measured sandboxes to a fleet.

    With --validate a simulated run is compared with a real one, figure by figure; the host and the
    turns are then those of the real run.
    """
    from agentzip.simulation import packing, report
    from agentzip.simulation.model import Play

    measured = [_measured(file, "from") for file in profiles]
    if validate is not None:
        _compare(measured, _measured(validate, "validate"), as_json)
        return
    shape = _shape(host_memory, reserve, cores, pool_size)
    play = Play(
        turns=turns,
        think_s=measured[0].number("plan.think_s") if think is None else _time(think, "think"),
        notice_s=measured[0].number("plan.notice_s"),
        seed=seed,
        storm_share=storm / 100,
        latency_target_s=None
        if latency_target is None
        else _time(latency_target, "latency-target"),
    )
    bounds = packing.Bounds(
        turn_p99_s=0.0 if turn_p99 is None else _time(turn_p99, "turn-p99"),
        wake_p99_s=0.0 if wake_p99 is None else _time(wake_p99, "wake-p99"),
    )
    counts, kinds = _counts(sandboxes), _kinds(measured, mode)
    from rich.console import Console

    with Console(stderr=True).status("simulating") as status:
        fleets = [
            packing.fit(kind, count, shape, play, bounds, status.update)
            for count in counts
            for kind in kinds
        ]
    every = [one for kind in kinds for one in kind]
    value = report.fleet_json(fleets, every, shape, play)
    _show(value, as_json, lambda on: report.print_fleet(fleets, shape, on))


def _compare(measured: list["Measured"], real: "Measured", as_json: bool) -> None:
    from agentzip.simulation import report, validation

    if len(measured) > 1:
        raise InvalidSetting("validate compares with one profile", "give --from once")
    found = validation.validate(measured[0], real)
    _show(report.validation_json(found), as_json, lambda on: report.print_validation(found, on))


def _measured(file: Path, field: str) -> "Measured":
    from agentzip.simulation.profiles import Measured

    try:
        value = json.loads(file.read_text())
    except OSError as error:
        raise InvalidSetting(
            f"{field} cannot be read: {error}", "give a file that `bench fanout --out` wrote"
        ) from error
    except ValueError as error:
        raise InvalidSetting(
            f"{field} is not JSON: {file}: {error}", "give a file that `bench fanout --out` wrote"
        ) from error
    return Measured.of(value, file.name)


def _shape(memory: str, reserve: str, cores: int, pool_size: str | None) -> "HostShape":
    from agentzip.policy.planner import Watermarks
    from agentzip.simulation.model import HostShape

    memory_bytes = parse_size(memory, "host-memory")
    others_bytes = parse_size(reserve, "reserve")
    if memory_bytes < _HOST_MEMORY_MIN:
        raise InvalidSetting(f"host-memory is too small: {memory}", "give at least 512MiB")
    if others_bytes >= memory_bytes:
        raise InvalidSetting(
            f"reserve is all of the host's memory: {reserve}", f"give less than {memory}"
        )
    return HostShape(
        memory_bytes=memory_bytes,
        cores=cores,
        other_bytes=others_bytes,
        start_share=(1.0 + Watermarks().start) / 2,
        pool_bytes_max=0 if pool_size is None else parse_size(pool_size, "pool-size"),
    )


def _time(text: str, field: str) -> float:
    seconds = parse_duration(text, field)
    if seconds <= 0:
        raise InvalidSetting(f"{field} must be longer than nothing: {text}", "give 1ms or more")
    return seconds


def _counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [w for w in words if not (w.isascii() and w.isdigit() and 0 < int(w) <= _SANDBOXES_MAX)]
    if wrong or not words:
        raise InvalidSetting(
            f"sandboxes is not a list of numbers: {text!r}",
            f"give whole numbers from 1 to {_SANDBOXES_MAX} with commas, like 500,5000",
        )
    return [int(word) for word in words]


def _kinds(measured: list["Measured"], modes: str) -> list[list["Profile"]]:
    """For each mode, the profiles of it."""
    from agentzip.simulation.profiles import MODES, profiles_of

    names = list(dict.fromkeys(name.strip() for name in modes.split(",") if name.strip()))
    unknown = [name for name in names if name not in MODES]
    if unknown or not names:
        raise InvalidSetting(
            f"mode cannot be simulated: {', '.join(unknown) or 'none given'}",
            f"choose from {', '.join(MODES)}",
        )
    found = [profiles_of(one) for one in measured]
    for one, profile in zip(measured, found, strict=True):
        lacking = [name for name in names if name not in profile]
        if lacking:
            raise InvalidSetting(
                f"mode is not in {one.name}: {', '.join(lacking)}",
                f"choose from {', '.join(profile)}, or run the bench with it",
            )
    return [[profile[name] for profile in found] for name in names]


def _show(value: dict[str, Any], as_json: bool, print_tables: "Callable[[Console], None]") -> None:
    from rich.console import Console

    if as_json:
        print_text(json.dumps(value, indent=2))
        return
    console = Console()
    # A pipe has no width: the rows get the room they need.
    print_tables(console if console.is_terminal else Console(width=_PIPE_COLUMNS))
