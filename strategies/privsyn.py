"""The server half of central PrivSyn, shared with HeteroFedSyn.

Client half: `clients/privsyn.py`.

Zhang et al. 2021, "PrivSyn: Differentially Private Data Synthesis".
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.inference import EmpiricalModel, HierarchicalMeasurement, consistent, least_squares, rows_for
from fedsyn.inference.gum import GumConfig, synthesize
from fedsyn.mechanism import (
    Contract,
    Measurement,
    MechanismStrategy,
    Protocol,
    Request,
    Step,
    Steps,
    Sum,
    Summed,
    SumRequest,
    sigma_for_rho,
)
from fedsyn.plugins.clients.privsyn import (
    MOST_CELLS,
    InDifs,
    PairContract,
    PrivSynClient,
    Resolution,
    Resolutions,
    WeightedPairs,
)
from fedsyn.selection.indif import INDIF_UNIT, expected_l1
from fedsyn.selection.views import effective_cells

Floats = npt.NDArray[np.float64]

# Updates of GUM, one marginal each, beyond which every marginal is updated less often; but so often at least. 400 pairs
# and fewer are updated as often as ever.
_MOST_UPDATES = 20_000
_FEWEST_ITERATIONS = 10


# What all mechanisms that measure pairs share -----------------------------------------------------------------------


class PairSynthesis(MechanismStrategy):
    """The common protocol of central PrivSyn and HeteroFedSyn.

    It measures one-way marginals, scores all pairs, and measures the chosen ones.
    """

    contract: PairContract

    @classmethod
    def fits_model(cls, contract: Contract) -> bool:
        return bool(contract.options.synthesizer == "pgm")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        every = self.contract.pairs
        self.numbers = list(self.contract.measurable)
        self.pairs = [every[i] for i in self.numbers]
        self.cells = np.array([float(self.domain.size(pair)) for pair in self.pairs])
        self.one_way: list[HierarchicalMeasurement] = []
        self.measurements: list[Measurement] = []  # of pairs
        self.rows_made: npt.NDArray[np.integer] | None = None

    def protocol(self) -> Protocol:
        steps = self.first_steps()  # HeteroFedSyn's Algorithm 5
        inflation = yield from self.share_one_way(steps[Resolutions].rho)
        if self.one_way and self.pairs:
            rho = steps[WeightedPairs].rho
            self.begin_round(2)
            scores = yield from self.share_scores(steps)
            allocation = self.allocation(rho, inflation)
            chosen = self.choose(scores, allocation)  # Eq. 1
            if chosen:
                yield from self.share_pairs(chosen, allocation.shares(chosen), rho)  # Eq. 3
            else:
                yield from self.share_rest((), allocation, rho)
        self.synthesise(last=True)  # PrivSyn's Sections 5 and 6

    @abstractmethod
    def share_scores(self, steps: Mapping[type[Request], Step]) -> Steps:
        """Returns the dependency score of every pair, (m,).

        Scores are in proportions of the records; all are 0, so that no pair is selected, if nothing was opened.
        """

    def first_steps(self) -> Mapping[type[Request], Step]:
        """Begins the first round, and returns the plan for what is left."""
        self.begin_round(1)
        self.record.cohort = list(self.everyone())
        return self.steps()

    # Exchanges --------------------------------------------------------------------------------------------------------

    def one_vector(self, request: SumRequest, rho: float) -> Sum:
        """Asks everybody for ONE vector, at a cost of exactly rho."""
        sensitivity = request.layout(self.contract, ()).sensitivity
        return Sum(self.everyone(), request, sigma_for_rho(rho, sensitivity))

    def share_one_way(self, rho: float) -> Steps:
        """Measures the one-way marginals of all attributes, as one vector.

        Returns the factor that local noise put on it.
        """
        trees = self.contract.hierarchies()
        request = self.one_vector(Resolutions(resolutions=[Resolution.of(tree) for tree in trees.values()]), rho)
        sums = yield request
        if not self.is_open(sums, "one-way marginals"):
            return 1.0
        factor = self.expansion(sums)
        parts = np.split(sums.arrays[0], np.cumsum([tree.length for tree in trees.values()])[:-1])
        for (name, tree), values in zip(trees.items(), parts, strict=True):
            unweighted = values * (factor / np.repeat(tree.weights, tree.lengths))
            self.one_way.append(HierarchicalMeasurement(name, tree, unweighted, sums.sigmas[0] * factor))
        return sums.sigmas[0] / request.sigma

    def share_pairs(self, chosen: Sequence[int], shares: Floats, rho: float) -> Steps:
        """Measures the chosen pairs at a cost of exactly rho.

        The pairs divide it by about these shares: weighted by integers w, one row moves them all by sqrt(sum w^2), and
        a pair's own noise is the sum's divided by w.
        """
        pairs, weights = [self.pairs[i] for i in chosen], integer_weights(shares)
        request = WeightedPairs(pairs=[self.numbers[i] for i in chosen], weights=weights)
        sums: Summed = yield self.one_vector(request, rho)
        self.selected(pairs)
        if not self.is_open(sums, "selected pairs"):
            return
        factor = self.expansion(sums)
        bounds = np.cumsum([0, *(self.domain.size(pair) for pair in pairs)])
        for j, (pair, weight) in enumerate(zip(pairs, weights, strict=True)):
            values = sums.arrays[0][bounds[j] : bounds[j + 1]].reshape(self.domain.shape_of(pair))
            self.measurements.append(Measurement(pair, values * (factor / weight), sums.sigmas[0] * factor / weight))

    def share_rest(self, chosen: Sequence[int], allocation: Allocation, rho: float) -> Steps:
        """Spends what the selection left over.

        It measures the selected pairs once more, or the one-way marginals if there are none.
        """
        if chosen:
            yield from self.share_pairs(chosen, allocation.shares(chosen), rho)
        else:
            yield from self.share_one_way(rho)

    # Selection --------------------------------------------------------------------------------------------------------

    def allocation(self, rho: float, inflation: float) -> Allocation:
        """Returns the allocation: psi of each pair in the scores' unit.

        The unit is proportions of the records, as the sums will be.

        Args:
            rho: for all pairs together.
            inflation: sqrt(c) with local noise, else 1.
        """
        sigma = sigma_for_rho(rho) * inflation / self.total
        errors = self.options.noise_weight * sigma * self.noise_errors(self.counted_cells)
        return Allocation(errors)

    def noise_errors(self, cells: Floats) -> Floats:
        """Returns the expected norm of standard normal noise per cell count.

        The norm is that of the scores: L1, like InDif's.
        """
        return expected_l1(cells)

    @cached_property
    def counted_cells(self) -> Floats:
        """Number of cells whose noise counts in each pair, (m,).

        Effective cells follow from the first exchange's released one-way marginals.
        """
        if self.options.penalty == "cells":
            return self.cells
        ones = consistent(self.domain, [], total=self.total, one_way=self.one_way)
        carried = {name: effective_cells(ones[(name,)] / self.total) for name in self.domain}
        return np.array([carried[a] * carried[b] for a, b in self.pairs])

    def choose(self, scores: Floats, allocation: Allocation) -> list[int]:
        """Returns the pairs to measure, in order of their selection (Eq. 1)."""
        return self.fitting(choose_greedily(scores, allocation, len(self.pairs)))

    def fitting(self, chosen: Sequence[int], before: Sequence[int] = ()) -> list[int]:
        """Returns the chosen pairs that can be measured, in selection order.

        PGM takes what fits a junction tree, GUM what fits one sum.
        """
        if self.options.synthesizer == "gum":
            ends = np.cumsum(self.cells[list(chosen)]) + self.cells[list(before)].sum()
            fitting = list(chosen)[: int(np.searchsorted(ends, MOST_CELLS, side="right"))]
            if len(fitting) < len(chosen):
                self.record.notes.append(
                    f"{len(chosen) - len(fitting)} selected pairs were left out: too many for one sum"
                )
            return fitting
        positions = self.capacity.add_while_fitting([self.pairs[i] for i in chosen])
        return [chosen[j] for j in positions]

    # Synthesis --------------------------------------------------------------------------------------------------------

    def one_way_marginals(self) -> list[Measurement]:
        """Returns each attribute's least-squares estimate, with independent noise.

        PGM can use this form.
        """
        out = []
        for name in self.domain:
            values, sigma = least_squares([m for m in self.one_way if m.attribute == name])
            out.append(Measurement((name,), values, sigma))
        return out

    def synthesise(self, *, last: bool) -> None:
        """Makes the model from everything measured: rows, or a fit.

        Attributes in no pair follow their one-way marginals.
        """
        if not self.one_way:
            return
        if self.options.synthesizer == "pgm":
            self.estimate([*self.one_way_marginals(), *self.measurements], last)
            return
        if last:
            self.measured = (*self.one_way_marginals(), *self.measurements)
        with self.timed("synthesise"):
            rng = self.randomness.ordinary("gum", self.round)
            whole = gum_config(self.options.gum_iterations, len({m.clique for m in self.measurements}))
            # Between selections the rows start from the last ones, and only score pairs.
            config = whole if last else replace(whole, iterations=math.ceil(whole.iterations / 5))
            rows = rows_for(self.domain, self.total)
            self.rows_made = synthesize(
                self.domain,
                self.measurements,
                rows,
                rng,
                config,
                total=self.total,
                start=None if last else self.rows_made,
                one_way=self.one_way,
            )
            self.model = EmpiricalModel(self.domain, self.rows_made, self.total)  # type: ignore[assignment]


class PrivSyn(PairSynthesis):
    """Central PrivSyn, the yardstick: one holder of every row.

    The holder computes the exact InDif of every pair, sensitivity 4, and they are released with Gaussian noise; the
    pairs that Eq. 1 selects are measured, and GUM makes rows (Zhang et al. 2021).
    """

    Client = PrivSynClient

    def share_scores(self, steps: Mapping[type[Request], Step]) -> Steps:
        """Returns the InDif of every pair (Section 4.1)."""
        sums = yield self.one_vector(InDifs(pairs=self.numbers), steps[InDifs].rho)
        if not self.is_open(sums, "dependency scores"):
            return np.zeros(len(self.pairs))
        return np.maximum(0.0, sums.arrays[0]) / INDIF_UNIT / max(1.0, self.rows(sums.contributors))


# Which pairs, and how much of the budget each -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Allocation:
    """The pairs' noise errors, and the division of a budget among some.

    Attributes:
        unit: (m,) psi of each pair if the whole budget were spent on it alone, in the unit of the dependency scores.
    """

    unit: npt.NDArray[np.float64]

    @cached_property
    def parts(self) -> npt.NDArray[np.float64]:
        """The proportions in which pairs share a budget, (m,).

        They minimise the sum of the noise errors.
        """
        return np.asarray(self.unit ** (2.0 / 3.0))

    def costs(self, most: int) -> npt.NDArray[np.float64]:
        """Returns each pair's share of the budget, (m,).

        No `most` pairs exceed the budget together.

        Algorithm 5 as corrected, for pairs of unequal cost: in the proportions of `shares`, for the `most` costliest
        pairs. A chosen pair's cost is then at most its share among the chosen.
        """
        return np.asarray(self.parts / np.sort(self.parts)[-most:].sum())

    def shares(self, chosen: Sequence[int]) -> npt.NDArray[np.float64]:
        """Returns each chosen pair's share of the budget, summing to 1.

        A pair with share w has noise error unit / sqrt(w): w proportional to unit^(2/3) minimises the sum (Zhang et al.
        2021, equation 3).
        """
        weights = self.parts[list(chosen)]
        return np.asarray(weights / weights.sum())

    def error(self, chosen: Sequence[int]) -> float:
        """Returns the sum of psi over the chosen pairs.

        They divide the budget.
        """
        return float((self.unit[list(chosen)] / np.sqrt(self.shares(chosen))).sum()) if len(chosen) else 0.0

    def errors_with_one_more(self, chosen: Sequence[int]) -> npt.NDArray[np.float64]:
        """Returns `error` of the chosen pairs and each further one, (m,)."""
        return np.asarray((self.parts[list(chosen)].sum() + self.parts) ** 1.5)


def choose_greedily(
    scores: npt.NDArray[np.float64], allocation: Allocation, most: int, chosen: Sequence[int] = ()
) -> list[int]:
    """Minimises sum_selected psi + sum_others phi greedily (Eq. 1).

    This is Algorithm 3, lines 1-11.

    Adds the pair that lowers the total error most until none lowers it, or `most` pairs are chosen in all. The psi of
    all chosen pairs grow with their number, because they share one budget (Zhang et al. 2021, Algorithm 2). A pair z
    leaves the sum over "not selected" for good when it is chosen, so it lowers the total by phi_z less what it adds to
    the noise errors. (Printed line 4 leaves out z alone, and so counts the chosen pairs again in the next step.)

    Args:
        scores: (m,) phi, dependency scores.
        allocation: noise errors, in the same unit.
        most: the largest number of chosen pairs.
        chosen: pairs that are measured already, and stay.

    Returns:
        The pairs that join, in order.
    """
    selected = list(chosen)
    open_ = np.ones(len(scores), bool)
    open_[selected] = False
    while len(selected) < most and open_.any():
        gains = scores - (allocation.errors_with_one_more(selected) - allocation.error(selected))
        gains[~open_] = -np.inf
        best = int(np.argmax(gains))
        if gains[best] <= 0.0:
            break
        selected.append(best)
        open_[best] = False
    return selected[len(chosen) :]


def gum_config(iterations: int | None, pairs: int) -> GumConfig:
    """Returns GUM's settings for `pairs` selected pairs.

    Very many pairs are each updated less often than by default.

    With fewer iterations the step decays faster, so that the last one is as short as it would have been.
    """
    default = GumConfig()
    if iterations is not None:
        return replace(default, iterations=iterations)
    fewer = min(default.iterations, max(_FEWEST_ITERATIONS, _MOST_UPDATES // max(1, pairs)))
    return (
        default
        if fewer == default.iterations
        else GumConfig(iterations=fewer, decay=default.decay ** (default.iterations / fewer))
    )


def integer_weights(shares: npt.NDArray[np.float64]) -> list[int]:
    """Returns integers in proportion to the roots of budget shares.

    They are right to a sixteenth; equal shares give ones.

    A marginal times its weight has that sensitivity, so under one noise a pair's part of the cost goes with its square.
    """
    factors = np.sqrt(shares / shares.min())
    if np.ptp(factors) < 1e-9:
        return [1] * len(shares)
    return [int(weight) for weight in np.clip(np.rint(8.0 * factors), 1, 1 << 16)]
