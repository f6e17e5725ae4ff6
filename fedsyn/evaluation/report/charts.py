"""Figures of a table's quality.

What altair draws, and the same as numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from fedsyn.evaluation.report.figures import Figure, Panel, Spec, Swatch

MOST_MARGINALS = 60
MOST_BARS = 48
_NAMED = 8  # columns that a sentence lists

Links = Sequence[tuple[str, str, float, float | None]]  # two columns, association real (or nan) and synthetic


@dataclass(frozen=True)
class Marginal:
    """A column's one-way marginal as it is drawn.

    Shares of the rows; `real` is None where it must not be shown.
    """

    name: str
    labels: Sequence[str]
    synthetic: Sequence[float]
    real: Sequence[float] | None

    def folded(self) -> Marginal:
        """Returns at most 48 bars.

        They are the most frequent ones and, together, the rest.
        """
        if len(self.labels) <= MOST_BARS:
            return self
        mass = np.array(self.synthetic) + (0 if self.real is None else np.array(self.real))
        bars = np.sort(np.argsort(-mass, kind="stable")[: MOST_BARS - 1])

        def fold(values: Sequence[float]) -> list[float]:
            return [*(values[i] for i in bars), sum(values) - sum(values[i] for i in bars)]

        labels = [*(self.labels[i] for i in bars), f"{len(self.labels) - len(bars)} others"]
        return Marginal(self.name, labels, fold(self.synthetic), None if self.real is None else fold(self.real))


def chart_of(rows: Sequence[Mapping[str, Any]], **facts: Any) -> Any:
    """Returns a chart with these rows inside."""
    import altair as alt

    return alt.Chart(alt.InlineData(values=list(rows)), **facts)


def _named(name: str, **facts: Any) -> Any:
    import altair as alt

    return alt.Chart(alt.NamedData(name=name), **facts)


def marginals(columns: Sequence[Marginal]) -> Figure:
    """Draws one-way marginals.

    Bars show the synthetic table, ticks the real rows where they may be shown.
    """
    shown = [column.folded() for column in columns[:MOST_MARGINALS]]
    real = any(column.real is not None for column in shown)
    left = f" The first {len(shown)} of {len(columns)} columns." if len(shown) < len(columns) else ""
    head = ["column", "value", "synthetic", *(["real"] if real else [])]
    rows = [
        [column.name, label, f"{share:.4f}", *([f"{column.real[i]:.4f}"] if column.real is not None else [])]
        for column in shown
        for i, (label, share) in enumerate(zip(column.labels, column.synthetic, strict=True))
    ]
    legend = [(Swatch("var(--bar)", "M0 0h12v12h-12z"), "synthetic")]
    if real:
        legend.append((Swatch("var(--tick)", "M0 5h14v3h-14z"), "real rows"))
    what = (
        "Bars: share of the synthetic rows; ticks: of the real rows." if real else "Bars: share of the synthetic rows."
    )
    return Figure(
        name="marginals",
        caption=f"The values of every column. {what}{left}",
        panels=[Panel(column.name, _says(column), partial(_marginal, column)) for column in shown],
        head=head,
        rows=rows,
        legend=legend,
    )


def _says(column: Marginal) -> str:
    most = int(np.argmax(column.synthetic))
    text = f"{column.name}: {len(column.labels)} values; most frequent in the table {column.labels[most]}"
    text += f", {column.synthetic[most]:.1%} of its rows"
    if column.real is None:
        return text
    gap = np.array(column.synthetic) - np.array(column.real)
    worst = int(np.argmax(np.abs(gap)))
    return f"{text}; largest difference to the real rows at {column.labels[worst]}, {gap[worst]:+.1%}"


def _marginal(column: Marginal) -> Spec:
    size = len(column.labels)
    rows: list[dict[str, Any]] = [
        {"i": i, "value": label, "synthetic": share}
        for i, (label, share) in enumerate(zip(column.labels, column.synthetic, strict=True))
    ]
    if column.real is not None:
        for row, real in zip(rows, column.real, strict=True):
            row["real"] = real
    ticks = list(range(size)) if size <= 5 else sorted({0, size // 3, 2 * size // 3, size - 1})
    words = {str(i): _short(column.labels[i]) for i in ticks}
    spec = deepcopy(_marginal_chart(column.real is not None))
    spec["data"] = {"values": rows}
    for part in spec.get("layer", [spec]):
        part["encoding"]["x"]["axis"] |= {"values": ticks, "labelExpr": f"{json.dumps(words)}[datum.value]"}
    return spec


@cache
def _marginal_chart(with_real: bool) -> Spec:
    """Returns the chart of a marginal without its rows.

    altair takes ten milliseconds for one, and a page has up to 60.
    """
    import altair as alt

    axis = alt.Axis(title=None, labelAngle=0, labelLimit=80, labelOverlap="greedy", ticks=False)
    tooltip = ["value:N", alt.Tooltip("synthetic:Q", format=".2%")]
    if with_real:
        tooltip.append(alt.Tooltip("real:Q", format=".2%"))
    x = alt.X("i:O", axis=axis, scale=alt.Scale(paddingInner=0.1, paddingOuter=0.05))
    y_axis = alt.Axis(title=None, format="%", tickCount=3)
    chart = chart_of([], width="container", height=110)
    drawn = chart.mark_bar().encode(x=x, y=alt.Y("synthetic:Q", axis=y_axis), tooltip=tooltip)
    if with_real:
        ticks = chart.mark_tick(orient="horizontal").encode(x=x, y=alt.Y("real:Q", axis=y_axis), tooltip=tooltip)
        drawn = alt.layer(drawn, ticks).properties(width="container", height=110)
    spec: Spec = drawn.to_dict(validate=False)
    for part in spec.get("layer", ()):
        part.pop("data", None)
    return spec


def associations(names: Sequence[str], links: Links) -> Figure:
    """Draws heatmaps of every pair's association: real, synthetic, their difference."""
    real = any(math.isfinite(r) for _, _, r, _ in links)
    at = {name: place for place, name in enumerate(names)}
    links = [(a, b, r, s) if at[a] < at[b] else (b, a, r, s) for a, b, r, s in links]
    values = [
        {"a": a, "b": b, "synthetic": _three(s), **({"real": _three(r), "difference": _three(s - r)} if real else {})}
        for a, b, r, s in links
        if s is not None
    ]
    kinds = ("real", "synthetic", "difference") if real else ("synthetic",)

    def build(kind: str) -> Any:
        import altair as alt

        few = len(names) <= 20
        size = 11 if few else 8
        scale = (
            alt.Scale(domain=[-1, 1], range="diverging", interpolate="rgb")
            if kind == "difference"
            else alt.Scale(domain=[0, 1], range="heatmap")
        )
        hide = {"labels": len(names) <= 32, "ticks": False, "domain": False, "title": None, "labelFontSize": size}
        return (
            _named("associations", width="container", height=max(240, min(460, 20 * len(names))))
            .mark_rect()
            .encode(
                x=alt.X("a:N", sort=list(names), axis=alt.Axis(labelAngle=-90, labelLimit=80, **hide)),
                y=alt.Y("b:N", sort=list(names), axis=alt.Axis(labelLimit=80, **hide)),
                color=alt.Color(
                    f"{kind}:Q", scale=scale, legend=alt.Legend(title=None, orient="top", gradientLength=160)
                ),
                tooltip=["a:N", "b:N", *(alt.Tooltip(f"{key}:Q", format=".2f") for key in kinds)],
            )
        )

    strongest = sorted(links, key=lambda link: -(link[2] if real else (link[3] or 0.0)))
    first = strongest[0]
    says = {
        "real": f"Strongest in the real rows: {first[0]} and {first[1]}, {first[2]:.2f}.",
        "synthetic": f"{first[0]} and {first[1]}: {first[3] or 0:.2f} in the synthetic table.",
    }
    if real:
        lost = max(links, key=lambda link: abs((link[3] or 0.0) - link[2]))
        says["difference"] = (
            f"Largest difference: {lost[0]} and {lost[1]}, {lost[2]:.2f} in the real rows, "
            f"{lost[3] or 0:.2f} in the table."
        )
    titles = {"real": "Real rows", "synthetic": "Synthetic table", "difference": "Synthetic minus real"}
    number = [[a, b, *([f"{r:.2f}"] if real else []), f"{s or 0:.2f}"] for a, b, r, s in strongest]
    return Figure(
        name="associations",
        caption="How strongly two columns are linked: Cramér's V, corrected for bias; 0: independent, 1: one "
        "determines the other. Columns of many values are read in 20 groups.",
        panels=[Panel(titles[kind], says[kind], partial(build, kind)) for kind in kinds],
        head=["column", "column ", *(["real"] if real else []), "synthetic"],
        rows=number,
        layout="wide",
        data={"associations": values},
    )


