"""
What was not measured, and why: pure.
"""

import shlex
from collections.abc import Collection, Mapping
from typing import Any

from agentzip.bench.report.blocks import Table
from agentzip.bench.report.kept import Kept
from agentzip.bench.report.presets import PRESETS, Step

__all__ = ["missing_table", "options_of"]

_NEVER = (
    ("the cost of one fault, stop or page out", "python -m agentzip.bench has it"),
    (
        "reads of files foreseen; what an idle daemon takes",
        "agentzip bench files, agentzip bench idle",
    ),
    ("other machines and kernels", "one host a report"),
    ("a model's own answers", "the driver plays the model; think times are drawn, lognormal"),
    ("memory of GPUs, of guest kernels, huge page pools", "not ours to move"),
)
"""Left out of every report."""


def missing_table(kept: Kept, *, plots: str = "") -> Table:
    """
    Everything that a reader may look for in vain.

    Args:
        kept: The run.
        plots: Why there are no pictures; empty if there are.
    """
    rows = [(one.name, f"failed: {one.problem}") for one in kept.ran if one.problem]
    for one in kept.ran:
        rows += _skipped(one.name, kept.results.get(one.name, {}))
    rows += _left_out(kept.preset, {one.name for one in kept.ran})
    rows += [("pictures", plots)] if plots else []
    rows += _NEVER
    return Table("Not measured here", ("what", "why"), tuple(rows), words=(1,))


def _skipped(name: str, result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a command left out by itself, and what it ended early."""
    rows = [(f"{name}: {what}", str(why)) for what, why in result.get("skipped", {}).items()]
    for kind, workload in result.get("workloads", {}).items():
        rows += [(f"{name}: {kind}, {what}", why) for what, why in workload["skipped"].items()]
    for mode in result.get("modes", []):
        if mode.get("stopped"):
            rows.append((f"{name}: {mode['mode']} to its end", mode["stopped"]))
        if refused := mode.get("notes", {}).get("left_alone"):
            rows.append((f"{name}: {mode['mode']}, some sandboxes", "; ".join(map(str, refused))))
    return rows


def _left_out(preset: str, ran: Collection[str]) -> list[tuple[str, str]]:
    """What this run has not of its preset, and its preset not of the largest one."""
    mine = {step.name: step for step in PRESETS[preset].steps} if preset in PRESETS else {}
    rows = [(name, "left out by --only, or interrupted") for name in mine if name not in ran]
    for step in PRESETS["full"].steps if mine else ():
        if step.name not in mine:
            rows.append((step.name, f"preset {preset} leaves it out; full has it"))
        elif less := _differences(mine[step.name], step):
            rows.append((f"{step.name} at full size", f"preset {preset} has {less}"))
    return rows


def _differences(here: Step, full: Step) -> str:
    mine, theirs = options_of(here.command), options_of(full.command)
    told = [
        f"{name} {' '.join(mine.get(name, ['as by default']))} instead of {' '.join(values)}"
        for name, values in theirs.items()
        if values != mine.get(name)
    ]
    return ", ".join(told)


def options_of(command: str) -> dict[str, list[str]]:
    """Options of a command with their values."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in shlex.split(command)[1:]:
        if word.startswith("--"):
            name = word
            found.setdefault(name, [])
        else:
            found[name].append(word)
    return found
