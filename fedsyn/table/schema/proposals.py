"""Proposals of constraints that hold in all rows.

A person then says which of them hold by their meaning.

Proposed is what a schema can state: one column at most another, also that of a person's next row, a column that is the
sum of two others or equal to one, a column that another determines, and the patterns of
`fedsyn.table.schema.patterns`. A constraint that would hold by chance is not: it is proposed only if at least `BREAKS`
rows would break it were its columns independent of each other.
All pairs are looked at together, on a few rows first; what the schema makes of the constraint has the last word.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedsyn.domain import Flags, Floats, Integers
from fedsyn.errors import SchemaError
from fedsyn.lazy import pd
from fedsyn.table.schema.across import order_among, steps_along
from fedsyn.table.schema.binned import MOMENTS, NUMBERS, SPANS, BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.conditions import DrawnRows, grid_of
from fedsyn.table.schema.ordered import DateColumn
from fedsyn.table.schema.patterns import BREAKS, MOST_ENTRIES, Found, Patterns, absent_in
from fedsyn.table.schema.profile import held_by
from fedsyn.table.schema.rules import Across, AnyRule, Comparison, Determined, Dropout, MissingWhere, SumRule
from fedsyn.table.schema.vocabulary import FEW_ROWS

_MOST_DIGITS = 3  # of a number between two groups
_MISPLACED = 0.05  # of the rows, whose category changes where numbers are drawn evenly inside their bins
# Columns of a sort that are compared, rows that are looked at first, and constraints that are proposed.
_MOST_COLUMNS, _FIRST_ROWS, _MOST = 200, 512, 20
# Rows whose values are paired at random, at least: the share that breaks a constraint is then known to half a percent.
_PAIRED = 10_000
_DAY = 86_400_000_000.0


@dataclass(frozen=True)
class Proposal:
    """A constraint that holds in all rows.

    Attributes:
        rule: itself.
        rows: that it was seen to hold in: those in which none of its columns is missing, of a pattern of missing values
            all.
        columns: that it is about.
        breaks: share of rows that would break it, were its columns independent: the columns' own values, paired at
            random. Of a comparison: of the rows that have both sides.
        unknown: the column that needs `missing: true`, for what another one holds beyond its list; "": none does.
        better: what would say more, as a sentence; "": nothing.
    """

    rule: AnyRule
    rows: int
    columns: tuple[str, ...] = ()
    breaks: float = 0.0
    unknown: str = ""
    better: str = ""


def proposed_constraints(schema: Any, frame: pd.DataFrame, whose: Integers | None = None) -> list[Proposal]:
    """Returns the constraints that hold in all rows of a table.

    They are on the columns of the table's schema, and can be stated together.

    Args:
        schema: of the table.
        frame: its rows.
        whose: (rows,) number of each row's person, where persons have several rows.
    """
    (rows, kept), along = schema.rows_of(frame), None
    whose = whose if whose is None or kept is None else whose[kept]  # of rows that no code takes nothing is seen
    if whose is not None and schema.persons is not None and schema.persons.in_order:
        along = whose, order_among(schema.persons, rows)
    table, plain = _Columns(schema, rows, whose, along), schema.to_dict()
    proposals: list[Proposal] = []
    for rule, names in table.found(proposals):
        if len(proposals) == _MOST:
            break
        stated, unknown = _stated(type(schema), plain, proposals, rule)
        if stated is None:  # not beside those before it
            continue
        if stated.constraints[-1] == rule and not stated.compiled.violations(rows, along)[rule.text]:
            if isinstance(rule, Across):
                proposals.append(Proposal(rule, *table.seen_across(rule)))
                continue
            known = np.logical_and.reduce([~table.absent(name) for name in names])
            held = len(known) if isinstance(rule, Dropout | MissingWhere) else int(known.sum())
            breaks = _by_pairing(stated.compiled, rule, rows, names)
            proposals.append(Proposal(rule, held, tuple(names), breaks, unknown, table.better(rule)))
    return proposals


def _by_pairing(compiled: Any, rule: AnyRule, rows: DrawnRows, names: Sequence[str]) -> float:
    """Returns the share of randomly paired rows that break a constraint.

    Every column keeps its own values, and those of different columns are paired anew: the share is what a table of
    independent columns has.
    """
    broken, looked, rng = 0, 0, np.random.default_rng(0)
    while looked < _PAIRED:
        paired = DrawnRows({}, {})
        for name in names:
            whole = rows.drawn[name][0] if name in rows.drawn else rows.codes[name]
            part = rows.taken(rng.permutation(len(whole)), [name])
            paired.codes.update(part.codes)
            paired.drawn.update(part.drawn)
        both = np.ones(len(whole), dtype=bool)
        if isinstance(rule, Comparison):
            both = ~np.logical_or.reduce([absent_in(paired, name, compiled.columns[name]) for name in names])
        if not both.any():
            return 0.0
        broken, looked = broken + compiled.violations(paired)[rule.text], looked + int(both.sum())
    return broken / looked


def _stated(kind: Any, plain: dict[str, Any], proposals: list[Proposal], rule: AnyRule) -> tuple[Any, str]:
    """Returns the schema with one more constraint, or None.

    The second result names the column that needs `missing: true` for it.
    """
    rules = [*plain.get("constraints", ()), *(one.rule.data() for one in proposals), rule.data()]
    for unknown in ("", rule.column) if isinstance(rule, Determined) else ("",):
        names = {unknown, *(one.unknown for one in proposals)} - {""}
        places = {name: {**plain["columns"][name], "missing": True} for name in names}
        with suppress(SchemaError):
            return kind.from_dict({**plain, "columns": plain["columns"] | places, "constraints": rules}), unknown
    return None, ""


class _Columns:
    """The columns of a table that constraints may be about.

    Args:
        schema: of its columns.
        rows: its rows, of all modelled columns.
        whose: (rows,) number of each row's person, where persons have several rows.
        along: the same with what the rows of a person ascend by, where they stand in order.
    """

    def __init__(
        self,
        schema: Any,
        rows: DrawnRows,
        whose: Integers | None,
        along: tuple[Integers, Floats | None] | None = None,
    ) -> None:
        self.persons, self.steps = schema.persons, None if along is None else steps_along(*along)
        self.columns: dict[str, Any] = {n: c for n, c in schema.columns.items() if n not in schema.open}
        self.computed = {n: c for n, c in schema.derived.items() if n in rows.drawn}
        self.label, self.rows, self.whose = schema.label, rows, whose
        self.categories = [n for n, c in self.columns.items() if isinstance(c, CategoricalColumn)][:_MOST_COLUMNS]

    def absent(self, name: str) -> Flags:
        """(n,) which rows have no value of a column."""
        return absent_in(self.rows, name, self.columns[name])

    def found(self, proposals: list[Proposal]) -> Found:
        """Yields what holds, as constraints.

        Args:
            proposals: those that were taken up so far.
        """
        patterns = Patterns(self.columns, self.rows, self._families.get(NUMBERS, {}), self.whose)
        yield from itertools.chain(self.sums(), self.determined(), patterns.missing(), patterns.dropouts())
        yield from self.orders()
        yield from self.across()
        rules = [one.rule for one in proposals]
        yield from patterns.zeros({(r.left, r.right) for r in rules if isinstance(r, Comparison)})
        yield from patterns.nests({(r.determines, r.column) for r in rules if isinstance(r, Determined)})

    @cached_property
    def _families(self) -> dict[str, dict[str, Floats]]:
        """Values of each family's columns, in the family's unit.

        Maps a family to its columns, and a column to (n,) values, NaN where missing. Constant columns are left
        out.
        """
        return self._values(self.columns)

    @cached_property
    def _with_sums(self) -> dict[str, dict[str, Floats]]:
        """Returns the same with columns that are computed as sums."""
        return self._values({**self.columns, **self.computed})

    def _values(self, wanted: Mapping[str, Any]) -> dict[str, dict[str, Floats]]:
        families: dict[str, dict[str, Floats]] = {}
        for name, column in wanted.items():
            grid = grid_of(column)
            if grid is None:
                continue
            numbers, absent = self.rows.numbers(name, grid)
            values = np.where(absent | ~np.isfinite(numbers), np.nan, grid.value(numbers))
            some = families.setdefault(grid.family, {})
            if len(some) < _MOST_COLUMNS and len(np.unique(values[~absent])) > 1:
                some[name] = values
        return families

    # One at most another ----------------------------------------------------------------------------------------------

    def orders(self) -> Found:
        """Yields the comparisons `a <= b` that hold.

        Those that follow from two others are left out.
        """
        for family, columns in self._families.items():
            equal = {b for _, b in self._equal(columns)}
            # A flag beside a quantity says nothing that somebody would state.
            columns = {
                n: values
                for n, values in columns.items()
                if n not in equal and len(np.unique(values[values == values])) > 2
            }
            if len(columns) < 2:
                continue
            names, first = list(columns), np.stack([*columns.values()])[:, :_FIRST_ROWS]
            least = np.asarray(~(first[:, None] > first[None, :]).any(axis=2))
            np.fill_diagonal(least, False)
            for a, b in np.argwhere(least).tolist():
                x, y = columns[names[a]], columns[names[b]]
                if family == NUMBERS:
                    least[a, b] = self._is_quantity_of(names[a], names[b]) and not (x > y).any()
                    # Where both are zero or neither, the zeros say it, and the rest has to say it once more.
                    x, y = np.where(x == 0, np.nan, x), np.where(y == 0, np.nan, y)
                least[a, b] &= not (x > y).any() and by_chance(x, y) >= BREAKS
            for a, b in np.argwhere(least & ~(least.astype(int) @ least > 0)).tolist():
                yield Comparison(left=names[a], op="<=", right=names[b]), [names[a], names[b]]

    # One at most another in the next row ------------------------------------------------------------------------------

    def across(self) -> Found:
        """Yields the comparisons `a <= next.b` that hold.

        Those that follow from one of them and comparisons inside a row are left out.
        """
        if self.steps is None:
            return
        here, after = self.steps
        for family, columns in self._with_sums.items():
            names = [n for n, v in columns.items() if n not in self.persons.constant and len(np.unique(v[v == v])) > 2]
            inside, holds = (np.zeros((len(names), len(names)), bool) for _ in range(2))
            for i, j in itertools.product(range(len(names)), repeat=2):
                x, y = columns[names[i]], columns[names[j]]
                if family != NUMBERS or self._is_quantity_of(names[i], names[j]):
                    inside[i, j] = i != j and not (x > y).any()
                    holds[i, j] = not (x[here] > y[after]).any() and by_chance(x[here], y[after]) >= BREAKS
            if self.persons.order in names:
                holds[names.index(self.persons.order), names.index(self.persons.order)] = True
            follows = (inside.astype(int) @ holds > 0) | (holds.astype(int) @ inside > 0)
            for i, j in np.argwhere(holds & ~follows).tolist():
                if (names[i], names[j]) != (self.persons.order, self.persons.order):
                    yield Across(left=names[i], op="<=", right=names[j]), [names[i], names[j]]

    def seen_across(self, rule: Across) -> tuple[int, tuple[str, ...], float]:
        """Returns what was seen of a comparison with next rows.

        It is the rows in which it holds, its columns, and the share that would break it by chance.
        """
        assert self.steps is not None
        family = next(some for some in self._with_sums.values() if {rule.left, rule.right} <= some.keys())
        x, y = family[rule.left][self.steps[0]], family[rule.right][self.steps[1]]
        known = int(np.count_nonzero(~(np.isnan(x) | np.isnan(y))))
        return known, (rule.left, rule.right), by_chance(x, y) / max(1, known)

    def _is_quantity_of(self, a: str, b: str) -> bool:
        """Returns whether two columns of numbers may be of one unit.

        As far as their cells say: counts and fractions are not, nor are cells with different signs around them, such as
        those of a currency.
        """
        units = []
        for name in (a, b):
            column = self.columns[name] if name in self.columns else self.computed[name]
            grid = grid_of(column)
            assert grid is not None
            signs = (getattr(column, "prefix", ""), getattr(column, "suffix", ""))
            units.append((*signs, grid.whole and grid.unit == 1))
        return units[0] == units[1]

    def better(self, rule: AnyRule) -> str:
        """Returns a better way to keep the days between two dates.

        It is empty unless most such dates are nearer to each other than a bin is wide.
        """
        ends = (rule.left, rule.right) if isinstance(rule, Comparison) else ()
        if not ends or not all(isinstance(self.columns[name], DateColumn) for name in ends):
            return ""
        early, late = next(
            (family[ends[0]], family[ends[1]]) for family in self._families.values() if {*ends} <= family.keys()
        )
        if np.nanmedian(late - early) >= float(np.median(np.diff(self.columns[ends[1]].edges)) * _DAY):
            return ""
        sum_ = f"{ends[1]} = {ends[0]} + days"
        return f"The bins are wider than most gaps: a column of days, hidden or not, with {sum_}, keeps the gaps."

    # Sums -------------------------------------------------------------------------------------------------------------

    def sums(self) -> Found:
        """Yields the columns that others add up to.

        They equal another column, are the sum of two, or count the days between two dates.
        """
        families = self._families
        numbers = families.get(NUMBERS, {})
        for columns in families.values():
            for a, b in self._equal(columns):
                if b != self.label and isinstance(self.columns[b], BinnedColumn):
                    yield SumRule(column=b, terms=((1, a),)), [a, b]
        yield from self._added(numbers, numbers, 1.0, "+")
        for family, columns in families.items():
            if family.startswith(MOMENTS):
                yield from self._added(columns, numbers, _DAY, "-")
                yield from self._added(columns, families.get(SPANS, {}), 1.0, "-")

    def _equal(self, columns: Mapping[str, Floats]) -> Iterator[tuple[str, str]]:
        """The columns that say the same in every row."""
        for (a, x), (b, y) in itertools.combinations(columns.items(), 2):
            if x[:_FIRST_ROWS].tobytes() == y[:_FIRST_ROWS].tobytes() and np.array_equal(x, y, equal_nan=True):
                yield a, b

    def _added(self, terms: Mapping[str, Floats], totals: Mapping[str, Floats], unit: float, sign: str) -> Found:
        """Yields sums of two columns.

        They are `c = a + b` of numbers, and for moments a < b `b = a + c`, in days. So what lies between the
        moments keeps its own bins.
        """
        pairs = list(itertools.combinations(terms, 2) if sign == "+" else itertools.permutations(terms, 2))
        totals = {name: values for name, values in totals.items() if isinstance(self.columns[name], BinnedColumn)}
        if not pairs or not totals or len(pairs) * len(totals) > 1 << 22:
            return
        few = 8
        first, second = (np.stack([terms[pair[side]][:few] for pair in pairs]) for side in (0, 1))
        sums = (second - first) / unit if sign == "-" else first + second
        for name, total in totals.items():
            differ = np.abs(sums - total[:few]) > 1e-6 * np.maximum(1.0, np.abs(total[:few]))
            for at in np.flatnonzero(~differ.any(axis=1)).tolist():  # where a side is missing nothing differs
                a, b = pairs[at]
                x, y = terms[a], terms[b]
                whole = (y - x) / unit if sign == "-" else x + y
                known = ~(np.isnan(whole) | np.isnan(total))
                different = known.sum() >= BREAKS and len(np.unique(total[known])) > 2
                column = b if sign == "-" else name
                if (
                    name in (a, b)
                    or column == self.label
                    or not different
                    or not np.allclose(whole[known], total[known])
                ):
                    continue
                if min(len(np.unique(x[known])), len(np.unique(y[known]))) > 1:
                    yield SumRule(column=column, terms=((1, a), (1, name if sign == "-" else b))), [name, a, b]

    # One from another -------------------------------------------------------------------------------------------------

    def determined(self) -> Found:
        """Yields the categories that another column determines.

        A ward determines a building, and an age an age group.
        """
        able = {a: self._may_decide(a) for a in self.columns} if self.categories else {}
        for at, b in enumerate(self.categories):
            # A category that says it, rather than a number; only one of them can be stated.
            for a in sorted(
                (a for a in able if a != b != self.label and able[a][at]), key=lambda a: a in self.rows.drawn
            ):
                target, codes = self.columns[b], self.rows.codes[b]
                if a in self.rows.drawn:
                    entries = self._by_number(a, *self.rows.drawn[a], target, codes)
                else:
                    entries = self._by_category(a, self.rows.codes[a], b, codes)
                if entries:
                    yield Determined(determines=a, column=b, map=entries), [a, b]
                    break

    def _may_decide(self, a: str) -> Flags:
        """Returns whether a column may determine each of the categories.

        (categories,) is true unless the first rows show that the column does not.
        """
        values = (self.rows.drawn[a][0] if a in self.rows.drawn else self.rows.codes[a])[:_FIRST_ROWS]
        order = np.argsort(values, kind="stable")
        codes = np.stack([self.rows.codes[b][:_FIRST_ROWS] for b in self.categories])[:, order]
        changes = codes[:, 1:] != codes[:, :-1]
        if a not in self.rows.drawn:  # within one value nothing changes
            return np.asarray(~(changes & (np.diff(values[order]) == 0)).any(axis=1))
        return np.asarray(changes.sum(axis=1) == [len(np.unique(row)) - 1 for row in codes])  # one interval each

    def _by_category(self, a: str, source_codes: Any, b: str, codes: Any) -> dict[Any, Any]:
        source, target = self.columns[a], self.columns[b]
        table = np.zeros((source.size, target.size), np.int64)
        np.add.at(table, (source_codes, codes), 1)
        held, answered, names = table.sum(axis=1), table.sum(axis=0), list(self.columns)
        used = np.flatnonzero(held)
        shares = answered / max(1, table.sum())
        breaks = np.maximum(held - 1, 0).sum() * (1.0 - (shares**2).sum())
        people = held_by(source_codes, self.whose, source.size)
        if breaks < BREAKS or not 0 < len(used) <= MOST_ENTRIES or people[used].min() < FEW_ROWS:
            return {}
        # Where each column says the other, the later one is computed.
        is_later = len(used) == np.count_nonzero(answered) and names.index(a) > names.index(b)
        if is_later or used[-1] >= len(source.values) or (np.count_nonzero(table, axis=1) > 1).any():
            return {}
        answers = [*target.values, None]
        return {source.values[i]: answers[int(table[i].argmax())] for i in used}

    def _by_number(self, a: str, numbers: Any, absent: Any, target: CategoricalColumn, codes: Any) -> dict[Any, Any]:
        column = self.columns[a]
        if column.scale[0] != NUMBERS or absent.any():
            return {}
        groups = sorted(((c, numbers[codes == c]) for c in np.unique(codes)), key=lambda item: float(item[1].min()))
        people = held_by(codes, self.whose, target.size)
        if not 2 <= len(groups) <= MOST_ENTRIES or any(people[code] < FEW_ROWS for code, _ in groups):
            return {}
        shares = np.array([len(group) for _, group in groups]) / len(codes)
        overlap = any(low.max() >= high.min() for (_, low), (_, high) in itertools.pairwise(groups))
        if overlap or len(codes) * (1.0 - (shares**2).sum()) < BREAKS:
            return {}
        answers, entries, misplaced = [*target.values, None], dict[Any, Any](), 0.0
        for (code, low), (_, high) in itertools.pairwise(groups):
            number = _roundest(float(low.max()), float(high.min()), column)
            misplaced += _misplaced(number, numbers, column.edges)
            # Either the bins do not tell these categories apart, or the cut would say what two rows hold.
            digits = len(f"{abs(number):.12g}".replace(".", "").strip("0"))
            if misplaced > _MISPLACED * len(numbers) or digits > _MOST_DIGITS:
                return {}
            cut = column.bound(number)
            entries[f"< {cut}"] = answers[int(code)]
            last = f">= {cut}"
        entries[last] = answers[int(groups[-1][0])]
        return entries


def by_chance(x: Floats, y: Floats) -> float:
    """Returns how many rows would have x above y by chance.

    It is the expected number, were the two independent of each other.
    """
    known = ~(np.isnan(x) | np.isnan(y))
    a, b = x[known], np.sort(y[known])
    return float(np.searchsorted(b, a, side="left").mean()) if len(a) else 0.0


def _misplaced(cut: float, numbers: Floats, edges: Floats) -> float:
    """Returns how many rows change sides of a cut.

    They do so where the numbers of the cut's bin are drawn evenly.
    """
    i = int(np.clip(np.searchsorted(edges, cut, side="right") - 1, 0, len(edges) - 2))
    inside = numbers[(numbers >= edges[i]) & (numbers < edges[i + 1])]
    even = (cut - edges[i]) / (edges[i + 1] - edges[i])
    return float(abs(np.count_nonzero(inside < cut) - even * len(inside)))


def _roundest(below: float, above: float, column: BinnedColumn) -> float:
    """Returns the number with the fewest digits in a range.

    The range is above one number and at most another.
    """
    step = 10.0 ** np.floor(np.log10(max(abs(below), abs(above), 1.0)))
    while step > 1e-12:
        for part in (step, step / 2, step / 5):
            number = (np.floor(below / part) + 1) * part
            if below < number <= above and (not column.whole or float(number).is_integer()):
                return float(number)
        step /= 10
    return above
