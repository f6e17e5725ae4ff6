"""Whole persons beside real ones, where the truth is planted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn.errors import DataError
from fedsyn.evaluation.real.comparison import TableComparison, compare_tables
from fedsyn.evaluation.real.persons import Rows, persons_score, whole_people
from fedsyn.evaluation.verdict import OfPersons
from fedsyn.table.data.records import RecordMaker
from fedsyn.table.schema import Schema
from fedsyn.table.schema.column_base import IdentifierColumn
from fedsyn.table.schema.drafted_persons import differing, proposed_persons
from fedsyn.table.schema.drafting import draft_columns
from fedsyn.table.schema.holdings import Holding
from fedsyn.table.schema.joined import joined
from fedsyn.table.schema.persons import COUNT

WARDS = ("children", "heart", "surgery", "eye")
SCHEMA: dict[str, Any] = {
    "columns": {
        "patient": {"kind": "identifier", "make": "sequence"},
        "sex": {"kind": "categorical", "categories": ["f", "m"]},
        "born": {"kind": "date", "lower": "1930-01-01", "upper": "2022-12-31", "bins": 8},
        "admitted": {"kind": "date", "lower": "2022-01-01", "upper": "2026-12-31", "bins": 8},
        "ward": {"kind": "categorical", "categories": list(WARDS)},
        "nights": {"kind": "integer", "lower": 0, "upper": 20, "bins": 8},
        "paid": {"kind": "numeric", "lower": 0, "upper": 5000, "bins": 8},
    },
    "persons": {"id": "patient", "order": "admitted", "constant": ["sex", "born"], "most_rows": 12},
}


def visits(persons: int, seed: int = 0) -> pd.DataFrame:
    """Women have more visits; the ward goes by that of the visit before; gaps are a week or more; most pay nothing."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["f", "m"], persons)
    counts = np.minimum(rng.geometric(np.where(sex == "f", 0.3, 0.5)), 12)
    whose = np.repeat(np.arange(persons), counts)
    first = np.r_[True, whose[1:] != whose[:-1]]
    ward, day = rng.integers(0, 4, len(whose)), rng.integers(0, 400, len(whose))
    gaps, stays = 7 + rng.geometric(1 / 40, len(whose)), rng.random(len(whose)) < 0.75
    for at in np.flatnonzero(~first):
        day[at] = day[at - 1] + gaps[at]
        ward[at] = ward[at - 1] if stays[at] else ward[at]
    born = pd.Timestamp("2020-01-01") - pd.to_timedelta(rng.integers(0, 30_000, persons), unit="D")
    return pd.DataFrame(
        {
            "patient": [f"P{number:05d}" for number in rng.permutation(99_999)[:persons][whose]],
            "sex": sex[whose],
            "born": born.strftime("%Y-%m-%d").to_numpy()[whose],
            "admitted": (pd.Timestamp("2022-01-01") + pd.to_timedelta(day, unit="D")).strftime("%Y-%m-%d"),
            "ward": np.array(WARDS)[ward],
            "nights": rng.poisson(np.where(ward == 2, 5, 2)),
            "paid": np.where(rng.random(len(whose)) < 0.92, 0, rng.lognormal(4, 1, len(whose)).round(2)),
        }
    )


def compared(real: pd.DataFrame, synthetic: pd.DataFrame, **persons: Any) -> TableComparison:
    schema = Schema.from_dict({**SCHEMA, "persons": {**SCHEMA["persons"], **persons}})
    return compare_tables(real, synthetic, schema=schema, rng=np.random.default_rng(0))


def of_persons(comparison: TableComparison) -> OfPersons:
    judged = comparison.verdict().persons
    assert judged is not None
    return judged


def fit(comparison: TableComparison) -> dict[str, bool | None]:
    return {use.name: use.fit for use in comparison.verdict().uses()}


PERSONS = ("counts of people", "next rows", "aggregates of people")


@pytest.fixture(scope="module")
def halves() -> tuple[pd.DataFrame, pd.DataFrame]:
    table = visits(3000)
    first = {*table["patient"].unique()[:1500]}
    return table[table["patient"].isin(first)], table[~table["patient"].isin(first)]


