"""View of a schema in a notebook.

It shows nothing that was read from the data and is not approved, but a draft's hints: they are for the person who has
the rows, and go as they are answered.
"""

from __future__ import annotations

import textwrap
from typing import Any

from fedsyn.notebook import Bar, View
from fedsyn.output import counted

# Letters of a list of names or categories.
_WIDTH = 60


def described(schema: Any) -> str:
    """Describes a schema in one line.

    The line says how many columns there are, and their first names.
    """
    parts = [f"{counted(len(schema.columns), 'column')}: {short(schema.columns)}"]
    parts += [f"{len(schema.derived)} computed"] if schema.derived else []
    parts += [f"{len(schema.aside)} left out"] if schema.aside else []
    parts += [counted(len(schema.constraints), "constraint")] if schema.constraints else []
    parts += [f"{len(schema.unapproved)} to approve"] if schema.unapproved else []
    parts += [f"hints on {short(schema.hints)}"] if schema.hints else []
    return "; ".join(parts)


def short(names: Any) -> str:
    """Returns names in one line.

    The last names are left out if there are many.
    """
    return textwrap.shorten(", ".join(map(str, names)), _WIDTH, placeholder=" ...")


def view_of(schema: Any) -> View:
    """Returns the view of a schema.

    It has one line a column, and a bar for the values or bins of each column that is modelled.
    """
    waiting, known = schema.unapproved, schema.to_dict()["columns"]
    rows = []
    for name, column in schema.every_column.items():
        words = "read from the data, not approved" if name in waiting else _values(known[name], schema.open.get(name))
        missing = "yes" if column.missing else ""
        rows.append((name, column.kind, "left out" if name in schema.aside else words, missing))
    bars = [Bar(name, column.size) for name, column in schema.columns.items() if name not in waiting]
    notes = [f"Constraint: {rule}" for rule in schema.to_dict().get("constraints", ())]
    notes += [f"{name}: {hint}" for name, hints in schema.hints.items() for hint in hints]
    title = f"Schema of {described(schema)}"
    return View(title, ("column", "kind", "values", "may be missing"), rows, notes, "values or bins", bars)


def _values(data: dict[str, Any], wanted: Any) -> str:
    if wanted is not None:
        return "found by the run, with noise"
    if "categories" in data:
        return f"{len(data['categories'])}: {short(data['categories'])}"
    ends = f"{data['lower']} to {data['upper']}" if "lower" in data and "upper" in data else ""
    bins = data.get("bins")
    return ", ".join(filter(None, (ends, counted(bins, "bin") if isinstance(bins, int) else "")))
