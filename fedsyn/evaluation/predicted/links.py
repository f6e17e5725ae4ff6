"""Links of two columns, by what was released.

The association that noisy counts or a sketch saw, and the table's own.

Associations are what a pair has beyond independence, r in the rows and s in the table, in units of chance and in the
groups of values of `real.scores`: |r|^2 / (g - 1) is Cramer's V^2. What is kept of a link is <r, s> / max(|r|^2, |s|^2)
there and here, so the shape counts. s is known; r is known up to noise:

- **Measured.** The noisy counts y are r plus noise that the model was fitted to as well, so <y, s> is too large. Given
  y, and a relative error that is as large in every cell on average, r is normal; that error's square is what y makes
  likely. Mean and variance of r, and s, give what is kept, and by how much that may be off.
- **Sketched.** |r - s|^2 is shrunk by all sketches together, as the planner does: what looks strongest has most of its
  noise. That share of it is what <r - s, s> has beside noise, half of |r|^2 - |r - s|^2 - |s|^2.

Groups of values that a look saw together show a part of r, as of normal scores in their order (`visible`). Of two
columns with an order the rest is what scores that are linked as much as was seen have there (`_Scores`): of a strong
link much lies inside groups, where the table has nothing. Of other pairs what is kept is that of what groups show.

Of two columns of numbers a correlation is kept as well, at most: by both standard deviations in the rows over those in
the table (`SeenMoments`), or the other way round: noise that a fit leaves on far values widens a column and links
nothing.

A pair is seen to be linked if the look is beyond noise, for all pairs together, and the association is no weaker than
what `verdict` calls a link.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, ndtr, ndtri

from fedsyn.domain import Clique
from fedsyn.evaluation.predicted.effects import Effects, SketchError, independent
from fedsyn.evaluation.scores import few_groups, level_of_codes, places
from fedsyn.evaluation.verdict import CHANCE, LEAST_LINK, LOST, Judged, doubtful, judged_link
from fedsyn.evaluation.verdict import few as some
from fedsyn.selection.factors import Cuts
from fedsyn.selection.planning import shrunk
from fedsyn.selection.views import ModelView
from fedsyn.table.counting.sums import Groups, group_of_cells, residual, sums_of_groups
from fedsyn.table.schema import BinnedColumn, CategoricalColumn, Schema

Floats = npt.NDArray[np.float64]
#: A link is called kept or lost, and a moment close or lost, if it is so by this many standard deviations:
#: experiments/verdicts, the tuning side.
LINK_DOUBT, MOMENT_DOUBT = 1.5, 0.5
_SQUARES = np.append(0.0, np.exp(np.linspace(math.log(1e-5), math.log(8.0), 80)))  # of relative errors
_NOTHING = 1e-12  # shares below it count as none
_STRONGEST, _ANGLES = 0.9999, np.linspace(0.0, math.pi / 2.0, 17)  # of the correlation of scores, and its arcsines
_POINTS = 16  # of the first score in each of its groups


# Moments -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeenMoments:
    """A column of numbers.

    Attributes:
        mean: how far the table's mean is from the rows', in their standard deviations.
        mean_spread: its standard deviation, by noise.
        variance: that of the rows over that of the table.
        variance_spread: its standard deviation, by noise.
    """

    mean: float
    mean_spread: float
    variance: float
    variance_spread: float

    def losses(self, doubt: float = MOMENT_DOUBT) -> list[tuple[str, float, str]]:
        """Returns (kind, amount, words) of each loss.

        `verdict.judged` takes them. `doubt` is in standard deviations.
        """
        times = 1.0 / math.sqrt(self.variance)
        off = 0.5 * self.variance_spread / self.variance
        return [
            (
                "mean",
                doubtful("mean", self.mean, doubt * self.mean_spread),
                f"its mean may be {self.mean:.2f} standard deviations off, as noise shows it",
            ),
            (
                "spread",
                doubtful("spread", abs(math.log(times)), doubt * off),
                f"its standard deviation may be {times:.2f} times the real one, as noise shows it",
            ),
        ]


def seen_moments(effects: Effects, schema: Schema) -> dict[str, SeenMoments]:
    """Returns the moments of columns whose single values were counted.

    Only columns with bins have them.

    The table's are known. The rows' follow from the noisy counts of a column's single values, their mean weighted by
    precision: both are linear in the counts (the variance about the mean that they give), so their noise is known.
    Values stand where the table has them inside a bin. What noise makes of the rows' variance is at least its standard
    deviation.
    """
    moments: dict[str, SeenMoments] = {}
    for name, column in schema.columns.items():
        at, counts = places(schema, name), [m for m in effects.measured((name,)) if m.groups is None]
        if at is None or not isinstance(column, BinnedColumn) or not counts:
            continue
        # The column's shares in the rows, by precision, and in the table.
        known, weights = np.isfinite(at), np.array([m.sigma**-2 for m in counts])
        rows = np.average([m.values for m in counts], axis=0, weights=weights)[known]
        table = effects.masses[name][known]
        if min(rows.sum(), table.sum()) <= 0:
            continue
        rows, table, noise = rows / rows.sum(), table / table.sum(), 1.0 / math.sqrt(weights.sum()) / float(rows.sum())
        # The table's mean in the rows' standard deviations, and the rows' variance in the table's, with their noise.
        values = level_of_codes(column, effects.masses[name], at, effects.rows)[known]
        mean = float(rows @ values)
        apart, table_variance = values - mean, float(table @ (values - table @ values) ** 2)
        if table_variance <= 0:
            continue
        off = noise * math.sqrt(float((apart**4).sum())) / table_variance
        variance = max(float(rows @ apart**2) / table_variance, off)
        unit = math.sqrt(variance * table_variance)
        figures = abs(float(table @ apart)) / unit, noise * math.sqrt(float((apart**2).sum())) / unit, variance, off
        moments[name] = SeenMoments(*(float(f"{number:.4g}") for number in figures))
    return moments


# Links ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeenLink:
    """Two columns that what was released links.

    Attributes:
        columns: of the pair.
        seen: the association of the rows, as noise shows it; 0 to 1.
        made: that of the table.
        kept: share of the link, or of a correlation, that is in the table: whichever is judged worse.
        spread: its standard deviation, by noise.
        widths: whether `kept` is of a correlation, by what the spread of its columns became.
    """

    columns: Clique
    seen: float
    made: float
    kept: float
    spread: float
    widths: bool = False

    def judged(self) -> Judged:
        """Returns what became of the link."""
        judgement = judged_link(" × ".join(self.columns), self.seen, self.made, self.kept, LINK_DOUBT * self.spread)
        if not self.widths:
            return judgement
        return replace(
            judgement, why=f"about {self.kept:.0%} of the correlation is kept at most, by the columns' spread"
        )


@dataclass(frozen=True)
class SeenLinks:
    """Looks at all pairs.

    Attributes:
        links: those that were seen to be linked.
        pairs: number of pairs.
        looked: pairs that were measured or sketched.
        least: the association that half of these would have shown; 1: none would have.
        joined: unordered columns some of whose values were looked at together.
        orderless: those of them, of more than two values, that nothing released has put in an order.
    """

    links: tuple[SeenLink, ...] = ()
    pairs: int = 0
    looked: int = 0
    least: float = 1.0
    joined: tuple[str, ...] = ()
    orderless: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Returns one clause on what was not seen.

        It is empty where there are no pairs.
        """
        rest = self.pairs - len(self.links)
        if not rest:
            return ""
        if not self.looked:
            return f"nothing was released of its {_pairs(self.pairs)} of columns, so nobody knows what links them"
        which = f"the other {_pairs(rest)}" if self.links else f"its {_pairs(rest)} of columns"
        text = f"in {which} no link was seen, but one weaker than {self.least:.2f} would not be seen"
        if self.least >= 1.0:
            text = f"in {which} no link was seen, nor could any be: noise outweighs it"
        if self.looked < self.pairs:
            text += f", and {self.pairs - self.looked:,} not looked at"
        if not self.joined:
            return text
        return f"{text}, nor one between values of {some(self.joined)} that were looked at in one group"


