"""Problems of a schema, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from fedsyn.errors import DataError, nearest, plainly
from fedsyn.output import first_of
from fedsyn.table.schema.column_base import ASIDE
from fedsyn.table.schema.columns import KINDS
from fedsyn.table.schema.persons import Persons


def describe(error: ValidationError, allowed_keys: Sequence[str]) -> str:
    """Returns the problems of a schema in one line.

    Each has its place and, for an unknown key, the nearest valid one. Eight at most, then a count.
    """
    problems: list[str] = []
    for item in error.errors(include_url=False):
        loc = [str(part) for part in item["loc"]]
        # Inside a column: columns, name, kind, key, and then pydantic's own bookkeeping about unions.
        in_column = loc[:1] in (["columns"], ["aside"]) and len(loc) > 3
        key = loc[3] if in_column else next((part for part in reversed(loc) if not part.isdigit()), "")
        where = f"column '{loc[1]}': " if loc[:1] in (["columns"], ["aside"]) and len(loc) > 1 else ""
        of_persons = loc[:1] == ["persons"] and len(loc) > 1
        where = "persons: " if of_persons else where
        if item["type"] == "extra_forbidden":
            of_column = list((KINDS | ASIDE)[loc[2]].model_fields) if in_column else list(allowed_keys)
            allowed = list(Persons.model_fields) if of_persons else of_column
            known = f" (allowed: {', '.join(allowed)})"
            hint = nearest(key, allowed) or ("" if any(known in problem for problem in problems) else known)
            problems.append(f"{where}unknown key '{key}'{hint}")
        elif item["type"] in ("union_tag_invalid", "union_tag_not_found"):
            kinds = [*KINDS, *ASIDE]
            kind = item["input"].get("kind") if isinstance(item["input"], Mapping) else None
            hint = nearest(kind, kinds) if isinstance(kind, str) else ""
            problems.append(f"{where}kind must be one of {', '.join(kinds)}{hint}")
        elif item["type"] == "missing":
            problems.append(f"{where}missing key '{key}'")
        elif in_column and key in _EXPECTED:
            problems.append(f"{where}{key} must be {_EXPECTED[key]}")
        else:
            name = f"{key}: " if key and (in_column or of_persons or not where) else ""
            problems.append(f"{where}{name}{plainly(item)}")
    return first_of([*dict.fromkeys(problems)], 8, ";")


_EXPECTED = {
    "bins": "a number of bins, a list of ascending edges, 'values', or 'private'",
    "categories": "a list of at least one text, number or boolean",
    "other": "true, false, or the category for unknown values",
    "groups": "a mapping from a category to a list of values",
}


def require_usable(schema: Any) -> None:
    """Refuses names and labels that a schema cannot have. Raises ValueError."""
    if any(not name.strip() for name in schema.every_column):
        raise ValueError("every column needs a name that is not blank")
    if schema.label in schema.aside:
        raise ValueError(
            f"the label '{schema.label}' is set aside (kind {schema.aside[schema.label].kind}): it is not modelled"
        )
    if schema.label in schema.derived:
        raise ValueError(f"the label '{schema.label}' is computed by a constraint: it is not modelled")
    if getattr(schema.columns.get(schema.label), "hidden", False):
        raise ValueError(f"the label '{schema.label}' is hidden: no table has it, to compare a prediction with")
    if schema.label is not None and schema.label not in schema.columns:
        raise ValueError(f"the label '{schema.label}' is not a column{nearest(schema.label, schema.columns)}")


def require_names(needed: Sequence[str], present: Sequence[str], where: str) -> None:
    """Checks the column names of a table; further columns are ignored.

    Raises:
        DataError: columns that are needed are missing or doubled.
    """
    absent = [name for name in needed if name not in present]
    if absent:
        hints = first_of([f"'{name}'{nearest(name, present)}" for name in absent], 10)
        raise DataError(f"{where} lacks columns of the schema: {hints}")
    doubled = [name for name in needed if present.count(name) > 1]
    if doubled:
        raise DataError(f"{where} has more than one column named '{doubled[0]}'")
