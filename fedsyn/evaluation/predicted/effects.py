"""Knowledge of each effect of a table, from released values.

Effects are the parts of its marginals' errors.

A marginal of clique q is the sum of its effects, one for each subset s of q: what s has beyond its own parts. They are
orthogonal, and s has d_s = prod (g_a - 1) of the k_q = prod g_a dimensions, g_a the effective number of values of an
attribute. So the error of a model on q is the sum of its errors on the effects, and those are of three kinds:

- **Rows.** n rows scatter about their population: in a cell that expects lambda records, with variance lambda. A model
  knows of it what was measured.
- **Associations.** What s has in the population and the model has not: a relative error R_s, the same in every cell on
  average. Of a measured effect, R_s^2 is what its noisy counts have beyond independence, less noise and rows. Of a
  sketched one, what is to be believed of it after the sketch's distance from the last model (`believed`).
- **Noise.** A measured effect has noise of sigma_s in each cell, and the fit keeps the share w of all three that least
  squares would: w = noise / (noise + rows + associations), 1 where nothing was measured.

Everything here is a function of released values: the model, the noisy marginals, the noisy sketches. It may be
published, and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import gammainc, log_ndtr, ndtri, ndtri_exp

from fedsyn.domain import Clique, Domain
from fedsyn.inference.measurements import Evidence, Measurement
from fedsyn.inference.model import Model
from fedsyn.inference.other_models import EmpiricalModel
from fedsyn.selection.coarse import has_order
from fedsyn.selection.factors import Cuts
from fedsyn.selection.views import ModelView, effective_cells
from fedsyn.table.counting.sums import Groups, cost, group_of_cells, residual
from fedsyn.table.counting.workload import downward_closure, subsets

Floats = npt.NDArray[np.float64]
#: The relative error of nothing known: every cell is off by all that it has, on average.
MOST = 4.0
_GRID = np.exp(np.linspace(math.log(1e-7), math.log(MOST), 120))
_SHAPES = (0.1, 0.2, 0.4, 1.0)
_Z = float(ndtri(0.95))  # of a normal variable: nine of ten lie between -z and z
_LEAST = 1e-3  # of the looks' spread: a prior's mean, where looks show nothing
#: A model whose marginals can be formed.
Released = Model | EmpiricalModel
Source = Literal["measured", "sketched", "inferred", "unknown"]


@dataclass(frozen=True, eq=False)
class SketchError:
    """A released sketch's word on the last model, for one clique.

    Attributes:
        clique: two attributes or more.
        squared: unbiased squared L2 distance of the sketch and the model's, in records^2.
        spread: its standard deviation by noise.
        rows: what the scatter of the rows themselves adds to it on average.
        support: cells, or groups, that the distance is spread over.
        groups: of each attribute, the group of each value; None: the sketch sees cells of any shape.
        alone: the squared distance from independent attributes, unbiased too; None: not known.
        noises: independent ones in the sketch.
        scored: those of its attributes without an order whose values were put in one by released values.
    """

    clique: Clique
    squared: float
    spread: float
    rows: float
    support: float
    groups: tuple[npt.NDArray[np.integer], ...] | None = None
    alone: float | None = None
    noises: int = 1
    scored: Sequence[str] = ()


@dataclass(frozen=True)
class Scenario:
    """A run that might have been.

    Attributes:
        rows: times as many.
        noise: times the noise.
        all_seen: every association that was sketched or measured is in the model, as in a tree without limits.
        world: of `Beliefs.worlds`; None: associations are what is to be believed of them.
    """

    rows: float = 1.0
    noise: float = 1.0
    all_seen: bool = False
    world: int | None = None


@dataclass(frozen=True)
class Share:
    """Remaining shares of an effect's error.

    `rows` is what remains of the rows' variance, `relative` of the squared relative error.
    """

    rows: float
    relative: float


@dataclass(frozen=True, eq=False)
class Coarse:
    """A measurement in groups of values.

    Attributes:
        index: (cells,) group of each cell.
        variance: of the noise in a group.
        share: of the effect's dimensions that the groups have.
        visible: share of R^2 that they show.
    """

    index: npt.NDArray[np.int64]
    variance: float
    share: float
    visible: float


@dataclass(frozen=True, eq=False)
class Effect:
    """One effect and what was released of it.

    Attributes:
        expected: (cells,) records that each cell of the clique's marginal should have.
        dimensions: d / k, the share of the marginal's dimensions that are its own.
        squared: R^2.
        spread: standard deviation of R^2.
        precision: 1 / variance of the noise in a cell; 0: not measured cell by cell.
        coarse: of what was measured in groups.
        source: where R^2 comes from.
    """

    expected: Floats
    dimensions: float
    squared: float
    spread: float
    precision: float
    coarse: tuple[Coarse, ...]
    source: Source

    def left(self, scenario: Scenario) -> Share:
        """Returns the share of the effect's error that remains.

        It holds for the last model of a run under the scenario.
        """
        lam = self.expected * scenario.rows
        rows = relative = 1.0
        if self.precision > 0:
            noise = self.dimensions * scenario.noise**2 / self.precision
            rows, relative = _averages(lam, noise / (lam * self.dimensions + self.squared * lam**2 + noise))
        for m in self.coarse:
            inside, share = np.bincount(m.index, lam), self.dimensions * m.share
            noise = share * scenario.noise**2 * m.variance
            remaining = noise / (inside * share + m.visible * self.squared * inside**2 + noise)
            group_rows, group_relative = _averages(lam, remaining[m.index])
            rows, relative = (
                min(rows, 1.0 - m.share * (1.0 - group_rows)),
                min(relative, 1.0 - m.visible * (1.0 - group_relative)),
            )
        if scenario.all_seen and self.source in ("measured", "sketched"):
            relative = 0.0 if not (self.precision or self.coarse) else relative
        return Share(rows, relative)


def _averages(lam: Floats, left: Floats) -> tuple[float, float]:
    """Averages the remaining share over the cells.

    The first result weighs cells for errors like sqrt(lambda), the second for errors like lambda (squared L1 norms).
    """
    root, off = np.sqrt(lam), np.sqrt(left)
    return float((root * off).sum() / root.sum()) ** 2, float((lam * off).sum() / lam.sum()) ** 2


def part_of(domain: Domain, m: Measurement, part: Clique) -> Measurement:
    """Returns a measurement of a part of a clique.

    A measurement of residuals gives the part's residuals. Axes come in the part's order.
    """
    groups = None if m.groups is None else dict(zip(m.clique, m.groups, strict=True))
    shape = domain.shape_of(m.clique) if m.groups is None else tuple(int(grouping.max()) + 1 for grouping in m.groups)
    values = np.asarray(m.values, np.float64).reshape(shape)
    axes = [m.clique.index(name) for name in part]
    others = tuple(axis for axis in range(len(shape)) if axis not in axes)
    order = np.argsort(np.argsort(axes))
    summed = values.sum(axis=others).transpose(order) if others else values.transpose(axes)
    sigma = m.sigma * math.sqrt(math.prod(shape[axis] for axis in others))
    part_groups = None if groups is None else tuple(groups[name] for name in part)
    return replace(m, clique=part, values=summed, sigma=sigma, groups=part_groups, noises=None if others else m.noises)


def independent(masses: Mapping[str, Floats], clique: Clique) -> Floats:
    """Returns cell probabilities of independent attributes, (cells,).

    Flat in the clique's order.
    """
    cells = np.ones(1)
    for name in clique:
        cells = (cells[:, None] * masses[name]).ravel()
    return cells


class Effects:
    """The effects inside some cliques.

    Args:
        model: the last one.
        evidence: what it was fitted to.
        sketch_errors: of it.
        cliques: in domain order.
    """

    def __init__(
        self, model: Released, evidence: Evidence, sketch_errors: Iterable[SketchError], cliques: Iterable[Clique]
    ) -> None:
        self.model, self.domain, self.rows = model, model.domain, model.total
        self._needed = downward_closure(cliques, self.domain)
        ones = [(name,) for name in self.domain]
        view = ModelView(model)  # type: ignore[arg-type]  # rows of GUM have marginals too
        self.masses = {name: p for (name,), p in zip(ones, view.probabilities(ones), strict=True)}
        self.supports = {name: max(1.0, float(effective_cells(p))) for name, p in self.masses.items()}
        self._shares: dict[tuple[str, bytes], float] = {}  # of an attribute and its groups; many pairs have the same
        self._measured: dict[Clique, list[Measurement]] = {}
        for m in evidence.measurements:
            if m.clique:
                self._measured.setdefault(self.domain.canonical(m.clique), []).append(m)
        self._by_part: dict[Clique, list[Clique]] = {}
        for clique in self._measured:
            counted = any(not m.beyond for m in self._measured[clique])  # residuals tell nothing of one attribute
            for part in subsets(clique):
                if counted or len(part) > 1:
                    self._by_part.setdefault(part, []).append(clique)
        self._kinds: dict[int, tuple[Beliefs, dict[Clique, int]]] = {}
        sketch_errors = list(sketch_errors)
        self._scored = frozenset(name for one in sketch_errors for name in one.scored)
        self._seen = self._of_sketches(sketch_errors)
        # Marginals of those alone that were measured: nothing of any other effect depends on its cells.
        known = [s for s in self._needed if s in self._by_part]
        self._marginals = dict(zip(known, view.probabilities(known), strict=True))
        self._found: dict[Clique, Effect] = {}
        for part in self._needed:
            self._found[part] = self._effect(part)
        self._infer()

    def __getitem__(self, part: Clique) -> Effect:
        return self._found[part]

    def dimensions(self, part: Clique) -> float:
        """d_s, in effective values."""
        return math.prod(self.supports[name] - 1.0 for name in part)

    def cells(self, part: Clique) -> float:
        """k_s, in effective values."""
        return math.prod(self.supports[name] for name in part)

    def is_measured(self, clique: Clique) -> bool:
        """Returns whether an effect's marginal was measured.

        A larger clique's marginal counts, too.
        """
        return clique in self._by_part

    def measured(self, part: Clique) -> list[Measurement]:
        """Returns the measurements' word on a part of their cliques."""
        return [
            part_of(self.domain, m, part)
            for clique in self._by_part.get(part, ())
            for m in self._measured[clique]
            if not m.beyond or len(part) > 1
        ]

    # One effect -------------------------------------------------------------------------------------------------------

    def _effect(self, part: Clique) -> Effect:
        share = max(self.dimensions(part) / self.cells(part), 1e-9)
        if part not in self._by_part:
            squared, spread = self._seen.get(part, (0.0, 0.0))
            source: Source = "sketched" if part in self._seen else "unknown"
            return Effect(np.ones(1), share, squared, spread, 0.0, (), source)
        expected = self.rows * self._marginals[part]
        precision, coarse, beyond = 0.0, list[Coarse](), list[tuple[float, float]]()
        for measurement in self.measured(part):
            if measurement.groups is None:
                precision += 1.0 / measurement.sigma**2
            else:
                coarse.append(self._coarse(measurement))
            if len(part) > 1:
                beyond.append(self._beyond(measurement))
        squared = 1.0
        if beyond:
            values, weights = zip(*beyond, strict=True)
            squared = min(MOST, max(0.0, float(np.average(values, weights=weights))))
        return Effect(expected, share, squared, 0.0, precision, tuple(coarse), "measured")

    def _coarse(self, m: Measurement) -> Coarse:
        """Returns a grouped measurement's word on its own effect."""
        assert m.groups is not None
        groups = [min(self.supports[a], float(g.max()) + 1.0) for a, g in zip(m.clique, m.groups, strict=True)]
        share = math.prod(g - 1.0 for g in groups) / max(self.dimensions(m.clique), 1e-9)
        index, _ = group_of_cells(m.groups)
        return Coarse(index, m.sigma**2, min(1.0, max(share, 1e-9)), self._visible(m.clique, m.groups))

    def _beyond(self, m: Measurement) -> tuple[float, float]:
        """Returns R^2 of a measured clique, and its weight.

        R^2 comes from the counts beyond independence, less noise and rows.
        """
        apart = independent(self.masses, m.clique)
        whole = replace(m, beyond=False).of_cells(self.rows * apart)
        shape = np.shape(m.values)
        off = np.asarray(m.values, np.float64).ravel() - whole
        if m.beyond:
            off = residual(off.reshape(shape)).ravel()
        rows = (cost(shape) if m.beyond else 1.0) * float(whole.sum())
        scale = float(effective_cells(whole / whole.sum())) / self.rows**2 / self._visible(m.clique, m.groups)
        squared = float(off @ off) - m.count * m.sigma**2 - rows
        # A constant column has no residuals, which is known for certain.
        return squared * scale, 1.0 / max(scale**2 * m.count * m.sigma**4, 1e-200)

    # Effects that were not measured -----------------------------------------------------------------------------------

    def _of_sketches(self, sketch_errors: Sequence[SketchError]) -> dict[Clique, tuple[float, float]]:
        """Returns R^2 and its spread, of what was sketched.

        Cliques of one size have a prior of their own.
        """
        posteriors: dict[Clique, tuple[float, float]] = {}
        for size in sorted({len(g.clique) for g in sketch_errors}):
            # Looks at R^2 by the sketches of this size: at independence, at the last model, and their spread.
            some = [g for g in sketch_errors if len(g.clique) == size]
            scale = np.array([g.support / (self.rows**2 * self._visible(g.clique, g.groups)) for g in some])
            spread = np.array([g.spread + g.rows * math.sqrt(2.0 / g.noises) for g in some])
            last = np.array([g.squared - g.rows for g in some])
            alone = np.array([(g.squared if g.alone is None else g.alone) - g.rows for g in some])
            parts = [self.domain.canonical(g.clique) for g in some]
            looks = alone * scale, last * scale, np.maximum(spread * scale, 1e-12)
            # Posteriors under the prior that these looks teach.
            beliefs = believed(*looks, self._left(*looks, np.array([part not in self._by_part for part in parts])))
            self._kinds[size] = beliefs, {part: i for i, part in enumerate(parts)}
            posteriors |= dict(
                zip(parts, zip(beliefs.means.tolist(), beliefs.spreads.tolist(), strict=True), strict=True)
            )
        return posteriors

    @staticmethod
    def _left(alone: Floats, last: Floats, spread: Floats, unmeasured: npt.NDArray[np.bool_]) -> float:
        """Returns what the model leaves of unmeasured effects.

        The share is 1 where their looks are noise.
        """
        noise = math.sqrt(float((spread[unmeasured] ** 2).sum()))
        if noise <= 0:
            return 1.0
        sums = (max(0.0, float(looks[unmeasured].sum())) + noise for looks in (last, alone))
        return min(1.0, next(sums) / next(sums))

    def squared(self, part: Clique, world: int | None) -> float:
        """Returns R^2 of an effect in a world that looks leave open.

        Of three columns and more nothing is known where no sketch saw any. They are taken for none, and in the largest
        world for as much as a pair has at most: what more columns have beyond their pairs is seldom more.
        """
        effect, size = self[part], len(part)
        if world is None or effect.source == "measured":
            return effect.squared
        if size in self._kinds:
            beliefs, places = self._kinds[size]
            return float(beliefs.worlds[world, places[part]] if part in places else beliefs.firsts[world])
        return self._kinds[2][0].most if world and size > 2 and 2 in self._kinds else effect.squared

    def _visible(self, clique: Clique, groups: Groups | None) -> float:
        """Returns the share of an association that groups show."""
        if groups is None:
            return 1.0
        return math.prod(self.visible(name, grouping) for name, grouping in zip(clique, groups, strict=True))

    def visible(self, name: str, groups: npt.NDArray[np.integer]) -> float:
        """Returns one attribute's share of an association that groups show.

        It is that of normal scores where values have an order, or released scores gave them one. Elsewhere it is
        `visible_anywhere`.
        """
        key = name, groups.tobytes()
        if key not in self._shares:
            in_order = has_order(self.domain, name) or name in self._scored
            self._shares[key] = (visible if in_order else visible_anywhere)(self.masses[name], groups)
        return self._shares[key]

    def _infer(self) -> None:
        """Infers R^2 of pairs of which nothing was released.

        They get the mean and the spread of the prior, learned from the sketched pairs.

        What was measured says nothing of the others: a mechanism chose it for being unlike them. Nor does a size tell
        of another one, so associations of three attributes are taken for none where no sketch saw any.
        """
        if 2 not in self._kinds:
            return
        mean, spread = self._kinds[2][0].prior
        for part, effect in self._found.items():
            if len(part) == 2 and effect.source == "unknown":
                self._found[part] = replace(effect, squared=mean, spread=spread, source="inferred")