def _pairs(count: int) -> str:
    return "pair" if count == 1 else f"{count:,} pairs"


def seen_links(
    effects: Effects,
    sketches: Iterable[SketchError],
    pairs: Sequence[Clique],
    schema: Schema | None,
    moments: Mapping[str, SeenMoments],
) -> SeenLinks:
    """Returns what was seen of some pairs.

    Args:
        effects: of the last model.
        sketches: of it.
        pairs: in domain order.
        schema: says which columns have an order; None: not known but of bins.
        moments: of columns of numbers.
    """
    domain = effects.domain
    orders = {name: _order(effects, name, schema) for name in domain}
    few = {name: _few(effects, name, at) for name, at in orders.items()}
    # The released sketches of pairs, with their distances shrunk together.
    sketched = {domain.canonical(g.clique): g for g in sketches if len(g.clique) == 2 and g.alone is not None}
    off = [np.array([getattr(g, name) for g in sketched.values()]) for name in ("squared", "spread")]
    apart = dict(zip(sketched, shrunk(*off).tolist(), strict=True))
    view, links = ModelView(effects.model), list[SeenLink]()  # type: ignore[arg-type]
    least, grouped = list[float](), set[str]()
    for pair in pairs:
        pair_groups = few[pair[0]], few[pair[1]]
        look = _look(effects, pair, pair_groups, sketched, apart)
        if look is None:
            continue
        grouped.update(_joined(pair, look.groups, schema))
        most, shown = max(1.0, float(min(map(max, pair_groups)))), _shown(effects, pair, look.groups, pair_groups)
        # The association of the rows, where it is beyond chance and noise.
        is_seen, beyond = look.beyond(CHANCE / len(pairs))
        least.append(min(1.0, math.sqrt(beyond / shown / most)))
        squared = min(most, max(0.0, look.squared) / shown) if is_seen else 0.0
        if squared < most * LEAST_LINK**2:
            continue
        # The table's association, and the share of the link that it keeps.
        (cells,) = view.probabilities([pair])
        table_squared = float((_Units.of(effects.masses, pair, pair_groups).of_cells(cells) ** 2).sum())
        share, spread = look.kept(cells, most)
        at = [orders[name] for name in pair]
        # Two ordered columns seen in coarse groups: normal scores fill in what the groups hide.
        if look.groups is not None and at[0] is not None and at[1] is not None and 1.0 - share < LOST["link"]:
            scores = _Scores(effects.masses, pair, (at[0], at[1]), look.groups, pair_groups)
            squared, shown, left = scores.whole(look.squared, cells)
            squared = min(most, squared)
            share = max(share * left, 1.0 - LOST["link"])  # scores need not be normal: they lose no link
        spread = math.hypot(spread, (1.0 - shown) / math.sqrt(12.0))  # of what no group showed, anything may be kept
        seen, now = math.sqrt(squared / most), min(1.0, math.sqrt(table_squared / most))
        link = SeenLink(pair, round(seen, 3), round(now, 3), round(share, 3), round(spread, 3))
        links.append(_worse(link, moments))
    limit = max(LEAST_LINK, float(np.median(least))) if least else 1.0
    links.sort(key=lambda link: -link.judged().loss)
    joined = tuple(name for name in domain if name in grouped)
    scored = frozenset[str]().union(*(g.scored for g in sketched.values()))
    columns = {} if schema is None else schema.columns
    orderless = tuple(n for n in joined if n not in scored and len(getattr(columns[n], "categories", ())) > 2)
    return SeenLinks(tuple(links), len(pairs), len(least), round(limit, 3), joined, orderless)


