"""Columns of several holders: all differences in one message, and a column under another name."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fedsyn.errors import ConfigError, DataError
from fedsyn.runs.holders import load_rows
from fedsyn.table.data.alike import other_orders, require_same_columns, require_schema_columns, shared_columns
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import encode_file, read_table
from fedsyn.table.data.sources import read_cells
from fedsyn.table.schema import Schema

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 10},
            "ward": {"kind": "categorical", "categories": ["north", "south"]},
        }
    }
)
ROWS = pd.DataFrame({"Age": [7, 63, 41], "ward": ["south", "north", "south"], "Ward": ["x", "y", "z"]})


def test_all_differences_of_all_tables_are_in_one_message() -> None:
    """Case, names, what is too much and what is lacking; an order that differs is none."""
    names = {
        "a": ["age", "ward", "id_no"],
        "b": ["ward", "age", "id_no", "note"],
        "c": ["Age", "ward"],
        "d": ["id_no", "age"],
    }
    with pytest.raises(DataError) as caught:
        require_same_columns(names)
    assert str(caught.value) == (
        "all holders need the same columns, and these differ: b has 'note', which others lack; "
        "c lacks 'age', 'id_no' and has 'Age', which others lack; d lacks 'ward' "
        "(b, d: in another order, which changes nothing). "
        "Give what is the same one name: --rename Age=age, in a run data.options.rename: {Age: age}; "
        "and leave out what not all have: --common"
    )
    assert shared_columns({"a": ["x", "y", "z"], "b": ["z", "x"]}) == ["x", "z"]
    assert other_orders({"a": ["x", "y"], "b": ["y", "x"], "c": ["x", "y"]}) == ["b"]
    require_same_columns({"a": ["x", "y"], "b": ["y", "x"]})


def test_of_two_tables_the_first_is_taken_for_right() -> None:
    with pytest.raises(DataError, match=r"b lacks 'birth date' and has 'Birth-Date', which others lack. Give .*"):
        require_same_columns({"a": ["birth date"], "b": ["Birth-Date"]})


def test_what_tables_lack_of_a_schema_is_said_of_all_of_them() -> None:
    names = {"a": ["age"], "b": ["Age", "ward", "more"], "c": ["age", "ward"]}
    with pytest.raises(DataError) as caught:
        require_schema_columns(names, SCHEMA)
    assert str(caught.value) == (
        "a lacks columns of the schema: 'ward'; b lacks columns of the schema: 'age'. Give what is the same one name: "
        "--rename Age=age, in a run data.options.rename: {Age: age}; or set the column's kind to drop in the schema, "
        "if not all holders have it"
    )
    with pytest.raises(DataError, match=r"frame.rename\(columns={'Age': 'age'}\)"):
        require_schema_columns(names, SCHEMA, files=False)
    with pytest.raises(DataError, match="b has 'age' twice"):
        require_schema_columns({"b": ["age", "age", "ward"]}, SCHEMA)
    require_schema_columns({"c": ["ward", "age", "more"]}, SCHEMA)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".xlsx"])
def test_a_column_is_read_under_another_name(tmp_path: Path, suffix: str) -> None:
    """Whatever the file is, and also where the new name stands in the file for something else."""
    path = tmp_path / f"rows{suffix}"
    if suffix == ".xlsx":
        pytest.importorskip("openpyxl", reason="Excel files need openpyxl")
        ROWS.to_excel(path, index=False)
    elif suffix == ".parquet":
        ROWS.to_parquet(path)
    else:
        ROWS.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ";")
    with pytest.raises(DataError, match="lacks columns of the schema: 'age'"):
        encode_file(path, SCHEMA)
    how = FileOptions.of({"rename": {"Age": "age"}})
    codes = SCHEMA.encode(ROWS.rename(columns={"Age": "age"}))
    assert encode_file(path, SCHEMA, how).tolist() == codes.tolist()
    assert list(read_table(path, SCHEMA, how).columns) == ["age", "ward"]
    cells = read_cells(path, how)
    assert list(cells.frame.columns) == ["age", "ward", "Ward"] and cells.options.said()["rename"] == {"Age": "age"}
    swapped = FileOptions.of({"rename": {"Age": "age", "ward": "Ward", "Ward": "ward"}})
    assert list(read_cells(path, swapped).frame.columns) == ["age", "Ward", "ward"]
    assert encode_file(path, SCHEMA, swapped)[:, 1].tolist() == [SCHEMA.columns["ward"].code_of("x", frozenset())] * 3  # type: ignore[union-attr]
    schema = tmp_path / "schema.yaml"
    SCHEMA.save(schema)
    assert load_rows(str(path), str(schema), None, None, rename=(("Age", "age"),)).codes.tolist() == codes.tolist()


def test_below_a_title_names_are_found_by_what_they_become(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("Report of May\n" + ROWS.to_csv(index=False), encoding="utf-8")
    codes = encode_file(path, SCHEMA, {"rename": {"Age": "age", "other": "ward"}})
    assert codes.tolist() == SCHEMA.encode(ROWS.rename(columns={"Age": "age"})).tolist()


@pytest.mark.parametrize("value", ["Age", ["Age"], {"Age": 1}, {" ": "age"}, {"Age": ""}])
def test_a_renaming_is_a_mapping_of_names(value: object) -> None:
    with pytest.raises(ConfigError, match=r"names in a file to names in the schema, such as \{Age: age\}"):
        FileOptions.of({"rename": value})


def test_a_renamed_column_is_read_as_the_schema_has_it(tmp_path: Path) -> None:
    """Text stays text under its new name: 007 is a ward, and no number."""
    path = tmp_path / "rows.csv"
    path.write_text("Age,Ward\n7,007\n63,008\n", encoding="utf-8")
    schema = SCHEMA.edited(ward={"categories": ["007", "008"]})
    codes = encode_file(path, schema, {"rename": {"Age": "age", "Ward": "ward"}})
    assert codes.tolist() == [[0, 0], [6, 1]]


def test_a_name_and_a_column_more_are_two_remedies_together() -> None:
    """A new name alone would be refused again."""
    names = {"a": ["sex", "ward"], "b": ["sex", "Ward"], "c": ["sex", "ward", "bmi"]}
    with pytest.raises(DataError) as caught:
        require_same_columns(names)
    assert str(caught.value).endswith("rename: {Ward: ward}; and leave out what not all have: --common")
