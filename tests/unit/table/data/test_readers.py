"""Files as they come: separators, encodings, packing, Excel, columns without a name; one sentence for what is wrong."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import logging
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsyn.errors import ConfigError, DataError
from fedsyn.loading import names_file
from fedsyn.table.data import encode_file, encoded_blocks, load_dataset, opening, read_table
from fedsyn.table.data.opening import TextStream
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.sources import read_cells
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema

SECRET = "4711-diagnosis"  # stands for a cell: no message may quote it
SCHEMA = Schema(
    columns={
        "age": NumericColumn(lower=0, upper=99, bins=100, dtype="integer", missing=True),
        "town": CategoricalColumn(categories=("Bonn", "Köln", "Zürich"), missing=True),
    }
)
ROWS = [("7", "Köln"), ("63", "Bonn"), ("", "Zürich")]
CODES = [[7, 1], [63, 0], [100, 2]]


def text(separator: str = ",", end: str = "\n") -> str:
    return end.join(separator.join(row) for row in [("age", "town"), *ROWS]) + end


def assert_read(path: Path, **options: object) -> None:
    """Read as a whole and in blocks, by a schema."""
    assert SCHEMA.encode(read_table(path, SCHEMA, options)).tolist() == CODES
    assert encode_file(path, SCHEMA, options).tolist() == CODES
    blocks = list(encoded_blocks(path, SCHEMA, options, rows=2))
    assert np.concatenate([block.codes for block in blocks]).tolist() == CODES
    assert load_dataset(path, schema=SCHEMA, options=options).encode().tolist() == CODES


# Separators and encodings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.txt", "t.CSV"])
def test_the_separator_is_found(separator: str, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text(separator), encoding="utf-8")
    assert_read(tmp_path / name)
    cells = read_cells(tmp_path / name)
    assert list(cells.frame) == ["age", "town"] and cells.frame["age"].tolist() == ["7", "63", ""]
    assert cells.options.separator == (None if separator == "," else separator)


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("utf-8", None),
        ("utf-8-sig", "utf-8-sig"),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16-le"),
        ("cp1252", "cp1252"),
    ],
)
def test_the_encoding_is_found(encoding: str, said: str | None, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(text(";", "\r\n").encode(encoding))
    assert_read(tmp_path / "t.csv")
    cells = read_cells(tmp_path / "t.csv")
    assert cells.options.encoding == said
    assert_read(tmp_path / "t.csv", **cells.options.said())  # what was found, when it is said


def test_a_row_is_read_alike_whatever_stands_in_the_others(tmp_path: Path) -> None:
    """One row in Latin-1 changes no other: the whole file is never read in another encoding because of it."""
    lines = ["age,town", "7,Köln", "8,Zürich"]
    (tmp_path / "a.csv").write_bytes("\n".join(lines).encode() + b"\n9,Bonn")
    (tmp_path / "b.csv").write_bytes("\n".join(lines).encode() + "\n9,Zürich".encode("latin-1"))
    a, b = (encode_file(tmp_path / name, SCHEMA).tolist() for name in ("a.csv", "b.csv"))
    assert a[:2] == b[:2] == [[7, 1], [8, 2]] and b[2] == [9, 2]
    assert read_cells(tmp_path / "b.csv").frame["town"].tolist() == ["Köln", "Zürich", "Zürich"]


def test_bytes_that_windows_has_not_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"age,town\n7,a\x81b\n")
    assert read_cells(tmp_path / "t.csv").frame["town"].tolist() == ["a\x81b"]
    assert read_cells(tmp_path / "t.csv", {"encoding": "cp1252"}).frame["town"].tolist() == ["a\x81b"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_characters_across_the_ends_of_blocks(size: int) -> None:
    stream = TextStream(io.BytesIO("aKö".encode() + b"\xfc\xe4," + "ö€".encode() + b"\xc3"), "utf-8", True, "t.csv")
    parts = iter(lambda: stream.read(size), "")
    assert "".join(parts) == "aKöüä,ö€Ã" and stream.fell_back


def test_text_longer_than_what_is_read_at_a_time(tmp_path: Path) -> None:
    """Multi-byte characters on the edge of a block, and the first odd byte far into the file."""
    rows = ["7,Köln"] * 200_000
    (tmp_path / "t.csv").write_bytes("\n".join(["age,town", *rows]).encode() + b"\n8,Z\xfcrich\n")
    codes = encode_file(tmp_path / "t.csv", SCHEMA)
    assert len(codes) == 200_001 and (codes[:-1] == [7, 1]).all() and codes[-1].tolist() == [8, 2]


def test_with_a_schema_rows_have_no_say_in_the_separator(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age;town\n1;a,b,c,d\n2;a,b,c,d\n", encoding="utf-8")
    assert list(read_table(tmp_path / "t.csv", SCHEMA)["town"]) == ["a,b,c,d", "a,b,c,d"]
    # Without one, lines have to agree with the first.
    (tmp_path / "u.csv").write_text("age, in years;town\n1;a\n2;b\n", encoding="utf-8")
    assert list(read_cells(tmp_path / "u.csv").frame) == ["age, in years", "town"]


def test_quoted_names_and_cells_hold_separators(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('"a;b",c\n"1,2;3",4\n', encoding="utf-8")
    frame = read_cells(tmp_path / "t.csv").frame
    assert list(frame) == ["a;b", "c"] and frame.iloc[0].tolist() == ["1,2;3", "4"]


def test_decimal_commas_of_plain_numbers(tmp_path: Path) -> None:
    schema = Schema(columns={"x": NumericColumn(lower=0, upper=10, bins=10)})
    (tmp_path / "t.csv").write_text("x;y\n1,5;a\n9,9;b\n", encoding="utf-8")
    assert encode_file(tmp_path / "t.csv", schema, {"decimal": ","}).tolist() == [[1], [9]]


# Packing, Excel, Parquet ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("packed", [".gz", ".bz2", ".xz", ".zip", ".zst"])
def test_packed_text(suffix: str, packed: str, tmp_path: Path) -> None:
    path, content = tmp_path / f"t{suffix}{packed}", text("\t").encode("latin-1")
    if packed == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("__MACOSX/._t.csv", "x")
            archive.writestr("t.csv", content)
    elif packed == ".zst":
        with pa.CompressedOutputStream(str(path), "zstd") as file:
            file.write(content)
    else:
        path.write_bytes({".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[packed](content))
    assert_read(path)
    assert names_file(path.name)


def test_an_archive_of_two_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.writestr("a.csv", text())
        archive.writestr("b.csv", text())
    with pytest.raises(DataError, match="holds 2 files: unpack it"):
        read_table(tmp_path / "t.csv.zip", SCHEMA)


def test_an_excel_sheet(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    path = tmp_path / "t.xlsx"
    with pd.ExcelWriter(path) as book:
        pd.DataFrame({"note": ["none"]}).to_excel(book, sheet_name="read me", index=False)
        pd.DataFrame({"age": [7, 63, None], "town": ["Köln", "Bonn", "Zürich"]}).to_excel(
            book, sheet_name="rows", index=False, startrow=2
        )
    assert_read(path, sheet="rows")
    assert_read(path, sheet=2)
    cells = read_cells(path)
    assert list(cells.frame) == ["note"] and "reads another: 'rows'" in cells.notes[0]
    with pytest.raises(DataError, match=r"has no sheet 'row' \(did you mean 'rows'\?\); its sheets: read me, rows"):
        read_table(path, SCHEMA, {"sheet": "row"})


def test_cells_of_excel_are_read_as_they_are_shown(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["zip", "day", "moment", "flag", "x", "text"])
    sheet.append([1067, datetime.date(2024, 5, 1), datetime.datetime(2024, 5, 1), True, 37.3, "01067"])
    sheet["A2"].number_format, sheet["C2"].number_format = "00000", "dd.mm.yyyy hh:mm"
    book.save(tmp_path / "t.xlsx")
    row = read_cells(tmp_path / "t.xlsx").frame.iloc[0].tolist()
    assert row == ["01067", "2024-05-01", "2024-05-01 00:00:00", "True", "37.3", "01067"]


def test_integers_of_parquet_stay_integers_beside_missing_ones(tmp_path: Path) -> None:
    table = pa.table(
        {"i": pa.array([1, None], pa.int32()), "b": pa.array([True, None]), "u": pa.array([1, 2], pa.uint8())}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    cells = read_cells(tmp_path / "t.parquet")
    assert cells.frame.dtypes.astype(str).to_dict() == {"i": "Int32", "b": "boolean", "u": "uint8"} and not cells.text


def test_a_long_file_is_read_in_part_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "1,2\n" * 100, encoding="utf-8")
    cells = read_cells(tmp_path / "t.csv", most=20)
    assert len(cells.frame) == 10 and "read from the first 10" in cells.notes[0]
    assert not read_cells(tmp_path / "t.csv", most=200).notes
    pq.write_table(pa.table({"a": range(100), "b": range(100)}), tmp_path / "t.parquet", row_group_size=7)
    cells = read_cells(tmp_path / "t.parquet", most=20)
    assert len(cells.frame) == 10 and "100 rows" in cells.notes[0]


# Columns without a name -----------------------------------------------------------------------------------------------


def test_the_index_of_a_data_frame_is_left_out_and_said(tmp_path: Path) -> None:
    pd.DataFrame({"age": [7, 63], "town": ["Köln", "Bonn"]}).to_csv(tmp_path / "t.csv")
    cells = read_cells(tmp_path / "t.csv")
    assert list(cells.frame) == ["age", "town"] and "first column has no name" in cells.notes[0]
    assert encode_file(tmp_path / "t.csv", SCHEMA).tolist() == [[7, 1], [63, 0]]


def test_separators_at_line_ends(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age;town;\n7;Köln;\n63;Bonn;\n", encoding="utf-8")
    cells = read_cells(tmp_path / "t.csv")
    assert list(cells.frame) == ["age", "town"] and any("last column has no name" in note for note in cells.notes)
    assert encode_file(tmp_path / "t.csv", SCHEMA).tolist() == [[7, 1], [63, 0]]


# What is wrong --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", b"", "is empty"),
        ("blank.csv", b"\n\n  \n", "is empty"),
        ("commas.csv", b",,\n,,\n", "is empty"),
        ("header.csv", b"age,town\n", "has no rows"),
        ("zeros.csv", f"age,town\n7,{SECRET}\0\n".encode(), r"holds NUL bytes.*tr -d"),
        ("twice.csv", b"age,town,age\n7,Bonn,8\n", "more than one column named 'age'; rename one in line 1"),
        (
            "numbers.csv",
            b"1,2.5,30\n4,5.5,60\n",
            "line 1 of .* looks like values, .*of 3 cells: 3 numbers.*say --no-header",
        ),
        (
            "ragged.csv",
            f"age,town\n7,{SECRET},{SECRET}\n".encode(),
            "line 1 of .* names 2 columns, and most lines below have more cells.*needs quotes",
        ),
        (
            "open.csv",
            f'age,town\n7,"{SECRET}\n'.encode(),
            "1 line, line 2 first, is left out.*quotation mark that is never closed",
        ),
        ("old.xls", b"x", "save it as .xlsx or .csv"),
        ("t.sav", b"x", "read_spss"),
        ("t.doc", b"x", "must end in one of .csv"),
        ("t.xlsx", b"x", "not a well-formed Excel file"),
        ("t.csv.xz", b"x" * 50, "the file is damaged"),
        ("t.csv.zip", b"x" * 50, "the file is damaged"),
        ("t.csv.zst", b"x" * 50, "the file is damaged"),
    ],
)
def test_one_sentence_says_what_to_do(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_cells(tmp_path / name)
    assert "\n" not in str(caught.value) and SECRET not in str(caught.value)


def test_years_may_be_names_of_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("2019,2020,2021\n1.5,2,3\n", encoding="utf-8")
    assert list(read_cells(tmp_path / "t.csv").frame) == ["2019", "2020", "2021"]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(DataError, match="is a folder: name a file in it"):
        read_cells(tmp_path / "t.csv")


def test_a_packed_line_without_end_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines as long as the bound are read, however many; one that goes on past it through many pieces is not."""
    monkeypatch.setattr(opening, "MOST_OF_A_LINE", 600_000)
    for long, start in ((550_000, ""), (1_500_000, '"'), (1_500_000, "")):
        with gzip.open(tmp_path / "t.csv.gz", "wt") as file:
            file.write("age,town\n" + f"1,{start}{'o' * long}\n" * 3)
        if long < 600_000:
            assert len(encode_file(tmp_path / "t.csv.gz", SCHEMA)) == 3
            continue
        with pytest.raises(DataError, match="has a line of more than 600,000 characters: it is not a table"):
            encode_file(tmp_path / "t.csv.gz", SCHEMA)


