"""The commands `fedsyn sweep`, `fedsyn compare` and `fedsyn report`.

The first two are about several runs. The third writes the pages of runs and sweeps.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedsyn.front.cli.console import JsonOption, cell_progress, out_console, working, writing
from fedsyn.output import plain, say, shortened

if TYPE_CHECKING:
    from fedsyn.evaluation.report.tables import Table as PageTable
    from fedsyn.sweep import Results


# Widest cell of a run that is compared.
_WIDEST = 26


def sweep(
    file: Annotated[Path, typer.Argument(help="YAML file of the sweep.", metavar="SWEEP.yaml")],
    workers: Annotated[int, typer.Option(min=1, help="Number of worker processes; 1: no extra process.")] = 1,
    ray: Annotated[
        str | None, typer.Option(help="Run on the Ray cluster at this address; 'local' starts one here.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a sweep; finished runs are kept.")] = False,
    out: Annotated[Path | None, typer.Option(help="The sweep's folder; default: runs/sweeps/NAME.")] = None,
) -> None:
    """Run a base configuration for every combination of axes and seeds.

    Tables over all runs are written at the end.
    """
    from fedsyn.sweep import load_results, load_sweep, run_sweep, write_tables
    from fedsyn.sweep.results import failures

    loaded = load_sweep(file)
    folder = out or Path("runs") / "sweeps" / loaded.name
    with cell_progress(loaded.name, len(loaded.cells)) as on_done, writing(folder):
        failed = run_sweep(loaded, folder, workers=workers, ray=ray, resume=resume, on_done=on_done)
        results = load_results(folder)
        paths = write_tables(results, folder)
    _show(results)
    for failure in failures(results):
        message = f"failed: {failure.kind}: {failure.message} [{failure.where}]"
        say(message, error=True)
    say(f"tables: {', '.join(str(path) for path in paths)}")
    say(f"the page: fedsyn report {shlex.quote(str(folder))}")
    if failed:
        say(f"{failed} of {len(loaded.cells)} cells failed; --resume runs them again", error=True)
        raise typer.Exit(1)


def _show(results: Results) -> None:
    """Prints the tables of a sweep.

    There is one a metric where several axes vary. Otherwise one has all metrics, unless a terminal is too narrow: then
    one a metric is printed, with all settings in one column.
    """
    from fedsyn.sweep.tables import grid_tables, summary_table

    for grid in grid_tables(results):
        shown = Table(*grid.head, title=f"{results.caption or results.name}: {grid.caption}")
        for row in _bold(grid):
            shown.add_row(*row)
        out_console.print(shown)
    if results.compared != results.main:
        return
    table = summary_table(results)
    title = f"{results.caption or results.name}: mean ± sd over seeds"
    cells = _bold(table)
    whole = Table(*table.head, title=title)
    for row in cells:
        whole.add_row(*row)
    if Measurement.get(out_console, out_console.options.update(width=10_000), whole).maximum <= out_console.width:
        out_console.print(whole)
        return
    for metric in range(table.axes, len(table.head)):
        narrow = Table(title=f"{title}: {table.head[metric]}")
        narrow.add_column(", ".join(table.head[: table.axes - 1]), overflow="fold")
        narrow.add_column("seeds", no_wrap=True)
        narrow.add_column(table.head[metric], no_wrap=True, justify="right")
        for row in cells:
            narrow.add_row(
                ", ".join(cell.plain for cell in row[: table.axes - 1] if cell.plain), row[table.axes - 1], row[metric]
            )
        out_console.print(narrow)


def _bold(table: PageTable) -> list[list[Text]]:
    return [
        [Text(plain(cell), "bold" if (i, j) in table.best else "") for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Directories of two or more runs.", metavar="RUN RUN...")],
    as_json: JsonOption = False,
) -> None:
    """Show runs side by side.

    You see how their settings, guarantees and metrics differ.
    """
    from fedsyn.runs.compare import ComparedRun, rows_of

    runs = list(map(ComparedRun.read, folders))
    if as_json:
        say(json.dumps([run.to_dict() for run in runs], indent=1))
        return
    groups = rows_of(runs)
    label = max(len(what) for rows in groups.values() for what, _ in rows)
    abreast = max(1, (out_console.width - label) // (_WIDEST + 2))
    for start in range(0, len(runs), abreast):
        block = slice(start, start + abreast)
        table = Table("", box=None, padding=(0, 2, 0, 0))
        for folder in folders[block]:
            table.add_column(_in_column(str(folder)), justify="right", no_wrap=True)
        for group, rows in groups.items():
            table.add_row()
            table.add_row(group)
            for what, texts in rows:
                table.add_row(Text(what), *map(_in_column, texts[block]))
        out_console.print(table, highlight=False)
    starred = any(text.endswith("*") for rows in groups.values() for _, texts in rows for text in texts)
    say(f"{'* the best of its row. ' if starred else ''}Metrics of real rows are not for publication.")


def _in_column(text: str) -> Text:
    """Returns a text of a run as narrow as its column."""
    return Text(shortened(plain(text, keep=""), _WIDEST))


def report(
    folder: Annotated[Path, typer.Argument(help="Directory of a run or of a sweep.", metavar="DIR")],
    real: Annotated[
        bool,
        typer.Option(
            "--real/--no-real",
            help="Include comparisons with a simulation's real rows. Without it, the page may be published.",
        ),
    ] = True,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Table of the run's real rows; may be repeated, once for each client."),
    ] = None,
) -> None:
    """Write an HTML page and CSV tables for a run or sweep."""
    from fedsyn.runs.directory import not_for_publication
    from fedsyn.sweep.report import report_folder

    with writing(folder), working("writing the page"):
        paths = report_folder(folder, real=real, data=data or ())
    for path in paths:
        say(str(path))
    private = [] if real else not_for_publication(folder, paths)
    if private:
        names = ", ".join(str(path.relative_to(folder)) for path in private)
        say(f"not for publication: {names} (of real rows)")
