"""A draft's bins: few where noise is, many where rows are, and many where a column is skewed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedsyn.table.schema import BinnedColumn, Schema
from fedsyn.table.schema.drafted_bins import FINEST
from fedsyn.table.schema.drafting import draft_columns


def table(rows: int, columns: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    found = {f"even{i}": rng.random(rows).round(6) for i in range(columns)}
    found |= {f"bell{i}": rng.normal(size=rows).round(6) for i in range(columns)}
    return pd.DataFrame(found | {"skewed": np.exp(1.5 * rng.normal(size=rows)).round(6)})


def bins(rows: int, columns: int = 1) -> dict[str, int]:
    schema = Schema.draft(table(rows, columns))
    return {name: column.size for name, column in schema.columns.items()}


def edges(values: np.ndarray) -> list[float] | None:
    """The edges that a draft lists, None where it has equal bins."""
    column = Schema.draft(pd.DataFrame({"x": values})).columns["x"]
    assert isinstance(column, BinnedColumn)
    return list(column.bins) if isinstance(column.bins, tuple) else None


def test_more_rows_have_more_bins_and_more_columns_fewer() -> None:
    few, some, many, wide = bins(300), bins(1_000), bins(100_000), bins(1_000, 20)  # of a pair the tenth: 32 at last
    assert few["bell0"] <= some["bell0"] < many["bell0"] and few["skewed"] < some["skewed"] < many["skewed"]
    assert wide["bell0"] <= some["bell0"] and max(many.values()) <= FINEST


def test_what_is_even_needs_few_bins_and_what_is_skewed_many() -> None:
    found = bins(1_000)
    assert found["even0"] < found["bell0"] < found["skewed"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_long_tail_has_round_edges_between_its_bounds(whole: bool) -> None:
    values = np.exp(4.0 + 1.5 * np.random.default_rng(0).normal(size=2_000)) * np.where(np.arange(2_000) % 9, 1.0, -0.1)
    found = edges(np.round(values, 0 if whole else 2).astype(int if whole else float))
    assert found is not None and len(found) <= FINEST + 1 and found[0] <= values.min() and found[-1] >= values.max()
    assert all(float(f"{edge:.1e}") == edge for edge in found[1:-1])  # two digits
    assert np.diff(found).max() > 20 * np.diff(found).min()
    assert not whole or all(isinstance(edge, int) or edge.is_integer() for edge in found)


def test_what_has_no_long_tail_or_no_more_values_than_bins_has_equal_bins() -> None:
    rng = np.random.default_rng(0)
    assert edges(rng.normal(size=2_000).round(3)) is None
    assert edges(np.minimum(31, rng.geometric(0.6, 2_000))) is None  # each value has a bin
    dates = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.exp(6 * rng.random(2_000)).astype(int), "D")
    assert edges(np.asarray(dates)) is None


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


PEOPLE, EACH = 1_500, 12


def of_people() -> tuple[pd.DataFrame, pd.DataFrame]:
    """People with 12 rows each, and as many records as there are people, with the same shares of each value.

    A record has the columns that a run makes of them: "number of rows", the row's own, and those of the next row.
    """
    rng = np.random.default_rng(3)
    own = pd.DataFrame({"income": np.exp(8 + rng.normal(size=PEOPLE)).round(-1), "age": rng.integers(18, 90, PEOPLE)})
    row = pd.DataFrame(
        {"bell": rng.normal(size=PEOPLE).round(6), "cost": np.exp(4 + 1.5 * rng.normal(size=PEOPLE)).round(2)}
    )
    whose = np.repeat(np.arange(PEOPLE), EACH)
    some = (whose + np.tile(np.arange(EACH), PEOPLE)) % PEOPLE  # each value in 12 rows, of 12 people
    rows = pd.concat([own.iloc[whose].reset_index(drop=True), row.iloc[some].reset_index(drop=True)], axis=1)
    after = row.iloc[rng.permutation(PEOPLE)].reset_index(drop=True).add_prefix("next ")
    records = own.assign(number=rng.integers(1, 12, PEOPLE), **row, **after)
    return rows.assign(patient_id=[f"P{n:05d}" for n in whose]), records


@pytest.mark.parametrize("apart", [False, True])
def test_people_with_twelve_rows_have_the_bins_of_as_many_records(apart: bool) -> None:
    rows, records = of_people()
    own = ["patient_id", "income", "age"]
    visits = rows.drop(columns=["income", "age"])
    tables = {"patients": rows[own].drop_duplicates("patient_id"), "visits": visits} if apart else rows
    drafted, expected = Schema.draft(tables), Schema.draft(records)
    assert drafted.persons is not None and set(drafted.persons.constant) == {"income", "age"}
    fine = Schema.draft(rows.drop(columns="patient_id"))  # each row by itself
    for name in ("income", "age", "bell", "cost"):
        found, wanted, finer = (one.columns[name] for one in (drafted, expected, fine))
        assert isinstance(found, BinnedColumn) and isinstance(wanted, BinnedColumn) and isinstance(finer, BinnedColumn)
        assert found.edges.tolist() == wanted.edges.tolist(), name
        assert found.size < finer.size or (name, found.size) == ("income", finer.size), name


def test_a_value_of_one_person_is_not_listed() -> None:
    """Thirty rows hold it, of one person; another one thirty people hold."""
    rows, _ = of_people()
    rows["bell"] = np.round(rows["bell"], 3)
    rows.loc[rows["patient_id"] == "P00007", "bell"] = 0.5
    kinds = np.random.default_rng(0).choice([0, 10, 20, 50], len(rows))
    for person, told in ((rows.index < EACH, None), (rows.index < 40 * EACH, (0, 10, 20, 50, 77))):
        column = Schema.draft(rows.assign(kind_of=np.where(person, 77, kinds))).columns["kind_of"]
        assert isinstance(column, BinnedColumn) and (column.values or None) == told