def _look(
    effects: Effects, pair: Clique, few: Groups, sketched: Mapping[Clique, SketchError], apart: Mapping[Clique, float]
) -> _Measured | _Sketched | None:
    """Returns the counts of a pair, or else its sketch.

    None where nobody looked at the pair.
    """
    if effects.is_measured(pair):
        return _Measured(effects, pair, few)
    return _Sketched(effects, pair, sketched[pair], apart[pair]) if pair in sketched else None


def _worse(link: SeenLink, moments: Mapping[str, SeenMoments]) -> SeenLink:
    """Returns the link, or the correlation if it is worse.

    Only two columns of numbers have a correlation.
    """
    if not moments.keys() >= set(link.columns):
        return link
    share, spread = _at_most(*(moments[name] for name in link.columns))
    linear = replace(link, kept=round(share, 3), spread=round(spread, 3), widths=True)
    return max(link, linear, key=lambda one: one.judged().loss)


def _joined(pair: Clique, groups: Groups | None, schema: Schema | None) -> Iterator[str]:
    """Returns unordered columns of a pair with joined values.

    Some of their values were looked at together.
    """
    if groups is None or schema is None:
        return
    for name, grouping in zip(pair, groups, strict=True):
        column = schema.columns[name]
        if isinstance(column, CategoricalColumn) and not column.ordered and grouping.max() + 1 < len(grouping):
            yield name


