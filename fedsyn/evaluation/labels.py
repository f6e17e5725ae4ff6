"""What codes stand for, as text for axes and tables."""

from __future__ import annotations

from fedsyn.table.schema import BinnedColumn, Column


def axis_labels(column: Column) -> tuple[str, ...]:
    """The value of each code, or the lower edge of its bin; dates as dates.

    >>> from fedsyn.table.schema import NumericColumn
    >>> axis_labels(NumericColumn(lower=0, upper=9, bins=3, dtype="integer", missing=True))
    ('0', '4', '7', 'missing')
    """
    values = column.labels() if isinstance(column, BinnedColumn) else [str(value) for value in column.values]
    return (*values, *(["missing"] if column.missing else []))
