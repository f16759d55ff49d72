"""
`agentzip simulate`: from the profile of a few real sandboxes to hundreds, thousands, and a fleet.

    bench fanout --json ──► profiles ──► packing ──► model ──► figures ──► report
                                                       │
                                       schedule: the real planner, phases and breakers

A discrete event simulation: sandboxes think, wake, take turns; the daemon ticks.  What a daemon
would decide is not imitated but asked for, from `agentzip.policy` and `agentzip.fleet.life`; what
moving pages costs was measured.  No process is started and no clock is read: one seed gives one
result.

    profiles.py    what one sandbox takes, from the bench's JSON
    processors.py  who gets how much of the cores
    pages.py       where the pages of one sandbox are, and how the daemon sees it
    schedule.py    which pages leave, and when: the planner's ticks
    memory.py      what is used, and who may have more
    model.py       one host from its first sandbox to its last turn
    packing.py     sandboxes onto hosts by net memory; how many hosts a fleet needs
    figures.py     what is told of a host and of a fleet
    validation.py  a simulated run beside a real one
    report.py      tables and JSON
"""

__all__: list[str] = []
