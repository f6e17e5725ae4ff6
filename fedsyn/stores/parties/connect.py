"""Connections to the parties of a run.

They are services where the configuration names them, and states of a simulation elsewhere.
"""

from __future__ import annotations

from pathlib import Path

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.randomness import Randomness
from fedsyn.stores.parties.driven import ComputeParties, CryptoParty
from fedsyn.stores.parties.local import LocalCryptoParty, LocalParties


def connect(config: RunConfig, randomness: Randomness) -> ComputeParties:
    """Returns the three computing parties of a run.

    Args:
        config: of the run.
        randomness: of a simulation's parties; services draw from their own operating system.

    Raises:
        ConfigError: a deployment that names no parties, or no key by which they know its server.
    """
    if config.runtime.engine != "deployment":
        return LocalParties(randomness)
    if config.aggregation.parties is None:
        raise ConfigError("aggregation.parties: a deployment with protocol: mpc needs the cards of its three parties")
    from fedsyn.stores.parties.remote import RemoteParties

    return RemoteParties(config.aggregation.parties, _operator(config))


def connect_crypto(config: RunConfig, randomness: Randomness) -> CryptoParty:
    """Connects to the crypto party of a run with protocol 'fhe'.

    It is a service, or a state of a simulation.
    """
    if config.runtime.engine != "deployment":
        return LocalCryptoParty(randomness)
    if config.aggregation.crypto is None:
        raise ConfigError("aggregation.crypto: a deployment with protocol: fhe needs the card of its crypto party")
    from fedsyn.stores.parties.remote import RemoteCryptoParty

    return RemoteCryptoParty(config.aggregation.crypto, _operator(config))


def _operator(config: RunConfig) -> Path:
    """The folder of the key by which parties know the run's server."""
    if config.runtime.operator is None:
        raise ConfigError("runtime.operator: parties know this server by a key; make it: fedsyn party keygen DIR")
    return Path(config.runtime.operator)
