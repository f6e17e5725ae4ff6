"""The server half of sketch_aim, our own mechanism. The client half, with the contract of both, is
`clients/sketch_aim.py`.

docs/sketch_aim.md: the algorithm, the proof of its privacy, the estimator's mean and variance, and what was tried.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique
from fedsyn.inference import Measurement, Model
from fedsyn.plugins.clients.sketch_aim import Sigmas, SketchAimClient, SketchAimContract, Sketches
from fedsyn.plugins.clients.sketch_aim_cohorts import CohortBudget
from fedsyn.plugins.strategies.sketch_aim_cohorts import ByCohorts
from fedsyn.protocol.client import Marginals, OneWay
from fedsyn.protocol.strategy import Protocol
from fedsyn.selection.scores import contained_in, expected_noise, penalised_cells
from fedsyn.selection.sketches import Sketcher, grouping_of, pack_grouping, squared_distance
from fedsyn.selection.views import ModelView, effective_cells
from fedsyn.wire.requests import Sum, Summed

Precision = Mapping[Clique, float]  # sum of 1/sigma^2 over the measurements of each clique


@dataclass(frozen=True, eq=False)
class Sketched:
    """The opened sketches, brought to the federation's total.

    Attributes:
        sketcher: that made them.
        values: one vector per sketch, in records.
        sigma: standard deviation of their noise before weights.
        caution: standard deviations of its noise that are taken off a squared distance.
    """

    sketcher: Sketcher
    values: list[npt.NDArray[np.float64]]
    sigma: float
    caution: float

    def distance(self, i: int, model: Model, probabilities: npt.NDArray[np.float64]) -> float:
        """sqrt(squared L2 error * support) of sketch i: the L1 norm of an error that is spread like sqrt(p)."""
        sigma = self.sketcher.sigma_of(i, self.sigma)
        seen = self.sketcher.of_marginal(i, probabilities)
        squared = squared_distance(self.values[i] - model.total * seen, sigma)
        squared -= self.caution * sqrt(2.0 * len(seen)) * sigma * sigma
        support = effective_cells(seen if self.sketcher.kind == "groups" else probabilities)
        return sqrt(max(squared, 0.0) * support)

    def distances(self, view: ModelView, cliques: Sequence[Clique]) -> npt.NDArray[np.float64]:
        """(m,) estimated L1 errors of the model on some cliques, in records.

        A clique without a sketch is judged by the sketched cliques inside it: the root of the sum of their squares, as
        if their errors were orthogonal. Nothing is capped at the largest possible error, 2 n: where several parts are
        badly off, the sum still tells a clique with three of them from one with two.
        """
        found: dict[Clique, float] = {}
        marginals = view.probabilities(self.sketcher.cliques)
        for i, (clique, probabilities) in enumerate(zip(self.sketcher.cliques, marginals, strict=True)):
            found[clique] = self.distance(i, view.model, probabilities)
        place = {q: i for i, q in enumerate(found)}
        out = np.empty(len(cliques))
        for position, clique in enumerate(cliques):
            if clique in found:
                out[position] = found[clique]
            else:
                subsets = (q for k in range(1, len(clique) + 1) for q in combinations(clique, k))
                inside = sorted((q for q in subsets if q in place), key=place.__getitem__)
                out[position] = sqrt(sum(found[q] * found[q] for q in inside))
        return out


class SketchAim(ByCohorts):
    """Selection from linear statistics: what a sum over clients gives is what one holder of all rows would have.

    Before the first round every client contributes to two sums: all one-way marginals, and sketches of the candidates.
    A sketch is linear in the table, so the sum of the clients' sketches is the pooled table's, however the rows are
    spread. It depends on no model: it is paid for once, and after every fit the server compares it with the sketch of
    its current model, which estimates without bias how far the model is off (`squared_distance`). Each round the
    cliques with the largest expected gain are summed and fitted. No client selects anything.
    """

    Client = SketchAimClient
    contract: SketchAimContract

    def protocol(self) -> Protocol:
        if self.config.federation.participations is not None:
            yield from self.by_cohorts()
            return
        which = self.sketched()
        sigmas = Sigmas.of(2.0 * self.ledger.remaining_rho, self.options, len(self.domain), bool(which))
        self.begin_round(1)
        sums = yield Sum(self.everyone(), OneWay(), sigmas.one_way)  # step 1
        measurements = self.opened(sums, [(name,) for name in self.domain])
        self.estimate(measurements)
        if self.model is None or not which:
            return
        sums = yield self.sum_of_sketches(which, sigmas)  # step 2
        if not self.is_open(sums, "sketches"):
            return
        sketched = self.sketches_of(which, sums)
        for t in range(1, self.options.rounds + 1):  # step 3
            self.begin_round(t)
            self.record.sigma = sigmas.marginal
            cohort = self.sample(self.config.federation.participation)
            with self.timed("select"):
                count, share = self.options.in_round(t), t / self.options.rounds
                chosen = self.best(sketched, precision(measurements), sigmas.marginal, count, share)
            if not chosen:
                break
            cliques = [self.candidates.cliques[i] for i in chosen]
            sums = yield Sum(cohort, Marginals(cliques=chosen), sigmas.marginal)
            measurements += self.opened(sums, cliques)
            self.selected(cliques)
            self.estimate(measurements, t == self.options.rounds)

    # Sketches ---------------------------------------------------------------------------------------------------------

    def sketched(self) -> list[int]:
        """The candidates to be sketched, a public fact: those with a weight that the model could take."""
        cliques = self.candidates.cliques
        return [i for i in self.capacity.which_fit(cliques) if self.options.weight_of(cliques[i])]

    def groups(self, cliques: Sequence[Clique]) -> list[npt.NDArray[np.generic]]:
        """The packed groups of neighbouring values of equal released mass, for sketches that use them."""
        assert self.model is not None
        if self.options.ablation.sketch != "groups":
            return []
        mass = {name: self.model.project((name,)) for name in self.domain}
        return [pack_grouping(grouping_of(self.domain, cliques, self.options.width, mass))]

    def sum_of_sketches(
        self, which: list[int], sigmas: Sigmas | CohortBudget, cohort: Sequence[int] | None = None
    ) -> Sum:
        """One vector of all sketches, with noise for its sensitivity; of everybody, or of a cohort."""
        request, arrays = Sketches(cliques=which), self.groups([self.candidates.cliques[i] for i in which])
        sensitivity = request.layout(self.contract, arrays).sensitivity
        asked = self.everyone() if cohort is None else cohort
        return Sum(asked, request, sigmas.per_sensitivity * sensitivity, arrays)

    def sketches_of(self, which: list[int], sums: Summed) -> Sketched:
        """The opened sketches; the model, and so the groups, are those that they were asked for with."""
        cliques = [self.candidates.cliques[i] for i in which]
        sketcher, factor = self.contract.sketcher(cliques, self.groups(cliques)), self.expansion(sums)
        values = sketcher.split(sums.arrays[0] * factor)
        return Sketched(sketcher, values, sums.sigmas[0] * factor, self.options.ablation.caution)

    # The choice -------------------------------------------------------------------------------------------------------

    def best(self, sketched: Sketched, known: Precision, sigma: float, count: int, share: float) -> list[int]:
        """At most `count` candidates to be measured next, which the model can take together.

        New cliques come first, as long as one promises to gain anything. After that measured ones are measured again,
        those first where that takes away most noise: a clique whose error the noise of a measurement would drown does
        the model more harm than good.
        """
        assert self.model is not None
        view = ModelView(self.model)
        fits = self.capacity.test(share)  # of the tree as it is now
        chosen = self.new_cliques(sketched, view, fits, sigma, count, share)
        cliques, weights = self.candidates.cliques, self.candidates.weights
        measured = [i for i, q in enumerate(cliques) if q in known] if len(chosen) < count else []
        again = [i for i in measured if fits(cliques[i])]
        gains = {i: weights[i] * self.less_noise(view, i, known[cliques[i]], sigma) for i in again}
        return sorted(chosen + sorted(again, key=lambda i: (-gains[i], i))[: count - len(chosen)])

    def new_cliques(
        self,
        sketched: Sketched,
        view: ModelView,
        fits: Callable[[Clique], bool],
        sigma: float,
        count: int,
        share: float,
    ) -> list[int]:
        """At most `count` cliques of the largest positive gain: w_q (estimated L1 error - expected noise), as in AIM.

        Cells are counted as `penalty` says. The model's supports, which take long to compute for large cliques, are
        computed for those candidates only whose gain without the penalty could still be among the best: the heap holds
        upper bounds first, and a bound that comes out on top is replaced by the exact gain and put back. Whether a
        clique fits is asked of those alone that come out on top: beside the round's first tree (`fits`), as if all had
        been asked before the first was chosen, and beside what was chosen since.
        """
        cliques, weights = self.candidates.cliques, self.candidates.weights
        inside = contained_in(self.capacity.cliques)
        new = [i for i, q in enumerate(cliques) if len(q) > 1 and not inside(q)]
        bounds = weights[new] * sketched.distances(view, [cliques[i] for i in new])
        heap = [(-bound, i, False) for bound, i in zip(bounds, new, strict=True)]
        heapq.heapify(heap)
        chosen: list[int] = []
        while heap and len(chosen) < count and heap[0][0] < 0:
            loss, i, exact = heapq.heappop(heap)
            if not exact:
                noise = expected_noise(sigma, penalised_cells(self.options.penalty, self.candidates, [i], view))
                heapq.heappush(heap, (loss + weights[i] * float(noise[0]), i, True))
            elif (
                fits(cliques[i])
                and self.capacity.fits(cliques[i], share)
                and not any(set(cliques[i]) <= set(cliques[j]) for j in chosen)
            ):
                self.capacity.add([cliques[i]])
                chosen.append(i)
        return chosen

    def best_under(self, sketched: Sketched, sigma: float, most: int) -> list[int]:
        assert self.model is not None
        return self.new_cliques(sketched, ModelView(self.model), self.capacity.test(), sigma, most, 1.0)

    def predicted(self, sketched: Sketched, chosen: Sequence[int], sigma: float) -> float:
        assert self.model is not None
        view, which, weights = ModelView(self.model), list(chosen), self.candidates.weights
        noise = expected_noise(sigma, penalised_cells(self.options.penalty, self.candidates, which, view))
        distances = sketched.distances(view, [self.candidates.cliques[i] for i in which])
        most = 2.0 * self.total  # no two tables of so many rows are farther apart
        return float(weights[which] @ (np.minimum(distances, most) - noise)) if which else 0.0

    def one_way_cost(self, sigma: float) -> float:
        assert self.model is not None
        ones = [i for i, q in enumerate(self.candidates.cliques) if len(q) == 1]
        cells = penalised_cells(self.options.penalty, self.candidates, ones, ModelView(self.model))
        return float(self.candidates.weights[ones] @ expected_noise(sigma, cells)) if ones else 0.0

    def less_noise(self, view: ModelView, i: int, before: float, sigma: float) -> float:
        """Expected L1 noise that one more measurement takes away from a measured clique, in records."""
        less = before**-0.5 - (before + sigma**-2) ** -0.5
        return float(expected_noise(less, penalised_cells(self.options.penalty, self.candidates, [i], view))[0])


def precision(measurements: Sequence[Measurement]) -> Precision:
    """Sum of 1/sigma^2 over the measurements of each clique."""
    known: dict[Clique, float] = {}
    for m in measurements:
        known[m.clique] = known.get(m.clique, 0.0) + m.sigma**-2
    return known
