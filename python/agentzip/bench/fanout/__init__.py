"""
`agentzip bench fanout`: many sandboxes at work, with AgentZip, without it, and with its peers.

Every mode has the same sandboxes with the same data, the same questions and the same think times;
mode `none` says what the answers must be and what memory they take.

    plan.py            what is run; questions, all from one seed
    think.py           think times: pure
    places.py          the control groups of a run
    custody.py         a process that gives back what a killed bench cannot
    crew.py            the sandboxes of one mode
    modes.py           what a mode is; mode `none`
    engine_modes.py    `encode` and `prefetch`: the engine without a daemon
    engine_process.py  the process that this engine runs in
    daemon_mode.py     `full`: the real daemon
    kernel_modes.py    `zram`, `zswap` and `ksm`
    play.py            turns: the driver plays the model; or commands, which are waited for
    idleness.py        when a command waits, seen from outside
    watch.py           memory over time
    profile.py         what one sandbox takes, for `agentzip simulate`: pure
    readings.py        what a mode leaves behind: pure
    result.py          the figures and the arithmetic on them: pure
    run.py             who takes a turn when
    find_max.py        how many sandboxes fit
    single.py          `agentzip bench workload`: one agent alone
    knob.py            `agentzip bench knob`: memory against latency
    codecs.py          `agentzip bench codecs`: one codec alone, and all together
    report.py          tables and JSON
"""

__all__: list[str] = []
