"""The schema: files, messages, approval, and the encoding of every kind of value."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from fedsyn.errors import DataError, SchemaError
from fedsyn.front.testing.schemas import awkward_table, awkward_tables
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema


def encode(column, values, dtype=None):
    schema = Schema(columns={"x": column})
    return schema.encode(pd.DataFrame({"x": pd.Series(values, dtype=dtype)}))[:, 0].tolist()


# Files and messages


def test_yaml_keeps_text_that_yaml_1_1_would_turn_into_something_else():
    schema = Schema.loads(
        """
        columns:
          answer: {kind: categorical, categories: [yes, no, on, 12:30, 010, 2020-01-01, 1_000, NA]}
          typed: {kind: categorical, categories: [true, 3, 1.5, "3x"]}
          number: {kind: numeric, lower: 0, upper: 1e3}
        """
    )
    assert schema.columns["answer"].categories == (
        "yes", "no", "on", "12:30", "010", "2020-01-01", "1_000", "NA",
    )  # fmt: skip
    assert [type(v) for v in schema.columns["typed"].categories] == [bool, int, float, str]
    assert schema.columns["number"].upper == 1000
    assert Schema.loads(schema.dumps()) == schema


@pytest.mark.parametrize("table", awkward_tables(), ids=lambda table: table.name)
def test_save_and_load_give_the_same_schema(table, tmp_path):
    path = tmp_path / "schema.yaml"
    table.schema.save(path)
    loaded = Schema.load(path)
    assert loaded == table.schema
    assert loaded.sha256 == table.schema.sha256
    assert loaded.domain == table.schema.domain
    assert list(loaded.columns) == list(table.schema.columns)


def test_the_hash_changes_with_what_decides_the_encoding_and_not_with_approval():
    base = Schema.draft(pd.DataFrame({"a": [1, 2, 3], "b": ["u", "v", "u"]}))
    data = base.to_dict()
    assert Schema.from_dict({**data, "approved": True}).sha256 == base.sha256
    by_hand = {name: {k: v for k, v in c.items() if k != "drafted"} for name, c in data["columns"].items()}
    assert Schema.from_dict({"columns": by_hand}).sha256 == base.sha256
    assert base.adjusted(2).sha256 != base.sha256
    assert base.adjusted(label="b").sha256 != base.sha256
    swapped = {**data, "columns": dict(reversed(data["columns"].items()))}
    assert Schema.from_dict(swapped).sha256 != base.sha256


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("columns: {a: {kind: numeric, lowr: 1, upper: 3}}", ["'a'", "'lowr'", "did you mean 'lower'"]),
        ("colums: {}", ["'colums'", "did you mean 'columns'"]),
        ("columns: {}", ["columns"]),
        ("columns: {a: {kind: numbers}}", ["'a'", "kind must be one of categorical, boolean"]),
        ("columns: {a: {lower: 1}}", ["'a'", "kind must be one of categorical, boolean"]),
        ("columns: {a: {kind: numeric, lower: 5, upper: 3}}", ["'a'", "lower (5) is above upper (3)"]),
        ("columns: {a: {kind: numeric}}", ["'a'", "lower and upper"]),
        ("columns: {a: {kind: numeric, lower: 0, upper: .inf}}", ["'a'", "finite"]),
        ("columns: {a: {kind: numeric, lower: 0, upper: 1, bins: 0}}", ["'a'", "bins"]),
        (
            "columns: {a: {kind: numeric, lower: 0, upper: 1, bins: many}}",
            ["'a'", "bins must be a number of"],
        ),
        ("columns: {a: {kind: numeric, bins: [0, 2, 1]}}", ["'a'", "ascend"]),
        ("columns: {a: {kind: numeric, lower: 1, bins: [0, 2]}}", ["'a'", "first and the last"]),
        ("columns: {a: {kind: numeric, dtype: integer, lower: 0.5, upper: 2}}", ["'a'", "integer bounds"]),
        ("columns: {a: {kind: numeric, lower: 0, upper: 2, bins: values}}", ["'a'", "dtype: integer"]),
        ("columns: {a: {kind: categorical, categories: []}}", ["'a'", "at least one"]),
        ("columns: {a: {kind: categorical, categories: [x, x]}}", ["'a'", "distinct"]),
        ("columns: {a: {kind: categorical, categories: [1, '1']}}", ["'a'", "distinct"]),
        ("columns: {a: {kind: categorical, categories: [.nan]}}", ["'a'", "missing: true"]),
        ("columns: {a: {kind: categorical, categories: [x], groups: {y: [z]}}}", ["'a'", "group 'y'"]),
        ("columns: {a: {kind: categorical, categories: [x]}}\nlabel: b", ["label 'b'"]),
        ("columns: {' ': {kind: categorical, categories: [x]}}", ["not blank"]),
        ("columns: {1: {kind: categorical, categories: [x]}}", ["quotes"]),
        ("columns: {a: {kind: categorical, categories: [x]}, a: {}}", ["twice"]),
        (
            "columns: {a: {kind: categorical, categories: [x]}}\nmissing_values: [true]",
            ["missing_values: must be text"],
        ),
        ("columns: [", ["not valid YAML"]),
        ("- just a list", ["expected a mapping"]),
    ],
)
def test_a_wrong_schema_gets_one_message_with_the_place_and_the_remedy(text, parts):
    with pytest.raises(SchemaError) as caught:
        Schema.loads(text, where="my.yaml")
    message = str(caught.value)
    assert message.startswith("my.yaml: ")
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_numbers_stand_for_missing_values_as_they_are_written() -> None:
    schema = Schema.loads("columns: {a: {kind: boolean, missing: true}}\nmissing_values: [999, -9.5, 99.0, '?']\n")
    assert schema.missing_values == ("999", "-9.5", "99", "?") and "'999'" in schema.dumps()


def test_an_unreadable_schema_file_is_a_schema_error(tmp_path):
    with pytest.raises(SchemaError, match="No such file"):
        Schema.load(tmp_path / "nowhere.yaml")
    (tmp_path / "latin.yaml").write_bytes("columns: {größe: {}}".encode("latin-1"))
    with pytest.raises(SchemaError, match="UTF-8"):
        Schema.load(tmp_path / "latin.yaml")


# Categories


def test_categories_match_whatever_type_the_value_arrives_in():
    numbers = CategoricalColumn(categories=(0, 1, 2))
    assert encode(numbers, [2, 0, 1]) == [2, 0, 1]
    assert encode(numbers, [2.0, 0.0, 1.0]) == [2, 0, 1]
    assert encode(numbers, ["2", " 0", "1.0"]) == [2, 0, 1]
    assert encode(numbers, [2, 0, 1], "category") == [2, 0, 1]
    assert encode(numbers, [2, 0, 1], "Int64") == [2, 0, 1]
    text = CategoricalColumn(categories=("0", "1-3", "4+"), other=False)
    assert encode(text, [0, 0]) == [0, 0]  # a file whose rows all hold 0 reads as numbers
    assert encode(text, [0.0, "4+", " 1-3 "]) == [0, 2, 1]
    flags = CategoricalColumn(categories=(False, True))
    assert encode(flags, [True, False]) == [1, 0]
    assert encode(flags, ["True", "false", "TRUE", "0", 1, 0.0, 0]) == [1, 0, 1, 0, 1, 0, 0]


def test_an_unknown_category_goes_to_other_or_missing_and_never_raises():
    strange = ["b", "unseen", "", None, 3.5, True, float("inf"), ("a",)]
    assert encode(CategoricalColumn(categories=("a", "b")), strange) == [1] + [2] * 7
    assert encode(CategoricalColumn(categories=("Other", "b")), strange) == [1] + [0] * 7
    assert encode(CategoricalColumn(categories=("a", "b"), other="a"), strange) == [1] + [0] * 7
    assert encode(CategoricalColumn(categories=("a", "b", "c"), other=False), strange) == [1]  # others are left out
    assert encode(CategoricalColumn(categories=("a", "b", "c"), unlisted=True), strange) == [1] + [3] * 7
    with_missing = CategoricalColumn(categories=("a", "b"), missing=True)
    assert encode(with_missing, strange) == [1, 2, 3, 3, 2, 2, 2, 2]
    closed = CategoricalColumn(categories=("a", "b"), other=False, missing=True)
    assert encode(closed, strange) == [1] + [2] * 7


def test_a_number_that_is_no_category_becomes_none_of_them():
    column = CategoricalColumn(categories=(10, -5, 0))
    values = [10, 11, 1e9, float("inf"), -5, -99, 2, "0.0", "4.9", "text", None]
    assert encode(column, values) == [0, 1, 2]
    named = CategoricalColumn(categories=(10, -5, 0), other=-1)
    assert encode(named, [10, 7, "text"]) == [0, 3, 3]


def test_groups_are_encoded_as_their_category():
    column = CategoricalColumn(
        categories=("normal", "dos"), groups={"dos": ("smurf", "neptune")}, other=False, missing=True
    )
    assert encode(column, ["smurf", "normal", "dos", "neptune", "new", None]) == [1, 0, 1, 1, 2, 2]


def test_text_for_missing_is_a_category_where_the_schema_says_so():
    plain = Schema(columns={"x": CategoricalColumn(categories=("a", "NA"), missing=True)})
    frame = pd.DataFrame({"x": ["NA", "", "NaN", None, "a"]})
    assert plain.encode(frame)[:, 0].tolist() == [1, 3, 3, 3, 0]
    marked = Schema(columns={"x": NumericColumn(lower=0, upper=2, bins=2, missing=True)}, missing_values=("?", "none"))
    frame = pd.DataFrame({"x": ["0.5", " ?", "none", "2", "NA"]})
    assert marked.encode(frame)[:, 0].tolist() == [0, 2, 2, 1, 2]


# Numbers


def test_numbers_outside_the_bounds_go_to_the_nearest_bin():
    column = NumericColumn(lower=0, upper=4, bins=4)
    inf = float("inf")
    assert encode(column, [0, 0.99, 1, 3.99, 4, 4.01, 1e300, inf, -0.01, -inf]) == [
        0, 0, 1, 3, 3, 3, 3, 3, 0, 0,
    ]  # fmt: skip
    assert encode(column, [2.5, None, float("nan")]) == [2]  # the other rows are left out
    column = NumericColumn(lower=0, upper=4, bins=4, missing=True)
    assert encode(column, [2.5, None, float("nan")]) == [2, 4, 4]


def test_integer_bins_hold_whole_integers_and_differ_by_at_most_one():
    column = NumericColumn(lower=17, upper=90, bins=32, dtype="integer")
    codes = np.array(encode(column, list(range(17, 91))))
    assert (np.diff(codes) >= 0).all()
    sizes = np.bincount(codes, minlength=32)
    assert sizes.tolist().count(0) == 0
    assert sizes.max() - sizes.min() == 1
    np.testing.assert_array_equal(codes, np.arange(74) * 32 // 74)  # the equal-width rule in whole numbers
    few = NumericColumn(lower=1, upper=16, bins=32, dtype="integer")
    assert few.size == 16
    assert encode(few, list(range(1, 17))) == list(range(16))
    large = NumericColumn(lower=-(2**53), upper=2**53, bins=7, dtype="integer")
    assert large.size == 7
    assert encode(large, [-(2**53), 0, 2**53]) == [0, 3, 6]


def test_explicit_edges_include_the_last_edge():
    integers = NumericColumn(bins=(0, 1, 10, 100), dtype="integer")
    assert encode(integers, [0, 1, 9, 10, 100, 500]) == [0, 1, 1, 2, 2, 2]
    floats = NumericColumn(bins=(0, 0.5, 10))
    assert encode(floats, [0, 0.49, 0.5, 10]) == [0, 0, 1, 1]
    assert (floats.lower, floats.upper) == (0, 10)
    schema = Schema(columns={"x": NumericColumn(bins=(0, 1, 3), dtype="integer")})
    decoded = schema.decode(np.ones((200, 1), dtype=np.uint8), np.random.default_rng(0))["x"]
    assert set(decoded) == {1, 2, 3}


def test_with_bins_changes_numbers_of_bins_and_leaves_the_authors_choices():
    schema = Schema(
        columns={
            "equal": NumericColumn(lower=0, upper=1),
            "edges": NumericColumn(bins=(0, 1, 3)),
            "codes": NumericColumn(lower=0, upper=84, dtype="integer", bins="values"),
            "text": CategoricalColumn(categories=("a",), other=False),
        }
    )
    assert schema.domain.shape == (32, 2, 85, 1)
    assert schema.adjusted(100).domain.shape == (100, 2, 85, 1)
    with pytest.raises(SchemaError, match="bins"):
        schema.adjusted(0)


def test_text_and_dates_in_a_numeric_column_are_placed_nowhere_and_counted():
    schema = Schema(columns={"age": NumericColumn(lower=0, upper=99)})
    encoder = schema.encoder()
    block = encoder.block(pd.DataFrame({"age": ["12", "x", "", "y", "1_000"]}))
    assert (len(block.codes), encoder.unplaced, encoder.left_out) == (1, {"age": 4}, 4)
    encoder = schema.encoder()
    assert len(encoder.block(pd.DataFrame({"age": pd.to_datetime(["2020-01-01"])})).codes) == 0
    assert encoder.unplaced == {"age": 1}


def test_missing_and_doubled_columns_are_refused_and_further_ones_ignored():
    schema = Schema(columns={"age": NumericColumn(lower=0, upper=99), "sex": CategoricalColumn(categories=("f", "m"))})
    frame = pd.DataFrame({"extra": [1], "sex": ["m"], "age": [50]})
    assert schema.encode(frame).tolist() == [[16, 1]]
    with pytest.raises(DataError, match=r"'age' \(did you mean 'agee'\?\)"):
        schema.encode(frame.rename(columns={"age": "agee"}))
    with pytest.raises(DataError, match="more than one column named 'sex'"):
        schema.encode(pd.concat([frame, frame[["sex"]]], axis=1))


# Whole tables


def test_codes_take_the_smallest_type():
    def dtype(size: int) -> np.dtype:
        schema = Schema(columns={"x": NumericColumn(lower=1, upper=size, bins="values", dtype="integer")})
        codes = schema.encode(pd.DataFrame({"x": [1, size]}))
        assert codes[:, 0].tolist() == [0, size - 1]
        return codes.dtype

    assert [dtype(n) for n in (256, 257, 65_536, 65_537)] == [np.uint8, np.uint16, np.uint16, np.int32]


def test_decode_gives_back_names_order_and_dtypes():
    table = awkward_table("missing_values")
    frame = table.frame
    assert list(frame) == list(table.schema.columns)
    assert frame.dtypes.astype(str).tolist()[:4] == ["Int64", "float64", "boolean", "Int64"]
    assert all(frame[name].isna().any() for name in frame)
    plain = awkward_table("odd_names").frame
    assert plain["größe (µm²)"].dtype == np.int64
    assert plain["1"].dtype == np.int64
    assert plain["a.b/c"].dtype == np.float64
    assert set(plain["true"]) <= {"yes", "no", "NA"}


def test_decode_is_uniform_inside_the_bin():
    schema = Schema(
        columns={
            "f": NumericColumn(lower=0, upper=10, bins=2),
            "i": NumericColumn(lower=0, upper=19, bins=2, dtype="integer"),
        }
    )
    n = 20_000
    frame = schema.decode(np.ones((n, 2), dtype=np.uint8), np.random.default_rng(0))
    counts = np.histogram(frame["f"], bins=10, range=(5, 10))[0]
    assert counts.sum() == n
    assert np.abs(counts - n / 10).max() < 5 * np.sqrt(n / 10)
    counts = frame["i"].value_counts()
    assert sorted(counts.index) == list(range(10, 20))
    assert np.abs(counts - n / 10).max() < 5 * np.sqrt(n / 10)


def test_decode_repeats_with_the_seed_and_refuses_codes_outside_the_domain():
    table = awkward_table("two_rows")
    codes = table.encode()
    first = table.schema.decode(codes, np.random.default_rng(1))
    pd.testing.assert_frame_equal(first, table.schema.decode(codes, np.random.default_rng(1)))
    with pytest.raises(ValueError, match="outside the domain"):
        table.schema.decode(codes + 50, np.random.default_rng(1))
    with pytest.raises(ValueError, match="do not fit"):
        table.schema.decode(codes[:, :2], np.random.default_rng(1))


def test_an_empty_table_encodes_and_decodes():
    for table in awkward_tables():
        codes = table.schema.encode(table.frame.iloc[:0])
        assert codes.shape == (0, len(table.schema.columns))
        assert len(table.schema.decode(codes, np.random.default_rng(0))) == 0


# Drafting


def people() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [30, 41, 22, 67],
            "weight": [70.5, 81.0, None, 60.25],
            "city": ["Bonn", "Köln", None, "Bonn"],
            "kids": [1, None, 0, 3],
            "member": [True, False, True, True],
            "nothing": [None] * 4,
            "outcome": [0, 1, 1, 0],
        }
    )


def test_draft_marks_what_it_read_and_is_refused_until_approved(tmp_path):
    draft = Schema.draft(people(), bins=8, label="outcome")
    columns = draft.columns
    assert (columns["age"].lower, columns["age"].upper, columns["age"].kind) == (0, 70, "integer")
    assert (columns["weight"].kind, columns["weight"].places, columns["weight"].missing) == ("decimal", 2, True)
    assert columns["kids"].kind == "integer"  # floats only because a value is missing
    assert columns["city"].values == ("Bonn", "Köln")
    assert draft.aside["nothing"].kind == "drop"
    assert columns["member"].categories == (False, True)
    assert columns["outcome"].categories == (0, 1)
    assert draft.drafted["age"] == ("kind", "bounds", "missing", "notation")
    assert draft.drafted["city"] == ("kind", "categories", "missing", "rare", "notation")
    assert set(draft.drafted) == set(people())

    path = tmp_path / "draft.yaml"
    draft.save(path)
    assert "A DRAFT" in path.read_text(encoding="utf-8")
    with pytest.raises(SchemaError) as caught:
        Schema.load(path).require_approved()
    assert "age: kind, bounds, missing" in str(caught.value)
    assert "approved: true" in str(caught.value)
    assert "67" not in str(caught.value)

    approved = path.read_text(encoding="utf-8").replace("approved: false", "approved: true")
    with pytest.raises(SchemaError, match=r"city: kind, categories, missing, rare.*few rows hold some category"):
        Schema.loads(approved).require_approved()
    listed = approved.replace(", rare, notation]", ", notation]\n    public: towns are on the map")
    Schema.loads(listed).require_approved()
    assert draft.encode(people()).shape == (4, 6)


def test_a_schema_written_by_hand_needs_no_approval():
    awkward_table("two_rows").schema.require_approved()


def test_draft_keeps_the_most_frequent_of_too_many_categories(monkeypatch):
    monkeypatch.setattr("fedsyn.table.schema.draft.MOST_CATEGORIES", 2)
    monkeypatch.setattr("fedsyn.table.schema.draft.LONG_LIST", 2)
    monkeypatch.setattr("fedsyn.table.schema.vocabulary.FEW_ROWS", 2)
    column = Schema.draft(pd.DataFrame({"x": ["b", "c", "a", "b", "a"]})).columns["x"]
    assert column.categories == ("a", "b")
    assert encode(column, ["c"]) == [2]


def test_draft_refuses_what_has_no_schema():
    with pytest.raises(DataError, match="no rows"):
        Schema.draft(pd.DataFrame({"a": []}))
    with pytest.raises(DataError, match="more than one column is named 'a'"):
        Schema.draft(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(DataError, match="did you mean 'outcome'"):
        Schema.draft(people(), label="outcom")


def test_importing_the_client_side_modules_does_not_import_pandas():
    code = (
        "import sys, fedsyn.table.schema, fedsyn.table.data; "
        "import fedsyn.table.counting.marginals, fedsyn.table.counting.workload; "
        "print([m for m in ('pandas', 'pyarrow', 'sklearn', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
