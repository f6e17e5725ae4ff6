"""Ciphertext parameters and columns that a configuration implies.

They are the same at server, clients and crypto party.
"""

from __future__ import annotations

from fedsyn.config import RunConfig
from fedsyn.crypto.fhe.parameters import Parameters, bfv_for_store
from fedsyn.crypto.fhe.products import ColumnLayout
from fedsyn.crypto.fhe.slots import SlotLayout
from fedsyn.domain import Domain
from fedsyn.errors import ProtocolError, refuse
from fedsyn.registry import contract_class
from fedsyn.settings import FheNode

_MOST_ROWS = 2**24
_MOST_PRODUCTS = 2**16  # of one client, 64 of which come back in a piece


def holders_of(config: RunConfig) -> int:
    """Clients that deal: one where the mechanism has one holder by design."""
    return 1 if contract_class(config.mechanism.name).central else config.federation.clients


def message_of(node: FheNode, sent: int, planes: int, layout: SlotLayout, parameters: Parameters) -> float:
    """Returns the bytes of one client's message, without its box.

    It holds ciphertexts of counts or of columns.
    """
    if node.is_bound:
        return float(sent * parameters.bytes + 8 * (layout.entries + planes * layout.noisy))
    return float((sent + planes) * parameters.bytes)


def parameters_of(config: RunConfig) -> Parameters:
    """Parameters of the ciphertexts of a run's store.

    Raises:
        ConfigError: they do not fit what is secure.
    """
    clients = config.federation.clients
    if config.fhe.compute == "client":
        return bfv_for_store(clients)
    # Columns of up to 2^24 rows (`columns_of` refuses more), whose sums come back in up to 2^10 pieces a client.
    return bfv_for_store(clients * 2**10, 2**10)


def columns_of(config: RunConfig, domain: Domain, partition: int, rows: int, slots: int) -> ColumnLayout:
    """Returns how a client's one-hot columns lie in ciphertexts.

    The client has `rows` rows.

    Raises:
        ProtocolError: columns are split over holders, and it is none of them.
    """
    held, split = tuple(domain), config.federation.columns
    if split is not None:
        if not 0 <= partition < len(split):
            raise ProtocolError(f"federation.columns names the attributes of clients 0 to {len(split) - 1}")
        held = tuple(name for name in domain if name in split[partition])
    refuse(rows > _MOST_ROWS, f"encrypted columns have at most {_MOST_ROWS} rows")
    layout = ColumnLayout.of(rows, slots, domain, held)
    if len(layout.columns) * (len(layout.groups) + 1) > _MOST_PRODUCTS:
        raise ProtocolError(f"{len(layout.columns)} encrypted columns make too many products: lower data.bins")
    return layout
