"""Rows that break constraints, counted beside real ones."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsyn.evaluation.real.comparison import TableComparison, compare_tables
from fedsyn.evaluation.report.evaluations import evaluation_page
from fedsyn.table.schema import Schema

WITHIN, ACROSS = "start <= stop", "stop <= next.start"
DAY: dict[str, Any] = {"kind": "integer", "lower": 0, "upper": 99, "bins": 10}
SCHEMA: dict[str, Any] = {
    "columns": {"who": {"kind": "identifier", "person": True}, "start": DAY, "stop": DAY},
    "constraints": [WITHIN, ACROSS],
    "persons": {"id": "who", "order": "start", "most_rows": 4},
}


def stays(persons: int = 100) -> pd.DataFrame:
    """Four stays of each person, of ten days, twenty days apart."""
    start = np.tile(np.arange(0, 80, 20), persons)
    return pd.DataFrame({"who": np.repeat(np.arange(persons), 4), "start": start, "stop": start + 10})


def compared(real: pd.DataFrame, made: pd.DataFrame, **other: Any) -> TableComparison:
    schema = Schema.from_dict({**SCHEMA, **other})
    return compare_tables(real.astype(str), made, schema=schema, rng=np.random.default_rng(0))


def counts(found: TableComparison) -> dict[str, tuple[int | None, int | None]]:
    return {one.constraint: (one.real, one.synthetic) for one in found.constraints}


def shown(found: TableComparison, path: Path) -> str:
    return html.unescape(evaluation_page(found, path / "page.html", "stays").read_text(encoding="utf-8"))


def test_breaks_of_both_kinds_are_counted_in_both_tables(tmp_path: Path) -> None:
    real, made = stays(), stays(50)
    real.loc[[0, 4, 9], "stop"] = [25, 99, 45]  # each reaches beyond the next stay's begin
    real.loc[[3], "stop"] = 0  # and one ends before it begins
    found = compared(real, made)
    assert counts(found) == {WITHIN: (1, 0), ACROSS: (3, 0)}
    assert TableComparison.of_document(found.document()).constraints == found.constraints
    page = shown(found, tmp_path)
    assert "No synthetic row breaks a constraint." in page and ACROSS in page
    found = compared(made, real)
    assert counts(found) == {WITHIN: (0, 1), ACROSS: (0, 3)}
    assert f"Synthetic rows break '{WITHIN}', '{ACROSS}'." in shown(found, tmp_path)


def test_what_a_table_lacks_is_not_known(tmp_path: Path) -> None:
    found = compared(stays().drop(columns="who"), stays())
    assert counts(found) == {WITHIN: (0, 0), ACROSS: (None, 0)}
    page = shown(found, tmp_path)
    assert "not known" in page and "No synthetic row breaks a constraint." in page
    found = compared(stays(), stays().drop(columns="who"))
    assert counts(found) == {WITHIN: (0, 0), ACROSS: (0, None)}
    assert "No synthetic row breaks a constraint that could be checked." in shown(found, tmp_path)


def test_a_schema_without_constraints_says_nothing_of_them(tmp_path: Path) -> None:
    found = compared(stays(), stays(), constraints=[])
    assert not found.constraints and "breaks a constraint" not in shown(found, tmp_path)
