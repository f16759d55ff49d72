"""
`agentzip demo`: real data agents, paged out while they wait and woken before your eyes.

    orders      makes the data of an agent
    agent       the agent: numpy and pandas, and no idea of AgentZip
    crew        starts agents, talks to them, ends them
    stage       the steps: start, baseline, page out, verify, wake, detach
    report      the figures at the end
    leftovers   what must not be there afterwards
"""

from agentzip.demo.report import DemoResult
from agentzip.demo.stage import play

__all__ = ["DemoResult", "play"]
