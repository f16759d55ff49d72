"""
What others have published on this idea: data that nobody here has measured or could check.

It stands beside our figures in columns that say so; the machines, the sandboxes and the way of
counting behind it are not known.
"""

__all__ = ["ABLATION", "CODECS", "LABEL", "LONG_TASKS", "TURN_P99", "WORKLOADS"]

LABEL = "claim of others"
"""What a heading of such a column begins with."""

CODECS = {
    "lz4": ("4.2", "+2.1 %", "+1.8 %"),
    "zstd-3": ("7.9", "+4.7 %", "+3.2 %"),
    "zstd-9": ("8.6", "+11.3 %", "+8.6 %"),
}
"""Codec -> ratio, CPU added, P99 added."""

WORKLOADS = {
    "A": ("1.22 GB", "140 MB", "8.7"),
    "B": ("960 MB", "210 MB", "4.6"),
    "C": ("2.10 GB", "690 MB", "3.0"),
    "D": ("780 MB", "120 MB", "6.5"),
}
"""Workload -> baseline RSS, after, ratio, with 20 sandboxes."""

TURN_P99 = "turn P99 1.8 s before and 1.9 s after"
LONG_TASKS = "long tasks take 3 % longer"

ABLATION = {
    "none": ("40 GB", "60 s", "-"),
    "encode": ("28 GB", "62 s", "130 ms"),
    "prefetch": ("26 GB", "55 s", "35 ms"),
    "full": ("18 GB", "51 s", "28 ms"),
}
"""Mode -> peak memory, task time, restore P99, with 200 sandboxes of 200 MB."""
