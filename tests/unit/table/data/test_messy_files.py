"""Files with a title, with two rows of names, with nested columns: an option reads them, and a hint names it."""

from __future__ import annotations

import datetime
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsyn.errors import ConfigError, DataError
from fedsyn.table.data.layout import header_options
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import encode_file, read_table
from fedsyn.table.data.sources import read_cells
from fedsyn.table.schema import Schema
from fedsyn.table.schema.drafting import draft_columns

SECRET = "4711-diagnosis"
TITLE = [["Export of ward 3", None, None, None], [None, None, None, None]]
NAMES = [["Patient", None, "Labs", None], ["age", "sex", "Hb", "CRP"]]
ROWS = [[34, "f", 13.5, 2], [61, SECRET, 11.25, 8], [47, "m", 12, 3]]
JOINED = ["Patient age", "Patient sex", "Labs Hb", "Labs CRP"]


def book(path: Path, *parts: list[list[Any]]) -> Path:
    """An Excel file whose first sheet has these rows, and two others."""
    openpyxl = pytest.importorskip("openpyxl")
    made = openpyxl.Workbook()
    made.active.title = "Data"
    for row in (row for part in parts for row in part):
        made.active.append(row)
    for name in ("Legend", "Old"):
        made.create_sheet(name)
    made.save(path)
    return path


def text(path: Path, *parts: list[list[Any]], separator: str = ";") -> Path:
    rows = (row for part in parts for row in part)
    lines = [separator.join("" if cell is None else str(cell) for cell in row) for row in rows]
    path.write_text("\n".join("" if set(line) == {separator} else line for line in lines))
    return path


