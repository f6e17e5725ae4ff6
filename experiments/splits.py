"""Splits of the experiments' clustered tables, shipped as splits.npz: who holds which row.

    python -m experiments.splits     # clusters the tables of all sweeps on this machine, and writes the file again

UMAP's coordinates differ by processor and library build, so k-means makes another split on another machine, and every
figure that rests on it moves. check.py therefore gives each clustered cell the split of this file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.plugins.partitioners.clustering import store_splits
from fedsyn.registry import contract_class
from fedsyn.runs.prepare import split_tables
from fedsyn.settings import PartitionNode
from fedsyn.sweep import Sweep, load_sweep
from fedsyn.table.data.partition import PartitionInput

HERE = Path(__file__).resolve().parent
FILE = HERE / "splits.npz"


def with_splits(sweep: Sweep, file: Path = FILE) -> Sweep:
    """Returns the sweep with stored splits in its clustered cells.

    Raises:
        DataError: a table is not the one whose split is stored: the machine would make another split.
    """
    cells = tuple(replace(cell, config=_on_stored(cell.config, file)) for cell in sweep.cells)
    for config in clustered(cell.config for cell in cells):
        split_tables(config)
    return replace(sweep, cells=cells)


def _on_stored(config: RunConfig, file: Path) -> RunConfig:
    node = config.federation.partition
    if node.name != "clustering":
        return config
    stored = PartitionNode(name=node.name, **node.options, splits=str(file))
    federation = config.federation.model_copy(update={"partition": stored})
    return config.model_copy(update={"federation": federation})


def clustered(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """Returns one configuration of each clustered table and number of clients; a central mechanism splits nothing."""
    found: dict[str, RunConfig] = {}
    for config in configs:
        central = contract_class(config.mechanism.name).central
        if config.federation.partition.name == "clustering" and not central:
            facts = [
                config.data.model_dump(mode="json"),
                config.federation.clients,
                config.federation.partition.options,
            ]
            found.setdefault(json.dumps(facts), config)
    return list(found.values())


def main() -> None:
    sweeps = [load_sweep(path) for path in sorted(HERE.glob("*/sweep.yaml"))]
    splits: list[tuple[PartitionInput, list[np.ndarray], int]] = []
    for config in clustered(cell.config for sweep in sweeps for cell in sweep.cells):
        tables = split_tables(config)
        seed = config.federation.partition.options.get("seed", 0)
        splits.append((PartitionInput(tables.train, tables.schema.domain), tables.parts, seed))
        print(f"{config.data.source}: {len(tables.train):,} rows, {len(tables.parts)} clients", flush=True)
    store_splits(FILE, splits)


if __name__ == "__main__":
    main()
