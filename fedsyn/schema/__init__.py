"""The schema: the public description of a table, and the two-way road between a table and integer codes.

A schema names the columns in order and fixes, from public knowledge, which values each may hold: the
categories of a categorical column, or the bounds and bins of a numeric one. Encoding is a total,
deterministic function of a row: whatever a row holds, it gets a code, so the presence or absence of a row
never shows as an error.
"""

from fedsyn.domain import Clique, Domain
from fedsyn.schema.columns import CategoricalColumn, Column, NumericColumn
from fedsyn.schema.draft import draft_schema
from fedsyn.schema.model import Schema

__all__ = [
    "CategoricalColumn",
    "Clique",
    "Column",
    "Domain",
    "NumericColumn",
    "Schema",
    "draft_schema",
]
