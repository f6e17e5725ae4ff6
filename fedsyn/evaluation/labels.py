"""What codes stand for, as text for axes and tables."""

from __future__ import annotations

from fedsyn.schema import CategoricalColumn, Column


def axis_labels(column: Column) -> tuple[str, ...]:
    """The value of each code, or the lower edge of its bin; dates as dates.

    >>> from fedsyn.schema import NumericColumn
    >>> axis_labels(NumericColumn(lower=0, upper=9, bins=3, dtype="integer", missing=True))
    ('0', '4', '7', 'missing')
    """
    if isinstance(column, CategoricalColumn):
        values = [str(value) for value in column.values]
    else:
        values = [f"{edge:.4g}" for edge in column.edges[:-1]]
    return (*values, *(["missing"] if column.missing else []))
