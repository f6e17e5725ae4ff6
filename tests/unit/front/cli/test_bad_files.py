"""Bad tables: exit code 2, one sentence that helps, nothing drafted, nothing spent, and no cell quoted."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import zipfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.bad_inputs import Content, Try, bad, by_kind, check_each, furnish, rows

CSV = rows().to_csv(index=False)


def zipped(**members: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name.replace("__", "."), text)
    return buffer.getvalue()


def excel(**sheets: pd.DataFrame) -> bytes:
    pytest.importorskip("openpyxl")
    buffer = io.BytesIO()
    with pd.ExcelWriter(buffer) as writer:
        for name, frame in sheets.items():
            frame.to_excel(writer, sheet_name=name, index=False)
    return buffer.getvalue()


def parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def folder(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    path.symlink_to(path.name)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def headed(header: str, line: str = "30,clerk,5.00,no") -> str:
    return f"{header}\n{line}\n{line}\n"


#: A file's name, what it holds, and the words of `fedsyn schema draft`'s answer.
TABLES: list[tuple[str, Content, tuple[str, ...]]] = [
    ("t.csv", "", ("t.csv is empty",)),
    ("t.csv", "\n\n\n", ("t.csv is empty",)),
    ("t.csv", "age,job,cost,smokes\n", ("t.csv has no rows",)),
    ("t.csv", ",,,\n,,,\n,,,\n", ("t.csv", "empty")),
    ("t.csv", headed("age,age,cost,smokes"), ("more than one column named 'age'", "rename")),
    ("t.csv", headed("30,1,5.00,7"), ("line 1 of t.csv looks like values", "4 numbers", "say --no-header")),
    ("t.csv", headed("age,job,cost", "30,clerk,5.00,no,yes"), ("t.csv", "cells")),
    ("t.csv", headed("age,job,cost,smokes", '30,"clerk,5.00,no'), ("line 2 first", "quotation mark", "never closed")),
    ("t.csv", headed("age,job,cost,smokes") + "Total,,60.00,\n", ("line 4", "totals", "--skip-footer 1")),
    ("t.csv", CSV.replace("clerk", "cle\0rk").encode(), ("NUL", "tr -d")),
    ("t.csv", b"\0" * 4096, ("NUL",)),
    ("t.csv", bytes(range(1, 256)) * 20, ("t.csv", "control characters")),
    ("t.csv", gzip.compress(CSV.encode()), ("t.csv starts like", "ends in .csv.gz")),
    ("t.csv", zipped(a__csv=CSV), ("t.csv starts like", ".xlsx or .csv.zip")),
    ("t.csv", "a,b\n,\n,\n,\n", ("no column of t.csv is left", "--keep")),
    ("t.csv", "a\n\n\n", ("no column of t.csv is left",)),
    ("t.csv", folder, ("t.csv is a folder",)),
    ("t.csv", link, ("t.csv is a link that leads to no file",)),
    ("t.csv", pipe, ("t.csv is not a regular file",)),
    ("t.json", "{}", ("t.json", "read_json")),
    ("t.xls", b"\xd0\xcf\x11\xe0", ("t.xls", "save it as .xlsx or .csv")),
    ("t.dta", b"\0", ("read_stata",)),
    ("t.exe", b"MZ", ("t.exe", ".csv, .tsv")),
    ("t", CSV, ("its name must end in",)),
    ("t.csv.gz", b"no gzip", ("t.csv.gz", "damaged")),
    ("t.csv.gz", gzip.compress(CSV.encode())[:100], ("t.csv.gz", "damaged")),
    ("t.csv.gz", gzip.compress(b""), ("t.csv.gz is empty",)),
    ("t.csv.bz2", b"no bz2", ("t.csv.bz2", "damaged")),
    ("t.csv.bz2", bz2.compress(CSV.encode())[:100], ("t.csv.bz2", "damaged")),
    ("t.csv.xz", b"no xz", ("t.csv.xz", "damaged")),
    ("t.csv.zst", b"no zst", ("t.csv.zst",)),
    ("t.csv.zip", b"no zip", ("t.csv.zip", "damaged")),
    ("t.csv.zip", zipped(), ("holds 0 files",)),
    ("t.csv.zip", zipped(a__csv=CSV, b__csv=CSV), ("holds 2 files", "unpack it")),
    ("t.csv.zip", zipped(a__csv=CSV)[:200], ("t.csv.zip", "damaged")),
    ("t.xlsx", b"no excel", ("t.xlsx",)),
    ("t.xlsx", zipped(a__csv=CSV), ("t.xlsx",)),
    ("t.xlsx", lambda path: path.write_bytes(excel(empty=pd.DataFrame())), ("t.xlsx", "empty")),
    ("t.xlsx", lambda path: path.write_bytes(excel(bare=rows().head(0))), ("t.xlsx has no rows",)),
    ("t.xlsx", lambda path: path.write_bytes(excel(one=rows())[:3000]), ("t.xlsx",)),
    ("t.parquet", b"no parquet", ("t.parquet", "Parquet")),
    ("t.parquet", b"PAR1" + b"\0" * 64 + b"PAR1", ("t.parquet", "Parquet")),
    ("t.parquet", parquet(pa.table({"a": [1, 2]}))[:-40], ("t.parquet", "Parquet")),
    ("t.parquet", parquet(pa.table({"a": pa.array([], pa.int64())})), ("t.parquet has no rows",)),
    ("t.parquet", parquet(pa.table({})), ("t.parquet",)),
    ("t.parquet", parquet(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])),
     ("more than one column named 'a'",)),
    ("t.parquet", parquet(pa.table({"a": pa.array([[1], [2]])})), ("every column of t.parquet", "lists")),
    ("t.parquet", parquet(pa.table({"a": [b"\x01", b"\x02"]})), ("every column of t.parquet", "bytes")),
    ("t.parquet", parquet(pa.table({"a": pa.nulls(3)})), ("no column of t.parquet is left",)),
]  # fmt: skip
#: What is typed about a good file, and the words of the answer.
OPTIONS = [
    ("rows.csv --separator ''", "separator", "one character"),
    ("rows.csv --separator ';;'", "separator", "one character"),
    ("rows.csv --separator ';'", "--separator ','"),
    ("rows.csv --separator x", "separator"),
    ("rows.csv --encoding klingon", "encoding", "utf-8"),
    ("rows.csv --encoding utf-16", "rows.csv", "byte order mark"),
    ("rows.csv --encoding base64", "encoding"),
    ("rows.csv --decimal x", "decimal"),
    ("rows.csv --header 9", "header"),
    ("rows.csv --header 1 --no-header", "--no-header and --header"),
    ("rows.csv --skip-rows -1", "skip-rows"),
    ("rows.csv --skip-footer -1", "skip-footer"),
    ("rows.csv --sheet 2", "sheet"),
    ("rows.csv --bins 0", "bins"),
    ("rows.csv --bins -1", "bins"),
    ("rows.csv --bins 99999999", "bins"),
    ("rows.csv --label smoke", "did you mean 'smokes'"),
    ("rows.csv --keep jobs", "did you mean 'job'"),
    ("rows.csv --out schema.yaml", "schema.yaml exists", "--force"),
    ("rows.csv --out no/such/folder.yaml", "there is no folder"),
    ("rows.csv --out .", "is a folder"),
    ("row.csv", "no such file", "did you mean 'rows.csv'"),
    ("''", "empty"),
    (".", "folder"),
    ("https://example.org/rows.csv", "download"),
    ("adlut", "adlut"),
    ("semi.csv --separator ,", "--separator ';'"),
    ("book.xlsx --sheet 3", "sheet", "one, two"),
    ("book.xlsx --sheet tow", "sheet", "two"),
    ("book.xlsx --separator ';'", "separator", "means nothing"),
]


@pytest.fixture
def attempt(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Try:
    return lambda cases: check_each(cases, tmp_path, furnish, capsys, monkeypatch)


def ending_of(table: tuple[str, Content, tuple[str, ...]]) -> str:
    """What the name of a table's file ends in."""
    return table[0].removeprefix("t") or "nothing"


@pytest.mark.parametrize("cases", by_kind(TABLES, ending_of).values(), ids=by_kind(TABLES, ending_of))
def test_a_table_that_is_none(cases: list[tuple[str, Content, tuple[str, ...]]], attempt: Try) -> None:
    attempt(bad(f"schema draft {name}", *says, files={name: content}) for name, content, says in cases)


def test_a_table_that_is_named_wrongly(attempt: Try) -> None:
    files: dict[str, Content] = {"semi.csv": CSV.replace(",", ";")}
    book: dict[str, Content] = {"book.xlsx": lambda path: path.write_bytes(excel(one=rows(), two=rows()))}
    attempt(
        bad(f"schema draft {typed}", *says, files=files | (book if "book" in typed else {})) for typed, *says in OPTIONS
    )
