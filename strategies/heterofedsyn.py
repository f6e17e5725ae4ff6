"""The server half of HeteroFedSyn: FedPrivSyn and AdaFedPrivSyn. Client half: `clients/heterofedsyn.py`.

Li et al. 2026, "HeteroFedSyn", Algorithms 1 to 5; what is PrivSyn's own is in `strategies/privsyn.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedsyn.mechanism import Protocol, Request, Step, Steps
from fedsyn.plugins.clients.heterofedsyn import AdaFedPrivSynClient, FedPairContract, FedPrivSynClient, Projections
from fedsyn.plugins.clients.privsyn import Resolutions, WeightedPairs
from fedsyn.plugins.strategies.privsyn import PairSynthesis, choose_greedily
from fedsyn.selection.indif import Noisy, distance_squared, expected_l2, indif_squared, root

Floats = npt.NDArray[np.float64]


class FedPrivSyn(PairSynthesis):
    """FedPrivSyn: all pairs selected at once by unbiased InDif2.

    InDif2 is estimated from projected marginals (Li et al. 2026).

    Departures from the paper, and why (docs/mechanisms/privsyn.md has them all; configs/printed/fed_privsyn.yaml is the
    printed form): marginals are counts of sensitivity 1, not proportions times n_i; +-1 projections, whose sensitivity
    does not depend on the matrix; every client uses the same matrix, from a public seed; the debiased square conditions
    on that public matrix.
    """

    Client = FedPrivSynClient
    contract: FedPairContract

    def share_scores(self, steps: Mapping[type[Request], Step]) -> Steps:
        """Returns InDif2 of every pair (Algorithm 1, lines 2 and 4).

        Algorithm 2 computes it.
        """
        projected = yield from self.share_projections(steps[Projections].rho)
        return self.dependencies(projected)

    def share_projections(self, rho: float) -> Steps:
        """Returns all pairs' projections, in proportions (Algorithm 1, lines 2 and 4).

        The list is empty if they were not opened.
        """
        projection = self.contract.projection
        widths = [projection.width(self.domain, pair) for pair in self.pairs]
        sums = yield self.one_vector(Projections(pairs=self.numbers), rho)
        if not self.is_open(sums, "projections"):
            return []
        unit = projection.unit * max(1.0, self.rows(sums.contributors))
        bounds = np.cumsum([0, *widths])
        values, sigma = sums.arrays[0] / unit, sums.sigmas[0] / unit
        return [Noisy(values[bounds[i] : bounds[i + 1]], sigma) for i in range(len(self.pairs))]

    def dependencies(self, projected: Sequence[Noisy]) -> Floats:
        """Returns InDif2 of every pair, brought to an L1 norm, (m,).

        This is Algorithm 2. Without projections all are 0, so that no pair is selected. Only the cells of the one-way
        marginals are used, without the coarser blocks: their noise is independent, as the debiasing needs it.
        """
        if not projected:
            return np.zeros(len(self.pairs))
        ones = {m.attribute: Noisy(m.cells / self.total, m.cell_sigma / self.total) for m in self.one_way}
        squared = [
            indif_squared(self.domain, pair, projected[i], ones[pair[0]], ones[pair[1]], self.contract.projection)
            for i, pair in enumerate(self.pairs)
        ]
        return self.distances(squared)

    def distances(self, squared: Sequence[float], which: Sequence[int] | slice = slice(None)) -> Floats:
        """Returns phi of some pairs from their squared L2 distances."""
        return root(np.array(squared)) * self.norm_factors(self.counted_cells)[which]

    def noise_errors(self, cells: Floats) -> Floats:
        return expected_l2(cells) * self.norm_factors(cells)

    def norm_factors(self, cells: Floats) -> Floats:
        """Returns (m,) factors from L2 norms to L1 norms.

        Ranges and transport follow the L1 norm, which is at most root(cells) times the L2 norm. The factor keeps a
        dependency that is spread over many cells from looking small.
        """
        return np.sqrt(cells)


class AdaFedPrivSyn(FedPrivSyn):
    """AdaFedPrivSyn: FedPrivSyn with adaptive selection.

    Algorithms 3 and 4 score pairs again against synthetic rows.

    `every` (m) pairs are selected between two updates of the scores; they do not depend on each other's measurements,
    so they are asked for in one exchange. What a pair costs is fixed before the first is selected, such that no `most`
    pairs exceed rho_3 (`Allocation.costs`; Algorithm 5 as corrected has 6 rho_3 / (d (d - 1)) for each of a third of
    all pairs). What is left over goes to the selected pairs in a last exchange: rho_3 is spent exactly.
    """

    Client = AdaFedPrivSynClient
    #: A smaller rest of rho_3 is not worth another exchange where `most` pairs are selected: the last have it.
    little: ClassVar[float] = 0.1

    def protocol(self) -> Protocol:
        steps = self.first_steps()  # Algorithm 5
        inflation = yield from self.share_one_way(steps[Resolutions].rho)  # line 1: Algorithm 1, lines 1 and 3
        if self.one_way and self.pairs:
            rho = steps[WeightedPairs].rho
            self.begin_round(2)
            projected = yield from self.share_projections(steps[Projections].rho)  # line 2: Algorithm 1, lines 2, 4
            scores = self.dependencies(projected)  # line 3: Algorithm 2
            most = self.most
            every = self.options.every or max(10, math.ceil(most / 20))
            allocation = self.allocation(rho, inflation)
            costs = allocation.costs(most)
            chosen: list[int] = []
            left = 1.0  # of rho_3
            while len(chosen) < most:  # line 4: Algorithm 3
                limit = min(most, len(chosen) + every)
                batch = self.fitting(choose_greedily(scores, allocation, limit, chosen), chosen)
                if not batch:
                    break
                chosen += batch
                cost, left = float(costs[batch].sum()), 1.0 - float(costs[chosen].sum())
                if len(chosen) == most and left < self.little:
                    cost, left = cost + left, 0.0
                yield from self.share_pairs(batch, costs[batch] / costs[batch].sum(), rho * cost)  # line 6
                if len(chosen) < most:
                    self.synthesise(last=False)
                    scores = self.updated(scores, chosen, projected)  # line 5: Algorithm 4
                    self.begin_round(self.round + 1)
            if left > 1e-9:
                yield from self.share_rest(chosen, allocation, rho * left)
        self.synthesise(last=True)  # lines 7 and 8

    @property
    def most(self) -> int:
        """Pairs that `fraction` allows."""
        return max(1, math.floor(float(self.options.fraction) * len(self.pairs) + 1e-9))

    def updated(self, scores: Floats, chosen: Sequence[int], projected: Sequence[Noisy]) -> Floats:
        """Returns scores against the synthetic rows (Algorithm 4).

        A score changes only if its pair shares an attribute with a selected one, and only downwards. The squared
        distance is debiased as InDif2^2 is: the printed line 3 leaves the noise of the projection in it.
        """
        assert self.model is not None
        touched = {name for i in chosen for name in self.pairs[i]}
        open_ = [i for i in range(len(self.pairs)) if i not in set(chosen) and touched & set(self.pairs[i])]
        tables, projection = self.model.project_many([self.pairs[i] for i in open_]), self.contract.projection
        squared = [
            distance_squared(self.domain, self.pairs[i], projected[i], table / self.model.total, projection)
            for i, table in zip(open_, tables, strict=True)
        ]
        updated = scores.copy()
        updated[open_] = np.minimum(scores[open_], self.distances(squared, open_))
        return updated
