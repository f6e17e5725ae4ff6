"""The client halves of MST and its federated form, with their contracts.

A spanning tree of pairs is chosen, then measured (McKenna, Miklau & Sheldon 2021, "Winning the NIST Contest: A scalable
and general approach to differentially private synthetic data"). The server half is `strategies/mst.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import DisjointSet

from fedsyn.inference.capacity import Capacity
from fedsyn.mechanism import (
    COUNTS,
    Answer,
    AskRequest,
    Call,
    Clique,
    Contract,
    Contribution,
    Field,
    Layout,
    Marginals,
    Node,
    OneWay,
    Positive,
    PrivacyStatement,
    ProtocolError,
    Release,
    SomeCandidates,
    Step,
    SumRequest,
    TableClient,
    answers,
    check_message,
)
from fedsyn.selection.coarse import CoarseMarginals
from fedsyn.selection.sketches import Sketcher, make_sketcher
from fedsyn.table.counting.workload import Candidates, all_kway

#: Most entries of a sketch whose width follows from the noise on it.
MOST_WIDTH = 64


class MstOptions(Node):
    """MST has no options.

    Its shares, scores and number of pairs are the paper's.
    """


class MstContract(Contract):
    """Spends a third of rho on each of three steps.

    All pairs of attributes are candidates, whatever the workload.
    """

    Options: ClassVar[type[Node]] = MstOptions
    central = True
    statement = PrivacyStatement(
        server_sees="the pairs of a spanning tree, each by the exponential mechanism; {server}",
        client_sees="the model of the one-way marginals: a function of released values",
    )

    @cached_property
    def candidates(self) -> Candidates:
        """The attributes and all pairs of them."""
        return Candidates.of(all_kway(self.domain, 2), self.domain)

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """Positions of the pairs that fit a model alone, a public fact."""
        fits, cliques = Capacity(self.domain, self.config.inference).test(), self.candidates.cliques
        return tuple(i for i, q in enumerate(cliques) if len(q) == 2 and fits(q))

    @cached_property
    def pairs(self) -> tuple[Clique, ...]:
        """The cliques of `edges`."""
        return tuple(self.candidates.cliques[i] for i in self.edges)

    @cached_property
    def tree_size(self) -> int:
        """Number of edges of every spanning forest.

        It is d - 1, or less where pairs too large to be measured leave parts apart.
        """
        forest = DisjointSet(self.domain)
        return sum(forest.merge(*pair) for pair in self.pairs)

    def third(self, rho: float) -> float:
        """Returns a third of rho; without pairs, all of it."""
        return rho / 3.0 if self.edges else rho

    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        """Gives a third each to marginals, choices and pairs."""
        third, d, k = self.third(rho), len(self.domain), self.tree_size
        one_way = Step(OneWay, third / d, arrays=d)
        if not k:
            return [one_way]
        pairs = Step(Marginals, third, least=third / k, says=f"for all of at most {k} pairs")
        return [one_way, Step(Tree, third / k, arrays=k), pairs]


class FedMstOptions(Node):
    """Options of fed_mst.

    Attributes:
        width: k, most entries of a sketch; null: as many as the noise on them lets one see, from 4 to 64
            (docs/mechanisms/mst.md derives it).
    """

    width: int | None = Field(default=None, ge=4, le=65536)


class FedMstContract(MstContract):
    """Only Gaussian noise: one Gaussian mechanism, accounted exactly."""

    Options = FedMstOptions
    accountant = "gaussian"
    central = False
    statement = PrivacyStatement(
        server_sees="noisy sums of one-way marginals, sketches of all pairs, pairs of a tree in groups; {server}",
        client_sees="groups of neighbouring values and the pairs of the tree: functions of released values",
    )

    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        """Gives a third each to marginals, sketches and pairs.

        Where no pair is worth measuring, it buys the one-way marginals again.
        """
        third, d, k = self.third(rho), len(self.domain), self.tree_size
        one_way = Step(OneWay, third / d, arrays=d)
        if not k:
            return [one_way]
        pairs = Step(CoarsePairs, third, least=third / k, says=f"for all of at most {k} pairs")
        again = replace(one_way, says="again, where no pair is worth measuring")
        return [one_way, Step(PairSketches, third), pairs, again]

    def sketcher(self, width: int, packed: npt.NDArray[Any]) -> Sketcher:
        """Returns the sketcher of all pairs, the same on server and clients.

        A sketch has at most `width` cells.

        Raises:
            ProtocolError: there are no pairs, or the groups are malformed.
        """
        if not self.edges:
            raise ProtocolError("the table has one column, so it has no pairs to sketch")
        return make_sketcher(Sketcher, self.domain, self.pairs, width, packed)


# Requests ------------------------------------------------------------------------------------------------------------


class Tree(AskRequest):
    """The pairs of a spanning tree, each chosen by the exponential mechanism."""

    name = "tree"
    leaves = "the indices of the pairs of a spanning tree"
    costs = "k choices: rho epsilon^2/8 each, for k pairs"

    epsilon: Positive

    @classmethod
    def largest(cls, contract: MstContract) -> Iterable[Layout]:
        """Nothing is summed; the request brings the model."""
        check_message(8.0 * contract.config.inference.max_cells, "inference.max_cells")
        return ()

    def releases(self, contract: MstContract) -> tuple[Release, ...]:
        if not contract.edges:
            raise ProtocolError("the table has one column, so it has no pairs to choose from")
        return (self.choices(self.epsilon, count=contract.tree_size),)


class PairSketches(SumRequest):
    """Coarse marginals of all pairs, one after the other, as ONE vector."""

    name = "sketch"
    leaves = "coarse marginals of all pairs, linear in its rows, in a sum"
    costs = "one vector of L2 sensitivity S = sqrt(m) for m pairs: mu^2 = S^2/sigma^2, once"

    width: Annotated[int, Field(ge=1, le=65536, description="most entries of a sketch")]

    def sketcher(self, contract: FedMstContract, arrays: Sequence[npt.NDArray[Any]]) -> Sketcher:
        if len(arrays) != 1:
            raise ProtocolError("the request does not bring the groups of the sketches, or more than them")
        return contract.sketcher(self.width, arrays[0])

    def layout(self, contract: FedMstContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout of a vector that moves by sqrt(m) in L2.

        One row is in one cell of each coarse marginal, whatever the groups.
        """
        sketcher = self.sketcher(contract, arrays)
        return Layout.of_vector(sketcher.length, sketcher.sensitivity, replaced=COUNTS)

    @classmethod
    def largest(cls, contract: FedMstContract) -> Iterable[Layout]:
        most = len(contract.pairs) * (contract.options.width or MOST_WIDTH)
        return [Layout.of_vector(most, math.sqrt(len(contract.pairs)), replaced=COUNTS)]


