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

Where a run makes one record of each person (`persons`), n is the number of people, however many rows they have, and d
that of a record's columns. Shares stay those of the rows. What chance puts into a cell is taken to be that of as many
rows as there are people: rows of one person say less than those of several.

Neither the number of rows alone nor one number for all columns would do: a skewed column has few bins that carry
noise, and loses its shape in wide ones. Where equal bins hold nearly all rows in a few of them and noise in all others,
as of incomes and costs, round numbers are better edges: 0, 10, 20, 50, 100, ... Both are then judged in cells of equal
mass, which show what is inside the first bins, and by their standard deviation, which noise in far bins raises.

The rows are read for all of this, so the bins are drafted as the bounds are, and public only once a person says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import floor, inf, log10, pi, sqrt

import numpy as np

from fedsyn.domain import Floats, Integers
from fedsyn.lazy import pd
from fedsyn.table.schema.binned import NUMBERS, SPANS, BinnedColumn
from fedsyn.table.schema.column_base import AsideColumn, ColumnBase
from fedsyn.table.schema.drafted_values import (
    KEPT_SPREAD,
    Held,
    beside_limits,
    between_atoms,
    in_steps,
    listed,
    room,
    spikes,
    with_atoms,
    written_in_months,
)
from fedsyn.table.schema.inside import Inside

#: Most bins, those of a column that says nothing; and smaller numbers to compare, a root of 2 apart.
FINEST, _FEWER = 32, (4, 6, 8, 11, 16, 23)
#: The budget of a run as `fedsyn init` writes it.
EPSILON, DELTA = 1.0, 1e-6
#: First digits of round numbers, and how many decades of them, from the largest down. Some may lie below all values:
#: noise in them is nearer to most rows than noise in the tail. Without these, standard deviations came out larger.
_DIGITS, _DECADES = ((1, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9)), range(6, 1, -1)
#: Round numbers are looked at where half of the rows lie so near to 0, as a share of the larger bound.
_NEAR = 0.1
_TENTH = 0.2  # of the rows, as an L1 distance
_ROWS = 20_000  # that are compared, evenly spaced
_TIMES = (1.0, 4.0)  # the noise of a bin, below which it may join its neighbour
_POINTS = 16  # of each bin, to see how its values are spread
_CHANCE = sqrt(2.0 / pi)  # mean distance from 0 of a normal number


def resolved(
    columns: Mapping[str, ColumnBase],
    frame: pd.DataFrame,
    missing: frozenset[str],
    bins: int | None = None,
    *,
    width: int | None = None,
    whose: Integers | None = None,
) -> dict[str, BinnedColumn]:
    """Returns drafted ordered columns as their rows carry them.

    They have the bins, atoms, values and steps that the rows carry at `EPSILON`.

    Args:
        columns: name -> as drafted, in its steps.
        frame: the rows.
        missing: texts that stand for a missing value.
        bins: so many stay, and values are not listed; None: as many as the rows carry.
        width: number of columns that a run models; None: those of `columns`.
        whose: (rows,) number of each row's person, who is one record; None: each row is one.
    """
    from fedsyn.privacy.budget import PrivacyBudget  # with SciPy, which only a draft needs here

    width = sum(not isinstance(column, AsideColumn) for column in columns.values()) if width is None else width
    records = len(frame) if whose is None else len(np.unique(whose))
    noise = _CHANCE * sqrt(2.0 * width) / PrivacyBudget(EPSILON, DELTA).mu / records
    return {
        name: _resolved(column, Held.of(column, frame[name], missing, whose), (len(frame), records), noise, bins)
        for name, column in columns.items()
        if isinstance(column, BinnedColumn)
    }


def _resolved(column: BinnedColumn, held: Held, size: tuple[int, int], noise: float, bins: int | None) -> BinnedColumn:
    """Returns a column as its rows carry it.

    It is cut in bins and atoms, or lists its few values.

    Bins are those of the least error of the numbers that are no atoms, and atoms are those that bins would smear, so
    both are looked for in turn. What is listed or not has the smaller error in the numbers themselves.

    Args:
        column: as drafted, in its steps.
        held: its numbers.
        size: rows, and records, of the table.
        noise: of one bin, an L1 distance as a share of the rows.
        bins: a number of bins that somebody asked for, or None.
    """
    if not len(held.numbers):
        return column
    rows, records = size
    few = listed(column, held) if bins is None and len(held.numbers) <= FINEST else None
    few_error = inf if few is None else _exact_error(few, held, noise)
    unstepped, column = column, in_steps(column, held.numbers)
    held = held.times(float(unstepped.scale[1] / column.scale[1]))
    column = beside_limits(column, held.numbers)
    atoms = spikes(finest(column) if bins is None else column.cut(bins), held, rows, noise)
    while True:
        rest, plain = held.among(~np.isin(held.numbers, atoms)), between_atoms(column, held.numbers, atoms)
        share = max(1, int(rest.rows.sum())) / rows
        cut = plain.cut(bins) if bins else _binned(plain, rest, noise / share, max(1, round(share * records)))
        chosen = with_atoms(cut, atoms)
        heavy = spikes(chosen, held, rows, noise)
        if not len(heavy):
            break
        atoms = np.union1d(atoms, heavy)
    return chosen if few is None or _exact_error(chosen, held, noise) < few_error else few


