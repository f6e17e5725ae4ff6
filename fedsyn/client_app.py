"""Flower entry point of the client side.

In a simulation a node is told its `partition-id` and opens that slice of the shared encoded table. In a deployment the
data holder's own node configuration names its table and the schema it approved:

    flower-supernode ... --node-config 'data="/secure/rows.csv" schema="/secure/schema.yaml" epsilon=1.0 delta=1e-5'

Secure sums under the malicious threat model also need `identity` (the holder's own key file) and `roster` (everybody's
public keys, as this holder pinned them); a node that has them takes part in such runs only.

A node with `data` never opens what a server names, refuses seeded noise, and spends at most its own epsilon and delta
in a run (default: the run's). The run's configuration comes from the server too; `config-sha256` pins the one that the
holder agreed to (`RunConfig.sha256`). All of that is code, and Flower runs the code that was submitted with the run: it
binds only if the holder knows that code, by running trusted apps alone (docs/deployment.md).
"""

from __future__ import annotations

import json
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.identities import load_identities, simulated_identities
from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError
from fedsyn.flower import ClientApp, Context
from fedsyn.flower.bridge import bridge, read_state, write_state
from fedsyn.loading import load_config, parse_config
from fedsyn.privacy import PrivacyBudget
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class
from fedsyn.selection.views import PooledView
from fedsyn.wire.holder import Holder

if TYPE_CHECKING:
    from flwr.compat.client.client import Client

    from fedsyn.data.encoded import EncodedTable

APP_DIR = Path(__file__).resolve().parent.parent


def client_fn(context: Context) -> Client:
    """The mechanism's client half for this node's data holder."""
    config = config_of(context.run_config, int(context.node_config.get("num-partitions", 0)))
    text = read_state(context)
    state: dict[str, Any] = json.loads(text) if text else {}
    node = context.node_config
    holder = _real_holder(config, node, state) if "data" in node else _simulated_holder(config, context, state)
    holder.save = lambda kept: write_state(context, json.dumps(kept, separators=(",", ":")))
    return client_class(config.mechanism.name)(config, holder).to_client()


def config_of(run_config: Any, nodes: int = 0) -> RunConfig:
    """The run's configuration from Flower's run config: `resolved` JSON, or a file of this app with assignments.

    Args:
        run_config: of the context.
        nodes: number of simulated nodes. `flwr run` typed by hand decides it before this app is asked, so a simulation
            that was not prepared by `fedsyn run` has that many clients, whatever its file says.
    """
    texts = [str(run_config.get(key, "")) for key in ("resolved", "config", "set")]
    return _config(texts[0], texts[1], texts[2], nodes)


@lru_cache(maxsize=4)
def _config(resolved: str, file: str, assignments: str, nodes: int) -> RunConfig:
    if resolved:
        return parse_config(json.loads(resolved))
    given = [a.strip() for a in assignments.split(";") if a.strip()]
    config = load_config(APP_DIR / file, given)
    if nodes and config.runtime.engine != "deployment":
        config = load_config(APP_DIR / file, [*given, f"federation.clients={nodes}"])
    return config


def store_of(run_config: Any) -> Path:
    """Folder of a simulation's encoded table; for `flwr run` typed by hand, one that both sides derive."""
    if run_config.get("store"):
        return Path(str(run_config["store"]))
    import hashlib

    from fedsyn.data.cache import cache_dir

    named = json.dumps([str(run_config.get(key, "")) for key in ("config", "set")])
    return cache_dir() / "stores" / hashlib.sha256(named.encode()).hexdigest()[:24]


def _simulated_holder(config: RunConfig, context: Context, state: dict[str, Any]) -> Holder:
    if "partition-id" not in context.node_config:
        raise ConfigError("this node has neither 'data' nor 'partition-id' in its node configuration")
    if config.runtime.engine == "deployment":
        raise ConfigError("a deployment's node needs 'data' and 'schema' in its node configuration")
    partition = int(context.node_config["partition-id"])
    folder = store_of(context.run_config)
    table, schema_hash = _open_store(str(folder), (folder / "prepared.json").stat().st_mtime_ns)
    return Holder(
        partition,
        table.rows(partition),
        table.domain,
        schema_hash,
        Randomness(config.runtime.seed),
        state,
        pooled=partial(_pooled, table),
        identities=partial(simulated_identities, partition, table.clients),
    )


@lru_cache(maxsize=4)
def _open_store(folder: str, modified: int) -> tuple[EncodedTable, str]:
    """The clients' shared table, mapped once per process, and the hash of its schema."""
    from fedsyn.data.encoded import EncodedTable
    from fedsyn.schema import Schema

    return EncodedTable(folder), Schema.load(Path(folder) / "schema.yaml").sha256


@lru_cache(maxsize=2)
def _pooled(table: EncodedTable) -> PooledView:
    """All clients' rows together, which exist in one place in a simulation only; counted once per process."""
    return PooledView(table.pooled(), table.domain)


def _real_holder(config: RunConfig, node: Any, state: dict[str, Any]) -> Holder:
    if config.runtime.engine != "deployment":
        raise ConfigError("this node holds real rows: the run's runtime.engine must be 'deployment'")
    if config.runtime.seed is not None:
        raise ConfigError("this node holds real rows and refuses a seeded run")
    _require_agreed(config, node)
    if "schema" not in node:
        raise ConfigError("a node with 'data' needs the schema that its holder approved, as 'schema'")
    codes, domain, schema_hash = _load_rows(str(node["data"]), str(node["schema"]), config.data.bins, config.data.label)
    partition = int(node["partition-id"]) if "partition-id" in node else None
    budget = PrivacyBudget(
        min(config.privacy.epsilon, float(node.get("epsilon", config.privacy.epsilon))),
        min(config.privacy.delta, float(node.get("delta", config.privacy.delta))),
    )
    holder = Holder(partition, codes, domain, schema_hash, Randomness(None), state, budget)
    if "identity" in node or "roster" in node:
        if "identity" not in node or "roster" not in node:
            raise ConfigError("a node needs both 'identity' and 'roster', or neither, in its node configuration")
        holder.identities = partial(load_identities, str(node["identity"]), str(node["roster"]))
    return holder


def _require_agreed(config: RunConfig, node: Any) -> None:
    """Refuses a run that protects less than the holder asked for: its configuration comes from the server."""
    if "config-sha256" in node and str(node["config-sha256"]) != config.sha256:
        raise ConfigError(
            "this node's holder agreed to another configuration than the run's (see config-sha256 of the node)"
        )
    pinned = "identity" in node or "roster" in node
    if pinned and (config.aggregation.protocol, config.aggregation.threat) != ("secagg", "malicious"):
        raise ConfigError(
            "this node has an identity and a roster: it takes part in runs with aggregation.protocol: secagg and "
            "aggregation.threat: malicious only"
        )


@lru_cache(maxsize=2)
def _load_rows(
    data: str, schema_file: str, bins: int | None, label: str | None
) -> tuple[npt.NDArray[np.integer], Domain, str]:
    """The holder's own rows, encoded by its own schema; read once per process."""
    from fedsyn.data.readers import read_table
    from fedsyn.schema import Schema

    schema = Schema.load(schema_file)
    schema.require_approved()
    schema = schema.adjusted(bins, label)
    return schema.encode(read_table(data, schema)), schema.domain, schema.sha256


app = ClientApp(client_fn=client_fn, mods=[bridge])
