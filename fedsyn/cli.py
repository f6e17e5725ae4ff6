"""The command line, `fedsyn COMMAND`.

Exit codes: 0 success, 1 the run failed, 2 bad configuration or bad data, with one message and no traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedsyn import __version__
from fedsyn.cli_party import app as party_app
from fedsyn.errors import ConfigError, FedsynError, InputError

app = typer.Typer(
    name="fedsyn",
    help="Federated, differentially private synthetic tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
schema_app = typer.Typer(help="Schemas: the public description of a table.", no_args_is_help=True)
app.add_typer(schema_app, name="schema")
app.add_typer(party_app, name="party")

out_console = Console()
err_console = Console(stderr=True)

ConfigArgument = Annotated[Path, typer.Argument(help="YAML configuration of the run.", metavar="CONFIG.yaml")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.KEY=VALUE", help="Override one key; may be repeated."),
]


@app.command()
def run(
    config: ConfigArgument,
    set_: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default: a new one under runs/.")] = None,
) -> None:
    """Run a configuration and leave the synthetic table, the model, the ledger and the metrics in a directory."""
    from fedsyn.loading import load_config
    from fedsyn.runs.directory import default_out
    from fedsyn.runs.engines import run as run_config

    loaded = load_config(config, set_ or ())
    folder = out or default_out(loaded)
    rounds = loaded.mechanism.options.get("rounds")
    title = f"{loaded.mechanism.name} on {Path(loaded.data.source).name}"
    with _progress(title, rounds if isinstance(rounds, int) else None) as advance:
        metrics = run_config(loaded, folder, advance)
    _show_result(folder, metrics)


@app.command()
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
    with _cell_progress(loaded.name, len(loaded.cells)) as on_done, _writing(folder):
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


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Directory of a run or of a sweep.", metavar="DIR")],
    real: Annotated[
        bool, typer.Option("--real/--no-real", help="Draw a simulation's real rows too, which is not private.")
    ] = True,
) -> None:
    """Turn a run or a sweep into one HTML file with plots, and into CSV and LaTeX tables."""
    from fedsyn.sweep.report import report_folder

    with _writing(folder):
        paths = report_folder(folder, real=real)
    for path in paths:
        out_console.print(str(path), soft_wrap=True, highlight=False)


@app.command()
def partition(
    config: ConfigArgument,
    set_: SetOption = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw client sizes and, for clustering, the embedding.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the plot; default: runs/.")] = None,
) -> None:
    """Split a configuration's table as its run would, and describe the clients."""
    from fedsyn.loading import load_config
    from fedsyn.runs.describe import describe_partition

    loaded = load_config(config, set_ or ())
    picture = None
    if plot:
        folder = out or Path("runs")
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        picture = folder / f"partition-{loaded.federation.partition.name}.png"
    with err_console.status("partitioning") if err_console.is_terminal else _nothing():
        facts = describe_partition(loaded, picture)
    table = Table(title=f"{loaded.federation.partition.name}, {loaded.federation.clients} clients", show_header=False)
    for name, value in facts.items():
        table.add_row(name, f"{value:.6g}" if isinstance(value, float) else str(value))
    out_console.print(table)
    if picture is not None:
        out_console.print(f"plot: {picture} (drawn from the real rows: not private)")


@app.command()
def explain(
    config: ConfigArgument,
    set_: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: the same as JSON.")] = False,
) -> None:
    """Print what a run may ever ask of a data holder, and what that may cost. Reads no row."""
    import json

    from fedsyn.loading import load_config
    from fedsyn.protocol.explain import explain as explained
    from fedsyn.registry import client_class
    from fedsyn.runs.prepare import public_schema

    loaded = load_config(config, set_ or ())
    meaning = explained(loaded, public_schema(loaded).domain, client_class(loaded.mechanism.name))
    text = json.dumps(meaning.to_dict(), indent=1) + "\n" if as_json else meaning.render(min(out_console.width, 100))
    sys.stdout.write(text)


@app.command()
def identity(file: Annotated[Path, typer.Argument(help="New file for the private key.", metavar="FILE")]) -> None:
    """Make a data holder's signing key; prints the public half, which belongs into every holder's roster."""
    from fedsyn.aggregation.identities import new_identity

    out_console.print(new_identity(file), soft_wrap=True, highlight=False)


