"""
What must not be there afterwards.

Looked at twice: on the agents after the detach, while they still live, and on the host after
everything has ended.
"""

from collections.abc import Sequence
from pathlib import Path

from agentzip import pager
from agentzip.demo.crew import Agent
from agentzip.errors import NoSuchProcess
from agentzip.host import processes

__all__ = ["left_in_agents", "left_on_host"]


def left_in_agents(agents: Sequence[Agent]) -> list[str]:
    """Traces of the pager in agents that were given back."""
    found = []
    for agent in agents:
        name = f"agent {agent.seed} (process {agent.pid})"
        if not processes.is_alive(agent.pid, agent.start_time):
            found.append(f"{name} has died")
            continue
        try:
            for thread, tracer in processes.tracers(agent.pid).items():
                found.append(f"{name}: thread {thread} is traced by {tracer}")
            if processes.process(agent.pid).state in "tT":
                found.append(f"{name} is stopped")
            registered = processes.faults_handled_elsewhere(agent.pid)
            if registered:
                found.append(f"{name}: {registered} mappings are still registered")
            helpers = [region for region in pager.regions(agent.pid) if region.kind == "helper"]
            if helpers:
                found.append(f"{name}: {len(helpers)} mappings of ours are still there")
        except NoSuchProcess:
            found.append(f"{name} has died")
    return found


def left_on_host(
    agents: Sequence[Agent], keeper: processes.ProcessInfo | None, run_dir: Path
) -> list[str]:
    """Processes and files of the demo that outlived it."""
    found = [
        f"agent {agent.seed} (process {agent.pid}) still runs"
        for agent in agents
        if processes.is_alive(agent.pid, agent.start_time)
    ]
    if keeper is not None and processes.is_alive(keeper.pid, keeper.start_time):
        found.append(f"the keeper (process {keeper.pid}) still runs")
    if run_dir.exists():
        found.append(f"the run directory is still there: {run_dir}")
    return found
