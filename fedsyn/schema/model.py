"""Schema: all columns of a table together, its file format, and encode/decode of whole tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedsyn import yamlio
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, DataError, SchemaError, nearest
from fedsyn.schema.columns import CategoricalColumn, Column, NumericColumn
from fedsyn.schema.values import MISSING_TEXT

if TYPE_CHECKING:
    import pandas as pd

_KINDS: dict[str, type[CategoricalColumn] | type[NumericColumn]] = {
    "categorical": CategoricalColumn,
    "numeric": NumericColumn,
}
_DRAFT_NOTE = """\
# A DRAFT: this schema was read from data. What each column lists under `drafted` may tell something about
# single rows (a largest income, a rare category). Put public knowledge in its place, or make sure that it is
# public as it stands; then set `approved: true`. Until then no run accepts this schema.
"""


class Schema(BaseModel):
    """The columns of a table with their public values.

    A value outside the schema gets a code too: the nearest bin, or "other".

    >>> import pandas as pd
    >>> schema = Schema.loads('''
    ... columns:
    ...   age: {kind: numeric, dtype: integer, lower: 0, upper: 99, bins: 10}
    ...   ward: {kind: categorical, categories: [north, south], other: true}
    ... ''')
    >>> schema.domain.shape
    (10, 3)
    >>> schema.encode(pd.DataFrame({"age": [7, 63, 140], "ward": ["south", "north", "east"]})).tolist()
    [[0, 1], [6, 0], [9, 2]]

    Attributes:
        columns: column name -> column, in the order of the table.
        label: the column that evaluation predicts, or None.
        missing_values: text that stands for a missing value, besides the usual (empty, NA, NaN, null, None).
        approved: whether everything that was drafted from data has been accepted as public.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: dict[str, Column] = Field(min_length=1)
    label: str | None = None
    missing_values: tuple[str, ...] = ()
    approved: bool = False

    @model_validator(mode="after")
    def _names_are_usable(self) -> Schema:
        if any(not name.strip() for name in self.columns):
            raise ValueError("every column needs a name that is not blank")
        if self.label is not None and self.label not in self.columns:
            raise ValueError(f"the label '{self.label}' is not a column{nearest(self.label, self.columns)}")
        return self

    @classmethod
    def from_dict(cls, data: Any, where: str = "schema") -> Schema:
        """Builds a schema from plain data.

        Args:
            data: what `to_dict` returns, or a YAML file holds.
            where: what to call it in an error message.

        Raises:
            SchemaError: one message that names every wrong entry, with the nearest valid key.
        """
        if not isinstance(data, Mapping):
            raise SchemaError(f"{where}: expected a mapping with the key 'columns'")
        columns = data.get("columns")
        if isinstance(columns, Mapping) and not all(isinstance(name, str) for name in columns):
            raise SchemaError(f"{where}: column names must be text; put quotes around names like 1 or true")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise SchemaError(f"{where}: {_describe(error)}") from None

    @classmethod
    def loads(cls, text: str, where: str = "schema") -> Schema:
        """Reads a schema from YAML text.

        Raises:
            SchemaError: not YAML, or see `from_dict`.
        """
        try:
            data = yamlio.loads(text, where)
        except ConfigError as error:
            raise SchemaError(str(error)) from None
        return cls.from_dict(data, where)

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Reads a schema from a YAML file.

        Raises:
            SchemaError: no such file, not UTF-8 text, not YAML, or see `from_dict`.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise SchemaError(f"cannot read the schema {path}: {reason}") from None
        return cls.loads(text, where=str(path))

    def to_dict(self) -> dict[str, Any]:
        """Plain data (JSON, YAML) without the settings that have their default value."""
        columns = {name: _column_dict(column) for name, column in self.columns.items()}
        data: dict[str, Any] = {"columns": columns}
        data |= {"label": self.label} if self.label is not None else {}
        data |= {"missing_values": list(self.missing_values)} if self.missing_values else {}
        if self.approved or self.drafted:
            data["approved"] = self.approved
        return data

    def dumps(self) -> str:
        """The schema as YAML text; a draft starts with a note that says what to do."""
        note = _DRAFT_NOTE if self.drafted and not self.approved else ""
        return note + yamlio.dumps(self.to_dict())

    def save(self, path: str | Path) -> None:
        """Writes the schema as a YAML file."""
        Path(path).write_text(self.dumps(), encoding="utf-8")

    @cached_property
    def sha256(self) -> str:
        """Hex hash of all that decides how a table is encoded, and of the label (not of drafting and
        approval).
        """
        data = self.to_dict()
        data.pop("approved", None)
        for column in data["columns"].values():
            column.pop("drafted", None)
        # Names in a list, because the order of the columns counts.
        data["columns"] = list(data["columns"].items())
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    @property
    def drafted(self) -> dict[str, tuple[str, ...]]:
        """Column -> what was read from the data, for the columns where anything was."""
        return {name: column.drafted for name, column in self.columns.items() if column.drafted}

    def require_approved(self) -> None:
        """Refuses a drafted schema that nobody has approved as public.

        Raises:
            SchemaError: lists per column what was read from the data, and what to do.
        """
        if self.approved or not self.drafted:
            return
        marks = "; ".join(f"{name}: {', '.join(items)}" for name, items in self.drafted.items())
        raise SchemaError(
            f"this schema was drafted from data and is not approved. Read from the data: {marks}. "
            "Replace each by public knowledge, or make sure that it is public as it stands, "
            "then set 'approved: true' in the schema"
        )

    def with_bins(self, bins: int) -> Schema:
        """The schema with this number of equal-width bins in every numeric column that names a number of
        bins.

        Explicit edges and `bins: values` are the schema author's own choice and stay.

        Raises:
            SchemaError: a number of bins out of range.
        """
        data = self.to_dict()
        for name, column in self.columns.items():
            if isinstance(column, NumericColumn) and isinstance(column.bins, int):
                data["columns"][name]["bins"] = bins
        return Schema.from_dict(data)

    def with_label(self, label: str) -> Schema:
        """The schema with another label.

        Raises:
            SchemaError: not a column.
        """
        return Schema.from_dict({**self.to_dict(), "label": label})

    def adjusted(self, bins: int | None = None, label: str | None = None) -> Schema:
        """The schema with a run's `data.bins` and `data.label`, where it sets them.

        Raises:
            SchemaError: as `with_bins` and `with_label`.
        """
        schema = self if bins is None else self.with_bins(bins)
        return schema if label is None else schema.with_label(label)

    @cached_property
    def domain(self) -> Domain:
        """The attributes of the encoded table."""
        ordered = {
            name: column.size - column.missing
            for name, column in self.columns.items()
            if isinstance(column, NumericColumn)
        }
        return Domain(tuple(self.columns), tuple(column.size for column in self.columns.values()), ordered)

    @property
    def dtype(self) -> np.dtype:
        """The smallest of uint8, uint16 and int32 that holds every code."""
        largest = max(self.domain.shape) - 1
        return np.dtype(np.uint8 if largest < 2**8 else np.uint16 if largest < 2**16 else np.int32)

    @cached_property
    def missing_text(self) -> frozenset[str]:
        """All text that stands for a missing value."""
        return MISSING_TEXT | frozenset(self.missing_values)

    def require_columns(self, names: Any, where: str = "the table") -> None:
        """Checks the column names of a table; further columns are ignored.

        Raises:
            DataError: columns of the schema are missing or doubled.
        """
        present = [str(name) for name in names]
        absent = [name for name in self.columns if name not in present]
        if absent:
            hints = ", ".join(f"'{name}'{nearest(name, present)}" for name in absent[:10])
            more = f" and {len(absent) - 10} more" if len(absent) > 10 else ""
            raise DataError(f"{where} lacks columns of the schema: {hints}{more}")
        doubled = [name for name in self.columns if present.count(name) > 1]
        if doubled:
            raise DataError(f"{where} has more than one column named '{doubled[0]}'")

    def encode(self, frame: pd.DataFrame) -> np.ndarray:
        """Encodes a table.

        Each row's codes depend on that row alone; see `fedsyn.schema.columns` for values outside the schema.

        Args:
            frame: a table with at least the schema's columns, in any order.

        Returns:
            (n, d) codes of dtype `self.dtype` in the order of `domain`, Fortran order (a column is
            contiguous).

        Raises:
            DataError: a column is missing or doubled, or a numeric column holds text or dates.
        """
        self.require_columns(frame.columns)
        codes = np.empty((len(frame), len(self.columns)), dtype=self.dtype, order="F")
        for j, (name, column) in enumerate(self.columns.items()):
            codes[:, j] = column.encode(frame[name], self.missing_text)
        return codes

    def decode(self, codes: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
        """Turns codes back into a table with the schema's column names, order, categories, dtypes and units.

        Args:
            codes: (n, d) codes.
            rng: draws the place of a number inside its bin: one uniform number per row and numeric column.

        Returns:
            A table for which `encode` gives back `codes`.

        Raises:
            ValueError: codes of another shape, or outside the domain.
        """
        import pandas as pd

        codes = np.asarray(codes)
        if codes.ndim != 2 or codes.shape[1] != len(self.columns):
            raise ValueError(f"codes of shape {codes.shape} do not fit a schema of {len(self.columns)} columns")
        if codes.size and ((codes < 0).any() or (codes >= np.array(self.domain.shape)).any()):
            raise ValueError("codes outside the domain of the schema")
        decoded = {}
        for j, (name, column) in enumerate(self.columns.items()):
            if isinstance(column, NumericColumn):
                decoded[name] = column.decode(codes[:, j].astype(np.intp), rng)
            else:
                decoded[name] = column.decode(codes[:, j].astype(np.intp))
        return pd.DataFrame(decoded)


def _column_dict(column: CategoricalColumn | NumericColumn) -> dict[str, Any]:
    data = column.model_dump(mode="json", exclude_defaults=True)
    drafted = data.pop("drafted", None)
    data = {"kind": column.kind, **data}
    if isinstance(column, NumericColumn):
        if isinstance(column.bins, tuple):
            data.pop("lower", None)
            data.pop("upper", None)
        if column.dtype == "integer":
            for key in ("lower", "upper"):
                if key in data:
                    data[key] = int(data[key])
            if isinstance(column.bins, tuple):
                data["bins"] = [int(edge) for edge in column.bins]
    return data if drafted is None else {**data, "drafted": drafted}


def _describe(error: ValidationError) -> str:
    """All problems of a schema in one line, each with its place and, for an unknown key, the nearest valid
    one.
    """
    problems = []
    for item in error.errors(include_url=False):
        loc = [str(part) for part in item["loc"]]
        # Inside a column: columns, name, kind, key, and then pydantic's own bookkeeping about unions.
        in_column = loc[:1] == ["columns"] and len(loc) > 3
        key = loc[3] if in_column else loc[-1] if loc else ""
        where = f"column '{loc[1]}': " if loc[:1] == ["columns"] and len(loc) > 1 else ""
        if item["type"] == "extra_forbidden":
            allowed = _KINDS[loc[2]].model_fields if in_column else Schema.model_fields
            hint = nearest(key, allowed) or f" (allowed: {', '.join(allowed)})"
            problems.append(f"{where}unknown key '{key}'{hint}")
        elif item["type"] in ("union_tag_invalid", "union_tag_not_found"):
            problems.append(f"{where}kind must be 'categorical' or 'numeric'")
        elif in_column and key in _EXPECTED:
            problems.append(f"{where}{key} must be {_EXPECTED[key]}")
        else:
            name = f"{key}: " if in_column or not where else ""
            problems.append(f"{where}{name}{item['msg'].removeprefix('Value error, ')}")
    distinct = list(dict.fromkeys(problems))
    more = f"; and {len(distinct) - 8} more" if len(distinct) > 8 else ""
    return "; ".join(distinct[:8]) + more


_EXPECTED = {
    "bins": "a number of bins, a list of ascending edges, or 'values'",
    "categories": "a list of at least one text, number or boolean",
    "other": "true, false, or the category for unknown values",
    "groups": "a mapping from a category to a list of values",
}
