"""Finds the separator of a text file, and its columns' names.

The first line of the file shows the separator where nobody named it.

With a schema the separator is the one by which the first line holds the schema's columns: both are public, so no row
has a say. Without a schema, which is where a schema is drafted, the lines that follow have to agree with the first one,
and names that look like values are asked about.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

from fedsyn.errors import DataError
from fedsyn.output import counted
from fedsyn.table.data.edges import (
    LOOKED_AT,
    MOST_NAMES,
    MOST_TITLES,
    Line,
    Names,
    described,
    heading,
    joined,
    line_of,
    looks_like_values,
    names_above,
    numbered,
    usual_width,
)
from fedsyn.table.data.lines import RowReader, records
from fedsyn.table.data.opening import SHEETS, TextFile, is_parquet
from fedsyn.table.data.options import SEPARATORS, FileOptions, shown
from fedsyn.table.data.sealed import plain_name

# Characters that are read to find the layout, and lines that have to agree with the first one.
_HEAD = 1 << 20
_LINES = 100
#: Names of columns that no line names.
_UNNAMED = "column_"


@dataclass(frozen=True)
class TextLayout:
    """A text file, and how it is read.

    Attributes:
        file: opens its text.
        separator: between its cells.
        decimal: mark of its numbers.
        header: the names of its columns, as they stand; blank ones and doubled ones too.
        notes: what was found and not said by anybody, in sentences without a cell of a row.
        lines: numbers of the lines that name the columns, as an editor or Excel counts them.
    """

    file: TextFile
    separator: str
    decimal: str
    header: list[str]
    notes: tuple[str, ...]
    lines: tuple[int, ...] = (1,)

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def heading(self) -> str:
        """A sentence on what was taken for names."""
        return heading(self.lines, self.header)

    def options(self) -> FileOptions:
        """Returns the options that describe what was found.

        They can be stated in a configuration, and hold what differs from a plain CSV file.
        """
        return _with(self.file, self.separator, self.file.fell_back)

    def reader(self, stream: io.TextIOBase) -> RowReader:
        """Returns the reader of the rows of its open text."""
        above = 0 if self.file.sheet is not None else self.file.options.skip_rows or 0
        return RowReader(stream, self.separator, len(self.lines), len(self.header), self.file.footer, above)


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
        lines = "".join(islice(filter(str.strip, iter(lambda: stream.readline(_HEAD), "")), len(layout.lines)))
    legible = lines.isascii() or all(not "\udc80" <= letter <= "\udcff" for letter in lines)
    return _with(layout.file, layout.separator, not legible)


def _with(file: TextFile, separator: str, fell_back: bool) -> FileOptions:
    options = file.options
    if plain_name(file.path).suffix.lower() in SHEETS:
        return options
    encoding = options.encoding or ("cp1252" if fell_back else file.encoding if file.encoding != "utf-8" else None)
    separated = options.separator or (separator if separator != "," else None)
    return options.model_copy(update={"separator": separated, "encoding": encoding})


def layout_of(
    path: Path, options: FileOptions, columns: Sequence[str] | None = None, aside: Sequence[str] = ()
) -> TextLayout:
    """Finds out how a text file is read.

    Args:
        path: of a text file or an Excel file.
        options: what was said about it.
        columns: names of columns that it should have (a schema's), or None.
        aside: names of a schema's other columns, which say how many there are where no line names them.

    Raises:
        DataError: an empty file, one that is no text, or one that another separator divides into the columns. Without
            `columns` also names that look like values, and rows wider than the names.
    """
    file = TextFile(path, options)
    with file.open() as stream:
        head = (stream.read(_HEAD) or "").removeprefix("\ufeff")
    if columns is None:
        file.require_text(head)
    if not head.strip("\ufeff \t\r\n,;|"):
        raise DataError(f"{path} is empty")
    sheet = plain_name(path).suffix.lower() in SHEETS
    candidates, rows = _candidates(path), 1 if options.header is None else options.header
    columns = columns and _as_in_file(head, candidates, columns, options)
    separator = "," if sheet else options.separator
    if separator is None:
        by_lines = columns is None
        separator = _by_lines(head, candidates) if by_lines else _by_names(head, candidates, columns or (), rows)
    decimal, notes = options.decimal or ".", tuple(_notes(file, separator, options))
    if rows == 0:
        names = None if columns is None else [*columns, *aside]
        return TextLayout(file, separator, decimal, options.renamed(_numbered(head, separator, names)), notes, ())
    header = _first_cells(head, separator, rows)
    file.require_text("".join(header))
    if columns is not None and not set(columns) <= set(header) and options.skip_rows is options.header is None:
        marks = [separator] if sheet or options.separator else candidates
        below = _names_below(file, head, marks, set(columns))
        if below is not None:
            return layout_of(path, _said(options, below), columns, aside)
    if not sheet:
        _require_divided(path, head, header, separator, columns, rows)
    lines = _lines(file, head, separator, LOOKED_AT if columns is None else rows)
    if columns is None:
        _require_names(file, lines, header, rows, separator)
    return TextLayout(
        file, separator, decimal, options.renamed(header), notes, tuple(line.number for line in lines[:rows])
    )


def _said(options: FileOptions, names: Names) -> FileOptions:
    """Returns options that say where the names are."""
    header = names.header if names.header > 1 else None
    return options.model_copy(update={"skip_rows": names.skip or None, "header": header})


def _require_names(file: TextFile, lines: Sequence[Line], header: Sequence[str], rows: int, separator: str) -> None:
    """Refuses lines that cannot name the columns, or that look like values.

    It does so before a message can quote them. The remedy that it names was tried on this file.

    Raises:
        DataError: control characters, names that look like values, fewer names than most lines have cells, or two names
            that are the same.
    """
    path, here = file.path, numbered([line.number for line in lines[:rows]])
    named = [name.strip() for name in header if name.strip()]
    if any(not letter.isprintable() and letter not in "\t\r\n" for name in named for letter in name):
        raise DataError(f"{here} of {path} holds control characters, so it is not a text table")
    below = lines[rows:]
    for line in lines[:rows]:
        why = looks_like_values(line.cells, below)
        if why is not None:
            raise DataError(
                f"line {line.number} of {path} looks like values, not like names of columns ({why}); "
                f"{_remedy(file, separator)}if no line names them, say --no-header, which calls them {_UNNAMED}1, "
                f"{_UNNAMED}2, ... (in a run data.options.header: 0)"
            )
    wider = 2 * sum(len(line.cells) > len(header) for line in below[:_LINES]) > len(below[:_LINES])
    if wider or (2 * len(named) <= usual_width(below[:_LINES]) and _remedy(file, separator)):
        few = f"{here} of {path} {'name' if rows > 1 else 'names'} {counted(len(named), 'column')}"
        raise DataError(
            f"{few}, and most lines below have more cells; "
            f"{_remedy(file, separator) or 'a cell that holds the separator needs quotes around it'}".removesuffix("; ")
        )
    for name in named:
        if named.count(name) > 1:
            raise DataError(
                f"{path} has more than one column named '{name}'; {_remedy(file, separator)}rename one in {here}"
            )


def _remedy(file: TextFile, separator: str) -> str:
    """Returns the options with which the right lines are read for names.

    They stand in words. The text is empty if there are no such lines, or if they are those that were taken.
    """
    options = file.options.model_copy(update={"skip_rows": None, "header": None})
    whole = TextFile(file.path, options)
    with whole.open() as stream:
        lines = _lines(whole, stream.read(_HEAD).removeprefix("\ufeff"), separator, LOOKED_AT)
    names = names_above(lines)
    if names is None or (names.skip, names.header) == (file.options.skip_rows or 0, file.options.header or 1):
        return ""
    down_to = next(j for j, line in enumerate(lines) if line.number > names.skip) + names.header
    return f"{described(lines[:down_to])}, so say {names.typed()}; "


def _candidates(path: Path) -> list[str]:
    """The separators to try, the likeliest by the file's name first."""
    tabs = ".tsv" in [suffix.lower() for suffix in path.suffixes]
    return sorted(SEPARATORS, key=lambda mark: tabs and mark != "\t")


def _as_in_file(head: str, candidates: Sequence[str], columns: Sequence[str], options: FileOptions) -> Sequence[str]:
    """Returns a schema's columns by their names in a file."""
    if options.rename is None:
        return columns
    names: set[str] = set()
    for mark in {*candidates, options.separator or ","}:
        rows = [cells for _, cells in _rows(head, mark, MOST_TITLES + MOST_NAMES)]
        names.update(*rows, joined(rows[: options.header or 1]))
    own = {new: old for old, new in options.rename if old in names}
    return [own.get(name, name) for name in columns]


def _rows(head: str, separator: str, most: int) -> list[tuple[int, list[str]]]:
    """Returns the number and the cells of the first lines.

    Blank ones are not among them. `most` lines are returned. The last one may be cut off by the end of `head`.
    """
    filled = (
        (record.line, record.cells)
        for record in records(head, separator)
        if record.cells is not None and not record.blank
    )
    return list(islice(filled, most))


def _lines(file: TextFile, head: str, separator: str, most: int) -> list[Line]:
    """Returns the first lines of a file that are not blank."""
    rows = _rows(head, separator, most)
    if file.sheet is not None:
        numbers = file.sheet.numbers
        return [line_of(number, cells) for number, (_, cells) in zip(numbers, rows, strict=False)]
    return [line_of(number + (file.options.skip_rows or 0), cells) for number, cells in rows]


def _first_cells(head: str, separator: str, rows: int = 1) -> list[str]:
    """Returns the names of the columns.

    They are the cells of the first line, or those of several lines joined.
    """
    return joined([cells for _, cells in _rows(head, separator, rows)])


def _numbered(head: str, separator: str, columns: Sequence[str] | None) -> list[str]:
    """Returns the names of columns that no line names.

    There are as many as a schema has, or else as most of the first lines have cells.
    """
    if columns is not None:
        places = [name.removeprefix(_UNNAMED) for name in columns if name.startswith(_UNNAMED)]
        width = max((int(place) for place in places if place.isascii() and place.isdigit()), default=1)
    else:
        width = usual_width([Line(line, cells) for line, cells in _rows(head, separator, _LINES)])
    return [f"{_UNNAMED}{j + 1}" for j in range(width)]


def _names_below(file: TextFile, head: str, candidates: Sequence[str], columns: set[str]) -> Names | None:
    """Returns the lines to skip, and those of names, for a schema.

    A file has all of the schema's columns by them. None means that there are no such lines at its top.
    """
    for mark in candidates:
        rows = _rows(head, mark, MOST_TITLES + MOST_NAMES)
        numbers = [line.number for line in _lines(file, head, mark, MOST_TITLES + MOST_NAMES)]
        for first, count in product(range(min(len(rows), MOST_TITLES + 1)), range(1, MOST_NAMES + 1)):
            if columns <= set(joined([cells for _, cells in rows[first : first + count]])):
                return Names(numbers[first] - 1, count)
    return None


def _by_names(head: str, candidates: Sequence[str], columns: Sequence[str], rows: int) -> str:
    """The separator by which the names hold most of the columns."""
    return max(candidates, key=lambda mark: len({*columns} & {*_first_cells(head, mark, rows)}))


def _by_lines(head: str, candidates: Sequence[str]) -> str:
    """Returns the separator that divides most lines as the first one.

    A line agrees that has as many cells as the first one. Where none does, lines have to agree with each other: the
    first one may be a title. If several separators do equally well, the one with the most cells is returned.
    """
    scores = {}
    for mark in candidates:
        widths = [len(cells) for _, cells in _rows(head, mark, _LINES)]
        first, following = widths[0] if widths else 0, widths[1:]
        agreed = following.count(first) / len(following) if following else 1.0
        scores[mark] = (round(agreed, 1), first) if first > 1 else (-1.0, 1)
        divided = following[next((j for j, width in enumerate(following) if width > 1), len(following)) :]
        usual = max({*divided}, key=divided.count, default=1)
        if scores[mark][0] < 0.5 and len(divided) > 1 and divided.count(usual) >= 0.9 * len(divided):
            scores[mark] = (0.5, usual)
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


def _notes(file: TextFile, separator: str, options: FileOptions) -> Iterable[str]:
    yield from file.notes
    if separator != "," and options.separator is None:
        yield f"{shown(separator)} between the cells"
    if file.encoding not in ("utf-8", "utf-8-sig") and options.encoding is None:
        yield f"{file.encoding.upper()}"