def _order(effects: Effects, name: str, schema: Schema | None) -> Floats | None:
    """Returns each value's place on its axis, (size,).

    NaN for one without a place; None for a column without order.
    """
    if schema is not None:
        return places(schema, name)
    ordered = effects.domain.ordered.get(name, 0)
    at = np.arange(effects.domain[name], dtype=np.float64)
    return np.where(at < ordered, at, np.nan) if ordered else None


def _few(effects: Effects, name: str, at: Floats | None) -> npt.NDArray[np.int64]:
    """Returns the few groups of a column's values, (size,).

    Rows and table are compared in these groups.
    """
    return few_groups(effects.masses[name], at, 1.0 / math.sqrt(max(1.0, effects.rows)))


def _at_most(first: SeenMoments, second: SeenMoments) -> tuple[float, float]:
    """Returns the largest share of a correlation that is kept.

    Returns the share's standard deviation beside it.
    """
    ratio = math.sqrt(first.variance * second.variance)
    off = 0.5 * math.hypot(*(one.variance_spread / one.variance for one in (first, second)))
    ratio = min(ratio, 1.0 / ratio)
    return ratio, ratio * off


def _shown(effects: Effects, pair: Clique, groups: Groups | None, few: Groups) -> float:
    """Returns the share of an association that a look shows.

    The association is one in the few groups, the look one in other groups.
    """
    if groups is None:
        return 1.0
    parts = zip(pair, groups, few, strict=True)
    return min(1.0, math.prod(effects.visible(n, g) / effects.visible(n, coarse) for n, g, coarse in parts))


@dataclass(frozen=True, eq=False)
class _Units:
    """Groups of a pair's cells, in units of chance.

    A difference of shares over the root of what independence expects.

    Attributes:
        index: (cells,) group of each cell.
        alone: (groups,) shares of independent attributes.
        full: (groups,) which are not empty.
        free: degrees of freedom of what they have beyond independence.
    """

    index: npt.NDArray[np.int64]
    alone: Floats
    full: npt.NDArray[np.bool_]
    free: int

    @classmethod
    def of(cls, masses: Mapping[str, Floats], pair: Clique, groups: Groups) -> _Units:
        index, length = group_of_cells(groups)
        alone = sums_of_groups(index, independent(masses, pair), length)
        full = alone > _NOTHING
        sides = full.reshape([int(grouping.max()) + 1 for grouping in groups])
        free = math.prod(int(sides.any(axis=axis).sum()) - 1 for axis in (0, 1))
        return cls(index, alone, full, max(1, free))

    @property
    def shares(self) -> Floats:
        return self.alone[self.full]

    def of_groups(self, off: Floats) -> Floats:
        """Differences of the groups' shares."""
        return np.asarray(off[self.full] / np.sqrt(self.shares))

    def of_cells(self, cells: npt.NDArray[np.floating]) -> Floats:
        """Returns what a marginal has beyond independence."""
        return self.of_groups(sums_of_groups(self.index, np.ravel(cells), len(self.alone)) - self.alone)


