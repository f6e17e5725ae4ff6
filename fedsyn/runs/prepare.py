"""The first step of a run: loads and checks all that it needs; for a simulation, encodes, splits and stores the table.

A simulation's clients each open their slice of what is stored; a deployment's server gets the schema, and no table.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedsyn.config import DataNode, RunConfig
from fedsyn.errors import ConfigError, SchemaError
from fedsyn.evaluation import column_ranges, label_values, raw_numbers, validate_metrics
from fedsyn.loading import require_files
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class, partitioner
from fedsyn.schema import Schema

if TYPE_CHECKING:
    import pandas as pd

    from fedsyn.data.partition import Partitioner


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
    clients = len(tables.parts) if config.federation.columns is None else config.federation.clients
    return Prepared(folder, tables.schema, True, clients, tables.name).save()


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


def _prepare_deployment(config: RunConfig, folder: Path) -> Prepared:
    """A deployment's server needs the schema only: the rows stay with their holders."""
    if config.data.schema_file is not None:
        require_files(config.data, source=False)
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
        numeric_attributes=len(column_ranges(schema)),
    )


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
    from fedsyn.data.partition import PartitionInput

    if contract_class(config.mechanism.name).central or config.federation.columns is not None:
        return [np.arange(len(codes))]  # with columns split over holders, each opens its own columns of all rows
    node = config.federation.partition
    table = PartitionInput(codes, schema.domain, schema.label, native)
    chosen: Partitioner = partitioner(node.name, **node.options)
    return chosen.split(table, config.federation.clients, randomness_of(config).ordinary("partition"))


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
    require_files(data, source=table is None)
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


def randomness_of(config: RunConfig) -> Randomness:
    """The run's randomness: its seed, or the operating system."""
    return Randomness(config.runtime.seed)


def public_schema(config: RunConfig) -> Schema:
    """The run's schema, without reading a row; SchemaError where only the table would tell."""
    from fedsyn.data import SynthFSOptions, dataset_names, describe, synthfs_schema

    data = config.data
    if data.schema_file is not None:
        schema = Schema.load(data.schema_file)
    elif data.source == "synthfs":
        schema = synthfs_schema(SynthFSOptions(**data.options))
    elif data.source in dataset_names():
        entry = describe(data.source)
        schema = entry.schema_ if data.options.get("grouped", True) else entry.ungrouped()
    else:
        raise SchemaError("the run's schema is not at hand")
    return schema.adjusted(data.bins, data.label)
