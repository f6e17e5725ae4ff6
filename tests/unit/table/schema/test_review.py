"""Approval, column by column: what is left, which categories few rows hold, and a file that keeps its comments."""

from __future__ import annotations

import pandas as pd
import pytest

from fedsyn.errors import SchemaError
from fedsyn.table.schema import Schema
from fedsyn.table.schema.approval import How, findings, left
from fedsyn.table.schema.review import (
    approve,
    proposed_lines,
    stated,
    typed,
    with_column,
    without_remarks,
)

TEXT = """\
# ours
columns:
  age:            # in years
    kind: integer
    lower: 0
    upper: 110
    drafted: [kind, bounds, missing]
    approved: false

  # where they lie
  ward:
    kind: categorical
    categories: [north, south, west]
    other: other
    drafted: [kind, categories, missing]
    approved: false
  town: {kind: categorical, categories: [a, b], drafted: [categories, rare], approved: false}
  name:
    kind: identifier
    drafted: [kind]
label: ward  # to predict
"""


DAYS = "{kind: date, lower: 2024-01-01, upper: 2024-12-31, format: '%d.%m.%Y', drafted: [bounds]}"


def rows(west: int = 3) -> pd.DataFrame:
    ward = ["north"] * 40 + ["south"] * (60 - west) + ["west"] * west
    ages = [str(20 + k % 50) for k in range(100)]
    return pd.DataFrame({"age": ages, "ward": ward, "town": ["a"] * 50 + ["c"] * 50, "name": ["x"] * 100})


def test_what_is_left_is_said_per_column() -> None:
    schema = Schema.loads(TEXT)
    words = left(schema)
    assert list(words) == ["age", "ward", "town"]
    assert words["age"] == ["its kind", "its bounds and bins", "whether values are missing"]
    assert any("some of its categories are held by fewer than 10" in word for word in words["town"])
    found = findings(schema, rows())
    assert found["ward"].rare == ("west",) and found["town"].shown.endswith("; 50 rows with something else")
    assert any("1 of its categories is held by fewer than 10" in word for word in left(schema, found)["ward"])
    assert findings(schema, rows(), few=3)["ward"].rare == ()
    assert not left(Schema.loads(TEXT.replace("approved: false", "approved: true").replace(", rare", "")))


def test_cells_that_a_kind_cannot_read_are_counted() -> None:
    frame = rows().assign(age=["30"] * 97 + ["old", "?", ""])
    assert findings(Schema.loads(TEXT), frame)["age"].shown.endswith("; 2 rows with something else")


def test_approval_changes_one_column_and_nothing_else() -> None:
    text = approve(TEXT, ["age"])
    assert text == TEXT.replace("approved: false", "approved: true", 1)
    schema = Schema.loads(text)
    assert schema.columns["age"].approved and list(schema.unapproved) == ["ward", "town"]


def test_a_category_of_few_rows_needs_a_reason() -> None:
    found = findings(Schema.loads(TEXT), rows())
    with pytest.raises(SchemaError, match=r"1 of the categories of 'ward' is held by fewer than 10 rows.*--public WHY"):
        approve(TEXT, ["age", "ward"], seen=found)
    with pytest.raises(SchemaError, match=r"categories of 'town' are held by fewer than 10 rows"):
        approve(TEXT, ["town"])  # without the table the draft's mark counts
    text = approve(TEXT, ["ward"], How(public="the hospital's wards are on its web page"), found)
    assert Schema.loads(text).columns["ward"].public == "the hospital's wards are on its web page"
    assert approve(TEXT, ["ward"], seen=findings(Schema.loads(TEXT), rows(west=10)))


def test_the_message_names_no_category() -> None:
    with pytest.raises(SchemaError) as caught:
        approve(TEXT, ["ward"], seen=findings(Schema.loads(TEXT), rows()))
    assert "west" not in str(caught.value)


def test_rare_categories_fold_into_other() -> None:
    column = Schema.loads(approve(TEXT, ["ward"], How(fold=True), findings(Schema.loads(TEXT), rows()))).columns["ward"]
    assert column.categories == ("north", "south") and column.other_value == "other" and column.approved
    with pytest.raises(SchemaError, match="every category of 'ward' is held by few rows: set its kind to drop"):
        approve(TEXT, ["ward"], How(fold=True), findings(Schema.loads(TEXT), rows(), few=1000))


def test_what_is_not_public_is_left_to_the_run() -> None:
    found = findings(Schema.loads(TEXT), rows())
    text = approve(TEXT, ["age", "ward", "town"], How(private=True), found)
    schema = Schema.loads(text)
    assert set(schema.open) == {"age", "ward", "town"} and not schema.unapproved
    assert "110" not in text and "west" not in text and "# where they lie" in text


def test_a_mark_of_the_draft_goes_when_the_table_shows_otherwise() -> None:
    schema = Schema.loads(approve(TEXT, ["town"], seen=findings(Schema.loads(TEXT), rows())))
    assert schema.columns["town"].drafted == ("categories",) and "town" not in schema.unapproved


