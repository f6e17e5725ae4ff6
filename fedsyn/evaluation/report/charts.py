"""Pictures of a page, as data: the templates draw them in SVG.

A picture fills its place and takes its colours from the page's style, so it needs no script. Lengths are in its own
units; the numbers stand in tables beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsyn.evaluation.record import percent
from fedsyn.evaluation.report.tables import Table, number
from fedsyn.output import shortened

MOST_MARGINALS = 60
MOST_BARS = 48
#: Columns up to which a heat map names its rows.
MOST_NAMED = 32
_FEWEST_BARS = 6  # places of a chart, so that the two bars of a column are no walls
_LETTERS = 40  # of an axis

#: Two columns, and how strongly they are linked; None: not known.
Links = Mapping[tuple[str, str], float | None]
Mark = Literal["good", "mid", "bad", ""]


@dataclass(frozen=True)
class Marginal:
    """A column's one-way marginal as it is drawn.

    Attributes:
        name: of the column.
        labels: of its values or bins.
        synthetic: shares of the table's rows.
        real: shares of the real rows; None where they must not be shown, or are not at hand.
        mark: what became of the column.
        words: for the mark.
        anchor: of the place where the page says more.
        of: what shares are of, such as "people".
    """

    name: str
    labels: Sequence[str]
    synthetic: Sequence[float]
    real: Sequence[float] | None
    mark: Mark = ""
    words: str = ""
    anchor: str = ""
    of: str = "rows"

    @cached_property
    def folded(self) -> Marginal:
        """The marginal with at most 48 bars.

        They are the most frequent ones and, together, the rest.
        """
        if len(self.labels) <= MOST_BARS:
            return self
        mass = np.array(self.synthetic) + (0 if self.real is None else np.array(self.real))
        bars = np.sort(np.argsort(-mass, kind="stable")[: MOST_BARS - 1])

        def fold(values: Sequence[float]) -> list[float]:
            return [*(values[i] for i in bars), sum(values) - sum(values[i] for i in bars)]

        labels = [*(self.labels[i] for i in bars), f"{len(self.labels) - len(bars)} others"]
        real = None if self.real is None else fold(self.real)
        return replace(self, labels=labels, synthetic=fold(self.synthetic), real=real)

    @property
    def width(self) -> int:
        """Places of the chart, one a bar."""
        return max(_FEWEST_BARS, len(self.labels))

    @cached_property
    def top(self) -> float:
        """The largest share, as high as the chart."""
        return max(*self.synthetic, *(self.real or ()), 1e-9)

    @property
    def bars(self) -> str:
        """The synthetic shares as bars, 1 high: an SVG path."""
        heights = [1.0 - share / self.top for share in self.synthetic]
        return "".join(f"M{i + 0.08:.4g} 1V{y:.4g}H{i + 0.92:.4g}V1Z" for i, y in enumerate(heights))

    @property
    def ticks(self) -> str:
        """The real shares as lines across the bars: an SVG path."""
        return "".join(f"M{i} {1.0 - share / self.top:.4g}h1" for i, share in enumerate(self.real or ()))

    @property
    def axis(self) -> list[tuple[str, float]]:
        """Labels below the chart, each with its place in percent.

        They are as many as fit a phone.
        """
        labels = [shortened(label, 12) for label in self.labels]
        step = math.ceil(self.width / max(1, _LETTERS // (max(map(len, labels)) + 2)))
        return [(labels[i], 100.0 * (i + 0.5) / self.width) for i in range(0, len(labels), step)]

    @property
    def says(self) -> str:
        """The chart in words."""
        most = int(np.argmax(self.synthetic))
        text = (
            f"{self.name}: most frequent in the synthetic table is {self.labels[most]}, {percent(self.synthetic[most])}"
        )
        if self.real is None:
            return f"{text}."
        gap = np.array(self.synthetic) - np.array(self.real)
        worst = int(np.argmax(np.abs(gap)))
        return f"{text}; the largest difference to the real {self.of} is at {self.labels[worst]}, {gap[worst]:+.1%}."

    @property
    def numbers(self) -> Table:
        """The shares as a table."""
        head = ("value", "synthetic", *(("real",) if self.real is not None else ()))
        columns = [self.synthetic, *([self.real] if self.real is not None else [])]
        rows = [
            (label, *(f"{share:.2%}" for share in each)) for label, *each in zip(self.labels, *columns, strict=True)
        ]
        return Table(head, rows, f"Values of {self.name}, share of the {self.of}", folded="The values as numbers")


@dataclass(frozen=True)
class Columns:
    """All columns, side by side.

    Bars show the table, ticks the real rows.

    Attributes:
        columns: what is drawn.
        of: how many there are.
    """

    kind: ClassVar[str] = "columns"
    columns: Sequence[Marginal]
    of: int

    @property
    def real(self) -> bool:
        """True if real rows are shown."""
        return any(column.real is not None for column in self.columns)


@dataclass(frozen=True)
class Histogram:
    """One column, large."""

    kind: ClassVar[str] = "histogram"
    column: Marginal


class Cell(NamedTuple):
    """A cell of a heat map; its strength is 0 to 1."""

    x: int
    y: int
    strength: float
    words: str


@dataclass(frozen=True)
class HeatMap:
    """All links of two columns, in two triangles.

    Attributes:
        names: of the columns, in the order of its rows.
        above: links above the diagonal, of the rows or as released values show them.
        below: links below it, of the table.
        of_above, of_below: what the triangles show, in a few words.
        lost: pairs whose link is lost.
    """

    kind: ClassVar[str] = "heatmap"
    names: Sequence[str]
    above: Links
    below: Links
    of_above: str
    of_below: str
    lost: frozenset[frozenset[str]] = field(default_factory=frozenset)

    @cached_property
    def _at(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    @property
    def shown(self) -> list[str]:
        """Names as there is room for them; none of many columns."""
        return [shortened(name, 15) for name in self.names] if len(self.names) <= MOST_NAMED else []

    def cells(self) -> Iterator[Cell]:
        """Yields what is coloured."""
        for links, upper, what in ((self.above, True, self.of_above), (self.below, False, self.of_below)):
            for (first, second), value in links.items():
                low, high = sorted((self._at[first], self._at[second]))
                x, y = (high, low) if upper else (low, high)
                if value is not None and math.isfinite(value) and value >= 0.005:
                    yield Cell(x, y, round(min(value, 1.0), 3), f"{first} × {second}, {what}: {value:.2f}")

    def rings(self) -> Iterator[tuple[int, int]]:
        """Yields the places of lost links, in the table's triangle."""
        for pair in sorted(map(sorted, self.lost)):
            low, high = sorted(self._at[name] for name in pair)
            yield low, high

    @property
    def says(self) -> str:
        """The picture in words."""
        known = {pair: value for pair, value in (self.above or self.below).items() if value is not None}
        if not known:
            return "No link of two columns is known."
        first, second = max(known, key=lambda pair: known[pair])
        what = self.of_above if self.above else self.of_below
        text = f"Strongest link, {what}: {first} and {second}, {known[first, second]:.2f}"
        if self.above and (below := self.below.get((first, second))) is not None:
            text += f"; {self.of_below} {below:.2f}"
        return f"{text}."


