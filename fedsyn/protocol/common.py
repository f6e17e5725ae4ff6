"""Requests that every mechanism understands, the records of the client half's own answers; what a refusal tells."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from fedsyn.errors import BudgetExceeded, ConfigError, FedsynError, NodeError, ProtocolError
from fedsyn.privacy import GAUSSIAN, Release
from fedsyn.protocol.contract import Contract as BaseContract
from fedsyn.wire.requests import AskRequest, CandidateIndices, Layout, Positive, SumRequest

_log = logging.getLogger("fedsyn")


class Join(AskRequest):
    """Who are you, and do you know this schema?"""

    name = "join"
    takes_part = False
    leaves = "its partition id; its row count where sizes are public"
    costs = "nothing: no reply depends on a row, beyond a count that is public"

    schema_hash: str

    def releases(self, contract: BaseContract) -> tuple[Release, ...]:
        return ()


class Sizes(AskRequest):
    """The client's row count with Gaussian noise, once in a run (`client_sizes: private`)."""

    name = "sizes"
    takes_part = False
    leaves = "its row count with Gaussian noise, once"
    costs = "rho 1/(2 sigma^2), mu^2 twice that: one row changes the count by exactly 1"

    sigma: Positive

    def releases(self, contract: BaseContract) -> tuple[Release, ...]:
        return (Release(self.name, 0, GAUSSIAN, 1.0, sigma=self.sigma, noise_by="each client", replaced=0.0),)


class Rows(SumRequest):
    """How many rows all clients have, where a whole client is protected and no client scores by its own count."""

    name = "rows"
    takes_part = False
    leaves = "its count of rows that take part, in a sum; once"
    costs = "rho 1/(2 sigma^2), mu^2 twice that: one row changes the count by exactly 1"

    def layout(self, contract: BaseContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """A client's rows exchanged for others: its two counts lie between 0 and its most, so no farther apart."""
        return Layout.of_vector(1, 1.0, replaced=1.0)


class OneWay(SumRequest):
    """All one-way marginals."""

    name = "one-way"
    leaves = "the counts of every attribute, in a sum"
    costs = "d marginals of sensitivity 1: rho d/(2 sigma^2), mu^2 twice that"

    def layout(self, contract: BaseContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        return Layout.of_marginals(contract.domain, [(name,) for name in contract.domain])


class Marginals(SumRequest):
    """The marginals of some candidates."""

    name = "measure"
    leaves = "the counts of the chosen cliques, in a sum"
    costs = "each marginal has sensitivity 1: rho 1/(2 sigma^2), mu^2 twice that"

    cliques: CandidateIndices

    def layout(self, contract: BaseContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        return Layout.of_marginals(contract.domain, [contract.candidates.cliques[i] for i in self.cliques])


def told(error: Exception) -> dict[str, str]:
    """What a server may know of a failed request: the text of errors about requests and sums, the type of any other."""
    if isinstance(error, BudgetExceeded):  # its own text names the holder's limits
        return {"error": "budget", "message": "the release would exceed what this holder allows; nothing was released"}
    kinds: tuple[tuple[type[FedsynError], str], ...] = (
        (ProtocolError, "protocol"),
        (NodeError, "client"),
        (ConfigError, "client"),  # of a sum that cannot be formed: public numbers
    )
    for wanted, kind in kinds:
        if isinstance(error, wanted):
            return {"error": kind, "message": str(error)}
    # A message of an unexpected exception may quote data: only its type leaves the client.
    _log.error("fedsyn: a request could not be answered; the server is told the kind of error only", exc_info=error)
    return {"error": "client", "message": f"unexpected {type(error).__name__}"}
