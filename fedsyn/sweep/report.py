"""`fedsyn report`: of a sweep, one page with settings, tables and plots over the seeds, and CSV and LaTeX tables.

A folder that holds a single run is passed on to `fedsyn.runs.report`.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn import yamlio
from fedsyn.errors import DataError
from fedsyn.report import figures
from fedsyn.report.html import picture, table, write_page
from fedsyn.report.tables import number
from fedsyn.runs.directory import synthetic_file
from fedsyn.runs.report import write_full_report
from fedsyn.sweep.results import (
    SWEEP_FILE,
    UNSET,
    Results,
    Summary,
    is_quality,
    load_results,
    short_names,
    summary_table,
    text,
    write_tables,
)

# A run directory without one of these is not that of a finished run.
_NEEDED = ("config.yaml", "metrics.json", "ledger.json", "rounds.jsonl")
# More lines than this in one panel cannot be told apart.
_MOST_SERIES = 10
_SMALLEST_NUMERIC_AXIS = 3


def report_folder(folder: Path | str, *, real: bool = True) -> list[Path]:
    """Reports on a run directory or a sweep's folder; returns the files written.

    Args:
        folder: what `fedsyn run` or `fedsyn sweep` left.
        real: draw a simulation's real rows beside the synthetic ones.

    Raises:
        DataError: the folder holds neither.
    """
    folder = Path(folder)
    if (folder / SWEEP_FILE).is_file():
        return write_sweep_report(folder)
    needed = (*_NEEDED, synthetic_file(folder).name)
    missing = [name for name in needed if not (folder / name).is_file()]
    if len(missing) == len(needed):
        raise DataError(f"{folder} is neither the directory of a run nor of a sweep")
    if missing:
        raise DataError(f"{folder} is not a finished run: {', '.join(missing)} is missing")
    return write_full_report(folder, real=real)


def write_sweep_report(out: Path) -> list[Path]:
    """Writes report.html, results.csv, summary.csv and summary.tex into a sweep's folder. Returns the paths."""
    results = load_results(out)
    counts = {status: sum(row.status == status for row in results.rows) for status in ("done", "failed", "missing")}
    parts = [
        f"<h1>{escape(results.name)}</h1>",
        f"<p>{len(results.rows)} cells: {counts['done']} done, {counts['failed']} failed, "
        f"{counts['missing']} not run yet.</p>",
        '<p class="warn">Metrics compare with the real rows: they are outside the guarantee of any run and are not '
        "for publication unless the table is public.</p>",
        "<h2>Mean ± standard deviation over the seeds</h2>",
        table(*summary_table(results)),
        _plots(results),
        _failures(results),
        "<h2>Cells</h2>",
        table(*_cells(results)),
        f"<h2>Settings</h2><pre>{escape(_settings(results.document))}</pre>",
    ]
    page = write_page(out / "report.html", results.name, "".join(parts))
    return [page, *write_tables(results, out)]


def _plots(results: Results) -> str:
    """The metrics, costs left out, against the main axis; a line per combination of the others."""
    metrics = [name for name in results.metrics if is_quality(name)] or [
        name for name in results.metrics if name == "seconds"
    ]
    summaries = [summary for summary in results.summaries if summary.done]
    if not metrics or not summaries or not results.main_axes:
        return ""
    main = main_axis(results)
    values = list({text(summary.axes[main]): summary.axes[main] for summary in summaries}.values())
    numeric = all(_is_number(value) for value in values)
    position = {text(value): float(value) if numeric else index for index, value in enumerate(values)}
    lines: dict[str, list[Summary]] = {}
    for summary in summaries:
        rest = [text(summary.axes[key]) for key in results.main_axes if key != main]
        lines.setdefault(", ".join(rest), []).append(summary)
    shown = dict(list(lines.items())[:_MOST_SERIES])
    note = f"<p>The first {len(shown)} of {len(lines)} lines.</p>" if len(shown) < len(lines) else ""
    panels = {
        metric: [_series(name, group, metric, main, position) for name, group in shown.items()] for metric in metrics
    }
    png = figures.over_axis(panels, main, None if numeric else [text(value) for value in values])
    others = ", ".join(key for key in results.main_axes if key != main)
    legend = f"<p>Lines: {escape(others)}. Bars: one standard deviation over the seeds.</p>" if others else ""
    return f"<h2>Against {escape(main)}</h2>{legend}{note}{picture(png, f'metrics against {main}')}"


def main_axis(results: Results) -> str:
    """The numeric axis with most values, at least three; else the axis with most values."""

    def values(key: str) -> list[Any]:
        return list({text(summary.axes[key]): summary.axes[key] for summary in results.summaries}.values())

    numeric = [key for key in results.main_axes if all(_is_number(value) for value in values(key))]
    numeric = [key for key in numeric if len(values(key)) >= _SMALLEST_NUMERIC_AXIS]
    return max(numeric or results.main_axes, key=lambda key: len(values(key)))


def _series(name: str, group: list[Summary], metric: str, main: str, position: Mapping[str, float]) -> figures.Series:
    points = sorted((position[text(s.axes[main])], s.mean(metric), s.sd(metric)) for s in group)
    x, mean, sd = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    finite = np.isfinite(mean)
    return figures.Series(name, x[finite], mean[finite], sd[finite])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _failures(results: Results) -> str:
    failed = [row for row in results.rows if row.status == "failed"]
    if not failed:
        return ""
    rows = [[row.id, str(row.error.get("type", "")), str(row.error.get("message", ""))] for row in failed]
    return "<h2>Failed cells</h2>" + table(("cell", "error", "message"), rows)


def _cells(results: Results) -> tuple[list[str], list[list[str]]]:
    head = [*short_names(results.main_axes), "seed", "status", *results.metrics, "run directory"]
    body = []
    for row in results.rows:
        values = [number(row.metrics[name]) if name in row.metrics else "" for name in results.metrics]
        axes = [text(row.axes.get(key, UNSET)) for key in results.main_axes]
        body.append([*axes, text(row.seed), row.status, *values, f"cells/{row.id}"])
    return head, body


def _settings(document: Mapping[str, Any]) -> str:
    dumped = yamlio.dumps(dict(document))
    return dumped if len(dumped) < 100_000 else dumped[:100_000] + "\n..."
