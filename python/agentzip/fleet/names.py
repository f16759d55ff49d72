"""
What a sandbox is called: short where that tells, the same for its life, and fit to be shown.  Pure.
"""

from collections.abc import Container

from agentzip.host.kernel_text import printable

__all__ = ["name_of"]


def name_of(path: str, taken: Container[str]) -> str:
    """
    A name for the sandbox of a control group.

    Args:
        path: Of the group, below the root.
        taken: Names that others have, or may come back to.
    """
    name = printable(path.rpartition("/")[2])
    if name in taken:
        name = printable(f"/{path}")
    # Of two paths that are shown alike one can be chosen to resemble the other.
    while name in taken:
        name += "+"
    return name
