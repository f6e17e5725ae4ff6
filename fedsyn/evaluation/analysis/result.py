"""Result of an analysis: honest intervals beside naive ones.

A result prints as a table of 80 columns, and converts to data.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.evaluation.analysis.combining import Combined
from fedsyn.notebook import Bar, Shown, View
from fedsyn.output import shortened

if TYPE_CHECKING:
    import pandas as pd

_WIDTH = 80
# Digits after the point before a number is written with a power of ten.
_MOST_DIGITS = 6


@dataclass(frozen=True, eq=False)
class Analysis(Shown):
    """Estimates with honest and naive intervals.

    Neither is shown without the other.

    Attributes:
        about: what was modelled, in words.
        terms: names of the k rows.
        combined: their estimates and variances.
        level: of the intervals.
        unheld: names of those terms whose association the model does not hold.
        warnings: sentences to be read before the figures.
    """

    about: str
    terms: tuple[str, ...]
    combined: Combined
    level: float
    unheld: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Returns one row per term.

        Estimate, honest low and high, naive low and high, held.
        """
        import pandas as pd

        (low, high), (naive_low, naive_high) = self.combined.interval(self.level), self.combined.naive(self.level)
        columns = {
            "estimate": self.combined.estimate,
            "low": low,
            "high": high,
            "naive_low": naive_low,
            "naive_high": naive_high,
            "held": [name not in self.unheld for name in self.terms],
        }
        return pd.DataFrame(columns, index=pd.Index(self.terms, name="term"))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        rows = [
            {"term": str(term), **{name: value if np.isfinite(value) else None for name, value in row.items()}}
            for term, row in self.to_frame().to_dict("index").items()
        ]
        facts = {"about": self.about, "level": self.level, "tables": self.combined.tables}
        return {**facts, "terms": rows, "warnings": list(self.warnings)}

    def _rows(self) -> list[tuple[str, ...]]:
        """Returns a heading and a row a term, as texts."""
        frame, percent = self.to_frame(), f"{100 * self.level:g}%"
        rows: list[tuple[str, ...]] = [("term", "estimate", f"honest {percent}", f"naive {percent}", "measured")]
        for name, row in zip(self.terms, frame.itertuples(index=False), strict=True):
            digits = _digits(row.high - row.low)
            honest, naive = (
                _interval(*ends, digits) for ends in ((row.low, row.high), (row.naive_low, row.naive_high))
            )
            mark = "" if row.held else " *"
            measured = "yes" if row.held else "no"
            rows.append((name + mark, _number(row.estimate, digits), honest, naive, measured))
        return rows

    def _view(self) -> View:
        head, *rows = self._rows()
        frame = self.to_frame()[["estimate", "low", "high"]]
        bars = [Bar(*row) for row in frame.itertuples() if np.isfinite(row[1:]).all()]
        title = f"{self.about}, {self.combined.tables} tables"
        return View(title, head, rows, self.warnings, f"estimate, honest {100 * self.level:g}% interval", bars)

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        widths[0] = max(8, min(widths[0], _WIDTH - sum(widths[1:]) - 8))
        lines = [f"{self.about}, {self.combined.tables} tables", ""]
        lines += [_line(row, widths) for row in rows]
        notes = list(self.warnings)
        return "\n".join([*lines, *([""] if notes else []), *(line for note in notes for line in _wrapped(note))])

    __repr__ = __str__


def _digits(width: float) -> int:
    """Returns the digits after the point that an interval needs.

    They leave two or three significant digits of its width.
    """
    if not (np.isfinite(width) and width > 0):
        return 3
    return int(np.clip(2 - np.floor(np.log10(width)), 0, 9))


def _interval(low: float, high: float, digits: int) -> str:
    return f"{_number(low, digits)} to {_number(high, digits)}"


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if digits <= _MOST_DIGITS else f"{value:.2e}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name = shortened(row[0], widths[0])
    return "  ".join(
        [f"{name:<{widths[0]}}", *(f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True))]
    )


def _wrapped(note: str) -> list[str]:
    return textwrap.wrap(note, _WIDTH)
