"""Groups of nested codes: a school lies in one district.

Nobody writes the map down, and a map read from rows would tell of rows. It is found in a released model. That is
post-processing: it costs no privacy, and says no more of a row than the model does. A model is noisy, so it has some
rows of each code in every group. `likeliest` gives each code one group so that as many of the model's rows as can be
stay where they are, and that each group keeps its share of them. The second half matters where noise hides what a code
says of its group: the likeliest group of every single code would then be the largest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fedsyn.domain import Codes, Flags, Floats
from fedsyn.errors import SchemaError
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.conditions import DrawnRows
from fedsyn.table.schema.rules import AnyRule, Determined, Nested, columns_of

Pair = tuple[str, str]
#: (column of codes, column of their groups) -> (codes,) group of each code, -1 where it may be any.
Placed = Mapping[Pair, Codes]
# Of all rows: a code that no row has still gets a group.
_LEAST = 1e-9


class Nesting:
    """All nested columns of a schema.

    A code is one of a column's categories. Rows whose code is missing or `other`, or that have no group, say nothing.

    Args:
        rules: as the schema states them.
        columns: modelled columns, in the domain's order.

    Attributes:
        pairs: (column of codes, column of their groups), inner ones first.

    Raises:
        SchemaError: a column without categories, a group that another constraint is about, or a circle.
    """

    def __init__(self, rules: Sequence[AnyRule], columns: Mapping[str, Any]) -> None:
        self._columns, self._names = dict(columns), list(columns)
        pairs = [(rule, *pair) for rule in rules if isinstance(rule, Nested) for pair in pairwise(rule.nested)]
        for rule, code, group in pairs:
            self._require_free(rule, code, group, rules)
        groups = [group for _, _, group in pairs]
        for rule, _, group in pairs:
            if groups.count(group) > 1:
                raise SchemaError(f"constraint '{rule.text}': codes of two columns lie in '{group}'; one is enough")
        self.pairs = tuple(_inner_first([pair[1:] for pair in pairs]))

    def _require_free(self, rule: Nested, code: str, group: str, rules: Sequence[AnyRule]) -> None:
        for name in (code, group):
            if not isinstance(self._columns.get(name), CategoricalColumn):
                raise SchemaError(f"constraint '{rule.text}': '{name}' is not a modelled column of categories")
        for other in rules:
            # A group is set after rows were drawn: what else is to hold of it would have to hold of its codes.
            computes = isinstance(other, Determined) and other.determines == group
            if group in columns_of(other) and not computes and not isinstance(other, Nested):
                raise SchemaError(
                    f"constraint '{rule.text}': '{group}' follows from '{code}', so state '{other.text}' for '{code}'"
                )

    def placed(self, codes: Codes, groups: Placed | None = None) -> Codes:
        """Returns (n, d) codes with nested codes in one group each.

        Args:
            codes: of rows.
            groups: the group of each code; None: as these rows have it.
        """
        if not self.pairs or not len(codes):
            return codes
        codes = codes.copy()
        for pair in self.pairs:
            at, to = (self._names.index(name) for name in pair)
            inner, outer = (codes[:, axis].astype(np.intp) for axis in (at, to))
            found = self.groups_of(pair, self._counted(pair, inner, outer)) if groups is None else groups[pair]
            moves = (found[inner] >= 0) & (outer < len(self._columns[pair[1]].values))
            codes[:, to] = np.where(moves, found[inner], outer)
        return codes

    def groups_of(self, pair: Pair, table: Floats) -> Codes:
        """Returns the group of each code, (codes,).

        It is -1 where it may be any.

        Args:
            pair: of `pairs`.
            table: (codes, groups) records.
        """
        out, listed = np.full(len(table), -1), self._listed(pair)
        out[listed] = likeliest(table[listed, : len(self._columns[pair[1]].values)])
        return out

    def broken(self, rows: DrawnRows, rule: Nested) -> Flags:
        """(n,) where a code is not where most of its rows are."""
        out = np.zeros(len(rows.codes[rule.nested[0]]), dtype=bool)
        for pair in pairwise(rule.nested):
            inner, outer = (rows.codes[name].astype(np.intp) for name in pair)
            table = self._counted(pair, inner, outer)[:, : len(self._columns[pair[1]].values)]
            known = self._listed(pair)[inner] & (outer < table.shape[1])
            out |= known & (outer != table.argmax(axis=1)[inner])
        return out

    def _listed(self, pair: Pair) -> Flags:
        """(codes,) which are categories of the inner column."""
        column = self._columns[pair[0]]
        known = [value in column.categories and value != column.other_value for value in column.values]
        return np.array([*known, *[False] * (column.size - len(known))])

    def _counted(self, pair: Pair, inner: Codes, outer: Codes) -> Floats:
        table = np.zeros([self._columns[name].size for name in pair])
        np.add.at(table, (inner, outer), 1)
        return table


def _inner_first(pairs: list[Pair]) -> Iterator[Pair]:
    while pairs:
        groups = [group for _, group in pairs]
        able = [pair for pair in pairs if pair[0] not in groups]
        if not able:
            raise SchemaError(f"{' and '.join(groups)} are nested in each other, in a circle")
        yield from able
        pairs = [pair for pair in pairs if pair not in able]


def likeliest(table: Floats) -> Codes:
    """Returns one group for each code, (codes,).

    Rows are assigned to groups by a transport problem, whose solutions split all but a few codes nowhere: at most one
    less than there are groups. A code that is split goes where most of it is.

    >>> likeliest(np.array([[9.0, 1.0], [2.0, 8.0], [5.0, 5.0]])).tolist()
    [0, 1, 0]
    >>> likeliest(np.outer([1.0, 1.0, 1.0], [2.0, 1.0])).tolist().count(0)  # it says nothing; shares stay
    2

    Args:
        table: (codes, groups) records, which are not negative.
    """
    from scipy.optimize import linprog  # a schema is read without SciPy
    from scipy.sparse import csr_array

    codes, groups = table.shape
    table = np.maximum(np.asarray(table, np.float64), 0.0)
    best = np.asarray(table.argmax(axis=1))
    if groups < 2 or not table.sum():
        return best
    held = table.sum(axis=1) + _LEAST * table.sum()
    shares = table.sum(axis=0) / table.sum()
    cell = np.arange(codes * groups)
    sums = csr_array(
        (np.ones(2 * len(cell)), (np.concatenate([cell // groups, codes + cell % groups]), np.tile(cell, 2)))
    )
    # The last group's share follows from the others.
    found = linprog(
        -(table / held[:, None]).ravel(),
        A_eq=sums[:-1],
        b_eq=np.concatenate([held / held.sum(), shares[:-1]]),
        method="highs",
    )
    return np.asarray(found.x.reshape(codes, groups).argmax(axis=1)) if found.success else best
