"""
The figures: what the pager costs, beside what the kernel's own primitives cost in the same run.

A figure without its floor says more about the machine than about us, so nothing here is compared
with a recorded number: every way (the raw primitive, the engine with each algorithm, the kernel's
own compressed swap) takes its turn in every round, and a ratio pairs measurements of one round.

    figures.py   distributions, ratios, aims: pure
    build.py     compiles targets/*.c
    target.py    drives one target process
    ways.py      the engine and the raw floor
    zram.py      the kernel's own way; takes /dev/zram0 and gives it back
    rounds.py    who takes a turn when
    tables.py    the tables and the JSON object
    files.py     `bench files`: reads of files that are foreseen
    idle.py      what the daemon takes of a host on which nothing happens
    encode/      `bench encode`: what each encoding makes of real memory
    fanout/      `bench fanout`, `knob`, `codecs`: sandboxes at work
    report/      `bench report`: all of it in one document
"""

from agentzip.bench.figures import Aim, Figure
from agentzip.bench.rounds import BenchPlan, BenchResult, run_bench
from agentzip.bench.tables import print_report

__all__ = ["Aim", "BenchPlan", "BenchResult", "Figure", "print_report", "run_bench"]
