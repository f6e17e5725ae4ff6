"""Where tables come from: registered benchmark tables, files, DataFrames, OpenML, scikit-learn and SynthFS.

`load_dataset` is the one entry. A *source* is one of
    a registered name     `adult`, `magic`, `iris`, ... (`dataset_names()`); FEDSYN_DATA is searched first
    `synthfs`             the generator of FLAIM's appendix B.1.1
    `sklearn:NAME`        a table that scikit-learn ships: iris, wine, digits, breast_cancer, diabetes
    `openml:NAME_OR_ID`   any OpenML table; needs a schema
    a path                `.csv`, `.tsv`, `.csv.gz`, `.xlsx`, `.parquet`, ...; needs a schema
    a table in memory     of pandas, Polars, Arrow or DuckDB; needs a schema
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.errors import ConfigError, DataError, SchemaError, nearest
from fedsyn.lazy import pd
from fedsyn.table.data.cells import Cells, read_cells
from fedsyn.table.data.layout import header_options
from fedsyn.table.data.opening import SUFFIXES
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import options_for, read_guessed
from fedsyn.table.data.registry import DatasetEntry, dataset_names, describe
from fedsyn.table.data.stream import read_table
from fedsyn.table.data.synthfs import SynthFSOptions, synthfs, synthfs_schema
from fedsyn.table.schema import Schema
from fedsyn.table.schema.frames import as_frame

if TYPE_CHECKING:
    from fedsyn.table.schema.frames import AnyFrame

# Names under which scikit-learn's tables are registered, where its own name is taken by another table.
_SKLEARN_NAMES = {"breast_cancer": "breast_cancer_sklearn", "diabetes": "diabetes_sklearn"}


@dataclass(frozen=True)
class Dataset:
    """A table with its public schema.

    Attributes:
        frame: the rows, with at least the schema's columns.
        schema: the public schema, label included.
        name: the source's name, for reports.
        native_partition: (n,) int64 client of each row where the source has clients of its own (SynthFS),
            else None.
    """

    frame: pd.DataFrame
    schema: Schema
    name: str
    native_partition: np.ndarray | None = None

    def encode(self) -> np.ndarray:
        """(n, d) codes; see `Schema.encode`."""
        return self.schema.encode(self.frame)


def load_dataset(
    source: str | Path | AnyFrame,
    *,
    schema: Schema | str | Path | None = None,
    bins: int | None = None,
    label: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Loads a table together with its public schema.

    Approval of a drafted schema is not checked here: a run calls `schema.require_approved()`.

    Args:
        source: see the module.
        schema: a schema or the path of one. Needed for paths, DataFrames and OpenML; replaces the registered
            schema of a registered name.
        bins: overrides the number of equal-width bins of numeric columns (not explicit edges, not `bins:
            values`).
        label: overrides the schema's label.
        options: of `synthfs`: see `SynthFSOptions`. Of files: see `FileOptions`. Of a registered table with grouped
            categories (intrusion's 22 attacks in 4 groups): `grouped: false` keeps the raw values.

    Returns:
        The data set; its frame holds what `schema.encode` accepts.

    Raises:
        ConfigError: an unknown source or option.
        SchemaError: a schema is needed and missing, malformed, or has no such label.
        DataError: the table cannot be read or fetched, or does not have the schema's columns.
    """
    options = dict(options or {})
    given = Schema.load(schema) if isinstance(schema, str | Path) else schema
    dataset = _load(source, given, options)
    result = dataset.schema.adjusted(bins, label)
    result.require_columns(dataset.frame.columns, where=f"the table '{dataset.name}'")
    if len(dataset.frame) == 0:
        raise DataError(f"the table '{dataset.name}' has no rows")
    return Dataset(dataset.frame, result, dataset.name, dataset.native_partition)


def layouts(sources: Sequence[str], schema: Schema, options: Mapping[str, Any]) -> set[FileOptions]:
    """Return the formats that the first lines of files show; other sources show nothing."""
    paths = [Path(source) for source in sources if is_path(source)]
    return {header_options(path, options_for(path, options), list(schema.columns)) for path in paths}


