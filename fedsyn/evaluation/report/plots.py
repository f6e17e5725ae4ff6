"""`fedsyn partition --plot`: how a table is split, as one file. altair and vl-convert are loaded when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn.errors import ConfigError
from fedsyn.evaluation.report.charts import chart_of
from fedsyn.evaluation.report.figures import INSTALL, drawable, write_chart
from fedsyn.evaluation.report.style import PALETTE

# With more bars than this, neighbouring ones merge into an outline.
_MOST_BARS = 400
# Points beyond this number only darken the embedding.
_MOST_POINTS = 20_000
# Clients share colours: neighbours in the embedding get different ones. So many are in every theme's palette.
_COLOURS = 6
_MOST_VALUES = 6
_WIDTH = 520
_REST = "#999999"


def plot_partition(
    parts: Sequence[np.ndarray],
    embedding: np.ndarray | None = None,
    path: Path | str = "partition.png",
    *,
    labels: np.ndarray | None = None,
    label_name: str = "label",
    label_values: Sequence[str] | None = None,
    title: str = "",
) -> Path:
    """Draws how a table is split: the clients' sizes, what label values they hold, and where their rows lie.

    Args:
        parts: row indices of each client, none empty.
        embedding: (n, 2) coordinates of the rows; None leaves the map out.
        path: PNG, SVG or PDF file to write; its folder is made.
        labels: (n,) integer label code of each row; None leaves the label panel out.
        label_name: the label's name.
        label_values: text of each label code; the code itself where absent.
        title: a line above the panels.

    Returns:
        The path.

    Raises:
        ConfigError: altair or vl-convert is not installed.
    """
    if not drawable():
        raise ConfigError(f"plots need altair and vl-convert, which are not installed: {INSTALL}")
    import altair as alt

    order = np.argsort([-part.size for part in parts], kind="stable")
    ordered = [parts[client] for client in order]
    left = [_sizes(np.array([part.size for part in ordered]))]
    if labels is not None:
        left.append(_labels([labels[part] for part in ordered], label_name, label_values))
    chart = alt.vconcat(*left).resolve_scale(color="independent")
    if embedding is not None:
        chart = alt.hconcat(chart, _map(parts, embedding)).resolve_scale(color="independent")
    if title:
        chart = chart.properties(title=title)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_chart(chart.to_dict(validate=False), path)


def _sizes(sizes: np.ndarray) -> Any:
    """Rows of each client, the largest first; equal shares as a line."""
    import altair as alt

    clients, mean = sizes.size, float(sizes.mean())
    extremes = f"{sizes[-1]:,} to {sizes[0]:,} rows" if sizes[0] > sizes[-1] else f"{sizes[0]:,} rows each"
    # On a linear axis the small clients of a strongly skewed split all look empty.
    skewed = sizes[0] > 50 * max(float(np.median(sizes)), 1.0)
    scale = alt.Scale(type="symlog") if skewed else alt.Scale()
    rows = [{"client": i, "rows": int(size)} for i, size in enumerate(sizes)]
    x = alt.X("client:Q", title="client, largest first", scale=alt.Scale(domain=[-0.5, clients - 0.5], nice=False),
              axis=alt.Axis(format="d", tickMinStep=1))  # fmt: skip
    axis = alt.Axis(format=",", title="rows")
    y = alt.Y("rows:Q", scale=scale, axis=axis)
    bars = _bars(chart_of(rows), clients).encode(x=x, y=y)
    line = chart_of([{"mean": mean}]).mark_rule(strokeDash=[4, 3]).encode(y=alt.Y("mean:Q", scale=scale, axis=axis))
    facts = f"{clients:,} clients, {extremes}, mean " + (f"{mean:,.0f}" if mean >= 10 else f"{mean:.1f}")
    return alt.layer(bars, line).properties(width=_WIDTH, height=180, title=facts)


def _bars(chart: Any, clients: int) -> Any:
    if clients > _MOST_BARS:
        return chart.mark_area(interpolate="step")
    return chart.mark_bar(size=max(1.0, 0.85 * _WIDTH / clients))


def _labels(mixed: list[np.ndarray], name: str, values: Sequence[str] | None) -> Any:
    """Share of each label value in each client, as stacked bars in the order of the most frequent value."""
    import altair as alt

    total = np.bincount(np.concatenate(mixed))
    ranked = np.argsort(-total, kind="stable")
    ranked = ranked[total[ranked] > 0]
    shown = ranked[:_MOST_VALUES]
    counts = np.array([np.bincount(rows, minlength=total.size) for rows in mixed])
    shares = counts / counts.sum(axis=1, keepdims=True)
    layers = [(_text(code, values), shares[:, code]) for code in shown]
    if shown.size < ranked.size:
        layers.append((f"{ranked.size - shown.size} others", 1.0 - shares[:, shown].sum(axis=1)))
    # Clients with the same most frequent value stand together, the purest first: legible also for 1,000.
    stack = np.array([share for _, share in layers])
    leading = np.argmax(stack, axis=0)
    by_mix = np.lexsort((-stack[leading, np.arange(len(mixed))], leading))
    rows = [
        {"client": place, "share": float(share[client]), "value": text, "order": layer}
        for layer, (text, share) in enumerate(layers)
        for place, client in enumerate(by_mix)
    ]
    colours = [*PALETTE[: shown.size], *([_REST] if shown.size < ranked.size else [])]
    clients = len(mixed)
    x_axis = alt.Axis(format="d", tickMinStep=1, title="client, by most frequent value")
    return (
        _bars(chart_of(rows), clients)
        .encode(
            x=alt.X("client:Q", axis=x_axis, scale=alt.Scale(domain=[-0.5, clients - 0.5], nice=False)),
            y=alt.Y("share:Q", stack="zero", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
            color=alt.Color("value:N", title=name, scale=alt.Scale(domain=[text for text, _ in layers], range=colours)),
            order="order:Q",
        )
        .properties(width=_WIDTH, height=180, title=f"{name} in each client")
    )


def _map(parts: Sequence[np.ndarray], embedding: np.ndarray) -> Any:
    """The rows in the plane; neighbouring clients differ in colour, which far ones share."""
    import altair as alt

    centres = np.array([embedding[part].mean(axis=0) for part in parts])
    colours = _colour_of(centres)
    rows = np.concatenate(list(parts))
    client = np.repeat(np.arange(len(parts)), [part.size for part in parts])
    shown = np.arange(rows.size)
    if rows.size > _MOST_POINTS:
        shown = np.random.default_rng(0).choice(rows.size, _MOST_POINTS, replace=False)
    points = [
        {"x": round(float(embedding[rows[i], 0]), 4), "y": round(float(embedding[rows[i], 1]), 4)}
        | {"colour": int(colours[client[i]])}
        for i in shown
    ]
    hidden = alt.Axis(labels=False, ticks=False, grid=False, title=None)
    span = [alt.Scale(domain=[float(v.min()), float(v.max())], nice=True, zero=False) for v in embedding.T[:2]]
    x, y = alt.X("x:Q", axis=hidden, scale=span[0]), alt.Y("y:Q", axis=hidden, scale=span[1])
    colour = alt.Color("colour:N", legend=None, scale=alt.Scale(domain=list(range(_COLOURS))))
    size = float(np.clip(30_000 / max(1, shown.size), 2, 30))
    drawn = [chart_of(points).mark_circle(size=size, opacity=0.75).encode(x=x, y=y, color=colour)]
    words = "embedding, coloured by client"
    if len(parts) <= 150:
        middles = [{"x": float(a), "y": float(b)} for a, b in centres]
        drawn.append(
            chart_of(middles).mark_point(shape="cross", size=25, filled=True, color="#333333").encode(x=x, y=y)
        )
        words += "; crosses: the clients' means"
    return alt.layer(*drawn).properties(width=_WIDTH, height=_WIDTH, title=words)


def _colour_of(centres: np.ndarray) -> np.ndarray:
    """(K,) index of a colour: greedily the one that is least used, and farthest, nearby."""
    from scipy.spatial import cKDTree

    clients = len(centres)
    colour = np.full(clients, -1, dtype=np.int64)
    neighbours = min(12, clients)
    distances, near = cKDTree(centres).query(centres, k=neighbours)
    distances, near = distances.reshape(clients, neighbours), near.reshape(clients, neighbours)
    for client in range(clients):
        used = np.zeros(_COLOURS)
        for distance, other in zip(distances[client], near[client], strict=True):
            if colour[other] >= 0:
                used[colour[other]] += 1.0 / (float(distance) + 1e-9)
        # Ties go round the palette, so that few clients do not all get its first colour.
        turn = (np.arange(_COLOURS) - client) % _COLOURS
        colour[client] = np.lexsort((turn, used))[0]
    return colour


def _text(code: int, values: Sequence[str] | None) -> str:
    text = str(values[code]) if values is not None and code < len(values) else f"code {code}"
    return text if len(text) <= 24 else text[:23] + "…"