class _Scores:
    """Two ordered columns as correlated normal scores.

    They are seen in the groups of a look and in few groups.

    Neighbours that are in one group of both kinds are one value here.

    Args:
        masses: of all columns' values.
        pair: of columns.
        at: where their values stand, NaN for one without a place.
        groups, few: of their values.
    """

    def __init__(
        self, masses: Mapping[str, Floats], pair: Clique, at: Sequence[Floats], groups: Groups, few: Groups
    ) -> None:
        # A run of values is in one group of the look and in one of the few groups.
        runs = [_runs(place, seen, coarse) for place, seen, coarse in zip(at, groups, few, strict=True)]
        self.index, self.size = group_of_cells(runs)
        # Its first value stands for it: its place, and its group of either kind.
        first = [np.unique(run, return_index=True)[1] for run in runs]
        joined = {name: sums_of_groups(run, masses[name]) for name, run in zip(pair, runs, strict=True)}
        placed = (np.isfinite(place[one]) for place, one in zip(at, first, strict=True))
        places_of = (np.where(has, np.cumsum(has) - 1, -1) for has in placed)
        self.cuts = [Cuts.of(joined[name], places) for name, places in zip(pair, places_of, strict=True)]
        self.look, self.few = (
            _Units.of(joined, pair, tuple(grouping[one] for grouping, one in zip(some, first, strict=True)))
            for some in (groups, few)
        )

    def cells(self, correlations: Floats) -> Floats:
        """(correlations, cells) probabilities."""
        first, second = self.cuts
        bounds = np.concatenate([[0.0], ndtr(first.edges), [1.0]])
        points = bounds[:-1, None] + np.diff(bounds)[:, None] * (np.arange(_POINTS) + 0.5) / _POINTS
        each, z = len(correlations), ndtri(points.ravel())
        conditional = second.given(np.repeat(correlations, len(z)), np.tile(z, each))
        mean = conditional.reshape(len(second.mass), each, -1, _POINTS).mean(axis=3) * np.diff(bounds)
        apart = np.where(first.places < 0, first.mass, 0.0)[:, None] * second.mass
        joint = first.spread(mean.transpose(2, 1, 0)) + apart[:, None]
        return np.asarray(joint.transpose(1, 0, 2).reshape(each, -1))

    def whole(self, squared: float, cells: npt.NDArray[np.floating]) -> tuple[float, float, float]:
        """Returns a look's word on all of a link.

        Args:
            squared: |r|^2 in the groups of the look.
            cells: the table's marginal.

        Returns:
            |r|^2 in few groups, the share of it that the look's groups show, and, of what is kept there, the share that
            is kept in few groups.
        """
        # The sign of the correlation is the table's.
        table = sums_of_groups(self.index, np.ravel(cells), self.size)
        (middle,) = self.cells(np.array([0.5]))
        along = float(self.look.of_cells(middle) @ self.look.of_cells(table))
        strongest = math.copysign(_STRONGEST, along)
        # The rows get the correlation that shows |r|^2 in the look's groups.
        seen = [
            float((self.look.of_cells(marginal) ** 2).sum()) for marginal in self.cells(strongest * np.sin(_ANGLES))
        ]
        angle = np.interp(squared, np.maximum.accumulate(seen), _ANGLES)
        (rows,) = self.cells(strongest * np.sin(np.array([angle])))
        # |r|^2 and the kept share, first in the look's groups, then in few groups.
        shares, squares = [], []
        for units in (self.look, self.few):
            was, now = units.of_cells(rows), units.of_cells(table)
            squares.append(float(was @ was))
            shares.append(float(was @ now) / max(squares[-1], float(now @ now), _NOTHING))
        left = min(1.0, max(0.0, shares[1] / shares[0])) if shares[0] > _NOTHING else 1.0
        return squares[1], min(1.0, squares[0] / max(squares[1], _NOTHING)), left


