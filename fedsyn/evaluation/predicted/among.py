"""Links of two columns among the people with both values.

A record says who has no row, or no next one: "(no row)" is a value of its columns. Two such columns go along because
nobody has one value and no row, and a person's own column because some people have more rows. The rows of a table show
no such link, so it is looked for among the people who have both values.

Their part of a table of counts is M' = M without the values "(no row)". What was measured may be the residuals R M
alone, M less something that adds up of its rows and its columns. So is its part M', and the residuals of that part,
R' M', are the same whichever was measured: R' takes out of a table all that adds up of rows and columns. What is known
of the noise holds as it is: each count has its own.

Of a sketch there is no such part, since each of its entries adds up counts of all people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Flags, Floats
from fedsyn.evaluation.predicted.effects import Effects, visible, visible_anywhere
from fedsyn.inference.measurements import Measurement
from fedsyn.table.counting.sums import Groups
from fedsyn.table.schema import Schema
from fedsyn.table.schema.persons import no_row_code


class Counts(NamedTuple):
    """Noisy counts of some people.

    Attributes:
        values: (values, values) or (groups, groups).
        sigma: standard deviation of the noise in each.
        groups: of both columns' values; None: single values.
    """

    values: Floats
    sigma: float
    groups: Groups | None


@dataclass(frozen=True, eq=False)
class Among:
    """Released counts of a pair, among the people with both values.

    Attributes:
        rows: how many they are.
        shares: (values, values) the model's marginal of them.
        masses: of the columns' values that are there.
        there: of both columns, which values these are.
        impossible: cells of them that no row has; None: there are none.
        in_order: columns whose values have an order.
    """

    pair: Clique
    rows: float
    shares: Floats
    masses: Mapping[str, Floats]
    there: tuple[Flags, Flags]
    counts: tuple[Counts, ...]
    impossible: Flags | None
    in_order: frozenset[str]

    @classmethod
    def of(
        cls, effects: Effects, pair: Clique, there: tuple[Flags, Flags], cells: npt.NDArray[np.floating]
    ) -> Among | None:
        """Takes the part of a measured pair.

        None where groups of a measurement have both kinds of values, or nobody is left.

        Args:
            effects: of the last model.
            pair: that was measured.
            there: of both columns, (values,) which are there.
            cells: the model's marginal, as shares.
        """
        shape = effects.domain.shape_of(pair)
        part = np.asarray(cells, np.float64).reshape(shape)[np.ix_(*there)]
        share = float(part.sum())
        counts = [found for m in effects.measured(pair) if (found := _part(m, shape, there)) is not None]
        if share * effects.rows < 1.0 or not counts:
            return None
        masses = {name: part.sum(axis=1 - axis) / share for axis, name in enumerate(pair)}
        never = effects.domain.impossible(pair)
        never = None if never is None else np.asarray(never).reshape(shape)[np.ix_(*there)]
        impossible = None if never is None or not never.any() else never
        in_order = frozenset(name for name in pair if effects.is_in_order(name))
        return cls(pair, share * effects.rows, part / share, masses, there, tuple(counts), impossible, in_order)

    def measured(self, pair: Clique) -> list[Counts]:
        """Returns the noisy counts."""
        assert pair == self.pair
        return list(self.counts)

    def impossible_in(self, pair: Clique) -> Flags | None:
        """Returns cells that stated rules leave empty."""
        assert pair == self.pair
        return self.impossible

    def visible(self, name: str, groups: npt.NDArray[np.integer]) -> float:
        """Returns what `Effects.visible` does, of these people."""
        return (visible if name in self.in_order else visible_anywhere)(self.masses[name], groups)


def _part(m: Measurement, shape: tuple[int, ...], there: tuple[Flags, Flags]) -> Counts | None:
    """Returns the part of a measurement.

    None if a group has values of both kinds.
    """
    if m.groups is None:
        return Counts(np.asarray(m.values, np.float64).reshape(shape)[np.ix_(*there)], m.sigma, None)
    kept, groups = [], []
    for grouping, flags in zip(m.groups, there, strict=True):
        mine = np.unique(grouping[flags])
        if np.isin(grouping[~flags], mine).any():
            return None
        kept.append(mine)
        groups.append(np.searchsorted(mine, grouping[flags]))
    sizes = tuple(int(grouping.max()) + 1 for grouping in m.groups)
    values = np.asarray(m.values, np.float64).reshape(sizes)[np.ix_(*kept)]
    return Counts(values, m.sigma, tuple(groups))


def values_there(schema: Schema | None) -> dict[str, Flags]:
    """Returns which values of records' columns are of a row.

    Only columns are named that have "(no row)" among their values.
    """
    if schema is None or schema.of_persons is None:
        return {}
    found = {name: (no_row_code(column), column.size) for name, column in schema.columns.items()}
    return {name: np.arange(size) != none for name, (none, size) in found.items() if none >= 0}
