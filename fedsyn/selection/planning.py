"""Plans the next measurements and their budget by predicted errors.

The error of a query of the workload is made of parts, one for each clique inside it: what the model misses there
(estimated from sketches), and for one attribute the noise of its marginal. Parts add up like orthogonal vectors.
Measuring a clique removes its parts from every query that holds it, and costs its own noise in each of them. Beside it
all that is measured shares the same budget, so a clique is taken only if what it removes is more than what it adds to
everybody's noise (PrivSyn's allocation, Zhang et al. 2021, Section 4.2, for cliques of any size, beside one-way
marginals).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import pi, sqrt
from typing import Any, Protocol

import numpy as np
from scipy.special import log_ndtr

from fedsyn.domain import Flags, Floats, Integers
from fedsyn.selection.resolution import Ladder, missed
from fedsyn.table.counting.workload import Candidates, Workload, subsets

#: Share of a measurement's noise that the fit leaves in the model: positive cells, one total and the cliques beside it
#: take the rest away. Chosen on the tuning side of experiments/held_out.
SURVIVING = 0.25


def shrunk(squared: Floats, spread: Floats, doubt: float = 0.0) -> Floats:
    """Returns posterior means of non-negative squared distances, from unbiased estimates.

    The prior is exponential, its mean that of the estimates: where nothing but noise shows, nothing is believed.

    Args:
        squared: (m,) unbiased estimates.
        spread: (m,) their standard deviations, positive.
        doubt: standard deviations of the estimates' mean that are taken from it.
    """
    if not len(squared):
        return squared
    mean = float(np.mean(squared)) - doubt * sqrt(float(np.mean(spread**2)) / len(squared))
    centre = squared - spread**2 / max(mean, 1e-3 * float(np.mean(spread)))
    z = centre / spread
    above: Floats = np.exp(-0.5 * z * z - 0.5 * np.log(2.0 * pi) - log_ndtr(z))
    return np.asarray(np.maximum(centre + spread * above, 0.0))


def above_floors(shares: Floats, floors: Floats, budget: float) -> Floats:
    """Returns additions that make sums proportional to `shares`, (m,).

    Where a floor exceeds its share, nothing is added.

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
class ModelErrors:
    """Estimated errors of the model before a round: L1 norms in records.

    Attributes:
        parts: (m,) squared error of each candidate beyond that of its parts: of one attribute the noise of its
            measurements, of more what the model misses.
        support: candidate -> cells that noise is counted on; looked up for few of them only.
        noisy: precision (1/sigma^2) that each measured candidate has.
        ladder: candidate -> the groups of values in which it may be measured; None: all in cells.
        rows: n, of the table.
        costs: (m,) squared L2 norm of what one row adds to each candidate's measurement in cells, its price in mu^2 for
            1/sigma^2 = 1: less than 1 of residuals (`fedsyn.table.counting.sums`); None: 1 of all.
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
        """Returns how many cells, or groups, carry a candidate's noise."""
        if self.ladder is None or i not in self.steps:
            return self.support(i)
        return min(float(self.ladder(i).carried[self.steps[i]]), self.support(i))

    def cost(self, i: int) -> float:
        """Returns the mu^2 that a precision of 1 costs for a candidate.

        It depends on the step at which the candidate is measured.
        """
        if self.costs is None:
            return 1.0
        step = None if self.ladder is None else self.steps.get(i)
        return float(self.costs[i] if self.ladder is None or step is None else self.ladder(i).costs[step])

    @property
    def paid(self) -> float:
        """Budget of all measurements so far, as mu^2.

        Each counts as if it were made as it would be now.
        """
        return sum(known * self.cost(i) for i, known in self.noisy.items())


@dataclass(frozen=True, eq=False)
class MeasurementPlan:
    """A choice of cliques to measure, and its predicted error.

    Attributes:
        cliques: the new ones, the most useful first.
        error: predicted: what is missed and what noise adds, weighted over the queries, in records.
        steps: of the cliques that are measured in groups, where on its ladder each is.
        full: whether cliques were left out for lack of room beside those of the plan.
        too_large: whether cliques were left out that have no room even without them; where the plan is full, not all
            are asked.
    """

    cliques: list[int]
    error: float
    steps: dict[int, int]
    full: bool = False
    too_large: bool = False


class TreeRoom(Protocol):
    """A model's room for further cliques (`fedsyn.inference.capacity.PlannedTree`)."""

    def take(self, i: int) -> bool:
        """Takes candidate i beside those taken before, or refuses it."""

    def alone(self, i: int) -> bool:
        """Returns whether candidate i has room if no other is taken."""

    def lacking(self, which: Integers) -> Flags:
        """Marks candidates that are known to be refused.

        It marks only what can be told at once.
        """


