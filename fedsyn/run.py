"""From a configuration to a run directory.

A run has three steps, and each engine differs only in where the second one happens: `prepare` loads, checks, splits
and stores the tables; `serve` drives the mechanism over a Grid; `finish` samples, measures and writes.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsyn.config import DataNode, RunConfig
from fedsyn.errors import ConfigError, FedsynError, InputError, RunError
from fedsyn.evaluation import EvaluationInput, evaluate, label_values, raw_numbers, scales, validate_metrics
from fedsyn.flower import Grid, InProcessGrid
from fedsyn.inference import EmpiricalModel, Model, read_model
from fedsyn.launch import app_folder, run_on_superlink, run_simulation
from fedsyn.protocol.strategy import MechanismStrategy, RoundRecord
from fedsyn.randomness import Randomness
from fedsyn.registry import strategy_class
from fedsyn.schema import Schema

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[RoundRecord], None]
APP_DIR = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Prepared:
    """What `prepare` left in a folder: the schema, and for a simulation the encoded tables.

    Attributes:
        folder: holds schema.yaml and, for a simulation, the clients' shared table and test.npy.
        schema: the run's schema.
        simulated: whether the folder holds tables (a deployment's server has none).
        clients: number of clients.
        name: of the data source, for reports.
    """

    folder: Path
    schema: Schema
    simulated: bool
    clients: int
    name: str

    @classmethod
    def load(cls, folder: Path) -> Prepared:
        facts = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))
        return cls(folder, Schema.load(folder / "schema.yaml"), facts["simulated"], facts["clients"], facts["name"])

    def save(self) -> Prepared:
        self.schema.save(self.folder / "schema.yaml")
        facts = {"simulated": self.simulated, "clients": self.clients, "name": self.name}
        (self.folder / "prepared.json").write_text(json.dumps(facts), encoding="utf-8")
        return self


def randomness_of(config: RunConfig) -> Randomness:
    return Randomness(config.runtime.seed)


# 1. Prepare --------------------------------------------------------------------------------------------------------


def prepare(config: RunConfig, folder: Path, table: pd.DataFrame | None = None) -> Prepared:
    """Loads and checks everything that the run needs; for a simulation, splits and stores the encoded table.

    Args:
        config: the configuration.
        folder: where to keep it.
        table: rows to use in place of `data.source`; `data.schema` describes them.

    Raises:
        InputError: bad configuration, schema or data.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # encoded rows are rows
    if config.runtime.engine == "deployment":
        return _prepare_deployment(config, folder)
    from fedsyn.data import write_encoded

    tables = split_tables(config, table)
    _check_evaluation(config, tables.schema, len(tables.test))
    write_encoded(folder, tables.train, tables.schema.domain, tables.parts)
    np.save(folder / "test.npy", tables.test, allow_pickle=False)
    np.save(folder / "test_numbers.npy", tables.test_numbers, allow_pickle=False)
    return Prepared(folder, tables.schema, True, len(tables.parts), tables.name).save()


@dataclass(frozen=True, eq=False)
class Tables:
    """A simulation's rows, encoded and split.

    Attributes:
        name: of the data source.
        schema: of the table.
        train: (n, d) codes of the pooled training table.
        test: (m, d) codes of the held-out rows.
        test_numbers: (m, numeric columns) float32 values of the same rows before binning.
        native: (n,) the source's own client of each training row, or None.
        parts: row indices into `train` of each client.
    """

    name: str
    schema: Schema
    train: npt.NDArray[np.integer]
    test: npt.NDArray[np.integer]
    test_numbers: npt.NDArray[np.float32]
    native: npt.NDArray[np.int64] | None
    parts: list[npt.NDArray[np.int64]]


def split_tables(config: RunConfig, table: pd.DataFrame | None = None) -> Tables:
    """Loads, encodes and splits a simulation's table (or the given one).

    Raises:
        InputError: bad schema or data, or a split that does not exist.
    """
    encoded = encoded_table(config.data, table)
    schema, codes = encoded.schema, encoded.codes
    train, test = split_rows(config, len(codes))
    native = None if encoded.native is None else encoded.native[train]
    parts = partition(config, codes[train], schema, native)
    return Tables(encoded.name, schema, codes[train], codes[test], encoded.numbers[test], native, parts)


@dataclass(frozen=True, eq=False)
class Encoded:
    """A whole table before it is split: see `Tables` for the fields; `codes` and `numbers` are all rows, read-only."""

    name: str
    schema: Schema
    codes: npt.NDArray[np.integer]
    numbers: npt.NDArray[np.float32]
    native: npt.NDArray[np.int64] | None


def encoded_table(data: DataNode, table: pd.DataFrame | None = None) -> Encoded:
    """Loads and encodes a configuration's source (or the given table), by an approved schema."""
    if table is not None:
        return _encode(data, table)
    files = [data.source, data.schema_file or "", os.environ.get("FEDSYN_DATA", "")]
    stamps = tuple(Path(file).stat().st_mtime_ns if Path(file).exists() else 0 for file in files)
    return _encoded(data.model_dump_json(by_alias=True), (*files, *stamps))


@lru_cache(maxsize=2)  # the cells of a sweep that share a process share its table
def _encoded(data: str, version: tuple[object, ...]) -> Encoded:
    """A source, loaded and encoded once per process for each version (name and time) of its files."""
    return _encode(DataNode.model_validate_json(data))


def _encode(data: DataNode, table: pd.DataFrame | None = None) -> Encoded:
    from fedsyn.data import load_dataset

    dataset = load_dataset(
        data.source if table is None else table,
        schema=data.schema_file,
        bins=data.bins,
        label=data.label,
        options=data.options,
    )
    dataset.schema.require_approved()
    codes, numbers = dataset.encode(), raw_numbers(dataset.frame, dataset.schema)
    codes.flags.writeable = numbers.flags.writeable = False
    return Encoded(dataset.name, dataset.schema, codes, numbers, dataset.native_partition)


def split_rows(config: RunConfig, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Indices of the training rows and of the held-out rows, of the sample that the configuration asks for."""
    from fedsyn.data import train_test_split

    randomness = Randomness(config.data.split_seed)
    used = np.arange(rows)
    if config.data.sample < 1.0:
        keep = max(1, round(config.data.sample * rows))
        used = np.sort(randomness.ordinary("sample").permutation(rows)[:keep])
    train, test = train_test_split(len(used), config.data.test_fraction, randomness.ordinary("split"))
    if len(train) == 0:
        raise ConfigError(f"data.test_fraction {config.data.test_fraction} leaves no training row of {len(used)}")
    return used[train], used[test]


def partition(
    config: RunConfig,
    codes: npt.NDArray[np.integer],
    schema: Schema,
    native: npt.NDArray[np.int64] | None,
) -> list[npt.NDArray[np.int64]]:
    """Row indices of each client; one client with every row for a central mechanism."""
    from partitioners import PartitionInput, make_partitioner

    if strategy_class(config.mechanism.name).central:
        return [np.arange(len(codes))]
    node = config.federation.partition
    table = PartitionInput(codes, schema.domain, schema.label, native)
    partitioner = make_partitioner(node.name, **node.options)
    return partitioner.split(table, config.federation.clients, randomness_of(config).ordinary("partition"))


def _prepare_deployment(config: RunConfig, folder: Path) -> Prepared:
    """A deployment's server needs the schema only: the rows stay with their holders."""
    if config.data.schema_file is not None:
        schema = Schema.load(config.data.schema_file)
    else:
        from fedsyn.data import dataset_names, describe

        if config.data.source not in dataset_names():
            raise ConfigError("data.schema: a deployment needs the schema that all data holders approved")
        schema = describe(config.data.source).schema_
    schema = schema.adjusted(config.data.bins, config.data.label)
    schema.require_approved()
    if config.evaluation:
        raise ConfigError(
            "evaluation: a deployment's server has no rows to evaluate on; set evaluation: [] "
            "and evaluate the synthetic table where real rows are"
        )
    return deployed(config, schema, folder)


def deployed(config: RunConfig, schema: Schema, folder: Path) -> Prepared:
    """What a deployment's server works with: the schema, and no table."""
    return Prepared(folder, schema, False, config.federation.clients, Path(config.data.source).name).save()


def _check_evaluation(config: RunConfig, schema: Schema, test_rows: int) -> None:
    numeric = None if schema.label is None else label_values(schema, schema.label) is not None
    validate_metrics(
        config.evaluation,
        test_rows > 0,
        schema.label,
        numeric_label=numeric,
        has_partition=True,
        attributes=len(schema.domain),
        numeric_attributes=len(scales(schema)),
    )


# 2. Serve ----------------------------------------------------------------------------------------------------------


def serve(config: RunConfig, prepared: Prepared, grid: Grid, out: Path, progress: Progress | None) -> MechanismStrategy:
    """Drives the mechanism over a Grid; writes rounds.jsonl as rounds finish. The strategy holds model and ledger."""
    rounds = out / "rounds.jsonl"
    rounds.write_text("", encoding="utf-8")

    def observe(record: RoundRecord) -> None:
        if config.runtime.error_by_round and prepared.simulated and strategy.model is not None:
            data = evaluation_input(prepared, strategy, strategy.model, None)
            record.workload_error = evaluate(["workload_error"], data)["workload_error"]
        with rounds.open("a", encoding="utf-8") as file:
            file.write(json.dumps(vars(record)) + "\n")
        if progress is not None:
            progress(record)

    strategy = strategy_class(config.mechanism.name)(
        config,
        prepared.schema.domain,
        prepared.schema.sha256,
        randomness=randomness_of(config),
        observer=observe,
    )
    try:
        strategy.start(grid)
    finally:
        write_json(out / "ledger.json", strategy.ledger.report())
    return strategy


# 3. Finish ---------------------------------------------------------------------------------------------------------


def finish(
    config: RunConfig, prepared: Prepared, strategy: MechanismStrategy, out: Path, started: float
) -> dict[str, float]:
    """Samples the synthetic table, computes the metrics and writes the run directory. Returns the metrics."""
    model = strategy.model
    assert model is not None
    rng = randomness_of(config).ordinary("synthesize")
    rows = config.synthesis.rows or max(1, round(model.total))
    synthetic = model.sample(rows, rng)
    table = prepared.schema.decode(synthetic, rng)
    table.to_csv(out / "synthetic.csv", index=False)
    save_model(out / "model.npz", model)
    metrics = evaluate_run(config, prepared, strategy, model, synthetic) if prepared.simulated else {}
    metrics |= costs(strategy, prepared.clients, started)
    # Strict JSON knows no infinity (the likelihood of a row that the model rules out): null says "not finite".
    write_json(out / "metrics.json", {k: v if np.isfinite(v) else None for k, v in metrics.items()})
    from fedsyn.report import write_report

    write_report(out)
    return metrics


def evaluate_run(
    config: RunConfig,
    prepared: Prepared,
    strategy: MechanismStrategy,
    model: Model | EmpiricalModel,
    synthetic: npt.NDArray[np.integer],
) -> dict[str, float]:
    """The configured metrics of a simulation."""
    if not config.evaluation:
        return {}
    return evaluate(config.evaluation, evaluation_input(prepared, strategy, model, synthetic))


def evaluation_input(
    prepared: Prepared,
    strategy: MechanismStrategy,
    model: Model | EmpiricalModel,
    synthetic: npt.NDArray[np.integer] | None,
) -> EvaluationInput:
    """A simulation's real rows beside its model and synthetic rows."""
    from fedsyn.data import EncodedTable

    table, schema = EncodedTable(prepared.folder), prepared.schema
    return EvaluationInput(
        train=table.pooled(),
        test=np.load(prepared.folder / "test.npy", allow_pickle=False),
        domain=schema.domain,
        workload=strategy.workload,
        model=model,
        synthetic=synthetic,
        partition=[np.arange(table.offsets[k], table.offsets[k + 1]) for k in range(table.clients)],
        label=schema.label,
        label_values=None if schema.label is None else label_values(schema, schema.label),
        scales=scales(schema),
        test_numbers=np.load(prepared.folder / "test_numbers.npy", allow_pickle=False),
    )


def costs(strategy: MechanismStrategy, clients: int, started: float) -> dict[str, float]:
    """Seconds, peak memory of this process, megabytes of an average client, and replies that could not be used."""
    up = sum(record.bytes_up for record in strategy.records)
    down = sum(record.bytes_down for record in strategy.records)
    return {
        "seconds": round(time.perf_counter() - started, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MAXRSS_PER_MB, 1),
        "client_mb_up": up / clients / 1e6,
        "client_mb_down": down / clients / 1e6,
        "dropped": float(sum(len(record.dropped) for record in strategy.records)),
    }


_MAXRSS_PER_MB = 1024**2 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere


def save_model(path: Path, model: Model | EmpiricalModel) -> None:
    """model.npz: the model's arrays (potentials or rows) and, as JSON in bytes, its domain. Readable without pickle."""
    domain = json.dumps({"attributes": model.domain.attributes, "shape": model.domain.shape})
    arrays: dict[str, Any] = dict(model.to_arrays())
    np.savez_compressed(path, domain=np.frombuffer(domain.encode(), np.uint8), **arrays)


def load_model(path: Path | str) -> Model | EmpiricalModel:
    """Inverse of `save_model`."""
    from fedsyn.domain import Domain

    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    facts = json.loads(arrays.pop("domain").tobytes().decode())
    return read_model(Domain(tuple(facts["attributes"]), tuple(facts["shape"])), arrays)


def write_json(path: Path, value: Any) -> None:
    """Writes strict JSON; a metric that is not finite must have become null before."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


# Engines -----------------------------------------------------------------------------------------------------------


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
        for name in _RESULTS:  # not before: a typo in the configuration must not cost an earlier run its results
            (out / name).unlink(missing_ok=True)
        config.save(out / "config.yaml")
        if config.runtime.engine == "inprocess":
            return _run_in_process(config, prepared, out, progress, started)
        return _run_elsewhere(config, prepared, out, progress)
    finally:
        shutil.rmtree(store, ignore_errors=True)
        if not any(out.iterdir()):
            out.rmdir()


_RESULTS = (
    "synthetic.csv",
    "model.npz",
    "metrics.json",
    "ledger.json",
    "rounds.jsonl",
    "report.html",
    "error.json",
)


def _run_in_process(
    config: RunConfig, prepared: Prepared, out: Path, progress: Progress | None, started: float
) -> dict[str, float]:
    from fedsyn.client_app import app

    nodes = [{"partition-id": k, "num-partitions": prepared.clients} for k in range(prepared.clients)]
    grid = InProcessGrid(
        app,
        nodes,
        run_config_of(config, store=prepared.folder),
        workers=config.runtime.workers,
        app_path="fedsyn.client_app:app",
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


def run_config_of(
    config: RunConfig, *, store: Path | None = None, schema: Schema | None = None, out: Path | None = None
) -> dict[str, str]:
    """The Flower run configuration of a run that was prepared: the resolved configuration itself, and what it needs.

    Args:
        config: the configuration.
        store: folder of a simulation's prepared tables.
        schema: a deployment's schema.
        out: run directory.
    """
    return {
        "resolved": json.dumps(config.to_dict(), separators=(",", ":")),
        "store": "" if store is None else str(store),
        "schema": "" if schema is None else schema.dumps(),
        "out": "" if out is None else str(out),
    }


class _Watch:
    """Reports the rounds that another process appends to rounds.jsonl."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self.path, self.progress, self.seen = path, progress, 0

    def __call__(self) -> bool:
        """Reports what is new; whether the run has left its result or its error."""
        if self.progress is not None and self.path.is_file():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            for line in lines[self.seen :]:
                self.progress(RoundRecord(**json.loads(line)))
            self.seen = len(lines)
        return any((self.path.parent / name).is_file() for name in ("report.html", "error.json"))


def record_error(out: Path, error: Exception) -> None:
    """Leaves an error for the process that started the run. Unexpected ones leave their type, not their text."""
    kind = "input" if isinstance(error, InputError) else "run"
    text = str(error) if isinstance(error, FedsynError) else f"unexpected {type(error).__name__}; see Flower's log"
    write_json(out / "error.json", {"kind": kind, "message": text})


def load_metrics(out: Path) -> dict[str, float]:
    """metrics.json of a run directory, with its nulls as infinities."""
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    return {name: float("inf") if value is None else value for name, value in metrics.items()}


def raise_recorded_error(out: Path) -> None:
    path = out / "error.json"
    if path.is_file():
        error = json.loads(path.read_text(encoding="utf-8"))
        raise (InputError if error["kind"] == "input" else RunError)(error["message"])


def default_out(config: RunConfig, root: Path = Path("runs")) -> Path:
    """runs/MECHANISM-SOURCE-TIME, a new folder each time."""
    source = Path(config.data.source).name.split(".")[0].replace(":", "-") or "data"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out = root / f"{config.mechanism.name}-{source}-{stamp}"
    suffix = 1
    while out.exists():
        suffix += 1
        out = root / f"{config.mechanism.name}-{source}-{stamp}-{suffix}"
    return out


__all__: Sequence[str] = [
    "APP_DIR",
    "Prepared",
    "default_out",
    "finish",
    "load_model",
    "prepare",
    "run",
    "save_model",
    "serve",
]
