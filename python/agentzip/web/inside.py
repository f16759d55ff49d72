"""
What a sandbox may ask of itself, over the socket that is mounted into it.

No path here names a sandbox: who is meant is who connected, so there is nothing to get wrong and
nobody else to ask about.
"""

from dataclasses import dataclass
from typing import Any

from agentzip import hints
from agentzip.errors import InvalidSetting, NoSuchSandbox
from agentzip.web import openapi
from agentzip.web.host import Hint
from agentzip.web.routes import Call, Route

__all__ = ["ROUTES", "inside_document"]


@dataclass(frozen=True, slots=True)
class OwnPhase:
    """Where the sandbox that asks is in its life, as the host sees it."""

    phase: str
    expected_rest_s: float
    """How much longer the phase is expected to last."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a hint changed."""

    phase: str
    former_phase: str


def _self(call: Call) -> OwnPhase:
    name = call.names["self"]
    for status in call.fleet.sandboxes():
        if status.name == name:
            return OwnPhase(status.phase, status.expected_rest_s)
    raise NoSuchSandbox("this sandbox has just ended")


def _set_own_phase(call: Call) -> Heard:
    phase = hints.known_phase(call.body.phase)
    expect_s = hints.expected_seconds(call.body.expect)
    report = call.fleet.hint(call.names["self"], phase, expect_s, source="sandbox")
    return Heard(report.phase, report.former_phase)


ROUTES = (
    Route(
        method="GET",
        path="/v1/self",
        summary="The own phase.",
        handler=_self,
        returns=OwnPhase,
        raises=(NoSuchSandbox,),
    ),
    Route(
        method="PUT",
        path="/v1/phase",
        summary="Say where this sandbox is in its life.  A phase that ends a wait is answered "
        "when the working set is home.",
        handler=_set_own_phase,
        returns=Heard,
        body=Hint,
        raises=(InvalidSetting, NoSuchSandbox),
    ),
)
"""Everything that can be asked from inside."""


def inside_document() -> dict[str, Any]:
    """The OpenAPI document of the socket inside a sandbox."""
    return openapi.document(
        ROUTES,
        "AgentZip, the socket inside a sandbox",
        "Over `/run/agentzip/sandbox.sock` inside a sandbox; every request is about the sandbox "
        "of the process that connected.  At most 20 requests a second, then 429.",
    )
