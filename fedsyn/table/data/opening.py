"""Files opened as text: packed ones, any encoding, Excel sheets.

The text of a row depends on that row alone: a multi-byte character never goes past the end of a line, and bytes that
are not UTF-8 are read as Windows-1252 where they stand. (Were the whole file read in another encoding as soon as one
row holds such bytes, then one row would decide how all others are read.)

A sheet of an Excel file is the text of a CSV file: its cells as they are shown, where that can be told. So there is one
way of reading, and what a cell means depends on the schema, as for every other text.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import datetime
import gzip
import io
import lzma
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO

from fedsyn.errors import ConfigError, DataError, nearest
from fedsyn.lazy import pa
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.sealed import SEALED, is_sealed, open_sealed, plain_name, read_key
from fedsyn.table.schema.values import written
from fedsyn.version import installing

TEXTS = (".csv", ".tsv", ".txt")
PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst")
SHEETS = (".xlsx", ".xlsm")
#: Endings of the names of tables.
_OPEN = (*TEXTS, *(text + packed for text in TEXTS for packed in PACKED), *SHEETS, ".parquet")
SUFFIXES = (*_OPEN, *(suffix + SEALED for suffix in _OPEN))

# Marks of byte order; that of UTF-32 begins with that of UTF-16.
_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_HEAD = 1 << 16
#: Characters of a line, from which a reader makes cells at once.
MOST_OF_A_LINE = 1 << 26


# What an encoding does not know, escaped by Python, as Windows-1252 has it, and as Latin-1 where that has nothing.
_ESCAPED = re.compile("[\udc80-\udcff]")
_WINDOWS = {0xDC00 + byte: bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(0x80, 0x100)}


class TextStream(io.TextIOWrapper):
    """Text of a stream of bytes.

    Line ends stay as they are.

    Attributes:
        fell_back: whether bytes were met that the encoding does not know, and were read as Windows-1252.
    """

    def __init__(self, raw: BinaryIO, encoding: str, lenient: bool, name: str) -> None:
        super().__init__(raw, encoding, errors="surrogateescape" if lenient else "strict", newline="")
        self._path, self.fell_back, self._line = name, False, 0

    def read(self, size: int | None = -1) -> str:
        """Returns the next `size` characters; fewer at the end only."""
        text = super().read(size)
        if "\0" in text:
            raise DataError(
                f"{self._path} holds NUL bytes, which no text has: take them out (tr -d '\\000' < FILE > CLEAN.csv), "
                "or name the encoding if it is UTF-16 (--encoding utf-16-le, in a run data.options.encoding)"
            )
        last = max(text.rfind("\n"), text.rfind("\r"))
        self._line = len(text) - last - 1 + (self._line if last < 0 else 0)
        if self._line > MOST_OF_A_LINE:  # packed, it takes a thousandth of that
            raise DataError(f"{self._path} has a line of more than {MOST_OF_A_LINE:,} characters: it is not a table")
        if not text.isascii() and _ESCAPED.search(text):
            self.fell_back, text = True, text.translate(_WINDOWS)
        return text


class TextFile:
    """Text file, or sheet of Excel as text.

    It can be opened several times.

    Args:
        path: of the file.
        options: what was said about it.

    Attributes:
        encoding: that its text is read in.
        notes: what was found out about it, in sentences.
        fell_back: whether a stream of it met bytes that are not UTF-8.
    """

    def __init__(self, path: Path, options: FileOptions) -> None:
        self.path, self.options = path, options
        self.notes: list[str] = []
        self._streams: list[TextStream] = []
        self._sheet: str | None = None
        self.encoding = "utf-8"
        if plain_name(path).suffix.lower() in SHEETS:
            from fedsyn.table.data.opening import sheet_as_text

            skip, names = options.skip_rows or 0, options.header or 1
            self._sheet, note = sheet_as_text(path, source_of(path, options), options.sheet, skip, names)
            self.notes += [note] if note else []
            return
        with self._opened() as raw:
            head = raw.read(_HEAD)
        self.encoding = options.encoding or encoding_of(head)
        if self.encoding == "utf-8" and head.startswith(codecs.BOM_UTF8):
            self.encoding = "utf-8-sig"

    @property
    def fell_back(self) -> bool:
        return self._is_utf8 and any(stream.fell_back for stream in self._streams)

    @property
    def _is_utf8(self) -> bool:
        """Returns whether the file counts as UTF-8.

        Nobody named an encoding other than that of Excel's UTF-8, and the file does not show another one.
        """
        return self.options.encoding in (None, "utf-8-sig") and self.encoding in ("utf-8", "utf-8-sig")

    def open(self) -> io.TextIOBase:
        """Opens the text from the start.

        The caller closes it.
        """
        if self._sheet is not None:
            return io.StringIO(self._sheet, newline="")
        lenient = self._is_utf8 or self.encoding in ("cp1252", "windows-1252")
        stream = TextStream(self._opened(), self.encoding, lenient, str(self.path))
        skip = self.options.skip_rows or 0
        while skip and (line := stream.readline(MOST_OF_A_LINE)):
            skip -= bool(line.strip())
        self._streams.append(stream)
        return stream

    def _opened(self) -> BinaryIO:
        source = source_of(self.path, self.options)
        opener = _OPENERS.get(plain_name(self.path).suffix.lower())
        if opener is None:
            return source.open("rb") if isinstance(source, Path) else source
        opened: BinaryIO = opener(source)
        return opened


def is_parquet(path: Path) -> bool:
    """Returns whether a file is a Parquet file, by its name."""
    return plain_name(path).suffix.lower() == ".parquet"


def source_of(path: Path, options: FileOptions) -> Path | BinaryIO:
    """Returns what libraries read of a file.

    It is the path, or, of a sealed file, its content as an open file.

    Raises:
        ConfigError: no key.
        DataError: the file cannot be opened with it.
    """
    if not is_sealed(path):
        return path
    if options.key_file is None:
        raise ConfigError(f"{path} is sealed: name the file of its key (node.yaml: data_key; data.options.key_file)")
    return open_sealed(path, read_key(Path(options.key_file)))


def encoding_of(head: bytes) -> str:
    """Returns the encoding that a file's first bytes show.

    They show it by a byte order mark, or by zeros where UTF-16 has them. Otherwise it is UTF-8.
    """
    for mark, name in _BOMS.items():
        if head.startswith(mark):
            return name
    line = head[:64]
    for name, zeros, letters in (("utf-16-le", line[1::2], line[0::2]), ("utf-16-be", line[0::2], line[1::2])):
        if len(line) >= 4 and not any(zeros) and all(letters[: len(line) // 2]):
            return name
    return "utf-8"


def _zip(source: Path | BinaryIO) -> IO[bytes]:
    """Opens the one file of an archive.

    Files that macOS adds to archives do not count.
    """
    archive = zipfile.ZipFile(source)
    members = [
        entry
        for entry in archive.infolist()
        if not entry.is_dir() and not entry.filename.startswith("__MACOSX/") and "/." not in f"/{entry.filename}"
    ]
    if len(members) != 1:
        archive.close()
        name = source if isinstance(source, Path) else "the archive in the sealed file"
        raise DataError(f"{name} holds {len(members)} files: unpack it and name the one that is the table")
    return archive.open(members[0])


def _zst(source: Path | BinaryIO) -> BinaryIO:
    packed = pa.OSFile(str(source), "rb") if isinstance(source, Path) else pa.PythonFile(source, "r")
    raw: Any = pa.CompressedInputStream(packed, "zstd")
    return io.BufferedReader(raw)


_OPENERS: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zip": _zip,
    ".zst": _zst,
}


# Excel ----------------------------------------------------------------------------------------------------------------


_ZEROS = re.compile(r"0+")
# Other sheets that are named.
_NAMED = 10


def sheet_as_text(
    path: Path, source: Path | BinaryIO, sheet: str | int | None, skip: int = 0, header: int = 1
) -> tuple[str, str | None]:
    """Returns a sheet as CSV (`,`, UTF-8), and a note.

    The note is a sentence if the sheet was chosen among several, else None.

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
    """Returns the rows of a sheet as CSV.

    Empty rows at the end, and empty cells right of the last name, are left out.
    """
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
