"""Protected stores of exact answers.

Clients deal into a store once, and only a choice or a noisy marginal comes out.
"""

from __future__ import annotations

from fedsyn.capabilities import FHE, MPC, PLAIN
from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.registry import load
from fedsyn.stores.base import Store

#: Protocol -> the path of its store. A run imports its own: two of them bring certificates and parties along.
STORES: dict[str, str] = {
    PLAIN.name: "fedsyn.stores.plain:PlainStore",
    MPC.name: "fedsyn.stores.mpc:MpcStore",
    FHE.name: "fedsyn.stores.fhe:FheStore",
}


def store_class(protocol: str) -> type[Store]:
    """Returns the class of a protocol's store."""
    kind: type[Store] = load(STORES[protocol], "aggregation.protocol")
    return kind


def make_store(config: RunConfig) -> Store:
    """The store that a configuration asks for.

    Raises:
        ConfigError: the protocol has no store.
    """
    node = config.aggregation
    if node.protocol not in STORES:
        raise ConfigError(
            f"aggregation.protocol: '{node.protocol}' has no store, it forms sums only; this mechanism chooses from a "
            f"store: allowed: {', '.join(STORES)}"
        )
    return store_class(node.protocol)(config)
