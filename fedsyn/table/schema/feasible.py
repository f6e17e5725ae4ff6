"""Rows that constraints allow, and draws within them.

It sees from their codes which rows constraints allow, and draws numbers inside codes so that constraints
hold.

Two sorts of constraints reach this module: clauses (one of some conditions on single columns holds) and orders (one
column at most, or less than, another; a missing side satisfies it). A row of CODES is impossible if no numbers in its
bins satisfy all of them. Constraints whose truth depends on numbers inside bins, and that share such a column, form a
`Group`, and are looked at together:

- For each way to pick a condition of every clause (an interval of one column), what is left is an order among columns
  with bounds. Its solutions are closed under minima and maxima, so tightening bounds along the orders until nothing
  changes leaves them exactly: there is a solution if no bound crosses, and a number taken anywhere between a column's
  bounds can be completed.
- So codes are checked exactly, and numbers are drawn one column after the other, between bounds tightened in between.
  Before that, numbers are drawn afresh a few times as if there were no constraint: what is accepted then follows the
  uniform distribution over all that is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod

import numpy as np

from fedsyn.domain import Flags, Floats
from fedsyn.errors import SchemaError
from fedsyn.table.schema.conditions import DrawnRows, Literal, NumberGrid

# Ways to satisfy all clauses of a group that are tried, and cells of codes that are looked at together.
MOST_WAYS, MOST_CELLS = 1024, 1 << 22
Codes = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Clause:
    """One of these conditions holds."""

    literals: tuple[Literal, ...]
    text: str

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(literal.name for literal in self.literals))

    def possible(self, codes: Codes) -> Flags:
        """Returns whether some numbers in the codes satisfy it."""
        return reduce(np.logical_or, [literal.possible[codes[literal.name]] for literal in self.literals])

    def sure(self, codes: Codes) -> Flags:
        """Returns whether all numbers in the codes satisfy it."""
        return reduce(np.logical_or, [literal.sure[codes[literal.name]] for literal in self.literals])

    def holds(self, rows: DrawnRows) -> Flags:
        """(n,) whether it holds for rows."""
        return reduce(np.logical_or, [literal.holds(rows) for literal in self.literals])

    @property
    def _loose(self) -> list[Literal]:
        return [literal for literal in self.literals if (literal.possible & ~literal.sure).any()]

    @property
    def drawn(self) -> set[str]:
        """Columns whose numbers inside a bin may decide."""
        return {literal.name for literal in self._loose}

    @property
    def ways(self) -> list[tuple[str, float, float]]:
        """Intervals of numbers that satisfy it."""
        return [(literal.name, low, high) for literal in self._loose for low, high in literal.intervals or ()]


@dataclass(frozen=True, eq=False)
class ColumnOrder:
    """The first column is at most the second, or less."""

    first: str
    second: str
    strict: bool
    grids: Mapping[str, NumberGrid]
    text: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.first, self.second)

    def present(self, codes: Codes) -> Flags:
        """Returns whether neither side is missing."""
        a, b = (self.grids[name].absent[codes[name]] for name in self.columns)
        return np.asarray(~(a | b))

    def raised(self, low: Floats) -> Floats:
        """Returns the smallest number that the second column may have.

        `low` is the number of the first column beside it.
        """
        a, b = (self.grids[name] for name in self.columns)
        value = a.value(low)
        return b.above(value) if self.strict else b.at_least(value)

    def lowered(self, high: Floats) -> Floats:
        """Returns the largest number that the first column may have.

        `high` is the number of the second column beside it.
        """
        a, b = (self.grids[name] for name in self.columns)
        value = b.value(high)
        return a.below(value) if self.strict else a.at_most(value)

    def possible(self, codes: Codes) -> Flags:
        a, b = (self.grids[name] for name in self.columns)
        crossed = self.raised(a.low[codes[self.first]]) > b.high[codes[self.second]]
        return np.asarray(~(self.present(codes) & crossed))

    def sure(self, codes: Codes) -> Flags:
        a, b = (self.grids[name] for name in self.columns)
        fine = self._compared(a.value(a.high[codes[self.first]]), b.value(b.low[codes[self.second]]))
        return np.asarray(~self.present(codes) | fine)

    def _compared(self, first: Floats, second: Floats) -> Flags:
        return np.asarray(first < second if self.strict else first <= second)

    def holds(self, rows: DrawnRows) -> Flags:
        """(n,) whether it holds for rows."""
        (a, no_a), (b, no_b) = (rows.numbers(name, self.grids[name]) for name in self.columns)
        first, second = (self.grids[name].value(numbers) for name, numbers in zip(self.columns, (a, b), strict=True))
        return np.asarray(no_a | no_b | self._compared(first, second))

    @property
    def drawn(self) -> set[str]:
        """Columns whose numbers inside a bin may decide."""
        return {name for name in self.columns if self.grids[name].drawn}


Constraint = Clause | ColumnOrder


def open_codes(constraint_columns: Sequence[str], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Returns each column's codes along an axis of its own.

    They broadcast to the table of all combinations.
    """
    axes = np.ix_(*(np.arange(sizes[name]) for name in constraint_columns))
    return dict(zip(constraint_columns, axes, strict=True))


