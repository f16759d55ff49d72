"""A fleet without a host: sandboxes by name, and a note of all that was asked."""

import os
from dataclasses import replace

from agentzip.errors import InvalidSetting, NoSuchSandbox, NoSuchScope
from agentzip.sandboxes import WAITS, Decision, HintReport, SandboxStatus, ScopeStatus

__all__ = ["FakeFleet", "sandbox_status"]


def sandbox_status(name: str) -> SandboxStatus:
    """A sandbox that has done nothing yet."""
    return SandboxStatus(
        name=name,
        scope="agents-*.slice",
        cgroup=f"agents.slice/{name}",
        pids=[],
        phase="running",
        phase_source="seen",
        phase_age_s=1.0,
        expected_rest_s=0.0,
        rss_bytes=1000,
        bytes_logical=0,
        bytes_pool=0,
        bytes_table=0,
        pages_out=0,
        faults=0,
        wakes=0,
        prefetch_hit_rate=None,
        prefetch_waste=None,
        wake_p50_ms=None,
        wake_p99_ms=None,
        cpu_s=0.0,
        pinned=False,
        left_alone="",
        min_wait_s=0.0,
    )


class FakeFleet:
    """
    Keeps what it is told.

    Args:
        names: Names of its sandboxes.
    """

    def __init__(self, *names: str) -> None:
        self.of = {name: sandbox_status(name) for name in names}
        self.homes = {os.getpid(): names[0]} if names else {}
        """Sandbox of each process, by pid."""
        self.heard: list[tuple[str, str, float | None]] = []
        """Every hint: sandbox, phase, expected seconds."""
        self.sources: list[str] = []
        self.rules: dict[str, ScopeStatus] = {}

    def phases(self) -> list[str]:
        """The phases of all hints, in order."""
        return [phase for _, phase, _ in self.heard]

    def sandboxes(self) -> list[SandboxStatus]:
        """All, by name."""
        return [self.of[name] for name in sorted(self.of)]

    def sandbox_of(self, pid: int) -> str | None:
        """As `homes` has it."""
        return self.homes.get(pid)

    def hint(
        self, sandbox: str, phase: str, expect_s: float | None = None, source: str = "cli"
    ) -> HintReport:
        """Note it; the end of a wait brings seven pages home."""
        former = self._found(sandbox)
        self.heard.append((sandbox, phase, expect_s))
        self.sources.append(source)
        self.of[sandbox] = replace(former, phase=phase, expected_rest_s=expect_s or 0.0)
        woken = former.phase in WAITS and phase not in WAITS
        return HintReport(
            sandbox=sandbox,
            phase=phase,
            former_phase=former.phase,
            pages_in=7 if woken else 0,
            elapsed_us=12.0,
        )

    def explain(self, sandbox: str) -> list[Decision]:
        """One decision."""
        self._found(sandbox)
        return [
            Decision(
                age_s=2.0,
                action="page_out",
                pid=7,
                pages=100,
                gain=4.1e6,
                cost=2e5,
                reason="8.0 s of wait for 100 pages",
            )
        ]

    def page_out(self, sandbox: str) -> int:
        """A hundred pages."""
        self._found(sandbox)
        return 100

    def page_in(self, sandbox: str) -> int:
        """As many."""
        self._found(sandbox)
        return 100

    def pin(self, sandbox: str, pinned: bool) -> None:
        """Note it."""
        self.of[sandbox] = replace(self._found(sandbox), pinned=pinned)

    def scopes(self) -> list[ScopeStatus]:
        """All."""
        return list(self.rules.values())

    def scope_add(self, pattern: str, isolation: str = "scope") -> ScopeStatus:
        """One more."""
        self.rules[pattern] = ScopeStatus(
            pattern=pattern, enabled=True, isolation=isolation, source="command", sandboxes=0
        )
        return self.rules[pattern]

    def sandbox_run(self, name: str, pid: int, start_time: int) -> ScopeStatus:
        """A sandbox of one process, whose start time is taken as it is."""
        if start_time < 1:
            raise InvalidSetting("start_time is not above zero")
        self.of[name] = sandbox_status(name)
        self.homes[pid] = name
        return self.scope_add(f"run:{name}")

    def scope_enable(self, pattern: str, enabled: bool) -> ScopeStatus:
        """Switch it."""
        self.rules[pattern] = replace(self._rule(pattern), enabled=enabled)
        return self.rules[pattern]

    def scope_remove(self, pattern: str) -> ScopeStatus:
        """Forget it."""
        found = self._rule(pattern)
        del self.rules[pattern]
        return found

    def _found(self, sandbox: str) -> SandboxStatus:
        if sandbox not in self.of:
            raise NoSuchSandbox(f"no such sandbox: {sandbox}")
        return self.of[sandbox]

    def _rule(self, pattern: str) -> ScopeStatus:
        if pattern not in self.rules:
            raise NoSuchScope(f"no such scope: {pattern}")
        return self.rules[pattern]