def _runs(at: Floats, groups: npt.NDArray[np.integer], few: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Returns the run of each value, in their order, (size,).

    Each run lies in one group of both kinds. Values without a place come last.
    """
    order = np.lexsort((few, groups, at))  # NaN comes last
    changed = (np.diff(groups[order]) != 0) | (np.diff(few[order]) != 0) | (np.diff(np.isfinite(at[order])) != 0)
    runs = np.empty(len(at), np.int64)
    runs[order] = np.concatenate([[0], np.cumsum(changed)])
    return runs


class _Measured:
    """The mean of all noisy counts of a pair, in few groups.

    Counts in cells, or else those in the groups of the firmest one.
    """

    def __init__(self, effects: Effects, pair: Clique, few: Groups) -> None:
        measurements, self.rows = effects.measured(pair), effects.rows
        # Counts of single cells, or else those in the groups of the least noisy measurement.
        some = [m for m in measurements if m.groups is None]
        if not some:
            best = min(measurements, key=lambda m: m.sigma).groups or ()
            some = [m for m in measurements if all(map(np.array_equal, m.groups or (), best))]
        # Their mean, weighted by precision.
        self.groups, shape = some[0].groups, np.shape(some[0].values)
        weights = [m.sigma**-2 for m in some]
        counts = np.average([m.values for m in some], axis=0, weights=weights)
        # Shares beyond independence, and the number of values in each group.
        self.units = _Units.of(effects.masses, pair, few if self.groups is None else self.groups)
        if self.groups is None:
            alone = independent(effects.masses, pair)
            off = sums_of_groups(self.units.index, residual(counts / self.rows - alone.reshape(shape)).ravel())
            joined = [np.bincount(grouping).astype(np.float64) for grouping in few]
        else:
            off = residual(counts / self.rows - self.units.alone.reshape(shape)).ravel()
            joined = [np.ones(size) for size in shape]
        # A sum of residuals of n among an attribute's g values has n - n^2 / g of the noise.
        noise = np.outer(*(n - n**2 / size for n, size in zip(joined, shape, strict=True))).ravel()
        self.off = self.units.of_groups(off)
        self.noise = noise[self.units.full] / self.units.shares / (sum(weights) * self.rows**2)
        self.chance = self.units.free / len(self.off) / self.rows

    def beyond(self, chance: float) -> tuple[bool, float]:
        """Returns whether counts exceed noise and rows, and the threshold.

        Counts exceed them where |r|^2 is above the threshold.
        """
        free, known = self.units.free, 1.0 / (self.noise + self.chance)
        least, part = float(chdtri(free, chance)), free / len(self.off)
        return part * float(known @ self.off**2) > least, (least - free) / (part * float(known @ self.units.shares))

    @cached_property
    def posterior(self) -> tuple[Floats, Floats, Floats]:
        """Returns probabilities of relative errors, and r's moments given each.

        Means and variances of r are per group.
        """
        prior = _SQUARES[:, None] * self.units.shares + self.chance
        spread = prior + self.noise
        log = -0.5 * (np.log(spread) + self.off**2 / spread).sum(axis=1) * self.units.free / len(self.off)
        chance, weight = np.exp(log - log.max()), prior / spread
        return chance / chance.sum(), weight * self.off, weight * self.noise

    @cached_property
    def _squares(self) -> Floats:
        """|r|^2 given each relative error, less what chance adds to it."""
        _, means, variances = self.posterior
        return np.asarray((means**2 + variances).sum(axis=1) - self.units.free / self.rows)

    @property
    def squared(self) -> float:
        """|r|^2, less what chance adds to it."""
        return float(self.posterior[0] @ self._squares)

    def kept(self, cells: npt.NDArray[np.floating], most: float) -> tuple[float, float]:
        """Returns the kept share of a link, with its standard deviation.

        The share is one in the groups of the counts.

        Args:
            cells: the table's marginal.
            most: what |r|^2 is at most.
        """
        (chance, means, variances), table = self.posterior, self.units.of_cells(cells)
        squares, table_squared = np.minimum(most, np.maximum(0.0, self._squares)), float(table @ table)
        bases = np.maximum(np.maximum(squares, table_squared), _NOTHING)
        shares = means @ table / bases
        moved = np.where((squares > table_squared)[:, None], 2.0 * shares[:, None] * means, 0.0)
        spread = (variances * (table - moved) ** 2).sum(axis=1) / bases**2
        mean = float(chance @ shares)
        return mean, math.sqrt(float(chance @ (spread + (shares - mean) ** 2)))


class _Sketched:
    """A sketch of a pair, in shares of the rows."""

    def __init__(self, effects: Effects, pair: Clique, sketch: SketchError, apart: float) -> None:
        self.effects, self.pair, self.sketch, self.apart = effects, pair, sketch, apart
        self.groups = sketch.groups if sketch.clique == pair else None
        self.unit = sketch.support / effects.rows**2
        self.squared = ((sketch.alone or 0.0) - sketch.rows) * self.unit

    def beyond(self, chance: float) -> tuple[bool, float]:
        """Returns whether |r|^2 exceeds noise and rows, and the threshold."""
        k = self.sketch.noises
        beyond = self._spread * (float(chdtri(k, chance)) - k) / math.sqrt(2.0 * k)
        return self.squared > beyond, beyond

    @property
    def _spread(self) -> float:
        return (self.sketch.spread + self.sketch.rows * math.sqrt(2.0 / self.sketch.noises)) * self.unit

    def kept(self, cells: npt.NDArray[np.floating], most: float) -> tuple[float, float]:
        """Returns the kept share of a link, with its standard deviation.

        See `_Measured.kept`, of which this is the counterpart for sketches.
        """
        off = np.asarray(cells, np.float64).ravel() - independent(self.effects.masses, self.pair)
        if self.groups is not None:
            off = sums_of_groups(group_of_cells(self.groups)[0], off)
        table_squared, apart = float(off @ off) * self.sketch.support, self.apart * self.unit
        noise = self.sketch.spread / math.sqrt(2.0 * self.sketch.noises) * self.unit  # of one dimension
        share = apart / (apart + self.sketch.noises * noise)
        along = 0.5 * share * (((self.sketch.alone or 0.0) - self.sketch.squared) * self.unit - table_squared)
        squared = min(most, max(0.0, table_squared + 2.0 * along + apart - self.sketch.rows * self.unit))
        base = max(squared, table_squared, _NOTHING)
        kept_share, off_by = (table_squared + along) / base, math.sqrt(share * noise * table_squared) / base
        return kept_share, abs(1.0 - 2.0 * kept_share) * off_by if squared > table_squared else off_by