def undecided(constraint: Constraint, sizes: Mapping[str, int]) -> set[str]:
    """Returns the columns whose numbers decide a constraint.

    Their numbers inside a bin decide it where codes alone do not.
    """
    if prod(sizes[name] for name in constraint.columns) > MOST_CELLS:
        raise _too_wide(constraint.columns, sizes)
    codes = open_codes(constraint.columns, sizes)
    return constraint.drawn if (constraint.possible(codes) & ~constraint.sure(codes)).any() else set()


class Group:
    """Constraints that numbers inside bins decide, and that share such columns.

    Args:
        constraints: themselves.
        grids: of the columns that have one.
        sizes: number of codes of every column.

    Raises:
        SchemaError: too many codes or ways to be looked at together.
    """

    def __init__(
        self, constraints: Sequence[Constraint], grids: Mapping[str, NumberGrid], sizes: Mapping[str, int]
    ) -> None:
        self.constraints = tuple(constraints)
        named = {name for constraint in constraints for name in constraint.columns}
        self.columns = tuple(name for name in sizes if name in named)
        self.sizes = {name: sizes[name] for name in self.columns}
        self.clauses = [c for c in constraints if isinstance(c, Clause)]
        self.orders = [c for c in constraints if isinstance(c, ColumnOrder)]
        self.grids = {name: grids[name] for name in self.columns if name in grids}
        drawn = {name for constraint in constraints for name in constraint.drawn}
        self.undecided = tuple(name for name in self.columns if name in drawn)
        self._ways: list[list[tuple[str, float, float] | None]] = [[*clause.ways] or [None] for clause in self.clauses]
        if prod(self.sizes.values()) > MOST_CELLS or prod(len(ways) for ways in self._ways) > MOST_WAYS:
            raise _too_wide(self.columns, self.sizes)

    def possible(self, codes: Codes) -> Flags:
        """Returns whether some numbers in the codes satisfy all constraints."""
        shape = np.broadcast_shapes(*(np.shape(codes[name]) for name in self.columns))
        out = np.zeros(shape, dtype=bool)
        for way in product(*self._ways):
            out |= self._tightened(codes, way)[0]
        return out

    def holds(self, rows: DrawnRows) -> Flags:
        """(n,) whether all of the constraints hold for rows."""
        return np.asarray(np.logical_and.reduce([constraint.holds(rows) for constraint in self.constraints]))

    def place(
        self, codes: Codes, rng: np.random.Generator, ends: Mapping[str, tuple[Floats, Floats]] | None = None
    ) -> tuple[Flags, dict[str, Floats]]:
        """Numbers inside the codes of rows that satisfy all constraints.

        Args:
            codes: of the columns, (n,) each.
            rng: randomness.
            ends: column -> (n,) least and largest number that each row may have; None: those of its code.

        Returns:
            (n,) for which rows there are such numbers, and the numbers of the undecided columns.
        """
        n = len(codes[self.columns[0]])
        placed = np.zeros(n, dtype=bool)
        numbers = {name: np.zeros(n) for name in self.undecided}
        ways = list(product(*self._ways))
        for at in rng.permutation(len(ways)):
            rows = np.flatnonzero(~placed)
            if not len(rows):
                break
            row_codes = {name: codes[name][rows] for name in self.columns}
            within = None if ends is None else {name: (a[rows], b[rows]) for name, (a, b) in ends.items()}
            fine, low, high = self._tightened(row_codes, ways[at], within)
            feasible = np.flatnonzero(fine)
            low, high = ({name: bound[feasible] for name, bound in bounds.items()} for bounds in (low, high))
            row_codes = {name: part[feasible] for name, part in row_codes.items()}
            for name in self.undecided:
                low[name] = high[name] = self.grids[name].inside(low[name], high[name], rng.random(len(feasible)))
                self.propagate(row_codes, low, high)
                numbers[name][rows[feasible]] = low[name]
            placed[rows[feasible]] = True
        return placed, numbers

    def _tightened(
        self,
        codes: Codes,
        way: Sequence[tuple[str, float, float] | None],
        ends: Mapping[str, tuple[Floats, Floats]] | None = None,
    ) -> tuple[Flags, dict[str, Floats], dict[str, Floats]]:
        """Returns whether numbers are left, and their bounds.

        The clauses are satisfied in the way given. The bounds are the smallest and the largest numbers left.
        """
        low = {name: grid.low[codes[name]] for name, grid in self.grids.items()}
        high = {name: grid.high[codes[name]] for name, grid in self.grids.items()}
        for name, (least, most) in (ends or {}).items():
            low[name], high[name] = np.maximum(low[name], least), np.minimum(high[name], most)
        fine: Flags = np.ones((), dtype=bool)
        for clause, taken in zip(self.clauses, way, strict=True):
            sure = clause.sure(codes)
            if taken is None:
                fine = fine & sure
                continue
            name, first, last = taken
            fine = fine & (sure | ~self.grids[name].absent[codes[name]])
            low[name] = np.where(sure, low[name], np.maximum(low[name], first))
            high[name] = np.where(sure, high[name], np.minimum(high[name], last))
        self.propagate(codes, low, high)
        for name, grid in self.grids.items():
            fine = fine & ((low[name] <= high[name]) | grid.absent[codes[name]])
        return fine, low, high

    def propagate(self, codes: Codes, low: dict[str, Floats], high: dict[str, Floats]) -> None:
        """Tightens bounds along the orders.

        It repeats this as often as the longest chain is long.
        """
        for _ in range(min(len(self.orders), len(self.columns))):
            for order in self.orders:
                first, second = order.columns
                present = order.present(codes)
                raised, lowered = order.raised(low[first]), order.lowered(high[second])
                low[second] = np.where(present & (raised > low[second]), raised, low[second])
                high[first] = np.where(present & (lowered < high[first]), lowered, high[first])


