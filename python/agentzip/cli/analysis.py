"""
The command that says whether a process is worth paging out: analyze.
"""

import time
from collections.abc import Iterable
from dataclasses import asdict
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
from agentzip.host import processors
from agentzip.policy import analysis
from agentzip.units import format_bytes, format_microseconds

__all__ = ["readings_of", "register"]

_LOOK_SECONDS = 0.5
"""Without pressure figures: how long the processors are watched at least."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("analyze")(analyze)


def analyze(
    context: typer.Context,
    pids: Annotated[
        list[int], typer.Argument(metavar="PID...", min=1, help="Processes; none is touched.")
    ],
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
    settings, _ = configured_settings(context, config, None, algorithm, level)
    before, started = processors.processor_times(), time.monotonic()
    found = [
        pager.analyze(
            pid,
            algorithm=settings.algorithm,
            level=settings.effective_level,
            pages_max=pages,
        )
        for pid in dict.fromkeys(pids)
    ]
    load = _load(before, started)
    each = [readings_of(one) for one in found]
    verdicts = [analysis.judge(one, load) for one in each]
    total = analysis.judge(analysis.combine(each), load)
    if as_json:
        print_json(
            {
                "verdict": asdict(total),
                "host": asdict(load),
                "algorithm": settings.algorithm,
                "level": settings.effective_level,
                "processes": [
                    {**asdict(one), "verdict": asdict(verdict)}
                    for one, verdict in zip(found, verdicts, strict=True)
                ],
            }
        )
        return
    for one, verdict in zip(found, verdicts, strict=True):
        _print_process(one, verdict)
    if len(found) > 1:
        print_text(f"all {len(found)} processes: {_sentence(total)}")


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
