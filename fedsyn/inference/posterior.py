"""What a run leaves uncertain: a posterior of the population's distribution given its released noisy marginals.

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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique
from fedsyn.errors import InputError
from fedsyn.inference.effects import Effects
from fedsyn.inference.empirical import AnyModel
from fedsyn.inference.estimation import estimate
from fedsyn.inference.evidence import Evidence
from fedsyn.inference.fitting import EstimateConfig
from fedsyn.inference.grids import Grid, on_grids
from fedsyn.inference.held import Held
from fedsyn.inference.measurements import Measurement, merge
from fedsyn.inference.model import Model
from fedsyn.inference.triangulation import axes_of
from fedsyn.randomness import RandomSource

Floats = npt.NDArray[np.float64]
# Rows that stand for more: what they deviate is scaled.
_MOST_ROWS = 1 << 17
_CONFIG = EstimateConfig(iterations=60)
# How often a projection is corrected towards what is held.
_CORRECTIONS = 3


class Posterior:
    """Draws of the population's distribution given what a run released. Costs no privacy, however often.

    Args:
        model: that the run fitted; every fit starts there, and its structural zeros are kept.
        evidence: what it was fitted to.

    Attributes:
        centre: the model of the least squares themselves, that draws scatter about.
        total: records, as released.

    Raises:
        InputError: a model without potentials, or nothing was measured.
    """

    def __init__(self, model: AnyModel, evidence: Evidence) -> None:
        if not isinstance(model, Model):
            raise InputError("error bars need a graphical model: this mechanism leaves rows or a mixture")
        self.total = evidence.total
        self.measurements = evidence.measurements
        self._domain = model.domain
        axes = axes_of(self._domain)
        merged = [m for m in merge(axes, evidence.measurements) if m.mask]
        if not merged:
            raise InputError("error bars need the measurements of a run, and this one kept none")
        self._values = [m.values for m in merged]
        self._grids = [Grid.of(axes, m) for m in merged]
        shares: dict[int, float] = {}
        for m in evidence.measurements:
            mask = axes.mask(m.clique)
            shares[mask] = min(shares.get(mask, 1.0), m.share)
        self._shares = [shares[grid.mask] for grid in self._grids]
        self._effects = Effects(self._grids)
        self.centre = self._nearest(self._values, model)
        self._expected = on_grids(self.centre, self._grids)

    @classmethod
    def of(cls, model: AnyModel, measurements: Sequence[Measurement]) -> Posterior:
        """Of a run in this process: its model, whose total is the run's, and what it was last fitted to."""
        return cls(model, Evidence(tuple(measurements), model.total))

    def holds(self, columns: Iterable[str]) -> bool:
        """Whether the distribution of these columns together was measured, cell by cell: else draws cannot know it."""
        wanted = set(columns)
        return any(wanted <= set(clique) for clique in self.held)

    @property
    def held(self) -> tuple[Clique, ...]:
        """The largest cliques that were measured cell by cell (not in groups of cells), in domain order."""
        whole = {self._domain.canonical(grid.clique) for grid in self._grids if grid.is_fine}
        whole -= {self._domain.canonical(m.clique) for m in self.measurements if m.noises is not None}
        return tuple(sorted(q for q in whole if not any(set(q) < set(other) for other in whole)))

    def draw(self, rng: RandomSource) -> Model:
        """One model of the posterior; nothing is protected by the secrecy of `rng`."""
        noise = [grid.sigma * np.asarray(rng.standard_normal(grid.shape)) for grid in self._grids]
        parts = zip(self._values, self._deviations(rng), noise, strict=True)
        return self._nearest([sum(each[1:], each[0]) for each in parts], self.centre)

    def _deviations(self, rng: RandomSource) -> list[Floats]:
        """What fresh rows of the centre have on each grid beyond their average, in records."""
        rows = min(max(1, round(self.total)), _MOST_ROWS)
        codes = self.centre.sample(rows, rng, independent=True)
        factor = self.total / rows
        triples = zip(self._grids, self._expected, self._shares, strict=True)
        return [(g.counted(codes) * factor - at) / math.sqrt(factor * share) for g, at, share in triples]

    def _nearest(self, values: Sequence[Floats], start: Model) -> Model:
        """The model nearest to the least squares of some values."""
        aims, one_way = self._effects.tables(values, self.total)
        held, given = Held(self._grids, aims, one_way), aims
        model = self._fitted(given, start)
        for _ in range(_CORRECTIONS):
            given = held.corrected(given, on_grids(model, self._grids))
            model = self._fitted(given, model)
        return model

    def _fitted(self, tables: Sequence[Floats], start: Model) -> Model:
        measurements = [grid.measurement(table) for grid, table in zip(self._grids, tables, strict=True)]
        return estimate(self._domain, measurements, total=self.total, config=_CONFIG, warm_start=start)