def groups_of(
    constraints: Sequence[Constraint], grids: Mapping[str, NumberGrid], sizes: Mapping[str, int]
) -> Iterator[Group]:
    """The groups of the constraints that codes alone do not decide."""
    left = [(constraint, names) for constraint in constraints if (names := undecided(constraint, sizes))]
    while left:
        shared, members = set(left[0][1]), 0
        while members < (members := sum(bool(shared & names) for _, names in left)):
            shared = set().union(*(names for _, names in left if shared & names))
        yield Group([constraint for constraint, names in left if shared & names], grids, sizes)
        left = [(constraint, names) for constraint, names in left if not shared & names]


def refuse_circles(orders: Sequence[ColumnOrder]) -> None:
    """Refuses comparisons that lead back to their first column. Raises SchemaError."""
    after: dict[str, list[ColumnOrder]] = {}
    for order in orders:
        after.setdefault(order.first, []).append(order)
    for start in after:
        seen, front = set[str](), [start]
        while front:
            for order in after.get(front.pop(), ()):
                if order.second == start:
                    raise SchemaError(
                        f"the comparisons of '{start}' lead back to itself (the last one is '{order.text}'); for equal "
                        f"columns write '{start} = {order.first}', which computes one of them"
                    )
                if order.second not in seen:
                    seen.add(order.second)
                    front.append(order.second)


def _too_wide(columns: Sequence[str], sizes: Mapping[str, int]) -> SchemaError:
    cells = prod(sizes[name] for name in columns)
    return SchemaError(
        f"the constraints on {', '.join(columns)} hang together and have {cells} combinations of codes, more than "
        f"{MOST_CELLS} or with too many alternatives; give these columns fewer bins"
    )
