"""
The folder that a run leaves: what was run, and the JSON object of each command.

    run.json            the preset, the machine, every command with how it ended
    results/NAME.json   what the command printed
    results/NAME.log    what it said beside
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentzip.bench.report.presets import PRESETS
from agentzip.errors import InvalidSetting

__all__ = ["Kept", "Ran", "load", "log_of", "result_of", "save"]

_JOURNAL = "run.json"
_RESULTS = "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One command that was run."""

    section: str
    name: str
    words: tuple[str, ...]
    """Behind `agentzip`."""
    began: str
    """ISO 8601, UTC."""
    seconds: float
    exit_code: int
    problem: str = ""
    """Why it failed; empty if it did not."""
    commit: str = ""


@dataclass(slots=True)
class Kept:
    """A run and its results."""

    preset: str
    machine: dict[str, Any]
    ran: list[Ran] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> JSON object; missing for a command that printed none."""

    def of(self, section: str) -> list[tuple[Ran, dict[str, Any]]]:
        """Commands of a section that have a result, with it."""
        return [
            (one, self.results[one.name])
            for one in self.ran
            if one.section == section and one.name in self.results
        ]

    @property
    def whole(self) -> bool:
        """Whether every command ended well."""
        return not any(one.problem for one in self.ran)

    def replace(self, ran: Ran, result: dict[str, Any] | None) -> None:
        """Note a command and what it printed, in place of an earlier one of its name."""
        order = [step.name for step in PRESETS[self.preset].steps] if self.preset in PRESETS else []
        self.ran = [one for one in self.ran if one.name != ran.name] + [ran]
        # Those of an unknown name stay behind the others, in their order.
        self.ran.sort(key=lambda one: order.index(one.name) if one.name in order else len(order))
        self.results.pop(ran.name, None)
        if result is not None:
            self.results[ran.name] = result


def result_of(folder: Path, name: str) -> Path:
    """The file for what a command prints."""
    return folder / _RESULTS / f"{name}.json"


def log_of(folder: Path, name: str) -> Path:
    """The file for what a command says beside."""
    return folder / _RESULTS / f"{name}.log"


def save(kept: Kept, folder: Path) -> None:
    """Write the journal; results are files already."""
    journal = {
        "preset": kept.preset,
        "machine": kept.machine,
        "commands": [asdict(one) for one in kept.ran],
    }
    # Whole or not at all: an interrupted run is read again.
    draft = folder / f"{_JOURNAL}.new"
    draft.write_text(json.dumps(journal, indent=2) + "\n")
    os.replace(draft, folder / _JOURNAL)


def load(folder: Path) -> Kept:
    """
    Read what a run has left.

    Raises:
        InvalidSetting: the folder is not of a run, or is damaged.
    """
    fix = "name the --out of an earlier `agentzip bench report`"
    try:
        journal = json.loads((folder / _JOURNAL).read_text())
        kept = Kept(journal["preset"], journal["machine"])
        for entry in journal["commands"]:
            ran = Ran(**{**entry, "words": tuple(entry["words"])})
            kept.ran.append(ran)
            file = result_of(folder, ran.name)
            if file.exists() and file.stat().st_size:
                kept.results[ran.name] = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise InvalidSetting(f"there is no report in {folder}: no {_JOURNAL}", fix) from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InvalidSetting(f"the report in {folder} cannot be read: {error}", fix) from error
    return kept
