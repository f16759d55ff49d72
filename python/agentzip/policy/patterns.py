"""
Which control groups a scope's pattern selects.

`*` and `?` match within one name.  A pattern without `/` matches the name of a control group
wherever it is, because service managers nest (`agent.slice/agent-sandbox.slice/...`) and container
runtimes do not; a pattern with `/` matches the whole path from the root, so `/agent-*` selects at
the top only.
"""

import re
from collections.abc import Callable, Sequence

from agentzip.errors import InvalidSetting

__all__ = ["checked", "chooser", "matches"]

_FIX = 'write a pattern below the cgroup root, like "agent-sandbox-*.slice"'

_CHARACTERS_MAX = 4096
"""As long as a path can be."""


def checked(pattern: object) -> str:
    """
    A pattern in its one spelling, so that two that mean the same are equal.

    Raises:
        InvalidSetting: it is no pattern, or would select every control group of the host, its own
            services included; sandboxes must be named.
    """
    if not isinstance(pattern, str) or not pattern.strip() or not pattern.isprintable():
        raise InvalidSetting("is no cgroup pattern", _FIX)
    if len(pattern) > _CHARACTERS_MAX:
        raise InvalidSetting("is longer than any path", _FIX)
    names = pattern.strip("/").split("/")
    if {".", "..", ""} & set(names):
        raise InvalidSetting("is no cgroup pattern", _FIX)
    if all(set(name) <= set("*?") for name in names):
        raise InvalidSetting("selects every cgroup of the host", _FIX)
    path = "/".join(names)
    return f"/{path}" if len(names) == 1 and pattern.startswith("/") else path


def matches(pattern: str, path: str) -> bool:
    """
    Whether a pattern selects a control group.

    Args:
        pattern: As `checked` gives it.
        path: Path of the control group below the root, without a `/` at either end.
    """
    return _compiled(pattern)(path) is not None


def chooser(patterns: Sequence[str]) -> Callable[[str], int | None]:
    """What tells which of several patterns selects a path: the first, by its position."""
    compiled = [_compiled(pattern) for pattern in patterns]

    def choose(path: str) -> int | None:
        for position, match in enumerate(compiled):
            if match(path) is not None:
                return position
        return None

    return choose


def _compiled(pattern: str) -> Callable[[str], re.Match[str] | None]:
    whole = "".join(
        {"*": "[^/]*", "?": "[^/]"}.get(character, re.escape(character))
        for character in pattern.removeprefix("/")
    )
    anywhere = "" if "/" in pattern else "(?:.*/)?"
    return re.compile(anywhere + whole, re.DOTALL).fullmatch
