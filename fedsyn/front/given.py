"""What callers hand over, told apart and checked: tables, schemas, paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsyn.errors import ConfigError, DataError, SchemaError
from fedsyn.table.schema import Schema

if TYPE_CHECKING:
    import pandas as pd


def is_frame(given: Any) -> bool:
    """Whether it is one table."""
    import pandas as pd

    return isinstance(given, pd.DataFrame)


def frames_of(given: Any) -> list[pd.DataFrame]:
    """The tables that were given, one or several.

    Raises:
        DataError: something else, nothing, or columns whose names are no text.
    """
    frames = [given] if is_frame(given) else given
    if not isinstance(frames, list | tuple) or not frames or not all(map(is_frame, frames)):
        raise DataError(
            f"expected a DataFrame, or a list with one DataFrame of each holder; found {type(given).__name__}"
            f"{' that holds other things, or nothing' if isinstance(given, list | tuple) else ''}"
        )
    for frame in frames:
        if not all(isinstance(name, str) for name in frame.columns):
            raise DataError("column names must be text: frame.columns = frame.columns.astype(str)")
    return list(frames)


def tables_of(given: Any) -> pd.DataFrame | Sequence[pd.DataFrame] | None:
    """The same, one table as it is and None for none; DataError as `frames_of`."""
    if given is None:
        return None
    frames = frames_of(given)
    return frames[0] if is_frame(given) else frames


def schema_of(given: Any) -> Schema:
    """A schema from one, from its plain data, or from the path of its file.

    Raises:
        SchemaError: something else, or a schema that cannot be.
    """
    if isinstance(given, Schema):
        return given
    if isinstance(given, Mapping):
        return Schema.from_dict(given)
    if isinstance(given, str | Path):
        return Schema.load(given)
    raise SchemaError(f"schema: expected a Schema, its plain data or a path, found {type(given).__name__}")


def path_of(given: Any) -> Path:
    """A path. Raises ConfigError for anything else."""
    if not isinstance(given, str | Path):
        raise ConfigError(f"expected the path of a file, found {type(given).__name__}")
    return Path(given)
