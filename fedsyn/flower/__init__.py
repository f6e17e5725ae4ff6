"""The one folder that knows Flower.

Its public names stand here, its private ones in `private`.

The rest of the package imports Flower's classes from here.
"""

# ruff: noqa: E402 (Flower reads its environment variables when it is imported)

from __future__ import annotations

import logging
import os

from fedsyn.flower.minors import require_known

require_known()  # before anything of Flower's is imported, which may not be where another minor has it

# Flower reads these when it is first imported; a framework for private data does not phone home.
for _name, _value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1"),
):
    os.environ.setdefault(_name, _value)

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy

#: Flower's logger, whose handler writes to the console.
FLOWER_LOG = logging.getLogger("flwr")

__all__ = [
    "FLOWER_LOG",
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Error",
    "Grid",
    "Message",
    "MetricRecord",
    "NumPyClient",
    "RecordDict",
    "Result",
    "ServerApp",
    "Strategy",
]
