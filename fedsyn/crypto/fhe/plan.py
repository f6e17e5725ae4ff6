"""Which parameters and which scheme a configuration means; the same at server, clients and crypto party."""

from __future__ import annotations

from collections.abc import Sequence

from fedsyn.config import RunConfig
from fedsyn.crypto.fhe.bfv import BfvComputation, BfvReader
from fedsyn.crypto.fhe.ckks import CkksComputation, CkksReader
from fedsyn.crypto.fhe.parameters import (
    CKKS_GRID,
    Parameters,
    bfv_for_store,
    ckks_for_store,
)
from fedsyn.crypto.fhe.products import ColumnLayout, Columns, NaiveProducts, Products, Refresh
from fedsyn.crypto.fhe.seal import PublicKeys, SecretKeys
from fedsyn.crypto.fhe.slots import SlotLayout
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.registry import contract_class
from fedsyn.selection.terms import L1Polynomial
from fedsyn.settings import FheNode
from fedsyn.table.counting.stored import StoreFacts

_MOST_ROWS = 2**24
_MOST_PRODUCTS = 2**16  # of one client, 64 of which come back in a piece


def holders_of(config: RunConfig) -> int:
    """Clients that deal: one where the mechanism has one holder by design."""
    return 1 if contract_class(config.mechanism.name).central else config.federation.clients


def message_of(node: FheNode, sent: int, planes: int, layout: SlotLayout, parameters: Parameters) -> float:
    """Bytes of one client's message with its ciphertexts of counts or columns, without its box."""
    if node.is_bound:
        return float(sent * parameters.bytes + 8 * (layout.entries + planes * layout.noisy))
    return float((sent + planes) * parameters.bytes)


def parameters_of(config: RunConfig, domain: Domain, facts: StoreFacts) -> Parameters:
    """Parameters of the ciphertexts of a run's store.

    Raises:
        ConfigError: they do not fit what is secure.
    """
    clients = config.federation.clients
    if config.fhe.scheme == "ckks":
        polynomial = facts.norm == L1Polynomial.name
        largest = max(domain.size(clique) for clique in facts.cliques)
        rotations = max(1, (largest - 1).bit_length())
        if largest > 2**13:
            raise ConfigError(
                f"aggregation.fhe.scheme: ckks has no room for a clique of {largest} cells, at most 8192: use bfv, or "
                "lower workload.degree or data.bins"
            )
        return ckks_for_store(clients, 5, rotations, 1) if polynomial else ckks_for_store(clients, 2, rotations)
    if config.fhe.compute == "client":
        return bfv_for_store(clients)
    # Columns of up to 2^24 rows (`columns_of` refuses more), whose sums come back in up to 2^10 pieces a client.
    return bfv_for_store(clients * 2**10, 2**10, config.fhe.compute == "naive")


def layout_of(parameters: Parameters, domain: Domain, facts: StoreFacts) -> SlotLayout:
    """Where the store's cells lie."""
    return SlotLayout(facts.cliques, domain, parameters.slots, aligned=parameters.scheme == "ckks")


def reader_of(secret: SecretKeys) -> BfvReader | CkksReader:
    """The key holder's side of the scheme."""
    return BfvReader(secret) if secret.ring.is_exact else CkksReader(secret)


def computation_of(parameters: Parameters, keys: PublicKeys) -> BfvComputation | CkksComputation:
    """The server's side of the scheme."""
    return (BfvComputation if parameters.scheme == "bfv" else CkksComputation)(parameters, keys)


def unit_of(parameters: Parameters, resolution: int) -> int:
    """Integer steps of a record in what the key holder opens."""
    return resolution if parameters.scheme == "bfv" else CKKS_GRID


def columns_of(config: RunConfig, domain: Domain, partition: int, rows: int, slots: int) -> ColumnLayout:
    """How the one-hot columns of a client with `rows` rows lie in ciphertexts.

    Raises:
        ProtocolError: columns are split over holders, and it is none of them.
    """
    held, split = tuple(domain), config.federation.columns
    if split is not None:
        if not 0 <= partition < len(split):
            raise ProtocolError(f"federation.columns names the attributes of clients 0 to {len(split) - 1}")
        held = tuple(name for name in domain if name in split[partition])
    if rows > _MOST_ROWS:
        raise ProtocolError(f"encrypted columns have at most {_MOST_ROWS} rows")
    layout = ColumnLayout.of(rows, slots, domain, held, packed=config.fhe.compute == "packed")
    if len(layout.columns) * (len(layout.groups) + 1) > _MOST_PRODUCTS:
        raise ProtocolError(f"{len(layout.columns)} encrypted columns make too many products: lower data.bins")
    return layout


def products_of(
    config: RunConfig,
    computation: BfvComputation,
    entities: Sequence[Columns],
    domain: Domain,
    layout: SlotLayout,
    refresh: Refresh,
) -> Products:
    """COMPUTE, as the configuration wants it."""
    made = NaiveProducts if config.fhe.compute == "naive" else Products
    return made(computation, entities, domain, layout, refresh)
