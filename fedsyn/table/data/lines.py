"""Lines of a text file as columns of Arrow text.

What a line holds depends on that line alone, whatever stands in the others:

- A line is a row; a cell in quotation marks may go on over line ends.
- A line with fewer cells than there are names lacks the last ones: they are empty.
- A line with more cells is left out and counted, unless those beyond the names are empty.
- A quotation mark at the start of a cell must be closed before a separator or the end of a line. Where it is not, or
  where the cells up to there are not as many as the names, the line that opens it is left out and counted, and reading
  goes on with the next line. So it does where a mark happens to be closed some lines below and each of those lines is
  a row by itself. (Where they are not, as one has a separator too many, or where two short rows could be a text with a
  comma, they make one row, as in every CSV file.)

Arrow parses what is well-formed. What it cannot parse is mended or taken out line by line before.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedsyn.lazy import pa, pacsv

# Characters that are read at a time. Changes no result.
_CHUNK = 1 << 21
# Lines of one cell. A quotation mark is not looked for beyond them.
_MOST_LINES = 1000
# Separators that stand where rows have them by no chance, in lines that a quotation mark joins. A text with one comma
# in a line is common; one whose every line has as many as the rows have, and four in all, is not.
_NO_CHANCE = 4
# Characters at the end whose lines can be told.
_TAIL = 1 << 16
_LINE_END = re.compile(r"\r\n|\r|\n")
_QUOTE = ord('"')


class Record(NamedTuple):
    """Cells of a line, or of several lines.

    A cell in quotation marks may join lines.

    Attributes:
        line: number of its first line in the text, counted from 1.
        end: place in the text after its line end.
        cells: none of a blank line; None where a quotation mark is not closed.
    """

    line: int
    end: int
    cells: list[str] | None

    @property
    def blank(self) -> bool:
        """Returns whether no cell holds anything."""
        return self.cells is not None and not any(map(str.strip, self.cells))


def records(text: str, separator: str, width: int | None = None, whole: bool = True) -> Iterator[Record]:
    """Yields the records of a text, blank lines among them.

    Args:
        text: from the start of a line on.
        separator: between cells.
        width: cells that a record of several lines must have; None: any number.
        whole: whether the text goes to the end of the file. Otherwise a record that it cuts off is not yielded.
    """
    at, line = 0, 1
    while at < len(text):
        found = _record(text, at, separator, width, whole)
        if found is None:
            return
        cells, end = found
        yield Record(line, end, cells)
        line += _line_ends(text, at, end)
        at = end


def _record(text: str, at: int, separator: str, width: int | None, whole: bool) -> tuple[list[str] | None, int] | None:
    """Returns the cells of the record at a place, and its end.

    The cells are None where a quotation mark is not closed; then the end is that of the line. The result is None where
    the text cuts the record off.
    """
    cells, end = _cells(text, at, separator)
    lines = _line_ends(text, at, end)
    if cells is None and end == len(text) and not whole and lines <= _MOST_LINES:
        return None
    if lines > 1 or (lines == 1 and text[end - 1] not in "\r\n"):
        unlike = cells is not None and width not in (None, len(cells))
        rows = width is not None and _are_rows(text[at:end], separator, width)
        cells = None if lines > _MOST_LINES or unlike or rows else cells
    if cells is None:
        first = _LINE_END.search(text, at)
        end = first.end() if first else len(text)
    return cells, end


def _are_rows(text: str, separator: str, width: int) -> bool:
    """Returns whether lines that a quotation mark joins are rows each."""
    lines = _LINE_END.split(text)
    lines = lines if lines[-1] else lines[:-1]
    between = [line.count(separator) for line in lines]
    return sum(between[1:]) >= _NO_CHANCE and set(between) == {width - 1}


def _line_ends(text: str, start: int, end: int) -> int:
    return sum(1 for _ in _LINE_END.finditer(text, start, end))


def _cells(text: str, at: int, separator: str) -> tuple[list[str] | None, int]:
    """Returns the cells from a place to the end of their record.

    They are None where a quotation mark is not closed rightly; then the end is where it is closed at all, or that of
    the text.
    """
    pattern, cells = _cell(separator), list[str]()
    ended = _LINE_END.search(text, at)
    line = text[at : ended.start() if ended else len(text)]
    if '"' not in line:
        return line.split(separator) if line else [], ended.end() if ended else len(text)
    while True:
        found = pattern.match(text, at)
        if found is None:
            closed = _closed_somehow().match(text, at)
            return None, closed.end() if closed else len(text)
        quoted, plain = found.groups()
        cells.append(plain if quoted is None else quoted.replace('""', '"'))
        at = found.end()
        if not text.startswith(separator, at):
            end = _LINE_END.match(text, at)
            return [] if cells == [""] and quoted is None else cells, end.end() if end else at
        at += 1


@cache
def _cell(separator: str) -> re.Pattern[str]:
    """Pattern of a cell: in quotation marks, or as it stands."""
    mark = re.escape(separator)
    return re.compile(rf'"((?>[^"]*(?:""[^"]*)*))" *(?={mark}|[\r\n]|\Z)|((?!")[^{mark}\r\n]*)')


@cache
def _closed_somehow() -> re.Pattern[str]:
    return re.compile(r'"(?>[^"]*(?:""[^"]*)*)"')


@cache
def _well_formed(separator: str, width: int) -> re.Pattern[str]:
    """Pattern of a line that Arrow reads as it is."""
    mark = re.escape(separator)
    cell = rf'(?>"(?>[^"\r\n]*(?:""[^"\r\n]*)*)"|[^"{mark}\r\n]*)'
    return re.compile(rf"{cell}(?:{mark}{cell}){{{width - 1}}}(?:\r\n|\r|\n|\Z)")


class RowReader:
    """Reads the rows of a text, block by block.

    >>> reader = RowReader(io.StringIO("a,b\\n1,x\\n2,y,z\\n3\\n"), ",", names=1, width=2)
    >>> [[column.to_pylist() for column in block] for block in reader.blocks([0, 1])]
    [[['1', '3'], ['x', '']]]
    >>> reader.left_out, reader.first_left_out
    (1, 3)

    Args:
        stream: text, from above the names on.
        separator: between cells.
        names: number of lines that name the columns; blank ones above them do not count.
        width: number of columns.
        footer: lines at the end that are no rows, counted from the last one that is not blank.
        above: lines of the file above the stream.

    Attributes:
        left_out: lines that are no rows: of too many cells, or with a quotation mark that is not closed.
        first_left_out: number of the first of them in the file, or None.
        rows: rows that were read.
    """

    def __init__(
        self, stream: io.TextIOBase, separator: str, names: int, width: int, footer: int = 0, above: int = 0
    ) -> None:
        self.left_out, self.first_left_out, self.rows = 0, None, 0
        self._stream, self._separator, self._names, self._width = stream, separator, names, width
        self._footer, self._above, self._tail = footer, above, ""

    left_out: int
    first_left_out: int | None

    @property
    def last_lines(self) -> list[int]:
        """Numbers in the file of the last lines that are not blank."""
        lines = _LINE_END.split(self._tail)
        first = self._above + 2 - len(lines)
        return [first + j for j, line in enumerate(lines) if line.strip()]

    def blocks(self, wanted: Sequence[int]) -> Iterator[list[pa.Array]]:
        """Yields the texts of some columns, by their places.

        Every block has rows. It has one Arrow array of strings per column.
        """
        carry, started, whole = "", False, False
        while not whole:
            chunk = self._stream.read(_CHUNK)
            whole, text = not chunk, carry + chunk
            end = self._end(text, whole)
            if not started and (end or whole):
                start = self._below_names(text[:end])
                self._above += _line_ends(text, 0, start)
                text, end, started = text[start:], end - start, True
            block, rest = self._block(text[:end], whole, wanted)
            self._tail = (self._tail + text[max(0, end - len(rest) - _TAIL) : end - len(rest)])[-_TAIL:]
            carry = rest + text[end:]
            if block and len(block[0]):
                self.rows += len(block[0])
                yield block

    def _end(self, text: str, whole: bool) -> int:
        """Returns where the last line ends that can be read now.

        It is a row by what is known so far, and no line of the footer.
        """
        if not whole:
            text = text[: max(text.rfind("\n"), text.rfind("\r", 0, len(text) - 1)) + 1]
        if not self._footer:
            return len(text)
        end = len(text.rstrip())
        for _ in range(self._footer):
            end = max(text.rfind("\n", 0, end), text.rfind("\r", 0, end), 0)
            end -= text.startswith("\r\n", end - 1) if end else 0
        line_end = _LINE_END.match(text, end)
        return line_end.end() if end and line_end else end

    def _below_names(self, text: str) -> int:
        """Returns where the lines below the names start."""
        start, names = len(text) - len(text.removeprefix("\ufeff")), self._names
        if not names:
            return start + len(text[start:]) - len(text[start:].lstrip("\r\n"))
        for record in records(text[start:], self._separator):
            names -= not record.blank
            if not names:
                return start + record.end
        return len(text)

    def _block(self, text: str, whole: bool, wanted: Sequence[int]) -> tuple[list[pa.Array], str]:
        """Returns the columns of a text, and its end that goes on.

        That end is part of a record which the text cuts off.
        """
        lines, rest = max(text.count("\n"), text.count("\r")), ""
        block = None
        if self._separator.isascii() and _quotes_fit(text, self._separator):
            block = self._parsed(text, self._separator, wanted)
        if block is None:
            text, rest = self._mended(text, whole)
            lines -= max(rest.count("\n"), rest.count("\r"))
            block = self._parsed(text, self._safe_separator, wanted)
            assert block is not None
        self._above += lines
        return block, rest

    @property
    def _safe_separator(self) -> str:
        return self._separator if self._separator.isascii() else ","

    def _parsed(self, text: str, separator: str, wanted: Sequence[int]) -> list[pa.Array] | None:
        """Returns the columns of a text by Arrow.

        None if a line has another number of cells than there are names.
        """
        if not text:
            return []
        unlike: list[int] = []

        def skipped(row: Any) -> str:
            unlike.append(row.actual_columns)
            return "skip"

        first = text[:1] == "\ufeff"  # which Arrow would take for a mark of byte order
        if first:
            text = separator * (self._width - 1) + "\n" + text
        names = list(map(str, range(self._width)))
        content = text.encode("utf-8", "replace")
        table = pacsv.read_csv(
            pa.BufferReader(content),
            pacsv.ReadOptions(use_threads=False, block_size=len(content) + 1, column_names=names),
            pacsv.ParseOptions(
                delimiter=separator,
                newlines_in_values=True,
                ignore_empty_lines=self._width > 1,
                invalid_row_handler=skipped,
            ),
            pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=False,
                include_columns=[names[place] for place in wanted],
            ),
        )
        if unlike:
            return None
        columns = [column.combine_chunks() for column in table.columns]
        return [column[1:] for column in columns] if first else columns

    def _mended(self, text: str, whole: bool) -> tuple[str, str]:
        """Returns the rows of a text for Arrow, and its open end.

        Lines that are no rows are left out and counted.
        """
        pattern = _well_formed(self._separator, self._width) if self._separator.isascii() else None
        parts, at = list[str](), 0
        while at < len(text):
            fits = pattern.match(text, at) if pattern else None
            if fits is not None:
                parts.append(text[at : fits.end()])
                at = fits.end()
                continue
            found = _record(text, at, self._separator, self._width, whole)
            if found is None:
                break
            cells, end = found
            beyond = cells is not None and any(map(str.strip, cells[self._width :]))
            if cells is None or beyond:
                self.left_out += 1
                self.first_left_out = self.first_left_out or self._above + _line_ends(text, 0, at) + 1
            elif self._width == 1 or len(cells) > 1 or any(map(str.strip, cells)):
                filled = (cells + [""] * self._width)[: self._width]
                quoted = (f'"{cell.replace(chr(_QUOTE), chr(_QUOTE) * 2)}"' for cell in filled)
                parts.append(self._safe_separator.join(quoted) + "\n")
            at = end
        return "".join(parts), text[at:]


def _quotes_fit(text: str, separator: str) -> bool:
    """Returns whether all quotation marks enclose whole cells.

    Each of the cells stands in one line. Every other one opens a cell, those between close one, or follow one another.
    """
    if '"' not in text:
        return True
    letters = np.frombuffer(f"\n{text}\n".encode("utf-8", "replace"), np.uint8)
    marks = np.flatnonzero(letters == _QUOTE)
    if len(marks) % 2:
        return False
    edges = np.zeros(256, dtype=bool)
    edges[[ord("\n"), ord("\r"), ord(separator), _QUOTE]] = True
    opening, closing = marks[0::2], marks[1::2]
    if not (edges[letters[opening - 1]].all() and edges[letters[closing + 1]].all()):
        return False
    ends = np.flatnonzero((letters == ord("\n")) | (letters == ord("\r")))
    return not np.any(np.searchsorted(marks, ends) % 2)
