"""Awkward tables: one shared list of small tables on which pieces that assume too much fall over.

Every table here is legal. `check_mechanism` runs each mechanism on all of them, and the unit and property
tests use the same list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsyn.table.schema import CategoricalColumn, Column, NumericColumn, Schema

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
        """(n, d) codes."""
        return self.schema.encode(self.frame)


def awkward_tables() -> list[AwkwardTable]:
    """All awkward tables, the same at every call."""
    return [_make(name, *make()) for name, make in _MAKERS.items()]


def awkward_table(name: str) -> AwkwardTable:
    """One of the awkward tables.

    Raises:
        KeyError: no such table.
    """
    return _make(name, *_MAKERS[name]())


def awkward_names() -> list[str]:
    """Names of the awkward tables."""
    return list(_MAKERS)


def _make(name: str, schema: Schema, rows: int) -> AwkwardTable:
    rng = np.random.default_rng(_SEED)
    shape = np.array(schema.domain.shape)
    # Squaring favours small codes, so that the columns are skewed, and the last code is rare.
    codes = (rng.random((rows, len(shape))) ** 2 * shape).astype(schema.dtype)
    while (barred := schema.domain.violated(codes)).any():
        codes[barred] = (rng.random((int(barred.sum()), len(shape))) ** 2 * shape).astype(schema.dtype)
    return AwkwardTable(name, schema, schema.decode(codes, rng))


def _single_column() -> tuple[Schema, int]:
    return Schema(columns={"only": CategoricalColumn(categories=("a", "b", "c"), other=False)}), 30


def _one_valued_column() -> tuple[Schema, int]:
    columns: dict[str, Column] = {
        "constant": CategoricalColumn(categories=("always",), other=False),
        "fixed number": NumericColumn(lower=3, upper=3, dtype="integer"),
        "varying": CategoricalColumn(categories=(False, True)),
    }
    return Schema(columns=columns, label="varying"), 25


def _two_rows() -> tuple[Schema, int]:
    columns: dict[str, Column] = {
        "x": NumericColumn(lower=0, upper=1, bins=4),
        "y": CategoricalColumn(categories=("no", "yes"), other=False),
        "z": NumericColumn(lower=-2, upper=2, dtype="integer"),
    }
    return Schema(columns=columns, label="y"), 2


def _sixty_columns() -> tuple[Schema, int]:
    columns: dict[str, Column] = {f"c{i:02d}": CategoricalColumn(categories=tuple(range(2 + i % 3))) for i in range(60)}
    return Schema(columns=columns, label="c59"), 80


def _more_categories_than_rows() -> tuple[Schema, int]:
    columns: dict[str, Column] = {
        "code": CategoricalColumn(categories=tuple(f"item {i}" for i in range(300))),  # two bytes per code
        "size": NumericColumn(lower=0, upper=10_000, bins=50, dtype="integer"),
        "flag": CategoricalColumn(categories=("n", "y"), other=False),
    }
    return Schema(columns=columns, label="flag"), 12


def _odd_names() -> tuple[Schema, int]:
    columns: dict[str, Column] = {
        "with space": NumericColumn(lower=-1.5, upper=1.5, bins=3),
        "comma, and more": CategoricalColumn(categories=("a,b", "c;d", 'say "e"'), other=False),
        "größe (µm²)": NumericColumn(lower=0, upper=5, dtype="integer"),
        "日本": CategoricalColumn(categories=("はい", "いいえ"), other=False),
        "1": CategoricalColumn(categories=(1, 2)),
        "true": CategoricalColumn(categories=("yes", "no", "NA"), other=False),
        "a.b/c": CategoricalColumn(categories=(0.5, 1.5)),
    }
    return Schema(columns=columns, label="日本"), 40


def _missing_values() -> tuple[Schema, int]:
    columns: dict[str, Column] = {
        "age": NumericColumn(lower=0, upper=99, bins=5, dtype="integer", missing=True),
        "weight": NumericColumn(lower=0, upper=200, bins=(0, 50, 75, 200), missing=True),
        "smoker": CategoricalColumn(categories=(False, True), missing=True),
        "grade": CategoricalColumn(categories=(1, 2, 3), missing=True),
        "city": CategoricalColumn(categories=("Bonn", "Köln"), missing=True),
    }
    return Schema(columns=columns, label="smoker"), 60


def _every_kind() -> tuple[Schema, int]:
    return Schema.loads(_EVERY_KIND), 50


_EVERY_KIND = """
columns:
  number: {kind: identifier, make: sequence, prefix: P, width: 4}
  name: {kind: identifier}
  born: {kind: date, lower: 1920-01-01, upper: 2024-12-31, bins: 5, format: "%d.%m.%Y", missing: true}
  admitted: {kind: datetime, lower: 2020-01-01, upper: 2024-12-31T23:59:59, bins: 4, step: minute, zone: Europe/Berlin}
  at: {kind: time, bins: 4, step: minute, missing: true}
  stay: {kind: duration, lower: 0 days, upper: 30 days, bins: [0 days, 1 days, 30 days], step: hour, format: clock}
  note: {kind: text}
  cost: {kind: decimal, places: 2, lower: 0, upper: 999, bins: 6, thousands: ".", mark: ",", suffix: €, missing: true}
  temperature: {kind: decimal, places: 1, lower: 36, upper: 37, bins: values}
  children: {kind: integer, lower: 0, upper: 12, bins: 4, stored: int8}
  ward: {kind: categorical, categories: [a, b, c], other: false, ordered: true, stored: category}
  zip: {kind: code, categories: ["01007", "10115"], width: 5}
  smoker: {kind: boolean, texts: [nein, ja]}
  died: {kind: boolean, missing: true}
  whole: {kind: decimal, places: 2, mark: ",", lower: 0, upper: 1100, missing: true}
  site: {kind: categorical, categories: [north, south], stored: category}
label: smoker
constraints:
  - whole = cost + children
  - {determines: ward, column: site, map: {a: north, b: south}}
  - {impossible: {died: true, ward: a}}
  - {when: {smoker: true}, then: {children: "<= 4"}}
"""

_MAKERS: dict[str, Callable[[], tuple[Schema, int]]] = {
    "single_column": _single_column,
    "one_valued_column": _one_valued_column,
    "two_rows": _two_rows,
    "sixty_columns": _sixty_columns,
    "more_categories_than_rows": _more_categories_than_rows,
    "odd_names": _odd_names,
    "missing_values": _missing_values,
    "every_kind": _every_kind,
}
