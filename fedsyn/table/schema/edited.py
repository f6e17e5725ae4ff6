"""Changes of a schema's columns by a person."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fedsyn.errors import SchemaError, nearest
from fedsyn.table.schema.binned import BinnedColumn

#: Setting -> what of `drafted` it answers.
_ANSWERS = {
    "kind": ("kind",),
    "lower": ("bounds",),
    "upper": ("bounds",),
    "bounds": ("bounds",),
    "bins": ("bins",),
    "categories": ("categories", "rare"),
    "missing": ("missing",),
    "person": ("person", "persons"),
    **{key: (key,) for key in ("atoms", "values", "multiple_of", "missing_codes", "censored", "unlisted")},
}


def edited_data(schema: Any, columns: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the plain data of a `Schema` with other settings.

    Raises:
        SchemaError: no such column.
    """
    data: dict[str, Any] = schema.to_dict()
    if schema.persons is not None and columns.get(schema.persons.id, {}).get("person") is False:
        del data["persons"]
    for name, settings in columns.items():
        if name not in data["columns"]:
            raise SchemaError(f"the schema has no column '{name}'{nearest(name, data['columns'])}")
        old = data["columns"][name]
        new = ({} if "kind" in settings and settings["kind"] != old["kind"] else old) | settings
        column, bins_stay = schema.every_column[name], not {"bins", "kind"} & settings.keys()
        moved = bins_stay and {"lower", "upper"} & settings.keys()
        if moved and isinstance(column, BinnedColumn) and isinstance(column.bins, tuple):
            with suppress(ValueError, TypeError):  # a bound that is none is said below
                bounds = {key: settings.get(key, getattr(column, key)) for key in ("lower", "upper")}
                new |= {**bounds, "bins": column.bins_between(**bounds)}
        known = {mark for key, marks in _ANSWERS.items() if key in settings for mark in marks}
        if {"lower", "upper", "bins", "bounds"} & settings.keys() and not settings.get("values"):
            new, known = {key: value for key, value in new.items() if key != "values"}, known | {"values"}
        if settings.get("other", False) is not False:  # which takes what is not listed
            new = {key: value for key, value in new.items() if key != "unlisted" or key in settings}
        left = {"bounds": "bins"} if "bins" not in settings else {}
        marks = [left.get(mark, mark) if mark in known else mark for mark in new.get("drafted", ())]
        new["drafted"] = [mark for mark in marks if mark not in known]
        data["columns"][name] = {key: value for key, value in new.items() if value is not None and value != []}
    return data
