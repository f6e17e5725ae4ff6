"""Drafts of persons with several rows: a value is held by people, however many rows of theirs have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn import Schema
from fedsyn.errors import SchemaError
from fedsyn.evaluation.real.columns import ReadColumn
from fedsyn.evaluation.real.reading import UNNAMED
from fedsyn.front.cli.drafts import sentences
from fedsyn.lazy import pa
from fedsyn.table.schema.drafting import Draft, draft_of, drafted
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.whose import of_nobody

PEOPLE, EACH, FIFTY = 120, 5, 50


def visits(often: Any, **columns: Any) -> pd.DataFrame:
    """Returns the visits of 120 patients, 5 each, and of one more with 50.

    Args:
        often: what the one patient has in the column `what`, in all visits.
        columns: what the others have.
    """
    rng = np.random.default_rng(4)
    whose = np.repeat(np.arange(PEOPLE + 1), [*[EACH] * PEOPLE, FIFTY])
    table = pd.DataFrame({"patient_id": [f"p{i:04d}" for i in whose]})
    for name, values in columns.items():
        table[name] = pd.Series(rng.choice(np.array(values, object), len(whose)))
    table.loc[whose == PEOPLE, "what"] = often if np.ndim(often) == 0 else np.resize(np.array(often, object), FIFTY)
    return table


def by_rows(table: pd.DataFrame) -> Draft:
    """Returns the draft of the same rows, of which nobody says whose they are."""
    return drafted(Schema, table.drop(columns="patient_id"))


def test_a_word_of_one_patient_is_rare_however_many_visits_have_it() -> None:
    table = visits("Erdheim-Chester", what=["flu", "burn", "fracture"])
    draft = drafted(Schema, table)
    assert draft.persons is not None and draft.guesses["what"].rare == 1
    assert "rare" in draft.schema.columns["what"].drafted
    assert any(one.startswith("Categories that fewer than 10 people hold: what (1)") for one in sentences(draft, 650))
    with pytest.raises(SchemaError, match="held by fewer than 10 people"):
        draft.schema.approve("what", frame=table)
    with pytest.raises(SchemaError, match="held by fewer than 10 people"):
        draft.schema.approve("what")  # by what the draft marked
    folded = draft.schema.approve("what", frame=table, fold=True).columns["what"]
    assert "Erdheim-Chester" not in folded.categories
    alone = by_rows(table)
    assert not alone.guesses["what"].rare and alone.schema.approve("what", frame=table)


def test_the_rows_of_a_second_table_are_of_people_too() -> None:
    table = visits("Erdheim-Chester", what=["flu", "burn", "fracture"])
    patients = pd.DataFrame({"patient_id": table["patient_id"].unique(), "sex": ["f", "m", "m"] * 40 + ["f"]})
    draft = draft_of(Schema, {"patients": patients, "visits": table})
    assert draft.two is not None and draft.guesses["what"].rare == 1 and not draft.guesses["sex"].rare


@pytest.mark.parametrize("two", [False, True])
def test_identifiers_of_one_length_stay_as_long(two: bool) -> None:
    """With zeros in front they are text, and 1, 2, 3 in their place would read as numbers; numbers have no width."""
    table, widths = visits("burn", what=["flu", "burn"]), []
    numbers = table["patient_id"].str[1:].astype(int)
    for identifiers in (
        numbers.map("{:07d}".format),
        numbers + 1000,
        numbers.map("{:07d}".format).replace("0000003", "3"),
    ):
        table = table.assign(patient_id=identifiers)
        patients = pd.DataFrame({"patient_id": table["patient_id"].unique(), "sex": ["f", "m", "m"] * 40 + ["f"]})
        draft = draft_of(Schema, {"patients": patients, "visits": table} if two else table)
        column = draft.schema.aside["patient_id"]
        widths.append(column.width)  # type: ignore[attr-defined]
        assert ("width" in draft.schema.unapproved["patient_id"]) == (widths[-1] > 0) == ("width" in column.drafted)
    assert widths == [7, 0, 0]


def test_a_long_list_has_the_words_of_enough_people() -> None:
    table = visits("one patient's", what=[f"word {i}" for i in range(150)])
    table.loc[:299, "what"] = "common"  # 60 patients
    listed = drafted(Schema, table)
    assert {*listed.guesses["what"].column.categories} == {"common"}  # type: ignore[attr-defined]
    values, people = listed.guesses["what"].folded
    assert values > 100 and people == PEOPLE // 2 + 1  # each of them once
    assert "one patient's" in by_rows(table).guesses["what"].column.categories  # type: ignore[attr-defined]


def test_codes_that_are_rolled_up_are_counted_by_people() -> None:
    rng = np.random.default_rng(1)
    table = visits("x", what=["I10", "E11", "J45"])
    codes = [f"{a}{rng.integers(10)}.{rng.integers(10)}" for a in rng.choice(["I1", "E1", "J4"], len(table))]
    table["what"] = codes
    last = table["patient_id"] == f"p{PEOPLE:04d}"
    table.loc[last, "what"] = [f"Q98.{at % 10}" for at in range(FIFTY)]  # one category, fifty visits
    draft = drafted(Schema, table)
    column = draft.guesses["what"].column
    assert column.kind == "code" and (draft.guesses["what"].rare or "Q98" not in column.categories)  # type: ignore[attr-defined]
    assert "Q98" in by_rows(table).guesses["what"].column.categories  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("often", "values"),
    [(-999, [*range(36, 42)]), ("refused by the family", [*map(str, range(100, 160))])],
)
def test_a_code_for_missing_values_is_one_of_several_people(often: Any, values: list[Any]) -> None:
    table = visits(often, what=values)
    assert not drafted(Schema, table).guesses["what"].column.missing_codes  # type: ignore[attr-defined]
    assert by_rows(table).guesses["what"].column.missing_codes == (often,)  # type: ignore[attr-defined]


def test_no_hint_names_an_answer_of_one_patient() -> None:
    table = visits(["tea;insulin pump", "coffee;insulin pump"], what=["tea", "coffee", "tea;coffee"])
    hint = "several answers in one cell"
    assert not any(hint in one for one in drafted(Schema, table).guesses["what"].hints)
    assert any("insulin pump" in one for one in by_rows(table).guesses["what"].hints)


def test_no_constraint_names_a_value_of_one_patient() -> None:
    table = visits("z", what=["x", "y"])
    table["floor"] = table["what"].map({"x": "first", "y": "second", "z": "third"})
    assert [one.rule.text for one in by_rows(table).holding]
    assert not drafted(Schema, table).holding
    some = table[table["what"] != "z"]
    assert [one.rule.text for one in drafted(Schema, some).holding]


def test_a_column_that_differs_in_every_person_is_set_aside_as_one_that_differs_in_every_row() -> None:
    rng = np.random.default_rng(2)
    table = visits("a", what=["a", "b"])
    words = ["".join(letters) for letters in rng.choice([*"abcdefgh"], (PEOPLE + 1, 7))]
    table["contact"] = [words[int(one[1:])] for one in table["patient_id"]]
    draft = drafted(Schema, table)
    assert draft.persons is not None and draft.persons.persons.id == "patient_id"
    assert "contact" not in draft.schema.columns and "contact" not in draft.persons.persons.constant


def test_a_profile_of_people_agrees_with_one_of_each_persons_values() -> None:
    """Texts, counts, and what follows from them, against a table from which doubles were taken out."""
    rng = np.random.default_rng(3)
    series = pd.Series(rng.choice(["a1", "a2", "b1", " b1 ", None, "NA", "c9"], 400), name="x")
    whose = rng.integers(0, 30, 400)
    clean = series.str.strip().where(lambda cells: cells != "NA")
    once = pd.DataFrame({"x": clean, "who": whose}).drop_duplicates()
    found, wanted = Profile.of(series, whose=whose), Profile.of(once["x"])

    def same(one: Profile, other: Profile) -> bool:
        both = (one.texts.to_pylist(), one.counts.tolist(), one.rows, one.missing)
        return both == (other.texts.to_pylist(), other.counts.tolist(), other.rows, other.missing)

    assert same(found, wanted) and found.rows < len(series)
    letters = once.assign(x=once["x"].str[:1]).drop_duplicates()
    assert same(found.replaced(r"^(.).*$", r"\1"), Profile.of(letters["x"]))
    gone = once.assign(x=once["x"].where(once["x"] != "a1")).drop_duplicates()
    left = found.without({"a1"})
    assert (left.texts.to_pylist(), left.counts.tolist()) == (
        Profile.of(gone["x"]).texts.to_pylist(),
        Profile.of(gone["x"]).counts.tolist(),
    )
    assert (
        left.replaced(r"^(.).*$", r"\1").counts.tolist()
        == Profile.of(gone.assign(x=gone["x"].str[:1]).drop_duplicates()["x"]).counts.tolist()
    )
    held = found.held([[text[0], text[1]] for text in found.texts.to_pylist()])
    assert held["1"] == once[once["x"].str.endswith("1", na=False)]["who"].nunique()
    assert isinstance(found.texts, pa.Array)


def test_no_report_names_a_word_of_few_people() -> None:
    series = pd.Series(["flu"] * 40 + ["Erdheim-Chester"] * 40)
    whose = np.r_[np.arange(40), np.full(40, 40)]
    assert UNNAMED in ReadColumn.of([series], whose).reading.labels
    assert UNNAMED not in ReadColumn.of([series]).reading.labels


def test_a_row_of_nobody_says_nothing_that_differs_between_rows() -> None:
    columns = {
        "id": {"kind": "identifier"},
        "sex": {"kind": "categorical", "categories": ["f", "m"], "other": False},
        "land": {"kind": "categorical", "categories": ["DE", "NA"], "other": False, "missing": True},
        "cost": {"kind": "integer", "lower": 0, "upper": 9, "missing": True},
    }
    table = pd.DataFrame({"id": [1, 2, 3, 4], "sex": ["f", None, "m", "m"]})
    table["land"], table["cost"] = ["DE", " ", "NA", None], [None, "", "NA", "4"]
    for least, wanted in ((0, [False, True, False, False]), (1, [False] * 4)):
        persons = {"id": "id", "constant": ["sex"], "most_rows": 3, "least_rows": least}
        schema = Schema.from_dict({"columns": columns, "persons": persons})
        assert of_nobody(schema, table).tolist() == wanted  # NA is a country where a column lists it
