"""
`python -m agentzip.bench`: measure on this host and print the figures.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from rich.console import Console

from agentzip.bench.rounds import MEBIBYTES_MIN, BenchPlan, run_bench
from agentzip.bench.tables import print_report, to_json
from agentzip.errors import AgentZipError

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run; the exit code is 1 if a page was wrong, and that of the error if one ended the run."""
    parser = argparse.ArgumentParser(prog="python -m agentzip.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object, no tables")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON object here, too")
    parser.add_argument("--mib", type=int, default=80, help="heap of each target (default: 80)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; some seconds")
    options = parser.parse_args(arguments)
    if not MEBIBYTES_MIN <= options.mib <= 4096:
        parser.error(f"--mib takes {MEBIBYTES_MIN} to 4096")
    plan = BenchPlan.quick(options.mib) if options.quick else BenchPlan(options.mib)
    messages = Console(stderr=True)
    # An end by signal must unwind as well: there may be a swap device to give back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with messages.status("measuring") as status:
            result = run_bench(plan, status.update)
    except AgentZipError as error:
        messages.print(f"error: {error}\n\nhint: {error.hint}", markup=False)
        return int(error.exit_code)
    text = json.dumps(to_json(result), indent=2)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    if options.json:
        sys.stdout.write(text + "\n")
    else:
        print_report(result, Console())
    return 1 if result.pages_wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
