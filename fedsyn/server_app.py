"""Flower entry point of the server side: the same for Flower's simulation engine and for a deployment."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from fedsyn.flower import Context, Grid, ServerApp
from fedsyn.flower.patient import patient
from fedsyn.runs.directory import default_out, record_error
from fedsyn.runs.finish import finish
from fedsyn.runs.prepare import Prepared, deployed, prepare
from fedsyn.runs.run_config import config_of, store_of
from fedsyn.runs.serve import serve, told_what_was_spent
from fedsyn.schema import Schema

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the configured mechanism over the Grid and writes the run directory.

    The run configuration names either a configuration of this app (`config`, with `set` assignments separated by
    semicolons; the number of simulated nodes decides the number of clients) or carries a resolved one with a prepared
    store, or with a deployment's schema (as `fedsyn run` does).
    """
    started = time.perf_counter()
    grid = patient(grid)
    run_config = context.run_config
    out = Path(str(run_config["out"])) if run_config.get("out") else None
    made: Path | None = None  # a folder of this run alone, with its rows
    try:
        config = config_of(run_config, len(list(grid.get_node_ids())))
        out = (out or default_out(config)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        if run_config.get("store"):
            prepared = Prepared.load(Path(str(run_config["store"])))
        elif run_config.get("schema"):
            config.save(out / "config.yaml")
            schema = Schema.loads(str(run_config["schema"]), "the run's schema")
            made = Path(tempfile.mkdtemp(prefix="fedsyn-"))
            prepared = deployed(config, schema, made)
        else:
            config.save(out / "config.yaml")
            made = store_of(run_config)
            prepared = prepare(config, made)
        strategy = serve(config, prepared, grid, out, None)
        with told_what_was_spent(lambda: strategy.ledger, out):
            metrics = finish(config, prepared, strategy, out, started)
        print(f"fedsyn: {out}")
        for name, value in metrics.items():
            print(f"fedsyn: {name} = {value:.6g}")
    except Exception as error:
        if out is not None:
            record_error(out, error)
        raise
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
