"""Finds out how the cells of a text file are separated.

The first line of the file shows it where nobody named it.

With a schema the separator is the one by which the first line holds the schema's columns: both are public, so no row
has a say. Without a schema, which is where a schema is drafted, the lines that follow have to agree with the first one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, product
from pathlib import Path

from fedsyn.errors import DataError
from fedsyn.table.data.opening import SHEETS, TextFile, is_parquet
from fedsyn.table.data.options import SEPARATORS, FileOptions, shown
from fedsyn.table.data.sealed import plain_name
from fedsyn.table.schema.values import parse_number

# Characters that are read to find the layout, and lines that have to agree with the first one.
_HEAD = 1 << 20
_LINES = 100
# Rows of a title, and of names, above which a schema's columns are looked for.
_TITLE, _MOST_NAMES = 20, 3


@dataclass(frozen=True)
class TextLayout:
    """A text file, and how it is read.

    Attributes:
        file: opens its text.
        separator: between its cells.
        decimal: mark of its numbers.
        header: the names of its columns, as they stand; blank ones and doubled ones too.
        notes: what was found and not said by anybody, in sentences without a cell of a row.
        rows: number of lines that name the columns.
    """

    file: TextFile
    separator: str
    decimal: str
    header: list[str]
    notes: tuple[str, ...]
    rows: int = 1

    @property
    def path(self) -> Path:
        return self.file.path

    def options(self) -> FileOptions:
        """Returns the options that describe what was found.

        They can be stated in a configuration, and hold what differs from a plain CSV file.
        """
        return _with(self.file, self.separator, self.file.fell_back)


def header_options(path: Path, options: FileOptions, columns: Sequence[str]) -> FileOptions:
    """Returns the options with what the column names add.

    The names of the columns are public. The rows below them are not.

    Raises:
        DataError: as `layout_of`.
    """
    if is_parquet(path):
        return options
    layout = layout_of(path, options, columns)
    with layout.file.open() as stream:
        lines = "".join(islice(filter(str.strip, iter(lambda: stream.readline(_HEAD), "")), layout.rows))
    legible = lines.isascii() or all(not "\udc80" <= letter <= "\udcff" for letter in lines)
    return _with(layout.file, layout.separator, not legible)


def _with(file: TextFile, separator: str, fell_back: bool) -> FileOptions:
    options = file.options
    if plain_name(file.path).suffix.lower() in SHEETS:
        return options
    encoding = options.encoding or ("cp1252" if fell_back else file.encoding if file.encoding != "utf-8" else None)
    separated = options.separator or (separator if separator != "," else None)
    return options.model_copy(update={"separator": separated, "encoding": encoding})


def layout_of(path: Path, options: FileOptions, columns: Sequence[str] | None = None) -> TextLayout:
    """Finds out how a text file is read.

    Args:
        path: of a text file or an Excel file.
        options: what was said about it.
        columns: names of columns that it should have (a schema's), or None.

    Raises:
        DataError: an empty file, one that is no text, or one that another separator divides into the columns.
    """
    file = TextFile(path, options)
    with file.open() as stream:
        head = stream.read(_HEAD) or ""
    if not head.strip("\ufeff \t\r\n,;|"):
        raise DataError(f"{path} is empty")
    sheet = plain_name(path).suffix.lower() in SHEETS
    candidates, rows = _candidates(path), options.header or 1
    columns = columns and _as_in_file(head, candidates, columns, options)
    separator = "," if sheet else options.separator
    if separator is None:
        separator = _by_lines(head, candidates) if columns is None else _by_names(head, candidates, columns, rows)
    header = _first_cells(head, separator, rows)
    if columns is not None and not set(columns) <= set(header) and options.skip_rows is options.header is None:
        marks = [separator] if sheet or options.separator else candidates
        changes = _names_below(head, marks, set(columns), sheet)
        if changes is not None:
            return layout_of(path, options.model_copy(update=changes), columns)
    if len(header) == 1 and columns is None and options.separator is None:
        _require_no_title(path, head, candidates)
    if not sheet:
        _require_divided(path, head, header, separator, columns, rows)
    notes = tuple(_notes(file, separator, options))
    return TextLayout(file, separator, options.decimal or ".", options.renamed(header), notes, rows)


def require_names(path: Path, header: Sequence[str]) -> None:
    """Refuses a first line that cannot be a header.

    It does so before an error message can quote that line.

    Raises:
        DataError: most of its cells are numbers (and not ascending ones, such as years), or two names are the same.
    """
    named = [name.strip() for name in header if name.strip()]
    if any(not letter.isprintable() and letter not in "\t\r\n" for name in named for letter in name):
        raise DataError(f"the first line of {path} holds control characters, so it is not a text table")
    numbers = [number for name in named if (number := parse_number(name.replace(",", "."))) is not None]
    counted = len(numbers) > 1 and all(a < b and a.is_integer() for a, b in pairwise(numbers))
    if 2 * len(numbers) > len(named) and not counted:
        raise DataError(
            f"the first line of {path} does not name columns: {len(numbers)} of its {len(named)} cells are numbers; "
            "put a line with the names of the columns above it"
        )
    for name in named:
        if named.count(name) > 1:
            raise DataError(
                f"{path} has more than one column named '{name}': rename one in its first line; where names stand in "
                "two rows, --header 2 joins them"
            )


def _candidates(path: Path) -> list[str]:
    """The separators to try, the likeliest by the file's name first."""
    tabs = ".tsv" in [suffix.lower() for suffix in path.suffixes]
    return sorted(SEPARATORS, key=lambda mark: tabs and mark != "\t")


def _as_in_file(head: str, candidates: Sequence[str], columns: Sequence[str], options: FileOptions) -> Sequence[str]:
    """Returns a schema's columns by their names in a file."""
    if options.rename is None:
        return columns
    top = [_rows(head, mark, _TITLE + _MOST_NAMES) for mark in {*candidates, options.separator or ","}]
    names = {cell for rows in top for row in [*rows, _joined(rows[: options.header or 1])] for cell in row}
    own = {new: old for old, new in options.rename if old in names}
    return [own.get(name, name) for name in columns]


def _rows(head: str, separator: str, most: int) -> list[list[str]]:
    """Returns the first rows of cells, without blank lines.

    Up to `most` + 1 rows are returned. The last one may be cut off by the end of `head`.
    """
    reader = csv.reader(io.StringIO(head, newline=""), delimiter=separator)
    rows: list[list[str]] = []
    try:
        for row in reader:
            if row:
                rows.append(row)
            if len(rows) > most:
                break
    except csv.Error:  # a cell that does not end; the reader of the whole says what is wrong
        pass
    return rows


def _first_cells(head: str, separator: str, rows: int = 1) -> list[str]:
    """Returns the names of the columns.

    They are the cells of the first line, or those of several lines joined.
    """
    return _joined(_rows(head.removeprefix("\ufeff"), separator, rows)[:rows])


def _joined(rows: Sequence[list[str]]) -> list[str]:
    """Returns names that stand in several rows, joined.

    A cell that stands above several columns goes with each of them.
    """
    if len(rows) < 2:
        return rows[0] if rows else []
    width = max(map(len, rows))
    padded = [[cell.strip() for cell in row] + [""] * (width - len(row)) for row in rows]
    for row in padded[:-1]:
        for j in range(1, width):
            row[j] = row[j] or row[j - 1]
    return [" ".join(filter(None, names)) for names in zip(*padded, strict=True)]


def _names_below(head: str, candidates: Sequence[str], columns: set[str], sheet: bool) -> dict[str, int | None] | None:
    """Returns the rows to skip and the rows of names.

    A file has all columns by them. None means that there are no such rows at its top.
    """
    for mark in candidates:
        lines = [row for row in _rows(head, mark, _TITLE + _MOST_NAMES) if not sheet or any(row)]
        for skip, rows in product(range(_TITLE + 1), range(1, _MOST_NAMES + 1)):
            if columns <= set(_joined(lines[skip : skip + rows])):
                return {"skip_rows": skip or None, "header": rows if rows > 1 else None}
    return None


def _by_names(head: str, candidates: Sequence[str], columns: Sequence[str], rows: int) -> str:
    """The separator by which the names hold most of the columns."""
    return max(candidates, key=lambda mark: len({*columns} & {*_first_cells(head, mark, rows)}))


def _by_lines(head: str, candidates: Sequence[str]) -> str:
    """Returns the separator that divides most lines as the first one.

    A line agrees that has as many cells as the first one. If several separators do equally well, the one
    with the most cells is returned.
    """
    scores = {}
    for mark in candidates:
        rows = _rows(head, mark, _LINES)
        width = len(rows[0]) if rows else 0
        following = rows[1:_LINES]
        agreed = sum(len(row) == width for row in following) / len(following) if following else 1.0
        scores[mark] = (round(agreed, 1), width) if width > 1 else (-1.0, 1)
    return max(candidates, key=lambda mark: scores[mark])


def _require_divided(
    path: Path, head: str, header: Sequence[str], separator: str, columns: Sequence[str] | None, rows: int
) -> None:
    """Refuses a separator if another one divides the first line.

    Raises:
        DataError: names the other one.
    """
    others = [mark for mark in SEPARATORS if mark != separator]
    if columns is not None:
        names = set(columns)
        if names <= set(header):
            return
        better = [mark for mark in others if names <= set(_first_cells(head, mark, rows))]
    else:
        better = [mark for mark in others if len(_first_cells(head, mark)) > 1] if len(header) == 1 else []
    if better:
        mark = max(better, key=lambda mark: len(_first_cells(head, mark)))
        typed = "tab" if mark == "\t" else f"'{mark}'"
        raise DataError(
            f"{path} looks as if {shown(mark)} stood between its cells: say --separator {typed}, "
            f"in a run data.options.separator: {typed}"
        )


def _require_no_title(path: Path, head: str, candidates: Sequence[str]) -> None:
    """Refuses a first line of one cell above divided lines.

    A separator divides those lines alike.

    Raises:
        DataError: says how many lines to skip.
    """
    for mark in candidates:
        widths = [len(row) for row in _rows(head, mark, _LINES)[:_LINES] if any(row)]
        first = next((j for j, width in enumerate(widths) if width > 1), 0)
        alike = widths[first:].count(widths[first]) if widths else 0
        if first and len(widths) - first > 1 and alike >= 0.9 * (len(widths) - first):
            raise DataError(
                f"{path} has {first} line{'s' if first > 1 else ''} of one cell above lines of {widths[first]}: leave "
                f"out a title by --skip-rows {first}, in a run data.options.skip_rows: {first}"
            )


def _notes(file: TextFile, separator: str, options: FileOptions) -> Iterable[str]:
    yield from file.notes
    if separator != "," and options.separator is None:
        yield f"{shown(separator)} between the cells"
    if file.encoding not in ("utf-8", "utf-8-sig") and options.encoding is None:
        yield f"{file.encoding.upper()}"
