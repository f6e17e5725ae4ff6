"""The tables of the protocol, and the rule that divides them into those for tuning and those for judging.

A table is on the judging side if sha256 of its family's name is odd. Nobody chooses. Tables that share rows are one
family, so that none of them tells the other side anything. Of generated tables, seeds 1, 2, ... are taken until either
side has one of that kind.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from experiments.held_out import planted
from fedsyn.domain import Domain

if TYPE_CHECKING:
    import pandas as pd

Side = Literal["tuning", "judging"]

#: The most training and held-out rows of a cell, and the share that is held out.
MOST_ROWS, MOST_HELD, HELD = 20_000, 5_000, 0.2


def side_of(family: str) -> Side:
    """The rule."""
    return "judging" if hashlib.sha256(family.encode()).digest()[-1] % 2 else "tuning"


@dataclass(frozen=True)
class Table:
    """A table of the protocol.

    Attributes:
        name: of it.
        kind: where it comes from: 'registered', 'statsmodels' or 'planted'.
        family: tables that share rows are one family; its own name where it shares none.
        options: of `fedsyn.table.data.load_dataset`, or of the maker.
    """

    name: str
    kind: Literal["registered", "statsmodels", "planted"]
    family: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def side(self) -> Side:
        return side_of(self.family)


@dataclass(frozen=True, eq=False)
class Rows:
    """A table's codes, in an order that is drawn once.

    Attributes:
        domain: attributes and cardinalities.
        held: (m, d) held-out rows.
        train: (n, d) all rows for training; a cell takes the first so many.
    """

    domain: Domain
    held: npt.NDArray[np.integer]
    train: npt.NDArray[np.integer]


def _registered(name: str, family: str = "", **options: Any) -> Table:
    return Table(name, "registered", family or name, tuple(options.items()))


def _shipped(name: str, *, drop: tuple[str, ...] = (), bins: int = 16) -> Table:
    return Table(name, "statsmodels", name, (("drop", drop), ("bins", bins)))


def _planted() -> list[Table]:
    """Of each kind the seeds from 1 on, until either side has one."""
    found = []
    for kind in planted.GENERATORS:
        sides: set[Side] = set()
        for seed in itertools.count(1):
            table = Table(f"{kind}_{seed}", "planted", f"{kind}_{seed}", (("seed", seed),))
            found.append(table)
            sides.add(table.side)
            if len(sides) == 2:
                break
    return found


TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        _registered("adult", bins=32),
        _registered("adult_flaim", family="adult"),
        *map(_registered, ("magic", "marketing", "shoppers", "compas", "diabetes", "breast_cancer", "abalone")),
        *map(_registered, ("obesity", "insurance", "intrusion")),
        *map(_registered, ("randhie", "iris", "wine", "breast_cancer_sklearn", "diabetes_sklearn")),
        _registered("digits", binary=True),
        _shipped("fair"),
        _shipped("anes96", drop=("logpopul",)),
        _shipped("modechoice", drop=("individual",)),
        _shipped("star98", drop=("NABOVE", "NBELOW")),
        *_planted(),
    )
}


@cache
def rows_of(name: str) -> Rows:
    """The codes of a table, shuffled by a seed that is a function of its name."""
    table = TABLES[name]
    codes, domain = _MAKERS[table.kind](table)
    used = [i for i, size in enumerate(domain.shape) if size > 1]  # a column of one value says nothing
    names = tuple(domain.attributes[i] for i in used)
    ordered = {name: n for name, n in domain.ordered.items() if name in names}
    domain = Domain(names, tuple(domain.shape[i] for i in used), ordered)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    order = np.random.default_rng(seed).permutation(len(codes))[: MOST_ROWS + MOST_HELD]
    held = min(round(HELD * len(codes)), MOST_HELD)
    codes = np.ascontiguousarray(codes[order][:, used].astype(np.uint8))
    return Rows(domain, codes[:held], codes[held:][:MOST_ROWS])


def _from_registry(table: Table) -> tuple[npt.NDArray[np.integer], Domain]:
    from fedsyn.table.data import load_dataset

    options = dict(table.options)
    binary = options.pop("binary", False)
    dataset = load_dataset(table.name, **options)
    codes, domain = dataset.encode(), dataset.schema.domain
    if binary:  # of digits: ink or none; the label stays
        sizes = [2 if size == 17 else size for size in domain.shape]
        codes = np.where(np.array(domain.shape) == 17, codes >= 8, codes)
        domain = Domain(domain.attributes, tuple(sizes))  # ink or none has no order to speak of
    return codes, domain


def _from_statsmodels(table: Table) -> tuple[npt.NDArray[np.integer], Domain]:
    """Columns of at most `bins` values are categories, others have so many bins of equal width."""
    options = dict(table.options)
    frame = importlib.import_module(f"statsmodels.datasets.{table.name}").load_pandas().data
    frame = frame.drop(columns=list(options["drop"])).dropna()
    made = [_coded(frame[name], options["bins"]) for name in frame.columns]
    codes, names = np.stack([codes for codes, _ in made], axis=1), tuple(map(str, frame.columns))
    ordered = {name: options["bins"] for name in frame.columns if frame[name].nunique() > options["bins"]}
    return codes, Domain(names, tuple(size for _, size in made), ordered)


def _coded(column: pd.Series[Any], bins: int) -> tuple[npt.NDArray[np.int64], int]:
    values, codes = np.unique(column.to_numpy(), return_inverse=True)
    if len(values) <= bins:
        return codes.astype(np.int64), len(values)
    numbers = column.to_numpy(np.float64)
    low, high = numbers.min(), numbers.max()
    return np.minimum((numbers - low) / (high - low) * bins, bins - 1).astype(np.int64), bins


def _from_generator(table: Table) -> tuple[npt.NDArray[np.integer], Domain]:
    made = planted.GENERATORS[table.name.rpartition("_")[0]](dict(table.options)["seed"])
    names = tuple(f"c{i:02d}" for i in range(len(made.sizes)))
    return made.codes, Domain(names, made.sizes, {name: n for name, n in zip(names, made.ordered, strict=False) if n})


_MAKERS = {"registered": _from_registry, "statsmodels": _from_statsmodels, "planted": _from_generator}


def available(name: str) -> bool:
    """Whether the table is at hand: nothing is fetched."""
    if TABLES[name].kind != "registered":
        return True
    from fedsyn.table.data import describe

    origin, folder = describe(name).origin, Path(os.environ.get("FEDSYN_DATA", ""))
    return bool(origin.sklearn or origin.statsmodels) or (folder / f"{name}.csv.gz").is_file()


def row_counts(name: str) -> list[int]:
    """The numbers of training rows at which a table is looked at: 200, 1,000 and all (at most `MOST_ROWS`)."""
    rows = len(rows_of(name).train)
    return [n for n in (200, 1000) if n <= 0.8 * rows] + [rows]
