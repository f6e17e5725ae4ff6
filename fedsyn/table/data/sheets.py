"""Sheets of Excel files as the text of a CSV file.

Dates and times come in ISO, a number in a format of zeros only (`00000`) with its leading zeros, an error as its text
(`#DIV/0!`), a formula as the value that Excel kept. A row of the sheet is a row of the text, whatever stands in the
others.
"""

from __future__ import annotations

import csv
import datetime
import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fedsyn.errors import DataError, nearest
from fedsyn.lazy import pa
from fedsyn.output import first_of
from fedsyn.table.data.options import FileOptions
from fedsyn.table.schema.values import parse_number, written
from fedsyn.version import installing

_ZEROS = re.compile(r"0+")
# Other sheets that are named.
_NAMED = 10
# Rows at the top whose numbers are kept.
_TOP = 1200
# What of a sheet's XML is read for its columns, which stand above its cells.
_HEAD = 1 << 16
_COLUMN = re.compile(rb"<(?:\w+:)?col\s([^>]*)>")
#: Days that Excel counts for dates, 1906 to 2100. Smaller numbers may be years.
SERIALS = (2193, 73_415)


@dataclass(frozen=True)
class Sheet:
    """Content of a sheet of an Excel file.

    Attributes:
        text: its rows as CSV (`,`), without those that are skipped, blank ones above the names, and blank ones at the
            end; those between are there.
        numbers: of its first rows that hold anything, as Excel counts them.
        last: number of its last row that is in the text.
        start: day 0 of its serial numbers.
        notes: sentences: another sheet, hidden columns.
    """

    text: str
    numbers: tuple[int, ...]
    last: int
    start: datetime.datetime
    notes: tuple[str, ...]


def read_sheet(path: Path, source: Path | BinaryIO, options: FileOptions) -> Sheet:
    """Reads a sheet.

    Args:
        path: of the file, for messages.
        source: the same, or what is in it.
        options: which sheet, and which of its rows.

    Raises:
        DataError: openpyxl is not installed, no Excel file, or no such sheet.
    """
    try:
        import openpyxl
    except ImportError:
        raise DataError(f"reading {path} needs openpyxl: {installing('excel')}, or save the sheet as CSV") from None
    try:
        book = openpyxl.load_workbook(source, read_only=True, data_only=True)
    except (zipfile.BadZipFile, KeyError, ValueError, OSError):
        raise DataError(f"{path} is not a well-formed Excel file") from None
    try:
        names = list(book.sheetnames)
        chosen = _chosen(path, names, options.sheet)
        rows, hidden = _rows(book[chosen]), _hidden(book[chosen])
    finally:
        book.close()
    others = [f"'{name}'" for name in names if name != chosen]
    notes = []
    if options.sheet is None and others:
        notes.append(f"the sheet '{chosen}' (--sheet NAME reads another: {first_of(others, _NAMED)})")
    rows = [(number, cells) for number, cells in rows if number > (options.skip_rows or 0)]
    if hidden:
        notes.append(_note_on_hidden(hidden, rows, 1 if options.header is None else options.header))
    kept = rows[: max(0, len(rows) - (options.skip_footer or 0))]
    text = _text(kept, 1 if options.header is None else options.header)
    top = tuple(number for number, cells in kept if any(map(str.strip, cells)))[:_TOP]
    return Sheet(text, top, kept[-1][0] if kept else 0, book.epoch, tuple(notes))


def _chosen(path: Path, names: list[str], sheet: str | int | None) -> str:
    if sheet is None:
        return names[0]
    if str(sheet) in names:
        return str(sheet)
    number = int(sheet) if str(sheet).isascii() and str(sheet).isdigit() else 0
    if 1 <= number <= len(names):
        return names[number - 1]
    raise DataError(f"{path} has no sheet '{sheet}'{nearest(str(sheet), names)}; its sheets: {', '.join(names)}")


