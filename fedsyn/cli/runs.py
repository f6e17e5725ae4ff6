"""`fedsyn run`, and what may be asked of a configuration before: `explain`, `partition`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedsyn.cli.console import ConfigArgument, SetOption, err_console, nothing, out_console, round_progress, writing


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
    with round_progress(title, rounds if isinstance(rounds, int) else None) as advance:
        metrics = run_config(loaded, folder, advance)
    show_result(folder, metrics)


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
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        picture = folder / f"partition-{loaded.federation.partition.name}.png"
    with err_console.status("partitioning") if err_console.is_terminal else nothing():
        facts = describe_partition(loaded, picture)
    table = Table(title=f"{loaded.federation.partition.name}, {loaded.federation.clients} clients", show_header=False)
    for name, value in facts.items():
        table.add_row(name, f"{value:.6g}" if isinstance(value, float) else str(value))
    out_console.print(table)
    if picture is not None:
        out_console.print(f"plot: {picture} (drawn from the real rows: not private)")


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
    schema = public_schema(loaded)
    meaning = explained(loaded, schema.domain, client_class(loaded.mechanism.name), schema)
    text = json.dumps(meaning.to_dict(), indent=1) + "\n" if as_json else meaning.render(min(out_console.width, 100))
    sys.stdout.write(text)


def show_result(folder: Path, metrics: dict[str, float]) -> None:
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
