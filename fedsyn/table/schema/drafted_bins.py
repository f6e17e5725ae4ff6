"""Bins that a draft proposes for ordered columns.

For each ordered column of a table they are those that make its error least.

The error of a column in g bins is the L1 distance between the shares of its values in `FINEST` cells, as they are and
as a run would have them, and has two parts:

- **Noise.** On bins with shares p of n rows it comes to sqrt(2/pi) sigma (sum of sqrt p)^2 / n. Half of the budget
  mu^2 goes to the d columns' own marginals, so that sigma^2 = 2 d / mu^2: more rows have finer bins, more columns
  coarser ones.
- **Width.** Inside a bin values are taken to be even, which is what a run falls back on: where the counts of the bins
  beside it lean to one side, it draws accordingly (`inside`). Of the distance that this leaves what chance puts there
  is taken away, a variance of p (1 - g / FINEST) / n in each cell: coarse bins of a flat column lose nothing.

A pair is measured in no finer groups than its columns have bins. So g is at least what the pairs of a tree carry, whose
noise, in g x g cells with the same budget, moves a tenth of the rows.

Neither the number of rows alone nor one number for all columns would do: a skewed column has few bins that carry
noise, and loses its shape in wide ones. Where equal bins hold nearly all rows in a few of them and noise in all others,
as of incomes and costs, round numbers are better edges: 0, 10, 20, 50, 100, ... Both are then judged in cells of equal
mass, which show what is inside the first bins, and by their standard deviation, which noise in far bins raises.

The rows are read for all of this, so the bins are drafted as the bounds are, and public only once a person says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import floor, log10, pi, sqrt

import numpy as np

from fedsyn.domain import Floats
from fedsyn.errors import DataError
from fedsyn.lazy import pd
from fedsyn.table.schema.binned import NUMBERS, BinnedColumn
from fedsyn.table.schema.column_base import AsideColumn, ColumnBase
from fedsyn.table.schema.encoding import Encoder

#: Most bins, those of a column that says nothing; and smaller numbers to compare, a root of 2 apart.
FINEST, _FEWER = 32, (4, 6, 8, 11, 16, 23)
#: The budget of a run as `fedsyn init` writes it.
EPSILON, DELTA = 1.0, 1e-6
#: First digits of round numbers, and how many decades of them, from the largest down. Some may lie below all values:
#: noise in them is nearer to most rows than noise in the tail. Without these, standard deviations came out larger.
_DIGITS, _DECADES = ((1, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9)), range(2, 7)
#: Round numbers are looked at where half of the rows lie so near to 0, as a share of the larger bound.
_NEAR = 0.1
_TENTH = 0.2  # of the rows, as an L1 distance
_ROWS = 20_000  # that are read, evenly spaced
_CHANCE = sqrt(2.0 / pi)  # mean distance from 0 of a normal number


def resolved(columns: Mapping[str, ColumnBase], frame: pd.DataFrame, missing: frozenset[str]) -> dict[str, ColumnBase]:
    """Returns drafted columns with the bins that their rows carry.

    They are the ordered columns of a table, with the bins that its rows carry at `EPSILON`.
    """
    from fedsyn.privacy.budget import PrivacyBudget  # with SciPy, which only a draft needs here

    modelled = sum(not isinstance(column, AsideColumn) for column in columns.values())
    noise = _CHANCE * sqrt(2.0 * modelled) / PrivacyBudget(EPSILON, DELTA).mu / len(frame)
    some, binned = frame.iloc[:: -(-len(frame) // _ROWS)], dict[str, ColumnBase]()
    for at, (name, column) in enumerate(columns.items()):
        if isinstance(column, BinnedColumn):
            block = some.iloc[:, [at]].set_axis([name], axis=1)
            try:
                numbers = Encoder({name: column}, missing, np.int64, keep=(name,)).block(block).own.numbers[name]
            except DataError:  # dates among numbers; `fedsyn schema check` says so
                continue
            binned[name] = _resolved(column, np.sort(numbers[~np.isnan(numbers)]), noise)
    return binned


def _resolved(column: BinnedColumn, values: Floats, noise: float) -> BinnedColumn:
    """Returns the column in the bins of the least error.

    `noise` is that of one bin, an L1 distance.
    """
    low, high = column.span
    steps = high - low + 1.0 if column.whole else 1e9
    # Fewer bins are whole numbers of steps wide, all alike.
    counts = {round(steps / max(1, round(steps / count))) for count in _FEWER}
    least, most = sqrt(_TENTH / noise), min(steps, FINEST)
    ways = [*(column.cut(count) for count in sorted(counts) if least <= count < most), column.cut(FINEST)]
    even = ways[-1].edges

    def below(edges: Floats) -> Floats:
        shares = np.searchsorted(values, edges) / max(1, len(values))
        return np.asarray(np.r_[0.0, shares[1:-1], 1.0], np.float64)

    def error(way: BinnedColumn, cells: Floats) -> float:
        cumulative = below(way.edges)
        drawn = np.diff(np.interp(cells, way.edges, cumulative))
        free = max(0.0, 1.0 - len(way.edges[1:]) / len(drawn))
        chance = _CHANCE * np.sqrt(drawn * free / max(1, len(values))).sum()
        width = np.abs(drawn - np.diff(below(cells))).sum()
        return float(sqrt(max(0.0, width**2 - chance**2)) + noise * np.sqrt(np.diff(cumulative)).sum() ** 2)

    equal = min(ways, key=lambda way: error(way, even))
    if not len(values) or steps <= FINEST or np.median(np.abs(values)) >= _NEAR * max(abs(low), abs(high)):
        return equal

    def spread(way: BinnedColumn) -> float:
        """Returns the relative error of the standard deviation.

        It says how far noise and even draws take the standard deviation from that of the values.
        """
        shares, low_, high_ = np.diff(below(way.edges)), way.edges[:-1] - centre, way.edges[1:] - centre
        noisy = _above_zero(shares, noise / _CHANCE)
        mean, square = noisy @ (low_ + high_) / 2.0, noisy @ (low_**2 + low_ * high_ + high_**2) / 3.0
        return abs(sqrt(max(0.0, float(square - mean**2))) / scale - 1.0)

    mass = np.unique(np.r_[even[[0, -1]], np.quantile(values, np.arange(1, FINEST) / FINEST)])
    centre, scale = float(np.mean(values)), float(np.std(values)) or 1.0
    return min([equal, *_in_round_numbers(column)], key=lambda way: error(way, mass) + spread(way))


def _above_zero(shares: Floats, sigma: float) -> Floats:
    """Returns the expected shares with noise, none of them negative.

    Their total stays.
    """
    from scipy.special import ndtr

    z = shares / sigma
    expected = shares * ndtr(z) + sigma * np.exp(-0.5 * z**2) / sqrt(2.0 * pi)
    return np.asarray(expected * (shares.sum() / expected.sum()))


def _in_round_numbers(column: BinnedColumn) -> Iterator[BinnedColumn]:
    """Yields a column of numbers in bins with round edges.

    The edges are 0, 10, 20, 50, ..., 5,000, and the column's bounds.
    """
    low, high = column.span
    reach = max(abs(column.bound(low)), abs(column.bound(high))) if column.scale[0] == NUMBERS else 0
    if not reach:
        return
    top = floor(log10(reach))
    for digits, decades in product(_DIGITS, _DECADES):
        sizes = [float(f"{digit}e{top - k}") for digit in digits for k in range(decades)]
        edges = {column.number(edge) for size in sizes for edge in (-size, size)} | {column.number(0.0)}
        inner = sorted(edge for edge in edges if low < edge < high and (edge.is_integer() or not column.whole))
        if len(inner) < FINEST:
            yield column.cut([column.bound(edge) for edge in (low, *inner, high)])