class OneByOne:
    """Room that is asked about one candidate after the other.

    Args:
        take: `TreeRoom.take`; by default there is room for all.
    """

    def __init__(self, take: Callable[[int], bool] = lambda i: True) -> None:
        self.take = take

    def alone(self, i: int) -> bool:
        """Says that a candidate has room: only `take` refuses it."""
        return True

    def lacking(self, which: Integers) -> Flags:
        """Marks none: it knows of none without asking."""
        return np.zeros(len(which), np.bool_)


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
        m = len(candidates)
        self._parts_of, self._wholes_of = Positions(self._whole, m), Positions(self._part, m)
        self._held_in, self._held_by = Positions(self._candidate, m), Positions(self._query, len(self.queries))
        self._asks = Positions(self.queries, m)
        self._terms: OfferTerms | None = None

    @cached_property
    def single(self) -> Flags:
        return np.array([len(q) == 1 for q in self.candidates.cliques])

    @cached_property
    def asked(self) -> Floats:
        """Weight of the queries that hold each candidate, (m,).

        All of them bear the noise of its measurement.
        """
        return self._per_candidate(self.weights[self._query])

    def _per_candidate(self, held: Floats) -> Floats:
        """Returns sums over the queries that hold each candidate, (m,)."""
        return np.bincount(self._candidate, held, len(self.candidates)).astype(np.float64, copy=False)

    def inside(self, parts: Floats) -> Floats:
        """Returns the sum of the parts in each candidate, (m,)."""
        return np.bincount(self._whole, parts[self._part], len(self.candidates)).astype(np.float64, copy=False)

    def removed(self, parts: Floats) -> Floats:
        """Returns reductions of the weighted error, (m,).

        Each is how much smaller all queries' errors are without the parts of a candidate.
        """
        covered = self.inside(np.where(self.single, 0.0, parts))
        return self._per_candidate(self._gain(self.inside(parts)[self.queries], covered, slice(None)))

    def _gain(self, base: Floats, covered: Floats, entries: Any) -> Floats:
        """Returns what candidates take away from the queries that hold them.

        `entries` are some of the pairs (candidate, query).
        """
        query, candidate = self._query[entries], self._candidate[entries]
        left = np.sqrt(np.maximum(base[query] - covered[candidate], 0.0))
        return np.asarray(self.weights[query] * (np.sqrt(base[query]) - left))

    def share(self, i: int, errors: ModelErrors) -> float:
        """Returns a candidate's share of a budget, before normalisation.

        PrivSyn's exponent gives shares with the least noise in all. At a cost of c, a budget buys 1/c of the precision,
        and noise is left in a share c of the dimensions: together a residual has c times the noise of counts that were
        paid as much.
        """
        return float(self._share_of(i, np.array(errors.carried(i) * errors.cost(i))))

    def _share_of(self, i: int, noisy: Floats) -> Floats:
        noise = float(self.asked[i]) * SURVIVING * sqrt(2.0 / pi) * noisy
        return np.asarray(noise ** (2.0 / 3.0))

    def offers(
        self,
        which: Integers,
        gains: Floats,
        distances: Floats,
        total: float,
        most: float,
        mu2: float,
        errors: ModelErrors,
    ) -> tuple[Floats, Integers, Floats]:
        """Returns what measuring some candidates gains beyond its noise.

        Each is measured at the best step of its ladder.

        Args:
            which: (k,) candidates.
            gains: (k,) what they would take away without noise.
            distances: (k,) L1 norms of what the model misses there, in records.
            total: shares of all that is measured beside one of them.
            most: a larger total.
            mu2: budget, as mu^2, that they share.
            errors: before the round.

        Returns:
            (k,) offers; their steps; and what they are at most at any total from this one to `most`.
        """
        terms = self._terms_of(errors, which)
        share, price = terms.whole[which], terms.price[which]

        def left(total: float) -> Floats:
            variance = price * (total + share) / (mu2 * share)
            cells, hidden = terms.cells[which, None], terms.hidden[which]
            return missed(distances[:, None], errors.rows, cells, variance[:, None], terms.unseen[which], hidden)

        added = ((total + terms.shares[which]) ** 1.5 - total**1.5) / sqrt(mu2)
        now = left(total)
        net = np.where(terms.steps[which], gains[:, None] * (1.0 - now) - added, -np.inf)
        # The noise of all others grows with the total, and what is missed falls or rises with it on the whole way.
        bound = np.where(terms.steps[which], gains[:, None] * (1.0 - np.minimum(now, left(most))) - added, -np.inf)
        step = net.argmax(axis=1)
        return net[np.arange(len(which)), step], step, bound.max(axis=1)

    def _terms_of(self, errors: ModelErrors, which: Integers) -> OfferTerms:
        """Returns one round's terms, with those of these candidates."""
        if self._terms is None or not self._terms.are_of(errors):
            self._terms = OfferTerms(self, errors)
        self._terms.add(which)
        return self._terms

    def best(
        self, errors: ModelErrors, eligible: Iterable[int], room: TreeRoom, budget: float, cells: Floats | None = None
    ) -> MeasurementPlan:
        """Plans the most useful cliques, in order, while they gain.

        The plan is empty if any measurement would do more harm than good.

        The noise of all measurements together is (sum of shares)^(3/2) / sqrt(budget): a clique adds to it what it
        takes away from the others. The supports, which take long to compute for large cliques, are asked for those
        alone whose gain without noise is above the best one; and an offer anew only of those whose bound since the last
        time is.

        Args:
            errors: before the round.
            eligible: candidates that are in no measured clique.
            room: of the model, asked of the best candidate. One that it refuses, or lacks room for then, is left out.
            budget: mu^2 that all measurements of the run share, spent or not.
            cells: (m,) what room each candidate takes, where that is scarce: the first is then the one that gains most
                for its room, as in a knapsack. None: the one that gains most.
        """
        errors = replace(errors, steps=dict(errors.steps))
        # What is missed so far, the candidates that are open, and the shares of what is measured.
        parts, chosen = errors.parts.copy(), list[int]()
        cells = np.ones(len(parts)) if cells is None else cells
        open_ = np.zeros(len(parts), bool)
        open_[list(eligible)] = True
        total = sum(self.share(i, errors) for i in errors.noisy)
        search, closed = _Search(self, errors, parts, open_, cells, budget), False
        full = too_large = False
        while (offer := search.best(total)) is not None:
            clique, step = offer
            open_[clique] = False
            # No room beside the others: leave out all candidates that are known to lack it, too.
            if not room.take(clique):
                if full and closed:
                    continue
                if not room.alone(clique):
                    too_large = True
                    continue
                if not closed:  # since the tree changed last
                    left = np.flatnonzero(open_)
                    search.close(left[room.lacking(left)])
                full = closed = True
                continue
            # Take it, on the step of its ladder that gains most.
            closed = False
            chosen.append(clique)
            unseen = 0.0
            if errors.ladder is not None and step + 1 < len(errors.ladder(clique).unseen):
                errors.steps[clique] = step
                unseen = float(errors.ladder(clique).unseen[step]) ** 2
            # Its parts are no longer missed, but for what groups do not see.
            total += self.share(clique, errors)
            inside = self._part[self._parts_of.of([clique])]
            inside = inside[~self.single[inside]]
            parts[inside] *= unseen
            search.changed(inside)
        # Predicted error: what is still missed, and the noise of all measurements.
        overlooked = float(self.weights @ np.sqrt(self.inside(np.where(self.single, 0.0, parts))[self.queries]))
        return MeasurementPlan(chosen, overlooked + total**1.5 / sqrt(budget), errors.steps, full, too_large)

    def precisions(self, errors: ModelErrors, chosen: Sequence[int], left: float) -> dict[int, float]:
        """Returns mu^2 for each new and each measured clique.

        Measured ones include one-way marginals. Together they get all that is left of the budget.
        """
        new = set(chosen)
        every = [*chosen, *(i for i in errors.noisy if i not in new)]
        shares = np.array([self.share(i, errors) for i in every])
        floors = np.array([errors.noisy.get(i, 0.0) * errors.cost(i) for i in every])
        added = above_floors(shares, floors, left)
        return {i: float(more) for i, more in zip(every, added, strict=True) if more > 0}


