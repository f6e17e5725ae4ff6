"""The tutorial's figure: real, naive and honest intervals of one coefficient over many runs, beside the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.drawing import write_chart
from experiments.honest_intervals.honest_report import interval

TERM = "days ~ [severity] + age"
_WHERE = {
    "population": "generated",
    "rows": "5000",
    "epsilon": "1.0",
    "mechanism": "sketch_aim",
    "drawing": "posterior",
}
_PANELS = (("real rows", "real"), ("naive", "naive"), ("honest", "honest"))
_RUNS = 100


def chosen(lines: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """The first hundred runs of the figure's place, and its term."""
    found = [line for line in lines if line["term"] == TERM and all(line[k] == v for k, v in _WHERE.items())]
    return sorted(found, key=lambda line: int(line["run"]))[:_RUNS]


def draw(lines: Sequence[Mapping[str, str]], path: Path) -> str:
    """Draws the figure into a file, and returns what it shows in words."""
    import altair as alt

    used = chosen(lines)
    truth, panels, words = float(used[0]["truth"]), [], []
    low, high = interval(used, "honest")
    span = [float(low.min()), float(high.max())]
    for title, which in _PANELS:
        rows, hits = _rows(used, which, truth)
        words.append(f"{title} {hits} of {len(used)}")
        y = alt.Y("place:Q", axis=None, scale=alt.Scale(domain=[-1, len(used)]))
        x = alt.X("low:Q", title="days per step of severity", scale=alt.Scale(domain=span, nice=True, zero=False))
        colour = alt.Color(
            "holds:N",
            legend=None,
            scale=alt.Scale(domain=["yes", "no", "not held"], range=["#0072B2", "#D55E00", "#999999"]),
        )
        bars = alt.Chart(alt.InlineData(values=rows)).mark_rule(strokeWidth=1.6)
        line = alt.Chart(alt.InlineData(values=[{"truth": truth}])).mark_rule(color="#000000").encode(x="truth:Q")
        title = f"{title}: {hits} of {len(used)} hold it"
        layers = alt.layer(bars.encode(x=x, x2="high:Q", y=y, color=colour), line)
        panels.append(layers.properties(width=190, height=330, title=title))
    spec: dict[str, Any] = alt.hconcat(*panels).to_dict(validate=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_chart(spec, path)
    unheld = sum(line["held"] == "0" for line in used)
    return f"{TERM}: {', '.join(words)}; truth {truth:.4f}; not held by the model in {unheld} runs"


def _rows(lines: Sequence[Mapping[str, str]], which: str, truth: float) -> tuple[list[dict[str, Any]], int]:
    """Intervals from the lowest to the highest, and how many hold the truth."""
    rows, hits = [], 0
    for line, low, high in zip(lines, *map(list, interval(lines, which)), strict=True):
        holds = low <= truth <= high
        hits += holds
        word = "yes" if holds else "no" if line["held"] == "1" or which == "real" else "not held"
        rows.append({"low": round(low, 4), "high": round(high, 4), "holds": word})
    rows.sort(key=lambda row: row["low"] + row["high"])
    return [{**row, "place": i} for i, row in enumerate(rows)], hits
