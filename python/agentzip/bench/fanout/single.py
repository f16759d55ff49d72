"""
`agentzip bench workload`: one agent alone, turn by turn, as it is without anybody's help.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from agentzip.bench.fanout.crew import Crew, Member
from agentzip.bench.fanout.modes import NoneMode
from agentzip.bench.fanout.plan import FanoutPlan
from agentzip.bench.fanout.play import Stage, play
from agentzip.bench.fanout.run import ground
from agentzip.errors import InternalError
from agentzip.host import memory
from agentzip.units import format_bytes
from agentzip.workloads.crew import Turn

__all__ = ["SingleResult", "SingleTurn", "run_single", "turn_text"]


@dataclass(frozen=True, slots=True)
class SingleTurn:
    """One turn of the agent."""

    number: int
    recall_s: float
    """Until it had read the state that every turn needs."""
    elapsed_s: float
    rss_bytes: int
    pss_bytes: int
    """Of all its processes, after the turn."""
    recalled: str
    answer: dict[str, Any]


@dataclass(slots=True)
class SingleResult:
    """All turns."""

    plan: dict[str, object]
    turns: list[SingleTurn] = field(default_factory=list)
    digest: str = ""
    results_wrong: int = 0
    """Results that the agent itself found wrong."""


def run_single(
    plan: FanoutPlan, tell: Callable[[str], None], heard: Callable[[SingleTurn], None]
) -> SingleResult:
    """
    Start one agent, let it take its turns, end it.

    Args:
        plan: Of one sandbox.
        tell: Hears what is being done.
        heard: Hears of each turn when it is over.

    Raises:
        AgentZipError: this host cannot run the workload, or the agent failed.
    """
    result = SingleResult(asdict(plan))

    def note(member: Member, number: int, turn: Turn) -> None:
        use = memory.sum_use(member.pids())
        result.turns.append(
            SingleTurn(
                *(number, turn.recall_s, turn.elapsed_s, use.rss, use.pss),
                *(turn.recalled, turn.answer),
            )
        )
        heard(result.turns[-1])

    mode = NoneMode()
    stage = Stage(plan, mode, mode.at_half, note)
    with ground(plan) as place, Crew(plan, place.data(plan, tell), place.places) as crew:
        tell("loading")
        (member,) = crew.start(1)
        tell("turns")
        (played,) = play(crew, stage)
        if stage.failures:
            raise InternalError(stage.failures[0])
        result.digest = played.digest or member.sandbox.digest()
        result.results_wrong = played.checks_wrong
    return result


def turn_text(turn: SingleTurn) -> str:
    """A line about a turn."""
    said = ", ".join(f"{key} {value}" for key, value in turn.answer.items() if key != "wrong")
    wrong = ", ".join(turn.answer["wrong"]) or "none"
    return (
        f"turn {turn.number}: recall {turn.recall_s * 1000:.0f} ms, all {turn.elapsed_s:.2f} s, "
        f"RSS {format_bytes(turn.rss_bytes)}; {said}; wrong: {wrong}"
    )
