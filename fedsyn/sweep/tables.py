"""Tables of a sweep: as CSV and LaTeX files, and for people, with the best of what is compared in bold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedsyn.evaluation.real.metrics import all_metrics
from fedsyn.evaluation.report.tables import Table, plus_minus
from fedsyn.files import write_text
from fedsyn.output import cell
from fedsyn.sweep.results import UNSET, Results, Row, Summary, is_number, text


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
    compared = results.compared or results.main
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
    cells = [
        [row.id, *(text(row.axes.get(key, UNSET)) for key in keys)]
        + ["" if row.seed is None else row.seed, row.status]
        + [row.metrics.get(name) for name in results.metrics]
        + [row.error.get("message", "")]
        for row in results.rows
    ]
    head = ["cell", *keys, "seed", "status", *results.metrics, "error"]
    write_text(paths[0], _csv(head, cells))
    spread = [f"{name}_{what}" for name in results.metrics for what in ("mean", "sd")]
    combinations = [
        [*(text(summary.axes[key]) for key in results.axes), summary.cells, summary.done]
        + [value for name in results.metrics for value in (summary.mean(name), summary.sd(name))]
        for summary in results.summaries
    ]
    head = [*results.axes, "cells", "done", *spread]
    write_text(paths[1], _csv(head, combinations))
    write_text(paths[2], summary_table(results).latex())
    return paths


def _csv(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    made: str = pd.DataFrame([list(map(cell, row)) for row in rows], columns=list(map(cell, head))).to_csv(index=False)
    return made


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
