"""Scores of single columns and of pairs of columns: how far two tables of codes are apart.

Everything is counted by `fedsyn.table.counting`. For pairs, a column of more than 20 codes is read in 20 groups, so
that a cell holds rows enough to be compared: bins and ordered categories in runs of about equally many real rows, other
categories by frequency among the real rows, the rarest together. A missing value stays a code of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Domain
from fedsyn.table.counting.marginals import count, count_one_way, split_one_way
from fedsyn.table.schema import BinnedColumn, Column, Schema

MOST_GROUPS = 20
_NOTHING = 1e-12  # shares below it, which only models have, count as none

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.integer]


def places(schema: Schema, name: str) -> Floats | None:
    """(size,) float64: where each code stands on its axis, NaN for a missing value; None for a column without order.

    Bins stand at their middle, ordered categories at 0, 1, 2, ...
    """
    column = schema.columns[name]
    size = schema.domain[name]
    if isinstance(column, BinnedColumn):
        known = (column.edges[:-1] + column.edges[1:]) / 2
    elif getattr(column, "ordered", False):
        known = np.arange(len(column.values), dtype=np.float64)
    else:
        return None
    return np.append(known, np.full(size - len(known), np.nan))


def axis_labels(column: Column) -> tuple[str, ...]:
    """Return the value of each code, or the lower edge of its bin; dates as dates.

    >>> from fedsyn.table.schema import NumericColumn
    >>> axis_labels(NumericColumn(lower=0, upper=9, bins=3, dtype="integer", missing=True))
    ('0', '4', '7', 'missing')
    """
    values = column.labels() if isinstance(column, BinnedColumn) else [str(value) for value in column.values]
    return (*values, *(["missing"] if column.missing else []))


def shares(codes: Codes, domain: Domain) -> list[Floats]:
    """One-way marginals as shares of the rows; zeros of a table without rows."""
    counts = split_one_way(count_one_way(codes, domain), domain)
    return [part / max(1, len(codes)) for part in counts]


def closeness(one: Floats, other: Floats) -> float:
    """1 - total variation distance of two distributions, between 0 and 1; 0 where one of them has no rows.

    >>> closeness(np.array([0.5, 0.5]), np.array([0.5, 0.5])), closeness(np.array([1.0, 0.0]), np.array([0.25, 0.75]))
    (1.0, 0.25)
    """
    if not one.any() or not other.any():
        return 0.0
    return min(1.0, max(0.0, 1.0 - float(np.abs(one - other).sum()) / 2))


def shift(real: Floats, synthetic: Floats, at: Floats) -> float | None:
    """How far values have moved, on average, as a share of the mean distance between two real values.

    The Wasserstein-1 distance between the known values, divided by Gini's mean difference of the real ones; None where
    one side has no known value, or where all real ones are equal.
    """
    known = np.isfinite(at)
    p, q, x = real[known], synthetic[known], at[known]
    if p.sum() == 0 or q.sum() == 0:
        return None
    order = np.argsort(x, kind="stable")
    gaps = np.diff(x[order])
    below_p, below_q = np.cumsum(p[order])[:-1] / p.sum(), np.cumsum(q[order])[:-1] / q.sum()
    spread = 2 * float(np.sum(below_p * (1 - below_p) * gaps))
    return float(np.sum(np.abs(below_p - below_q) * gaps)) / spread if spread > 0 else None


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
    def of(cls, schema: Schema, real: Sequence[Floats], names: Sequence[str]) -> Grouping:
        """Groups by the real one-way marginals (shares, in the order of the schema's domain)."""
        axes = schema.domain.axes(names)
        groups = tuple(_groups(real[axis], places(schema, name)) for axis, name in zip(axes, names, strict=True))
        return cls(Domain(tuple(names), tuple(int(g.max()) + 1 for g in groups)), axes, groups)

    def read(self, codes: Codes) -> npt.NDArray[np.uint8]:
        """(n, attributes) groups of a table's codes."""
        result = np.empty((len(codes), len(self.axes)), np.uint8)
        for at, (axis, groups) in enumerate(zip(self.axes, self.groups, strict=True)):
            result[:, at] = groups.astype(np.uint8)[codes[:, axis]]
        return result

    def fold(self, distributions: Sequence[Floats]) -> list[Floats]:
        """One-way distributions over codes, in the order of the table's columns, as those over groups."""
        return [
            np.bincount(groups, weights=distributions[axis], minlength=size).astype(np.float64)
            for axis, groups, size in zip(self.axes, self.groups, self.domain.shape, strict=True)
        ]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Positions of the two attributes of every pair."""
        return list(combinations(range(len(self.domain)), 2))

    def count(self, codes: Codes) -> list[Floats]:
        """The share of the rows in each cell of every pair, in the order of `pairs`."""
        names = self.domain.attributes
        cliques = [(names[a], names[b]) for a, b in self.pairs]
        return [table / max(1, len(codes)) for table in count(self.read(codes), self.domain, cliques)]


def _groups(real: Floats, at: Floats | None) -> npt.NDArray[np.int64]:
    size = len(real)
    if size <= MOST_GROUPS:
        return np.arange(size)
    if at is None:
        groups = np.full(size, MOST_GROUPS - 1)
        groups[np.argsort(-real, kind="stable")[: MOST_GROUPS - 1]] = np.arange(MOST_GROUPS - 1)
        return groups
    known = np.isfinite(at)
    missing = int((~known).any())
    most = MOST_GROUPS - missing
    groups = np.empty(size, np.int64)
    mass = real[known]
    middle = np.cumsum(mass) - mass / 2
    wanted = np.minimum(most - 1, (most * middle / max(mass.sum(), 1e-300)).astype(np.int64))
    groups[known] = np.unique(wanted, return_inverse=True)[1]  # a bin that holds many groups' rows leaves some empty
    groups[~known] = groups[known].max() + 1
    return groups


def association(table: Floats, rows: int) -> float:
    """Cramér's V of a two-way table of shares, corrected for bias: 0 for independent columns, 1 for a function.

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
