"""The client half of central PrivSyn, shared with HeteroFedSyn.

Zhang et al. 2021, "PrivSyn: Differentially Private Data Synthesis". The server half is `strategies/privsyn.py`.
Everything here is the exact part of a sum: who adds the noise is the configuration's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, model_validator

from fedsyn.inference import Hierarchy
from fedsyn.mechanism import (
    COUNTS,
    Call,
    Clique,
    Contract,
    Contribution,
    Field,
    Layout,
    Node,
    PairIndices,
    PrivacyStatement,
    ProtocolError,
    Step,
    SumRequest,
    TableClient,
    answers,
)
from fedsyn.selection.indif import INDIF_SENSITIVITY, INDIF_UNIT, all_pairs, indif
from fedsyn.selection.scores import Penalty
from fedsyn.table.counting.marginals import count, count_one_way, split_one_way

#: Of a weight, so that a weighted count stays far below 2^53.
LARGEST_WEIGHT = 1 << 16
Weight = Annotated[int, Field(ge=1, le=LARGEST_WEIGHT)]
#: Of all pairs that one request asks for: 128 megabytes of counts.
MOST_CELLS = 1 << 24


class PairOptions(Node):
    """Options of central PrivSyn, and of every mechanism that measures pairs.

    Attributes:
        one_way_share: q, share of the budget for the one-way marginals; far above the papers' tenth: their noise is the
            larger part of the error in range queries and Wasserstein distance (docs/mechanisms/privsyn.md).
        score_share: q, share of the budget for the dependency scores .
        penalty: the noise error psi of a pair: that of all its 'cells', as in Eq. 1, or of the 'effective' ones, which
            carry the product of its one-way marginals. Where those have no mass, consistent and non-negative marginals
            have no noise either.
        noise_weight: what a noise error counts beside a dependency error of the same size.
        synthesizer: 'gum' (PrivSyn's rows) or 'pgm' (`fedsyn.inference`, pairs that its junction tree can hold).
        gum_iterations: of the row updates; null: 50, and fewer of more than 400 selected pairs (wide tables).
        iterations: of PGM's fit between selections.
        final_iterations: of PGM's last fit.
    """

    one_way_share: float = Field(default=0.5, gt=0, lt=1)
    score_share: float = Field(default=0.1, gt=0, lt=1)
    penalty: Penalty = "effective"
    noise_weight: float = Field(default=1.0, gt=0)
    synthesizer: Literal["gum", "pgm"] = "gum"
    gum_iterations: int | None = Field(default=None, ge=1)
    iterations: int = Field(default=50, ge=1)
    final_iterations: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.one_way_share + self.score_share >= 1:
            raise ValueError("one_way_share and score_share must leave something for the pairs")
        return self


class PairScores(SumRequest):
    """Base of the statistics that pairs' dependency scores need."""

    pairs: PairIndices

    @classmethod
    def largest(cls, contract: PairContract) -> Iterable[Layout]:
        """The scores of one pair, and of all."""
        return [cls(pairs=list(some)).layout(contract, ()) for some in (contract.measurable[:1], contract.measurable)]


class InDifs(PairScores):
    """InDif of some pairs, each times a public integer and rounded.

    Section 4.1 of Zhang et al. 2021 has InDif.
    """

    name = "indif"
    leaves = "its dependency scores, rounded, in a sum"
    costs = "one vector of L2 sensitivity S = 4 sqrt(m) for m pairs: mu^2 = S^2/sigma^2"

    def layout(self, contract: PairContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout of the scores.

        One row moves a score by at most 4 records, so its rounded multiple by at most the integer 4 times the unit, and
        all m of them by sqrt(m) times that in L2.
        """
        moved = INDIF_SENSITIVITY * INDIF_UNIT
        return Layout.of_vector(len(self.pairs), moved * math.sqrt(len(self.pairs)), magnitude=moved)


class PairContract(Contract):
    """Gaussian noise only, on vectors of a known norm per row.

    What the one-way marginals, the scores and all pairs together may cost is fixed in advance; which pairs are asked
    for, with which weights and in which exchanges, follows from what was released before. Gaussian releases whose sum
    of Delta^2 / sigma^2 never exceeds mu^2 are mu-GDP, however queries and scales were chosen on the way (Smith &
    Thakurta 2022): one Gaussian mechanism.
    """

    Options: ClassVar[type[Node]] = PairOptions
    accountant = "gaussian"
    statement = PrivacyStatement(
        server_sees="noisy sums: one-way marginals, InDif of every pair, the selected pairs; {server}",
        client_sees="which pairs were selected, a function of released values",
    )
    #: The request for what the dependency scores are made of.
    scoring: ClassVar[type[PairScores]] = InDifs

    @cached_property
    def pairs(self) -> tuple[Clique, ...]:
        """Every pair of attributes."""
        return all_pairs(self.domain)

    @cached_property
    def measurable(self) -> tuple[int, ...]:
        """Positions of the pairs that may be measured.

        A pair of more cells than a model may have is never measured.
        """
        most = self.config.inference.max_cells
        return tuple(i for i, q in enumerate(self.pairs) if self.domain.size(q) <= most)

    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        """Divides the budget by shares (Algorithm 5 of HeteroFedSyn).

        Where there are no pairs, all of it goes to the one-way marginals. The selected pairs have one share together,
        however many they are and in however many sums.
        """
        if not self.measurable:
            return [Step(Resolutions, rho)]
        one_way, scores = self.options.one_way_share, self.options.score_share
        pairs, most = (1.0 - one_way - scores) * rho, len(self.measurable) + 1  # AdaFedPrivSyn asks one by one
        return [
            Step(Resolutions, one_way * rho),
            Step(self.scoring, scores * rho),
            Step(WeightedPairs, pairs, least=pairs / most, times=most),
            Step(Resolutions, pairs, says="again, where no pair is selected"),
        ]

    def hierarchies(self) -> dict[str, Hierarchy]:
        """Returns what is measured of each attribute.

        Integer weights divide the budget so that the sum of all noise is smallest.
        """
        domain = self.domain
        trees = {name: Hierarchy.binary(domain[name], domain.ordered.get(name, 0)) for name in domain}
        if all(len(tree.widths) == 1 for tree in trees.values()):
            return trees
        # A share w of the budget gives noise / sqrt(w): w as noise^(2/3) minimises the sum.
        return {name: tree.scaled(8.0 * tree.noise ** (1 / 3) / tree.sensitivity) for name, tree in trees.items()}


class PrivSynContract(PairContract):
    central = True


# Requests ------------------------------------------------------------------------------------------------------------


class Resolution(BaseModel):
    """One attribute's `Hierarchy`, on the wire."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    ordered: int
    widths: list[int]
    weights: list[Weight] = Field(min_length=1)

    @classmethod
    def of(cls, tree: Hierarchy) -> Resolution:
        return cls(ordered=tree.ordered, widths=list(tree.widths), weights=[int(w) for w in tree.weights])


class Resolutions(SumRequest):
    """Weighted one-way marginals at some resolutions, as ONE vector."""

    name = "one-way"
    leaves = "weighted counts of every attribute, at several resolutions, in a sum"
    costs = "one vector of L2 sensitivity S = the root of the sum of all squared weights: mu^2 = S^2/sigma^2"

    resolutions: list[Resolution]

    def trees(self, contract: PairContract) -> list[Hierarchy]:
        """Returns one hierarchy per attribute.

        Raises ProtocolError unless there are as many, and each fits.
        """
        try:
            pairs = zip(self.resolutions, contract.domain.shape, strict=True)
            return [
                Hierarchy(size, one.ordered, tuple(one.widths), tuple(map(float, one.weights))) for one, size in pairs
            ]
        except ValueError:
            raise ProtocolError(
                "parameter 'resolutions' must hold ordered cells, widths and weights for each attribute"
            ) from None

    def layout(self, contract: PairContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout of all resolutions.

        One row is in one cell and at most one block of each further resolution of every attribute.
        """
        trees = self.trees(contract)
        return Layout.of_vector(
            sum(tree.length for tree in trees),
            math.sqrt(math.fsum(tree.sensitivity**2 for tree in trees)),
            magnitude=max(max(tree.weights) for tree in trees),
            replaced=COUNTS,
        )

    @classmethod
    def largest(cls, contract: PairContract) -> Iterable[Layout]:
        return [cls(resolutions=[Resolution.of(tree) for tree in contract.hierarchies().values()]).layout(contract, ())]


class WeightedPairs(SumRequest):
    """Marginals of some pairs, each times a public integer, as ONE vector."""

    name = "measure"
    leaves = "weighted counts of the selected pairs, in a sum"
    costs = "one vector of L2 sensitivity S = the root of the sum of squared weights: mu^2 = S^2/sigma^2"

    pairs: PairIndices
    weights: list[Weight] = Field(min_length=1)

    def cliques(self, contract: PairContract) -> list[Clique]:
        if len(self.weights) != len(self.pairs):
            raise ProtocolError("parameter 'weights' must hold one integer for each pair")
        return [contract.pairs[i] for i in self.pairs]

    def layout(self, contract: PairContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout: one row is in one cell of each marginal."""
        return Layout.of_vector(
            sum(contract.domain.size(pair) for pair in self.cliques(contract)),
            math.sqrt(sum(weight**2 for weight in self.weights)),
            magnitude=float(max(self.weights)),
            replaced=COUNTS,
        )

    @classmethod
    def largest(cls, contract: PairContract) -> Iterable[Layout]:
        """Returns layouts of all pairs with the smallest and the largest weight.

        Whatever is selected, at most `MOST_CELLS` cells are asked for (`PairSynthesis.fitting`).
        """
        cells = min(sum(contract.domain.size(contract.pairs[i]) for i in contract.measurable), MOST_CELLS)
        weights = (1.0, float(LARGEST_WEIGHT))
        return [Layout.of_vector(cells, weight, magnitude=weight, replaced=COUNTS) for weight in weights]


# Clients -------------------------------------------------------------------------------------------------------------


class PairClient(TableClient):
    """The common client half of all variants.

    It contributes one-way marginals at some resolutions, and marginals of requested pairs.
    """

    contract: PairContract

    @answers(Resolutions)
    def one_way(self, call: Call[Resolutions]) -> Contribution:  # type: ignore[override]
        """The exact one-way marginals at the resolutions that the request describes."""
        counts = split_one_way(count_one_way(self.codes, self.domain), self.domain)
        trees = call.request.trees(self.contract)
        return self.one_vector([tree.apply(marginal) for tree, marginal in zip(trees, counts, strict=True)], call)

    @answers(WeightedPairs)
    def measure(self, call: Call[WeightedPairs]) -> Contribution:
        """The exact marginals of the pairs."""
        tables = count(self.codes, self.domain, call.request.cliques(self.contract))
        return self.one_vector([w * t.ravel() for w, t in zip(call.request.weights, tables, strict=True)], call)

    def one_vector(self, parts: Sequence[npt.NDArray[np.int64]], call: Call[Any]) -> Contribution:
        """Some exact integer vectors as one array of a sum."""
        vector = np.concatenate([np.zeros(0, np.int64), *parts])
        return Contribution.of_vector(vector, call.layout)


class PrivSynClient(PairClient):
    """The one holder of central PrivSyn."""

    Contract = PrivSynContract

    @answers(InDifs)
    def indif(self, call: Call[InDifs]) -> Contribution:
        """InDif of every pair that is asked for."""
        pairs = [self.contract.pairs[i] for i in call.request.pairs]
        scores = [indif(table) for table in count(self.codes, self.domain, pairs)]
        return self.one_vector([np.rint(np.array(scores) * INDIF_UNIT).astype(np.int64)], call)
