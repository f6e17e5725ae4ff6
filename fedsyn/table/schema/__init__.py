"""Public description of a table, and its encoding.

The encoding is the two-way road between a table and integer codes.

A schema names the columns in order and fixes, from public knowledge, which values each may hold: the
categories of a categorical column, or the bounds and bins of a numeric one. Encoding is a total,
deterministic function of a row: whatever a row holds, it gets a code, so the presence or absence of a row
never shows as an error.
"""

from fedsyn.table.schema.binned import BinnedColumn, NumericColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.model import Schema

__all__ = ["BinnedColumn", "CategoricalColumn", "NumericColumn", "Schema"]
