"""
Runs the commands of a preset, one after the other, and keeps what they print.

Each is a process of its own: it fails alone, and what is recorded is what was run.  A command that
we leave early gets SIGTERM and the time to give everything back; should we be killed, the kernel
ends it, and its own custody does the rest.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentzip.bench.report import facts
from agentzip.bench.report.kept import Kept, Ran, load, log_of, result_of, save
from agentzip.bench.report.presets import Preset, Step
from agentzip.children import Child
from agentzip.errors import InvalidSetting

__all__ = ["problem_of", "run_preset"]

_END_SECONDS = 300.0
"""For a bench to give everything back: its daemon's and its swap's own limits are shorter."""

_LOG_LINES = 3
"""Of what a failed command said, shown when it was no error of ours."""

Tell = Callable[[str], None]


class _Bench(Child):
    """A command of `agentzip`; leaving the context lets it clean up."""

    def __init__(self, words: list[str], result: Path, log: Path) -> None:
        # It must not outlive us, however we end.
        launcher = [sys.executable, "-m", "agentzip.workloads.launcher", "--"]
        with result.open("wb") as printed, log.open("wb") as said:
            super().__init__(
                subprocess.Popen(
                    [*launcher, sys.executable, "-m", "agentzip", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=said,
                    # Ctrl-C is for us; it hears of it once, by a signal that it knows.
                    start_new_session=True,
                )
            )

    def stop(self) -> None:
        """End it."""
        try:
            if self.alive():
                self.process.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(_END_SECONDS)
        finally:
            super().stop()


def run_preset(
    preset: Preset, folder: Path, only: Collection[str] = (), tell: Tell = lambda _: None
) -> Kept:
    """
    Run a preset, or some sections of it.

    Args:
        preset: What is run.
        folder: Where results are kept; that of an earlier run if `only` says what to run again.
        only: Sections to run; none for all.
        tell: Hears what is being done.

    Raises:
        InvalidSetting: a section is not in the preset, or the folder holds another run.
    """
    steps = [step for step in preset.steps if not only or step.section in only]
    known = dict.fromkeys(step.section for step in preset.steps)
    if missing := [name for name in only if name not in known]:
        raise InvalidSetting(
            f"preset {preset.name} has no section {', '.join(missing)}",
            f"choose from {', '.join(known)}",
        )
    kept = _begin(preset, folder, again=bool(only))
    for number, step in enumerate(steps, 1):
        tell(f"{number} of {len(steps)}: {step.name}")
        kept.replace(*_run(step, folder))
        save(kept, folder)
    return kept


def _begin(preset: Preset, folder: Path, *, again: bool) -> Kept:
    if folder.exists() and any(folder.iterdir()):
        kept = load(folder)
        if not again or kept.preset != preset.name:
            raise InvalidSetting(
                f"out holds a report of preset {kept.preset}: {folder}",
                "give another --out; or --only, to run sections of the same preset again; "
                "or --from instead of --out, to run nothing",
            )
        kept.machine = facts.machine()
    else:
        kept = Kept(preset.name, dict(facts.machine()))
    result_of(folder, "").parent.mkdir(parents=True, exist_ok=True)
    save(kept, folder)
    return kept


def _run(step: Step, folder: Path) -> tuple[Ran, dict[str, Any] | None]:
    file, log = result_of(folder, step.name), log_of(folder, step.name)
    commit, began = facts.commit(), time.monotonic()
    at = datetime.now(UTC).isoformat(timespec="seconds")
    # What an earlier run left stays until there is something to put in its place.
    draft = file.with_suffix(".new")
    try:
        with _Bench(step.words, draft, log) as bench:
            exit_code = bench.process.wait()
        result: dict[str, Any] | None = None
        with suppress(ValueError):
            result = json.loads(draft.read_text())
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)
    problem = problem_of(exit_code, log.read_text(errors="replace"), printed=result is not None)
    ran = Ran(
        section=step.section,
        name=step.name,
        words=tuple(step.words),
        began=at,
        seconds=round(time.monotonic() - began, 1),
        exit_code=exit_code,
        problem=problem,
        commit=commit,
    )
    return ran, result


def problem_of(exit_code: int, log: str, *, printed: bool) -> str:
    """
    Why a command failed; empty if it did not.

    Args:
        exit_code: Its own; negative for a signal.
        log: What it wrote to stderr.
        printed: Whether it printed a result.
    """
    if exit_code == 0 and printed:
        return ""
    if exit_code == 1 and printed:
        return "a check of its own failed: a result was wrong, or a sandbox did not finish"
    lines = [line for line in log.splitlines() if line.strip()]
    with suppress(ValueError, KeyError, TypeError, IndexError):
        told = json.loads(lines[-1])["error"]
        return f"{told['message']}; {told['hint']}" if told["hint"] else str(told["message"])
    return f"exit code {exit_code}: {' / '.join(lines[-_LOG_LINES:]) or 'it said nothing'}"
