"""What is wrong with a schema, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from fedsyn.errors import nearest, plainly
from fedsyn.table.schema.aside import ASIDE
from fedsyn.table.schema.columns import KINDS

#: What stands above a draft.
DRAFT_NOTE = """\
# A DRAFT: this schema was read from data. What a column lists under `drafted` may tell something about single
# rows (a largest income, a rare category). Put public knowledge in its place, or `private` (a run then finds bounds,
# bins or categories with noise), or make sure that it is public as it stands; then set its `approved: true`, or let
# `fedsyn schema review` do so. Until then no run accepts it.
# Columns of kind identifier, text and drop are left out of the synthetic table. To keep one, change its kind.
"""


def describe(error: ValidationError, allowed_keys: Sequence[str]) -> str:
    """All problems of a schema in one line, each with its place and, for an unknown key, the nearest valid
    one.
    """
    problems: list[str] = []
    for item in error.errors(include_url=False):
        loc = [str(part) for part in item["loc"]]
        # Inside a column: columns, name, kind, key, and then pydantic's own bookkeeping about unions.
        in_column = loc[:1] in (["columns"], ["aside"]) and len(loc) > 3
        key = loc[3] if in_column else loc[-1] if loc else ""
        where = f"column '{loc[1]}': " if loc[:1] in (["columns"], ["aside"]) and len(loc) > 1 else ""
        if item["type"] == "extra_forbidden":
            allowed = list((KINDS | ASIDE)[loc[2]].model_fields) if in_column else list(allowed_keys)
            known = f" (allowed: {', '.join(allowed)})"
            hint = nearest(key, allowed) or ("" if any(known in problem for problem in problems) else known)
            problems.append(f"{where}unknown key '{key}'{hint}")
        elif item["type"] in ("union_tag_invalid", "union_tag_not_found"):
            kinds = [*KINDS, *ASIDE]
            given = item["input"].get("kind") if isinstance(item["input"], Mapping) else None
            hint = nearest(given, kinds) if isinstance(given, str) else ""
            problems.append(f"{where}kind must be one of {', '.join(kinds)}{hint}")
        elif item["type"] == "missing":
            problems.append(f"{where}missing key '{key}'")
        elif in_column and key in _EXPECTED:
            problems.append(f"{where}{key} must be {_EXPECTED[key]}")
        else:
            name = f"{key}: " if key and (in_column or not where) else ""
            problems.append(f"{where}{name}{plainly(item)}")
    distinct = list(dict.fromkeys(problems))
    more = f"; and {len(distinct) - 8} more" if len(distinct) > 8 else ""
    return "; ".join(distinct[:8]) + more


def not_approved(left: Mapping[str, Sequence[str]]) -> str:
    """The refusal of a drafted schema; `left`: column -> what was read from the data and nobody approved."""
    marks = "; ".join(f"{name}: {', '.join(items)}" for name, items in left.items())
    rare = any("rare" in items for items in left.values())
    return (
        f"this schema was drafted from data and is not approved. Read from the data: {marks}. "
        "Replace each by public knowledge, or by 'private' to have it found with noise, "
        "or make sure that it is public as it stands, "
        "then set 'approved: true' in the column (fedsyn schema review does it)"
        + (
            "; where 'rare' stands, few rows hold some category: take these out and delete 'rare', or say why they are "
            "public (public: WHY)"
            if rare
            else ""
        )
    )


_EXPECTED = {
    "bins": "a number of bins, a list of ascending edges, 'values', or 'private'",
    "categories": "a list of at least one text, number or boolean",
    "other": "true, false, or the category for unknown values",
    "groups": "a mapping from a category to a list of values",
}
