"""The commands `fedsyn run`, `demo`, `explain` and `partition`.

The last two look at a configuration before it runs.
"""

from __future__ import annotations

import json
import shlex
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedsyn.errors import ConfigError
from fedsyn.files import shipped
from fedsyn.front.cli.console import (
    ConfigArgument,
    ForceOption,
    JsonOption,
    SetOption,
    out_console,
    round_progress,
    say_line,
    say_verdict,
    working,
)
from fedsyn.output import counted, plain, say

if TYPE_CHECKING:
    from fedsyn.config import RunConfig

OutOption = Annotated[Path | None, typer.Option(help="Run directory; default: a new one under runs/.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Continue the unfinished deployment run in --out where it stopped.")
]


def run(
    config: ConfigArgument,
    set_: SetOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    resume: ResumeOption = False,
    operator_key: Annotated[
        Path | None, typer.Option(help="Sign the run's order with this key (runtime.operator_key).", metavar="FILE")
    ] = None,
) -> None:
    """Run a configuration and write its results to a directory.

    The results are the synthetic table, the model, the ledger and the metrics.
    """
    from fedsyn.loading import load_config

    signed = [] if operator_key is None else [f"runtime.operator_key={json.dumps(str(operator_key))}"]
    carry_out(load_config(config, [*(set_ or ()), *signed]), out, force, resume)


def demo(
    out: OutOption = None,
    force: ForceOption = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the run's page in a browser.")] = False,
) -> None:
    """Run an example: twelve holders of a real table.

    It uses secure sums, and makes a synthetic table that may be released.
    """
    from fedsyn.loading import load_config
    from fedsyn.runs.directory import page_file

    folder = carry_out(load_config(shipped("configs/demo.yaml")), out, force)
    page = (page_file(folder) or folder).resolve()
    if open_ and not webbrowser.open(page.as_uri()):
        say(f"no browser was found; open {page}", error=True)


def carry_out(config: RunConfig, out: Path | None, force: bool, resume: bool = False) -> Path:
    """Runs a configuration, and shows its progress and result.

    Returns the run directory.

    Raises:
        InputError: nothing was run.
        FedsynError: the run did not finish, and why.
    """
    from fedsyn.front.synthesizer import planned_rounds
    from fedsyn.runs.deployment import interrupted
    from fedsyn.runs.directory import default_out
    from fedsyn.runs.engines import run as run_config
    from fedsyn.runs.submitted import require_free

    if resume and out is None:
        raise ConfigError("--resume goes on with the run in --out DIR; name it")
    folder = out or default_out(config)
    require_free(folder, resume=resume, force=force)
    title = f"{config.mechanism.name} on {Path(config.data.source).name}"
    try:
        with round_progress(title, planned_rounds(config)) as advance:
            metrics = run_config(config, folder, advance, resume=resume)
    except KeyboardInterrupt:
        if sentence := interrupted(config, folder):
            say(sentence, error=True)
        raise
    show_result(folder, config, metrics)
    return folder


def partition(config: ConfigArgument, set_: SetOption = None) -> None:
    """Partition the table as a run would, and describe the clients.

    It imports nothing that a file names.
    """
    from fedsyn.loading import load_config
    from fedsyn.registry import installed_only

    with installed_only(), working("partitioning"):
        loaded = load_config(config, set_ or ())
        facts = _described(loaded)
    table = Table(
        title=f"{loaded.federation.partition.name}, {counted(loaded.federation.clients, 'client')}", show_header=False
    )
    for name, value in facts.items():
        table.add_row(name, f"{value:.6g}" if isinstance(value, float) else str(value))
    out_console.print(table)


def _described(config: RunConfig) -> dict[str, float | int | str]:
    """Splits the table as the run would, and describes the clients.

    Returns their sizes and heterogeneity.
    """
    import numpy as np

    from fedsyn.evaluation.real.marginals import client_heterogeneity
    from fedsyn.runs.prepare import split_tables
    from fedsyn.table.counting.workload import build_workload

    tables = split_tables(config)
    domain = tables.schema.domain
    sizes = np.array([len(part) for part in tables.parts])
    workload = build_workload(config.workload, domain)
    return {
        "rows": int(sizes.sum()),
        "clients": len(sizes),
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
        "heterogeneity": float(np.mean(client_heterogeneity(tables.train, domain, workload, tables.parts))),
    }


