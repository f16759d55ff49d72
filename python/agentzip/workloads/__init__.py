"""
Small real workloads: what AI agents hold in memory, as live processes to measure on.

Nothing here knows of the pager.  An instance is started by its own exec, reads data that no other
instance has, comes to a waiting state, and answers lines on stdin: `step N` (a tool call that
touches part of its memory and changes some of it) and `digest` (over all that it holds).

    text.py           words, sentences, and real documents dealt out to instances
    material.py       the data files of one instance, made by a process of its own
    launcher.py       how an instance starts: an end with its parent's, mergeable pages
    crew.py           several instances of one workload: start, talk, end
    serve.py          the instance's side of the lines, for those in Python
    toolbox.py        what an agent's Python has imported
    python_agent.py   numpy and pandas: frames, arrays, records
    json_agent.py     message histories, parsed results, models, chunks; waits in asyncio
    browser_agent.py  headless Chromium with its pages; devtools.py is the pipe to it
    node_agent.js     documents, Maps, row objects, JSON
    turns.py          whole turns, for agents that go on and on
    catalogue.py      those agents: what they run, how large they are, what they wait for
    analyst.py        A: python_agent with scikit-learn and matplotlib
    tool_user.py      B: langchain messages and tools; tool_server.py and website.py are its web
    surfer.py         C: browser_agent that reads, changes and pictures its pages
    node_batch.js     D: node_agent that works through batches of documents and files
    counter.py        busy: json_agent's documents, counted without a rest
    command.py        any command instead of an agent
"""

__all__: list[str] = []
