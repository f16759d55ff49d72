"""
What commands ask of a daemon that may be the engine of one command, which has no sandboxes.

`agentzip run` without a daemon answers on the same socket; to `status` and `stats` that is a host
without scopes, to commands about sandboxes it is an error with the way out.
"""

from agentzip.control import ControlClient
from agentzip.errors import DaemonUnreachable, InvalidSetting, NoSuchSandbox
from agentzip.sandboxes import SandboxStatus, ScopeStatus
from agentzip.totals import select

__all__ = ["chosen_sandboxes", "every_sandbox", "every_scope"]


def every_sandbox(client: ControlClient) -> list[SandboxStatus]:
    """All sandboxes; none where nobody looks after any."""
    try:
        return client.sandboxes()
    except DaemonUnreachable:
        return []


def every_scope(client: ControlClient) -> list[ScopeStatus]:
    """All scopes; none where nobody looks after sandboxes."""
    try:
        return client.scopes()
    except DaemonUnreachable:
        return []


def chosen_sandboxes(client: ControlClient, cgroup: str) -> list[SandboxStatus]:
    """
    Sandboxes that `--cgroup` chooses; none for a scope that has none yet.

    Raises:
        InvalidSetting: it is no pattern.
        NoSuchSandbox: no scope has this pattern, and no sandbox such a name or control group.
    """
    try:
        found = select(client.sandboxes(), cgroup)
    except InvalidSetting as error:
        raise InvalidSetting(f"--cgroup {cgroup!r} {error}", error.hint) from error
    if not found and all(scope.pattern != cgroup for scope in client.scopes()):
        raise NoSuchSandbox(f"no scope has this pattern and no sandbox this name: {cgroup}")
    return found
