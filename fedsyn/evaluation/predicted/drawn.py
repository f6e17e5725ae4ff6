"""Rows of persons as they were drawn, beside the judged records.

A model of records knows one row of each person and the next one. The table has all rows of a person, drawn by steps: a
link of two columns may fade with each, an order may drift, and persons with many rows count as often as they have rows.
How far such rows are from the records is known without a real row: some are drawn. What they lack of a link is
lost beside what noise took from the records. A column whose rows are unlike the records is in doubt: the real rows may
be unlike the real records in the same way, or in another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Floats
from fedsyn.evaluation.predicted.among import values_there
from fedsyn.evaluation.predicted.links import SeenLink
from fedsyn.evaluation.record import percent, short
from fedsyn.evaluation.scores import Grouping, association, level_of_codes, places, shares
from fedsyn.evaluation.verdict import LOST
from fedsyn.inference import AnyModel
from fedsyn.table.counting.sums import group_of_cells, sums_of_groups
from fedsyn.table.schema import Schema

#: The most that rows unlike the records say of a column: changed, and not lost.
_IN_DOUBT = 0.75


@dataclass(frozen=True)
class DrawnColumn:
    """A column of the rows that were drawn.

    Attributes:
        rows: share of them that differ from the records in bin or value.
        mean: how far their mean is from that of the records, in standard deviations; 0 without an order.
        spread: logarithm of their standard deviation over that of the records.
    """

    rows: float
    mean: float = 0.0
    spread: float = 0.0

    def losses(self) -> list[tuple[str, float, str]]:
        """Returns (kind, amount, words) of each loss, as `verdict.judged` takes them."""
        amounts = (("rows", self.rows), ("mean", self.mean), ("spread", abs(self.spread)))
        words = f"about {percent(self.rows)} of its rows differ from the records in bin or value"
        return [(kind, min(amount, _IN_DOUBT * LOST[kind]), words) for kind, amount in amounts]


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """Rows that were drawn.

    Args:
        schema: of the records.
        model: that the rows were drawn from.
        codes: (rows, columns) in the schema of the rows, without those of persons who have no row.
    """

    schema: Schema
    model: AnyModel
    codes: npt.NDArray[np.integer]

    def columns(self) -> dict[str, DrawnColumn]:
        """Returns the columns of the table, each beside the records."""
        drawn = zip(self.schema.rows.domain, shares(self.codes, self.schema.rows.domain), strict=True)
        return {name: self._column(name, share) for name, share in drawn}

    def links(self, links: Sequence[SeenLink]) -> tuple[SeenLink, ...]:
        """Returns links inside rows, with what the drawn rows have of them."""
        table = self.schema.rows
        names = [name for name in table.domain if any(name in link.columns for link in links)]
        grouping = Grouping.of(table, [self._of_records((name,)) for name in table.domain], names)
        counted = grouping.count(self.codes)
        known = {
            frozenset((names[a], names[b])): (a, b, cells)
            for (a, b), cells in zip(grouping.pairs, counted, strict=True)
        }
        found = []
        for link in links:
            a, b, cells = known[frozenset(link.columns)]
            index, shape = group_of_cells([grouping.groups[a], grouping.groups[b]])
            records = sums_of_groups(index, self._of_records((names[a], names[b])).ravel(), shape)
            rows = len(self.codes)
            now, was = association(cells, rows), association(records.reshape(cells.shape), rows)
            faded = min(1.0, now / was) if was > 0.0 else 1.0
            kept = min(link.kept * faded, now / link.seen)
            found.append(replace(link, made=round(now, 3), kept=round(kept, 3)))
        return tuple(found)

    def _of_records(self, clique: Clique) -> Floats:
        """Returns shares of the records that have a row."""
        there, domain = values_there(self.schema), self.schema.domain
        cells = np.asarray(self.model.project(clique), np.float64).reshape(domain.shape_of(clique))
        kept = cells[np.ix_(*(there.get(name, np.ones(domain[name], bool)) for name in clique))]
        return np.asarray(kept / max(float(kept.sum()), 1e-300))

    def _column(self, name: str, share: Floats) -> DrawnColumn:
        table, records = self.schema.rows, self._of_records((name,))
        apart, at = short(float(np.abs(share - records).sum()) / 2.0), places(table, name)
        if at is None:
            return DrawnColumn(apart)
        known = np.isfinite(at)
        values = level_of_codes(table.columns[name], records, at, len(self.codes))[known]
        both = [part[known] / max(float(part[known].sum()), 1e-300) for part in (share, records)]
        means = [float(part @ values) for part in both]
        now, was = (math.sqrt(float(part @ (values - mean) ** 2)) for part, mean in zip(both, means, strict=True))
        if min(now, was) <= 0.0:
            return DrawnColumn(apart)
        return DrawnColumn(apart, short(abs(means[0] - means[1]) / was), short(math.log(now / was)))
