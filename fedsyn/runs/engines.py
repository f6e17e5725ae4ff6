"""Where a run happens: in this process, on Ray, or on a SuperLink that others operate."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, RunError
from fedsyn.flower.grid import InProcessGrid
from fedsyn.flower.launch import app_folder, run_on_superlink, run_simulation
from fedsyn.protocol.record import RoundRecord
from fedsyn.runs.directory import RESULTS, load_metrics, raise_recorded_error
from fedsyn.runs.finish import finish
from fedsyn.runs.prepare import Prepared, prepare
from fedsyn.runs.run_config import run_config_of
from fedsyn.runs.serve import Progress, serve

if TYPE_CHECKING:
    import pandas as pd


def run(
    config: RunConfig, out: Path | str, progress: Progress | None = None, *, table: pd.DataFrame | None = None
) -> dict[str, float]:
    """Runs a configuration on its engine and leaves the run directory `out`. Returns the metrics.

    Args:
        config: the configuration.
        out: the run directory; made if it does not exist.
        progress: called with the record of each finished round.
        table: a simulation's rows, in place of `data.source`; `data.schema` describes them.

    Raises:
        InputError: bad configuration, schema or data; nothing was run.
        FedsynError: the run failed; what had finished is in `out`.
    """
    out = Path(out).resolve()
    started = time.perf_counter()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the run directory {out} cannot be made: {error.strerror}") from None
    store = Path(tempfile.mkdtemp(prefix=".store-", dir=out))
    try:
        prepared = prepare(config, store, table)
        for name in RESULTS:  # not before: a typo in the configuration must not cost an earlier run its results
            (out / name).unlink(missing_ok=True)
        config.save(out / "config.yaml")
        if config.runtime.engine == "inprocess":
            return _run_in_process(config, prepared, out, progress, started)
        return _run_elsewhere(config, prepared, out, progress)
    finally:
        shutil.rmtree(store, ignore_errors=True)
        if not any(out.iterdir()):
            out.rmdir()


def _run_in_process(
    config: RunConfig, prepared: Prepared, out: Path, progress: Progress | None, started: float
) -> dict[str, float]:
    from fedsyn.runs.holders import app

    nodes = [{"partition-id": k, "num-partitions": prepared.clients} for k in range(prepared.clients)]
    grid = InProcessGrid(
        app,
        nodes,
        run_config_of(config, store=prepared.folder),
        workers=config.runtime.workers,
        app_path="fedsyn.runs.holders:app",
    )
    try:
        strategy = serve(config, prepared, grid, out, progress)
    finally:
        grid.close()
    return finish(config, prepared, strategy, out, started)


def _run_elsewhere(config: RunConfig, prepared: Prepared, out: Path, progress: Progress | None) -> dict[str, float]:
    """Ray and deployments: `flwr run` starts the ServerApp, which serves and finishes; this process watches."""
    watch = _Watch(out / "rounds.jsonl", progress)
    with app_folder() as app:
        if config.runtime.engine == "ray":
            overrides = run_config_of(config, store=prepared.folder, out=out)
            log = run_simulation(
                app, overrides, nodes=prepared.clients, client_cpus=config.runtime.client_cpus, poll=watch
            )
        else:
            if config.runtime.superlink is None:
                raise ConfigError("runtime.superlink: a deployment needs the name of a SuperLink connection of Flower")
            # The SuperLink may be another machine: what its ServerApp needs travels with the run, not by path.
            overrides = run_config_of(config, schema=prepared.schema, out=out)
            log = run_on_superlink(app, overrides, superlink=config.runtime.superlink, poll=watch)
    watch()
    raise_recorded_error(out)
    if not (out / "metrics.json").is_file():
        elsewhere = " (or it is on the SuperLink's machine, under the same path)" if prepared.simulated is False else ""
        raise RunError(f"the run left no result in {out}{elsewhere}; its log: {log}")
    return load_metrics(out)


class _Watch:
    """Reports the rounds that another process appends to rounds.jsonl."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self.path, self.progress, self.seen = path, progress, 0

    def __call__(self) -> bool:
        """Reports what is new; whether the run has left its result or its error."""
        if self.progress is not None and self.path.is_file():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            for line in lines[self.seen :]:
                self.progress(RoundRecord.read(json.loads(line)))
            self.seen = len(lines)
        return any((self.path.parent / name).is_file() for name in ("report.html", "error.json"))
