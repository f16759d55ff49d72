"""
Reads files in a given order by small steps, works a little on each, and says when it read what.

Arguments: a list of paths, one in a line of the file named first; bytes of a step; seconds of work
a file.  Output: one line a read: inode, first page, end page, begin and end by the monotonic clock.
"""

import os
import sys
import time


def main() -> None:
    """Wait for a line, read everything, tell."""
    paths = open(sys.argv[1], encoding="utf-8").read().split("\n")  # noqa: SIM115
    step, work_s = int(sys.argv[2]), float(sys.argv[3])
    print("ready", flush=True)
    sys.stdin.readline()
    told = []
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        inode, offset = os.fstat(handle).st_ino, 0
        while True:
            began = time.monotonic()
            data = os.read(handle, step)
            ended = time.monotonic()
            if not data:
                break
            told.append((inode, offset // 4096, -(-(offset + len(data)) // 4096), began, ended))
            offset += len(data)
            until = ended + work_s
            while time.monotonic() < until:
                pass
        os.close(handle)
    for line in told:
        print(*line)


main()
