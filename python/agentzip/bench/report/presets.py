"""
The presets: which commands `agentzip bench report` runs, as data.

A command stands here as it would be typed behind `agentzip bench`.  A result is known by its name,
so `--only`, `--from` and what is said of left out parts compare presets name by name.
"""

import shlex
from dataclasses import dataclass

__all__ = ["PRESETS", "SECTIONS", "Preset", "Step"]

SECTIONS = {
    "codecs": "Codecs",
    "workloads": "Workloads",
    "ablation": "What each part adds",
    "knob": "Memory against latency",
    "fits": "How many sandboxes fit",
}
"""Section -> heading, in the order of the document."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command, and the name that its result is kept under."""

    section: str
    name: str
    command: str

    @property
    def words(self) -> list[str]:
        """The command as a list, `bench` first."""
        return ["bench", *shlex.split(self.command), "--json"]


@dataclass(frozen=True, slots=True)
class Preset:
    """Commands in the order of running."""

    name: str
    about: str
    steps: tuple[Step, ...]


_ALL_MODES = "none,encode,prefetch,full,zram,zswap,ksm"
_ENCODINGS = "lz4,zstd-3,zstd-9,warm,cold-own,cold-peer,zram-lz4"


def _workloads(modes: str, options: str, browser: str) -> tuple[Step, ...]:
    """One fan-out for each workload; the browser's sandboxes are five times as large."""
    return tuple(
        Step(
            "workloads",
            f"workload-{name}",
            f"fanout --workload {name} {browser if name == 'C' else options} --mode {modes}",
        )
        for name in "ABCD"
    )


# Waits much shorter than 6 s are none that the daemon would page anything out for.  With a notice
# of a wake most of a working set comes home before anybody waits for it, and no target binds.
PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "quick",
            "less than 10 minutes: whether everything works here; figures of few turns",
            (
                Step(
                    "codecs",
                    "codecs",
                    "codecs --workload B --sandboxes 3 --turns 2 --think 6s",
                ),
                Step(
                    "codecs",
                    "encode",
                    "encode --workload python --sandboxes 2 --size 0.5"
                    " --encodings lz4,zstd-3,zstd-9,warm",
                ),
                *_workloads(
                    "none,full",
                    "--sandboxes 3 --turns 2 --think 6s",
                    "--sandboxes 1 --turns 2 --think 6s",
                ),
                Step(
                    "ablation",
                    "ablation",
                    f"fanout --workload B --sandboxes 4 --turns 3 --think 6s --mode {_ALL_MODES}",
                ),
                Step(
                    "knob",
                    "knob",
                    "knob --workload B --sandboxes 3 --turns 2 --think 6s --notice 0s"
                    " --targets 1ms,1s",
                ),
            ),
        ),
        Preset(
            "standard",
            "less than an hour: figures to decide by",
            (
                Step(
                    "codecs",
                    "codecs",
                    "codecs --workload A --sandboxes 6 --turns 5 --think 12s",
                ),
                Step(
                    "codecs",
                    "encode",
                    "encode --workload python --workload json --workload node --sandboxes 4"
                    f" --encodings {_ENCODINGS}",
                ),
                *_workloads(
                    "none,full,zram",
                    "--sandboxes 8 --turns 5 --think 12s",
                    "--sandboxes 3 --turns 5 --think 12s",
                ),
                Step(
                    "ablation",
                    "ablation",
                    f"fanout --workload A --sandboxes 12 --turns 5 --think 12s --mode {_ALL_MODES}",
                ),
                Step(
                    "knob",
                    "knob",
                    "knob --workload A --sandboxes 6 --turns 5 --think 10s --notice 0s"
                    " --targets 1ms,5ms,20ms,100ms,1s",
                ),
            ),
        ),
        Preset(
            "full",
            "as long as it takes (hours): the published tables at their size",
            (
                Step(
                    "codecs",
                    "codecs",
                    "codecs --workload A --sandboxes 20 --turns 8 --think 30s",
                ),
                Step("codecs", "encode", f"encode --sandboxes 8 --encodings {_ENCODINGS}"),
                *_workloads(
                    "none,full,zram",
                    "--sandboxes 20 --turns 8 --think 30s --rounds 3",
                    "--sandboxes 10 --turns 8 --think 30s --rounds 3",
                ),
                # Of the published 200 MB they would take 40 GB in mode none; B cannot be so small.
                Step(
                    "ablation",
                    "ablation",
                    "fanout --workload D --sandboxes 200 --size 90MB --turns 6 --think 60s"
                    f" --mode {_ALL_MODES}",
                ),
                Step(
                    "knob",
                    "knob",
                    "knob --workload A --sandboxes 12 --turns 8 --think 20s --notice 0s"
                    " --targets 1ms,5ms,20ms,100ms,1s",
                ),
                Step(
                    "fits",
                    "fits",
                    "fanout --workload A --sandboxes 16 --turns 4 --think 30s"
                    " --mode none,full,zram --memory-limit 8GB --find-max",
                ),
            ),
        ),
    )
}
"""Name -> preset; what `full` has and another one has not is what that one leaves out."""
