"""Tables as people read them, and numbers as text.

Pages, terminals and READMEs use them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

#: Rows that a page shows.
MOST_ROWS = 1000
_NUMBER = re.compile(r"[-−]?(\d[\d,]*(\.\d+)?|\.\d+)(e[-+]?\d+)?( ?(%|kB|MB|s))?( ± <?[\d.e+-]+)?|–|not finite|")
_LONG = 40  # letters from which on a cell keeps some width


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        head: names of the columns.
        rows: cells; the first one of a row is its heading.
        caption: what the table shows.
        best: (row, column) of cells that are set in bold.
        links: text of a cell -> address.
        folded: line under which a page hides the table; empty: it is shown.
        narrow: how many of its first columns a terminal has room for.
    """

    kind: ClassVar[str] = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    best: Collection[tuple[int, int]] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    folded: str = ""
    narrow: int | None = None

    @property
    def shown(self) -> Sequence[Sequence[str]]:
        """The rows that a page shows."""
        return self.rows[:MOST_ROWS]

    @property
    def label(self) -> str:
        """Name of the table for a screen reader."""
        return self.caption or ", ".join(filter(None, self.head))

    @cached_property
    def numeric(self) -> list[bool]:
        """Marks of the columns that hold numbers, which stand right."""
        columns = [[row[j] for row in self.shown] for j in range(len(self.head))]
        return [any(cells) and all(map(_NUMBER.fullmatch, cells)) for cells in columns]

    def css(self, i: int, j: int) -> str:
        """Returns the classes of a cell's style."""
        number = self.numeric[j]
        names = {"n": number, "best": (i, j) in self.best, "long": not number and len(self.rows[i][j]) > _LONG}
        return " ".join(name for name, on in names.items() if on)


def number(value: float | None) -> str:
    """Returns a number as text, with four significant digits.

    A dash for a value that does not exist.

    >>> number(0.12345), number(3_643.0), number(957_312.0), number(None)
    ('0.1235', '3,643', '957,300', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "not finite"
    # Four digits of a larger number would have an exponent.
    return f"{float(f'{value:.4g}'):,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:,.4g}"


def plus_minus(mean: float, sd: float) -> str:
    """Returns mean ± standard deviation as text.

    The mean to the deviation's second digit but to at most four of its own.

    >>> plus_minus(0.41753, 0.01342), plus_minus(17.4677872, 0.0000084)
    ('0.418 ± 0.013', '17.47 ± <0.01')
    """
    if not math.isfinite(mean) or not math.isfinite(sd):
        return number(mean)
    if max(abs(mean), sd) >= 1e6:
        return f"{mean:.3g} ± {sd:.2g}"
    if sd == 0:
        return f"{number(mean)} ± 0"
    digits = max(0, 1 - math.floor(math.log10(sd)))
    if mean:
        digits = min(digits, max(0, 3 - math.floor(math.log10(abs(mean)))))
    digits = min(digits, 12)
    least = 10.0**-digits
    spread = f"<{least:.{digits}f}" if sd < least / 2 else f"{sd:.{digits}f}"
    return f"{mean:.{digits}f} ± {spread}"
