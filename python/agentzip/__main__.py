"""`python -m agentzip`: the command line without the installed script."""

import sys

from agentzip.cli import main

if __name__ == "__main__":
    sys.exit(main())