class Positions:
    """Positions of each id in an array of ids, in order.

    Args:
        ids: (n,) of 0 to m - 1.
        m: ids that there are.
    """

    def __init__(self, ids: Integers, m: int) -> None:
        self._order = np.argsort(ids, kind="stable")
        self._ends = np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=m))])

    def of(self, which: Iterable[int]) -> Integers:
        """Returns the positions of some ids, one id after the other."""
        runs = [self._order[self._ends[i] : self._ends[i + 1]] for i in which]
        return np.concatenate(runs) if runs else np.zeros(0, np.int64)


class OfferTerms:
    """Terms of one round's offers, beside gain and distance.

    Rows are filled in for the candidates that were asked for.

    Attributes:
        cells: (m,) that carry each candidate.
        shares: (m, k) of a budget, on each step of its ladder.
        unseen: (m, k) share of a dependence's squared L1 norm that the step leaves unseen.
        hidden: (m, k) share of the carrying cells that the step does not tell apart.
        steps: (m, k) whether there is such a step.
        whole: (m,) the share in cells.
        price: (m,) mu^2 of a precision of 1 in cells.
    """

    def __init__(self, planner: Planner, errors: ModelErrors) -> None:
        m = len(errors.parts)
        self._planner, self._errors, self._known = planner, errors, np.zeros(m, bool)
        self.cells, self.whole, self.price = np.ones((3, m))
        self.shares = self.unseen = self.hidden = np.zeros((m, 0))
        self.steps = np.zeros((m, 0), bool)

    def are_of(self, errors: ModelErrors) -> bool:
        current = self._errors
        return current.support is errors.support and current.ladder is errors.ladder and current.costs is errors.costs

    def add(self, which: Integers) -> None:
        """Computes the rows of these candidates that are not there yet."""
        new = which[~self._known[which]]
        if not len(new):
            return
        errors, planner = self._errors, self._planner
        # Cells, steps and costs of each new candidate: one step without a ladder.
        cells = np.array([errors.support(int(i)) for i in new])
        if errors.ladder is None:
            lengths, one = np.ones(len(new), np.int64), np.ones(len(new))
            carried, unseen, costs = cells, 0.0 * one, one if errors.costs is None else errors.costs[new]
        else:
            ladders = [errors.ladder(int(i)) for i in new]
            lengths = np.array([len(ladder.carried) for ladder in ladders])
            carried, unseen, costs = (
                np.concatenate(part)
                for part in zip(*((ladder.carried, ladder.unseen, ladder.costs) for ladder in ladders), strict=True)
            )
        # Room for the longest ladder.
        more = int(lengths.max()) - self.steps.shape[1]
        if more > 0:
            for name in ("shares", "unseen", "hidden", "steps"):
                setattr(self, name, np.pad(getattr(self, name), ((0, 0), (0, more))))
        # All steps of all new candidates as one array each.
        rows, ends = np.repeat(new, lengths), np.cumsum(lengths)
        columns = np.arange(len(rows)) - np.repeat(ends - lengths, lengths)
        cells_of = np.repeat(cells, lengths)
        carried = np.minimum(carried, cells_of)
        noise = planner.asked[rows] * SURVIVING * sqrt(2.0 / pi) * (carried * costs)
        shares = noise ** (2.0 / 3.0)
        hidden = np.maximum(0.0, 1.0 - carried / cells_of)
        hidden[ends - 1] = 0.0
        self.steps[rows, columns] = True
        self.shares[rows, columns], self.hidden[rows, columns], self.unseen[rows, columns] = shares, hidden, unseen**2
        self.cells[new], self.whole[new], self.price[new] = cells, shares[ends - 1], costs[ends - 1]
        self._known[new] = True


