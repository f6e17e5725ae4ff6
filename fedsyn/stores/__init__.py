"""Protected stores of exact answers.

Clients deal into a store once, and only a choice or a noisy marginal comes out.
"""

from __future__ import annotations

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.stores.base import Store
from fedsyn.stores.fhe import FheStore
from fedsyn.stores.mpc import MpcStore
from fedsyn.stores.plain import PlainStore

STORES: dict[str, type[Store]] = {kind.capabilities.name: kind for kind in (PlainStore, MpcStore, FheStore)}


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
    return STORES[node.protocol](config)