@pytest.mark.parametrize(("make", "name"), [(book, "t.xlsx"), (text, "t.csv")])
@pytest.mark.parametrize(
    ("parts", "options", "names"),
    [
        ([TITLE, NAMES[1:], ROWS], {"skip_rows": 2}, NAMES[1]),
        ([NAMES, ROWS], {"header": 2}, JOINED),
        ([NAMES, ROWS], {"skip_rows": 1}, NAMES[1]),
        ([TITLE, NAMES, ROWS], {"skip_rows": 2, "header": 2}, JOINED),
    ],
)
def test_a_title_is_skipped_and_names_are_joined(
    make: Any, name: str, parts: Any, options: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    path = make(tmp_path / name, *parts)
    cells = read_cells(path, options)
    assert list(cells.frame.columns) == names and cells.frame.iloc[0].tolist() == ["34", "f", "13.5", "2"]
    assert cells.options.model_dump(exclude_none=True).items() >= options.items()  # so that `init` writes them down
    schema = Schema.from_dict(
        {"columns": {names[3]: {"kind": "integer", "lower": 0, "upper": 9, "bins": 10}, names[1]: {"kind": "text"}}}
    )
    assert read_table(path, schema, cells.options)[names[3]].tolist() == [2, 8, 3]
    assert encode_file(path, schema, options).ravel().tolist() == [2, 8, 3]
    found = header_options(path, FileOptions(**options), names)
    assert found == cells.options
    # With a schema its columns say where the names are, as they say what the separator is.
    assert encode_file(path, schema).ravel().tolist() == [2, 8, 3]
    assert header_options(path, FileOptions(), names) == cells.options


def test_names_that_are_there_twice_do_not_mix_columns(tmp_path: Path) -> None:
    path = text(tmp_path / "t.csv", [["a", None, "b"], ["x", "x", "y"]], [[1, 2, 3], [4, 5, 6]])
    schema = Schema.from_dict({"columns": {"b y": {"kind": "integer", "lower": 0, "upper": 9, "bins": 10}}})
    assert encode_file(path, schema, {"header": 2}).ravel().tolist() == [3, 6]
    with pytest.raises(DataError, match="more than one column named 'a x'"):
        read_cells(path, {"header": 2})


# What stands above the names ------------------------------------------------------------------------------------------


MERGED = [["Patient", None, "Labs"], NAMES[1]]
TOPS = [
    ([["Export", "of ward 3"]], NAMES[1:], NAMES[1], "line 1 holds two cells, line 2 four, so say --skip-rows 1 "),
    (TITLE[::-1], NAMES[1:], NAMES[1], "line 2 holds one cell, line 3 four, so say --skip-rows 2 "),
    (
        [["Export"], ["of 2024"], []],
        NAMES[1:],
        NAMES[1],
        "lines 1 and 2 hold one cell, line 4 four, so say --skip-rows 3 ",
    ),
    (
        [["Export"], ["of 2024"], []],
        MERGED,
        JOINED,
        "lines 1 and 2 hold one cell, line 4 two, line 5 four, so say --skip-rows 3 --header 2 ",
    ),
    ([], MERGED, JOINED, "line 1 holds two cells, line 2 four, so say --header 2 "),
    (
        [],
        [["Patient", "Patient", "Labs", "Costs"], NAMES[1]],
        [*JOINED[:3], "Costs CRP"],
        "lines 1 and 2 hold four cells, so say --header 2 ",
    ),
]


@pytest.mark.parametrize(("make", "name"), [(book, "t.xlsx"), (text, "t.csv")])
@pytest.mark.parametrize(("title", "names", "right", "remedy"), TOPS)
def test_the_remedy_is_the_one_that_works(
    make: Any, name: str, title: Any, names: Any, right: list[str], remedy: str, tmp_path: Path
) -> None:
    """Whatever was typed, no row of values becomes names; who follows the sentence has the names, and all rows."""
    path, asked = make(tmp_path / name, title, names, ROWS * 4), 0
    for skip, header in product(range(8), (None, 2)):
        typed = {"skip_rows": skip, "header": header}
        try:
            cells = read_cells(path, typed)
        except DataError as error:
            asked += 1
            assert remedy in str(error) and SECRET not in str(error) and len(str(error)) < 500, error
            words = re.findall(r"--(skip-rows|header) (\d)", str(error).split("(in a run")[0])
            cells = read_cells(path, {key.replace("-", "_"): int(count) for key, count in words})
            assert list(cells.frame.columns) == right and len(cells.frame) == 12
            continue
        last = re.findall(r"\d+", cells.heading.split(" name")[0])[-1]
        assert int(last) == len(title) + len(names), (typed, cells.heading)
    assert asked > 8


def test_a_line_of_values_is_no_line_of_names(tmp_path: Path) -> None:
    lines = [f"19{k}-04-2{k % 9},{'fm'[k % 2]},C{60 + k % 3},{k}.26" for k in range(40, 90)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(
        DataError, match=r"line 1 of .*1 number, 1 date, 2 that stand again below.*--no-header"
    ) as raised:
        read_cells(path)
    assert "1940" not in str(raised.value) and "C61" not in str(raised.value)
    cells = read_cells(path, {"header": 0})
    assert list(cells.frame.columns) == ["column_1", "column_2", "column_3", "column_4"] and len(cells.frame) == 50
    assert cells.heading == "no line names the columns: column_1, column_2, column_3, column_4"
    columns: dict[str, Any] = {"column_2": {"kind": "categorical", "categories": ["f", "m"]}}
    schema = Schema.from_dict({"columns": {**columns, "column_4": {"kind": "drop"}}})
    assert encode_file(path, schema, cells.options).ravel().tolist() == [k % 2 for k in range(40, 90)]
    # How wide a line may be is said by the schema, not by the lines.
    assert not len(encode_file(path, Schema.from_dict({"columns": columns}), {"header": 0}))


@pytest.mark.parametrize(
    ("names", "rows", "fine"),
    [
        ("age,sex,town", "30,f,Bonn", True),
        ("2019,2020,2021", "1,2,3", True),
        ("0,1,2", "0,1,0", True),
        ("2024-01-01,2024-02-01,2024-03-01", "5,6,7", True),
        ("site,50,100,150", "a,5,6,7", True),
        ("age,smoker,town", "30,smoker,Bonn", True),  # one word that its column holds, too
        ("North,50,lung", "North,51,heart", False),
        ("id,2024-03-01,sex,town", "7,2024-03-02,m,Bonn", False),
        ("34,61,80", "35,61,90", False),
        ('"1.223,34",North', '"1.224,34",South', False),
    ],
)
def test_which_names_look_like_values(names: str, rows: str, fine: bool, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"{names}\n" + f"{rows}\n" * 5)
    if fine:
        assert ",".join(read_cells(tmp_path / "t.csv").frame.columns) == names
    else:
        with pytest.raises(DataError, match=r"line 1 of .* looks like values"):
            read_cells(tmp_path / "t.csv")


def test_a_hint_names_the_option(tmp_path: Path) -> None:
    wide = [["Patient", None, "Labs", "Costs"], NAMES[1]]
    for path in (book(tmp_path / "two.xlsx", wide, ROWS), text(tmp_path / "two.csv", wide, ROWS)):
        notes = "; ".join(read_cells(path).notes)
        assert "the next row looks like names, too: --header 2 joins both rows" in notes and SECRET not in notes
    one = read_cells(book(tmp_path / "one.xlsx", [["a", None, None, "b"]], ROWS))
    assert "--header" not in "; ".join(one.notes)  # a row with numbers is none of names


# What stands below the rows -------------------------------------------------------------------------------------------


COSTS = [[f"2024-03-{k % 28 + 1:02}", "ab"[k % 2], f"{1000 + 37 * k:,}"] for k in range(40)]
SUM = f"{sum(1000 + 37 * k for k in range(40)):,}"


@pytest.mark.parametrize(("make", "name"), [(book, "t.xlsx"), (text, "t.csv")])
@pytest.mark.parametrize(
    ("footer", "line", "why"),
    [
        ([["Total", None, SUM]], 42, "a number in it is the sum"),
        ([[None, None, SUM]], 42, "a number in it is the sum"),
        ([["Summe:", None, "7"]], None, ""),
        ([["Total", "both", SUM]], 42, "begins with a word for totals, and a number in it is the sum"),
        ([["Source: registry, 2024", None, None]], 42, "begins with a word for totals or notes"),
        ([["Total", None, SUM], [None] * 3, ["n = 40", None, None]], 42, "totals or notes"),
        ([["2024-03-30", "b", "1,000"]], None, ""),
        ([[None, None, "1,234"]], None, ""),  # a row whose values are missing
    ],
)
def test_totals_and_notes_below_the_rows_are_asked_about(
    make: Any, name: str, footer: Any, line: int | None, why: str, tmp_path: Path
) -> None:
    path = make(tmp_path / name, [["day", "site", "cost"]], COSTS, footer)
    if line is None:
        assert len(read_cells(path).frame) == 40 + len(footer)
        return
    with pytest.raises(DataError, match=rf"line {line} of .* looks like totals or notes below the table") as raised:
        read_cells(path)
    assert why in str(raised.value) and SUM not in str(raised.value)
    option = re.search(r"--skip-footer (\d)", str(raised.value))
    assert option is not None
    cells = read_cells(path, {"skip_footer": int(option[1])})
    assert cells.frame["cost"].tolist() == [row[2] for row in COSTS] and cells.options.skip_footer == len(footer)
    assert len(read_cells(path, {"skip_footer": 0}).frame) > 40
    schema = Schema.from_dict({"columns": {"site": {"kind": "categorical", "categories": ["a", "b"]}}})
    assert encode_file(path, schema, cells.options).ravel().tolist() == [0, 1] * 20


def test_a_row_of_units_is_said(tmp_path: Path) -> None:
    values = [["years", "EUR"], *([str(k), f"{k}.5"] for k in range(30))]
    notes = "; ".join(read_cells(text(tmp_path / "u.csv", [["age", "fee"]], values)).notes)
    assert "--header 2 joins both" in notes and "years" not in notes
    for plain in (values[1:], values[:15], [["unknown", "1.5"], *values[1:]]):
        assert "--header" not in "; ".join(read_cells(text(tmp_path / "p.csv", [["age", "fee"]], plain)).notes)


def test_other_sheets_are_named(tmp_path: Path) -> None:
    path = book(tmp_path / "t.xlsx", NAMES[1:], ROWS)
    assert read_cells(path).notes == ("the sheet 'Data' (--sheet NAME reads another: 'Legend', 'Old')",)
    assert read_cells(path, {"sheet": "Data"}).notes == ()


def test_nested_columns_are_left_out_and_named(tmp_path: Path) -> None:
    table = pa.table(
        {
            "age": [34, 61],
            "codes": [[1, 2], []],
            "where": [{"x": 1}, {"x": 2}],
            "scan": [b"a", SECRET.encode()],
            "sex": ["f", "m"],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    cells = read_cells(tmp_path / "t.parquet")
    assert list(cells.frame.columns) == ["age", "sex"]
    assert cells.notes == ("left out, as they hold lists, records or bytes: codes, where, scan",)
    pq.write_table(table.select(["codes", "scan"]), tmp_path / "nested.parquet")
    with pytest.raises(DataError, match=r"every column of .* holds lists, records or bytes"):
        read_cells(tmp_path / "nested.parquet")


@pytest.mark.parametrize(
    "options", [{"header": -1}, {"header": 6}, {"skip_rows": -1}, {"header": "2"}, {"skip_footer": -1}]
)
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        FileOptions.of(options)


def test_parquet_has_no_header(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=r"data.options.header means nothing for t.parquet"):
        read_cells(tmp_path / "t.parquet", {"header": 2})


# Excel ----------------------------------------------------------------------------------------------------------------


def test_every_error_of_excel_is_a_missing_value(tmp_path: Path) -> None:
    errors = ["#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!", "#N/A"]
    rows = [[errors[k % 7] if k % 5 == 0 else k / 4, errors[k % 7] if k % 5 == 1 else "ab"[k % 2]] for k in range(70)]
    path = book(tmp_path / "t.xlsx", [["rate", "ward"]], rows)
    cells = read_cells(path)
    guesses = draft_columns(cells.frame, text=True)
    assert [guess.column.kind for guess in guesses.values()] == ["decimal", "categorical"]
    assert [guess.missing for guess in guesses.values()] == [0.2, 0.2] and guesses["ward"].values == 2
    columns: dict[str, Any] = {"rate": {"kind": "numeric", "lower": 0, "upper": 20, "bins": 20, "missing": True}}
    codes = encode_file(path, Schema.from_dict({"columns": columns})).ravel()
    assert codes.tolist() == [20 if k % 5 == 0 else k // 4 for k in range(70)]


def test_serial_numbers_in_a_column_of_dates_are_dates(tmp_path: Path) -> None:
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=k) for k in range(40)]
    serial = [(day - datetime.date(1899, 12, 30)).days for day in days]
    rows = [[serial[k], serial[k] if k % 3 else days[k], serial[k], 2000 + k % 20] for k in range(40)]
    path = book(tmp_path / "t.xlsx", [["visit_date", "seen", "count", "date"]], rows)
    cells = read_cells(path)
    iso = [day.isoformat() for day in days]
    assert cells.frame["visit_date"].tolist() == cells.frame["seen"].tolist() == iso
    assert cells.frame["count"].tolist() == [str(number) for number in serial]  # no name and no date says so
    assert cells.frame["date"].tolist() == [str(2000 + k % 20) for k in range(40)]  # years
    said = [note for note in cells.notes if "serial number of Excel, read as dates" in note]
    assert [note.split(":")[0] for note in said] == ["visit_date", "seen"] and "40 cells" in said[0]
    columns: dict[str, Any] = {
        "visit_date": {"kind": "date", "lower": "2024-01-01", "upper": "2024-02-10", "bins": 40},
        "seen": {"kind": "datetime", "lower": "2024-01-01T00:00:00", "upper": "2024-02-10T00:00:00", "bins": 40},
    }
    schema = Schema.from_dict({"columns": columns})
    expected = schema.encode(pd.DataFrame({"visit_date": iso, "seen": [f"{day}T00:00:00" for day in iso]}))
    assert encode_file(path, schema).tolist() == expected.tolist() and len(np.unique(expected[:, 0])) > 35


def test_hidden_columns_are_named(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    made = openpyxl.Workbook()
    for row in [["age", "ward", "note", "x"], *([k, "ab"[k % 2], SECRET, k] for k in range(9))]:
        made.active.append(row)
    for letter in "BC":
        made.active.column_dimensions[letter].hidden = True
    made.save(tmp_path / "t.xlsx")
    cells = read_cells(tmp_path / "t.xlsx")
    assert "columns that are hidden in Excel are read: 'ward', 'note'; " in cells.notes[0]
    assert SECRET not in "".join(cells.notes) and list(cells.frame.columns) == ["age", "ward", "note", "x"]


def test_text_that_was_encoded_twice_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("site,town\n" + "Nord,Köln\nSÃ¼d,Düren\nSüd,Ã\n" * 5, encoding="utf-8")
    notes = read_cells(tmp_path / "t.csv").notes
    assert len(notes) == 1 and notes[0].startswith("site: 5 cells of text that was encoded in UTF-8 twice")
    assert "SÃ¼d" not in notes[0]


# No cell decides how others are read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_letters_of_a_row_do_not_hide_an_encoding(tmp_path: Path, encoding: str) -> None:
    schema = Schema.from_dict({"columns": {"age": {"kind": "integer", "lower": 0, "upper": 9, "missing": True}}})
    (tmp_path / "t.csv").write_bytes("age,town\n3,Łódź\n4,x\n".encode(encoding))
    assert encode_file(tmp_path / "t.csv", schema)[:, 0].tolist() == [3, 4]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_moment_beyond_all_years_has_no_place(tmp_path: Path, zone: str | None) -> None:
    day = {"kind": "datetime", "lower": "1970-01-01", "upper": "1970-01-05", "bins": 4, "zone": zone, "unlisted": True}
    schema = Schema.from_dict({"columns": {"at": day}})
    moments = pa.array([0, 2**62, 1], pa.timestamp("us", zone))
    pq.write_table(pa.table({"at": moments}), tmp_path / "t.parquet")
    assert encode_file(tmp_path / "t.parquet", schema)[:, 0].tolist() == [0, 4, 0]


def test_a_finer_moment_changes_no_other(tmp_path: Path) -> None:
    day = {"kind": "datetime", "lower": "1900-01-01", "upper": "2100-01-01", "bins": 200, "zone": "Europe/Berlin"}
    schema = Schema.from_dict({"columns": {"at": {**day, "unlisted": True}}})
    rows = ["9999-12-29", "2024-12-31T23:30:00"]
    codes = []
    for more in ("", "2024-05-31T12:00:00.1234567\n", "2024-05-31T12:00:00Z\n"):
        (tmp_path / "t.csv").write_text("\n".join(["at", f"{more}{rows[0]}", rows[1]]), encoding="utf-8")
        codes.append(encode_file(tmp_path / "t.csv", schema)[-2:, 0].tolist())
    assert codes[0] == codes[1] == codes[2] and codes[0][0] < 200
