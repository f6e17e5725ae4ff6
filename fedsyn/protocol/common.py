"""Requests that every mechanism understands.

The base class of clients answers them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedsyn.aggregation import Contribution
from fedsyn.errors import ProtocolError
from fedsyn.evaluation.federated.question import MOST_ROWS, TableQuestion
from fedsyn.evaluation.federated.statistics import UNIT, Entries, vector
from fedsyn.privacy import Release
from fedsyn.privacy.release import COUNTS
from fedsyn.protocol.contract import Contract as BaseContract
from fedsyn.protocol.plan import Step, most_cells
from fedsyn.wire.envelope import check_message
from fedsyn.wire.requests import AskRequest, CandidateIndices, Layout, Positive, Request, SumRequest

_log = logging.getLogger("fedsyn")


class Join(AskRequest):
    """Asks a client who it is, and for its schema's hash."""

    name = "join"
    takes_part = False
    leaves = "its partition id; its row count where sizes are public"
    costs = "nothing: no reply depends on a row, beyond a count that is public"

    schema_hash: str

    def releases(self, contract: BaseContract) -> tuple[Release, ...]:
        return ()


class Sizes(AskRequest):
    """The client's row count with Gaussian noise.

    It is released once in a run (`client_sizes: private`).
    """

    name = "sizes"
    takes_part = False
    leaves = "its row count with Gaussian noise, once"
    costs = "rho 1/(2 sigma^2), mu^2 twice that: one row changes the count by exactly 1"

    sigma: Positive

    def releases(self, contract: BaseContract) -> tuple[Release, ...]:
        return (replace(self.noisy(self.sigma), replaced=0.0),)


class RowTotal(SumRequest):
    """Row count of all clients together.

    Runs ask for it that protect a whole client and in which no client scores by its own count.
    """

    name = "rows"
    takes_part = False
    leaves = "its count of rows that take part, in a sum; once"
    costs = "rho 1/(2 sigma^2), mu^2 twice that: one row changes the count by exactly 1"

    def layout(self, contract: BaseContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout of one count per client.

        If a client's rows are exchanged for others, both counts lie between 0 and its most, so no farther apart.
        """
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

    @classmethod
    def largest(cls, contract: BaseContract) -> Iterable[Layout]:
        """Returns the layout of all cells that a model can take.

        Its noise is that of one marginal that has the whole budget to itself.
        """
        return [Layout(((most_cells(contract),),), 1, replaced=COUNTS)]


class Evaluate(SumRequest):
    """Distances of the holders' rows from the synthetic table.

    It also counts the rows that a classifier trained on the table gets right.
    """

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
        """Returns the question about the table.

        It raises ProtocolError if the run does not ask, or the arrays are not a question.
        """
        if not contract.config.evaluation.federated:
            raise ProtocolError("this run's configuration does not ask its holders how good the table is")
        return TableQuestion.read(contract.domain, contract.workload, arrays, self.label - 1 if self.label else None)

    def layout(self, contract: BaseContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout of ONE vector.

        A row moves each entry by its own bound at most (`fedsyn.evaluation.federated.statistics`).
        """
        entries = entries_of(contract, self.question(contract, arrays))
        return Layout.of_vector(len(entries.moves), entries.sensitivity, magnitude=float(max(entries.moves)))

    @classmethod
    def largest(cls, contract: BaseContract) -> Iterable[Layout]:
        d = len(contract.domain)
        check_message(2.0 * d * MOST_ROWS, "evaluation.federated")
        return [Layout.of_vector(d + 6, float(UNIT), magnitude=float(UNIT))]

    def contribution(
        self,
        contract: BaseContract,
        arrays: Sequence[npt.NDArray[Any]],
        codes: npt.NDArray[np.integer],
        size: float,
        apart: npt.NDArray[np.integer],
    ) -> Contribution:
        """Returns the contribution of a holder of these rows.

        `apart` are its rows set apart; `size` is its public or released row count.
        """
        question = self.question(contract, arrays)
        answers = vector(question, entries_of(contract, question), codes, size, self.total, apart)
        return Contribution.of_vector(answers, self.layout(contract, arrays))


def entries_of(contract: BaseContract, question: TableQuestion) -> Entries:
    """Returns the entries of the vector.

    They include the row count unless that is public, and held-out rows if there are any.
    """
    config = contract.config
    return Entries.of(question, config.privacy.client_sizes != "public", config.evaluation.held_out > 0)


def beside(contract: BaseContract) -> dict[type[Request], Step]:
    """Returns the steps of every run that no mechanism plans.

    They are row counts before the mechanism, and evaluation after it.
    """
    sizes = contract.budget.sizes
    steps = (Step(Sizes, sizes), Step(RowTotal, sizes), Step(Evaluate, contract.budget.evaluation))
    return {step.request: step for step in steps}
