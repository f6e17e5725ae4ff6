"""Figures of a sweep: a metric against the main axis, one panel a combination of the others, error bars over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedsyn.evaluation.report.charts import chart_of
from fedsyn.evaluation.report.figures import Figure, Panel, Swatch
from fedsyn.evaluation.report.style import PALETTE
from fedsyn.evaluation.report.tables import plus_minus

# With seven colours, seven shapes and four kinds of lines no two of 196 lines look the same.
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
_DECADES = 100  # between the smallest and the largest mean, from which on the axis of a metric is logarithmic
_DASHES = ([1, 0], [5, 3], [1, 2], [7, 2, 1, 2])
_PATHS = {
    "circle": "M12 2.5a3.5 3.5 0 1 0 .01 0z",
    "square": "M8.5 2.5h7v7h-7z",
    "triangle-up": "M12 2l4 7.5h-8z",
    "diamond": "M12 1l4 5-4 5-4-5z",
    "cross": "M10.5 1.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "triangle-down": "M12 10l4-7.5h-8z",
    "triangle-right": "M16 6l-7.5 4v-8z",
}


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
    log_x: bool
    log_y: bool
    span: tuple[float, float]
    floor: float

    @classmethod
    def of(cls, points: Sequence[Point], numeric: bool, log_x: bool, log_y: bool) -> _Scales:
        means = [point.mean for point in points]
        log_y = min(means) > 0 and (log_y or max(means) / min(means) >= _DECADES)
        floor = min(means) / 2 if log_y else -math.inf
        low = max(floor, min(point.mean - _sd(point) for point in points))
        high = max(point.mean + _sd(point) for point in points)
        if high <= low:
            low, high = low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1)
        return cls(numeric, log_x, log_y, (low, high), floor)


def against(
    metric: str,
    what: str,
    points: Sequence[Point],
    axis: str,
    *,
    lines: Sequence[str],
    numeric: bool,
    log: bool,
    log_y: bool = False,
) -> Figure:
    """One figure of a metric.

    Args:
        metric: its name.
        what: its direction, and what it is.
        points: all of them.
        axis: name of the main axis.
        lines: all lines of the sweep, so that a line looks the same in every figure.
        numeric: the axis has numbers; points of other axes are not joined, as categories have no order.
        log: a logarithmic axis.
        log_y: the metric's axis, too; otherwise where the means span two decades.
    """
    points = [point for point in points if math.isfinite(point.mean)]
    panels = list(dict.fromkeys(point.panel for point in points))
    scales, said = _Scales.of(points, numeric, log, log_y), f"{metric}: {what}" if what else metric

    def build(panel: str) -> Any:
        return _panel([p for p in points if p.panel == panel], axis, metric, lines, scales)

    return Figure(
        name=metric,
        caption=f"{said}. Points: means over the seeds; bars: one standard deviation.",
        panels=[Panel(name, _says(points, name, metric), partial(build, name)) for name in panels],
        head=["line", *(["panel"] if len(panels) > 1 else []), axis, metric],
        rows=[
            [p.line or "all", *([p.panel] if len(panels) > 1 else []), str(p.x), plus_minus(p.mean, p.sd)]
            for p in points
        ],
        legend=[(_key(index), name) for index, name in enumerate(lines)] if len(lines) > 1 else (),
        columns=2 if len(panels) in (2, 4) else 3,
    )


def _says(points: Sequence[Point], panel: str, metric: str) -> str:
    own = [point for point in points if point.panel == panel]
    low, high = min(own, key=lambda p: p.mean), max(own, key=lambda p: p.mean)
    where = f"{panel}: " if panel else ""
    return (
        f"{where}{metric} from {low.mean:.4g} ({low.line or 'all'} at {low.x}) to {high.mean:.4g} "
        f"({high.line or 'all'} at {high.x})."
    )


def _panel(points: Sequence[Point], axis: str, metric: str, lines: Sequence[str], scales: _Scales) -> Any:
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
            scale=alt.Scale(type="log" if scales.log_x else "linear", zero=False, nice=False, padding=14),
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
    chart = chart_of(rows)
    drawn = []
    if numeric:
        keys = {key: look[key] for key in ("color", "strokeDash") if key in look}
        drawn.append(chart.mark_line().encode(x=x, y=alt.Y("mean:Q", scale=y, axis=y_axis), **keys))
    colour = {key: look[key] for key in ("color",) if key in look}
    drawn.append(chart.mark_rule().encode(x=x, y=alt.Y("low:Q", scale=y, axis=y_axis), y2="high:Q", **colour, **apart))
    marks = {key: look[key] for key in ("color", "shape") if key in look}
    point = chart.mark_point(filled=True, size=45, opacity=1)
    drawn.append(point.encode(x=x, y=alt.Y("mean:Q", scale=y, axis=y_axis), tooltip=tooltip, **marks, **apart))
    return alt.layer(*drawn).properties(width="container", height=190)


def _shape(index: int) -> str:
    """One step further each time the colours start again."""
    return _SHAPES[(index + index // len(PALETTE)) % len(_SHAPES)]


def _key(index: int) -> Swatch:
    """The swatch of a line in the page's own legend, in the colours of its theme."""
    dash = ",".join(str(n) for n in _DASHES[index // len(PALETTE) % len(_DASHES)])
    return Swatch(f"var(--s{index % len(PALETTE)})", _PATHS[_shape(index)], "" if dash == "1,0" else dash)


def _sd(point: Point) -> float:
    return point.sd if math.isfinite(point.sd) else 0.0
