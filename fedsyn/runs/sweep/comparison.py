"""How the axes of a sweep are laid out: which one a plot runs along, what is compared, what makes panels; what is best.

The main axis is the numeric one with most values, at least three, otherwise the one with most values. What is compared
are mechanisms, or else the other axis with most values; every further axis makes panels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedsyn.evaluation.real.metrics import all_metrics
from fedsyn.runs.sweep.results import Results, Summary, is_number, short_names, text

_SMALLEST_NUMERIC_AXIS = 3
_MECHANISM = "mechanism.name"


@dataclass(frozen=True)
class Layout:
    """Roles of the main axes of a sweep.

    Attributes:
        main: along which plots run; None where nothing varies.
        compared: what lines (and bold cells) compare; None where one axis varies.
        facets: what makes panels.
    """

    main: str | None
    compared: str | None
    facets: tuple[str, ...]

    @classmethod
    def of(cls, results: Results) -> Layout:
        if not results.main_axes:
            return cls(None, None, ())
        main = main_axis(results)
        others = [key for key in results.main_axes if key != main]
        if not others:
            return cls(main, None, ())
        compared = _MECHANISM if _MECHANISM in others else max(others, key=lambda key: len(values_of(results, key)))
        return cls(main, compared, tuple(key for key in others if key != compared))


def main_axis(results: Results) -> str:
    """The numeric axis with most values, at least three; else the axis with most values; mechanisms only alone."""
    candidates = [key for key in results.main_axes if key != _MECHANISM] or results.main_axes
    numeric = [key for key in candidates if all(is_number(value) for value in values_of(results, key))]
    numeric = [key for key in numeric if len(values_of(results, key)) >= _SMALLEST_NUMERIC_AXIS]
    return max(numeric or candidates, key=lambda key: len(values_of(results, key)))


def values_of(results: Results, key: str) -> list[Any]:
    """The different values of an axis, in the sweep's order."""
    return list({text(summary.axes[key]): summary.axes[key] for summary in results.summaries}.values())


def labelled(results: Results, summary: Summary, keys: Sequence[str]) -> str:
    """`clients 10, dirichlet`: the values of some axes for people; numbers with their name."""
    names = dict(zip(results.main_axes, short_names(results.main_axes), strict=True))
    parts = []
    for key in keys:
        value = text(summary.axes[key])
        if value:
            plain = is_number(summary.axes[key]) or value in ("true", "false", "null")
            parts.append(f"{names[key]} {value}" if plain else value)
    return ", ".join(parts)


def best(results: Results, metric: str) -> set[int]:
    """Positions of the summaries whose mean is the best of those that differ from it in the compared axis alone."""
    known = all_metrics()
    if metric not in known or metric == "heterogeneity":
        return set()
    layout = Layout.of(results)
    compared = layout.compared or layout.main
    groups: dict[tuple[str, ...], list[tuple[float, int]]] = {}
    for position, summary in enumerate(results.summaries):
        mean = summary.mean(metric)
        if math.isfinite(mean):
            key = tuple(text(summary.axes[axis]) for axis in results.main_axes if axis != compared)
            groups.setdefault(key, []).append((mean if known[metric].lower_is_better else -mean, position))
    chosen: set[int] = set()
    for group in groups.values():
        if len(group) > 1:
            least = min(group)[0]
            chosen |= {position for mean, position in group if mean == least}
    return chosen


def is_geometric(values: Sequence[float]) -> bool:
    """Whether points are more even on a logarithmic axis than on a linear one, as 0.5, 1, 4 are and 1, 2, 3 are not."""
    points = sorted(set(values))
    if len(points) < 2 or points[0] <= 0:
        return False
    if len(points) == 2:
        return points[1] / points[0] >= 10
    gaps = [b - a for a, b in itertools.pairwise(points)]
    ratios = [math.log(b / a) for a, b in itertools.pairwise(points)]
    return max(ratios) / sum(ratios) < max(gaps) / sum(gaps)
