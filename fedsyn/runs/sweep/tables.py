"""Tables of a sweep: as CSV and LaTeX files, and for people, with the best of what is compared in bold."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from fedsyn.evaluation.report.tables import Table, plus_minus
from fedsyn.runs.sweep.comparison import best
from fedsyn.runs.sweep.results import UNSET, Results, Row, is_quality, short_names, text

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
    """The metrics that say how good a table is; seconds if there is no such metric (costs are in summary.csv)."""
    metrics = [name for name in results.metrics if is_quality(name)] or [n for n in results.metrics if n == "seconds"]
    head = [*short_names(results.main_axes), "seeds"]
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
