"""What to measure next, and with how much of the budget: predicted errors for the whole plan, from released values.

The error of a query of the workload is made of parts, one for each clique inside it: what the model misses there
(estimated from sketches), and for one attribute the noise of its marginal. Parts add up like orthogonal vectors.
Measuring a clique removes its parts from every query that holds it, and costs its own noise in each of them. Beside it
all that is measured shares the same budget, so a clique is taken only if what it removes is more than what it adds to
everybody's noise (PrivSyn's allocation, Zhang et al. 2021, Section 4.2, for cliques of any size, beside one-way
marginals).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import pi, sqrt

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from fedsyn.selection.resolution import Ladder
from fedsyn.table.counting.candidates import Candidates
from fedsyn.table.counting.workload import Workload, subsets

#: Share of a measurement's noise that the fit leaves in the model: positive cells, one total and the cliques beside it
#: take the rest away. Chosen on the tuning side of experiments/held_out.
SURVIVING = 0.25

Floats = npt.NDArray[np.float64]


def shrunk(squared: Floats, spread: Floats) -> Floats:
    """Posterior means of non-negative squared distances, from unbiased estimates: empirical Bayes.

    The prior is exponential, its mean that of the estimates: where nothing but noise shows, nothing is believed.

    Args:
        squared: (m,) unbiased estimates.
        spread: (m,) their standard deviations, positive.
    """
    if not len(squared):
        return squared
    mean = float(np.mean(squared))
    centre = squared - spread**2 / max(mean, 1e-3 * float(np.mean(spread)))
    z = centre / spread
    above: Floats = np.exp(-0.5 * z * z - 0.5 * np.log(2.0 * pi) - log_ndtr(z))
    return np.asarray(np.maximum(centre + spread * above, 0.0))


def above_floors(shares: Floats, floors: Floats, budget: float) -> Floats:
    """(m,) what is added to each floor so that the sums are proportional to `shares` wherever they exceed their floor.

    Args:
        shares: (m,) positive, or 0 of what needs nothing.
        floors: (m,) what each has already.
        budget: what there is to add.
    """
    free = np.ones(len(shares), bool)
    while free.any() and shares[free].any():
        level = (budget + float(floors[free].sum())) / float(shares[free].sum())
        full = free & (shares * level < floors)
        if not full.any():
            return np.where(free, np.maximum(shares * level - floors, 0.0), 0.0)
        free &= ~full
    return np.zeros(len(shares))


@dataclass(frozen=True, eq=False)
class Errors:
    """What is known of the model's errors before a round; L1 norms, in records.

    Attributes:
        parts: (m,) squared error of each candidate beyond that of its parts: of one attribute the noise of its
            measurements, of more what the model misses.
        support: candidate -> cells that noise is counted on; looked up for few of them only.
        noisy: precision (1/sigma^2) that each measured candidate has.
        ladder: candidate -> the groups of values in which it may be measured; None: all in cells.
        rows: n, of the table.
        costs: (m,) squared L2 norm of what one row adds to each candidate's measurement in cells, its price in mu^2 for
            1/sigma^2 = 1: less than 1 of residuals (`fedsyn.table.counting.residuals`); None: 1 of all.
        steps: where on its ladder each planned or measured candidate is that has fewer groups than values.
    """

    parts: Floats
    support: Callable[[int], float]
    noisy: dict[int, float]
    ladder: Callable[[int], Ladder] | None = None
    rows: float = 0.0
    costs: Floats | None = None
    steps: dict[int, int] = field(default_factory=dict)

    def carried(self, i: int) -> float:
        """Cells, or groups of them, that the noise of candidate i is counted on."""
        if self.ladder is None or i not in self.steps:
            return self.support(i)
        return min(float(self.ladder(i).carried[self.steps[i]]), self.support(i))

    def cost(self, i: int) -> float:
        """mu^2 for 1/sigma^2 = 1, as candidate i is measured."""
        if self.costs is None:
            return 1.0
        step = None if self.ladder is None else self.steps.get(i)
        return float(self.costs[i] if self.ladder is None or step is None else self.ladder(i).costs[step])

    @property
    def paid(self) -> float:
        """mu^2 of all measurements so far, had each been made as it would be now."""
        return sum(known * self.cost(i) for i, known in self.noisy.items())


@dataclass(frozen=True, eq=False)
class Plan:
    """What is to be measured in all.

    Attributes:
        cliques: the new ones, the most useful first.
        error: predicted: what is missed and what noise adds, weighted over the queries, in records.
        steps: of the cliques that are measured in groups, where on its ladder each is.
    """

    cliques: list[int]
    error: float
    steps: dict[int, int]


class Planner:
    """Plans for one workload.

    Args:
        workload: what the table will be judged by.
        candidates: its downward closure.
    """

    def __init__(self, workload: Workload, candidates: Candidates) -> None:
        self.candidates = candidates
        place = {q: i for i, q in enumerate(candidates.cliques)}
        self.queries = np.array([place[q] for q in workload.cliques], np.int64)
        self.weights = np.array(workload.weights, np.float64)
        pairs = [(i, place[s]) for i, q in enumerate(candidates.cliques) for s in subsets(q)]
        self._whole, self._part = np.array(pairs, np.int64).reshape(-1, 2).T
        held = [(place[s], r) for r, q in enumerate(workload.cliques) for s in subsets(q)]
        holder = np.array(sorted(held), np.int64).reshape(-1, 2)
        self._candidate, self._query = holder[:, 0], holder[:, 1]

    @cached_property
    def single(self) -> npt.NDArray[np.bool_]:
        return np.array([len(q) == 1 for q in self.candidates.cliques])

    @cached_property
    def asked(self) -> Floats:
        """(m,) weight of the queries that hold each candidate: as many bear the noise of its measurement."""
        return self._per_candidate(self.weights[self._query])

    def _per_candidate(self, held: Floats) -> Floats:
        """(m,) sums over the queries that hold each candidate."""
        return np.bincount(self._candidate, held, len(self.candidates)).astype(np.float64, copy=False)

    def inside(self, parts: Floats) -> Floats:
        """(m,) sum of the parts in each candidate."""
        return np.bincount(self._whole, parts[self._part], len(self.candidates)).astype(np.float64, copy=False)

    def removed(self, parts: Floats) -> Floats:
        """(m,) how much less the weighted errors of all queries are without the parts of each candidate."""
        base = self.inside(parts)[self.queries]
        own = self.inside(np.where(self.single, 0.0, parts))
        left = np.sqrt(np.maximum(base[self._query] - own[self._candidate], 0.0))
        gain = self.weights[self._query] * (np.sqrt(base)[self._query] - left)
        return self._per_candidate(gain)

    def share(self, i: int, errors: Errors) -> float:
        """What candidate i gets of a budget, before division by the sum: least noise in all (PrivSyn's exponent).

        At a cost of c, a budget buys 1/c of the precision, and noise is left in a share c of the dimensions: together
        a residual has c times the noise of counts that were paid as much.
        """
        return float(self._share_of(i, np.array(errors.carried(i) * errors.cost(i))))

    def _share_of(self, i: int, noisy: Floats) -> Floats:
        noise = float(self.asked[i]) * SURVIVING * sqrt(2.0 / pi) * noisy
        return np.asarray(noise ** (2.0 / 3.0))

    def offer(
        self, i: int, gain: float, distance: float, total: float, budget: float, errors: Errors
    ) -> tuple[float, int | None]:
        """What measuring candidate i takes away beyond what its noise adds; and in which groups, None: in cells.

        Args:
            i: the candidate.
            gain: what it would take away without noise.
            distance: L1 norm of what the model misses there, in records.
            total: shares of all that is measured beside it.
            budget: mu^2 that they share.
            errors: before the round.
        """
        cells = errors.support(i)
        if errors.ladder is None:
            share = float(self._share_of(i, np.array(cells * errors.cost(i))))
            return gain - ((total + share) ** 1.5 - total**1.5) / sqrt(budget), None
        ladder = errors.ladder(i)
        shares = self._share_of(i, np.minimum(ladder.carried, cells) * ladder.costs)
        added = ((total + shares) ** 1.5 - total**1.5) / sqrt(budget)
        variance = float(ladder.costs[-1]) * (total + float(shares[-1])) / (budget * float(shares[-1]))
        net = gain * (1.0 - ladder.missed(distance, errors.rows, cells, variance)) - added
        step = int(np.argmax(net))
        return float(net[step]), step if step + 1 < len(net) else None

    def best(
        self,
        errors: Errors,
        eligible: Iterable[int],
        fits: Callable[[int], bool],
        budget: float,
        cells: Floats | None = None,
    ) -> Plan:
        """The most useful cliques first, as long as they gain; none where noise would do more harm than good.

        The noise of all measurements together is (sum of shares)^(3/2) / sqrt(budget): a clique adds to it what it
        takes away from the others. The supports, which take long to compute for large cliques, are asked for those
        alone whose gain without noise is above the best one.

        Args:
            errors: before the round.
            eligible: candidates that are in no measured clique and that the model could take.
            fits: whether the model takes one more beside those chosen before; asked once for each that is best.
            budget: mu^2 that all measurements of the run share, spent or not.
            cells: (m,) what room each candidate takes, where that is scarce: the first is then the one that gains most
                for its room, as in a knapsack. None: the one that gains most.
        """
        errors = replace(errors, steps=dict(errors.steps))
        parts, chosen = errors.parts.copy(), list[int]()
        room = np.ones(len(parts)) if cells is None else cells
        open_ = np.zeros(len(parts), bool)
        open_[list(eligible)] = True
        total = sum(self.share(i, errors) for i in errors.noisy)
        while open_.any():
            gains = np.where(open_, self.removed(parts), 0.0)
            missed = np.sqrt(self.inside(np.where(self.single, 0.0, parts)))
            best, clique, step = 0.0, -1, None
            for i in np.argsort(-gains / room, kind="stable"):
                if gains[i] / room[i] <= best:
                    break
                net, at = self.offer(int(i), float(gains[i]), float(missed[i]), total, budget, errors)
                if net / room[i] > best:
                    best, clique, step = net / float(room[i]), int(i), at
            if clique < 0:
                break
            open_[clique] = False
            if fits(clique):
                chosen.append(clique)
                left = 0.0
                if step is not None and errors.ladder is not None:
                    errors.steps[clique] = step
                    left = float(errors.ladder(clique).unseen[step]) ** 2
                total += self.share(clique, errors)
                inside = self._part[self._whole == clique]
                parts[inside] *= np.where(self.single[inside], 1.0, left)
        overlooked = float(self.weights @ np.sqrt(self.inside(np.where(self.single, 0.0, parts))[self.queries]))
        return Plan(chosen, overlooked + total**1.5 / sqrt(budget), errors.steps)

    def precisions(self, errors: Errors, chosen: Sequence[int], left: float) -> dict[int, float]:
        """mu^2 for each new clique and each measured one, one-way marginals too: all that is left."""
        every = [*chosen, *(i for i in errors.noisy if i not in set(chosen))]
        shares = np.array([self.share(i, errors) for i in every])
        floors = np.array([errors.noisy.get(i, 0.0) * errors.cost(i) for i in every])
        added = above_floors(shares, floors, left)
        return {i: float(more) for i, more in zip(every, added, strict=True) if more > 0}


__all__ = ["SURVIVING", "Errors", "Plan", "Planner", "above_floors", "shrunk"]
