"""Figures of reports, as PNG bytes. Matplotlib is loaded when one is drawn, without a display."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsyn.report.plots import _INK, _PALETTE, _REST, _figure_class

_COLUMNS = 3
_MARKERS = "osD^vP*"


@dataclass(frozen=True)
class Series:
    """One line of a plot over an axis: (m,) positions, means, and standard deviations (nan: no error bar)."""

    name: str
    x: np.ndarray
    mean: np.ndarray
    sd: np.ndarray


def marginals(
    synthetic: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray] | None, labels: Mapping[str, Sequence[str]]
) -> bytes:
    """One-way marginals, normalised: bars for the synthetic table, a stepped outline for the real one.

    Args:
        synthetic: attribute -> (cells,) counts.
        real: the same for the real rows; None leaves them out.
        labels: attribute -> text of each cell, for the first and the last one, or for all where they are few.
    """
    names = list(synthetic)

    def draw(axes: Any, name: str) -> None:
        share = synthetic[name] / max(1, synthetic[name].sum())
        axes.bar(np.arange(share.size), share, width=0.9, color=_PALETTE[0], label="synthetic")
        if real is not None:
            other = real[name] / max(1, real[name].sum())
            edges = np.arange(share.size + 1) - 0.5
            axes.stairs(other, edges, color=_PALETTE[5], linewidth=1.3, label="real")
        axes.set_title(name, loc="left", fontsize=8, color=_INK)
        shown = range(share.size) if share.size <= 4 else (0, share.size - 1)
        axes.set_xticks(list(shown), [_short(labels[name][cell]) for cell in shown], fontsize=6)
        if name == names[0]:
            axes.legend(fontsize=6, frameon=False)

    return _panels(names, draw, height=1.5)


def over_axis(metrics: Mapping[str, Sequence[Series]], x_name: str, ticks: Sequence[str] | None) -> bytes:
    """Each metric against an axis, a line per series, error bars of one standard deviation over the seeds.

    Args:
        metrics: metric -> series.
        x_name: the axis.
        ticks: names of the positions 0, 1, ... of an axis without numbers; None where it has numbers.
    """
    first = next(iter(metrics))

    def draw(axes: Any, name: str) -> None:
        count = len(metrics[name])
        for index, series in enumerate(metrics[name]):
            # Points over the same category stand side by side, and are not joined: categories have no order.
            shift = 0.0 if ticks is None else (index - (count - 1) / 2) * min(0.12, 0.6 / count)
            axes.errorbar(
                series.x + shift,
                series.mean,
                yerr=np.nan_to_num(series.sd),
                fmt=_MARKERS[index % len(_MARKERS)],
                linestyle="-" if ticks is None else "none",
                color=_PALETTE[index] if index < len(_PALETTE) else _REST,
                markersize=4,
                linewidth=1.2,
                capsize=2.5,
                label=series.name,
            )
        axes.set_title(name, loc="left", fontsize=9, color=_INK)
        axes.set_xlabel(x_name, fontsize=8)
        if ticks is not None:
            axes.set_xticks(range(len(ticks)), [_short(tick) for tick in ticks], fontsize=7, rotation=20, ha="right")
        elif _spans_decades([series.x for series in metrics[name]]):
            axes.set_xscale("log")
        if name == first and count > 1:
            axes.legend(fontsize=7, frameon=False)

    return _panels(list(metrics), draw, height=3.0)


def by_round(lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> bytes:
    """One panel a quantity: name -> ((rounds,) round numbers, (rounds,) values)."""

    def draw(axes: Any, name: str) -> None:
        rounds, values = lines[name]
        axes.plot(rounds, values, marker="o", markersize=3, linewidth=1.2, color=_PALETTE[0])
        axes.set_title(name, loc="left", fontsize=9, color=_INK)
        axes.set_xlabel("round", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        axes.locator_params(axis="x", integer=True)
        axes.set_ylim(bottom=0)

    return _panels(list(lines), draw, height=2.2)


def _panels(names: Sequence[str], draw: Callable[[Any, str], None], height: float) -> bytes:
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure = _figure_class()(figsize=(3.3 * columns, height * rows), dpi=110, layout="constrained", facecolor="white")
    for index, name in enumerate(names):
        axes = figure.add_subplot(rows, columns, index + 1)
        draw(axes, name)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", labelsize=6)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _spans_decades(parts: Sequence[np.ndarray]) -> bool:
    x = np.concatenate(parts)
    return bool(x.size and x.min() > 0 and x.max() / x.min() >= 30)


def _short(text: str) -> str:
    return text if len(text) <= 16 else text[:15] + "…"
