"""
`agentzip bench codecs`: what the daemon saves and costs with one codec alone, and with all it has.

Same sandboxes, same turns, same schedule; only what a page becomes differs.  Same-filled and equal
pages are found with every codec, so what is compared is what is made of the rest.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from agentzip.bench.fanout.plan import CODECS, FanoutPlan
from agentzip.bench.fanout.result import ModeResult, figures
from agentzip.bench.fanout.run import ground, run_mode, telling

__all__ = ["CodecResult", "CodecsResult", "run_codecs"]


@dataclass(frozen=True, slots=True)
class CodecResult:
    """One codec and its figures in mode `full`."""

    codec: str
    figures: ModeResult


@dataclass(slots=True)
class CodecsResult:
    """All codecs, beside mode none of the same run."""

    plan: dict[str, object]
    none: ModeResult
    codecs: list[CodecResult] = field(default_factory=list)


def run_codecs(plan: FanoutPlan, tell: Callable[[str], None] = lambda _: None) -> CodecsResult:
    """
    Run mode none once and mode full for every codec.

    Raises:
        AgentZipError: the bench or the daemon cannot work here.
    """
    with ground(plan) as place:
        none = run_mode("none", plan, place, telling(tell, "none"))
        result = CodecsResult(asdict(plan), figures(none, none))
        for codec in CODECS:
            run = run_mode("full", replace(plan, codec=codec), place, telling(tell, codec))
            result.codecs.append(CodecResult(codec, figures(run, none)))
    return result
