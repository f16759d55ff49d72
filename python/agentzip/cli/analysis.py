"""
The command that says whether processes are worth paging out: analyze.

By pid, or by the pattern of a scope that need not exist yet: then each control group that it would
select gets a verdict, and the processes in it are not listed one by one.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from agentzip import model, pager
from agentzip.cli.options import (
    AlgorithmOption,
    ConfigOption,
    JsonOption,
    LevelOption,
    configured_settings,
)
from agentzip.cli.output import print_json, print_table, print_text
from agentzip.errors import AgentZipError, InvalidSetting, NoSuchScope
from agentzip.host import processors
from agentzip.host.cgroups import Cgroups
from agentzip.policy import analysis, patterns
from agentzip.units import format_bytes, format_microseconds

__all__ = ["groups_of", "readings_of", "register"]

_LOOK_SECONDS = 0.5
"""Without pressure figures: how long the processors are watched at least."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("analyze")(analyze)


def analyze(
    context: typer.Context,
    pids: Annotated[
        list[int] | None,
        typer.Argument(metavar="[PID...]", min=1, help="Processes; none is touched."),
    ] = None,
    cgroup: Annotated[
        str | None,
        typer.Option(
            "--cgroup", metavar="G", help="Instead: all processes that this scope would select."
        ),
    ] = None,
    pages: Annotated[
        int, typer.Option("--pages", metavar="N", help="Most pages to read of each.")
    ] = 2000,
    algorithm: AlgorithmOption = None,
    level: LevelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Predict what a page out would gain, without attaching.

    Reads a sample of the resident memory, and says go (2.5x or more), try (2x or more) or no.
    The exit code is 0 whatever the verdict.
    """
    if bool(pids) == (cgroup is not None):
        raise InvalidSetting(
            "analyze needs PIDs or --cgroup, and not both", "`agentzip analyze --help` shows both"
        )
    settings, _ = configured_settings(context, config, None, algorithm, level)

    def sample(pid: int) -> model.Analysis:
        return pager.analyze(
            pid, algorithm=settings.algorithm, level=settings.effective_level, pages_max=pages
        )

    before, started = processors.processor_times(), time.monotonic()
    groups = {} if cgroup is None else _sample_groups(cgroup, sample)
    found = [one for group in groups.values() for one in group.found]
    found += [sample(pid) for pid in dict.fromkeys(pids or [])]
    load = _load(before, started)
    each = [analysis.judge(readings_of(one), load) for one in found]
    total = analysis.judge(analysis.combine(map(readings_of, found)), load)
    if as_json:
        print_json(
            {
                "verdict": asdict(total),
                "host": asdict(load),
                "algorithm": settings.algorithm,
                "level": settings.effective_level,
                "cgroups": [_group_json(path, one, load) for path, one in groups.items()],
                "processes": [
                    {**asdict(one), "verdict": asdict(verdict)}
                    for one, verdict in zip(found, each, strict=True)
                ],
            }
        )
        return
    if groups:
        _print_groups(groups, load)
    else:
        for one, verdict in zip(found, each, strict=True):
            _print_process(one, verdict)
    if groups or len(found) > 1:
        print_text(f"all {len(found)} processes: {_sentence(total)}")


@dataclass(frozen=True, slots=True)
class _GroupSample:
    """What was found in one control group."""

    found: list[model.Analysis]
    skipped: dict[int, str]
    """Processes that cannot be sampled, and why."""

    def verdict(self, load: analysis.HostLoad) -> analysis.Verdict:
        """All its processes as one."""
        return analysis.judge(analysis.combine(map(readings_of, self.found)), load)


def groups_of(pattern: str) -> dict[str, list[int]]:
    """
    Control groups that a scope with this pattern would select, and their processes.

    Raises:
        InvalidSetting: it is no pattern.
        NoSuchScope: it selects nothing.
    """
    try:
        choose = patterns.chooser([patterns.checked(pattern)])
    except InvalidSetting as error:
        raise InvalidSetting(f"--cgroup {pattern!r} {error}", error.hint) from error
    groups = {group.path: sorted(group.pids) for group in Cgroups().find(choose)}
    if not groups:
        raise NoSuchScope(
            f"no control group of this host matches: {pattern}",
            "`systemd-cgls` shows the control groups there are",
        )
    return groups


def _sample_groups(
    pattern: str, sample: Callable[[int], model.Analysis]
) -> dict[str, _GroupSample]:
    samples = {}
    for path, pids in groups_of(pattern).items():
        found, skipped = [], {}
        for pid in pids:
            # One that ended meanwhile, or that the pager could not serve, says nothing of the rest.
            try:
                found.append(sample(pid))
            except AgentZipError as error:
                skipped[pid] = str(error)
        samples[path] = _GroupSample(found, skipped)
    return samples


def _group_json(path: str, one: _GroupSample, load: analysis.HostLoad) -> dict[str, object]:
    return {
        "cgroup": path,
        "pids": [process.pid for process in one.found],
        "skipped": [{"pid": pid, "reason": reason} for pid, reason in one.skipped.items()],
        "verdict": asdict(one.verdict(load)),
    }


def _print_groups(groups: dict[str, _GroupSample], load: analysis.HostLoad) -> None:
    rows = []
    for path, one in groups.items():
        verdict = one.verdict(load)
        resident = sum(process.rss_bytes for process in one.found)
        rows.append(
            [
                path,
                str(len(one.found)),
                str(len(one.skipped)),
                format_bytes(resident),
                f"{verdict.ratio:.2f}x",
                verdict.decision,
                verdict.why,
            ]
        )
    print_table(
        ["CGROUP", "PROCESSES", "SKIPPED", "RESIDENT", "RATIO", "VERDICT", "WHY"],
        rows,
        right={"PROCESSES", "SKIPPED", "RESIDENT", "RATIO"},
    )
    print_text("")


def readings_of(found: model.Analysis) -> analysis.Readings:
    """What the verdict needs of the analysis of one process."""
    return analysis.Readings(
        rss_bytes=found.rss_bytes,
        pss_bytes=found.pss_bytes,
        leaving_pss_bytes=found.leaving_pss_bytes,
        pages=sum(row.pages for row in found.classes),
        pool_bytes=found.pool_bytes,
        pool_bytes_dictionary=found.pool_bytes_dictionary,
        table_bytes=found.table_bytes,
        dictionary_bytes=found.dictionary_bytes,
        stays=tuple((stay.reason, stay.resident_bytes) for stay in found.stays),
    )


def _load(before: processors.ProcessorTimes, started: float) -> analysis.HostLoad:
    waiting = processors.waiting_share()
    if waiting is None:
        # A look at a few milliseconds would see our own work and little else.
        time.sleep(max(0.0, started + _LOOK_SECONDS - time.monotonic()))
    busy = processors.busy_share(before, processors.processor_times())
    return analysis.HostLoad(waiting_share=waiting, busy_share=busy)


def _print_process(found: model.Analysis, verdict: analysis.Verdict) -> None:
    sampled = sum(row.pages_sampled for row in found.classes)
    print_text(
        f"process {found.pid} ({found.command}): {sampled} pages read in "
        f"{format_microseconds(found.cpu_us)} of processor time"
    )
    print_table(
        ["CLASS", "RESIDENT", "MAY LEAVE", "PREDICTED", "RATIO", "SAME", "EQUAL", "RAW"],
        list(_rows(found.classes)),
        right={"RESIDENT", "MAY LEAVE", "PREDICTED", "RATIO", "SAME", "EQUAL", "RAW"},
    )
    print_text("")
    print_table(
        ["STAYS", "BECAUSE"],
        [[format_bytes(stay.resident_bytes), stay.reason] for stay in found.stays],
        right={"STAYS"},
    )
    print_text(f"\n{_sentence(verdict)}\n")


def _rows(classes: Iterable[model.ClassForecast]) -> Iterable[list[str]]:
    for row in sorted(classes, key=lambda row: -row.resident_bytes):
        logical = row.pages * pager.page_size()
        yield [
            row.class_name,
            format_bytes(row.resident_bytes),
            format_bytes(row.movable_bytes),
            format_bytes(row.stored_bytes) if row.pages_sampled else "-",
            f"{logical / row.stored_bytes:.2f}x" if row.stored_bytes else "-",
            _share(row.pages_same_filled, row),
            _share(row.pages_equal, row),
            _share(row.pages_raw, row),
        ]


def _share(pages: int, row: model.ClassForecast) -> str:
    return f"{pages / row.pages_sampled:.0%}" if row.pages_sampled else "-"


def _sentence(verdict: analysis.Verdict) -> str:
    return f"{verdict.decision}: {verdict.ratio:.2f}x end to end; {verdict.why}"
