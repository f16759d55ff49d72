"""
The sandboxes of a host through their lives: found, watched, planned for, acted on.

    settings        what it is started with
    rules           what an operator sets, in the policy's terms
    scopes          what selects sandboxes: the file, and what commands added
    registry        control groups and processes to sandboxes
    observer        what goes on in them: one `Life` each (life)
    lifecycle       the tick: observe, plan, act
    foresight       reads of files foreseen for those that are awake
    actions         what is done to their processes, with the engine
    trimmer         sandboxes give memory back before it is paged out
    service         the face that everybody asks: `sandboxes.Fleet`
    sandbox_socket  the socket through which sandboxes speak for themselves
    assembly        all of it put together
"""

from agentzip.fleet.assembly import FleetRunner
from agentzip.fleet.settings import FleetSettings, fleet_settings

__all__ = ["FleetRunner", "FleetSettings", "fleet_settings"]
