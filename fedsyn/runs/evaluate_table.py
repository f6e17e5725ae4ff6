"""`fedsyn evaluate TABLE --federated CONFIG`: holders are asked how good a table is, within a budget of its own."""

from __future__ import annotations

from pathlib import Path

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.evaluation.federated.intervals import FederatedQuality
from fedsyn.registry import strategy_class
from fedsyn.runs.deployment import Progress, run_elsewhere, superlink_of
from fedsyn.runs.directory import read_facts, reading_of
from fedsyn.runs.engines import run_store, simulation_grid
from fedsyn.runs.given_table import ask, with_federated_evaluation
from fedsyn.runs.prepare import prepare
from fedsyn.table.data import encode_file


def evaluate_table(config: RunConfig, table: Path, out: Path, progress: Progress | None = None) -> FederatedQuality:
    """Ask the holders of a federation how good a table is.

    Args:
        config: of their federation: who they are, how sums are formed, and the budget, which is spent on this alone.
            Its mechanism is not run. A simulation, or a deployment: the holders' nodes charge it like any run.
        table: rows by the holders' schema.
        out: folder for federated_evaluation.json, ledger.json and the rounds; made, or empty.
        progress: of a deployment: told how the run is called and for whom it waits, and called with its round.

    Raises:
        InputError: an open schema, a table of another one, or a folder that is in use; nothing was spent.
        FedsynError: the holders could not be asked, or too few answered.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: choose a folder that does not exist yet, or an empty one")
    config = with_federated_evaluation(config)
    strategy_class(config.mechanism.name).Client.Contract.check(config)
    out.mkdir(parents=True, exist_ok=True)
    with run_store(out) as store:
        prepared = prepare(config, store)
        if prepared.schema.open:
            raise ConfigError("--federated: something of the schema is private; a table made elsewhere needs all of it")
        codes = encode_file(table, prepared.schema, reading_of(table, prepared.schema))
        if not len(codes):
            raise ConfigError(f"{table} has no rows")
        if config.runtime.engine == "deployment":
            run_elsewhere(config, prepared, out, superlink_of(config), progress, table=codes)
        else:
            with simulation_grid(config, prepared) as grid:
                ask(config, prepared, grid, out, codes)
    return FederatedQuality.of_document(read_facts(out / FederatedQuality.FILE))
