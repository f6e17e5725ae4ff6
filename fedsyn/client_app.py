"""Flower entry point of the client.

`fedsyn.runs.holders` says what a node brings to a run, and refuses.
"""

import logging

from fedsyn.output import log_handler, no_tracebacks
from fedsyn.runs.holders import app

# Only Flower's own process for a ClientApp imports this module. A server hears "see this node's own log": this is it.
no_tracebacks()
logging.getLogger("fedsyn").addHandler(log_handler("%(asctime)s %(message)s"))

__all__ = ["app"]
