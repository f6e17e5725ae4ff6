"""How far a fit is shrunk towards independence: k pseudo-records, from released values alone.

A fit minimises 1/2 sum ||(M(p) - y)/sigma||^2 + k KL(p || p0), p0 the model of the one-way marginals. For p near p0 the
second term is k/2 sum (p - p0)^2 / p0: the negative logarithm of a Gaussian prior under which a cell strays from
independence with variance p0 / k, as it would in k records drawn from p0. So k, the shrinkage, counts pseudo-records.

Empirical Bayes: under that prior the squared L2 distance of a marginal from p0's is (1 - sum p0^2) / k on average, and
noisy values estimate it without bias, ||y/n - p0||^2 - cells (sigma/n)^2. The ratio of the two sums is k. Of a linear
map of the marginal, 1 is the squared norm of what one record adds (`Departure.spread`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsyn.inference.measurements import Measurement
from fedsyn.inference.model import Model
from fedsyn.table.counting.residuals import cost


@dataclass(frozen=True, eq=False)
class Departure:
    """Noisy counts of a partition of the rows, or a projection of such counts, and what independence has there.

    Attributes:
        independent: (k,) probabilities under p0; projected alike.
        values: (k,) noisy counts.
        sigma: standard deviation of the noise in each of them, in records.
        spread: squared L2 norm of what one record adds to the values.
        noises: independent ones in the values; None: one each.
    """

    independent: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]
    sigma: float
    spread: float = 1.0
    noises: int | None = None


def released_shrinkage(departures: Iterable[Departure], total: float) -> float:
    """Return the shrinkage, between 1 and the number of records.

    Counted of the distances is what is left of their sum without one standard deviation of its noise: where nothing
    shows, the shrinkage is as many as all records, and the model stays at independence.

    Args:
        departures: of cliques of two or more attributes.
        total: n, records.
    """
    expected, strayed, variance = 0.0, 0.0, 0.0
    for departure in departures:
        noise = (departure.sigma / total) ** 2
        away = np.asarray(departure.values, np.float64) / total - departure.independent
        noises = away.size if departure.noises is None else departure.noises
        expected += departure.spread - float(np.add.reduce(departure.independent**2))
        strayed += float(np.add.reduce(away**2)) - noises * noise
        variance += 2.0 * noises * noise**2
    strayed -= math.sqrt(variance)
    return max(1.0, total) if strayed * total <= expected else max(1.0, expected / strayed)


def of_measurements(measurements: Iterable[Measurement], prior: Model) -> float:
    """Return the shrinkage that the measured marginals of two or more attributes themselves tell."""
    departures = []
    for m in measurements:
        if len(m.clique) > 1:
            independent = m.of_cells(prior.project(m.clique)) / prior.total
            values, spread = np.asarray(m.values, np.float64), cost(np.shape(m.values)) if m.beyond else 1.0
            departures.append(Departure(independent, values.ravel(), m.sigma, spread, m.count if m.beyond else None))
    return released_shrinkage(departures, prior.total)


__all__ = ["Departure", "of_measurements", "released_shrinkage"]
