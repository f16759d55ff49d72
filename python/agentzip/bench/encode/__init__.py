"""
`agentzip bench encode`: what each encoding makes of real sandbox memory, and what that costs.

Every encoding takes its turn on the same live processes of one run, the kernel's own ways among
them, and every sandbox must say the same of itself afterwards.

    plan.py         the encodings, how much is measured, the aims
    result.py       the figures and what they mean: pure
    report.py       the tables and the JSON object
    paging.py       which memory, in which portions
    stage.py        before and after: memory, ratios, digests
    engine_way.py   one encoding of the engine on a crew
    kernel_ways.py  zram and KSM on the same crew
    run.py          who takes a turn when
"""

from agentzip.bench.encode.plan import EncodePlan
from agentzip.bench.encode.report import print_report, to_json
from agentzip.bench.encode.result import EncodeResult
from agentzip.bench.encode.run import run_encode

__all__ = ["EncodePlan", "EncodeResult", "print_report", "run_encode", "to_json"]
