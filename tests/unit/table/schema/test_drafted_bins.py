"""A draft's bins: few where noise is, many where rows are, and many where a column is skewed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedsyn.table.schema import BinnedColumn, Schema
from fedsyn.table.schema.draft import draft_columns
from fedsyn.table.schema.drafted_bins import FINEST


def table(rows: int, columns: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    found = {f"even{i}": rng.random(rows).round(6) for i in range(columns)}
    found |= {f"bell{i}": rng.normal(size=rows).round(6) for i in range(columns)}
    return pd.DataFrame(found | {"skewed": np.exp(1.5 * rng.normal(size=rows)).round(6)})


def bins(rows: int, columns: int = 1) -> dict[str, int]:
    schema = Schema.draft(table(rows, columns))
    return {name: column.size for name, column in schema.columns.items()}


def test_more_rows_have_more_bins_and_more_columns_fewer() -> None:
    few, some, many, wide = bins(300), bins(1_000), bins(100_000), bins(1_000, 20)  # of a pair the tenth: 32 at last
    assert few["bell0"] < some["bell0"] < many["bell0"] == FINEST == many["even0"]
    assert wide["bell0"] < some["bell0"]


def test_what_is_even_needs_few_bins_and_what_is_skewed_many() -> None:
    found = bins(1_000)
    assert found["even0"] < found["bell0"] < found["skewed"] == FINEST


@pytest.mark.parametrize("rows", [120, 400])
def test_fewer_bins_of_whole_numbers_are_alike(rows: int) -> None:
    days = pd.date_range("2020-01-01", periods=rows)
    frame = pd.DataFrame({"age": np.arange(rows) % 90, "day": days})
    for column in Schema.draft(frame).columns.values():
        assert isinstance(column, BinnedColumn) and column.size < FINEST
        assert np.ptp(np.diff(column.edges)) <= 1.0


def test_a_number_that_is_asked_for_stays() -> None:
    found = draft_columns(table(300), bins=20)
    assert {guess.column.bins for guess in found.values() if isinstance(guess.column, BinnedColumn)} == {20}