def test_a_wrong_separator_is_answered_with_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text(";"), encoding="utf-8")
    message = "say --separator ';', in a run data.options.separator: ';'"
    with pytest.raises(DataError, match=message):
        read_cells(tmp_path / "t.csv", {"separator": ","})
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "t.csv", SCHEMA, {"separator": "|"})
    with pytest.raises(DataError, match="say --separator ';'"):
        encode_file(tmp_path / "t.csv", SCHEMA, {"separator": ","})


def test_a_wrong_encoding_is_answered(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(text().encode("latin-1"))
    with pytest.raises(DataError, match=r"is not text in utf-8: name another encoding .*or none, which finds it out"):
        read_cells(tmp_path / "t.csv", {"encoding": "utf-8"})
    (tmp_path / "names.csv").write_bytes("Straße,age,town\n1,7,Bonn\n".encode("latin-1"))
    with pytest.raises(DataError, match="is not text in utf-8"):
        encode_file(tmp_path / "names.csv", SCHEMA, {"encoding": "utf-8"})
    (tmp_path / "utf16.csv").write_bytes(text().encode("utf-16-le"))
    with pytest.raises(DataError, match="lacks the byte order mark of the encoding that was named"):
        encode_file(tmp_path / "utf16.csv", SCHEMA, {"encoding": "utf-16"})


@pytest.mark.parametrize(
    ("encoding", "bad"),
    [
        (None, b"\0"),
        ("utf-8", b"\xff"),
        ("utf-8", b"\xe2\x82"),
        ("cp1253", b"\xaa"),
        ("ascii", b"\xc3"),
        ("shift_jis", b"\x81"),
        ("gb18030", b"\x81"),
        ("big5", b"\xa4"),
        ("euc_jp", b"\x8f\xb0"),
        ("utf-16-le", b"\x00\xd8"),
        ("utf-16-be", b"\x00\x00"),
    ],
)
def test_a_nul_and_a_byte_that_is_no_text_make_their_cell_unreadable(
    encoding: str | None, bad: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other cells stay, and so do other rows, at a comma, a line end, a quotation mark and in any chunk."""
    schema = Schema(
        columns={
            "age": NumericColumn(lower=0, upper=99, bins=100, dtype="integer", missing=True, unlisted=True),
            "town": CategoricalColumn(categories=("Bonn", "Ulm"), missing=True, unlisted=True),
        }
    )
    caplog.set_level(logging.INFO, logger="fedsyn.table.data")
    name = encoding or "utf-8"
    rows = ["7{},Bonn", "7,{}", "{},Ulm", '8,"Bo{}nn"', "9,Bonn{}"]
    whole = "age,town\n1,Ulm\n" + "\n2,Bonn\n".join(rows) + "\n3,Ulm\n"
    content = bad.join(part.encode(name) for part in whole.split("{}"))
    (tmp_path / "t.csv").write_bytes(content)
    code = {word: schema.columns["town"].code_of(word, schema.missing_text) for word in ("Bonn", "Ulm", "?")}
    no_age = schema.columns["age"].unplaced
    bonn, ulm, gone = code["Bonn"], code["Ulm"], code["?"]
    between = [2, bonn]
    expected = [[1, ulm], [no_age, bonn], between, [7, gone], between, [no_age, ulm], between, [8, gone], between]
    expected += [[9, gone], [3, ulm]]
    for chunk in (1 << 21, 1, 5):
        monkeypatch.setattr("fedsyn.table.data.lines._CHUNK", chunk)
        options = {} if encoding is None else {"encoding": encoding}
        assert encode_file(tmp_path / "t.csv", schema, options).tolist() == expected
        assert schema.encode(read_table(tmp_path / "t.csv", schema, options)).tolist() == expected
    assert f"with bytes that are no {name}, counts as unreadable" in caplog.messages[0]


def test_an_encoding_with_a_state_is_refused() -> None:
    for encoding in ("iso2022_jp", "ISO-2022-KR", "hz", "utf-7", "punycode", "unicode_escape"):
        with pytest.raises(ConfigError, match="a line decides how later ones are read; save it as UTF-8"):
            FileOptions.of({"encoding": encoding})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": ""}, "data.options: separator: a separator is one character, such as"),
        ({"separator": ";;"}, "one character"),
        ({"separator": '"'}, "one character"),
        ({"separator": 7}, "data.options: separator: "),
        ({"seperator": ";"}, r"data.options: unknown key 'seperator' \(did you mean 'separator'\?\)"),
        ({"encoding": "utf-9"}, "an encoding is a name that Python knows"),
        ({"encoding": "rot13"}, "an encoding is a name that Python knows"),
        ({"decimal": ";"}, "a decimal mark is"),
        ({"separator": ",", "decimal": ","}, "cannot be the same character"),
        ({"sheet": 1}, "data.options.sheet means nothing for t.csv"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, object], message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text(), encoding="utf-8")
    for read in (read_table, encode_file):
        with pytest.raises(ConfigError, match=message):
            read(tmp_path / "t.csv", SCHEMA, options)


def test_separators_have_names() -> None:
    assert [FileOptions.of({"separator": name}).separator for name in ("tab", "\\t", "semicolon")] == ["\t", "\t", ";"]
    assert FileOptions.of({"separator": "\t"}).said() == {"separator": "tab"}


def test_what_was_found_is_logged_and_what_was_said_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="fedsyn.table.data")
    (tmp_path / "t.csv").write_bytes(text(";").encode("latin-1"))
    encode_file(tmp_path / "t.csv", SCHEMA)
    assert "t.csv: ';' between the cells; what is not UTF-8 read as Windows-1252" in caplog.messages[0]
    caplog.clear()
    encode_file(tmp_path / "t.csv", SCHEMA, {"separator": ";", "encoding": "cp1252"})
    (tmp_path / "u.csv").write_text(text(), encoding="utf-8")
    encode_file(tmp_path / "u.csv", SCHEMA)
    assert not caplog.messages
