"""One column as plain data (JSON, YAML)."""

from __future__ import annotations

from typing import Any

from fedsyn.table.schema.aside import ASIDE
from fedsyn.table.schema.base import REMARKS
from fedsyn.table.schema.binned import BinnedColumn, NumericColumn
from fedsyn.table.schema.columns import BooleanColumn
from fedsyn.table.schema.quantities import IntegerColumn


def column_dict(column: Any) -> dict[str, Any]:
    """A column as `Schema.from_dict` takes it, without the settings that have their default value."""
    data = column.model_dump(mode="json", exclude_defaults=True)
    remarks = {remark: data.pop(remark) for remark in REMARKS if remark in data}
    remarks |= {"approved": column.approved} if column.drafted and column.kind not in ASIDE else {}
    data = {"kind": column.kind, **data}
    if isinstance(column, BooleanColumn):
        data.pop("categories", None)
    if isinstance(column, BinnedColumn):
        if isinstance(column.bins, tuple):
            data.pop("lower", None)
            data.pop("upper", None)
        if _written_as_integer(column):
            for key in ("lower", "upper"):
                if key in data:
                    data[key] = int(data[key])
            if isinstance(column.bins, tuple):
                data["bins"] = [int(edge) for edge in column.bins]
    return {**data, **remarks}


def _written_as_integer(column: BinnedColumn) -> bool:
    return isinstance(column, IntegerColumn) or (isinstance(column, NumericColumn) and column.whole)
