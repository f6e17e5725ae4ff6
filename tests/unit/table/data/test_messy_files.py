"""Files with a title, with two rows of names, with nested columns: an option reads them, and a hint names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsyn.errors import ConfigError, DataError
from fedsyn.table.data.layout import header_options
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import encode_file, read_table
from fedsyn.table.data.sources import read_cells
from fedsyn.table.schema import Schema

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
        ([TITLE, NAMES[1:], ROWS], {"skip_rows": 1}, NAMES[1]),
        ([NAMES, ROWS], {"header": 2}, JOINED),
        ([NAMES, ROWS], {"skip_rows": 1}, NAMES[1]),
        ([TITLE, NAMES, ROWS], {"skip_rows": 1, "header": 2}, JOINED),
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


def test_a_hint_names_the_option(tmp_path: Path) -> None:
    wider = [["Export", "of ward 3"]]
    with pytest.raises(DataError, match=r"--skip-rows 1, in a run data.options.skip_rows.*--header 2") as raised:
        read_cells(book(tmp_path / "t.xlsx", wider, NAMES[1:], ROWS))
    assert SECRET not in str(raised.value) and "CSV" not in str(raised.value)
    with pytest.raises(DataError, match=r"t.xlsx has 1 line of one cell above lines of 4.* --skip-rows 1,"):
        read_cells(book(tmp_path / "t.xlsx", TITLE[1:], TITLE, NAMES[1:], ROWS))
    for mark, above in ((";", 1), (",", 2)):
        with pytest.raises(DataError, match=rf"one cell above lines of 4: leave out a title by --skip-rows {above},"):
            read_cells(text(tmp_path / "t.csv", [["Export"]] * above, NAMES[1:], ROWS, separator=mark))
    wide = [["Patient", None, None, "Labs"], NAMES[1]]
    for path in (book(tmp_path / "two.xlsx", wide, ROWS), text(tmp_path / "two.csv", wide, ROWS)):
        notes = "; ".join(read_cells(path).notes)
        assert "the next row looks like names, too: --header 2 joins both rows" in notes and SECRET not in notes
    for empty in (0, 1):
        path = text(tmp_path / "titled.csv", [["Report 2024", *[None] * 3], NAMES[1]], ROWS)
        path.write_text(path.read_text().replace("\n", "\n" + ";;;\n" * empty, 1))
        assert f"--skip-rows {1 + empty} takes it alone" in "; ".join(read_cells(path).notes)
        assert list(read_cells(path, {"skip_rows": 1 + empty}).frame) == NAMES[1]
    merged = [["Patient", None, "Labs", "Costs"], NAMES[1]]
    assert "--header 2 joins both rows" in "; ".join(read_cells(book(tmp_path / "m.xlsx", merged, ROWS)).notes)
    with pytest.raises(DataError, match=r"more than one column named 'Patient'.* --header 2 joins them"):
        read_cells(book(tmp_path / "d.xlsx", [["Patient", "Patient", "Labs", "Costs"], NAMES[1]], ROWS))
    one = read_cells(book(tmp_path / "one.xlsx", [["a", None, None, "b"]], ROWS))
    assert "--header" not in "; ".join(one.notes)  # a row with numbers is none of names


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


@pytest.mark.parametrize("options", [{"header": 0}, {"header": 6}, {"skip_rows": -1}, {"header": "2"}])
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        FileOptions.of(options)


def test_parquet_has_no_header(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=r"data.options.header means nothing for t.parquet"):
        read_cells(tmp_path / "t.parquet", {"header": 2})
