"""Which parties a run has: services where the configuration names them, states of a simulation elsewhere."""

from __future__ import annotations

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.nodes.parties.interface import CryptoParty, Parties
from fedsyn.randomness import Randomness


def connect(config: RunConfig, randomness: Randomness) -> Parties:
    """The three parties of a run.

    Args:
        config: of the run.
        randomness: of a simulation's parties; services draw from their own operating system.

    Raises:
        ConfigError: a deployment that names no parties, or no key by which they know its server.
    """
    if config.runtime.engine != "deployment":
        from fedsyn.nodes.parties.local import LocalParties

        return LocalParties(randomness)
    if config.aggregation.parties is None:
        raise ConfigError("aggregation.parties: a deployment with protocol: mpc needs the cards of its three parties")
    if config.runtime.operator is None:
        raise ConfigError("runtime.operator: the parties know this server by a key; make it: fedsyn party keygen DIR")
    from fedsyn.nodes.parties.remote import RemoteParties

    return RemoteParties(config.aggregation.parties, config.runtime.operator)


def connect_crypto(config: RunConfig, randomness: Randomness) -> CryptoParty:
    """The crypto party of a run with protocol 'fhe': a service, or a state of a simulation.

    Args:
        config: of the run.
        randomness: of a simulation's party; a service draws from its own operating system.

    Raises:
        ConfigError: a deployment that names no crypto party, or no key by which it knows its server.
    """
    if config.runtime.engine != "deployment":
        from fedsyn.nodes.parties.local import LocalCryptoParty

        return LocalCryptoParty(randomness)
    if config.aggregation.crypto is None:
        raise ConfigError("aggregation.crypto: a deployment with protocol: fhe needs the card of its crypto party")
    if config.runtime.operator is None:
        raise ConfigError("runtime.operator: parties know this server by a key; make it: fedsyn party keygen DIR")
    from fedsyn.nodes.parties.remote_crypto import RemoteCryptoParty

    return RemoteCryptoParty(config.aggregation.crypto, config.runtime.operator)
