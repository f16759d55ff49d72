"""
Rules for the whole run: a run in which every test on real processes was skipped is not a success.
"""

from pathlib import Path

import pytest

_KERNEL = Path(__file__).parent / "kernel"
_outcomes: dict[str, int] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count how the tests under tests/kernel ended."""
    if "tests/kernel/" not in report.nodeid:
        return
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        _outcomes[report.outcome] = _outcomes.get(report.outcome, 0) + 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if nothing was tried on a real process although it was asked for."""
    if set(_outcomes) == {"skipped"} and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why the run failed although no test did."""
    if set(_outcomes) == {"skipped"}:
        count = _outcomes["skipped"]
        terminalreporter.section("nothing was tested", red=True)
        terminalreporter.line(
            f"all {count} tests in {_KERNEL.name} were skipped: "
            "the pager was not tried on any process; the reasons are above"
        )