def source_cells(source: str, options: Mapping[str, Any] | None = None, columns: Sequence[str] | None = None) -> Cells:
    """A source as a schema is drafted from: the cells of a file, or the values of any other.

    `columns`: names of a schema, by which a file's separator is found then.

    Raises:
        ConfigError, DataError: as `load_dataset`.
    """
    if is_path(source):
        return read_cells(source, options, columns=columns)
    if source.startswith("openml:"):
        _only(dict(options or {}))
        frame = _fetch_openml(source)
    else:
        frame = _load(source, None, dict(options or {})).frame
    return Cells(frame, FileOptions(), (), text=False)


def _load(source: str | Path | AnyFrame, schema: Schema | None, options: dict[str, Any]) -> Dataset:
    if not isinstance(source, str | Path):
        _only(options)
        return Dataset(as_frame(source), needed(schema, "a DataFrame"), "table")
    text = str(source)
    if is_path(text):
        schema = needed(schema, text)
        return Dataset(read_table(text, schema, options), schema, Path(text).name.split(".")[0])
    if text == "synthfs":
        return _load_synthfs(schema, options)
    if text.startswith("openml:"):
        _only(options)
        schema = needed(schema, text)
        return Dataset(_fetch_openml(text), schema, text.removeprefix("openml:"))
    if text.startswith("sklearn:"):
        text = text.removeprefix("sklearn:")
        known = {n: _SKLEARN_NAMES.get(n, n) for n in ("iris", "wine", "digits", "breast_cancer", "diabetes")}
        if text not in known:
            raise ConfigError(f"scikit-learn ships no table '{text}'{nearest(text, known)}; known: {', '.join(known)}")
        text = known[text]
    elif Path(text).is_dir():  # "" is the current one
        raise DataError(f"{text or 'the data source'} is {'a folder' if text else 'empty'}: name a file, or a table")
    elif text not in dataset_names():
        names = ["synthfs", *dataset_names()]
        raise ConfigError(
            f"unknown data source '{text}'{nearest(text, names)}; a source is one of {', '.join(names)}, "
            f"sklearn:NAME, openml:NAME, or a file (.csv, .tsv, .xlsx, .parquet, ...)"
        )
    return _load_registered(text, schema, options)


def _load_registered(name: str, schema: Schema | None, options: dict[str, Any]) -> Dataset:
    from fedsyn.table.data.fetch import fetch

    entry = describe(name)
    has_groups = any(column.get("groups") for column in entry.schema_data["columns"].values())
    _only(options, *(["grouped"] if has_groups else []))
    if schema is None:
        schema = entry.schema_ if options.get("grouped", True) else entry.ungrouped()
    folder = os.environ.get("FEDSYN_DATA")
    if folder:
        for suffix in (".csv", ".csv.gz", ".parquet"):
            path = Path(folder) / f"{name}{suffix}"
            if path.is_file():
                return Dataset(_read_registered(path, entry, schema), schema, name)
    return Dataset(entry.adapt(fetch(entry.origin, name)), schema, name)


def _read_registered(path: Path, entry: DatasetEntry, schema: Schema) -> pd.DataFrame:
    """Reads a local copy, whether it has the registry's names and values or those of the table's origin."""
    try:
        return entry.adapt(read_table(path, schema))
    except DataError as error:
        if not entry.rename:
            raise
        adapted = entry.adapt(read_guessed(path))
        if set(schema.columns) <= set(adapted.columns):
            return adapted
        raise error


def _load_synthfs(schema: Schema | None, options: dict[str, Any]) -> Dataset:
    from fedsyn.config import parse_options

    chosen = parse_options(SynthFSOptions, options, "synthfs")
    frame, client = synthfs(chosen)
    return Dataset(frame, schema or synthfs_schema(chosen), "synthfs", client)


def _fetch_openml(source: str) -> pd.DataFrame:
    from fedsyn.table.data.fetch import fetch_openml

    return fetch_openml(source.removeprefix("openml:"))


def is_path(text: str) -> bool:
    """Whether a source is a file."""
    return any(text.lower().endswith(suffix) for suffix in SUFFIXES) or "/" in text or Path(text).is_file()


def needed(schema: Schema | None, what: str) -> Schema:
    """The schema; SchemaError without one."""
    if schema is None:
        raise SchemaError(f"{what} needs a schema; `fedsyn schema draft` proposes one from the data")
    return schema


def _only(options: dict[str, Any], *allowed: str) -> dict[str, Any]:
    for key in options:
        if key not in allowed:
            hint = nearest(key, allowed) or (f" (allowed: {', '.join(allowed)})" if allowed else "")
            raise ConfigError(f"unknown data option '{key}'{hint}")
    return options
