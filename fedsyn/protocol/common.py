"""Requests that every mechanism understands, the records of the client half's own answers; what a refusal tells."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedsyn.aggregation import Contribution
from fedsyn.errors import BudgetExceeded, CannotWrite, ConfigError, ProtocolError
from fedsyn.evaluation.federated.question import TableQuestion
from fedsyn.evaluation.federated.statistics import Entries, vector
from fedsyn.output import log_failure
from fedsyn.privacy import GAUSSIAN, Release
from fedsyn.privacy.release import COUNTS
from fedsyn.privacy.unit import ROW_COUNTS
from fedsyn.protocol.capping import grid, place
from fedsyn.protocol.contract import Contract as BaseContract
from fedsyn.protocol.wire.holder import MOST_PARTITIONS
from fedsyn.protocol.wire.requests import AskRequest, CandidateIndices, Layout, Positive, SumRequest

_log = logging.getLogger("fedsyn")
_LARGEST_COUNT = 2.0**53


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


class RowTotal(SumRequest):
    """How many rows all clients have, where a whole client is protected and no client scores by its own count."""

    name = "rows"
    takes_part = False
    leaves = "its count of rows that take part, in a sum; once"
    costs = "rho 1/(2 sigma^2), mu^2 twice that: one row changes the count by exactly 1"

    def layout(self, contract: BaseContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """A client's rows exchanged for others: its two counts lie between 0 and its most, so no farther apart."""
        return Layout.of_vector(1, 1.0, replaced=1.0)


class RowCounts(SumRequest):
    """How many clients have how many rows, where that says with how many of them a client takes part; once, first."""

    name = ROW_COUNTS
    takes_part = False
    leaves = "in which cell of a public grid its row count lies, in a sum; once"
    costs = "rho 1/(2 sigma^2), mu^2 twice that, of a client, not of a row: a client is 1 in one cell, or in none"

    def layout(self, contract: BaseContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """ONE vector, which a CLIENT moves by 1 in L2 norm, and by sqrt(2) if its number of rows changes."""
        return Layout.of_vector(len(grid(contract.config.privacy.largest_cap)), 1.0, replaced=COUNTS)

    def contribution(self, contract: BaseContract, rows: int) -> Contribution:
        """What a client with this many rows sends."""
        cells = grid(contract.config.privacy.largest_cap)
        vector, own = np.zeros(len(cells), np.int64), place(rows, cells)
        if own is not None:
            vector[own] = 1
        return Contribution.of_vector(vector, self.layout(contract, ()))


class Cap(AskRequest):
    """With how many rows a client takes part at most, and the released counts from which that follows; once."""

    name = "cap"
    takes_part = False
    leaves = "nothing"
    costs = "nothing: the reply depends on no row"

    rows: Annotated[int, Field(strict=True, ge=1, le=10**6, description="of a client, at most")]
    sigma: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="of the noise on the counts, which come along")
    ]
    clients: Annotated[int, Field(strict=True, ge=1, le=MOST_PARTITIONS, description="whose counts these are")]

    def releases(self, contract: BaseContract) -> tuple[Release, ...]:
        return ()

    def require_found(self, contract: BaseContract, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """ProtocolError unless the rule gives this number for the counts that came along."""
        cells = len(grid(contract.config.privacy.largest_cap))
        if [(array.dtype, array.shape) for array in arrays] != [(np.dtype(np.float64), (cells,))]:
            raise ProtocolError("the request does not bring one count for each cell of the grid of row counts")
        counts = [float(count) for count in arrays[0]]
        if not all(abs(count) < _LARGEST_COUNT for count in counts):
            raise ProtocolError("the counts of clients are no numbers, or larger than any")
        if contract.cap_from(counts, self.sigma, self.clients) != self.rows:
            raise ProtocolError("the rule gives a different number of rows per client for the released counts")


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


class Evaluate(SumRequest):
    """How far the holders' rows are from the synthetic table, how many rows a classifier trained on it gets right."""

    name = "evaluate"
    takes_part = False
    leaves = "overlaps of its marginals with the table's, distances of its range counts, rows predicted right, in a sum"
    costs = (
        "one vector; what a row moves each entry by at most is fixed: rho S^2/(2 sigma^2) with S^2 the sum of squares"
    )

    total: Annotated[float, Field(gt=0, le=2.0**32, description="rows of all holders, public or released")]
    even: Annotated[float, Field(gt=0, le=2.0**32, description="rows of each, where nobody's own count is known")]
    label: Annotated[int, Field(ge=0, description="the column that the classifier predicts, from 1; 0: none")]

    def question(self, contract: BaseContract, arrays: Sequence[npt.NDArray[Any]]) -> TableQuestion:
        """What is asked. Raises ProtocolError if the run does not ask, or the arrays are not a question."""
        if not contract.config.evaluation.federated:
            raise ProtocolError("this run's configuration does not ask its holders how good the table is")
        return TableQuestion.read(contract.domain, contract.workload, arrays, self.label - 1 if self.label else None)

    def layout(self, contract: BaseContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """ONE vector; a row moves each entry by its own bound at most (`fedsyn.evaluation.federated.statistics`)."""
        entries = entries_of(contract, self.question(contract, arrays))
        return Layout.of_vector(len(entries.moves), entries.sensitivity, magnitude=float(max(entries.moves)))

    def contribution(
        self,
        contract: BaseContract,
        arrays: Sequence[npt.NDArray[Any]],
        codes: npt.NDArray[np.integer],
        size: float,
        apart: npt.NDArray[np.integer],
    ) -> Contribution:
        """What a holder of these rows, and of those apart, contributes; `size`: its public or released row count."""
        question = self.question(contract, arrays)
        found = vector(question, entries_of(contract, question), codes, size, self.total, apart)
        return Contribution.of_vector(found, self.layout(contract, arrays))


def entries_of(contract: BaseContract, question: TableQuestion) -> Entries:
    """The entries of the vector: with the row count unless that is public, and with held-out rows if there are any."""
    config = contract.config
    return Entries.of(question, config.privacy.client_sizes != "public", config.evaluation.held_out > 0)


def told(error: Exception) -> dict[str, str]:
    """What a server may know of a failed request: the text of errors about requests and sums, the type of any other."""
    if isinstance(error, BudgetExceeded):  # its own text names the holder's limits
        return {"error": "budget", "message": "the release would exceed what this holder allows; nothing was released"}
    if isinstance(error, ProtocolError | ConfigError):  # the last of a sum's public numbers
        return {"error": "protocol" if isinstance(error, ProtocolError) else "client", "message": str(error)}
    # A message of an unexpected exception may quote data: only its type leaves the client.
    log_failure(_log, "fedsyn: a request could not be answered", error)
    if isinstance(error, CannotWrite):
        return {"error": "client", "message": error.told}
    return {"error": "client", "message": f"unexpected {type(error).__name__}"}