def test_a_flag_set_by_hand_does_not_publish_what_few_rows_hold() -> None:
    by_hand = TEXT.replace("approved: false", "approved: true")
    with pytest.raises(SchemaError, match="town: categories, rare"):
        Schema.loads(by_hand).require_approved()
    with pytest.raises(SchemaError, match="town: categories, rare"):
        Schema.loads(f"{TEXT}approved: true\n").require_approved()
    Schema.loads(by_hand.replace("approved: true}", "approved: true, public: on the map}")).require_approved()


def test_columns_are_written_where_they_stand() -> None:
    new = {"kind": "categorical", "categories": ["yes", "01"], "approved": True}
    text = with_column(TEXT, "town", new)
    assert "# ours" in text and "# where they lie" in text and "# to predict" in text
    assert Schema.loads(text).columns["town"].categories == ("yes", "01")
    text = with_column(TEXT, "age", {"kind": "integer", "lower": 0, "upper": 9})
    assert list(Schema.loads(text).every_column) == ["age", "ward", "town", "name"] and "# where they lie" in text
    assert Schema.loads(text).columns["age"].upper == 9
    flow = "columns: {a: {kind: integer, lower: 0, upper: 1, drafted: [bounds]}, b: {kind: boolean}}\n"
    assert Schema.loads(approve(flow, ["a"])).columns["a"].approved


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(SchemaError, match=r"has no column 'wards' \(did you mean 'ward'\?\)"):
        approve(TEXT, ["wards"])
    with pytest.raises(SchemaError, match="has no column 'x'"):
        with_column(TEXT, "x", {})


def test_a_schema_is_edited_and_approved_as_an_object() -> None:
    schema = Schema.draft(rows(), text=True)
    assert schema.columns["age"].drafted == ("kind", "bounds", "missing")
    edited = schema.edited(age={"lower": 0, "upper": 110, "missing": True}, ward={"other": None, "public": "known"})
    assert edited.columns["age"].drafted == ("kind", "bins") and edited.columns["age"].upper == 110
    assert left(edited)["age"] == ["its kind", "its bins"]  # as many as the rows carry, still
    assert schema.edited(age={"lower": 0, "upper": 110, "bins": 11}).columns["age"].drafted == ("kind", "missing")
    assert edited.edited(age={"bins": 11}).columns["age"].drafted == ("kind",)
    assert edited.approve("age", private=True).columns["age"].drafted == ("kind",)
    assert schema.columns["age"].upper != 110  # the old one is as it was
    assert edited.edited(age={"kind": "drop"}).aside["age"].kind == "drop"
    approved = edited.approve(frame=rows())
    approved.require_approved()
    assert list(schema.approve("age").unapproved) == ["ward", "town"]  # `name` is one value in every row
    with pytest.raises(SchemaError, match="held by fewer than 10 rows"):
        schema.approve(frame=rows())
    assert schema.approve(frame=rows(), fold=True).columns["ward"].categories == ("north", "south")
    assert schema.approve("ward", private=True).open.keys() == {"ward"}
    for edit in (lambda: schema.edited(agee={}), lambda: schema.approve("agee")):
        with pytest.raises(SchemaError, match=r"no column 'agee' \(did you mean 'age'\?\)"):
            edit()


# What a draft remarks, and what is typed ------------------------------------------------------------------------------


