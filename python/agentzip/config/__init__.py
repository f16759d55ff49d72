"""
The configuration file, /etc/agentzip/config.yaml.

    keys       every key with its meaning, unit, default and check
    document   YAML text to plain values, each with the line that it stands on
    paths      whether the paths in it can be used on this host
    loading    file and options together; which of them each value comes from
    reload     a changed file while the daemon runs

A key that is not known, a value that is no such value, and values that cannot be true together are
errors that name key, value and fix.  Nothing here changes a running daemon.
"""

from agentzip.config.keys import (
    Compression,
    Config,
    Hints,
    Metrics,
    Policy,
    Pool,
    Scope,
    Watermarks,
)
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
from agentzip.config.paths import STATE_DIR_VARIABLE, state_dir
from agentzip.config.reload import Reload, reload

__all__ = [
    "DEFAULT_PATH",
    "STATE_DIR_VARIABLE",
    "Compression",
    "Config",
    "Effective",
    "Hints",
    "Metrics",
    "Policy",
    "Pool",
    "Problem",
    "Reload",
    "Scope",
    "Watermarks",
    "load",
    "load_file",
    "problems_of",
    "reload",
    "state_dir",
    "to_background",
    "to_settings",
]
