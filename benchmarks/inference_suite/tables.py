"""Tables and estimation problems of the suite: what every engine is given, as files that need only NumPy to be read."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsyn.domain import Clique, Domain
from fedsyn.inference import model_size, pass_cost
from fedsyn.table.counting.marginals import count
from fedsyn.table.data import load_dataset

#: Tables from FEDSYN_DATA (32 equal-width bins), and generated ones by their number of columns.
TABLES = ("adult", "magic", "intrusion", "wide60", "wide200")
_WIDE_ROWS = 50_000
_SIZES = (2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Table:
    """An encoded table.

    Attributes:
        codes: (n, d) unsigned integers, columns in domain order.
        domain: its attributes and their sizes.
    """

    codes: np.ndarray
    domain: Domain


def missing(name: str) -> str | None:
    """Why a table cannot be used here, or None."""
    if name.startswith("wide"):
        return None
    folder = Path(os.environ.get("FEDSYN_DATA", ""))
    return None if (folder / f"{name}.csv.gz").is_file() else f"FEDSYN_DATA does not hold {name}.csv.gz"


def load(name: str) -> Table:
    """A benchmark table by its name, or `wideN`: a generated one of N columns."""
    if name.startswith("wide"):
        return generated(int(name.removeprefix("wide")))
    dataset = load_dataset(name, bins=32)
    return Table(dataset.encode(), dataset.schema.domain)


def generated(columns: int, rows: int = _WIDE_ROWS) -> Table:
    """A table in which each column copies a random earlier one six times of ten, and is skewed noise otherwise."""
    rng = np.random.default_rng(columns)
    sizes = [int(size) for size in rng.choice(_SIZES, columns)]
    codes = np.empty((rows, columns), np.uint8)
    for column, size in enumerate(sizes):
        codes[:, column] = rng.random(rows) ** 2 * size
        if column:
            parent = codes[:, int(rng.integers(0, column))]
            codes[:, column] = np.where(rng.random(rows) < 0.6, parent % size, codes[:, column])
    return Table(codes, Domain(tuple(f"c{i:03d}" for i in range(columns)), tuple(sizes)))


def measured_cliques(domain: Domain, number: int, cells: int, seed: int) -> list[Clique]:
    """All single attributes, and random pairs and triples whose model keeps within `cells` and ten times that a pass.

    A clique that does not fit is passed over; ends after `number` or after ten times as many draws.
    """
    rng = np.random.default_rng(seed)
    cliques: list[Clique] = [(name,) for name in domain.attributes]
    for _ in range(10 * number):
        if len(cliques) == len(domain) + number:
            break
        columns = sorted(rng.choice(len(domain), int(rng.integers(2, 4)), replace=False).tolist())
        clique = tuple(domain.attributes[column] for column in columns)
        if clique in cliques or math.prod(domain.shape_of(clique)) > cells:
            continue
        if model_size(domain, [*cliques, clique]) <= cells and pass_cost(domain, [*cliques, clique]) <= 12.0 * cells:
            cliques.append(clique)
    return cliques


def write_problem(path: Path, table: Table, cliques: list[Clique], sigma: float, seed: int) -> None:
    """Writes noisy marginals: sigma on pairs and triples, half of it on single attributes."""
    rng = np.random.default_rng(seed + 1)
    arrays, scales = {}, []
    for index, (clique, counts) in enumerate(zip(cliques, count(table.codes, table.domain, cliques), strict=True)):
        scales.append(sigma * (0.5 if len(clique) == 1 else 1.0))
        arrays[f"y{index}"] = counts + scales[-1] * rng.standard_normal(counts.shape)
    head = {
        "attributes": table.domain.attributes,
        "shape": table.domain.shape,
        "cliques": cliques,
        "sigmas": scales,
        "total": float(len(table.codes)),
    }
    np.savez(path, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays)


def write_table(path: Path, table: Table, workload: list[Clique]) -> None:
    """Writes an encoded table with the workload that a mechanism is to answer."""
    head = {"attributes": table.domain.attributes, "shape": table.domain.shape, "workload": workload}
    np.savez(path, head=np.frombuffer(json.dumps(head).encode(), np.uint8), codes=table.codes)
