"""
Figures for Prometheus, at `/metrics` on a loopback address.

    families    every metric: name, kind, meaning, labels; what docs and dashboard are checked by
    survey      what is too dear for a scrape, looked at every five minutes: classes, ratios
    collector   what engine, fleet and survey say, put into those families
    server      who may ask, and how often

The package `prometheus-client` writes them down; it comes with the extra `metrics`.
"""

from agentzip.metrics.families import FAMILIES, Family
from agentzip.metrics.server import MetricsServer, parse_address

__all__ = ["FAMILIES", "Family", "MetricsServer", "parse_address"]
