"""The client side of the contest: one app that answers fedsyn's server and Flower's workflows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.client.mod import secaggplus_mod
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.compat.client.client import Client
from flwr.compat.client.numpy_client import NumPyClient

from fedsyn.flower import ClientApp, Context, Message
from fedsyn.flower.direct import answered
from fedsyn.wire.envelope import ENVELOPE

from .vector import counts, from_text, make_client


class FloatVector(NumPyClient):
    """Returns its vector as floats, with weight 1, as a client of Flower's federated averaging."""

    def __init__(self, partition: int, length: int) -> None:
        self.partition, self.length = partition, length

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        return [counts(self.partition, self.length).astype(np.float64)], 1, {}


def flower_client(context: Context) -> Client:
    facts, _ = next(iter(from_text(str(context.run_config["facts"])).values()))
    return FloatVector(int(context.node_config["partition-id"]), facts.length).to_client()


flower_plain = ClientApp(client_fn=flower_client)
flower_secure = ClientApp(client_fn=flower_client, mods=[secaggplus_mod])


def choose(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Gives a message to the client half of the side that sent it."""
    records = message.content
    if "config" in records and ENVELOPE in records["config"]:
        configs = from_text(str(context.run_config["facts"]))
        _, config = configs[json.loads(str(records["config"][ENVELOPE]))["config"]]
        partition = int(context.node_config["partition-id"])
        return answered(lambda context: make_client(config, partition, context), message, context)
    return (flower_secure if RECORD_KEY_CONFIGS in records else flower_plain)(message, context)


app = ClientApp(client_fn=flower_client, mods=[choose])
