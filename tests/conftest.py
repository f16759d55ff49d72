"""
Rules for the whole run: a run in which every test on real processes was skipped is not a success.
"""

from pathlib import Path

import pytest

_KERNEL = Path(__file__).parent / "kernel"
_APART = ("tests/kernel/test_selftest.py", "tests/kernel/test_guests.py")
"""Each of their tests is a program of its own with targets of its own."""

_outcomes: dict[str, int] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Give two workers what may run side by side.

    Daemons look for sandboxes by pattern, and there is one zram and one kernel samepage merging, so
    all tests follow each other on one worker but those that touch nothing but their own.
    """
    for item in items:
        if not item.nodeid.startswith(_APART):
            item.add_marker(pytest.mark.xdist_group("host"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count how the tests under tests/kernel ended."""
    if "tests/kernel/" not in report.nodeid:
        return
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        _outcomes[report.outcome] = _outcomes.get(report.outcome, 0) + 1


def _nothing_ran() -> bool:
    return set(_outcomes) == {"skipped"}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if nothing was tried on a real process although it was asked for."""
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and _nothing_ran() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why the run failed although no test did."""
    if _nothing_ran():
        count = _outcomes["skipped"]
        terminalreporter.section("nothing was tested", red=True)
        terminalreporter.line(
            f"all {count} tests in {_KERNEL.name} were skipped: "
            "the pager was not tried on any process; the reasons are above"
        )
