"""What a person does to a schema in Python: has one drafted, edits columns, approves them. Each gives a new schema."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel

from fedsyn.errors import SchemaError, nearest
from fedsyn.table.schema.approval import How, approved_column, findings

if TYPE_CHECKING:
    import pandas as pd


class EditedSchema(BaseModel):
    """The part of `Schema` that makes schemas of schemas."""

    @classmethod
    def draft(
        cls, frame: pd.DataFrame, bins: int = 32, label: str | None = None, keep: Collection[str] = (), **how: Any
    ) -> Self:
        """Proposes a schema for a table, which no run accepts before approval; see `draft.draft_columns`.

        >>> import pandas as pd
        >>> from fedsyn.table.schema import Schema
        >>> table = pd.DataFrame({"age": [34, 51] * 30, "ward": ["north", "south"] * 30})
        >>> schema = Schema.draft(table).edited(age={"lower": 0, "upper": 110})
        >>> schema.unapproved
        {'age': ('kind', 'missing'), 'ward': ('kind', 'categories', 'missing')}
        >>> schema.approve("age", "ward", frame=table).unapproved
        {}

        Raises:
            ConfigError, DataError: as `draft_columns`. SchemaError: every column is set aside.
        """
        from fedsyn.table.schema.draft import draft_columns, drafted_schema

        drafted: Self = cls.from_dict(drafted_schema(draft_columns(frame, bins, label, keep, **how), label))
        return drafted

    def edited(self, **columns: dict[str, Any]) -> Self:
        """The schema with other settings of some columns, such as `age={"lower": 0}`. None takes a setting out.

        A new `kind` starts from nothing. What is set is no longer listed under `drafted`.

        Raises:
            SchemaError: no such column, or not a valid schema.
        """
        data = self.to_dict()
        for name, given in columns.items():
            if name not in data["columns"]:
                raise SchemaError(f"the schema has no column '{name}'{nearest(name, data['columns'])}")
            old = data["columns"][name]
            new = ({} if "kind" in given and given["kind"] != old["kind"] else old) | given
            known = {mark for key, mark in _KNOWN.items() if key in given}
            new["drafted"] = [mark for mark in new.get("drafted", ()) if mark not in known]
            data["columns"][name] = {key: value for key, value in new.items() if value is not None and value != []}
        edited: Self = self.from_dict(data)
        return edited

    def approve(self, *names: str, frame: pd.DataFrame | None = None, **how: Any) -> Self:
        """The schema with some columns approved as public; without names, all of them.

        Args:
            names: the columns.
            frame: the table, to count who holds a category; without it, what the draft marked as rare counts.
            how: see `How`: few, public, fold, private.

        Raises:
            SchemaError: no such column, or few rows hold a category and nobody said why it is public.
        """
        data, asked = self.to_dict(), How(**how)
        found = findings(self, frame, asked.few) if frame is not None else {}
        for name in names or tuple(self.unapproved):
            if name not in data["columns"]:
                raise SchemaError(f"the schema has no column '{name}'{nearest(name, data['columns'])}")
            old = data["columns"][name]
            data["columns"][name] = approved_column(self.every_column[name], old, found.get(name), asked, name)
        approved: Self = self.from_dict(data)
        return approved

    if TYPE_CHECKING:
        columns: Any

        @classmethod
        def from_dict(cls, data: Any, where: str = "schema") -> Any: ...
        def to_dict(self) -> dict[str, Any]: ...
        def require_columns(self, names: Any, where: str = "the table") -> None: ...
        @property
        def unapproved(self) -> dict[str, tuple[str, ...]]: ...
        @property
        def open_columns(self) -> tuple[str, ...]: ...
        @property
        def missing_text(self) -> frozenset[str]: ...
        @property
        def every_column(self) -> dict[str, Any]: ...


#: Setting -> what of `drafted` it answers.
_KNOWN = {
    "kind": "kind",
    "lower": "bounds",
    "upper": "bounds",
    "bounds": "bounds",
    "categories": "categories",
    "missing": "missing",
}
