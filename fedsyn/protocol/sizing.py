"""What a run finds out of row counts before its mechanism: with how many rows a client takes part, how many there are.

The server's steps, and what a client refuses. The grid of the first, the rule and why it is private stand in
`fedsyn.protocol.capping`; what the server makes of the second in `fedsyn.protocol.joining`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np

from fedsyn.errors import ProtocolError, RunError
from fedsyn.privacy import sigma_for_rho
from fedsyn.privacy.unit import UNCAPPED
from fedsyn.protocol import joining
from fedsyn.protocol.capping import left_out
from fedsyn.protocol.common import Cap, Join, RowCounts, RowTotal, Sizes
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.joining import Participant
from fedsyn.protocol.wire.requests import Ask, Request, Sum, Summed, Yielded

#: Of the holder's state: with how many rows it takes part, where that was found.
CAP = "cap"


def found_cap(
    contract: Contract, clients: Mapping[int, Participant], rho: float
) -> Generator[Yielded, Any, tuple[Contract, dict[int, Participant], str]]:
    """Asks for the counts, applies the rule, and tells everybody; at a cost of rho to a client.

    Gives the contract with the cap, the clients that know of it, and a note of released facts.

    Raises:
        RunError: too few clients contributed, or could be told.
    """
    everyone = sorted(clients)
    sums: Summed = yield Sum(everyone, RowCounts(), sigma_for_rho(rho))
    if not sums.opened:
        raise RunError("too few clients contributed to the counts by which rows per client are found")
    counts, sigma, number = [float(x) for x in sums.arrays[0]], float(sums.sigmas[0]), len(sums.contributors)
    cap = contract.cap_from(counts, sigma, number)
    replies = yield Ask(everyone, Cap(rows=cap, sigma=sigma, clients=number), [np.array(counts)])
    share = left_out(cap, counts, sigma, number, contract.config.privacy.largest_cap)
    note = f"found: at most {cap:,} rows of a client take part, which leaves out about {share:.0%} of the rows, or more"
    told = {k: client for k, client in clients.items() if k in replies}
    _require_enough(contract, told, "could be told how many of their rows take part")
    return contract.capped(cap), told, note


def released_sizes(
    contract: Contract, clients: Mapping[int, Participant], rho: float, drop: Callable[[int, str], None]
) -> Generator[Yielded, Any, dict[int, Participant]]:
    """Asks for each client's row count, or for the sum of all, at a cost of rho to a row; gives the clients with it.

    One row sits at one client, so the releases of all clients together cost one of them (parallel composition).

    Raises:
        RunError: too few clients contributed to the sum, or released a number.
    """
    sigma, everyone = sigma_for_rho(rho), sorted(clients)
    if contract.sums_rows:
        return joining.with_even_sizes(clients, (yield Sum(everyone, RowTotal(), sigma)))
    replies = yield Ask(everyone, Sizes(sigma=sigma))
    known = joining.with_released_sizes(clients, replies, sigma, drop)
    _require_enough(contract, known, "released their size")
    return known


def _require_enough(contract: Contract, clients: Mapping[int, Participant], what: str) -> None:
    if len(clients) < max(1, contract.config.federation.minimum_cohort):
        raise RunError(f"too few clients {what}")


def require_cap(request: type[Request], contract: Contract) -> None:
    """Refuses what a client is asked before it knows how many of its rows take part, or is asked of that afterwards.

    Raises:
        ProtocolError: it is; only public facts are looked at.
    """
    finds = request in (RowCounts, Cap)
    if finds and not contract.finds_cap:
        raise ProtocolError("how many rows of a client take part is not found in this run")
    if finds and contract.unit is not UNCAPPED:
        raise ProtocolError("how many rows of a client take part was found in this run, once")
    if not finds and contract.unit is UNCAPPED and request is not Join:
        raise ProtocolError("how many rows of a client take part is to be found before anything else")


__all__ = ["CAP", "found_cap", "released_sizes", "require_cap"]
