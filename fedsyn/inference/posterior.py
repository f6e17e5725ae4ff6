"""Posterior of the population's distribution given released noisy marginals.

The rows of a run are n draws from a population p, and a measurement of a clique is M(rows) + N(0, sigma^2): given p it
is Gaussian about n M(p), with covariance n (diag M(p) - M(p) M(p)') for the rows (the central limit theorem) and
sigma^2 for the noise (Räisä et al. 2023, NAPSU-MQ, sec. 3). In the MEAN coordinates n M(p) of the model this is linear
and Gaussian, so with a flat prior the posterior is Gaussian: its mean is the least squares of the measurements, its
covariance that of the least squares of fresh noise, plus that of fresh rows. This is the Laplace approximation in
these coordinates. Exact in it: the noise. Approximate: the rows' covariance is taken at the fitted model instead of at
p, and the Gaussian goes beyond the marginals that a table can have.

A draw is made as it is defined (perturb, then optimise: Bardsley et al. 2014): the values + fresh rows of the fitted
model less what they have on average + fresh noise, the least squares of these (`effects`), and the model that is
nearest to them. This last step is a projection, and biased where cells are nearly empty: a count below zero counts as
zero, one above zero counts. `Held` keeps that from one-way marginals and first moments of pairs, sums of many cells.

The prior is flat, although fits shrink (`shrinkage`). A pull towards independence makes tables more accurate, and
coefficients too small by several of their standard errors.

A projection onto distributions must not move one-way marginals, nor first moments of pairs.

A fit to signed tables sets negative cells to zero and keeps positive ones. In a cell that is nearly empty this adds a
part of the noise, and in a row of such cells the parts add up: means go towards the tails, coefficients towards zero.
The sums themselves, of a row or of x y over a pair, are known without bias and with far less noise than their cells.
So what a fit missed of them is added to what it is asked for, and it is fitted again (Bregman iteration, Osher et al.
2005).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from fedsyn.domain import Clique, Flags, Floats
from fedsyn.errors import InputError
from fedsyn.inference.estimation import Compiled
from fedsyn.inference.junction_tree import axes_of
from fedsyn.inference.measurements import Evidence, LeastSquares, MeasuredGrid, Measurement, impossible, merge
from fedsyn.inference.model import Model
from fedsyn.inference.other_models import AnyModel
from fedsyn.inference.solvers import MirrorDescent, Problem
from fedsyn.randomness import RandomSource


class Held:
    """The held sums on some grids, from unbiased tables.

    Args:
        grids: of the measurements.
        aims: signed counts on each grid; they agree with each other.
        one_way: rank -> the signed counts of its values.
    """

    def __init__(self, grids: Sequence[MeasuredGrid], aims: Sequence[Floats], one_way: Mapping[int, Floats]) -> None:
        self.grids = grids
        self.aims = aims
        self._one_way = {rank: nearest_counts(counts) for rank, counts in one_way.items()}

    def corrected(self, targets: Sequence[Floats], fitted: Sequence[Floats]) -> list[Floats]:
        """Returns the next fit's target, so that it meets the held sums.

        Args:
            targets: of the last fit, on each grid.
            fitted: its result on each grid; not negative.
        """
        return [
            table + sum(self._missing(grid, aim, now), np.zeros(()))
            for grid, table, aim, now in zip(self.grids, targets, self.aims, fitted, strict=True)
        ]

    def _missing(self, grid: MeasuredGrid, aim: Floats, now: Floats) -> Iterator[Floats]:
        """Yields tables of what the fit misses of each held sum.

        Each is in the proportions of the fit.
        """
        for rank in grid.ranks:
            margin = grid.margin(now, (rank,))
            missed = grid.of_values(rank, self._one_way[rank]) - margin
            yield now * grid.across(missed / np.where(margin > 0, margin, 1.0), (rank,))
        for pair in combinations(grid.ranks, 2):
            joint = grid.margin(now, pair)
            first, second = (self._scores(grid, rank) for rank in pair)
            moment = np.multiply.outer(_centred(first, joint.sum(axis=1)), _centred(second, joint.sum(axis=0)))
            spread = float(np.add.reduce(joint * moment**2, None))
            if spread > 0:
                short = float(np.add.reduce((grid.margin(aim, pair) - joint) * moment, None))
                yield now * grid.across(moment * (short / spread), pair)

    def _scores(self, grid: MeasuredGrid, rank: int) -> Floats:
        """Returns 0, 1, ... for the values; a group has their mean."""
        counts = self._one_way[rank] + 1e-9  # an empty group has the mean of its values
        return grid.of_values(rank, counts * np.arange(len(counts))) / grid.of_values(rank, counts)


def _centred(scores: Floats, margin: Floats) -> Floats:
    return scores - np.average(scores, weights=margin)


def nearest_counts(counts: Floats) -> Floats:
    """Returns the nearest non-negative numbers with the same sum.

    The sum must be positive (Euclidean projection on a simplex).
    """
    total = float(np.add.reduce(counts))
    ordered = np.sort(counts)[::-1]
    over = (np.cumsum(ordered) - total) / np.arange(1, len(counts) + 1)
    shift = over[np.flatnonzero(ordered > over)[-1]]
    return np.asarray(np.maximum(counts - shift, 0.0))


def on_grids(model: Model, grids: Sequence[MeasuredGrid]) -> list[Floats]:
    """Returns a model's non-negative counts on each grid."""
    tables = model.project_many([grid.clique for grid in grids])
    return [np.maximum(grid.projected(table), 0.0) for grid, table in zip(grids, tables, strict=True)]


