"""Pairs of columns beside those of real rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsyn.evaluation.real.reading import Readings
from fedsyn.evaluation.record import short
from fedsyn.evaluation.scores import Codes, Floats, closeness, correlations, link
from fedsyn.evaluation.verdict import CHANCE, LEAST_LINK, Correlation, Judged, judged_link

#: Linked pairs whose two-way tables are kept.
MOST_DRAWN = 20


@dataclass(frozen=True)
class TwoWay:
    """Two columns together, as a page draws them.

    Attributes:
        rows, columns: texts of the groups of both columns.
        real, synthetic: share of all rows in each group of the first and of the second column.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    real: tuple[tuple[float, ...], ...]
    synthetic: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, readings: Readings, names: tuple[str, str], real: Floats, synthetic: Floats) -> TwoWay:
        """Returns the shares of two columns, without groups that nobody is in."""
        texts = [np.array(readings.columns[name].group_labels, object) for name in names]
        held = [(real + synthetic).sum(axis=axis) > 0 for axis in (1, 0)]
        first = [readings.columns[name].first_codes for name in names]
        order = [np.flatnonzero(some)[np.argsort(at[some])] for at, some in zip(first, held, strict=True)]
        shares = [tuple(tuple(map(short, row)) for row in table[np.ix_(*order)]) for table in (real, synthetic)]
        return cls(tuple(texts[0][order[0]]), tuple(texts[1][order[1]]), *shares)


@dataclass(frozen=True, kw_only=True)
class PairScore:
    """Two columns together, their values in few groups.

    Attributes:
        first, second: the columns.
        score: 1 - total variation distance of the real and the synthetic two-way marginal.
        association, association_synthetic: Cramér's V (bias-corrected), real and synthetic.
        kept: how much of what links them is in the table: `fedsyn.evaluation.scores.Link`.
        error: its standard error; so much may be chance, and is not held against the table.
        linked: whether something links the real columns, beyond chance and by V = 0.1 at least.
        correlation: of two columns of numbers or dates; None where the real one is below 0.1.
        table: of the linked pairs that lost most; None: of another one.
    """

    first: str
    second: str
    score: float
    association: float
    association_synthetic: float
    kept: float
    error: float
    linked: bool
    correlation: Correlation | None = None
    table: TwoWay | None = None

    @property
    def name(self) -> str:
        """Both columns."""
        return f"{self.first} × {self.second}"

    def judged(self) -> Judged:
        """Returns what became of the link."""
        kept = min(1.0, self.kept + self.error)
        return judged_link(self.name, self.association, self.association_synthetic, kept, linear=self.correlation)


def scored_pairs(
    readings: Readings,
    names: Sequence[str],
    codes: Sequence[Codes],
    numbers: Mapping[str, Sequence[Floats]],
    across: int = 0,
    apart: tuple[int, int] | None = None,
) -> tuple[PairScore, ...]:
    """Returns the pairs of some columns, the worst first.

    Linked ones come before others.

    Args:
        readings: of all columns.
        names: of the columns.
        codes: of the real and of the synthetic rows that are counted.
        numbers: of the same rows, of the columns that have an order.
        across: where pairs are those of one of the first so many columns and one of the others; 0: all pairs.
        apart: real and synthetic rows that chance moves by themselves; None: all.
    """
    if not names:
        return ()
    grouping = readings.grouping(names)
    (real, synthetic), (rows, synthetic_rows) = map(grouping.count, codes), map(len, codes)
    place = {name: at for at, name in enumerate(numbers)}
    linear = [correlations([tables[which] for tables in numbers.values()]) for which in (0, 1)] if numbers else []
    pairs, at_pair = [], dict[tuple[str, str], int]()
    wanted = [(at, pair) for at, pair in enumerate(grouping.pairs) if not across or pair[0] < across <= pair[1]]
    for at, (a, b) in wanted:
        at_pair[names[a], names[b]] = at
        first, second = names[a], names[b]
        comparison = link(real[at], rows, synthetic[at], synthetic_rows, apart)
        linked = comparison.real >= LEAST_LINK and comparison.chance * len(wanted) < CHANCE
        pearson = None
        if first in place and second in place:
            both = [(float(r[place[first], place[second]]), float(e[place[first], place[second]])) for r, e in linear]
            pearson = Correlation.of(both[0][0], both[1][0], math.hypot(both[0][1], both[1][1]))
        pairs.append(
            PairScore(
                first=first,
                second=second,
                score=closeness(real[at], synthetic[at]),
                association=comparison.real,
                association_synthetic=comparison.synthetic,
                kept=comparison.kept,
                error=comparison.error,
                linked=linked,
                correlation=pearson,
            )
        )
    pairs.sort(key=lambda pair: (not pair.linked, -pair.judged().loss, -pair.association))
    for rank, pair in enumerate(pairs[:MOST_DRAWN]):
        if pair.linked:
            ends = pair.first, pair.second
            table = TwoWay.of(readings, ends, real[at_pair[ends]], synthetic[at_pair[ends]])
            pairs[rank] = replace(pair, table=table)
    return tuple(pairs)
