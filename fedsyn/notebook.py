"""Views of schemas, ledgers and results in a notebook.

Each is a sentence, a small table and a chart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

from fedsyn.errors import ConfigError
from fedsyn.output import filled, plain
from fedsyn.version import installing

# Rows of a table, and bars of a chart.
_MOST = 40


class Bar(NamedTuple):
    """One bar of a chart, with its interval if it has one."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class View:
    """Sentence, table and bars of an object.

    Attributes:
        title: one sentence or clause.
        head: names of the columns.
        rows: cells.
        notes: sentences below the table.
        measure: what the bars show.
        bars: of its chart.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    measure: str
    bars: Sequence[Bar]


class Shown:
    """Base class of objects that a notebook shows, and `plot` draws."""

    def _view(self) -> View:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        view = self._view()
        rows, more = view.rows[:_MOST], len(view.rows) - _MOST
        return filled("evaluation/report", "notebook.html.md", view=view, rows=rows, more=more)

    def plot(self) -> Any:
        """A chart (altair), which a notebook draws and `.save(path)` writes.

        Raises:
            ConfigError: altair is not installed.
        """
        if find_spec("altair") is None:
            raise ConfigError(f"a chart needs altair: {installing('report')}")
        import altair as alt

        view = self._view()
        bars = [bar._replace(name=plain(bar.name, keep="")) for bar in view.bars if math.isfinite(bar.value)]
        shown, order = bars[:_MOST], [bar.name for bar in bars[:_MOST]]
        title = plain(view.title, keep="") + (f" (the first {_MOST} of {len(bars)})" if len(bars) > _MOST else "")
        chart = alt.Chart(alt.Data(values=[bar._asdict() for bar in shown]), title=alt.Title(title, limit=600))
        place = alt.Y("name:N", sort=order, title=None)
        drawn = chart.mark_bar(opacity=0.75).encode(y=place, x=alt.X("value:Q", title=view.measure))
        ranges = chart.mark_rule(strokeWidth=2).encode(y=place, x="low:Q", x2="high:Q")
        return drawn + ranges if any(bar.low is not None for bar in shown) else drawn
