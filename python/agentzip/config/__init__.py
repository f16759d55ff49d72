"""
The configuration file, /etc/agentzip/config.yaml.

    keys       every key with its meaning, unit, default and check
    document   YAML text to plain values, each with the line that it stands on
    loading    file and options together; which of them each value comes from

A key that is not known, a value that is no such value, and values that cannot be true together are
errors that name key, value and fix.  Nothing here reads or changes a running daemon.
"""

from agentzip.config.keys import Compression, Config, Policy, Pool, Scope, Watermarks
from agentzip.config.loading import (
    DEFAULT_PATH,
    Effective,
    Problem,
    load,
    load_file,
    problems_of,
    to_background,
    to_settings,
)

__all__ = [
    "DEFAULT_PATH",
    "Compression",
    "Config",
    "Effective",
    "Policy",
    "Pool",
    "Problem",
    "Scope",
    "Watermarks",
    "load",
    "load_file",
    "problems_of",
    "to_background",
    "to_settings",
]
