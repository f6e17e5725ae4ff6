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
zero, one above zero counts. `HeldSums` keep that from one-way marginals and first moments of pairs, sums of many cells.

The prior is flat, although fits shrink (`shrinkage`). A pull towards independence makes tables more accurate, and
coefficients too small by several of their standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedsyn.domain import Clique, Flags, Floats
from fedsyn.errors import InputError
from fedsyn.inference.estimation import Compiled
from fedsyn.inference.held_sums import HeldSums
from fedsyn.inference.junction_tree import axes_of
from fedsyn.inference.measurements import Evidence, LeastSquares, MeasuredGrid, Measurement, impossible, merge
from fedsyn.inference.model import Model
from fedsyn.inference.other_models import AnyModel
from fedsyn.inference.solvers import MirrorDescent, Problem
from fedsyn.randomness import RandomSource


def on_grids(model: Model, grids: Sequence[MeasuredGrid]) -> list[Floats]:
    """Returns a model's non-negative counts on each grid."""
    tables = model.project_many([grid.clique for grid in grids])
    return [np.maximum(grid.projected(table), 0.0) for grid, table in zip(grids, tables, strict=True)]


# Rows that stand for more: what they deviate is scaled.
_MOST_ROWS = 1 << 17
# Iterations of a fit. Sums are met in rounds: how they go together is known from rows of the last one's model.
_ITERATIONS, _ROUNDS = 30, 3
_SAMPLE = 1 << 14


class Posterior:
    """Draws of the population's distribution, given a run's released values.

    They cost no privacy, however many are made.

    Args:
        model: that the run fitted; the first fit starts there, and its structural zeros are kept.
        evidence: what it was fitted to.
        numbers: attribute -> the number that each of its values stands for, NaN of one that stands for none. Others are
            categories.

    Attributes:
        centre: the model of the least squares themselves, that draws scatter about.
        total: records, as released.

    Raises:
        InputError: a model without potentials, nothing was measured, or residuals without counts of their attributes.
    """

    def __init__(self, model: AnyModel, evidence: Evidence, numbers: Mapping[str, Floats] | None = None) -> None:
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
        ranked = {axes.rank[name]: values for name, values in (numbers or {}).items()}
        self._sums = HeldSums(self._grids, self._effects.one_way(self._values, self.total), self.total, ranked)
        # The centre, where draws start and that they scatter about, and its counts on each grid.
        tables, wanted = self._asked(self._values)
        theta = self._descended(self._compiled.potentials(model), tables)
        for _ in range(_ROUNDS):
            rows = self._compiled.model(theta).sample(_SAMPLE, np.random.default_rng(0))
            self._spread = self._sums.spread(rows)
            theta = self._sums.met(self._compiled, theta, wanted, self._spread)
        self._start, self.centre = theta, self._compiled.model(theta)
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
        return self._nearest([sum(each[1:], each[0]) for each in parts])

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

    def _nearest(self, values: Sequence[Floats]) -> Model:
        """Fits the nearest model to the least squares of some values.

        It has their sums."""
        tables, wanted = self._asked(values)
        theta = self._descended(self._start, tables)
        return self._compiled.model(self._sums.met(self._compiled, theta, wanted, self._spread))

    def _asked(self, values: Sequence[Floats]) -> tuple[list[Floats], Floats]:
        """Returns least-squares tables of some values, on each grid, and their sums.

        Nothing is in impossible cells.
        """
        signed, one_way = self._effects.tables(values, self.total)
        tables = [
            table if no is None else np.where(no, 0.0, table) for table, no in zip(signed, self._barred, strict=True)
        ]
        return tables, self._sums.wanted(tables, one_way)

    def _descended(self, start: Floats, tables: Sequence[Floats]) -> Floats:
        """Returns potentials of a model that is nearer to some tables."""
        compiled = self._compiled
        # What is asked for agrees, so a fit meets it whatever the weights: equal ones are met in the fewest steps.
        even = np.ones_like(compiled.scale)
        descent = MirrorDescent(Problem(compiled.calibrator, compiled.target(tables), even, seen=compiled.seen), start)
        descent.descend(_ITERATIONS)
        return descent.z