def remarked() -> str:
    """A draft with remarks on two columns and three constraints."""
    n = 200
    admitted = pd.Timestamp("2024-01-01") + pd.to_timedelta([k % 90 for k in range(n)], "D")
    frame = pd.DataFrame(
        {
            "patient_id": [f"p{k % 50}" for k in range(n)],
            "age": [99 if k % 9 == 0 else k % 80 for k in range(n)],
            "ward": ["north", "south", "west", "west"] * (n // 4),
            "side": ["N", "S", "W", "W"] * (n // 4),
            "admitted": admitted,
            "discharged": admitted + pd.to_timedelta([k % 11 for k in range(n)], "D"),
        }
    )
    return Schema.draft(frame).dumps()


def remarks_on(text: str, name: str) -> list[str]:
    return list(Schema.loads(text).hints.get(name, ()))


def test_remarks_stand_where_they_belong_and_change_nothing() -> None:
    text = remarked()
    assert remarks_on(text, "patient_id")[0].startswith("50 people, up to 4 rows each")
    assert remarks_on(text, "age")[0].startswith("99 stands apart") and remarks_on(text, "ward") == []
    assert [one.rule for one in proposed_lines(text)] == [
        "{determines: ward, column: side, map: {north: N, south: S, west: W}}",
        "admitted <= discharged",
        "discharged <= next.admitted",
    ]
    plain = Schema.loads(without_remarks(text))
    assert (
        plain.to_dict() == Schema.loads(text).to_dict() and not plain.hints and "#?" not in without_remarks(text)[900:]
    )


def test_a_remark_goes_as_its_column_is_answered_and_the_note_in_the_end() -> None:
    text = remarked()
    after = approve(text, ["age"])
    assert remarks_on(after, "age") == [] and remarks_on(after, "patient_id") and after.startswith("# A DRAFT")
    after = approve(after, list(Schema.loads(after).unapproved))
    assert "DRAFT" not in after and "50 people" not in after and len(proposed_lines(after)) == 3


def test_a_proposed_constraint_is_stated_or_goes() -> None:
    text = remarked()
    one, other, along = proposed_lines(text)
    first, second, third = one.rule, other.rule, along.rule
    assert (other.rows, along.rows) == ("200", "150") and 0 < float(other.breaks) < 100  # 50 rows have no next one
    after = stated(text, second, holds=True)
    assert [rule.text for rule in Schema.loads(after).constraints] == [second] and len(proposed_lines(after)) == 2
    both = stated(stated(after, first, holds=True), third, holds=False)
    assert [rule.text for rule in Schema.loads(both).constraints] == ["ward -> side", second]
    assert "These hold" not in both
    none = stated(stated(stated(text, first, holds=False), second, holds=False), third, holds=False)
    assert Schema.loads(none).constraints == () and "constraints:" not in none and "#?" not in none[-200:]


def test_bounds_and_categories_are_typed() -> None:
    column = Schema.loads(typed(TEXT, "age", "0, 120")).columns["age"]
    assert (column.lower, column.upper, column.approved, column.drafted) == (0, 120, True, ("kind", "bins", "missing"))
    tail = TEXT.replace("lower: 0\n    upper: 110", "bins: [0, 10, 20, 50, 110]")
    column = Schema.loads(typed(tail, "age", "-5, 40")).columns["age"]
    assert column.bins == (-5, 0, 10, 20, 40)  # the edges between stay
    assert Schema.loads(tail).edited(age={"upper": 60}).columns["age"].bins == (0, 10, 20, 50, 60)
    column = Schema.loads(typed(tail, "age", "0, 9")).columns["age"]
    assert (column.lower, column.upper, column.bins) == (0, 9, 4)  # one bin would be left of four
    column = Schema.loads(tail).edited(age={"upper": 10}).columns["age"]
    assert (column.lower, column.upper, column.bins) == (0, 10, 4)
    column = Schema.loads(typed(TEXT, "ward", "north; the east; south")).columns["ward"]
    assert column.categories == ("north", "the east", "south") and column.approved
    assert Schema.loads(typed(TEXT, "town", "a, b")).columns["town"].drafted == ()  # nothing rare is left
    text = remarked()
    column = Schema.loads(typed(text, "admitted", "2024-01-01, 2024-12-31")).columns["admitted"]
    assert (column.lower, column.upper) == ("2024-01-01", "2024-12-31")
    for name, answer, said in (
        ("age", "0", "expected two bounds, such as '0, 110', got 1"),
        ("age", "9, 2", r"lower \(9\) is above upper \(2\)"),
        ("age", "low, high", "lower: must be a number"),
        ("came", "NA, NaN", "is not a date in ISO 8601"),
        ("ward", "north, north", "categories must be distinct"),
        ("name", "a, b", "of kind identifier"),
    ):
        with pytest.raises(SchemaError, match=said):
            typed(TEXT.replace("  name:", f"  came: {DAYS}\n  name:"), name, answer)


def test_the_holder_sees_the_rows() -> None:
    found = findings(Schema.loads(TEXT), rows().assign(age=[*map(str, range(20, 118)), "", "x"]))
    said = "from 20 to 117, half of them up to 69; 1 missing; 1 row with something else"
    assert found["age"].shown == said
    shares = TEXT.replace("upper: 110", "upper: 110\n    atoms: [0]\n    censored: [<5]\n    missing_codes: [-9]")
    ages = ["0"] * 60 + [*map(str, range(20, 50))] + ["<5"] * 4 + ["-9"] * 3 + ["", "x", "y"]
    found = findings(Schema.loads(shares), rows().assign(age=ages))
    said = "from 0 to 49, half of them up to 0; 60 hold 0; 3 hold -9; 4 hold <5; 1 missing; 2 rows with something else"
    assert found["age"].shown == said
    assert found["ward"].shown == "south 57, north 40, west 3; 1 held by fewer than 10 rows"


def test_an_order_keeps_to_the_categories_that_are_left() -> None:
    text = """\
columns:
  x: {kind: categorical, categories: [low, high, no answer], ordered: true, unordered: [no answer], drafted: [kind]}
"""
    assert Schema.loads(typed(text, "x", "low, high")).columns["x"].unordered == ()
    assert Schema.loads(approve(text, ["x"], How(private=True))).open.keys() == {"x"}
    frame = pd.DataFrame({"x": ["low", "high"] * 20 + ["no answer"]})
    folded = approve(text, ["x"], How(fold=True), findings(Schema.loads(text), frame))
    assert Schema.loads(folded).columns["x"].unordered == ()
