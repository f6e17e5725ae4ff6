"""Which parties a run has: services where the configuration names them, states of a simulation elsewhere."""

from __future__ import annotations

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.parties.interface import Parties
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
        from fedsyn.parties.local import LocalParties

        return LocalParties(randomness)
    if config.aggregation.parties is None:
        raise ConfigError("aggregation.parties: a deployment with protocol: mpc needs the cards of its three parties")
    if config.runtime.operator is None:
        raise ConfigError("runtime.operator: the parties know this server by a key; make it: fedsyn party keygen DIR")
    from fedsyn.parties.remote import RemoteParties

    return RemoteParties(config.aggregation.parties, config.runtime.operator)
