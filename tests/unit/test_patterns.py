"""Patterns of scopes: what they select, what is no pattern."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentzip.errors import InvalidSetting
from agentzip.policy import patterns
from fuzz_cases import cases


@pytest.mark.parametrize(
    ("pattern", "path", "selects"),
    [
        ("agent-sandbox-*.slice", "agent-sandbox-1.slice", True),
        ("agent-sandbox-*.slice", "agent.slice/agent-sandbox.slice/agent-sandbox-1.slice", True),
        ("agent-sandbox-*.slice", "agent-sandbox-1.slice/box.scope", False),
        ("agent-sandbox-*.slice", "agent-sandbox-1.slice.d", False),
        ("agent-?", "agent-1", True),
        ("agent-?", "agent-12", False),
        ("/agent-*", "agent-1", True),
        ("/agent-*", "x/agent-1", False),
        ("kubepods/*/pod*", "kubepods/burstable/pod1", True),
        ("kubepods/*/pod*", "kubepods/burstable/deep/pod1", False),
        ("kubepods/*/pod*", "x/kubepods/burstable/pod1", False),
        ("a.c", "abc", False),
        ("machine-a\\x2db.scope", "machine-a\\x2db.scope", True),
        ("pod[1]", "pod1", False),
        ("pod[1]", "pod[1]", True),
    ],
)
def test_a_pattern_selects_names_or_paths(pattern: str, path: str, selects: bool) -> None:
    """Without a slash the name of a group wherever it is, with one the path from the root."""
    assert selects == patterns.matches(patterns.checked(pattern), path)


@pytest.mark.parametrize("pattern", ["", " ", "*", "/*", "*/?*", "a/../b", ".", "a//b", "a\nb", 5])
def test_what_would_select_the_whole_host_is_no_pattern(pattern: object) -> None:
    """Sandboxes must be named, and a path cannot climb."""
    with pytest.raises(InvalidSetting):
        patterns.checked(pattern)


def test_patterns_that_mean_the_same_are_spelt_the_same() -> None:
    """So a command finds what the file calls otherwise."""
    assert "a/b" == patterns.checked("/a/b/") == patterns.checked("a/b")
    assert "a" == patterns.checked("a/")
    assert "/a" == patterns.checked("/a")


def test_the_first_pattern_that_matches_counts() -> None:
    """Its position is the answer; None if none matches."""
    choose = patterns.chooser(["agent-special-*", "agent-*"])

    assert [0, 1, None] == [choose(path) for path in ("x/agent-special-1", "agent-2", "other")]


@cases(100)
@given(st.text(alphabet="ab*?/.[\\", max_size=12), st.text(alphabet="ab/.", max_size=12))
def test_no_pattern_crosses_a_name(pattern: str, path: str) -> None:
    """`*` and `?` never match a slash: what a pattern with slashes selects has as many names."""
    try:
        checked = patterns.checked(pattern)
    except InvalidSetting:
        return
    if "/" in checked.removeprefix("/") and patterns.matches(checked, path):
        assert checked.count("/") == path.count("/")
