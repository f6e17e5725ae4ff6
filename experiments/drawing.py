"""Draws the figures of experiments: a metric against an axis, one panel a combination, error bars over the seeds.

Also writes any Vega-Lite specification as a file, in the colours of fedsyn's pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Okabe and Ito's colours, which people with colour blindness can tell apart.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# With seven colours, seven shapes and four kinds of lines no two of 196 lines look the same.
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
_DECADES = 100  # between the smallest and the largest mean, from which on the axis of a metric is logarithmic
_DASHES = ([1, 0], [5, 3], [1, 2], [7, 2, 1, 2])
_WIDTH = 230


def chart_config() -> dict[str, Any]:
    """Returns Vega-Lite's configuration of all charts, so that a chart itself names no colour."""
    ink, soft, line, middle = "#1b1f24", "#57606a", "#d0d7de", "#f3f4f6"
    small = {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"}
    lines = {"gridColor": line, "domainColor": line, "tickColor": line}
    return {
        "background": "white",
        "font": "system-ui, Segoe UI, Roboto, Liberation Sans, sans-serif",
        "view": {"stroke": None},
        "mark": {"color": PALETTE[0]},
        "bar": {"color": PALETTE[0]},
        "tick": {"color": PALETTE[1], "thickness": 2},
        "text": {"color": ink},
        "rule": {"color": soft},
        "axis": {"labelColor": soft, "titleColor": soft, **small, **lines},
        "legend": {"labelColor": ink, "titleColor": soft, "titleFontWeight": "normal", "labelLimit": 300},
        "title": {"color": ink, "anchor": "start", "fontSize": 12, "subtitleColor": soft},
        "header": {"labelColor": ink, "titleColor": soft},
        "range": {
            "category": list(PALETTE),
            "heatmap": [middle, "#6baed6", "#08519c"],
            "ramp": [middle, PALETTE[0]],
            "diverging": [PALETTE[1], middle, PALETTE[0]],
        },
    }


def write_chart(spec: dict[str, Any], path: Path) -> None:
    """Draws a Vega-Lite specification into an SVG or PNG file."""
    import vl_convert

    config = chart_config()
    if path.suffix == ".svg":
        path.write_text(vl_convert.vegalite_to_svg(spec, config=config, show_warnings=False), encoding="utf-8")
    else:
        path.write_bytes(vl_convert.vegalite_to_png(spec, config=config, scale=2, show_warnings=False))


@dataclass(frozen=True)
class Point:
    """A mean over seeds: on which line, in which panel, where on the axis; sd is nan where there is no spread."""

    line: str
    panel: str
    x: float | str
    mean: float
    sd: float


@dataclass(frozen=True)
class _Scales:
    """The axes that all panels of a figure share; `floor`: where the bar of a logarithmic axis ends below."""

    numeric: bool
    log_y: bool
    span: tuple[float, float]
    floor: float

    @classmethod
    def of(cls, points: Sequence[Point], numeric: bool, log_y: bool) -> _Scales:
        means = [point.mean for point in points]
        log_y = min(means) > 0 and (log_y or max(means) / min(means) >= _DECADES)
        floor = min(means) / 2 if log_y else -math.inf
        low = max(floor, min(point.mean - _sd(point) for point in points))
        high = max(point.mean + _sd(point) for point in points)
        if high <= low:
            low, high = low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1)
        return cls(numeric, log_y, (low, high), floor)


def against(
    metric: str, points: Sequence[Point], axis: str, *, lines: Sequence[str], numeric: bool, log_y: bool = False
) -> list[Any]:
    """Returns the charts of a metric, one a panel.

    Args:
        metric: its name.
        points: all of them.
        axis: name of the main axis.
        lines: all lines, so that a line looks the same in every panel.
        numeric: the axis has numbers; points of other axes are not joined, as categories have no order.
        log_y: a logarithmic axis of the metric; otherwise where the means span two decades.
    """
    points = [point for point in points if math.isfinite(point.mean)]
    scales = _Scales.of(points, numeric, log_y)
    panels = dict.fromkeys(point.panel for point in points)
    return [_panel(name, [p for p in points if p.panel == name], axis, metric, lines, scales) for name in panels]


def _panel(title: str, points: Sequence[Point], axis: str, metric: str, lines: Sequence[str], scales: _Scales) -> Any:
    import altair as alt

    rows = [
        {"x": p.x, "line": p.line, "mean": p.mean, "low": max(scales.floor, p.mean - _sd(p)), "high": p.mean + _sd(p)}
        | {"sd": _sd(p)}
        for p in points
    ]
    numeric = scales.numeric
    if numeric:
        ticks = alt.Axis(title=axis, values=sorted({float(p.x) for p in points}), format="~g", labelOverlap="greedy")
        x = alt.X(
            "x:Q",
            axis=ticks,
            scale=alt.Scale(zero=False, nice=False, padding=14),
        )
    else:
        x = alt.X("x:N", sort=None, axis=alt.Axis(title=axis, labelAngle=-25, labelLimit=110))
    y = alt.Scale(domain=list(scales.span), nice=True, zero=False, type="log" if scales.log_y else "linear")
    y_axis = alt.Axis(title=metric, format=".0e" if scales.log_y else "~g", tickCount=5, labelOverlap="greedy")
    count = len(lines)
    legend = alt.Legend(title=None, orient="right")
    look: dict[str, Any] = {
        "color": alt.Color("line:N", legend=legend, scale=alt.Scale(domain=list(lines))),
        "shape": alt.Shape(
            "line:N", legend=legend, scale=alt.Scale(domain=list(lines), range=[_shape(i) for i in range(count)])
        ),
    }
    if numeric:
        dashes = alt.Scale(domain=list(lines), range=[_DASHES[i // len(PALETTE) % len(_DASHES)] for i in range(count)])
        look["strokeDash"] = alt.StrokeDash("line:N", legend=None, scale=dashes)
    if count < 2:
        look = {}
    apart = {} if numeric or count < 2 else {"xOffset": alt.XOffset("line:N", scale=alt.Scale(domain=list(lines)))}
    tooltip = [
        "line:N",
        alt.Tooltip("x:Q" if numeric else "x:N", title=axis),
        *(alt.Tooltip(f"{k}:Q", format=".4~g") for k in ("mean", "sd")),
    ]
    chart = alt.Chart(alt.InlineData(values=rows))
    drawn = []
    if numeric:
        keys = {key: look[key] for key in ("color", "strokeDash") if key in look}
        drawn.append(chart.mark_line().encode(x=x, y=alt.Y("mean:Q", scale=y, axis=y_axis), **keys))
    colour = {key: look[key] for key in ("color",) if key in look}
    drawn.append(chart.mark_rule().encode(x=x, y=alt.Y("low:Q", scale=y, axis=y_axis), y2="high:Q", **colour, **apart))
    marks = {key: look[key] for key in ("color", "shape") if key in look}
    point = chart.mark_point(filled=True, size=45, opacity=1)
    drawn.append(point.encode(x=x, y=alt.Y("mean:Q", scale=y, axis=y_axis), tooltip=tooltip, **marks, **apart))
    return alt.layer(*drawn).properties(width=_WIDTH, height=190, title=title)


def _shape(index: int) -> str:
    """One step further each time the colours start again."""
    return _SHAPES[(index + index // len(PALETTE)) % len(_SHAPES)]


def _sd(point: Point) -> float:
    return point.sd if math.isfinite(point.sd) else 0.0
