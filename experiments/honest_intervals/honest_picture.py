"""The tutorial's figure: real, naive and honest intervals of one coefficient over many runs, beside the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsyn.report.figures import write_chart

TERM = "days ~ [severity] + age"
_WHERE = {"population": "generated", "rows": "5000", "epsilon": "1.0", "mechanism": "sketch_aim", "drawing": "refits"}
_PANELS = (("real rows", "real_"), ("naive", "naive_"), ("honest", ""))
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
    span = [min(float(line["low"]) for line in used), max(float(line["high"]) for line in used)]
    for title, prefix in _PANELS:
        rows, hits = _rows(used, prefix, truth)
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


def _rows(lines: Sequence[Mapping[str, str]], prefix: str, truth: float) -> tuple[list[dict[str, Any]], int]:
    """Intervals from the lowest to the highest, and how many hold the truth."""
    rows, hits = [], 0
    for line in lines:
        low, high = float(line[f"{prefix}low"]), float(line[f"{prefix}high"])
        holds = low <= truth <= high
        hits += holds
        word = "yes" if holds else "no" if line["held"] == "1" or prefix == "real_" else "not held"
        rows.append({"low": round(low, 4), "high": round(high, 4), "holds": word})
    rows.sort(key=lambda row: row["low"] + row["high"])
    return [{**row, "place": i} for i, row in enumerate(rows)], hits
