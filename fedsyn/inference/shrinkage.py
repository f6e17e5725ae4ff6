"""Shrinkage of a fit towards independence, and smoothing of its last model.

**Shrinkage** is k pseudo-records, from released values alone. A fit minimises 1/2 sum ||(M(p) - y)/sigma||^2 + k KL(p
|| p0), p0 the model of the one-way marginals. For p near p0 the second term is k/2 sum (p - p0)^2 / p0: the negative
logarithm of a Gaussian prior under which a cell strays from independence with variance p0 / k, as it would in k records
drawn from p0.

Empirical Bayes: under that prior the squared L2 distance of a marginal from p0's is (1 - sum p0^2) / k on average, and
noisy values estimate it without bias, ||y/n - p0||^2 - cells (sigma/n)^2. The ratio of the two sums is k. Of a linear
map of the marginal, 1 is the squared norm of what one record adds (`Departure.spread`).

**Smoothing** keeps possible rows off probability zero. A fit minimises a distance: noise that makes a count negative
makes the fitted one 0, and a row that falls there later is held impossible. Two rules of succession, neither with a
constant that was tuned:

1. *One attribute.* Its k probabilities have the prior Dirichlet(alpha/k, ..., alpha/k), alpha by empirical Bayes from
   all attributes: under the prior the squared distance from the uniform distribution is (1 - 1/k) / (1 + alpha) on
   average, so 1 + alpha is what `released_shrinkage` says of uniform values. A value that n records did not show has
   probability (alpha/k) / (n + alpha) in the next one. Fitted probabilities below that are raised to it; all others
   pay for it in proportion. Of the records it is n and not how many the noise lets us see: what noise hides is the
   fit's matter, which leaves probability to whatever noise explains (`solvers.Problem.is_explained`). Counting it twice
   lifted values that were known to be rare, since their sum was.
2. *The rows.* Independence (the product of these marginals) counts as one record more: weight 1 / (n + 1), the unit
   information prior (Kass & Wasserman 1995). The fit's own shrinkage has been used there.

Both are linear maps of tables. Raising f to g is the channel that moves least: a value is kept with probability
min(1, g/f), and otherwise drawn anew from (g - f)+. So the marginals of the cliques of a junction tree stay consistent,
and the model that has them is closed: potentials are their logarithms, minus those of the separators. Among all models
on the tree it is the nearest to the distribution of such rows (Kullback-Leibler). What structural zeros rule out stays
impossible; what a channel would put there is spread over all other rows in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsyn.domain import Domain, Floats
from fedsyn.inference.measurements import Measurement
from fedsyn.inference.model import Model
from fedsyn.table.counting.sums import cost


@dataclass(frozen=True, eq=False)
class Departure:
    """Noisy counts beside what independence would have there.

    The counts are of a partition of the rows, or a projection of such counts.

    Attributes:
        independent: (k,) probabilities under p0; projected alike.
        values: (k,) noisy counts.
        sigma: standard deviation of the noise in each of them, in records.
        spread: squared L2 norm of what one record adds to the values.
        noises: independent ones in the values; None: one each.
    """

    independent: Floats
    values: Floats
    sigma: float
    spread: float = 1.0
    noises: int | None = None


def released_shrinkage(departures: Iterable[Departure], total: float) -> float:
    """Returns the shrinkage, between 1 and the number of records.

    Distances count by their sum less one standard deviation of its noise: where nothing shows, the shrinkage is the
    number of records, and the model stays at independence.

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
    """Returns the shrinkage that measured marginals themselves imply.

    Only marginals of two or more attributes count.
    """
    departures = []
    for m in measurements:
        if len(m.clique) > 1:
            independent = m.of_cells(prior.project(m.clique)) / prior.total
            values, spread = np.asarray(m.values, np.float64), cost(np.shape(m.values)) if m.beyond else 1.0
            departures.append(Departure(independent, values.ravel(), m.sigma, spread, m.count if m.beyond else None))
    return released_shrinkage(departures, prior.total)


# Smoothing ------------------------------------------------------------------------------------------------------------