def graph(names: Sequence[str], edges: Sequence[tuple[str, str, float]]) -> Figure:
    """Draws the model's graph.

    Columns that it models together are joined. `edges` are (column, column, association in the model).
    """
    linked = [name for name in names if any(name in edge[:2] for edge in edges)]
    place = _circle(linked, edges)

    def build() -> Any:
        import altair as alt

        lines = [
            {"from": a, "to": b, "x": place[a][0], "y": place[a][1], "x2": place[b][0], "y2": place[b][1]}
            | {"v": _three(v)}
            for a, b, v in edges
        ]
        degree = {name: sum(name in edge[:2] for edge in edges) for name in linked}
        nodes: list[dict[str, Any]] = [
            {"column": n, "x": x, "y": y, "neighbours": degree[n]} for n, (x, y) in place.items()
        ]
        hidden = alt.Axis(labels=False, ticks=False, grid=False, domain=False, title=None)
        x = alt.X("x:Q", axis=hidden, scale=alt.Scale(domain=[-1.9, 1.9], nice=False))
        y = alt.Y("y:Q", axis=hidden, scale=alt.Scale(domain=[-1.1, 1.1], nice=False))
        width = alt.StrokeWidth("v:Q", scale=alt.Scale(domain=[0, 1], range=[0.7, 7]), legend=None)
        tooltip = ["from:N", "to:N", alt.Tooltip("v:Q", title="association", format=".2f")]
        drawn = (
            chart_of(lines)
            .mark_rule(opacity=0.6)
            .encode(x=x, y=y, x2="x2", y2="y2", strokeWidth=width, tooltip=tooltip)
        )
        dots = chart_of(nodes).mark_circle(size=80, opacity=1).encode(x=x, y=y, tooltip=["column:N", "neighbours:Q"])
        sides = [
            ("left", 9, [node for node in nodes if node["x"] >= 0]),
            ("right", -9, [n for n in nodes if n["x"] < 0]),
        ]
        words = [
            chart_of(labelled).mark_text(align=side, dx=dx, fontSize=11, limit=105).encode(x=x, y=y, text="column:N")
            for side, dx, labelled in sides
        ]
        return alt.layer(drawn, dots, *words).properties(width="container", height=max(340, min(620, 14 * len(linked))))

    alone = [name for name in names if name not in place]
    strong = sorted(edges, key=lambda edge: -edge[2])
    words = f"{len(names)} columns, {len(edges)} links."
    if alone:
        more = f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else ""
        words += f" Without a link, drawn independently: {', '.join(alone[:_NAMED])}{more}."
    if strong:
        words += f" Strongest: {strong[0][0]} and {strong[0][1]}, {strong[0][2]:.2f}."
    return Figure(
        name="graph",
        caption="The model's graph: two columns are joined where the model describes them together. Thicker: stronger "
        f"association in the model. {words}",
        panels=[Panel("", words, build)],
        head=["column", "column ", "association in the model"],
        rows=[[a, b, f"{v:.2f}"] for a, b, v in strong],
        layout="one",
    )


