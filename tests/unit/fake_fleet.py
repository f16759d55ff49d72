"""
A fleet that remembers what it was asked, over a real set of scopes and no host.
"""

from agentzip.errors import NoSuchSandbox
from agentzip.fleet.scopes import Rule, Scopes
from agentzip.sandboxes import PHASES, Decision, HintReport, SandboxStatus, ScopeStatus

__all__ = ["FakeFleet", "status"]


def status(name: str) -> SandboxStatus:
    """A sandbox with plain figures."""
    return SandboxStatus(
        name=name,
        scope="agent-*",
        cgroup=name,
        pids=[7, 8],
        phase="running",
        phase_source="seen",
        phase_age_s=1.5,
        expected_rest_s=0.0,
        rss_bytes=4096,
        bytes_logical=8192,
        bytes_pool=1000,
        bytes_table=100,
        pages_out=2,
        faults=3,
        wakes=1,
        prefetch_hit_rate=None,
        prefetch_waste=0.25,
        wake_p50_ms=None,
        wake_p99_ms=9.5,
        cpu_s=0.01,
        pinned=False,
        left_alone="",
        min_wait_s=0.0,
    )


class FakeFleet:
    """
    Has the sandboxes that it is given.

    Args:
        names: Their names.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._scopes = Scopes()
        self.asked: list[tuple[object, ...]] = []

    def sandboxes(self) -> list[SandboxStatus]:
        """All of them."""
        return [status(name) for name in self._names]

    def sandbox_of(self, pid: int) -> str | None:
        """The first has the pids 7 and 8."""
        return self._names[0] if pid in {7, 8} else None

    def hint(
        self, sandbox: str, phase: str, expect_s: float | None = None, source: str = "cli"
    ) -> HintReport:
        """Remember it."""
        self._note("hint", sandbox, phase, expect_s, source)
        return HintReport(
            sandbox=sandbox, phase=phase, former_phase=PHASES[0], pages_in=5, elapsed_us=1.5
        )

    def explain(self, sandbox: str) -> list[Decision]:
        """One decision."""
        self._note("explain", sandbox)
        return [
            Decision(age_s=1, action="leave", pid=7, pages=0, gain=1.5, cost=2.5, reason="too dear")
        ]

    def page_out(self, sandbox: str) -> int:
        """Eleven pages."""
        self._note("page_out", sandbox)
        return 11

    def page_in(self, sandbox: str) -> int:
        """Twelve pages."""
        self._note("page_in", sandbox)
        return 12

    def pin(self, sandbox: str, pinned: bool) -> None:
        """Remember it."""
        self._note("pin", sandbox, pinned)

    def scopes(self) -> list[ScopeStatus]:
        """What was added."""
        return [_told(rule) for rule in self._scopes.rules()]

    def scope_add(self, pattern: str, isolation: str = "scope") -> ScopeStatus:
        """As the real one."""
        return _told(self._scopes.add(pattern, isolation))

    def scope_enable(self, pattern: str, enabled: bool) -> ScopeStatus:
        """As the real one."""
        return _told(self._scopes.enable(pattern, enabled))

    def scope_remove(self, pattern: str) -> ScopeStatus:
        """As the real one."""
        return _told(self._scopes.remove(pattern))

    def sandbox_run(self, name: str, pid: int, start_time: int) -> ScopeStatus:
        """As the real one."""
        return _told(self._scopes.run(name, pid, start_time))

    def _note(self, *what: object) -> None:
        if what[1] not in self._names:
            raise NoSuchSandbox(f"no sandbox has this name: {what[1]}")
        self.asked.append(what)


def _told(rule: Rule) -> ScopeStatus:
    return ScopeStatus(
        pattern=rule.pattern,
        enabled=rule.enabled,
        isolation=rule.isolation,
        source=rule.source,
        sandboxes=0,
    )