class CoarsePairs(SumRequest):
    """Some pairs, each counted in groups of neighbouring values."""

    name = "measure"
    leaves = "the counts of the tree's pairs, in groups of neighbouring values, in a sum"
    costs = "each coarse marginal has sensitivity 1: mu^2 = 1/sigma^2"

    cliques: SomeCandidates
    shapes: list[Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=2)]]

    def coarse(self, contract: FedMstContract, arrays: Sequence[npt.NDArray[Any]]) -> CoarseMarginals:
        cliques = [contract.candidates.cliques[i] for i in self.cliques]
        if len(arrays) != 1 or any(len(clique) != 2 for clique in cliques):
            raise ProtocolError("the request does not bring the groups of some pairs, or more than them")
        return CoarseMarginals.unpack(contract.domain, cliques, self.shapes, arrays[0])

    def layout(self, contract: FedMstContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout of the coarse marginals.

        One row is in one cell of each, whatever the groups.
        """
        shapes = self.coarse(contract, arrays).shapes
        return Layout(shapes, len(shapes), replaced=COUNTS)

    @classmethod
    def largest(cls, contract: FedMstContract) -> Iterable[Layout]:
        return Marginals.largest(contract)


# Clients -------------------------------------------------------------------------------------------------------------


class MstClient(TableClient):
    """The one holder of MST: grows the tree on its own rows."""

    Contract = MstContract
    contract: MstContract

    @answers(Tree)
    def tree(self, call: Call[Tree]) -> Answer:
        """Chooses a spanning tree by Kruskal's algorithm with noisy choices (Algorithm 1).

        Each of d - 1 choices joins two parts.

        Score of a pair: ||M_ab(D) - n p_a p_b||_1, p the model of the released one-way marginals, n the public or
        released number of rows. Sensitivity: with p and n fixed, a row more moves one cell of M_ab by 1, so each score
        by at most 1. Which pairs are eligible follows from the choices before, which are released.
        """
        contract = self.contract
        scores = self.distances(contract.edges, call.arrays)
        forest, chosen = DisjointSet(self.domain), []
        for _ in range(contract.tree_size):
            open_ = [j for j, pair in enumerate(contract.pairs) if not forest.connected(*pair)]
            best = self.choose(scores[open_], call)
            forest.merge(*contract.pairs[open_[best]])
            chosen.append(contract.edges[open_[best]])
        return [], {"tree": chosen}

    @answers(Marginals)
    def measure(self, call: Call[Marginals]) -> Contribution:
        """Contributes exact counts of the tree's pairs; L2 sensitivity 1 each."""
        return self.marginals(call.layout)


class FedMstClient(TableClient):
    """Contributes to sums and chooses nothing."""

    Contract = FedMstContract
    contract: FedMstContract

    @answers(PairSketches)
    def sketch(self, call: Call[PairSketches]) -> Contribution:
        """The coarse marginals of its rows, exact counts."""
        vector = call.request.sketcher(self.contract, call.arrays).of_rows(self.codes)
        return Contribution.of_vector(np.asarray(vector), call.layout)

    @answers(CoarsePairs)
    def measure(self, call: Call[CoarsePairs]) -> Contribution:
        """Contributes exact counts of the tree's pairs in groups; L2 sensitivity 1."""
        tables = call.request.coarse(self.contract, call.arrays).of_rows(self.codes)
        vector = np.concatenate([table.ravel() for table in tables])
        cells = np.flatnonzero(vector)
        return Contribution(cells, vector[cells], tuple(range(len(tables))), call.layout)


# What both halves use ------------------------------------------------------------------------------------------------


def width_of(signal: float, noise: float) -> int:
    """Returns k, the entries of a sketch: signal / noise, clipped.

    It is from 4 to 64 (docs/mechanisms/mst.md says why).

    Args:
        signal: squared L2 norm of the dependence that is looked for, in records^2.
        noise: variance of the noise on one entry, in records^2.
    """
    return math.floor(min(max(signal / noise, 4.0), float(MOST_WIDTH)))