def _circle(names: Sequence[str], edges: Sequence[tuple[str, str, float]]) -> dict[str, tuple[float, float]]:
    """Returns places on a circle, with linked columns near each other.

    They follow the order of the graph's Fiedler vector.
    """
    size = len(names)
    laplacian = np.zeros((size, size))
    for a, b, v in edges:
        i, j = names.index(a), names.index(b)
        laplacian[i, j] = laplacian[j, i] = -(0.05 + v)
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1) + 1e-9)
    fiedler = np.linalg.eigh(laplacian)[1][:, min(1, size - 1)]
    order = np.argsort(np.round(fiedler, 9), kind="stable")
    turn = 2 * math.pi * (np.arange(size) + 0.5) / max(size, 1)
    return {names[i]: (float(math.sin(t)), float(math.cos(t))) for i, t in zip(order, turn, strict=True)}


def budget(parts: Sequence[tuple[int, str, float]], left: float) -> Figure:
    """Draws what each round spent, and on what.

    (round, name, share of the budget); `left`: the share that was not spent.
    """
    names = list(dict.fromkeys(name for _, name, _ in parts))
    totals = {name: sum(share for _, other, share in parts if other == name) for name in names}

    def build() -> Any:
        import altair as alt

        rows = [{"round": r, "release": name, "share": share} for r, name, share in parts]
        return (
            chart_of(rows, width="container", height=190)
            .mark_bar()
            .encode(
                x=alt.X("round:O", axis=alt.Axis(labelAngle=0, labelOverlap="greedy")),
                y=alt.Y("share:Q", axis=alt.Axis(format="%", title="share of the budget")),
                color=alt.Color(
                    "release:N", sort=names, legend=alt.Legend(title=None, orient="top", columns=3, symbolType="square")
                ),
                order=alt.Order("release:N"),
                tooltip=["round:O", "release:N", alt.Tooltip("share:Q", format=".2%")],
            )
        )

    words = "; ".join(f"{name} {share:.1%}" for name, share in totals.items())
    return Figure(
        name="budget",
        caption=f"Where the privacy budget went, round by round: {words}; not spent {max(left, 0):.1%}. Shares are of "
        "rho, in which costs add up.",
        panels=[Panel("", f"Shares of the budget: {words}.", build)],
        head=["release", "share of the budget"],
        rows=[[name, f"{share:.2%}"] for name, share in totals.items()],
        layout="one",
    )


