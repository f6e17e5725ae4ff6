"""A sheet of an Excel file as the text of a CSV file: its cells as they are shown, where that can be told.

One way of reading is enough then: what a cell means depends on the schema, as for every other text.
"""

from __future__ import annotations

import csv
import datetime
import io
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from fedsyn.errors import DataError, nearest
from fedsyn.table.schema.values import written
from fedsyn.version import installing

_ZEROS = re.compile(r"0+")
# Other sheets that are named.
_NAMED = 10


def sheet_as_text(
    path: Path, source: Path | BinaryIO, sheet: str | int | None, skip: int = 0, header: int = 1
) -> tuple[str, str | None]:
    """A sheet as CSV (`,`, UTF-8), and a sentence if it was chosen among several.

    Dates and times come in ISO, a number in a format of zeros only (`00000`) with its leading zeros, an error as its
    text (`#N/A`), a formula as the value that Excel kept.

    Args:
        path: of the file, for messages.
        source: the same, or what is in it.
        sheet: its name, or its number counted from 1; None: the first one.
        skip: rows above the names of the columns, empty ones not counted.
        header: rows that name the columns.

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
        chosen = _chosen(path, names, sheet)
        text = _text(book[chosen], skip, header)
    finally:
        book.close()
    others = [f"'{name}'" for name in names if name != chosen]
    shown = ", ".join(others[:_NAMED]) + (f" and {len(others) - _NAMED} more" if len(others) > _NAMED else "")
    note = f"the sheet '{chosen}' (--sheet NAME reads another: {shown})" if sheet is None and others else None
    return text, note


def _chosen(path: Path, names: list[str], sheet: str | int | None) -> str:
    if sheet is None:
        return names[0]
    if str(sheet) in names:
        return str(sheet)
    number = int(sheet) if str(sheet).isascii() and str(sheet).isdigit() else 0
    if 1 <= number <= len(names):
        return names[number - 1]
    raise DataError(f"{path} has no sheet '{sheet}'{nearest(str(sheet), names)}; its sheets: {', '.join(names)}")


def _text(sheet: Any, skip: int, header: int) -> str:
    """The rows of a sheet as CSV, without empty ones at the end and empty cells right of the last name."""
    out, width, blank = io.StringIO(), 0, 0
    names: list[list[str]] = []  # until all rows of names are there
    writer = csv.writer(out, lineterminator="\n")
    if hasattr(sheet, "reset_dimensions"):
        sheet.reset_dimensions()  # what other programs wrote there is often wrong
    for row in sheet.iter_rows():
        cells = [_cell(cell) for cell in row]
        while len(cells) > width and not cells[-1]:
            cells.pop()
        if not any(cells):
            blank += 1
            continue
        if skip:
            skip -= 1
            continue
        if len(names) < header:
            names.append(cells)
            width, blank = max(width, len(cells)), 0  # empty rows above the names
            if len(names) == header:
                writer.writerows([*cells, *[""] * (width - len(cells))] for cells in names)
            continue
        for _ in range(blank):
            writer.writerow([""] * width)
        blank = 0
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
