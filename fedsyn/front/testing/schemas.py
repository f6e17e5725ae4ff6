"""Awkward tables, on which pieces that assume too much fail.

They are one shared list of small tables.

They stand in `tables.yaml`, and every one is legal. `check_mechanism` runs each mechanism on all of them, and the unit
and property tests use the same list.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn import yamlio
from fedsyn.table.schema import Schema

if TYPE_CHECKING:
    import pandas as pd

_SEED = 20240501


@dataclass(frozen=True)
class AwkwardTable:
    """A small table that is awkward in one way.

    Attributes:
        name: what is awkward about it.
        schema: its public schema.
        frame: its rows, which the schema's `decode` could have produced.
    """

    name: str
    schema: Schema
    frame: pd.DataFrame

    def encode(self) -> np.ndarray:
        """Returns the (n, d) codes of the rows."""
        return self.schema.encode(self.frame)


def awkward_tables() -> list[AwkwardTable]:
    """Returns all awkward tables, equal at every call."""
    return [awkward_table(name) for name in awkward_names()]


def awkward_table(name: str) -> AwkwardTable:
    """Returns one of the awkward tables.

    Raises KeyError if there is none of that name.
    """
    made = _made(name)
    return AwkwardTable(name, made.schema, made.frame.copy())  # the rows are the caller's own


@cache
def _made(name: str) -> AwkwardTable:
    schema, rows = Schema.from_dict(_descriptions()[name]["schema"]), int(_descriptions()[name]["rows"])
    rng = np.random.default_rng(_SEED)
    shape = np.array(schema.domain.shape)
    # Squaring favours small codes, so that the columns are skewed, and the last code is rare.
    codes = (rng.random((rows, len(shape))) ** 2 * shape).astype(schema.dtype)
    while (barred := schema.domain.violated(codes)).any():
        codes[barred] = (rng.random((int(barred.sum()), len(shape))) ** 2 * shape).astype(schema.dtype)
    return AwkwardTable(name, schema, schema.decode(codes, rng))


def awkward_names() -> list[str]:
    """Returns the names of the awkward tables."""
    return list(_descriptions())


@cache
def _descriptions() -> dict[str, Any]:
    descriptions = yamlio.read_mapping(Path(__file__).with_name("tables.yaml"))
    sixty = {f"c{i:02d}": {"kind": "categorical", "categories": list(range(2 + i % 3))} for i in range(60)}
    descriptions["sixty_columns"]["schema"] = {"columns": sixty, "label": "c59"}
    many = descriptions["more_categories_than_rows"]["schema"]["columns"]["code"]
    many["categories"] = [f"item {i}" for i in range(300)]
    return descriptions