def visible(mass: Floats, groups: npt.NDArray[np.integer]) -> float:
    """Returns how much variance lies between groups, 0 to 1.

    The variance is that of an attribute's normal scores, the groups those of its values.
    """
    whole, between = _score_variance(mass), _score_variance(np.bincount(groups, mass))
    return min(1.0, between / max(whole, 1e-9)) or 1e-3


def visible_anywhere(mass: Floats, groups: npt.NDArray[np.integer]) -> float:
    """Returns how much variance lies between groups of values without an order.

    It is that of a relative error e which is as large in every value on average, and independent: of sum p e^2, groups
    have sum P (sum p e / P)^2, P the mass of a group. Both are less the square of the mean, which is 0.
    """
    squares = np.asarray(mass, np.float64) ** 2
    joined = np.bincount(groups, mass)
    between = float((np.bincount(groups, squares)[joined > 0] / joined[joined > 0]).sum())
    alone = float(squares.sum())
    return min(1.0, max(0.0, between - alone) / max(1.0 - alone, 1e-9)) or 1e-3


def _score_variance(mass: npt.ArrayLike) -> float:
    """Returns the variance of E[z | value].

    z normal and cut at the values' masses, in their order.
    """
    cuts = Cuts.of(mass, np.arange(np.size(mass)))
    return float((cuts.moments(1)[:, 0] ** 2 / cuts.mass).sum())