@app.command()
def mechanisms(
    statements: Annotated[
        bool, typer.Option("--statements", help="Print every privacy statement, as Markdown (docs/statements.md).")
    ] = False,
) -> None:
    """List the mechanisms."""
    from fedsyn.registry import contract_class
    from fedsyn.registry import mechanisms as known

    if statements:
        from fedsyn.protocol.explain import statements_page

        sys.stdout.write(statements_page({name: contract_class(name) for name in known()}))
        return
    table = Table("name", "what", "source")
    for name, entry in known().items():
        table.add_row(name, entry.summary, entry.source)
    out_console.print(table)


@app.command()
def datasets() -> None:
    """List the registered tables, and where they come from."""
    from fedsyn.data import dataset_names, describe

    table = Table("name", "rows", "label", "from")
    for name in dataset_names():
        entry = describe(name)
        table.add_row(name, *_dataset_facts(entry))
    table.add_row("synthfs", "any", "", "generated (Maddock et al. 2024, appendix B.1.1)")
    out_console.print(table)


@schema_app.command("draft")
def schema_draft(
    file: Annotated[str, typer.Argument(help="CSV or Parquet file.", metavar="FILE")],
    bins: Annotated[int, typer.Option(min=1, help="Bins of numeric columns.")] = 32,
    label: Annotated[str | None, typer.Option(help="Label column.")] = None,
    separator: Annotated[str, typer.Option(help="What stands between the cells of a CSV file.")] = ",",
    out: Annotated[Path | None, typer.Option(help="Where to write the draft; default: standard output.")] = None,
) -> None:
    """Propose a schema from a file. What was read from the data is marked; a run refuses it until it is approved."""
    from fedsyn.data import load_table
    from fedsyn.schema import draft_schema

    options = {} if separator == "," else {"separator": separator}
    draft = draft_schema(load_table(file, options), bins=bins, label=label)
    if out is None:
        sys.stdout.write(draft.dumps())
        return
    with _writing(out):
        draft.save(out)
    err_console.print(
        f"{out}: a draft. Replace what is marked 'drafted' by values that are public knowledge, "
        "then set 'approved: true'."
    )


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        out_console.print(__version__)
        raise typer.Exit


def _dataset_facts(entry: Any) -> tuple[str, str, str]:
    return str(getattr(entry, "rows", "")), str(entry.schema_.label or ""), str(entry.origin)


@contextmanager
def _progress(title: str, rounds: int | None) -> Iterator[Any]:
    """A callback for finished rounds: a bar on a terminal, silence elsewhere."""
    if not err_console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err_console, transient=True) as bar:
        task = bar.add_task(f"{title}, preparing", total=rounds)

        def advance(record: Any) -> None:
            selected = f": {record.selected[0]}" if record.selected else ""
            bar.update(task, completed=record.round, description=f"{title}, round {record.round}{selected}")

        yield advance


@contextmanager
def _cell_progress(title: str, cells: int) -> Iterator[Any]:
    """A callback for finished cells: a bar on a terminal, silence elsewhere."""
    if not err_console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err_console, transient=True) as bar:
        task = bar.add_task(title, total=cells)

        def advance(cell: Any, facts: dict[str, Any]) -> None:
            bar.update(task, advance=1, description=f"{title}: {cell.id} {facts['status']}")

        yield advance


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns a failure to write into a message."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _show_result(folder: Path, metrics: dict[str, float]) -> None:
    import json

    from fedsyn.runs.directory import synthetic_file

    ledger = json.loads((folder / "ledger.json").read_text(encoding="utf-8"))
    table = Table(show_header=False)
    for name, value in metrics.items():
        table.add_row(name, f"{value:.6g}")
    table.add_row("epsilon", f"{ledger['epsilon']:.6g} at delta {ledger['delta']:g}")
    out_console.print(table)
    if not ledger["private"]:
        reasons = "; ".join(ledger["not_private_because"])
        out_console.print(f"[yellow]do not release this table ({reasons})[/yellow]", highlight=False)
    if metrics.get("dropped"):
        out_console.print(
            f"[yellow]{metrics['dropped']:g} replies of clients could not be used: see rounds.jsonl[/yellow]",
            highlight=False,
        )
    out_console.print(f"synthetic table: {synthetic_file(folder)}", soft_wrap=True)
    out_console.print(f"privacy ledger:  {folder / 'ledger.json'}", soft_wrap=True)
    out_console.print(f"report:          {folder / 'report.html'}", soft_wrap=True)


def main() -> None:
    """Entry point: turns fedsyn's errors into one message and an exit code."""
    try:
        app(standalone_mode=True)
    except InputError as error:
        err_console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except FedsynError as error:
        err_console.print(f"failed: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        err_console.print("interrupted")
        sys.exit(130)


if __name__ == "__main__":
    main()
