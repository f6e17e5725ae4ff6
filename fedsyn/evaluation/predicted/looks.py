"""Looks at the link of two columns: noisy counts, or a sketch.

`fedsyn.evaluation.predicted.links` says what is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, ndtr, ndtri

from fedsyn.domain import Clique
from fedsyn.evaluation.predicted.among import Among, Counts
from fedsyn.evaluation.predicted.effects import Effects, SketchError, independent
from fedsyn.evaluation.predicted.limits import Contrasts, needed, raised, sketched_lengths
from fedsyn.evaluation.verdict import LEAST_LINK
from fedsyn.inference.measurements import Measurement
from fedsyn.selection.factors import Cuts
from fedsyn.table.counting.sums import Groups, group_of_cells, residual, sums_of_groups

Floats = npt.NDArray[np.float64]
_SQUARES = np.append(0.0, np.exp(np.linspace(math.log(1e-5), math.log(8.0), 80)))  # of relative errors
_NOTHING = 1e-12  # shares below it count as none
_STRONGEST, _ANGLES = 0.9999, np.linspace(0.0, math.pi / 2.0, 17)  # of the correlation of scores, and its arcsines
_POINTS = 16  # of the first score in each of its groups


def shown_share(effects: Effects | Among, pair: Clique, groups: Groups | None, few: Groups) -> float:
    """Returns the share of an association that a look shows.

    The association is one in the few groups, the look one in other groups.
    """
    if groups is None:
        return 1.0
    parts = zip(pair, groups, few, strict=True)
    return min(1.0, math.prod(effects.visible(n, g) / effects.visible(n, coarse) for n, g, coarse in parts))


@dataclass(frozen=True, eq=False)
class Units:
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
    def of(cls, masses: Mapping[str, Floats], pair: Clique, groups: Groups) -> Units:
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


def stated_length(effects: Effects | Among, pair: Clique, few: Groups) -> float:
    """Returns the least |r|^2 that stated rules leave, in few groups.

    In a group of cells that are all impossible, r is what independence expects, with a minus sign, and over the groups
    of either column it sums to nothing. Every such r is the shortest one and something at right angles to it.
    """
    impossible = effects.impossible_in(pair)
    if impossible is None:
        return 0.0
    units = Units.of(effects.masses, pair, few)
    never = np.bincount(units.index, ~np.ravel(impossible), len(units.alone)) == 0
    roots, sides = np.sqrt(units.alone), np.indices([int(grouping.max()) + 1 for grouping in few]).reshape(2, -1)
    sums = [np.where(side == group, roots, 0.0) for side in sides for group in range(int(side.max()) + 1)]
    fixed = np.concatenate([sums, np.eye(len(roots))[never]])
    shortest = np.linalg.lstsq(fixed, np.append(np.zeros(len(sums)), -roots[never]), rcond=None)[0]
    return float(shortest @ shortest)


class Scores:
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
            Units.of(joined, pair, tuple(grouping[one] for grouping, one in zip(some, first, strict=True)))
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


class Measured:
    """The mean of all noisy counts of a pair, in few groups.

    Counts in cells, or else those in the groups of the firmest one.
    """

    def __init__(self, effects: Effects | Among, pair: Clique, few: Groups) -> None:
        measurements: Sequence[Measurement | Counts] = effects.measured(pair)
        self.rows = effects.rows
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
        self.compared = few if self.groups is None else self.groups
        self.units = Units.of(effects.masses, pair, self.compared)
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

    def is_beyond(self, chance: float) -> bool:
        """Returns whether the counts exceed what noise and rows explain."""
        free, known = self.units.free, 1.0 / (self.noise + self.chance)
        return free / len(self.off) * float(known @ self.off**2) > float(chdtri(free, chance))

    def lengths(self, pair: tuple[Contrasts, Contrasts], chance: float, shown: float, most: float) -> Floats:
        """Returns the squared correlations of contrasts that counts show.

        Args:
            pair: contrasts of both columns.
            chance: of a false link.
            shown: share of an association that the counts' groups show.
            most: what |r|^2 is at most.
        """
        free = self.units.free
        first, second = (one.between(groups) ** 2 for one, groups in zip(pair, self.compared, strict=True))
        known, alone = np.zeros((2, len(self.units.full)))
        alone[self.units.full] = 1.0 / self.units.shares
        known[self.units.full] = free / len(self.off) / (self.noise + self.chance)
        visible = first @ alone.reshape(first.shape[1], -1) @ second.T
        gain = first @ (known * alone).reshape(first.shape[1], -1) @ second.T
        floor = most * LEAST_LINK**2 * shown * gain / np.maximum(visible, _NOTHING)
        return np.asarray(np.maximum(needed(free, chance), raised(floor, free)) / np.maximum(gain, _NOTHING))

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


class Sketched:
    """A sketch of a pair, in shares of the rows."""

    def __init__(self, effects: Effects, pair: Clique, sketch: SketchError, apart: float) -> None:
        self.effects, self.pair, self.sketch, self.apart = effects, pair, sketch, apart
        self.groups = sketch.groups if sketch.clique == pair else None
        self.unit = sketch.support / effects.rows**2
        self.squared = ((sketch.alone or 0.0) - sketch.rows) * self.unit

    def is_beyond(self, chance: float) -> bool:
        """Returns whether |r|^2 exceeds what noise and rows explain."""
        k = self.sketch.noises
        return self.squared > self._spread * (float(chdtri(k, chance)) - k) / math.sqrt(2.0 * k)

    def lengths(self, pair: tuple[Contrasts, Contrasts], chance: float, shown: float, most: float) -> Floats:
        """Returns what `Measured.lengths` does, for a sketch."""
        k, variance = self.sketch.noises, self._spread / math.sqrt(2.0 * self.sketch.noises)
        values = [np.arange(one.parts.shape[1]) for one in pair]
        least = max(needed(k, chance), float(raised(most * LEAST_LINK**2 * shown / variance, k)))
        return sketched_lengths(pair, self.groups or values, least * variance / self.sketch.support)

    @property
    def _spread(self) -> float:
        return (self.sketch.spread + self.sketch.rows * math.sqrt(2.0 / self.sketch.noises)) * self.unit

    def kept(self, cells: npt.NDArray[np.floating], most: float) -> tuple[float, float]:
        """Returns the kept share of a link, with its standard deviation.

        See `Measured.kept`, of which this is the counterpart for sketches.
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
