"""
The document: what a run has left, section by section.
"""

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from agentzip.bench.report import gains, gaps, plots, tables
from agentzip.bench.report.blocks import (
    Block,
    Document,
    Heading,
    Listing,
    Plot,
    Points,
    Table,
    Text,
)
from agentzip.bench.report.kept import Kept, Ran
from agentzip.bench.report.presets import PRESETS, SECTIONS
from agentzip.units import format_bytes

__all__ = ["document_of"]

Found = list[tuple[Ran, dict[str, Any]]]


def document_of(kept: Kept) -> Document:
    """All that a run has left, as one document."""
    blocks: list[Block] = [*_head(kept)]
    for section, title in SECTIONS.items():
        if ran := [one for one in kept.ran if one.section == section]:
            blocks.append(Heading(title))
            blocks += [Text(f"{one.name} failed: {one.problem}.") for one in ran if one.problem]
            blocks += _MAKERS[section](kept.of(section))
    blocks += [Heading("Two ways to count what was gained"), *_gaps(kept)]
    blocks += [Heading("What was not measured"), gaps.missing_table(kept, plots=plots.why_not())]
    blocks += [Heading("How to do it again"), *_commands(kept)]
    blocks += [Heading("What the figures mean"), *_meanings(kept)]
    return Document(f"AgentZip: measured, preset {kept.preset}", tuple(blocks))


def _head(kept: Kept) -> list[Block]:
    about = PRESETS[kept.preset].about if kept.preset in PRESETS else ""
    commits = list(dict.fromkeys(one.commit for one in kept.ran if one.commit))
    loads = [
        host["load_before"]
        for result in kept.results.values()
        if "load_before" in (host := result.get("host", {}))
    ]
    machine = kept.machine
    rows = (
        ("preset", f"{kept.preset}{f' ({about})' if about else ''}"),
        ("machine", f"{machine['processor']}, {machine['cores']} cores"),
        ("memory", format_bytes(machine["memory_bytes"])),
        ("kernel", str(machine["kernel"])),
        ("AgentZip", str(machine["agentzip"])),
        ("commit", ", ".join(commits) or "not from a checkout"),
        ("Python", str(machine["python"])),
        ("date", kept.ran[0].began if kept.ran else "-"),
        ("commands took", f"{sum(one.seconds for one in kept.ran) / 60:.1f} min"),
        ("load before a command", f"{min(loads):.1f} to {max(loads):.1f}" if loads else "-"),
    )
    blocks: list[Block] = [Table("Where and what", ("", ""), rows, words=(1,))]
    wrong = sum(_wrong(result) for result in kept.results.values())
    verdict = f"Results wrong, over all commands: {wrong}."
    if failed := [one.name for one in kept.ran if one.problem]:
        verdict += f" Failed: {', '.join(failed)}; the reasons stand below."
    blocks.append(Text(verdict))
    if len(commits) > 1:
        blocks.append(Text("The commands were run at different commits: compare with care."))
    return blocks


def _wrong(result: Mapping[str, Any]) -> int:
    """Wrong results of any command, however its object is built."""
    if "results_wrong" in result:
        return int(result["results_wrong"])
    parts = [one["figures"] for one in (*result.get("points", ()), *result.get("codecs", ()))]
    parts += result.get("modes", ())
    return sum(int(one.get("results_wrong", one.get("checks_wrong")) or 0) for one in parts)


def _codecs(found: Found) -> list[Block]:
    blocks: list[Block] = []
    for _, result in found:
        if "codecs" in result:
            blocks.append(tables.codec_table(result))
        for kind, workload in result.get("workloads", {}).items():
            blocks.append(tables.encode_table(kind, workload))
            blocks += _drawn(plots.ratio_plot, kind, workload)
    return blocks


def _workloads(found: Found) -> list[Block]:
    if not found:
        return []
    results = [result for _, result in found]
    blocks: list[Block] = [tables.workload_table(results), tables.made_of_table(results)]
    for one, result in found:
        blocks += _pictures(one.name, f"Workload {result['plan']['workload']}", result)
    return blocks


def _ablation(found: Found) -> list[Block]:
    blocks: list[Block] = []
    for one, result in found:
        blocks.append(tables.ablation_table(result))
        if steps := tables.steps_table(result):
            blocks.append(steps)
        blocks += _pictures(one.name, "Ablation", result)
    return blocks


def _knob(found: Found) -> list[Block]:
    blocks: list[Block] = []
    for _, result in found:
        blocks += [tables.knob_table(result), *_drawn(plots.knob_plot, result)]
    return blocks


def _fits(found: Found) -> list[Block]:
    return [tables.fits_table(result) for _, result in found]


_MAKERS: dict[str, Callable[[Found], list[Block]]] = {
    "codecs": _codecs,
    "workloads": _workloads,
    "ablation": _ablation,
    "knob": _knob,
    "fits": _fits,
}


def _pictures(name: str, title: str, result: dict[str, Any]) -> list[Block]:
    return [
        *_drawn(plots.memory_plot, name, title, result),
        *_drawn(plots.latency_plot, name, title, result),
    ]


def _drawn(draw: Callable[..., Plot | None], *words: Any) -> list[Block]:
    if plots.why_not():
        return []
    plot = draw(*words)
    return [plot] if plot is not None else []


def _gaps(kept: Kept) -> list[Block]:
    runs = [
        (one.name, result)
        for section in ("workloads", "ablation")
        for one, result in kept.of(section)
    ]
    return [gains.gaps_table(runs)] if runs else [Text("No run of this report counts both.")]


def _commands(kept: Kept) -> list[Block]:
    rows = tuple(
        (
            one.name,
            one.began,
            f"{one.seconds:.0f} s",
            str(one.exit_code),
            f"results/{one.name}.json",
        )
        for one in kept.ran
    )
    headings = ("command", "began", "took", "exit code", "result")
    lines = tuple(f"agentzip {shlex.join(one.words)} > results/{one.name}.json" for one in kept.ran)
    return [
        Text(
            "Each figure comes from one of these commands; what it printed is kept in the folder "
            "results beside this file, and what it said beside in a file .log. The command "
            "agentzip bench report --from FOLDER makes this document from them again."
        ),
        Listing(lines),
        Table("How they ended", headings, rows, words=(1, 4)),
    ]


def _meanings(kept: Kept) -> list[Block]:
    found: dict[str, str] = {}
    for result in kept.results.values():
        found.update(result.get("meanings", {}))
    return [Points(tuple(f"{name}: {text}" for name, text in found.items()))] if found else []
