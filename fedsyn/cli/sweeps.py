"""`fedsyn sweep`, and `fedsyn report`, which writes the pages of runs and sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedsyn.cli.console import cell_progress, err_console, out_console, writing


def sweep(
    file: Annotated[Path, typer.Argument(help="YAML file of the sweep.", metavar="SWEEP.yaml")],
    workers: Annotated[int, typer.Option(min=1, help="Processes that run cells; 1 runs them in this one.")] = 1,
    ray: Annotated[str | None, typer.Option(help="Run cells on a Ray cluster; 'local' starts one here.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue: finished cells are not run again.")] = False,
    out: Annotated[Path | None, typer.Option(help="The sweep's folder; default: runs/sweeps/NAME.")] = None,
) -> None:
    """Run a base configuration along axes and seeds; leave one run directory a cell, and tables over all of them."""
    from fedsyn.sweep import load_results, load_sweep, run_sweep, write_tables
    from fedsyn.sweep.results import summary_table

    loaded = load_sweep(file)
    folder = out or Path("runs") / "sweeps" / loaded.name
    with cell_progress(loaded.name, len(loaded.cells)) as on_done, writing(folder):
        failed = run_sweep(loaded, folder, workers=workers, ray=ray, resume=resume, on_done=on_done)
        results = load_results(folder)
        paths = write_tables(results, folder)
    head, rows = summary_table(results)
    table = Table(*head, title=f"{loaded.name}: mean ± sd over seeds")
    for row in rows:
        table.add_row(*row)
    out_console.print(table)
    for cell in results.rows:
        if cell.status == "failed":
            message = f"failed: {cell.id}: {cell.error['type']}: {cell.error['message']}"
            err_console.print(message, markup=False, highlight=False, soft_wrap=True)
    out_console.print(f"tables: {', '.join(str(path) for path in paths)}", soft_wrap=True)
    if failed:
        err_console.print(f"{failed} of {len(loaded.cells)} cells failed; --resume runs them again", soft_wrap=True)
        raise typer.Exit(1)


def report(
    folder: Annotated[Path, typer.Argument(help="Directory of a run or of a sweep.", metavar="DIR")],
    real: Annotated[
        bool, typer.Option("--real/--no-real", help="Draw a simulation's real rows too, which is not private.")
    ] = True,
) -> None:
    """Turn a run or a sweep into one HTML file with plots, and into CSV and LaTeX tables."""
    from fedsyn.sweep.report import report_folder

    with writing(folder):
        paths = report_folder(folder, real=real)
    for path in paths:
        out_console.print(str(path), soft_wrap=True, highlight=False)
