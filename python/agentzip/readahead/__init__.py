"""
The file side of prefetch: parts of files that a sandbox will read are in the cache before.

    sources    where reads are seen: tracepoints, else positions of descriptors
    reader     reads -> predictors (policy.readahead) -> the kernel's page cache
"""

from agentzip.readahead.reader import ReadAhead
from agentzip.readahead.sources import PositionSource, Source, TraceSource, best_source

__all__ = ["PositionSource", "ReadAhead", "Source", "TraceSource", "best_source"]
