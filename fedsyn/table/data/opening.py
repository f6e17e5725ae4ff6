"""Files opened as text: packed ones, any encoding, Excel sheets.

The text of a row depends on that row alone: a multi-byte character never goes past the end of a line, and bytes that
are not UTF-8 are read as Windows-1252 where they stand. (Were the whole file read in another encoding as soon as one
row holds such bytes, then one row would decide how all others are read.) A byte that a named encoding does not know, or
a NUL, makes its cell unreadable, and no other one. So a table is refused for neither, except where names are read.

A sheet of an Excel file is the text of a CSV file (`fedsyn.table.data.sheets`). So there is one way of reading, and
what a cell means depends on the schema, as for every other text.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO

from fedsyn.errors import ConfigError, DataError
from fedsyn.lazy import pa
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.sealed import SEALED, is_sealed, open_sealed, plain_name, read_key
from fedsyn.table.data.sheets import Sheet, read_sheet

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
codecs.register_error(_NUL := "fedsyn.nul", lambda error: ("\0", getattr(error, "end", 0)))
_ESCAPED = re.compile("[\udc80-\udcff]")
_WINDOWS = {0xDC00 + byte: bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(0x80, 0x100)}


class TextStream(io.TextIOWrapper):
    """Text of a stream of bytes.

    Line ends stay as they are.

    Attributes:
        fell_back: whether bytes were met that the encoding does not know, and were read as Windows-1252.
        unreadable: whether a NUL was met, or bytes that the encoding does not know, for which a NUL stands in the text.
    """

    def __init__(self, raw: BinaryIO, encoding: str, lenient: bool, name: str) -> None:
        super().__init__(raw, encoding, errors="surrogateescape" if lenient else _NUL, newline="")
        self._path, self.fell_back, self.unreadable, self._line = name, False, False, 0

    def read(self, size: int | None = -1) -> str:
        """Returns the next `size` characters; fewer at the end only."""
        text = super().read(size)
        self.unreadable = self.unreadable or "\0" in text
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
        sheet: what was read of an Excel file, else None.
        fell_back: whether a stream of it met bytes that are not UTF-8.
    """

    def __init__(self, path: Path, options: FileOptions) -> None:
        self.path, self.options = path, options
        self.notes: list[str] = []
        self._streams: list[TextStream] = []
        self.sheet: Sheet | None = None
        self.encoding = "utf-8"
        if plain_name(path).suffix.lower() in SHEETS:
            self.sheet = read_sheet(path, source_of(path, options), options)
            self.notes += self.sheet.notes
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
    def unreadable(self) -> bool:
        """Returns whether a NUL, or bytes of another encoding, were read."""
        return any(stream.unreadable for stream in self._streams)

    def require_text(self, text: str = "\0") -> None:
        """Refuses text with a NUL in names and descriptions.

        Raises:
            DataError: says what to do.
        """
        if "\0" not in text or not self.unreadable:
            return
        named = self.options.encoding
        raise DataError(
            f"{self.path} holds NUL bytes, which no text has: take them out (tr -d '\\000' < FILE > CLEAN.csv), "
            "or name the encoding if it is UTF-16 (--encoding utf-16-le, in a run data.options.encoding)"
            if named is None
            else f"{self.path} is not text in {named}: name another encoding (--encoding cp1252, in a run "
            "data.options.encoding), or none, which finds it out"
        )

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
        if self.sheet is not None:
            return io.StringIO(self.sheet.text, newline="")
        lenient = self._is_utf8 or self.encoding in ("cp1252", "windows-1252")
        stream = TextStream(self._opened(), self.encoding, lenient, str(self.path))
        for _ in range(self.options.skip_rows or 0):
            stream.readline(MOST_OF_A_LINE)
        self._streams.append(stream)
        return stream

    @property
    def footer(self) -> int:
        """Lines at the end of its text that are no rows."""
        return 0 if self.sheet is not None else self.options.skip_footer or 0

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
    line = head[:64].split(b"\n")[0]  # of names, which are public: no row may decide how others are read
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
