"""
`python -m agentzip.selftest NAME [FILE]`: one check in this process; prints one JSON object.

The runner starts this for each check, so that a crash or a hang stays inside.  FILE is the module
that registers the check, where it is none of this package.  The tier comes by the environment.
"""

import json
import os
import runpy
import sys
import traceback

from agentzip.selftest import find
from agentzip.selftest.registry import TIER_VARIABLE, Check, CheckFailed, CheckSkipped
from agentzip.selftest.stage import Stage

__all__ = ["main"]


def main() -> int:
    """Run the check named on the command line."""
    if len(sys.argv) > 2:
        runpy.run_path(sys.argv[2])
    found = find(sys.argv[1])
    passed, skipped, detail = _outcome(found)
    sys.stdout.write(json.dumps({"passed": passed, "skipped": skipped, "detail": detail}) + "\n")
    sys.stdout.flush()
    return 0 if passed else 1


def _outcome(found: Check) -> tuple[bool, str, str]:
    with Stage(os.environ.get(TIER_VARIABLE) or None) as stage:
        try:
            found.run(stage)
            stage.settle()
        except CheckSkipped as reason:
            return True, str(reason), ""
        except CheckFailed as failure:
            return False, "", "; ".join([str(failure), *stage.notes])
        except Exception:  # noqa: BLE001 - whatever was raised is the result
            return False, "", traceback.format_exc(limit=-6)
        return True, "", "; ".join(stage.notes)


if __name__ == "__main__":
    raise SystemExit(main())
