"""Knowledge of each effect of a table, from released values.

Effects are the parts of its marginals' errors.

A marginal of clique q is the sum of its effects, one for each subset s of q: what s has beyond its own parts. They are
orthogonal, and s has d_s = prod (g_a - 1) of the k_q = prod g_a dimensions, g_a the effective number of values of an
attribute. So the error of a model on q is the sum of its errors on the effects, and those are of three kinds:

- **Rows.** n rows scatter about their population: in a cell that expects lambda records, with variance lambda. A model
  knows of it what was measured.
- **Associations.** What s has in the population and the model has not: a relative error R_s, the same in every cell on
  average. Of a measured effect, R_s^2 is what its noisy counts have beyond what its parts determine, less noise and
  rows. Of a sketched one, what is to be believed of it after the sketch's distance from the last model (`believed`).
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

from fedsyn.domain import Clique, Domain
from fedsyn.evaluation.predicted.beliefs import MOST, Beliefs, believed
from fedsyn.inference.measurements import Evidence, Measurement, varying
from fedsyn.inference.model import Model
from fedsyn.inference.other_models import EmpiricalModel
from fedsyn.selection.coarse import has_order
from fedsyn.selection.factors import Cuts
from fedsyn.selection.views import ModelView, effective_cells
from fedsyn.table.counting.sums import Groups, cost, group_of_cells, residual, sums_of_groups
from fedsyn.table.counting.workload import downward_closure, subsets

Floats = npt.NDArray[np.float64]
_SWEEPS, _FITTED = 30, 1e-3  # over marginals to be fitted, at most, and L1 distances that are as good as none
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
        inside: R^2 that the model has inside the groups, where other marginals determine it.
    """

    index: npt.NDArray[np.int64]
    variance: float
    share: float
    visible: float
    inside: float = 0.0

    def hidden(self, squared: float) -> float:
        """Returns the share of R^2 inside groups that the model lacks.

        A model is a projection of the table: what the table has beyond independence is what the model has, plus what
        it lacks, in squares. So inside the groups it lacks (1 - visible) R^2 less its own.
        """
        return max(0.0, 1.0 - self.visible - self.inside / squared) if squared > 0 else 1.0 - self.visible


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
            rows = min(rows, 1.0 - m.share * (1.0 - group_rows))
            relative = min(relative, m.hidden(self.squared) + m.visible * group_relative)
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
        if len(part) == 2 and not precision:
            coarse = [replace(one, inside=self._inside(part, one.index)) for one in coarse]
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

    def _inside(self, clique: Clique, index: npt.NDArray[np.int64]) -> float:
        """Returns R^2 that the model has inside the groups of a pair.

        It is the model's distance from independence inside each group, in the unit of `_beyond`. Where no cells of the
        pair were counted, only other marginals can have put it there: a fit adds nothing that no marginal asks for. Of
        three attributes and more it is taken for none, since only a marginal of all has what is beyond their parts.
        """
        apart, cells = independent(self.masses, clique), self._marginals[clique]
        sums, known = np.bincount(index, apart), np.bincount(index, cells)
        off = cells - apart * np.divide(known, sums, out=np.zeros_like(sums), where=sums > 0)[index]
        return float(off @ off) * float(effective_cells(apart))

    def _beyond(self, m: Measurement) -> tuple[float, float]:
        """Returns R^2 of a measured clique, and its weight.

        R^2 comes from the counts beyond what the clique's parts determine, less noise and rows. The parts of a pair
        determine independence. Those of a larger clique determine the table of the largest entropy that has the
        model's marginals of all parts: what pairs have belongs to their own effects. Noise that these marginals have
        too lies in the dimensions of the parts, so the distance is taken in the others: the residual of the highest
        order has prod (g_a - 1) dimensions, and a row adds prod (1 - 1 / g_a) to its square.
        """
        shape = np.shape(m.values)
        if len(shape) > 2:
            whole = self.rows * self._determined(m, shape)
            off = varying(np.asarray(m.values, np.float64) - whole.reshape(shape)).ravel()
            noises = min(m.count, math.prod(g - 1 for g in shape))
            rows = math.prod(1.0 - 1.0 / g for g in shape) * float(whole.sum())
        else:
            whole, noises = replace(m, beyond=False).of_cells(self.rows * independent(self.masses, m.clique)), m.count
            off = np.asarray(m.values, np.float64).ravel() - whole
            if m.beyond:
                off = residual(off.reshape(shape)).ravel()
            rows = (cost(shape) if m.beyond else 1.0) * float(whole.sum())
        scale = float(effective_cells(whole / whole.sum())) / self.rows**2 / self._visible(m.clique, m.groups)
        squared = float(off @ off) - noises * m.sigma**2 - rows
        # A constant column has no residuals, which is known for certain.
        return squared * scale, 1.0 / max(scale**2 * noises * m.sigma**4, 1e-200)

    def _determined(self, m: Measurement, shape: tuple[int, ...]) -> Floats:
        """Returns (cells or groups,) a clique as its parts determine it.

        They are the model's marginals of it: the table of the largest entropy that has the marginals of all attributes
        but one, by iterative proportional fitting. It starts from independence and reads no measurement of the whole
        clique.
        """
        parts = [tuple(name for name in m.clique if name != left) for left in m.clique]
        groups = None if m.groups is None else dict(zip(m.clique, m.groups, strict=True))
        targets = []
        for axis, part in enumerate(parts):
            flat = self._marginals[part]
            if groups is not None:
                index, length = group_of_cells(tuple(groups[name] for name in part))
                flat = sums_of_groups(index, flat, length)
            targets.append(np.expand_dims(flat.reshape([g for at, g in enumerate(shape) if at != axis]), axis))
        plain = replace(m, beyond=False)
        return scaled(plain.of_cells(independent(self.masses, m.clique)).reshape(shape), targets).ravel()

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
            left = self._left(*looks, np.array([part not in self._by_part for part in parts]))
            usual = self._kinds[2][0].most if size > 2 and 2 in self._kinds else None
            beliefs = believed(*looks, left, usual)
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
            of_groups = visible if self.is_in_order(name) else visible_anywhere
            self._shares[key] = of_groups(self.masses[name], groups)
        return self._shares[key]

    def is_in_order(self, name: str) -> bool:
        """Returns whether a column's values have or got an order."""
        return has_order(self.domain, name) or name in self._scored

    def impossible_in(self, pair: Clique) -> npt.NDArray[np.bool_] | None:
        """Returns cells that stated rules leave empty."""
        return self.domain.impossible(pair)

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


def scaled(table: Floats, targets: Sequence[Floats]) -> Floats:
    """Returns a table scaled to marginals.

    Each of them has a length of 1 along one axis.
    """
    for _ in range(_SWEEPS):
        off = 0.0
        for axis, target in enumerate(targets):
            sums = table.sum(axis=axis, keepdims=True)
            off = max(off, float(np.abs(sums - target).sum()))
            table = table * np.divide(target, sums, out=np.zeros_like(sums), where=sums > 0)
        if off < _FITTED:
            break
    return table


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