def _rows(sheet: Any) -> list[tuple[int, list[str]]]:
    """Returns number and cells of each row.

    Blank rows at the end are left out.
    """
    if hasattr(sheet, "reset_dimensions"):
        sheet.reset_dimensions()  # what other programs wrote there is often wrong
    rows = []
    for number, row in enumerate(sheet.iter_rows(), 1):
        cells = [_cell(cell) for cell in row]
        while cells and not cells[-1]:
            cells.pop()
        rows.append((number, cells))
    while rows and not rows[-1][1]:
        rows.pop()
    return rows


def _text(rows: list[tuple[int, list[str]]], header: int) -> str:
    """Returns rows as CSV, from the first one on that holds anything.

    All have at least as many cells as there are names.
    """
    filled = [j for j, (_, cells) in enumerate(rows) if cells]
    names = filled[: max(1, header)]
    width = max((len(rows[j][1]) for j in names), default=0)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for j, (_, cells) in enumerate(rows):
        if j >= names[-1] or j in names:
            writer.writerow(cells + [""] * (width - len(cells)))
    return out.getvalue()


def _cell(cell: Any) -> str:
    """A cell as text."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, datetime.datetime):
        shown = str(cell.number_format).lower()
        timed = value.time() != datetime.time() or "h" in shown or "s" in shown
        return value.isoformat(sep=" ") if timed else value.date().isoformat()
    if isinstance(value, int) and not isinstance(value, bool) and _ZEROS.fullmatch(str(cell.number_format)):
        return str(value).zfill(len(cell.number_format))
    return written(value)


# Columns that somebody hid --------------------------------------------------------------------------------------------


def _hidden(sheet: Any) -> set[int]:
    """Returns the places of a sheet's hidden columns, counted from 0.

    openpyxl reads them only together with all cells, so they are looked for in the sheet's XML.
    """
    with sheet._get_source() as source:
        head = source.read(_HEAD).partition(b"sheetData")[0]
    places: set[int] = set()
    for column in _COLUMN.findall(head):
        keys = dict(re.findall(rb'(\w+)="([^"]*)"', column))
        if keys.get(b"hidden") in (b"1", b"true"):
            places |= set(range(int(keys[b"min"]) - 1, min(int(keys[b"max"]), 1 << 14)))
    return places


def _note_on_hidden(hidden: set[int], rows: list[tuple[int, list[str]]], header: int) -> str:
    """Returns a sentence on the hidden columns.

    It names them, or counts them if none has a name.
    """
    names = [cells for _, cells in rows if cells][:header]
    shown = [" ".join(filter(None, (cells[j] if j < len(cells) else "" for cells in names))) for j in sorted(hidden)]
    named = [f"'{name}'" for name in shown if name]
    what = f"columns that are hidden in Excel are read: {', '.join(named[:_NAMED])}"
    if not named:
        width = max((len(cells) for _, cells in rows), default=0)
        what = f"{sum(j < width for j in hidden)} columns that are hidden in Excel are read"
    return f"{what}; kind: drop in the schema leaves one out"


# Serial numbers -------------------------------------------------------------------------------------------------------


def dates_of_serials(texts: pa.Array, start: datetime.datetime, written: str) -> pa.Array:
    """Returns texts with the moments that serial numbers of Excel stand for.

    A number is taken for one by itself, whatever the other texts are. All other texts stay.

    Args:
        texts: (m,) strings.
        start: day 0.
        written: format of the moments, in the codes of `strftime`.
    """
    coded = texts.dictionary_encode()
    return pa.array([_moment(text, start, written) for text in coded.dictionary.to_pylist()], pa.string()).take(
        coded.indices
    )


def is_serial(text: str) -> bool:
    """Returns whether a text is a number of days in Excel's dates."""
    number = parse_number(text) if text[:1].isdigit() else None
    return number is not None and SERIALS[0] <= number < SERIALS[1] + 1


def _moment(text: str, start: datetime.datetime, written: str) -> str:
    if not is_serial(text.strip()):
        return text
    return (start + datetime.timedelta(seconds=round(float(text) * 86_400))).strftime(written)
