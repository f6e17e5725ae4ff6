"""Reports on a sweep.

A report is one page with tables over the seeds, and CSV files.

A folder that holds a single run is passed on to `fedsyn.runs.report`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedsyn import yamlio
from fedsyn.errors import ConfigError, DataError
from fedsyn.evaluation.inputs import Metric
from fedsyn.evaluation.real.metrics import all_metrics
from fedsyn.evaluation.report.page import Page, Part
from fedsyn.evaluation.report.tables import Table, number
from fedsyn.runs.directory import PAGE_FILE, page_file
from fedsyn.runs.report import write_full_report
from fedsyn.sweep.results import (
    SWEEP_FILE,
    UNSET,
    Results,
    failures,
    load_results,
    text,
    write_tables,
)
from fedsyn.sweep.tables import TIES, grid_tables, summary_table

# A run directory without one of these is not that of a finished run.
_MOST_SETTINGS = 100_000  # characters that the page shows
_NEEDED = ("config.yaml", "metrics.json", "ledger.json", "rounds.jsonl")


def report_folder(folder: Path | str, *, real: bool = True, data: Sequence[str] = ()) -> list[Path]:
    """Reports on a run directory or a sweep's folder.

    Returns the files written.

    Args:
        folder: what `fedsyn run` or `fedsyn sweep` left.
        real: show what reads a simulation's real rows; otherwise the page of a run is for publication.
        data: the tables of real rows of a run; see `write_full_report`.

    Raises:
        DataError: the folder holds neither.
        ConfigError: data for a page that reads no rows.
    """
    folder = Path(folder)
    if data and (not real or (folder / SWEEP_FILE).is_file()):
        raise ConfigError("--data: real rows are read for the page of one run alone, and not with --no-real")
    if (folder / SWEEP_FILE).is_file():
        return write_sweep_report(folder)
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if len(missing) == len(_NEEDED):
        raise DataError(f"{folder} is neither the directory of a run nor of a sweep")
    if missing:
        raise DataError(f"{folder} is not a finished run: {', '.join(missing)} is missing")
    return write_full_report(folder, real=real, data=data)


def write_sweep_report(out: Path) -> list[Path]:
    """Writes report.html, results.csv and summary.csv.

    Returns their paths.
    """
    results = load_results(out)
    counts = {status: sum(row.status == status for row in results.rows) for status in ("done", "failed", "missing")}
    page = Page(
        f"Sweep: {results.name}",
        Part(
            "lead",
            f"{_first_sentence(results)}: {counts['done']} done, {counts['failed']} failed, {counts['missing']} not "
            "run yet.",
        ),
        Part(
            "warning",
            (
                "Not for publication unless the table is public.",
                "Metrics compare with the real rows: they are outside the guarantee of any run.",
            ),
        ),
    )
    shown, grids = summary_table(results), grid_tables(results)
    known = {results.label(name): metric for name, metric in all_metrics().items()}
    told = [Part("soft", f"{name}: {_what(known[name])}.") for name in shown.head[shown.axes :] if name in known]
    if grids:
        page.section(results.caption or "Side by side", Part("soft", TIES), *grids, *told)
        page.section("All metrics", replace(shown, folded="every combination"))
    else:
        page.section(results.caption or shown.caption, Part("soft", TIES), shown, *told)
    ended = failures(results)
    if ended:
        rows = [(failure.message or failure.kind, failure.kind, failure.where) for failure in ended]
        page.section("Failed cells", Table(("message", "error", "cells"), rows))
    page.section("Cells", _cells(results, out))
    try:
        document = yamlio.dumps(results.document)
    except RecursionError:
        raise DataError(f"{out / SWEEP_FILE} is damaged: run the sweep again") from None
    page.section("Settings", Part("verbatim", document[:_MOST_SETTINGS] + "\n..." * (len(document) > _MOST_SETTINGS)))
    return [page.write(out / PAGE_FILE), *write_tables(results, out)]


def _first_sentence(results: Results) -> str:
    axes = [f"{name} ({len(results.values(key))})" for key, name in results.names.items()]
    seeds = len({row.seed for row in results.rows})
    over = f" over {', '.join(axes)}" if axes else ""
    return f"{len(results.rows)} cells{over}, {seeds} seed{'s' if seeds > 1 else ''}"


def _what(metric: Metric) -> str:
    return f"{metric.summary}; {metric.better} is better"


def _cells(results: Results, out: Path) -> Table:
    head = ["run", *results.names.values(), "seed", "status", *results.metrics]
    body, links = [], {}
    for row in results.rows:
        values = [number(row.metrics[name]) if name in row.metrics else "" for name in results.metrics]
        axes = [text(row.axes.get(key, UNSET)) for key in results.main_axes]
        body.append([row.id, *axes, text(row.seed), row.status, *values])
        if page := page_file(out / "cells" / row.id):
            links[row.id] = f"cells/{row.id}/{page.name}"
    return Table(head, body, "Every cell, with a link to its own page", links=links)
