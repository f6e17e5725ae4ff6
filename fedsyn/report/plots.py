"""Pictures, as PNG files. Matplotlib is loaded when one is drawn, without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which people with colour blindness can tell apart; grey for what is put together.
_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_REST = "#999999"
_INK = "#333333"
# With more bars than this, neighbouring ones merge into an outline.
_MOST_BARS = 400
# Points beyond this number only darken the embedding.
_MOST_POINTS = 60_000


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
        path: PNG file to write; its folder is made.
        labels: (n,) integer label code of each row; None leaves the label panel out.
        label_name: the label's name.
        label_values: text of each label code; the code itself where absent.
        title: a line above the panels.

    Returns:
        The path.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure_class = _figure_class()
    order = np.argsort([-part.size for part in parts], kind="stable")
    sizes = np.array([parts[client].size for client in order])
    left = 1 if labels is None else 2
    width = 7.2 if embedding is None else 13.0
    figure = figure_class(figsize=(width, 2.6 * left + 1.0), dpi=150, layout="constrained", facecolor="white")
    grid = figure.add_gridspec(left, 1 if embedding is None else 2)
    _draw_sizes(figure.add_subplot(grid[0, 0]), sizes)
    if labels is not None:
        _draw_labels(figure.add_subplot(grid[1, 0]), [labels[part] for part in parts], label_name, label_values)
    if embedding is not None:
        _draw_embedding(figure.add_subplot(grid[:, 1]), parts, embedding)
    if title:
        figure.suptitle(title, fontsize=12, color=_INK, x=0.01, ha="left", fontweight="bold")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _draw_sizes(axes: Axes, sizes: np.ndarray) -> None:
    """Rows of each client, the largest first; equal shares as a line."""
    clients, mean = sizes.size, float(sizes.mean())
    if clients <= _MOST_BARS:
        axes.bar(np.arange(clients), sizes, width=0.85 if clients <= 150 else 1.0, color=_PALETTE[0])
    else:
        axes.fill_between(np.arange(clients), sizes, step="mid", color=_PALETTE[0], linewidth=0)
    axes.axhline(mean, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        f"mean {mean:,.0f}" if mean >= 10 else f"mean {mean:.1f}",
        (clients - 0.5, mean),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=_INK,
    )
    # On a linear axis the small clients of a strongly skewed split all look empty.
    if sizes[0] > 50 * max(float(np.median(sizes)), 1.0):
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.7)
    else:
        axes.set_ylim(bottom=0)
    extremes = f"{sizes[-1]:,} to {sizes[0]:,} rows" if sizes[0] > sizes[-1] else f"{sizes[0]:,} rows each"
    _decorate(axes, f"{clients:,} clients, {extremes}", clients)
    axes.set_ylabel("rows")
    axes.set_xlabel("client, largest first")


def _draw_labels(axes: Axes, mixed: list[np.ndarray], name: str, values: Sequence[str] | None) -> None:
    """Share of each label value in each client, as stacked bars in the order of the most frequent value."""
    total = np.bincount(np.concatenate(mixed))
    ranked = np.argsort(-total, kind="stable")
    ranked = ranked[total[ranked] > 0]
    shown = ranked[: len(_PALETTE)] if ranked.size <= len(_PALETTE) else ranked[: len(_PALETTE) - 1]
    counts = np.array([np.bincount(rows, minlength=total.size) for rows in mixed])
    shares = counts / counts.sum(axis=1, keepdims=True)
    layers = [(_text(code, values), shares[:, code], _PALETTE[i]) for i, code in enumerate(shown)]
    if shown.size < ranked.size:
        rest = 1.0 - shares[:, shown].sum(axis=1)
        layers.append((f"{ranked.size - shown.size} others", rest, _REST))
    # Clients with the same most frequent value stand together, the purest first: legible also for 1,000.
    stack = np.array([share for _, share, _ in layers])
    leading = np.argmax(stack, axis=0)
    by_mix = np.lexsort((-stack[leading, np.arange(len(mixed))], leading))
    x, base = np.arange(len(mixed)), np.zeros(len(mixed))
    for text, unsorted, colour in layers:
        share = unsorted[by_mix]
        if len(mixed) <= _MOST_BARS:
            width = 0.85 if len(mixed) <= 150 else 1.0
            axes.bar(x, share, bottom=base, width=width, color=colour, label=text)
        else:
            axes.fill_between(x, base, base + share, step="mid", color=colour, linewidth=0, label=text)
        base = base + share
    _decorate(axes, f"{name} by client", len(mixed))
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_ylabel("share of rows")
    axes.set_xlabel("client, by most frequent value")
    columns = min(len(layers), 4)
    axes.legend(
        loc="upper right",
        bbox_to_anchor=(1.0, -0.15),
        ncols=columns,
        fontsize=8,
        frameon=False,
        handlelength=1.0,
        handleheight=1.0,
        columnspacing=1.2,
    )


def _draw_embedding(axes: Axes, parts: Sequence[np.ndarray], embedding: np.ndarray) -> None:
    """The rows in the plane, coloured by client: neighbouring clients differ in colour."""
    client = np.empty(len(embedding), dtype=np.int64)
    for index, part in enumerate(parts):
        client[part] = index
    centres = np.array([embedding[part].mean(axis=0) for part in parts])
    colours = np.array(_rgb(_PALETTE))[_colour_of(centres)]
    shown = np.arange(len(embedding))
    if shown.size > _MOST_POINTS:
        shown = np.linspace(0, len(embedding) - 1, _MOST_POINTS).astype(np.int64)
    size = float(np.clip(40_000 / max(shown.size, 1), 0.6, 30.0))
    axes.scatter(
        embedding[shown, 0],
        embedding[shown, 1],
        s=size,
        c=colours[client[shown]],
        linewidths=0,
        alpha=0.75 if shown.size > 2_000 else 1.0,
        rasterized=True,
    )
    if len(parts) <= 150:
        axes.scatter(centres[:, 0], centres[:, 1], s=9, c=_INK, marker="+", linewidths=0.7, label="client's mean")
        axes.legend(loc="lower right", fontsize=8, frameon=False, handletextpad=0.2)
    axes.set_title("embedding, coloured by client", loc="left", fontsize=10, color=_INK)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#cccccc")


def _colour_of(centres: np.ndarray) -> np.ndarray:
    """(K,) index into the palette: greedily the colour that is least used, and farthest, nearby."""
    from scipy.spatial import cKDTree

    clients = len(centres)
    colour = np.full(clients, -1, dtype=np.int64)
    neighbours = min(12, clients)
    distances, near = cKDTree(centres).query(centres, k=neighbours)
    distances, near = distances.reshape(clients, neighbours), near.reshape(clients, neighbours)
    for client in range(clients):
        used = np.zeros(len(_PALETTE))
        for distance, other in zip(distances[client], near[client], strict=True):
            if colour[other] >= 0:
                used[colour[other]] += 1.0 / (float(distance) + 1e-9)
        # Ties go round the palette, so that few clients do not all get its first colour.
        turn = (np.arange(len(_PALETTE)) - client) % len(_PALETTE)
        colour[client] = np.lexsort((turn, used))[0]
    return colour


def _decorate(axes: Axes, title: str, clients: int) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=_INK)
    axes.set_xlim(-0.5 - 0.005 * clients, clients - 0.5 + 0.005 * clients)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.locator_params(axis="x", integer=True)
    axes.yaxis.set_major_formatter(lambda rows, _: f"{rows:,.0f}")


def _text(code: int, values: Sequence[str] | None) -> str:
    text = str(values[code]) if values is not None and code < len(values) else f"code {code}"
    return text if len(text) <= 24 else text[:23] + "…"


def _rgb(colours: Sequence[str]) -> list[tuple[float, ...]]:
    return [tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)) for colour in colours]


def _figure_class() -> Any:
    """matplotlib's Figure: drawn without pyplot, it needs no display and leaves no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib, which is not installed: pip install 'fedsyn[evaluation]'") from None
    return Figure
