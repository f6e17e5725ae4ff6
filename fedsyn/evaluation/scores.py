"""Scores of single columns and of pairs of columns.

How far two tables of codes are apart.

Everything is counted by `fedsyn.table.counting`. For pairs, a column of more than 8 codes is read in 8 groups, so that
a cell holds rows enough to be compared: bins and ordered categories in runs of about equally many real rows, other
categories by frequency among the real rows, the rarest together. A missing value is a group of its own. A group that
fewer than sqrt(n) of n real rows have joins the one before it: two of them would meet in less than one row by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.special import chdtrc

from fedsyn.domain import Domain
from fedsyn.table.counting.marginals import count, count_one_way, split_one_way
from fedsyn.table.schema import BinnedColumn, Schema
from fedsyn.table.schema.columns import Column

MOST_GROUPS = 8
_INFLUENTIAL = 20_000  # rows, evenly spaced, that the error of a correlation is estimated from
_INSIDE = 64  # places in a bin, equally likely
_NOTHING = 1e-12  # shares below it, which only models have, count as none

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.integer]
Moments = tuple[float, float]


def places(schema: Schema, name: str) -> Floats | None:
    """Returns each code's place on its axis, (size,) float64.

    NaN for a missing value; None for a column without order.

    Bins stand at their middle, ordered categories at 0, 1, 2, ...
    """
    column = schema.columns[name]
    size = schema.domain[name]
    if isinstance(column, BinnedColumn):
        known = column.middles
    elif getattr(column, "ordered", False):
        known = np.arange(len(column.values), dtype=np.float64)
    else:
        return None
    return np.append(known, np.full(size - len(known), np.nan))


def axis_labels(column: Column) -> tuple[str, ...]:
    """Returns the value of each code, or its bin's lower edge.

    Dates as dates.

    >>> from fedsyn.table.schema import NumericColumn
    >>> axis_labels(NumericColumn(lower=0, upper=9, bins=3, dtype="integer", missing=True))
    ('0', '4', '7', 'missing')
    """
    values = column.labels() if isinstance(column, BinnedColumn) else [str(value) for value in column.values]
    return (*values, *column.sides)


def shares(codes: Codes, domain: Domain) -> list[Floats]:
    """Returns one-way marginals as shares of the rows.

    Zeros of a table without rows.
    """
    counts = split_one_way(count_one_way(codes, domain), domain)
    return [part / max(1, len(codes)) for part in counts]


def closeness(one: Floats, other: Floats) -> float:
    """Returns 1 - total variation distance, between 0 and 1.

    It is 0 where one of the two distributions has no rows.

    >>> closeness(np.array([0.5, 0.5]), np.array([0.5, 0.5])), closeness(np.array([1.0, 0.0]), np.array([0.25, 0.75]))
    (1.0, 0.25)
    """
    if not one.any() or not other.any():
        return 0.0
    return min(1.0, max(0.0, 1.0 - float(np.abs(one - other).sum()) / 2))


def level_of_codes(column: Column, share: Floats, at: Floats, rows: float) -> Floats:
    """Returns the mean value of each code, (size,).

    There are `rows` rows with such shares, as above. A missing value has NaN.
    """
    known, level = np.isfinite(at), np.full(len(at), np.nan)
    level[known] = _values(column, share[known] / max(share[known].sum(), 1e-300), at[known], rows).mean(axis=1)
    return level


def _values(column: Column, mass: Floats, at: Floats, rows: float) -> Floats:
    """(known codes, places) values, equally likely within a code."""
    if not isinstance(column, BinnedColumn):
        return at[:, None]
    bins, places = np.divmod(np.arange(len(mass) * _INSIDE), _INSIDE)
    if column.values:
        return column.ends[0][:, None]
    places = column.densities(rows * mass).place(bins, (places + 0.5) / _INSIDE)
    values = (column.edges[bins] + np.diff(column.edges)[bins] * places).reshape(len(mass), _INSIDE)
    return np.floor(values) if column.whole else values


def correlations(columns: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Returns Pearson correlations and their standard errors, (columns, columns) each.

    Takes (n,) values per column, NaN where missing. A pair is over the rows that have both. The errors are those of
    the influence of single rows, so few rows far off make them wide: of z-scores a and b that of
    ab - r (a^2 + b^2) / 2 (Devlin, Gnanadesikan and Kettenring 1975). Of normal values that is (1 - r^2) / sqrt(n).
    """
    z = np.stack(columns, axis=1)  # in place: there are many rows
    known = np.isfinite(z)
    present, held = known.astype(np.float64), known.sum(axis=0)
    rows = present.T @ present
    with np.errstate(divide="ignore", invalid="ignore"):  # of a constant column there is none
        z -= np.where(known, z, 0.0).sum(axis=0) / held
        z[~known] = 0.0
        z /= np.sqrt((z**2).sum(axis=0) / held)
        squares = (z**2).T @ present
        r = z.T @ z / np.sqrt(squares * squares.T)
        step = -(-len(z) // _INFLUENTIAL)
        some = z[::step]
        second, third, fourth = (some**2).T @ some**2, (some**3).T @ some, (some**4).T @ present[::step]
        influence = second - r * (third + third.T) + 0.25 * r**2 * (fourth + fourth.T + 2.0 * second)
        return np.asarray(r), np.sqrt(np.maximum(influence, 0.0) * len(z) / len(some)) / rows


@dataclass(frozen=True, eq=False)
class Grouping:
    """Columns of many codes read in few groups.

    Attributes:
        domain: the chosen attributes and their numbers of groups.
        axes: of these attributes among the table's columns.
        groups: (size,) group of each code, one array an attribute.
    """

    domain: Domain
    axes: tuple[int, ...]
    groups: tuple[npt.NDArray[np.int64], ...]

    @classmethod
    def of(cls, schema: Schema, real: Sequence[Floats], names: Sequence[str], rows: float = math.inf) -> Grouping:
        """Returns groups by the real one-way marginals.

        `rows` rows were counted for these shares, which come in the order of the schema's domain.
        """
        axes = schema.domain.axes(names)
        least = 1.0 / math.sqrt(rows) if rows else 0.0
        groups = tuple(
            few_groups(real[axis], places(schema, name), least) for axis, name in zip(axes, names, strict=True)
        )
        return cls(Domain(tuple(names), tuple(int(g.max()) + 1 for g in groups)), axes, groups)

    def read(self, codes: Codes) -> npt.NDArray[np.uint8]:
        """(n, attributes) groups of a table's codes."""
        result = np.empty((len(codes), len(self.axes)), np.uint8)
        for at, (axis, groups) in enumerate(zip(self.axes, self.groups, strict=True)):
            result[:, at] = groups.astype(np.uint8)[codes[:, axis]]
        return result

    def fold(self, distributions: Sequence[Floats]) -> list[Floats]:
        """Returns one-way distributions over groups instead of codes.

        They come in the order of the chosen attributes.
        """
        return [
            np.bincount(groups, weights=distributions[axis], minlength=size).astype(np.float64)
            for axis, groups, size in zip(self.axes, self.groups, self.domain.shape, strict=True)
        ]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Positions of the two attributes of every pair."""
        return list(combinations(range(len(self.domain)), 2))

    def count(self, codes: Codes) -> list[Floats]:
        """Returns the share of the rows in each cell of every pair.

        Pairs come in the order of `pairs`.
        """
        names = self.domain.attributes
        cliques = [(names[a], names[b]) for a, b in self.pairs]
        return [table / max(1, len(codes)) for table in count(self.read(codes), self.domain, cliques)]


def few_groups(real: Floats, at: Floats | None, least: float, most: int = MOST_GROUPS) -> npt.NDArray[np.int64]:
    """Returns the group of each code, (size,).

    Codes are grouped by their share of the rows and their place, into `most` groups at most. A group has the share
    `least` or more.
    """
    size = len(real)
    if size <= most:
        groups = np.arange(size)
    elif at is None:
        groups = np.full(size, most - 1)
        groups[np.argsort(-real, kind="stable")[: most - 1]] = np.arange(most - 1)
    else:
        known = np.isfinite(at)
        most -= int((~known).any())
        groups = np.empty(size, np.int64)
        mass = real[known]
        middle = np.cumsum(mass) - mass / 2
        groups[known] = np.minimum(most - 1, (most * middle / max(mass.sum(), 1e-300)).astype(np.int64))
        groups[~known] = most
    return joined_groups(groups, real, least)


def joined_groups(groups: npt.NDArray[np.int64], real: Floats, least: float) -> npt.NDArray[np.int64]:
    """Returns groups of the share `least` or more, (size,).

    A smaller one joins the one before it.
    """
    groups = np.unique(groups, return_inverse=True)[1]  # a bin that holds many groups' rows leaves some empty
    joint = np.bincount(groups, real)
    joined, place = np.zeros(len(joint), np.int64), -1
    for group, share in enumerate(joint):
        if share >= least or place < 0:
            place += 1
        joined[group] = place
    if place > 0 and joint[joined == 0].sum() < least:  # the first one has none before it
        joined[joined > 0] -= 1
    return np.asarray(joined[groups], np.int64)


@dataclass(frozen=True)
class Link:
    """A link of two columns, and what remains in the table.

    Attributes:
        chance: of as strong an association where nothing links the columns.
        real, synthetic: Cramér's V, corrected for bias.
        kept: 1: all of it; 0: nothing; below: reversed. That is <r, s> / max(|r|^2, |s|^2), where r and s are what the
            real and the synthetic table have beyond independence, (p_ij - p_i p_j) / sqrt(p_i p_j), and the squares
            are without what chance adds. A correlation that shrinks by half keeps one half.
        error: standard error of `kept` where all is kept: r and s are off by chance in every direction, by one over the
            root of their rows, of which <r, s> sees that of the link itself.
    """

    chance: float
    real: float
    synthetic: float
    kept: float
    error: float


def link(real: Floats, rows: int, synthetic: Floats, synthetic_rows: int, apart: tuple[int, int] | None = None) -> Link:
    """Compares a link of two columns in two tables.

    The two-way tables hold shares of `rows` and `synthetic_rows` rows. `apart` are as many of them as chance moves by
    themselves, such as the persons whose rows they are; None: all.
    """
    alone = (rows, synthetic_rows) if apart is None else apart
    (r, free), (s, synthetic_free) = _beyond(real), _beyond(synthetic)
    squared = float((r**2).sum())
    sizes = [
        max(float((x**2).sum()) - f / max(n - 1, 1), 0.0)
        for x, f, n in ((r, free, rows), (s, synthetic_free, synthetic_rows))
    ]
    share = float((r * s).sum()) / max(*sizes, 1e-12)
    chance = float(chdtrc(free, squared * alone[0])) if free else 1.0
    error = math.sqrt((1.0 / alone[0] + 1.0 / alone[1]) / max(*sizes, 1e-12))
    both = association(real, rows), association(synthetic, synthetic_rows)
    return Link(chance, *both, max(-1.0, min(1.0, share)), min(1.0, error))


def _beyond(table: Floats) -> tuple[Floats, int]:
    """Returns shares beyond independence, in units of chance.

    Returns their degrees of freedom beside them.
    """
    p, q = table.sum(axis=1), table.sum(axis=0)
    apart = np.outer(p, q)
    used = apart > _NOTHING
    free = (np.count_nonzero(p > _NOTHING) - 1) * (np.count_nonzero(q > _NOTHING) - 1)
    return np.where(used, (table - apart) / np.sqrt(np.where(used, apart, 1.0)), 0.0), max(int(free), 0)


def association(table: Floats, rows: int) -> float:
    """Returns Cramér's V of a two-way table, corrected for bias.

    It is 0 for independent columns and 1 for a function.

    Source: Bergsma 2013, "A bias-correction for Cramér's V and Tschuprow's T". Empty rows and columns do not count.

    Args:
        table: (a, b) shares.
        rows: how many rows they were counted from.
    """
    p, q = table.sum(axis=1), table.sum(axis=0)
    kept_p, kept_q = p > _NOTHING, q > _NOTHING
    table = table[np.ix_(kept_p, kept_q)]
    r, c = table.shape
    if min(r, c) < 2 or rows < 2:
        return 0.0
    expected = np.outer(p[kept_p], q[kept_q])
    phi2 = float(np.sum((table - expected) ** 2 / expected))
    phi2 = max(0.0, phi2 - (r - 1) * (c - 1) / (rows - 1))
    smaller = min(r - (r - 1) ** 2 / (rows - 1), c - (c - 1) ** 2 / (rows - 1)) - 1
    return min(1.0, math.sqrt(phi2 / smaller)) if smaller > 0 else 0.0
