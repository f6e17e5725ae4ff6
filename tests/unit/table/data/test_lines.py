"""A line of a text file is read by itself, whatever stands in the others."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from fedsyn.errors import DataError
from fedsyn.table.data import encode_file, encoded_blocks, lines
from fedsyn.table.data.lines import RowReader, records
from fedsyn.table.data.sources import read_cells
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema

Read = tuple[list[tuple[str, ...]], int, int | None]


def read(text: str, width: int = 3, footer: int = 0) -> Read:
    """Rows of a text under one line of names, the number of lines left out, and the first of them."""
    reader = RowReader(io.StringIO(text, newline=""), ",", 1, width, footer)
    rows = [row for block in reader.blocks(range(width)) for row in zip(*(c.to_pylist() for c in block), strict=True)]
    return rows, reader.left_out, reader.first_left_out


@pytest.mark.parametrize("chunk", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_what_a_line_holds(chunk: int, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is read at a time, and however lines end."""
    monkeypatch.setattr(lines, "_CHUNK", chunk)
    text = ["a,b,c", "1,2,3", "1,2", "", "  ", ",", ",,", "1,2,3,4", "1,2,3,,", '"x", 2 ,""', '5" pipe,"a""b",3']
    rows = [("1", "2", "3"), ("1", "2", ""), ("", "", ""), ("", "", ""), ("1", "2", "3")]
    rows += [("x", " 2 ", ""), ('5" pipe', 'a"b', "3")]
    assert read(end.join(text)) == read(end.join(text) + end) == (rows, 1, 8)
    assert read(end.join(["a", "1", "", "2"]) + end, 1) == ([("1",), ("",), ("2",)], 0, None)
    assert read(end.join(["a,b,c", "1,2,3", "Total,,", "", "n = 1", "", ""]), footer=3)[0] == [("1", "2", "3")]


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_a_quotation_mark_that_is_not_closed_costs_its_own_line_only(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_CHUNK", chunk)
    good = [("1", "2", "3"), ("4", "a\nb", "6")]
    text = ["a,b,c", "1,2,3", '4,"a', 'b",6']
    assert read("\n".join(text)) == (good, 0, None)  # a cell of two lines
    for broken in ('7,"x,9', '7,"x"y,9', '"', '7,8,"9'):
        assert read("\n".join([*text[:2], broken, *text[2:]])) == (good, 1, 3)
        assert read("\n".join([*text, broken])) == (good, 1, 5)
    # A mark that is closed below is one cell only where that makes a whole row.
    assert read('a,b,c\n7,"x,9\n1,2\n3,y",5\n')[0] == [("7", "x,9\n1,2\n3,y", "5")]
    assert read('a,b,c\n7,"x,9\n1,2,3\n4,5\ny",5,6\n') == ([("1", "2", "3"), ("4", "5", ""), ('y"', "5", "6")], 1, 2)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_a_mark_that_another_row_closes_swallows_no_rows(chunk: int, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours: without the line that has the first mark, and with it, the other rows are the same."""
    monkeypatch.setattr(lines, "_CHUNK", chunk)
    for width, below in ((5, 1), (3, 2), (2, 4)):
        cells = ["x"] * (width - 1)
        rows = [(str(number), *cells) for number in range(below - 1)] + [("8", *cells[1:], '5"')]
        text = [",".join(map(str, range(width))), ",".join(("7", *cells[1:], '"6')), *map(",".join, rows)]
        assert read(end.join(text), width) == read(end.join(text) + end, width) == (rows, 1, 2)
        assert read(end.join([text[0], *text[2:]]), width) == (rows, 0, None)
    # Texts of several lines, with commas of their own.
    for cell in ("pain, in the leg\nsince May, or June", "one\ntwo\nthree\nfour\nfive\nsix", "a,b,c,d\ne"):
        assert read(f'a,b,c\n1,2,"{cell}"\n', 3) == ([("1", "2", cell)], 0, None)
        assert read(f'a,b,c\n"{cell}",2,3\n', 3) == ([(cell, "2", "3")], 0, None)


def test_a_mark_is_not_looked_for_without_end() -> None:
    far = 'a,b,c\n1,2,"3' + "\nx" * 1001 + '"\n'
    rows, broken, _ = read(far)
    assert broken == 1 and len(rows) == 1001
    assert len(read('a,b,c\n1,2,"3' + "\nx" * 998 + '"\n')[0]) == 1


def test_records_have_the_numbers_of_their_lines() -> None:
    found = [(record.line, record.cells) for record in records('a,"b\nc"\n\n"d\ne', ",")]
    assert found == [(1, ["a", "b\nc"]), (3, []), (4, None), (5, ["e"])]


SCHEMA = Schema(
    columns={
        "age": NumericColumn(lower=0, upper=99, bins=100, dtype="integer"),
        "town": CategoricalColumn(categories=("Bonn", "Köln"), missing=True),
    }
)


def test_lines_that_are_left_out_are_counted_for_whoever_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.csv"
    path.write_text('age,town\n1,Bonn\n2,"Bonn\n3,SECRET,4\n4,Köln\n5,Bonn,,\n')
    assert encode_file(path, SCHEMA).tolist() == [[1, 0], [4, 1], [5, 0]]
    assert "2 lines, line 3 first, are left out, with more cells than the 2 names" in caplog.text
    assert "SECRET" not in caplog.text
    cells = read_cells(path)
    assert len(cells.frame) == 3 and "2 lines, line 3 first, are left out" in cells.notes[0]
    path.write_text("age,town\n1,Bonn\n" + "2,SECRET,3,4\n" * 3)
    assert encode_file(path, SCHEMA).tolist() == [[1, 0]]
    with pytest.raises(DataError, match="most lines below have more cells"):  # whoever drafts is asked
        read_cells(path)


@pytest.mark.parametrize("separator", [";", "§", "\x1f"])
def test_any_character_separates(separator: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(separator.join(["age", "town"]) + "\n" + separator.join(["7", '"Köln"']) + "\n")
    assert encode_file(path, SCHEMA, {"separator": separator}).tolist() == [[7, 1]]


def test_a_mark_of_byte_order_inside_a_file_is_a_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_CHUNK", 9)
    assert read("\ufeffa,b,c\n\ufeffx,1,2\n\ufeffx,1,2\n")[0] == [("\ufeffx", "1", "2")] * 2


@pytest.mark.parametrize("decimal", [".", ","])
def test_a_cell_makes_no_other_unreadable(decimal: str, tmp_path: Path) -> None:
    """A text that stands for a missing value with a blank beside it, and marks of decimals."""
    columns = {"x": NumericColumn(lower=0, upper=10, bins=10, missing=True), "k": CategoricalColumn(categories=("a",))}
    schema = Schema(columns=columns, missing_values=("unknown",))
    path = tmp_path / "t.csv"
    cells = ["1.5", " 2.25", " unknown", "NA ", "", "9.5", "1e0", "unknown"]
    path.write_text("x;k\n" + "".join(f"{cell.replace('.', decimal)};a\n" for cell in cells))
    numbers = np.concatenate([block.numbers[:, 0] for block in encoded_blocks(path, schema, {"decimal": decimal})])
    expected = [1.5, 2.25, np.nan, np.nan, np.nan, 9.5, 1, np.nan]
    np.testing.assert_array_equal(numbers, np.array(expected, np.float32))