# Beliefs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Beliefs:
    """Posteriors of some R^2.

    Attributes:
        means: (effects,) of each.
        spreads: (effects,) its standard deviation, the prior held fixed.
        first: mean of the prior.
        worlds: (2, effects) mean of each under the least and the largest prior that the looks leave open.
        firsts: (2,) the means of these two, less what the model explains.
        most: the mean of the largest prior, at independence.
    """

    means: Floats
    spreads: Floats
    first: float
    worlds: Floats
    firsts: Floats
    most: float

    @property
    def prior(self) -> tuple[float, float]:
        """Returns mean and standard deviation of an unseen effect.

        They hold for an effect of this kind that nobody looked at.
        """
        variance = 2.0 * self.first**2 + float(np.diff(self.firsts)[0] / 2.0 / _Z) ** 2
        return self.first, math.sqrt(variance)


def believed(alone: Floats, last: Floats, spread: Floats, left: float = 1.0) -> Beliefs:
    """Returns the posteriors of some effects after noisy looks at them.

    They hold however the looks were used. The squared relative errors R_i^2 of one kind of effects have a common prior,
    Gamma; its shape is below 1 where few of them are large. Its mean is the mean of the looks x_i = R_i^2 + N(0, s_i^2)
    at independence, of ALL effects of the kind, which are unbiased whatever was done with them afterwards, and its
    shape what these looks are likeliest under. Each effect's posterior comes from its own look at the last model. Looks
    of what a plan left alone are too small, since large ones were chosen; a posterior draws them up to the prior, and a
    mean of unbiased looks over them would not.

    Where many columns share one factor, a model of some pairs explains a part of all others. What it leaves of those
    that it did not measure is the ratio of their looks' sums, at the last model and at independence: the same sketches
    see both, so what chose them is in both. The prior's mean is that part of what it is at independence.

    The mean of the prior is an estimate itself. What noise leaves open of it is a normal variable, cut at 0 since no
    mean of squares is negative. Two worlds, at 5% and at 95% of that, move all effects of a kind together.

    Args:
        alone: (effects,) unbiased looks at R^2 from independence, which the prior is learned from.
        last: (effects,) the same from the last model.
        spread: (effects,) their standard deviations, positive.
        left: what a model leaves of an effect that it did not measure: 1 where it explains none of them.
    """
    least = _LEAST * float(spread.mean())
    mean, error = float(alone.mean()), math.sqrt(float(spread @ spread)) / len(spread)
    first, latest = _likelihoods(alone, spread), _likelihoods(last, spread)
    middle, *firsts = np.clip([mean, *_cut_at_zero(mean, error)], least, MOST).tolist()
    worlds = np.array([_posterior(first, latest, each, left)[0] for each in firsts])
    means, spreads = _posterior(first, latest, middle, left)
    return Beliefs(means, spreads, left * middle, worlds, left * np.array(firsts), firsts[1])


