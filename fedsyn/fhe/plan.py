"""Which parameters and which scheme a configuration means; the same at server, clients and crypto party."""

from __future__ import annotations

from fedsyn.config import RunConfig
from fedsyn.counting.stored import StoreFacts
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError
from fedsyn.fhe.bfv import BfvComputation, BfvReader
from fedsyn.fhe.parameters import Parameters, bfv_for_store, bfv_for_sums
from fedsyn.fhe.seal import PublicKeys, SecretKeys
from fedsyn.fhe.slots import SlotLayout

#: Most bytes of ciphertexts in one message: Flower's own limit is 2^31 - 1.
MOST_MESSAGE = 2**31 - 2**27


def parameters_of(config: RunConfig, domain: Domain, facts: StoreFacts | None) -> Parameters:
    """Parameters of a run's ciphertexts; `facts`: of its store, None where it forms sums.

    Raises:
        ConfigError: they do not fit what is secure.
    """
    clients = config.federation.clients
    if facts is None:
        return bfv_for_sums(clients)
    return bfv_for_store(clients, rotates=config.fhe.compute == "naive")


def layout_of(parameters: Parameters, domain: Domain, facts: StoreFacts) -> SlotLayout:
    """Where the store's cells lie."""
    return SlotLayout(facts.cliques, domain, parameters.slots, aligned=parameters.scheme == "ckks")


def reader_of(secret: SecretKeys) -> BfvReader:
    """The key holder's side of the scheme."""
    return BfvReader(secret)


def computation_of(parameters: Parameters, keys: PublicKeys) -> BfvComputation:
    """The server's side of the scheme."""
    return BfvComputation(parameters, keys)


def check_message(size: int) -> None:
    """ConfigError if what one client sends at once is more than Flower carries."""
    if size > MOST_MESSAGE:
        raise ConfigError(
            f"aggregation.protocol: fhe: each client would send {size / 2**20:,.0f} MiB at once, and a message has at "
            f"most {MOST_MESSAGE / 2**20:,.0f}: lower workload.degree, workload.size, data.bins or mechanism.rounds"
        )