def test_a_second_half_of_the_same_persons_is_right(halves: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """All is kept: also a date of birth, which stands in many rows of one person and in no row of another."""
    found = compared(*halves)
    assert all(found.verdict().uses()[at].fit is not False for at in range(7)), found.verdict().sentences()
    assert all(fit(found)[use] for use in PERSONS)
    assert {one.state for one in found.verdict().columns} == {"kept"}
    score = found.persons
    assert score is not None and (score.real, score.synthetic) == (1500, 1500)
    assert [column.name for column in score.columns] == [COUNT, "sex", "born"]
    linked = {pair.name for pair in score.steps if pair.linked}
    assert {"ward × next ward", "admitted × next admitted"} <= linked
    assert score.gap is not None and score.gap.moments is not None
    (mean, _), _ = score.gap.moments
    assert mean == pytest.approx(47.0, abs=3.0)  # 7 days and a geometric number of mean 40


def test_rows_shuffled_over_persons_are_wrong_and_only_so(halves: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """Every column and every pair inside rows is as it was; only whose rows they are is lost."""
    real, other = halves
    ids = np.random.default_rng(1).permutation(other["patient"].to_numpy())
    found = compared(real, other.assign(patient=ids))
    uses = fit(found)
    assert uses["counts of single columns"] and uses["tables of two columns"] and uses["regression"]
    assert not any(uses[use] for use in PERSONS)
    lost = {one.name for one in of_persons(found).every if one.state == "lost"}
    assert {"sameness of sex", "sameness of born", "ward × next ward", "sex × number of rows"} <= lost
    assert "days to the next admitted" in lost and "different values of ward" in lost
    assert COUNT not in lost  # there are as many rows of each as before
    assert found.verdict().sentence().startswith("The sameness of born is lost")
    assert "sex" in found.remedy() and "under persons.constant in the schema" in found.remedy()


def test_rows_that_stand_alone_are_no_persons(halves: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """An identifier for each row, as a table of rows has it."""
    real, other = halves
    found = compared(real, other.assign(patient=np.arange(len(other))))
    judged = {one.name: one for one in of_persons(found).every}
    assert judged[COUNT].state == "lost" and fit(found)["counts of people"] is False
    assert found.verdict().sentence().startswith("The number of rows is lost")


def test_a_person_without_rows_is_no_row(halves: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """What is missing in all columns of a person without rows links no columns, and the person is counted."""
    real, other = (half.copy() for half in halves)
    for table in (real, other):
        first = ~table["patient"].duplicated() & (np.arange(len(table)) % 7 == 0)
        alone = table["patient"].isin(table.loc[first, "patient"])
        table.drop(table.index[alone & ~first], inplace=True)
        table.loc[first, ["admitted", "ward", "nights", "paid"]] = np.nan
    found = compared(real, other, least_rows=0)
    assert found.persons is not None and found.persons.real == 1500
    assert found.real_rows == int(real["paid"].notna().sum()) < len(real)
    assert found.synthetic_rows == int(other["paid"].notna().sum()) < len(other)
    numbers = found.persons.columns[0]
    assert "0" in numbers.labels and numbers.real[numbers.labels.index("0")] > 0.1
    assert not any("paid" in pair.name and pair.linked for pair in found.pairs)
    assert found.persons.columns[0].judged().state == "kept"


def test_facts_of_persons_are_what_their_rows_say() -> None:
    """By hand: three persons, whose rows stand in no order in the file."""
    rows = [("a", 3, "x", 5.0), ("b", 1, "y", 1.0), ("a", 1, "y", 1.0), ("a", 2, "x", 0.0), ("c", 1, "x", 7.0)]
    table = pd.DataFrame(rows, columns=["id", "day", "kind", "cost"])
    schema = Schema.from_dict(
        {
            "columns": {
                "id": {"kind": "identifier"},
                "day": {"kind": "integer", "lower": 0, "upper": 9},
                "kind": {"kind": "categorical", "categories": ["x", "y"]},
                "cost": {"kind": "numeric", "lower": 0, "upper": 9},
            },
            "persons": {"id": "id", "order": "day", "most_rows": 5},
        }
    )
    found = persons_score(table, table, ["day", "kind", "cost"], schema, np.random.default_rng(0))
    assert not isinstance(found, str) and found.most == (3, 3) and found.real == 3
    facts = {one.name: one for one in found.facts}
    means = {name: facts[name].moments[0][0] for name in facts if facts[name].moments}  # type: ignore[index]
    assert means["mean cost"] == pytest.approx((2.0 + 1.0 + 7.0) / 3)
    assert means["largest cost"] == pytest.approx((5.0 + 1.0 + 7.0) / 3)
    assert means["first cost"] == pytest.approx((1.0 + 1.0 + 7.0) / 3)
    assert means["last cost"] == pytest.approx((5.0 + 1.0 + 7.0) / 3)
    assert means["different values of kind"] == pytest.approx((2 + 1 + 1) / 3)
    assert means["share of the commonest kind"] == pytest.approx((2 / 3 + 1 + 1) / 3)
    first = facts["first kind"]
    assert first.judged().state == "kept" and first.of == "people"
    assert sorted(first.real) == pytest.approx([1 / 3, 2 / 3], abs=1e-4)
    assert {one.name: one.real for one in found.same} == {"day": 1.0, "kind": 1.0, "cost": 1.0}
    gap = found.gap
    assert gap is not None and gap.name == "difference to the next day" and gap.moments is not None
    assert gap.moments[0] == (1.0, 0.0)


def test_steps_go_from_row_to_row_of_one_person() -> None:
    rows = Rows.of(np.array([0, 1, 0, 2, 0]), np.array([False, False, False, True, False]), np.array([3.0, 1, 1, 9, 2]))
    assert rows.counts.tolist() == [3, 1, 0]
    here, after = rows.steps
    assert list(zip(here.tolist(), after.tolist(), strict=True)) == [(2, 4), (4, 0)]


def test_a_large_table_is_read_in_whole_persons() -> None:
    ids = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 7))
    wanted = whole_people(ids, 350, np.random.default_rng(0))
    assert wanted is not None and 343 <= wanted.sum() <= 350
    assert {*np.bincount(ids[wanted])} == {0, 7}
    assert whole_people(ids, 700, np.random.default_rng(0)) is None


def test_a_run_a_draft_two_tables_and_a_comparison_see_the_same_persons() -> None:
    """Eleven persons: 3 with a name, of whom "1", 1 and 1.0 are one, and 8 rows of nobody else's."""
    ids = ["1", 1, 1.0, "b", "b", "c", "", None, float("nan"), "NA", "NA", " n/a ", "unknown", "unknown"]
    ward = ["heart", "eye"] * 7
    rows = pd.DataFrame({"patient": pd.Series(ids, dtype=object), "ward": ward, "sex": "f"})
    schema = Schema.from_dict(
        {
            "columns": {
                "patient": {"kind": "identifier"},
                "sex": {"kind": "categorical", "categories": ["f", "m"], "missing": True},
                "ward": {"kind": "categorical", "categories": ["heart", "eye"], "missing": True},
            },
            "missing_values": ["unknown"],
            "persons": {"id": "patient", "constant": ["sex"], "most_rows": 5, "tables": ["patients", "visits"]},
        }
    )
    maker = RecordMaker(schema, np.random.default_rng(0))
    Holding(schema, maker).encoded(rows)
    maker.record()
    two = pd.DataFrame({"patient": [1, "b", "c"], "sex": "f"}), rows[["patient", "ward"]]
    whole = joined(*two, schema, ("patients", "visits"))
    found = persons_score(rows, whole, ["ward"], schema, np.random.default_rng(0))
    assert not isinstance(found, str)
    assert (maker.records, found.real, found.synthetic, found.most) == (11, 11, 11, (3, 3))
    assert whole["sex"].notna().sum() == 6 and len(whole) == len(rows)  # rows without an identifier meet nobody
    guesses = draft_columns(rows.assign(patient=rows["patient"].map(str)), keep=["ward"])
    column = IdentifierColumn(person=True)
    guesses["patient"] = replace(guesses["patient"], column=column)
    unsaid = Schema.from_dict(schema.to_dict() | {"persons": None})
    draft = proposed_persons(unsaid, guesses, rows, np.zeros(len(rows), int))
    assert draft is not None and (draft.people, draft.rows, draft.most) == (11, 14, 3)
    assert differing(schema, rows.assign(sex=["f", "m", *["f"] * 12])) == {"sex": 1}


def test_a_table_without_the_identifier_says_so() -> None:
    table = visits(200)
    found = compared(table, table.drop(columns="patient"))
    assert found.persons is None and "'patient'" in found.missing["persons"]
    assert TableComparison.of_document(found.document()).to_dict() == found.to_dict()


@pytest.mark.parametrize("empty", ["real", "synthetic"])
def test_persons_none_of_whom_has_a_row_are_not_compared(empty: str) -> None:
    keys = SCHEMA["persons"] | {"least_rows": 0, "tables": ["people", "visits"]}
    schema, whole = Schema.from_dict(SCHEMA | {"persons": keys}), visits(50)
    none = whole.drop_duplicates("patient").assign(**dict.fromkeys(["admitted", "ward", "nights", "paid"], np.nan))
    tables = (none, whole) if empty == "real" else (whole, none)
    with pytest.raises(DataError, match=f"the {empty} table has persons, none of whom has a row"):
        compare_tables(*tables, schema=schema, rng=np.random.default_rng(0))
