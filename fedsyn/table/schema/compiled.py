"""A schema's constraints, compiled: computed columns, structural zeros, possible draws.

Nothing here looks at rows, so constraints cost no privacy: they are public, as the schema is. A cell is a zero if and
only if no values in its bins satisfy the constraints; what is left of them is settled when a table is decoded, inside
the bins, so that a row's codes never change. No model sees a column that constraints compute.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, pairwise, permutations
from math import prod
from typing import Any, TypeGuard

import numpy as np

from fedsyn.domain import Flags, Floats, Integers, Zeros
from fedsyn.errors import SchemaError, nearest
from fedsyn.table.schema.across import NextOrder, ascending, broken_across, next_orders, zeros_across
from fedsyn.table.schema.binned import NUMBERS, BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.computed import Computed, Mapped, sources_of
from fedsyn.table.schema.conditions import Condition, DrawnRows, Literal, grid_of
from fedsyn.table.schema.feasible import (
    MOST_CELLS,
    Clause,
    ColumnOrder,
    Constraint,
    Group,
    groups_of,
    open_codes,
    refuse_circles,
)
from fedsyn.table.schema.hidden import hidden_columns
from fedsyn.table.schema.in_turn import Reach, RowsInTurn
from fedsyn.table.schema.links import Links
from fedsyn.table.schema.nested import Nesting
from fedsyn.table.schema.people import People
from fedsyn.table.schema.rules import (
    AnyRule,
    Comparison,
    Determined,
    Dropout,
    Impossible,
    MissingWhere,
    Nested,
    SumRule,
    When,
    ZeroTogether,
    columns_of,
)
from fedsyn.table.schema.spread import close_unlisted

# All constraints of a schema ------------------------------------------------------------------------------------------


# Draws of rows whose numbers break a constraint, before they are placed one column after the other.
_DRAWS = 8
# Where some numbers of a row stay: what the others can take may be a day in a month.
_FIXED_DRAWS = 1 << 6


class CompiledRules:
    """The constraints of one schema.

    Args:
        rules: as the schema states them.
        columns: modelled columns, in the domain's order.
        derived: columns that constraints compute.
        open_columns: those with placeholders, of which something is still to be found: constraints on them are read,
            as far as they can be, and left for later.
        persons: of the schema; None: nobody says who a person is.

    Attributes:
        zeros: structural zeros over codes.
        steps: what computes each derived column, in an order in which it can be done.
        hidden: columns that no file has, each read from others.
        across: comparisons of a row with the next one of its person.
        nested: (column of codes, column of their groups) of which the first lies in the second, inner ones first.

    Raises:
        SchemaError: one sentence: an unknown column or value, a comparison of what does not compare, two constraints
            that compute one column, a circle, or constraints that leave no possible row.
    """

    def __init__(
        self,
        rules: Sequence[AnyRule],
        columns: Mapping[str, Any],
        derived: Mapping[str, Any],
        open_columns: Collection[str] = (),
        persons: Any = None,
    ) -> None:
        self.rules, self.columns, self.derived = tuple(rules), dict(columns), dict(derived)
        self._sizes = {name: column.size for name, column in columns.items()}
        self._grids = {name: grid for name, column in columns.items() if (grid := grid_of(column)) is not None}
        for rule in rules:
            self._require_known(rule)
        self._open = self._left_open(set(open_columns))
        self.steps, self.persons = self._steps(), persons
        self.hidden = hidden_columns(rules, columns, derived, () if persons is None else persons.constant)
        self.nesting = Nesting(rules, columns)
        self._constraints = [(rule, constraint) for rule in rules for constraint in self._closed(rule)]
        constraints = [constraint for _, constraint in self._constraints]
        refuse_circles([constraint for constraint in constraints if isinstance(constraint, ColumnOrder)])
        self._groups = list(groups_of(constraints, self._grids, self._sizes))
        self.zeros = self._zeros()
        closed = [rule for rule in rules if not self._open.intersection(columns_of(rule))]
        self.across = next_orders(closed, persons, self._grids, self.steps)

    # From rules to constraints ----------------------------------------------------------------------------------------

    def _require_known(self, rule: AnyRule) -> None:
        known = {**self.columns, **self.derived}
        for name in columns_of(rule):
            if name not in known and not (isinstance(rule, Comparison) and name == rule.right):
                raise SchemaError(f"constraint '{rule.text}': '{name}' is not a column{nearest(name, known)}")

    def _left_open(self, unknown: set[str]) -> set[str]:
        """The open columns, and those that are computed from them."""
        computed = {rule.computed: sources_of(rule) for rule in self.rules if isinstance(rule, SumRule | Determined)}
        for _ in computed:
            unknown = unknown | {name for name, sources in computed.items() if sources & unknown}
        return unknown

    def _closed(self, rule: AnyRule) -> list[Constraint]:
        """Returns a rule's constraints; none for open columns, once it is checked."""
        unknown = self._open.intersection(columns_of(rule))
        words = isinstance(rule, Impossible | When | MissingWhere) and any(
            isinstance(self.columns.get(name), CategoricalColumn) or name in self.derived for name in unknown
        )
        constraints = [] if words else self._constrained(rule)
        return [] if unknown else constraints

    def _steps(self) -> list[Computed | Mapped]:
        waiting = [rule for rule in self.rules if isinstance(rule, SumRule) or self._is_mapped(rule)]
        ready, out = set(self.columns), list[Computed | Mapped]()
        every = {**self.columns, **self.derived}
        sums = {rule.column for rule in waiting if isinstance(rule, SumRule)}
        while waiting:
            able = [rule for rule in waiting if ready.issuperset(sources_of(rule))]
            if not able:
                names = ", ".join(rule.computed for rule in waiting)
                raise SchemaError(f"constraints compute {names} from each other, in a circle; leave one of them out")
            for rule in able:
                is_sum = sources_of(rule) <= sums
                out.append(Computed(rule, every) if isinstance(rule, SumRule) else Mapped(rule, every, is_sum))
                ready.add(rule.computed)
            waiting = [rule for rule in waiting if rule not in able]
        return out

    def _is_mapped(self, rule: AnyRule) -> TypeGuard[Determined]:
        return isinstance(rule, Determined) and rule.determines not in self._open

    def _constrained(self, rule: AnyRule) -> list[Constraint]:
        if isinstance(rule, Comparison):
            return [self._comparison(rule)]
        if isinstance(rule, Impossible):
            literals = tuple(self._condition(rule, name, w, "not") for name, w in rule.impossible.items())
            return [Clause(literals, rule.text)]
        if isinstance(rule, When):
            unless = tuple(self._condition(rule, name, w, "not") for name, w in rule.when.items())
            then = [self._condition(rule, name, w, "then") for name, w in rule.then.items()]
            return [Clause((*unless, literal), rule.text) for literal in then]
        if isinstance(rule, Dropout):
            return self._dropout(rule)
        if isinstance(rule, MissingWhere):
            return self._missing_where(rule)
        return self._zero_together(rule) if isinstance(rule, ZeroTogether) else []

    def _dropout(self, rule: Dropout) -> list[Constraint]:
        """Returns a clause for each two neighbours; the others follow."""
        out: list[Constraint] = []
        for earlier, later in pairwise(rule.dropout):
            column = {**self.columns, **self.derived}[earlier]
            if out or column.missing or getattr(column, "missing_codes", ()):
                present, absent = (
                    self._condition(rule, *side) for side in ((earlier, None, "not"), (later, None, "is"))
                )
                out.append(Clause((present, absent), rule.text))
        return out

    def _missing_where(self, rule: MissingWhere) -> list[Constraint]:
        unless = tuple(self._condition(rule, name, wanted, "not") for name, wanted in rule.where.items())
        absent, present = (self._condition(rule, rule.missing, None, sort) for sort in ("is", "not"))
        only = [self._condition(rule, name, wanted, "is") for name, wanted in rule.where.items()]
        return [Clause((*unless, absent), rule.text), *(Clause((present, literal), rule.text) for literal in only)]

    def _zero_together(self, rule: ZeroTogether) -> list[Constraint]:
        for name in rule.zero:
            if name in self.columns and (name not in self._grids or self._grids[name].family != NUMBERS):
                raise SchemaError(f"constraint '{rule.text}': '{name}' is not a column of numbers")
        # Once around says it all, unless one that is missing breaks the circle.
        around = not any(name in self.columns and self._grids[name].absent.any() for name in rule.zero)
        pairs = pairwise((*rule.zero, rule.zero[0])) if around else permutations(rule.zero, 2)
        return [
            Clause((self._condition(rule, first, 0, "not"), self._condition(rule, second, 0, "then")), rule.text)
            for first, second in pairs
        ]

    def _condition(self, rule: AnyRule, name: str, wanted: Any, sort: str) -> Literal:
        column = self.columns.get(name, self.derived.get(name))
        try:
            condition = Condition(name, column, wanted)
            literal = condition.literal(unless_missing=sort == "then")
            return self.traced(condition.negated() if sort == "not" else literal)
        except SchemaError as error:
            raise SchemaError(f"constraint '{rule.text}': {error}") from None

    def traced(self, literal: Literal) -> Literal:
        """Restates a determined column's condition for its source. Raises SchemaError."""
        while literal.name not in self.columns:
            step = next(step for step in self.steps if step.name == literal.name)
            restated = step.traced(literal) if isinstance(step, Mapped) else None
            if restated is None:
                sources = ", ".join(step.sources)
                raise SchemaError(
                    f"'{literal.name}' is computed by '{step.rule.text}', so state it for {sources} instead"
                )
            literal = restated
        return literal

    def _comparison(self, rule: Comparison) -> Constraint:
        left, op, right = rule.left, rule.op, rule.right
        if right not in self.columns and right not in self.derived:
            if self._grids.get(left) is not None or left in self.derived:
                try:
                    return Clause((self._condition(rule, left, f"{op} {right}", "then"),), rule.text)
                except SchemaError as error:
                    hint = nearest(right, {**self.columns, **self.derived})
                    raise SchemaError(f"{error}; nor is '{right}' a column{hint}") from None
            raise SchemaError(f"constraint '{rule.text}': '{right}' is not a column{nearest(right, self.columns)}")
        for name in (left, right):
            if name in self.derived:
                raise SchemaError(
                    f"constraint '{rule.text}': '{name}' is computed by another constraint, so it cannot be compared"
                )
            if name not in self._grids:
                raise SchemaError(
                    f"constraint '{rule.text}': the values of '{name}' have no order (ordered: true gives them one)"
                )
        if left == right:
            raise SchemaError(f"constraint '{rule.text}' compares '{left}' with itself")
        families = self._grids[left].family, self._grids[right].family
        if families[0] != families[1]:
            raise SchemaError(f"constraint '{rule.text}' compares {families[0]} with {families[1]}")
        first, second = (left, right) if op in ("<", "<=") else (right, left)
        grids = {name: self._grids[name] for name in (first, second)}
        return ColumnOrder(first, second, op in ("<", ">"), grids, rule.text)

    # Structural zeros -------------------------------------------------------------------------------------------------

    def _zeros(self) -> tuple[Zeros, ...]:
        tables: dict[tuple[str, ...], Flags] = {}
        for _, constraint in self._constraints:
            clique = tuple(name for name in self._sizes if name in constraint.columns)
            codes = open_codes(clique, self._sizes)
            _add(tables, clique, ~np.broadcast_to(constraint.possible(codes), self._shape(clique)))
            if not self._satisfiable(tables):
                raise SchemaError(
                    f"constraint '{constraint.text}' leaves no possible row"
                    + (" beside those before it" if len(self._constraints) > 1 else "")
                )
        for group in self._groups:
            if len(group.constraints) > 1:
                self._add_joint(tables, group)
                if not self._satisfiable(tables):
                    texts = "' and '".join(dict.fromkeys(constraint.text for constraint in group.constraints))
                    raise SchemaError(f"constraints '{texts}' leave no possible row together")
        close_unlisted(tables, self.columns)
        return tuple(Zeros(clique, cells) for clique, cells in tables.items())

    @property
    def coarser(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Modelled column -> its codes' values in each category column it determines."""
        groupings: dict[str, tuple[tuple[int, ...], ...]] = {}
        known = {name: (name, np.arange(size)) for name, size in self._sizes.items()}
        for step in self.steps:
            if isinstance(step, Mapped) and isinstance(step.target, CategoricalColumn) and step.sources[0] in known:
                root, codes = known[step.sources[0]]
                known[step.name] = root, step.of_codes[codes]
                values = np.unique(known[step.name][1], return_inverse=True)[1]
                groupings[root] = (*groupings.get(root, ()), tuple(values.tolist()))
        return groupings

    def _shape(self, clique: Iterable[str]) -> tuple[int, ...]:
        return tuple(self._sizes[name] for name in clique)

    def _add_joint(self, tables: dict[tuple[str, ...], Flags], group: Group) -> None:
        """Adds what several constraints rule out only together, on fewest columns."""
        columns = group.columns
        impossible = ~np.broadcast_to(group.possible(open_codes(columns, self._sizes)), self._shape(columns))
        known = self._known(tables, columns)
        for some in (axes for size in range(2, len(columns) + 1) for axes in combinations(range(len(columns)), size)):
            if not (impossible & ~known).any():
                return
            others = tuple(axis for axis in range(len(columns)) if axis not in some)
            cells = np.asarray(impossible.all(axis=others))
            spread = np.expand_dims(cells, others)
            if (spread & ~known).any():
                wider = tuple(columns[axis] for axis in some)
                _add(tables, wider, cells)
                known = known | spread
                for clique in [clique for clique in tables if set(clique) < set(wider)]:
                    apart = tuple(i for i, name in enumerate(wider) if name not in clique)
                    if not (np.expand_dims(tables[clique], apart) & ~tables[wider]).any():
                        del tables[clique]  # said again by the wider one

    def _known(self, tables: Mapping[tuple[str, ...], Flags], columns: Sequence[str]) -> Flags:
        """Cells over some columns that zeros on subsets of them rule out."""
        out = np.zeros(self._shape(columns), dtype=bool)
        for clique, cells in tables.items():
            if set(clique) <= set(columns):
                out |= np.expand_dims(cells, tuple(i for i, name in enumerate(columns) if name not in clique))
        return out

    def _satisfiable(self, tables: Mapping[tuple[str, ...], Flags]) -> bool:
        """Returns whether some row lies in no zero, by eliminating attributes."""
        left = [(set(clique), clique, ~cells) for clique, cells in tables.items()]
        while left:
            names = {name for members, _, _ in left for name in members}
            joined = {name: set().union(*(m for m, _, _ in left if name in m)) for name in names}
            name = min(names, key=lambda n: (prod(self._sizes[other] for other in joined[n]), n))
            clique = tuple(other for other in self._sizes if other in joined[name])
            if prod(self._shape(clique)) > 4 * MOST_CELLS:
                raise SchemaError(
                    f"the constraints on {', '.join(clique)} hang together in too many combinations of codes; "
                    "give these columns fewer bins"
                )
            allowed = np.ones(self._shape(clique), dtype=bool)
            for members, axes, cells in left:
                if name in members:
                    allowed &= np.expand_dims(cells, tuple(i for i, n in enumerate(clique) if n not in axes))
            rest = tuple(other for other in clique if other != name)
            allowed = np.asarray(allowed.any(axis=clique.index(name)))
            left = [item for item in left if name not in item[0]]
            if not allowed.any():
                return False
            if rest and not allowed.all():
                left.append((set(rest), rest, allowed))
        return True

    # Decoding ---------------------------------------------------------------------------------------------------------

    def zeros_across(self, columns: Mapping[str, Any]) -> list[Zeros]:
        """Returns a record's zeros that comparisons with next rows make."""
        return list(zeros_across(self.across, columns, self.persons.order)) if self.across else []

    def drawing_from(self, columns: Mapping[str, Any]) -> CompiledRules:
        """Returns these rules for columns whose numbers are drawn otherwise in bins."""
        other = copy.copy(self)
        other.columns = dict(columns)
        return other

    def drawn(
        self, codes: np.ndarray, rng: np.random.Generator, links: Links | None = None, people: People | None = None
    ) -> tuple[DrawnRows, Flags | None]:
        """Draws numbers inside the bins of (n, d) codes.

        Returns numbers of the ordered columns and codes of the others, and which rows have some: None, unless rows of a
        person cannot follow each other. It draws column by column, as `links` says of the rows. Then constraints are
        settled, and what they compute is added. What is the same in all rows of one of the `people` is drawn and
        settled once for each, and rows that stand in order get ascending numbers, or those that are known already.
        """
        rows, scores = DrawnRows({name: codes[:, j] for j, name in enumerate(self.columns)}, {}), dict[str, Floats]()
        for name, column in self.columns.items():
            if isinstance(column, BinnedColumn):
                own = rows.codes[name].astype(np.intp)
                known = None if people is None else people.numbers_of(name)
                moved = None if links is None or known else links.moved(name, codes, scores)
                rows.drawn[name] = known or column.draw(own, rng, moved)
                scores |= {} if links is None else links.scores(name, own, rows.drawn[name][0])
        fixed = () if people is None else people.settled(rows, self.settle, rng)
        self.settle(rows, rng, fixed)
        kept: Flags | None = None
        if people is not None:
            people.put_in_order(rows)
            kept = self._in_turn(rows, fixed, people, rng)
            rows = rows if kept is None else rows.taken(kept)
        for step in self.steps:
            step.add(rows)
        return rows, kept

    def _in_turn(
        self, rows: DrawnRows, fixed: Collection[str], people: People, rng: np.random.Generator
    ) -> Flags | None:
        """Settles comparisons with next rows, in place.

        Returns which rows to keep; None: all.
        """
        if not self.across:
            return None
        order = people.order if people.order in rows.drawn else None
        turn = RowsInTurn(self._orders(order), self._groups, self.columns, fixed, order)
        kept = turn.settle(rows, people.counts, rng)
        return None if kept.all() else kept

    def _orders(self, order: str | None) -> list[NextOrder]:
        """Returns the comparisons with next rows, the order's among them."""
        return [*self.across, *([] if order is None else [ascending(order, self._grids[order])])]

    @property
    def reach(self) -> Reach | None:
        """Returns what says which rows can follow each other; None: all can."""
        if not self.across:
            return None
        order = self.persons.order if self.persons.order in self._grids else None
        return Reach(self._orders(order), self._groups)

    def settle(self, rows: DrawnRows, rng: np.random.Generator, fixed: Collection[str] = ()) -> None:
        """Redraws numbers in place until constraints hold where codes are possible.

        Args:
            rows: codes of all modelled columns, and numbers inside the bins of the ordered ones.
            rng: randomness; nothing is drawn where everything holds already.
            fixed: columns that are not drawn again, as long as others can be.
        """
        for group in self._groups:
            left = np.flatnonzero(~group.holds(rows))
            for _ in range(_FIXED_DRAWS if fixed else _DRAWS):
                if not len(left):
                    break
                for name in [name for name in group.undecided if name not in fixed] or group.undecided:
                    codes = rows.codes[name][left].astype(np.intp)
                    rows.drawn[name][0][left] = self.columns[name].draw(codes, rng)[0]
                left = left[~group.holds(rows.taken(left, group.columns))]
            if len(left):
                placed, numbers = group.place(rows.taken(left, group.columns).codes, rng)
                for name, values in numbers.items():
                    rows.drawn[name][0][left[placed]] = values[placed]

    def violations(self, rows: DrawnRows, along: tuple[Integers, Floats | None] | None = None) -> dict[str, int]:
        """Counts the rows that break each constraint whose columns are there.

        Args:
            rows: of a table.
            along: number of each row's person, and by what the rows of a person ascend; None: nobody knows.
        """
        present = {*rows.codes, *rows.drawn}
        across = {one.text: one for one in self.across if along is not None and present.issuperset(one.columns)}
        out: dict[str, int] = {}
        for rule in self.rules:
            broken: Flags | None = None
            if isinstance(rule, Dropout) and present.issuperset(rule.dropout):
                broken = np.zeros(1, dtype=bool)  # it may say nothing, where no column but the last may be missing
            for step in self.steps:
                if step.rule is rule and present.issuperset({step.name, *step.sources}):
                    broken = step.broken(rows)
            for owner, constraint in self._constraints:
                if owner is rule and present.issuperset(constraint.columns):
                    breaks = ~constraint.holds(rows)
                    broken = breaks if broken is None else broken | breaks
            if rule.text in across and along is not None:
                broken = broken_across(across[rule.text], rows, *along)
            if isinstance(rule, Nested) and present.issuperset(rule.nested):
                broken = self.nesting.broken(rows, rule)
            if broken is not None:
                out[rule.text] = int(broken.sum())
        return out


def _add(tables: dict[tuple[str, ...], Flags], clique: tuple[str, ...], cells: Flags) -> None:
    if cells.any():
        tables[clique] = tables[clique] | cells if clique in tables else cells