def _cut_at_zero(mean: float, spread: float) -> Floats:
    """Returns 5% and 95% points of a normal variable above 0.

    >>> _cut_at_zero(0.0, 1.0).round(3).tolist(), _cut_at_zero(10.0, 1.0).round(3).tolist()
    ([0.063, 1.96], [8.355, 11.645])
    """
    above = log_ndtr(mean / spread)
    return np.asarray(mean - spread * ndtri_exp(above + np.log([0.95, 0.05])))


def _likelihoods(looks: Floats, spread: Floats) -> Floats:
    """(effects, grid) of each look, up to a factor of its own."""
    log = -0.5 * ((looks[:, None] - _GRID) / spread[:, None]) ** 2
    return np.asarray(np.exp(log - log.max(axis=1, keepdims=True)))


def _posterior(first: Floats, latest: Floats, mean: float, left: float) -> tuple[Floats, Floats]:
    """Returns means and standard deviations under priors.

    The priors have that mean. Each shape is weighted by how well it explains the first looks.
    """
    # Shapes are weighted by how well they explain the first looks.
    prior = np.array([_prior(mean, shape) for shape in _SHAPES])
    evidence = np.log(np.maximum(first @ prior.T, 1e-300)).sum(axis=0)
    # The prior of what the model leaves, averaged over the shapes.
    prior = np.array([_prior(left * mean, shape) for shape in _SHAPES])
    prior = (np.exp(evidence - evidence.max()) @ prior)[None]
    # Each effect's posterior under it, from the look at the last model.
    mass = np.maximum(latest @ prior[0], 1e-300)
    means, squares = (latest * _GRID) @ prior[0] / mass, (latest * _GRID**2) @ prior[0] / mass
    return means, np.sqrt(np.maximum(squares - means**2, 0.0))


def _prior(mean: float, shape: float) -> Floats:
    """(grid,) probabilities of a Gamma variable near each value."""
    edges = np.sqrt(_GRID[1:] * _GRID[:-1])
    below = gammainc(shape, np.concatenate([edges, [np.inf]]) * shape / mean)
    return np.diff(below, prepend=0.0)
