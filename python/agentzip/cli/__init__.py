"""
The command line: `agentzip COMMAND`.

    app       the commands put together, global options, the exit codes
    options   option types that several commands share
    output    what is printed: data to stdout, everything else to stderr
    launch    daemon, run, attach: commands that keep an engine alive
    targets   page-out, page-in, detach, status, inspect: commands that talk to one
    trim      asks a sandbox to give memory back
    dictionary     dict train, list, show
    configuration  config check, show
    checks    doctor, selftest, demo: commands that judge

Every command takes `--json`; then stdout holds nothing but data, and an error is a JSON object on
stderr.
"""

from agentzip.cli.app import main

__all__ = ["main"]
