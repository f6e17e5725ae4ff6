"""The schema: the public description of a table, and the two-way road between a table and integer codes.

A schema names the columns in order and fixes, from public knowledge, which values each may hold: the
categories of a categorical column, or the bounds and bins of a numeric one. Encoding is a total,
deterministic function of a row: whatever a row holds, it gets a code, so the presence or absence of a row
never shows as an error.
"""

from fedsyn.domain import Clique, Domain
from fedsyn.schema.aside import AsideColumn, DropColumn, IdentifierColumn, TextColumn
from fedsyn.schema.binned import BinnedColumn, NumericColumn
from fedsyn.schema.columns import BooleanColumn, CategoricalColumn, CodeColumn, Column
from fedsyn.schema.draft import draft_columns
from fedsyn.schema.model import Schema
from fedsyn.schema.quantities import DecimalColumn, IntegerColumn
from fedsyn.schema.temporal import DateColumn, DatetimeColumn, DurationColumn, TimeColumn

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