# Rows that stand for more: what they deviate is scaled.
_MOST_ROWS = 1 << 17
_ITERATIONS = 30
# A projection is corrected towards what is held in many short steps: each moves what the last one was short of.
_STEP, _STEPS = 8, 12


class Posterior:
    """Draws of the population's distribution, given a run's released values.

    They cost no privacy, however many are made.

    Args:
        model: that the run fitted; the first fit starts there, and its structural zeros are kept.
        evidence: what it was fitted to.

    Attributes:
        centre: the model of the least squares themselves, that draws scatter about.
        total: records, as released.

    Raises:
        InputError: a model without potentials, nothing was measured, or residuals without counts of their attributes.
    """

    def __init__(self, model: AnyModel, evidence: Evidence) -> None:
        if not isinstance(model, Model):
            raise InputError("error bars need a graphical model: this mechanism leaves rows or a mixture")
        self.total = evidence.total
        self.measurements = evidence.measurements
        self._domain = model.domain
        axes = axes_of(self._domain)
        # Values, impossible cells and grids of the merged measurements.
        merged = [m for m in merge(axes, evidence.measurements) if m.mask]
        if not merged:
            raise InputError("error bars need the measurements of a run, and this one kept none")
        self._values = [m.values for m in merged]
        self._barred = [impossible(axes, m.mask, m.index, m.values.shape) for m in merged]
        self._grids = [MeasuredGrid.of(axes, m) for m in merged]
        self._compiled = Compiled(self._domain, merged, self.total, model)
        # Least share of the rows that any measurement of a clique saw.
        shares: dict[int, float] = {}
        for m in evidence.measurements:
            mask = axes.mask(m.clique)
            shares[mask] = min(shares.get(mask, 1.0), m.share)
        self._shares = [shares[grid.mask] for grid in self._grids]
        try:
            self._effects = LeastSquares(self._grids)
        except ValueError as error:
            raise InputError(f"error bars need more measurements than this run kept: {error}") from None
        # The centre, where draws start, and its counts on each grid.
        self.centre = self._nearest(self._values, self._compiled.potentials(model))
        self._start = self._compiled.potentials(self.centre)
        self._expected = on_grids(self.centre, self._grids)

    @classmethod
    def of(cls, model: AnyModel, measurements: Sequence[Measurement]) -> Posterior:
        """Builds the posterior of a model and its last fit's measurements."""
        return cls(model, Evidence(tuple(measurements), model.total))

    def holds(self, columns: Iterable[str]) -> bool:
        """Returns whether these columns were measured together, cell by cell.

        Otherwise draws cannot know their distribution.
        """
        wanted = set(columns)
        return any(wanted <= set(clique) for clique in self.held)

    @property
    def held(self) -> tuple[Clique, ...]:
        """Largest cliques that were measured cell by cell.

        They are in domain order. Cliques measured in groups of cells do not count.
        """
        whole = {self._domain.canonical(grid.clique) for grid in self._grids if grid.is_fine}
        whole -= {self._domain.canonical(m.clique) for m in self.measurements if m.noises is not None}
        return tuple(sorted(q for q in whole if not any(set(q) < set(other) for other in whole)))

    def draw(self, rng: RandomSource) -> Model:
        """Draws one model of the posterior.

        Nothing is protected by the secrecy of `rng`.
        """
        noise = [self._noise(grid, no, rng) for grid, no in zip(self._grids, self._barred, strict=True)]
        parts = zip(self._values, self._deviations(rng), noise, strict=True)
        return self._nearest([sum(each[1:], each[0]) for each in parts], self._start)

    @staticmethod
    def _noise(grid: MeasuredGrid, barred: Flags | None, rng: RandomSource) -> Floats:
        """Draws fresh noise of one measurement.

        Impossible cells have no noise on counts, which are known to be 0, but on residuals.
        """
        noise: Floats = grid.sigma * np.asarray(rng.standard_normal(grid.shape))
        return noise if barred is None or grid.beyond else np.where(barred, 0.0, noise)

    def _deviations(self, rng: RandomSource) -> list[Floats]:
        """Returns how far fresh rows stray from the centre, on each grid.

        It is what they have beyond their average, in records.
        """
        rows = min(max(1, round(self.total)), _MOST_ROWS)
        codes = self.centre.sample(rows, rng, independent=True)
        factor = self.total / rows
        triples = zip(self._grids, self._expected, self._shares, strict=True)
        return [(g.counted(codes) * factor - at) / math.sqrt(factor * share) for g, at, share in triples]

    def _nearest(self, values: Sequence[Floats], start: Floats) -> Model:
        """Fits the model nearest to the least squares of some values.

        `start` are the potentials to start from.
        """
        compiled = self._compiled
        aims, one_way = self._effects.tables(values, self.total)
        held, targets = Held(self._grids, aims, one_way), aims
        # What is asked for agrees, so a fit meets it whatever the weights: equal ones are met in the fewest steps.
        even = np.ones_like(compiled.scale)
        descent = MirrorDescent(Problem(compiled.calibrator, self._target(targets), even, seen=compiled.seen), start)
        descent.descend(_ITERATIONS)
        for _ in range(_STEPS):
            targets = held.corrected(targets, self._counts())
            descent.aim(self._target(targets))
            descent.descend(_STEP)
        return compiled.model(descent.z)

    def _target(self, tables: Sequence[Floats]) -> Floats:
        """Returns the target of a fit, with nothing in impossible cells."""
        pairs = zip(tables, self._barred, strict=True)
        return self._compiled.target(table if no is None else np.where(no, 0.0, table) for table, no in pairs)

    def _counts(self) -> list[Floats]:
        """Returns the calibrator's counts on each grid, none negative."""
        seen = np.maximum(self._compiled.seen.of(self._compiled.calibrator.marginals), 0.0) * self.total
        ends = np.cumsum([math.prod(grid.shape) for grid in self._grids])[:-1]
        return [part.reshape(grid.shape) for part, grid in zip(np.split(seen, ends), self._grids, strict=True)]