#: In impossible cells, and of values of which nothing is known: potentials have to be finite.
_TINY = 1e-300


def own_counts(domain: Domain, measurements: Sequence[Measurement]) -> dict[str, tuple[Floats, float]]:
    """Returns each attribute's noisy counts, and their standard deviation.

    All cliques that hold the attribute count, by inverse variance, except those measured in groups of cells, which tell
    nothing of single values here, and residuals, which tell nothing at all.
    """
    sums: dict[str, tuple[Floats, float]] = {}
    for m in measurements:
        if m.noises is not None or m.groups is not None or m.beyond:
            continue
        values = np.asarray(m.values, np.float64).reshape(domain.shape_of(m.clique))
        for axis, name in enumerate(m.clique):
            precision = domain[name] / (m.sigma**2 * values.size)
            before, known = sums.get(name, (np.zeros(domain[name]), 0.0))
            sums[name] = before + precision * _margin(values, axis), known + precision
    return {name: (weighed / known, known**-0.5) for name, (weighed, known) in sums.items()}


def least_shares(domain: Domain, measurements: Sequence[Measurement], total: float) -> dict[str, float]:
    """Returns the least probability of each attribute's values.

    Attributes of which nothing was measured are left out.

    Args:
        domain: the schema's.
        measurements: noisy counts of the whole federation.
        total: n, records.
    """
    known = {name: counts for name, counts in own_counts(domain, measurements).items() if domain[name] > 1}
    departures = [Departure(np.full(len(values), 1.0 / len(values)), values, sigma) for values, sigma in known.values()]
    alpha = max(released_shrinkage(departures, total) - 1.0, 1.0 / total)
    return {name: alpha / domain[name] / (total + alpha) for name in known}


def least_channel(before: Floats, after: Floats) -> tuple[Floats, Floats]:
    """Returns the channel between distributions that moves least.

    It has two parts, (k,) each: the probability that a value is kept, and the distribution from which it is drawn anew
    if it is not.
    """
    retained = np.divide(after, before, out=np.ones_like(before), where=before > after)
    lack = np.maximum(after - before, 0.0)
    return retained, lack / (lack.sum() or 1.0)


def smoothed(model: Model, shares: Mapping[str, float]) -> Model:
    """Returns the model after both rules.

    Args:
        model: of the fit, for n records.
        shares: least probability of a value, by attribute (`least_shares`).
    """
    domain, weight = model.domain, 1.0 / (model.total + 1.0)
    raised, channels = {}, {}
    for name, marginal in zip(domain.names, model.project_many([(name,) for name in domain.names]), strict=True):
        marginal = marginal / model.total
        raised[name] = np.maximum(marginal, shares.get(name, 0.0))
        raised[name] /= raised[name].sum()
        channels[name] = least_channel(marginal, raised[name])
    potentials, seen = {}, set[str]()
    for clique, table in zip(model.cliques, model.project_many(model.cliques), strict=True):
        table, independent = table / model.total, np.ones(())
        for axis, name in enumerate(clique):
            parts = table.reshape(math.prod(table.shape[:axis]), table.shape[axis], -1)
            retained, drawn = (part[:, None] for part in channels[name])
            anew = ((1.0 - retained) * parts).sum(axis=1, keepdims=True)
            table = (retained * parts + drawn * anew).reshape(table.shape)
            independent = np.multiply.outer(independent, raised[name])
        table = (1.0 - weight) * table + weight * independent
        barred = domain.impossible(clique)
        if barred is not None:
            table = np.where(barred, 0.0, table)
        # A clique comes after its parent in the tree: what it shares with all before it is its separator.
        alone = tuple(axis for axis, name in enumerate(clique) if name not in seen)
        margin = table.sum(alone, keepdims=True)
        potentials[clique] = np.log(np.maximum(table, _TINY)) - np.log(np.maximum(margin, _TINY))
        seen |= set(clique)
    return Model(domain, potentials, model.total, info=model.info)


def _margin(table: Floats, axis: int) -> Floats:
    """Returns sums over all axes but one, (k,)."""
    return np.asarray(table.sum(tuple(other for other in range(table.ndim) if other != axis)))
