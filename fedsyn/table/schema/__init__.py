"""The schema: the public description of a table, and the two-way road between a table and integer codes.

A schema names the columns in order and fixes, from public knowledge, which values each may hold: the
categories of a categorical column, or the bounds and bins of a numeric one. Encoding is a total,
deterministic function of a row: whatever a row holds, it gets a code, so the presence or absence of a row
never shows as an error.
"""

from fedsyn.domain import Clique, Domain
from fedsyn.table.schema.binned import BinnedColumn, NumericColumn
from fedsyn.table.schema.column_base import AsideColumn, DropColumn, IdentifierColumn, TextColumn
from fedsyn.table.schema.columns import BooleanColumn, CategoricalColumn, CodeColumn, Column
from fedsyn.table.schema.draft import draft_columns
from fedsyn.table.schema.model import Schema
from fedsyn.table.schema.ordered import (
    DateColumn,
    DatetimeColumn,
    DecimalColumn,
    DurationColumn,
    IntegerColumn,
    TimeColumn,
)

__all__ = [
    "AsideColumn",
    "BinnedColumn",
    "BooleanColumn",
    "CategoricalColumn",
    "Clique",
    "CodeColumn",
    "Column",
    "DateColumn",
    "DatetimeColumn",
    "DecimalColumn",
    "Domain",
    "DropColumn",
    "DurationColumn",
    "IdentifierColumn",
    "IntegerColumn",
    "NumericColumn",
    "Schema",
    "TextColumn",
    "TimeColumn",
    "draft_columns",
]
