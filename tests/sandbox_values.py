"""
Sandboxes for tests of what people see: made up, and never in a process.

`a_sandbox` gives one with figures that are easy to add up; a test names only what it looks at.
"""

from dataclasses import dataclass, field, replace

from agentzip.errors import AgentZipError
from agentzip.sandboxes import SandboxStatus, ScopeStatus

__all__ = ["MIB", "FakeFleet", "a_sandbox", "a_scope"]

MIB = 2**20

_PLAIN = SandboxStatus(
    name="one",
    scope="agent-sandbox-*.slice",
    cgroup="/agent-sandbox-one.slice",
    pids=[],
    phase="waiting_model",
    phase_source="hint",
    phase_age_s=12.0,
    expected_rest_s=8.0,
    rss_bytes=20 * MIB,
    bytes_logical=80 * MIB,
    bytes_pool=16 * MIB,
    bytes_table=MIB,
    pages_out=20480,
    faults=100,
    wakes=4,
    prefetch_hit_rate=0.9,
    prefetch_waste=0.2,
    wake_p50_ms=5.0,
    wake_p99_ms=15.0,
    cpu_s=1.5,
    pinned=False,
    left_alone="",
    min_wait_s=0.0,
)


def a_sandbox(name: str = "one", **changed: object) -> SandboxStatus:
    """100 MiB at home, 80 MiB of it out as 16 MiB, waiting for the model; but for what changed."""
    return replace(_PLAIN, name=name, **changed)  # type: ignore[arg-type]


def a_scope(pattern: str = "agent-sandbox-*.slice", sandboxes: int = 1) -> ScopeStatus:
    """A scope of the configuration."""
    return ScopeStatus(
        pattern=pattern, enabled=True, isolation="scope", source="config", sandboxes=sandboxes
    )


@dataclass
class FakeFleet:
    """Sandboxes as a test lists them."""

    found: list[SandboxStatus] = field(default_factory=list)
    scopes_found: list[ScopeStatus] = field(default_factory=lambda: [a_scope()])
    refusal: AgentZipError | None = None

    def sandboxes(self) -> list[SandboxStatus]:
        """All of them."""
        if self.refusal is not None:
            raise self.refusal
        return list(self.found)

    def scopes(self) -> list[ScopeStatus]:
        """All of them."""
        return list(self.scopes_found)
