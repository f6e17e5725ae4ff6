"""Flower entry point of the client.

`fedsyn.runs.holders` says what a node brings to a run, and refuses.
"""

from fedsyn.output import no_tracebacks
from fedsyn.runs.holders import app

no_tracebacks()  # only Flower's own process for a ClientApp imports this module

__all__ = ["app"]
