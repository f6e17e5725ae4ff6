"""The server half of MST and of its federated form.

The client half, with the contracts, is `clients/mst.py`.

McKenna, Miklau & Sheldon 2021, "Winning the NIST Contest: A scalable and general approach to differentially private
synthetic data".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import pi, sqrt

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import DisjointSet
from scipy.special import chdtri

from fedsyn.inference.shrinkage import released_shrinkage
from fedsyn.mechanism import (
    Ask,
    Marginals,
    MechanismStrategy,
    ModelView,
    OneWay,
    Protocol,
    ProtocolError,
    Reply,
    Steps,
    Sum,
    indices,
    sigma_for_rho,
)
from fedsyn.plugins.clients.mst import (
    CoarsePairs,
    FedMstClient,
    FedMstContract,
    MstClient,
    MstContract,
    PairSketches,
    Tree,
    width_of,
)
from fedsyn.selection.coarse import CoarseMarginals, group_counts, grouping_of, pack_grouping, resolution
from fedsyn.selection.scores import expected_noise
from fedsyn.selection.views import effective_cells
from fedsyn.table.counting.sums import dot

Floats = npt.NDArray[np.float64]

#: The dependence that a sketch is to see: total variation 1/4 between a pair and the product of its attributes.
_AT_STAKE = 0.5


class Mst(MechanismStrategy):
    """MST: a third of the budget for each of three steps.

    They measure one-way marginals, choose a spanning tree of pairs by the exponential mechanism, and measure its pairs.

    One holder of every row grows the tree (Section 4.2; Algorithm 1 of the paper's appendix). Not here: the paper's
    compression of rare values into one, which is public post-processing of the first step.
    """

    Client = MstClient
    contract: MstContract

    def protocol(self) -> Protocol:
        steps = self.steps()
        self.begin_round(1)
        measurements = yield from self.measurements_of(self.everyone(), OneWay(), steps[OneWay].sigma)
        self.estimate(measurements, last=Tree not in steps)
        if self.model is None or Tree not in steps:
            return
        request = Tree(epsilon=steps[Tree].epsilon)
        self.record.epsilon = request.epsilon
        replies = yield Ask(self.everyone(), request, self.packed())
        for tree in self.accept(replies, self.read).values():
            measurements += yield from self.measure(self.everyone(), tree, steps[Marginals].rho)
        self.estimate(measurements, last=True)

    def read(self, reply: Reply) -> list[int]:
        """Reads the holder's pairs, in the order of their choice.

        Raises ProtocolError unless they are those of a spanning tree.
        """
        tree = indices(reply.params.get("tree"), len(self.candidates), "tree")
        forest, edges, cliques = DisjointSet(self.domain), set(self.contract.edges), self.candidates.cliques
        if len(tree) != self.contract.tree_size or not all(i in edges and forest.merge(*cliques[i]) for i in tree):
            raise ProtocolError("the reply's pairs do not form a spanning tree")
        return tree

    def measure(self, cohort: Sequence[int], tree: Sequence[int], rho: float) -> Steps:
        """Measures the pairs of the tree that fit a model together.

        It costs exactly rho, and returns the measurements.
        """
        cliques = [self.candidates.cliques[i] for i in tree]
        positions = self.capacity.add_while_fitting(cliques)
        chosen = [cliques[j] for j in positions]
        if not chosen:
            return []
        self.record.sigma = sigma_for_rho(rho / len(chosen))
        request = Marginals(cliques=[tree[j] for j in positions])
        measurements = yield from self.measurements_of(cohort, request, self.record.sigma)
        self.selected(chosen)
        return measurements


class FedMst(Mst):
    """MST over many holders, of whom none chooses.

    The server grows the tree from one noisy sum of sketches.

    A sketch is a coarse marginal, linear in the rows, so the sum over the clients is the pooled table's, however the
    rows are spread. Of the tree only those pairs are measured that promise to gain more than their noise costs.
    """

    Client = FedMstClient
    contract: FedMstContract
    stop_at_noise_level = True
    shrinks = True
    smooths = True
    shrinkage: float | None = None  # from the tree's pairs as they were measured

    def protocol(self) -> Protocol:
        steps, sampling_rate = self.steps(), self.config.federation.sampling_rate
        self.begin_round(1)
        sigma = steps[OneWay].sigma
        measurements = yield from self.measurements_of(self.sample(sampling_rate), OneWay(), sigma)
        self.estimate(measurements, last=CoarsePairs not in steps)
        if self.model is None or CoarsePairs not in steps:
            return
        self.begin_round(2)
        weights, inflation = yield from self.sketched_distances(self.sample(sampling_rate), steps[PairSketches].rho)
        self.begin_round(3)
        cohort = self.sample(sampling_rate)
        with self.timed("select"):
            rho = steps[CoarsePairs].rho
            tree = self.worthwhile(self.tree(weights), weights, rho, inflation)
        if tree:
            measurements += yield from self.measure_coarsely(cohort, tree, weights, rho, inflation)
        else:
            self.record.notes.append("no pair promises more than its noise: the one-way marginals are measured again")
            measurements += yield from self.measurements_of(cohort, OneWay(), sigma)
        self.estimate(measurements, True, self.shrinkage)

    # The tree ---------------------------------------------------------------------------------------------------------

    def sketched_distances(self, cohort: Sequence[int], rho: float) -> Steps:
        """Returns the pairs' estimated L1 distances from independence, and a noise factor.

        The distances are in records, (m,); the factor is what noise was multiplied by. A distance is 0 if its sketch
        departs from independence no more than noise alone makes one of m sketches depart, on average; all are 0 if
        nothing was opened.
        """
        assert self.model is not None
        contract, view = self.contract, ModelView(self.model, self.config.inference.max_cells_at_once)
        sigma = sigma_for_rho(rho, sqrt(len(contract.pairs)))
        cells = float(np.median(view.effective_cells(contract.pairs)))
        at_stake = (_AT_STAKE * self.total) ** 2 * pi / 2 / cells
        width = self.options.width or width_of(at_stake, sigma * sigma)
        mass = {name: self.model.project((name,)) for name in self.domain}
        groups = pack_grouping(grouping_of(self.domain, contract.pairs, width, mass))
        sums = yield Sum(cohort, PairSketches(width=width), sigma, [groups])
        if not self.is_open(sums, "sketches"):
            return np.zeros(len(contract.pairs)), 1.0
        sketcher, factor = contract.sketcher(width, groups), self.expansion(sums)
        values, noise = sketcher.split(sums.arrays[0] * factor), sums.sigmas[0] * factor
        out = []
        for j, (pair, p) in enumerate(zip(contract.pairs, view.each(contract.pairs), strict=True)):
            shape = group_counts(self.domain, pair, width)
            seen = sketcher.of_marginal(j, p).reshape(shape)
            out.append(distance(values[j].reshape(shape), seen, noise, 1.0 / len(values)))
        return np.array(out), noise / sigma

    def tree(self, weights: Floats) -> list[int]:
        """Returns positions of the maximum spanning tree's pairs, heaviest first.

        Equally heavy ones keep their public order.
        """
        forest, pairs = DisjointSet(self.domain), self.contract.pairs
        return [j for j in np.argsort(-weights, kind="stable").tolist() if forest.merge(*pairs[j])]

    def worthwhile(self, tree: Sequence[int], weights: Floats, rho: float, inflation: float) -> list[int]:
        """Returns the pairs of the tree that gain most together.

        The gain is the sum of (distance - expected error) of pairs that share rho.

        Measured together, k pairs have sigma = sqrt(k / (2 rho)): each one more makes the others' noise larger. For
        each k the best are those of largest difference. The error is that of the best resolution.
        """
        best, gained, distances = [], 0.0, self.distances(weights, tree)
        carried = self.carried(tree)
        for k in range(1, len(tree) + 1):
            resolutions = self.resolutions(tree, distances, carried, inflation * sigma_for_rho(rho / k))
            gains = distances - np.array([error for _, error in resolutions])
            order = np.argsort(-gains, kind="stable")[:k]
            if gains[order].sum() > gained:
                best, gained = sorted(order.tolist()), float(gains[order].sum())
        return [tree[i] for i in best]

    def distances(self, weights: Floats, some: Sequence[int]) -> Floats:
        """Returns distances of some pairs, in records, capped at 2 n.

        Two tables of n rows cannot be further apart.
        """
        return np.minimum(weights[list(some)], 2.0 * self.total)

    def carried(self, some: Sequence[int]) -> Floats:
        """Returns the effective cells of some pairs.

        They are those of the product of a pair's one-way marginals.
        """
        assert self.model is not None
        view = ModelView(self.model, self.config.inference.max_cells_at_once)
        return view.effective_cells([self.contract.pairs[j] for j in some])

    def resolutions(
        self, some: Sequence[int], distances: Floats, carried: Floats, sigma: float
    ) -> list[tuple[float, float]]:
        """Returns each pair's best number of cells, with its expected L1 error.

        Where no values have an order these are all cells, and AIM's sqrt(2/pi) sigma n; elsewhere see `resolution`.
        """
        noise, out = expected_noise(sigma, carried), []
        for i, j in enumerate(some):
            ordered = any(self.domain.ordered.get(name) for name in self.contract.pairs[j])
            out.append(resolution(distances[i], sigma, carried[i]) if ordered else (math.inf, float(noise[i])))
        return out

    def measure_coarsely(
        self, cohort: Sequence[int], tree: Sequence[int], weights: Floats, rho: float, inflation: float
    ) -> Steps:
        """Measures the pairs that fit a model together, in groups.

        Groups are as fine as their noise allows; all cost rho.
        """
        assert self.model is not None
        pairs = self.contract.pairs
        chosen = [tree[i] for i in self.capacity.add_while_fitting([pairs[j] for j in tree])]
        if not chosen:
            return []
        cliques, self.record.sigma = [pairs[j] for j in chosen], sigma_for_rho(rho / len(chosen))
        sigma, distances = inflation * self.record.sigma, self.distances(weights, chosen)
        best = self.resolutions(chosen, distances, self.carried(chosen), sigma)
        cells = [int(min(k, self.domain.size(q))) for (k, _), q in zip(best, cliques, strict=True)]
        mass = {name: self.model.project((name,)) for name in self.domain}
        coarse = CoarseMarginals.of(self.domain, cliques, cells, mass)
        request = CoarsePairs(
            cliques=[self.contract.edges[j] for j in chosen], shapes=[list(shape) for shape in coarse.shapes]
        )
        sums = yield Sum(cohort, request, self.record.sigma, [coarse.pack()])
        self.selected(cliques)
        opened = self.opened(sums, cliques)
        self.shrinkage = released_shrinkage(
            [coarse.departure(i, m.values, m.sigma, mass) for i, m in enumerate(opened)], self.total
        )
        return [coarse.expanded(i, m.values, m.sigma, mass) for i, m in enumerate(opened)]


def distance(sketch: Floats, independent: Floats, sigma: float, chance: float) -> float:
    """Estimates the L1 norm of a pair's dependence from its sketch.

    It is in records, and 0 where it could be noise. The sketch is n p_a p_b, which is taken away, the dependence, its
    own noise, and what is wrong with the noisy p_a and p_b: to first order u x p_b + p_a x v. The part orthogonal to
    all such tables, of which n p_a p_b is one, has (g - 1)(h - 1) dimensions. There noise alone gives sigma^2 times a
    chi-squared variable, so subtracting its mean leaves an estimate of the squared L2 norm. Its root times the root of
    the effective cells is the L1 norm of an error that is spread like sqrt(p).

    Args:
        sketch: (g, h) noisy coarse marginal, in records.
        independent: (g, h) the model's product p_a p_b, as probabilities.
        sigma: standard deviation of the noise on an entry.
        chance: with which noise alone may pass for a dependence.
    """
    a, b = independent.sum(axis=1), independent.sum(axis=0)
    dimensions = (len(a) - 1) * (len(b) - 1)
    if not dimensions:
        return 0.0
    left = sketch - np.outer(a, np.einsum("g,gh->h", a, sketch)) / dot(a, a)
    part = left - np.outer(np.einsum("gh,h->g", left, b), b) / dot(b, b)
    squared = dot(part.ravel(), part.ravel())
    if squared <= sigma**2 * chdtri(dimensions, chance):
        return 0.0
    return sqrt(max(squared - dimensions * sigma**2, 0.0) * effective_cells(independent))
