"""Checks of what somebody asks a draft for."""

from __future__ import annotations

from collections.abc import Collection

from fedsyn.errors import ConfigError, DataError, nearest
from fedsyn.lazy import pd
from fedsyn.table.schema.frames import require_text_names

# What a run allows, too.
MOST_BINS = 65535


def checked_names(frame: pd.DataFrame, bins: int | None, label: str | None, keep: Collection[str]) -> list[str]:
    """Names of a table's columns.

    Raises as `draft_columns`.
    """
    if bins is not None and type(bins) is not int:
        raise ConfigError(f"bins must be a whole number, found {type(bins).__name__}")
    require_text_names(frame)
    names: list[str] = list(frame.columns)
    if len(frame) == 0 or not names:
        raise DataError("cannot draft a schema: the table has no rows or no columns")
    if len(set(names)) != len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise DataError(f"cannot draft a schema: more than one column is named '{doubled}'")
    if isinstance(keep, str) or not all(isinstance(name, str) for name in keep):
        raise ConfigError("keep: expected a list of columns' names, which are text")
    if label is not None and not isinstance(label, str):
        raise ConfigError(f"label: expected a column's name, which is text; found {type(label).__name__}")
    if label is not None and label not in names:
        raise DataError(f"the table has no column '{label}'{nearest(label, names)}")
    if bins is not None and not 1 <= bins <= MOST_BINS:
        raise ConfigError(f"bins must lie between 1 and {MOST_BINS}; got {bins}")
    for name in keep:
        if name not in names:
            raise ConfigError(f"keep: the table has no column '{name}'{nearest(name, names)}")
    return names
