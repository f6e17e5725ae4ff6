"""Tables of a sweep: as CSV and LaTeX files, and for people, with the best of what is compared in bold.

`AxisRoles` says of the axes of a sweep which one a plot runs along, what is compared, and what makes panels. The main
axis is the numeric one with most values, at least three, otherwise the one with most values. What is compared are
mechanisms, or else the other axis with most values; every further axis makes panels.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsyn.evaluation.real.metrics import all_metrics
from fedsyn.evaluation.report.tables import Table, plus_minus
from fedsyn.runs.sweep.results import UNSET, Results, Row, Summary, is_number, text

_SMALLEST_NUMERIC_AXIS = 3
_MECHANISM = "mechanism.name"


@dataclass(frozen=True)
class AxisRoles:
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
    def of(cls, results: Results) -> AxisRoles:
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
    parts = []
    for key in keys:
        value = text(summary.axes[key])
        if value:
            plain = is_number(summary.axes[key]) or value in ("true", "false", "null")
            parts.append(f"{results.names[key]} {value}" if plain else value)
    return ", ".join(parts)


def best(results: Results, metric: str) -> set[int]:
    """Positions of the summaries whose mean is the best of those that differ from it in the compared axis alone."""
    known = all_metrics()
    if metric not in known or metric == "heterogeneity":
        return set()
    layout = AxisRoles.of(results)
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


_NAMED_CELLS = 3


def write_tables(results: Results, out: Path | str) -> list[Path]:
    """Writes results.csv (one row a cell), summary.csv and summary.tex (mean and sd over seeds) into `out`."""
    out = Path(out)
    paths = [out / "results.csv", out / "summary.csv", out / "summary.tex"]
    keys = list(dict.fromkeys(key for row in results.rows for key in row.axes))
    with paths[0].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["cell", *keys, "seed", "status", *results.metrics, "error"])
        for row in results.rows:
            values = [row.metrics.get(name, "") for name in results.metrics]
            seed = "" if row.seed is None else row.seed
            axes = [text(row.axes.get(key, UNSET)) for key in keys]
            writer.writerow([row.id, *axes, seed, row.status, *values, row.error.get("message", "")])
    with paths[1].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        spread = [f"{name}_{what}" for name in results.metrics for what in ("mean", "sd")]
        writer.writerow([*results.axes, "cells", "done", *spread])
        for summary in results.summaries:
            both = [v for name in results.metrics for v in (summary.mean(name), summary.sd(name))]
            axes = [text(summary.axes[key]) for key in results.axes]
            writer.writerow([*axes, summary.cells, summary.done, *("" if math.isnan(v) else v for v in both)])
    paths[2].write_text(summary_table(results).latex(), encoding="utf-8")
    return paths


@dataclass(frozen=True)
class SummaryTable(Table):
    """The table for people: axes, seeds, and mean ± sd of every metric.

    Attributes:
        axes: how many columns are axes and seeds.
    """

    axes: int = 0


def summary_table(results: Results) -> SummaryTable:
    """The metrics that people look at; costs are in summary.csv."""
    metrics = results.shown_metrics
    head = [*results.names.values(), "seeds"]
    rows = []
    for summary in results.summaries:
        seeds = f"{summary.done}" if summary.done == summary.cells else f"{summary.done} of {summary.cells}"
        cells = [plus_minus(summary.mean(name), summary.sd(name)) for name in metrics]
        rows.append([*(text(summary.axes[key]) for key in results.main_axes), seeds, *cells])
    bold = {(row, len(head) + column) for column, name in enumerate(metrics) for row in best(results, name)}
    return SummaryTable([*head, *metrics], rows, "Mean ± standard deviation over the seeds", bold, axes=len(head))


@dataclass(frozen=True)
class Failure:
    """An error, and the cells that it ended."""

    kind: str
    message: str
    cells: tuple[str, ...]

    @property
    def where(self) -> str:
        """`3 cells: a, b, c`; of many the first ones."""
        named = ", ".join(self.cells[:_NAMED_CELLS])
        more = len(self.cells) - _NAMED_CELLS
        count = "1 cell" if len(self.cells) == 1 else f"{len(self.cells)} cells"
        return f"{count}: {named}" + (f" and {more} more" if more > 0 else "")


def failures(results: Results) -> list[Failure]:
    """One entry an error, however many cells share it."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in results.rows:
        if row.status == "failed":
            key = (str(row.error.get("type", "")), str(row.error.get("message", "")))
            groups.setdefault(key, []).append(row)
    return [Failure(*key, tuple(row.id for row in rows)) for key, rows in groups.items()]