def _exact_error(column: BinnedColumn, held: Held, noise: float) -> float:
    """Returns the L1 distance of the shares of single numbers.

    The shares are those of the rows, and as a run would have them.
    """
    codes, shares = column.codes_of(held.numbers), held.rows / held.rows.sum()
    inside = np.bincount(codes, shares, minlength=column.size)
    drawn = inside[codes] / room(column)[codes]
    missed = max(0.0, 1.0 - float(drawn.sum())) if column.whole else 1.0  # drawn between the numbers that there are
    return float(np.abs(drawn - shares).sum() + missed + noise * np.sqrt(inside).sum() ** 2)


def _binned(column: BinnedColumn, held: Held, noise: float, records: int) -> BinnedColumn:
    """Returns the column in the bins of the least error.

    `noise` is that of one bin, an L1 distance as a share of these numbers' rows, which are of so many `records`.
    """
    if len(held.numbers) < 2:
        return column.cut(1)
    some = np.repeat(held.numbers, held.rows)
    values = some[:: -(-len(some) // _ROWS)]
    low, high = column.span
    steps = high - low + 1.0 if column.whole else 1e9
    # Fewer bins are whole numbers of steps wide, all alike.
    fewer = {round(steps / max(1, round(steps / count))) for count in _FEWER}
    least, most = sqrt(_TENTH / noise), min(steps, FINEST)
    ways = [*(column.cut(count) for count in sorted(fewer) if least <= count < most), column.cut(FINEST)]
    even = ways[-1].edges
    mass = np.unique(np.r_[even[[0, -1]], np.quantile(values, np.arange(1, FINEST) / FINEST)])
    errors = _Errors(values, noise, records)
    ways = _in_months(column, least) if written_in_months(column) else ways
    equal = min(ways, key=lambda way: sum(errors.of(way, even)[:2]))
    width, hidden, scale = errors.of(equal, mass)
    keeps = width <= hidden and scale <= KEPT_SPREAD  # noise hides more than width does, and is not far out
    if steps <= FINEST or column.scale[0] not in (NUMBERS, SPANS) or keeps:
        return equal
    others = list(_in_round_numbers(column) if column.scale[0] == NUMBERS else ())
    others += [*_at_quantiles(column, values, [c for c in _FEWER[1::2] if c >= least])]
    others += [errors.merged(way, times) for way in others for times in _TIMES]
    return min([equal, *others], key=lambda way: sum(errors.of(way, mass)))


def finest(column: BinnedColumn) -> BinnedColumn:
    """Returns a drafted column in its finest bins, those of months whole."""
    return _in_months(column, 0.0)[0] if written_in_months(column) else column.cut(FINEST)


def _in_months(column: BinnedColumn, least: float) -> list[BinnedColumn]:
    """Returns a column of months in bins of whole months.

    Each bin has as many. There are fewer and fewer bins, at most `FINEST`, the finest first.
    """
    lower, upper = (np.datetime64(str(bound)[:7], "M") for bound in (column.lower, column.upper))
    months = int((upper - lower).astype(int)) + 1
    ways = []
    for width in sorted(
        {-(-months // count) for count in (*_FEWER, FINEST) if count >= least} | {-(-months // FINEST)}
    ):
        starts = lower + np.arange(width, months, width)
        ways.append(column.cut([column.lower, *(f"{start}-01" for start in starts.astype(str)), column.upper]))
    return ways


class _Errors:
    """Errors of some numbers in bins, as a run would have them.

    Args:
        values: (n,) ascending.
        noise: of one bin, an L1 distance.
        records: that they are of, where these are fewer.
    """

    def __init__(self, values: Floats, noise: float, records: int) -> None:
        self.values, self.noise, self.records = values, noise, min(records, len(values))
        self.centre, self.scale = float(np.mean(values)), float(np.std(values)) or 1.0

    def below(self, edges: Floats) -> Floats:
        """Returns the share of the values below each edge.

        The outer edges hold all.
        """
        shares = np.searchsorted(self.values, edges) / len(self.values)
        return np.asarray(np.r_[0.0, shares[1:-1], 1.0], np.float64)

    def of(self, way: BinnedColumn, cells: Floats) -> tuple[float, float, float]:
        """Returns three errors of bins.

        Two are L1 distances in some cells: that of the width of bins, less what chance puts there, and that of noise.
        The third is the relative error of the standard deviation, by noise and by draws inside bins.
        """
        cumulative, widths, rows = self.below(way.edges), np.diff(way.edges), self.records
        shares = np.diff(cumulative)
        noisy = _above_zero(shares, self.noise / _CHANCE)
        inside = Inside(way.edges, noisy * rows)
        at = np.clip(np.searchsorted(way.edges, cells, side="right") - 1, 0, len(shares) - 1)
        place = np.clip((cells - way.edges[at]) / widths[at], 0.0, 1.0)
        drawn = np.diff(cumulative[at] + shares[at] * inside.share(at, place))
        free = max(0.0, 1.0 - len(shares) / len(drawn))
        chance = _CHANCE * np.sqrt(np.maximum(drawn, 0.0) * free / rows).sum()
        width = sqrt(max(0.0, float(np.abs(drawn - np.diff(self.below(cells))).sum() ** 2 - chance**2)))
        at = np.repeat(np.arange(len(noisy)), _POINTS)
        places = inside.place(at, np.tile((np.arange(_POINTS) + 0.5) / _POINTS, len(noisy)))
        numbers, weights = way.edges[at] + places * widths[at] - self.centre, noisy[at] / _POINTS
        scale = sqrt(max(0.0, float(weights @ numbers**2 - (weights @ numbers) ** 2)))
        return width, float(self.noise * np.sqrt(shares).sum() ** 2), abs(scale / self.scale - 1.0)

    def merged(self, way: BinnedColumn, times: float) -> BinnedColumn:
        """Returns a column whose bins of few rows joined their neighbours.

        They hold less than some times the noise.
        """
        shares, kept, held = np.diff(self.below(way.edges)), list[float](), 0.0
        for share, edge in zip(shares.tolist(), way.edges[1:].tolist(), strict=True):
            held += share
            if held >= times * self.noise:
                kept.append(edge)
                held = 0.0
        low, high = way.span
        inner = kept[:-1] if kept else []
        return way.cut([way.bound(edge) for edge in (low, *inner, high)])


def _at_quantiles(column: BinnedColumn, values: Floats, counts: Iterable[int]) -> Iterator[BinnedColumn]:
    """Yields a column of numbers in bins of about as many values.

    Beyond them stand round ones.

    An edge is the roundest number within a quarter of a bin of its quantile, so it is no row's own value but by chance.
    """
    low, high = column.span
    for count in (*counts, FINEST):
        at = np.unique(np.quantile(values, np.arange(count + 1) / count))
        if len(at) < 3:
            continue
        gaps = np.minimum(np.diff(at)[:-1], np.diff(at)[1:])
        units = 10.0 ** np.floor(np.log10(gaps / 2.0))
        units = np.maximum(units, 1.0) if column.whole else units
        inner = {float(f"{edge:.12g}") for edge in (np.rint(at[1:-1] / units) * units).tolist()}
        first, last = min(inner), max(inner)
        beyond = _round_beyond(last, high) + [-edge for edge in _round_beyond(-first, -low)]
        edges = sorted(edge for edge in inner.union(beyond) if low < edge < high)
        if 0 < len(edges) < FINEST:
            yield column.cut([column.bound(edge) for edge in (low, *edges, high)])


def _round_beyond(start: float, end: float) -> list[float]:
    """Returns 1, 2, 5, 10, 20, ... between two positive numbers.

    They begin at one and a half times the first.
    """
    if start <= 0.0 or end <= start:
        return []
    sizes = [
        float(f"{digit}e{power}") for power in range(floor(log10(start)), floor(log10(end)) + 1) for digit in (1, 2, 5)
    ]
    return [size for size in sizes if 1.5 * start < size < end]


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

    The edges are 0, 10, 20, 50, ..., 5,000, and the column's bounds; as many decades as there is room for.
    """
    low, high = column.span
    reach = max(abs(column.bound(low)), abs(column.bound(high)))
    if not reach:
        return
    top = floor(log10(reach))
    for digits in _DIGITS:
        for decades in _DECADES:
            sizes = [float(f"{digit}e{top - k}") for digit in digits for k in range(decades)]
            edges = {column.number(edge) for size in sizes for edge in (-size, size)} | {column.number(0.0)}
            inner = sorted(edge for edge in edges if low < edge < high and (edge.is_integer() or not column.whole))
            if 0 < len(inner) < FINEST:
                yield column.cut([column.bound(edge) for edge in (low, *inner, high)])
                break
