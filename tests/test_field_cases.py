"""
The pages that say what holds a case or a claim: every row is there, and names a test that exists.
"""

import re

import pytest

from agentzip.pager import crash_points
from agentzip.selftest import all_checks
from source_tree import ROOT, is_test, table_rows

_CASES = (
    *(1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 37),
    *(38, 40, 41, 43, 44, 46, 47, 49, 50, 52, 53, 55, 56, 58, 59, 61, 62, 64, 65, 67, 68, 70, 71),
    *(73, 74, 76, 77, 79, 80, 82, 83, 85, 86, 88),
)
"""Numbers under which the cases were collected."""

_TEST = re.compile(r"`(tests/[\w./-]+\.py::\w+)`")
_CHECK = re.compile(r"`((?:exact|events|crash)/[\w-]+)`")
_SEVERAL = re.compile(r"`((?:exact|events|crash)/)\*`")

_CHECKS = {found.name for found in all_checks()}


def _problems(page: str) -> list[str]:
    """Rows that name nothing that holds them, or something that is not there."""
    found = []
    for number, line in table_rows(ROOT / page):
        tests, checks = _TEST.findall(line), _CHECK.findall(line)
        several = _SEVERAL.findall(line)
        if not tests + checks + several and "annot happen here" not in line:
            found.append(f"{page}:{number}: names no test")
        found += [f"{page}:{number}: there is no {name}" for name in tests if not is_test(name)]
        found += [f"{page}:{number}: no check {name}" for name in checks if name not in _CHECKS]
        found += [
            f"{page}:{number}: no checks {suite}"
            for suite in several
            if not any(name.startswith(suite) for name in _CHECKS)
        ]
    return found


@pytest.mark.parametrize("page", ["docs/field-cases.md", "docs/safety.md"])
def test_what_holds_a_row_exists(page: str) -> None:
    """Each row of a table names a test or a check that is there, or says why there is none."""
    assert [] == _problems(page)


def test_the_checks_of_the_promises_exist() -> None:
    """What PROMISES.md names in brackets can be run by that name."""
    named = re.findall(r"\b(?:exact|events|crash)/[\w-]+", (ROOT / "PROMISES.md").read_text())

    assert named
    assert set() == set(named) - _CHECKS


def test_the_promises_count_right() -> None:
    """Steps and checks that come or go are seen by whoever adds them."""
    promises = (ROOT / "PROMISES.md").read_text()

    assert f"| {len(crash_points())} steps |" in promises
    assert f"{sum(name.startswith('events/') for name in _CHECKS)} checks |" in promises


def test_every_field_case_has_its_row() -> None:
    """Each once, in order, and none that is not known."""
    rows = [line for _, line in table_rows(ROOT / "docs" / "field-cases.md")]
    numbers = [int(match[1]) for line in rows if (match := re.match(r"\| FC-(\d\d) \|", line))]

    assert 59 == len(_CASES)
    assert list(_CASES) == numbers
    assert len(rows) == len(numbers)