# Of a total, what it may grow before bounds are taken anew.
_WINDOW = 1.1
# Candidates whose offers are first computed together; four times as many each time that is not enough.
_FIRST = 32
# Bounds that are sorted at once, the largest of all.
_SORTED = 512
# Of what a bound is made of, what rounding may add to it.
_ROUNDING = 1e-12


def _largest_first(values: Floats) -> Iterator[Integers]:
    """Yields positions of values, the largest first, in two pieces.

    As a rule few are needed, and the second piece is not sorted.
    """
    split = np.argpartition(-values, _SORTED) if len(values) > _SORTED else np.arange(len(values))
    for piece in (split[:_SORTED], split[_SORTED:]):
        yield piece[np.argsort(-values[piece])]


class _Search:
    """The search for the best offer, addition after addition.

    An addition changes gain and distance of those candidates that share a query with a part that it removes. All other
    offers change with the total of the shares alone, and `Planner.offers` bounds them for some growth of it: those
    are computed anew whose bound reaches the best.

    Args:
        planner: whose candidates these are.
        errors: before the round.
        parts: (m,) squared errors; `changed` says which were changed.
        open_: (m,) the candidates that may be chosen.
        room: (m,) that each takes.
        budget: mu^2 that all share.
    """

    def __init__(
        self, planner: Planner, errors: ModelErrors, parts: Floats, open_: Flags, room: Floats, budget: float
    ) -> None:
        self.planner, self.errors, self.parts, self.open, self.room = planner, errors, parts, open_, room
        self.budget, self.total, self.most = budget, np.nan, -np.inf
        self.base, self.own = (
            planner.inside(parts)[planner.queries],
            planner.inside(np.where(planner.single, 0.0, parts)),
        )
        self.gains = np.where(open_, planner.removed(parts), 0.0)
        self.bounds = self.gains.copy()
        self.steps = np.zeros(len(parts), np.int64)
        # What was asked at this total and offers anything, the best last: offer and gain for its room, and which.
        self.queue: list[tuple[float, float, int]] = []

    def best(self, total: float) -> tuple[int, int] | None:
        """Returns the best candidate for its room, and its step.

        Offers are judged beside a total of shares; the result is None if no candidate offers anything. A candidate is
        returned once, and the next call goes on after it as long as nothing changes.
        """
        if total != self.total:
            self.total, self.several, self.queue = total, _FIRST, []
            if total > self.most:
                self.most = _WINDOW * total
                self.bounds[:] = self.gains
            rounding = _ROUNDING * total**1.5 / sqrt(self.budget)
            left = np.flatnonzero(self.open & (self.gains > 0.0))
            reach = (self.bounds[left] * (1.0 + _ROUNDING) + rounding) / self.room[left]
            self.pieces = ((left[piece], reach[piece]) for piece in _largest_first(reach))
            self.left, self.reach, self.asked = left[:0], reach[:0], 0
        while self._reaches(self.queue[-1][0] if self.queue else 0.0):
            self._ask()
        if not self.queue:
            return None
        clique = -self.queue.pop()[2]
        return clique, int(self.steps[clique])

    def close(self, which: Integers) -> None:
        """Leaves out some candidates from now on."""
        self.open[which] = False
        self.queue = [one for one in self.queue if self.open[-one[2]]]
        self._keep(self.left[self.asked :], self.reach[self.asked :])

    def _keep(self, left: Integers, reach: Floats) -> None:
        """Queues the open ones of some candidates to be asked next."""
        open_ = self.open[left]
        self.left, self.reach, self.asked = left[open_], reach[open_], 0

    def _reaches(self, offer: float) -> bool:
        """Returns whether the largest remaining bound reaches an offer."""
        if self.asked == len(self.left):
            self._keep(*next(self.pieces, (self.left[:0], self.reach[:0])))
        return self.asked < len(self.left) and bool(self.reach[self.asked] >= offer)

    def _ask(self) -> None:
        """Computes the offers of some more candidates, those of the largest bounds."""
        # The next ones whose bounds reach the best offer so far.
        some = self.reach[self.asked : self.asked + self.several]
        some = some[some >= (self.queue[-1][0] if self.queue else 0.0)]
        which = self.left[self.asked : self.asked + len(some)]
        self.asked, self.several = self.asked + len(some), 4 * self.several
        offers, self.steps[which], self.bounds[which] = self.planner.offers(
            which, self.gains[which], np.sqrt(self.own[which]), self.total, self.most, self.budget, self.errors
        )
        # Queue those that offer anything, by offer and gain for their room.
        room = self.room[which]
        entries = zip((offers / room).tolist(), (self.gains[which] / room).tolist(), (-which).tolist(), strict=True)
        self.queue = sorted([*self.queue, *(one for one in entries if one[0] > 0.0)])

    def changed(self, parts: Integers) -> None:
        """Updates gains and distances after these parts changed.

        Only candidates that share a query with them are touched.
        """
        # Candidates that hold a changed part: their own sums.
        planner = self.planner
        wholes = np.unique(planner._whole[planner._wholes_of.of(parts)])
        rows = planner._parts_of.of(wholes)
        which, part = planner._whole[rows], planner._part[rows]
        beyond = np.where(planner.single, 0.0, self.parts)
        self.own[wholes] = np.bincount(which, beyond[part], len(self.parts))[wholes]
        # Queries among them: their sums.
        queries = planner._asks.of(wholes)
        self.base[queries] = np.bincount(which, self.parts[part], len(self.parts))[planner.queries[queries]]
        # All open candidates in those queries: their gains.
        near = np.unique(planner._candidate[planner._held_by.of(queries)])
        near = near[self.open[near]]
        if len(near):
            entries = planner._held_in.of(near)
            gain = planner._gain(self.base, self.own, entries)
            self.gains[near] = np.bincount(planner._candidate[entries], gain, len(self.parts))[near]
            self.bounds[near] = self.gains[near]
        self.total = np.nan
