"""Registry of benchmark tables.

It holds what fedsyn knows about each table, in one YAML file per table in `registry/`.

A file holds where the table comes from, its licence, how that copy differs from the names used here, and its
public schema. Bounds and categories are those of the table's published documentation or, where it gives none,
the range of
the public table itself, as in the papers: these tables are public, so their ranges are.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fedsyn import yamlio
from fedsyn.errors import ConfigError, nearest
from fedsyn.lazy import pd
from fedsyn.table.schema import Schema
from fedsyn.table.schema.values import MISSING_TEXT, written

_FOLDER = Path(__file__).resolve().parent / "registry"


class Origin(BaseModel):
    """Place from which a table can be fetched.

    Exactly one of `openml`, `url`, `sklearn` and `statsmodels` is set.

    Attributes:
        openml: OpenML's id of the data set.
        url: address of a CSV file, possibly compressed or inside archives (zip, tar).
        members: path inside the archive, then inside an archive in it, and so on; the last one may name
            several files, 'a + b', whose rows follow each other.
        separator: what stands between the cells.
        header: column names of a file without a header row.
        sklearn: name of scikit-learn's loader; needs no network.
        statsmodels: name of statsmodels' data set; needs no network.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    openml: int | None = None
    url: str | None = None
    members: tuple[str, ...] = ()
    separator: str = ","
    header: tuple[str, ...] = ()
    sklearn: str | None = None
    statsmodels: str | None = None

    def __str__(self) -> str:
        if self.openml is not None:
            return f"OpenML {self.openml}"
        return self.url or (
            f"statsmodels' {self.statsmodels}" if self.statsmodels else f"scikit-learn's {self.sklearn}"
        )


class DatasetEntry(BaseModel):
    """Registry entry of one table.

    Attributes:
        name: the name used in configurations, and of the file in the FEDSYN_DATA folder.
        title: what the table is about.
        task: what its label asks for.
        rows: number of rows of the published table.
        licence: of the table.
        origin: where to fetch it from.
        rename: column name there -> column name here.
        fill: column -> text for a missing cell, where fedsyn's copy spells it out.
        recode: column -> value there -> value here.
        notes: what a reader of results should know.
        schema_data: the public schema as plain data (`schema_` builds it).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    task: Literal["classification", "regression", "none"]
    rows: int
    licence: str
    origin: Origin
    rename: dict[str, str] = {}
    fill: dict[str, str] = {}
    recode: dict[str, dict[str, str | int]] = {}
    notes: str = ""
    schema_data: dict[str, Any]

    @property
    def schema_(self) -> Schema:
        """The public schema."""
        return Schema.from_dict(self.schema_data, where=f"registry entry {self.name}")

    def ungrouped(self) -> Schema:
        """Returns the schema with raw values instead of grouped categories.

        The raw values of grouped categories become categories of their own.
        """
        data = {**self.schema_data, "columns": dict(self.schema_data["columns"])}
        for name, column in data["columns"].items():
            if column.get("groups"):
                raw = [value for members in column["groups"].values() for value in members]
                plain = [v for v in column["categories"] if v not in column["groups"]]
                rest = {key: value for key, value in column.items() if key != "groups"}
                data["columns"][name] = {**rest, "categories": [*plain, *raw]}
        return Schema.from_dict(data, where=f"registry entry {self.name}")

    def adapt(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Returns the table with the registry's column names and values.

        It is made from a copy with the names and values of its origin.

        A copy that already has them stays as it is.
        """
        rename = {a: b for a, b in self.rename.items() if a in frame.columns and b not in frame.columns}
        frame = frame.rename(columns=rename)
        for name, text in self.fill.items():
            if name in frame.columns:
                absent = frame[name].isna() | frame[name].isin(MISSING_TEXT)
                frame[name] = frame[name].astype(object).mask(absent, text) if absent.any() else frame[name]
        for name, mapping in self.recode.items():
            if name in frame.columns:
                values = frame[name].dropna().unique().tolist()
                table = {value: mapping.get(written(value), value) for value in values}
                frame[name] = frame[name].astype(object).map(table).infer_objects()
        return frame


def dataset_names() -> list[str]:
    """Names of all registered tables, in alphabetical order."""
    return list(_names())


@cache
def _names() -> tuple[str, ...]:
    """Returns the names in the package's folder.

    It is read once: a sweep asks for each of its cells.
    """
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@lru_cache(maxsize=64)
def describe(name: str) -> DatasetEntry:
    """Returns the registry's entry of a table.

    Raises:
        ConfigError: no such name; names the nearest.
    """
    names = dataset_names()
    if name not in names:
        raise ConfigError(f"unknown dataset '{name}'{nearest(name, names)}; known: {', '.join(names)}")
    data = yamlio.read_mapping(_FOLDER / f"{name}.yaml")
    try:
        return DatasetEntry(name=name, schema_data=data.pop("schema"), **data)
    except ValidationError as error:  # a mistake in the package, not of the user
        raise AssertionError(f"registry entry {name}: {error}") from error