def explain(
    config: ConfigArgument,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a run may ask of a data holder.

    What that may cost is printed, too. This reads no rows, and imports nothing that a file names.
    """
    from fedsyn.loading import load_config
    from fedsyn.protocol.explain import explain as explained
    from fedsyn.registry import client_class, installed_only
    from fedsyn.runs.prepare import public_schema

    with installed_only():
        loaded = load_config(config, set_ or ())
        schema = public_schema(loaded)
        meaning = explained(loaded, schema.domain, client_class(loaded.mechanism.name), schema)
    text = json.dumps(meaning.to_dict(), indent=1) if as_json else meaning.render(min(out_console.width, 100))
    say(text.rstrip("\n"))


def _say_persons(folder: Path, config: RunConfig, unprotected: bool) -> None:
    """Prints who a person is, or which columns of persons are unprotected."""
    from fedsyn.table.schema import Schema
    from fedsyn.table.schema.approval import person_columns
    from fedsyn.table.schema.persons import persons_in_words
    from fedsyn.table.schema.vocabulary import PROTECT_PERSONS

    schema = Schema.load(folder / "schema.yaml").rows
    if config.privacy.unit == "person" and schema.persons is not None:
        say_line("persons", plain(persons_in_words(schema.persons)))
    for name in person_columns(schema) if unprotected else ():
        say_line("persons", f"'{name}' says which person a row is of; {PROTECT_PERSONS}", "yellow")


def _say_tables(folder: Path) -> None:
    """Prints where the tables of a run are."""
    from fedsyn.runs.directory import synthetic_file
    from fedsyn.runs.finish import files_apart
    from fedsyn.table.schema import Schema

    schema = Schema.load(folder / "schema.yaml")
    apart = files_apart(folder, schema)
    for file in apart:
        say_line("synthetic table", str(file))
    say_line("both joined" if apart else "synthetic table", str(synthetic_file(folder)))
    if (persons := schema.persons) is not None and persons.tables is not None:
        say_line("one table", f"of rows: a run for single rows knows no persons, so {persons.tables[0]} have no table")


def show_result(folder: Path, config: RunConfig, metrics: dict[str, float]) -> None:
    """Prints what a person wants to know first of a finished run.

    It says where the table is, whether it may be released, and how good it is.
    """
    from fedsyn.evaluation.predicted import PredictedQuality
    from fedsyn.evaluation.real.metrics import is_quality
    from fedsyn.evaluation.record import PREDICTED_FILE, sentence
    from fedsyn.evaluation.report.evaluations import figure_of, verdict_of
    from fedsyn.privacy.unit import counted_as, promised, protects
    from fedsyn.protocol.record import RoundRecord
    from fedsyn.runs.directory import PAGE_FILE, page_file, read_facts, read_rounds
    from fedsyn.runs.report import holders_of, load_evaluations, run_alarms

    ledger = read_facts(folder / "ledger.json")
    _say_tables(folder)
    if ledger["private"]:
        epsilon, _ = promised(ledger)
        say_line("privacy", f"may be released: epsilon {epsilon:.4g} at delta {ledger['delta']:g}, {protects(ledger)}")
        _say_persons(folder, config, bool(ledger.get("persons")))
    else:
        reasons = "; ".join(ledger["not_private_because"])
        say_line("privacy", f"do not release this table ({reasons})", "yellow")
    if holders_of(config, ledger) < config.federation.clients:
        name, clients = config.mechanism.name, config.federation.clients
        say_line(
            "holders", f"'{name}' needs one holder: it took the rows of all {clients:,} clients for one's", "yellow"
        )
    for title, text in run_alarms(folder, config):
        say_line("warning", f"{title} {text}", "yellow")
    page, found = page_file(folder), load_evaluations(folder)
    if absent := [PREDICTED_FILE] * (not (folder / PREDICTED_FILE).is_file()) + ["the page"] * (page is None):
        say_line("unfinished", f"{', '.join(absent)}: `fedsyn report {folder}` makes it, and costs nothing", "yellow")
    for evaluation in found:
        for clause in evaluation.seen_unlisted() if isinstance(evaluation, PredictedQuality) else ():
            say_line("not listed", sentence(clause), "yellow")
    if (verdict := next(filter(None, map(verdict_of, found)), None)) is not None:
        say_verdict(verdict)
    for evaluation in found:
        if figure := figure_of(evaluation):
            say_line(evaluation.LABEL, figure)
    measured = [f"{name} {value:.4g}" for name, value in metrics.items() if is_quality(name)]
    if measured:
        say_line("metrics", f"{', '.join(measured)} (of real rows: not for publication)")
    if config.data.test_fraction:
        whose = counted_as(config.privacy.unit)[1]
        share = f"{config.data.test_fraction:.4g} of the {whose}"
        say_line("held out", f"{share}, for evaluation: they are not in the table")
    for line in read_rounds(folder, measured=False)[:1]:
        for missing in RoundRecord.read(line).not_joined:
            say_line("not joined", str(missing), "yellow")
    if metrics.get("dropped"):
        say_line("dropped", f"{metrics['dropped']:g} replies could not be used: see rounds.jsonl", "yellow")
    say_line("ledger", str(folder / "ledger.json"))
    if page is not None:
        whose = "beside real rows, not for publication" if page.name == PAGE_FILE else "may be published"
        say_line("page", f"{page} ({whose})")
    more = f"more {counted_as(config.privacy.unit)[1]}"
    say_line(more, f"fedsyn sample {shlex.quote(str(folder))} --rows 1000 --out more.csv")