def in_groups(names: Sequence[str], links: Links) -> list[str]:
    """Returns names in an order that puts linked ones side by side.

    It is that of the leaves of an average-linkage tree (as in a clustered heat map).
    """
    if len(names) < 3:
        return list(names)
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    at = {name: place for place, name in enumerate(names)}
    apart: npt.NDArray[np.float64] = np.ones((len(names), len(names)))
    for (first, second), value in links.items():
        near = 0.0 if value is None or not math.isfinite(value) else min(max(value, 0.0), 1.0)
        apart[at[first], at[second]] = apart[at[second], at[first]] = 1.0 - near
    np.fill_diagonal(apart, 0.0)
    return [names[i] for i in leaves_list(linkage(squareform(apart), "average", optimal_ordering=True))]


@dataclass(frozen=True)
class Cross:
    """Two columns together, in both tables: the share of each row's cells.

    Attributes:
        rows, columns: texts of the groups of both columns.
        tables: what is shown -> shares of all rows, a list for each group of the first column.
    """

    kind: ClassVar[str] = "cross"
    rows: Sequence[str]
    columns: Sequence[str]
    tables: Mapping[str, Sequence[Sequence[float]]]

    def drawn(self) -> Iterator[tuple[str, list[str], list[str], list[Cell]]]:
        """Yields each table with its labels and cells.

        Each row is as a whole 1, so that rows of few and of many can be compared; the darkest cell of both tables is
        the largest share.
        """
        within = {
            name: [[v / max(sum(row), 1e-300) for v in row] for row in rows] for name, rows in self.tables.items()
        }
        top = max(v for rows in within.values() for row in rows for v in row) or 1.0
        labels = [[shortened(text, 15) for text in texts] for texts in (self.rows, self.columns)]
        for name, rows in within.items():
            cells = [
                Cell(x, y, round(v / top, 3), f"{self.rows[y]}, {self.columns[x]}: {percent(v)} of the row")
                for y, row in enumerate(rows)
                for x, v in enumerate(row)
            ]
            yield name, labels[0], labels[1], cells


@dataclass(frozen=True)
class Bars:
    """Shares with a bar each."""

    kind: ClassVar[str] = "bars"
    caption: str
    rows: Sequence[tuple[str, float]]


class Range(NamedTuple):
    """A value with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Intervals:
    """Quantities with two intervals each, one above the other.

    Attributes:
        caption: what is shown.
        of: words for the two.
        rows: name, and the two: of the table, of the real rows.
    """

    kind: ClassVar[str] = "intervals"
    caption: str
    of: tuple[str, str]
    rows: Sequence[tuple[str, Range, Range]]

    def drawn(self) -> Iterator[tuple[str, list[tuple[float, float, float]], float]]:
        """Yields each name with its places, in percent of the width.

        They are twice low, value and high, and that of zero, which each row's own scale holds.
        """
        for name, *both in self.rows:
            ends = [end for one in both for end in one if math.isfinite(end)]
            low, high = min(0.0, *ends), max(0.0, *ends)
            unit = 100.0 / max(high - low, 1e-300)
            places = [tuple(round((end - low) * unit, 2) for end in (r.low, r.value, r.high)) for r in both]
            yield name, places, round(-low * unit, 2)  # type: ignore[misc]


@dataclass(frozen=True)
class Lines:
    """Quantities against the round, a small chart each.

    Attributes:
        lines: name -> (round, value).
    """

    kind: ClassVar[str] = "lines"
    lines: Mapping[str, Sequence[tuple[int, float]]]

    def drawn(self) -> Iterator[tuple[str, str, str]]:
        """Yields each name with its path in a square, and words."""
        for name, values in self.lines.items():
            rounds, heights = zip(*values, strict=True)
            wide, top = max(rounds[-1] - rounds[0], 1), max(*heights, 1e-300)
            points = [f"{(r - rounds[0]) / wide:.4g} {1.0 - max(v, 0.0) / top:.4g}" for r, v in values]
            words = f"{number(heights[0])} in round {rounds[0]}, {number(heights[-1])} in round {rounds[-1]}"
            yield name, f"M{'L'.join(points)}", words


Picture = Columns | Histogram | HeatMap | Cross | Bars | Intervals | Lines