def by_round(lines: Mapping[str, Sequence[tuple[int, float]]]) -> Figure:
    """Quantities against the round: name -> (round, value)."""

    def build(name: str) -> Any:
        import altair as alt

        rows = [{"round": r, "value": v} for r, v in lines[name]]
        return (
            chart_of(rows, width="container", height=130)
            .mark_line(point=True)
            .encode(
                x=alt.X("round:Q", axis=alt.Axis(tickMinStep=1, format="d")),
                y=alt.Y("value:Q", axis=alt.Axis(title=None, tickCount=4), scale=alt.Scale(zero=True)),
                tooltip=["round:Q", alt.Tooltip("value:Q", format=".4~g")],
            )
        )

    def says(name: str) -> str:
        first, last = lines[name][0], lines[name][-1]
        return f"{name}: {first[1]:.4g} in round {first[0]}, {last[1]:.4g} in round {last[0]}."

    rounds = sorted({r for values in lines.values() for r, _ in values})
    known = {name: dict(values) for name, values in lines.items()}
    return Figure(
        name="rounds",
        caption="What changed from round to round.",
        panels=[Panel(name, says(name), partial(build, name)) for name in lines],
        head=["round", *lines],
        rows=[[str(r), *(f"{known[n][r]:.4g}" if r in known[n] else "" for n in lines)] for r in rounds],
    )


def _three(value: float) -> float:
    return round(float(value), 3)


def _short(text: str) -> str:
    return text if len(text) <= 14 else text[:13] + "…"
