"""What a run leaves uncertain: a posterior of the population's distribution given its released noisy marginals.

The rows of a run are n draws from a population p, and a measurement of a clique is M(rows) + N(0, sigma^2): given p it is
Gaussian about n M(p), with covariance n (diag M(p) - M(p) M(p)') for the rows (the central limit) and sigma^2 for the noise
(Raisa et al. 2023, NAPSU-MQ, sec. 3). In the MEAN coordinates m = n M(p) of the model this is a linear Gaussian
likelihood, and with a flat prior the posterior of m is Gaussian: its mean is the least squares of the measurements, its
covariance that of least squares of fresh noise plus that of fresh rows. That is the Laplace approximation in these
coordinates. Exact in it: the noise. Approximate: the rows' covariance is taken at the fitted model instead of at p, and
the Gaussian may leave the marginals that any table has.

A draw is made as it is defined (perturb, then optimise: Bardsley et al. 2014): values + fresh rows of the fitted model
minus what they have on average + fresh noise, least squares of these (`effects`), and of them the model that is nearest.
That last step is a projection onto distributions, and biased where cells are nearly empty: a noisy count below zero
counts as zero, one above zero counts. `Held` keeps it from one-way marginals and first moments of pairs, which are the
sums of many cells.

The prior is flat, although fits shrink (`shrinkage`): a pull towards independence makes tables more accurate and
regression coefficients too small, by several of their standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain
from fedsyn.errors import InputError
from fedsyn.inference.effects import Effects
from fedsyn.inference.empirical import AnyModel
from fedsyn.inference.estimation import estimate
from fedsyn.inference.fitting import EstimateConfig
from fedsyn.inference.held import Held
from fedsyn.inference.measurements import Measurement, Merged, merge
from fedsyn.inference.model import Model, from_rank_order, to_rank_order
from fedsyn.inference.triangulation import axes_of, bits
from fedsyn.randomness import RandomSource

Floats = npt.NDArray[np.float64]
# Rows that stand for more: what they deviate is scaled.
_MOST_ROWS = 1 << 17
_CONFIG = EstimateConfig(iterations=60)
# Of a projection, how often it is corrected towards what is held.
_CORRECTIONS = 3


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a run released and fitted its last model to.

    Attributes:
        measurements: noisy marginals in counts of the whole federation.
        total: records, as released.
    """

    measurements: tuple[Measurement, ...]
    total: float


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
        self._domain: Domain = model.domain
        self._axes = axes_of(self._domain)
        self._merged = [m for m in merge(self._axes, evidence.measurements) if m.mask]
        if not self._merged:
            raise InputError("error bars need the measurements of a run, and this one kept none")
        self._effects = Effects(self._axes, self._merged)
        self._shares = self._least_shares()
        self.centre = self._nearest({m.mask: m.values for m in self._merged}, model)
        self._expected = self._projected(self.centre)

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
        whole = {self._domain.canonical(m.clique) for m in self.measurements if m.noises is None}
        return tuple(sorted(q for q in whole if q and not any(set(q) < set(other) for other in whole)))

    def draw(self, rng: RandomSource) -> Model:
        """One model of the posterior; `rng` need not be kept: nothing is protected by it."""
        values = {}
        deviations = self._deviations(rng)
        for one in self._merged:
            noise = one.sigma * np.asarray(rng.standard_normal(one.values.shape))
            values[one.mask] = one.values + deviations[one.mask] + noise
        return self._nearest(values, self.centre)

    def _deviations(self, rng: RandomSource) -> dict[int, Floats]:
        """What fresh rows of the centre have in each clique beyond their average, in records, by mask."""
        rows = min(max(1, round(self.total)), _MOST_ROWS)
        codes = self.centre.sample(rows, rng, independent=True)
        factor, out = self.total / rows, {}
        for one in self._merged:
            away = self._counted(codes, one.mask) * factor - self._expected[one.mask]
            out[one.mask] = away / math.sqrt(factor * self._shares[one.mask])
        return out

    def _counted(self, codes: npt.NDArray[np.integer], mask: int) -> Floats:
        """Counts of rows over a clique, axes by rank."""
        columns = [codes[:, self._axes.order[rank]].astype(np.intp) for rank in bits(mask)]
        shape = self._axes.shape(mask)
        cells = np.ravel_multi_index(columns, shape)
        return np.bincount(cells, minlength=math.prod(shape)).astype(np.float64).reshape(shape)

    def _least_shares(self) -> dict[int, float]:
        out: dict[int, float] = {}
        for m in self.measurements:
            mask = self._axes.mask(m.clique)
            out[mask] = min(out.get(mask, 1.0), m.share)
        return out

    def _nearest(self, values: dict[int, Floats], start: Model) -> Model:
        """The model nearest to the least squares of some values."""
        aims = self._effects.tables(values, self.total, [m.mask for m in self._merged])
        held, given = Held(self._axes, aims), aims
        model = self._fitted(given, start)
        for _ in range(_CORRECTIONS):
            given = held.corrected(given, self._projected(model))
            model = self._fitted(given, model)
        return model

    def _fitted(self, tables: dict[int, Floats], start: Model) -> Model:
        measurements = [self._measurement(one, tables[one.mask]) for one in self._merged]
        return estimate(self._domain, measurements, total=self.total, config=_CONFIG, warm_start=start)

    def _measurement(self, one: Merged, table: Floats) -> Measurement:
        clique = self._axes.clique(one.mask)
        return Measurement(clique, from_rank_order(self._domain, clique, table), one.sigma)

    def _projected(self, model: Model) -> dict[int, Floats]:
        cliques = {m.mask: self._axes.clique(m.mask) for m in self._merged}
        found = model.project_many(cliques.values())
        return {
            mask: np.ascontiguousarray(to_rank_order(self._domain, clique, table))
            for (mask, clique), table in zip(cliques.items(), found, strict=True)
        }
