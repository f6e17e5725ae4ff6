"""Bounded reading of strangers' files.

The bytes that are read, and the size that they unpack to, are bounded before anything is parsed.

A short file can ask for a long time and all memory: a pipe that never ends, lines without end, zeros that were packed
twice, lists in lists. What is read here is a regular file of at most so many bytes, and its commas, brackets and lines
are counted before JSON's parser sees them (each value stands behind one of them); an array's size is what its header
announces, checked before a byte of it is unpacked.
"""

from __future__ import annotations

import json
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fedsyn.errors import DataError

#: Bytes of one text file, values of one document, lines of one file of rounds: a run has at most 10,000 rounds, and
#: some lines before and after them.
MOST_BYTES, MOST_VALUES, MOST_LINES = 1 << 26, 2_000_000, 12_000
#: Bytes of a file of rounds: each line may name every client that was dropped.
MOST_ROUND_BYTES = 1 << 28
_PIECE = 1 << 20
_DIRECTORY = 1 << 16  # bytes of a ZIP file's list of its members
_END, _ZIP64 = b"PK\x05\x06", b"PK\x06\x07"
_HEADER = 4096  # characters that describe an array
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    ValueError,
    KeyError,
)


def open_file(path: Path | str) -> BinaryIO:
    """Opens a regular file for reading.

    Raises DataError for a pipe or a device, which may have no end; OSError as `open`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # nobody may write into a pipe, ever
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(21, os.strerror(21))
        if not stat.S_ISREG(mode):
            raise DataError(f"{path} is a pipe or a device, not a file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path | str, most: int = MOST_BYTES) -> bytes:
    """Reads a regular file of at most `most` bytes.

    Raises DataError if it is longer or irregular, OSError as `open`.
    """
    with open_file(path) as file:
        return read_all(file, most, str(path))


def read_all(file: Any, most: int, where: str) -> bytes:
    """Reads the rest of an open file.

    Raises DataError if it has more than `most` bytes.
    """
    parts, size = [], 0
    while part := file.read(_PIECE):  # one call for all of it would take that memory first
        size += len(part)
        if size > most:
            raise DataError(f"{where} is larger than {most:,} bytes, which is the most that is read")
        parts.append(part)
    return b"".join(parts)


# JSON ----------------------------------------------------------------------------------------------------------------


def json_of(content: bytes, where: str) -> Any:
    """Reads one JSON document.

    Raises DataError if it is damaged, or has more values than are read.
    """
    _require_few_values(content, where)
    try:
        return json.loads(_text(content, where))
    except (ValueError, RecursionError):
        raise DataError(f"{where} is damaged: it is not JSON") from None


def json_lines(content: bytes, where: str) -> list[dict[str, Any]]:
    """Reads mappings, one per line.

    Raises DataError for any other line, or too many lines or values.
    """
    if content.count(b"\n") + content.count(b"\r") > MOST_LINES:
        raise DataError(f"{where} has more than {MOST_LINES:,} lines, more than a run has rounds")
    _require_few_values(content, where)
    try:
        mappings = [json.loads(line) for line in _text(content, where).splitlines()]
    except (ValueError, RecursionError):
        raise DataError(f"{where} is damaged: it is not JSON") from None
    if not all(isinstance(line, dict) for line in mappings):
        raise DataError(f"{where} is damaged: expected a mapping of keys on each line")
    return mappings


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{where} is not text in UTF-8") from None


def _require_few_values(content: bytes, where: str) -> None:
    """Refuses a document with too many values, before it is parsed.

    Every value but the first stands behind a comma, a bracket or a brace.
    """
    if sum(content.count(sign) for sign in (b",", b"[", b"{")) > MOST_VALUES:
        raise DataError(f"{where} holds more than {MOST_VALUES:,} values, which is the most that is read")


# ZIP and npz ---------------------------------------------------------------------------------------------------------


class Archive:
    """A ZIP file of a few members with known names.

    Args:
        file: seekable.
        known: the names that it may hold.
        where: what to call it.
        or_else: what it is where it is no such file.

    Raises:
        DataError: it is no such file, or holds something else.
    """

    def __init__(self, file: BinaryIO, known: Iterable[str], where: str, or_else: str = "is damaged") -> None:
        self.where = where
        try:
            self._require_short_directory(file)
            self._archive = zipfile.ZipFile(file)
            infos = self._archive.infolist()
        except (*_DAMAGED, OSError):
            raise DataError(f"{where} {or_else}") from None
        self.members = {info.filename: info for info in infos}
        if len(self.members) != len(infos) or not set(self.members) <= set(known):
            raise DataError(f"{where} holds other files than fedsyn saves")
        if any(info.compress_type not in _PACKINGS or info.flag_bits & 1 for info in infos):
            raise DataError(f"{where} is packed in another way than fedsyn packs")

    @staticmethod
    def _require_short_directory(file: BinaryIO) -> None:
        """Refuses an archive that announces too long a list of members.

        It looks at the end of the file, as `zipfile` does, before `zipfile` reads that list.
        """
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 42))
        end = file.read(42)
        if end[-22:-18] != _END or end[-2:] != b"\0\0" or end[:4] == _ZIP64:
            raise ValueError("no end, or that of a larger archive")
        if int.from_bytes(end[-10:-6], "little") > _DIRECTORY:
            raise ValueError("a longer list than of a few members")
        file.seek(0)

    def read(self, name: str, most: int) -> bytes:
        """Reads a member of at most `most` bytes.

        A member that unpacks to much more than it takes is not unpacked.

        What is in these files unpacks to ten times its size, arrays of zeros (which are packed already) a little more.
        """
        info, where = self.members[name], f"{self.where}: {name}"
        most = min(most, max(MOST_BYTES, 100 * info.compress_size))
        if info.file_size > most:
            raise DataError(f"{where} is larger than {most:,} bytes, more than a model needs")
        try:
            with self._archive.open(info) as file:
                return read_all(file, min(most, info.file_size), where)
        except (*_DAMAGED, OSError):
            raise DataError(f"{where} is damaged") from None


class Arrays:
    """The arrays of an npz file, of plain numbers only.

    The size of each is known from its header.

    Args:
        file: seekable.
        known: names that it may hold.
        where: what to call it.

    Attributes:
        sizes: bytes of each array, as its header announces and the ZIP file's list confirms.

    Raises:
        DataError: it is no such file, or holds something else.
    """

    def __init__(self, file: BinaryIO, known: Iterable[str], where: str) -> None:
        self.where = where
        self._archive = Archive(file, [f"{name}.npy" for name in known], where)
        self._heads: dict[str, tuple[int, tuple[int, ...], bool, np.dtype[Any]]] = {}
        for member, info in self._archive.members.items():
            try:
                with self._archive._archive.open(info) as packed:
                    version = np.lib.format.read_magic(packed)
                    if version != (1, 0):
                        raise ValueError("only version 1.0 is written")
                    shape, fortran, dtype = np.lib.format.read_array_header_1_0(packed, max_header_size=_HEADER)
                    start = packed.tell()
                if dtype.hasobject or dtype.kind not in "uif" or any(type(n) is not int or n < 0 for n in shape):
                    raise ValueError("not an array of numbers")
                if info.file_size != start + dtype.itemsize * math.prod(shape):
                    raise ValueError("not of the size that it says")
            except (*_DAMAGED, OSError, MemoryError):
                raise DataError(f"{where} is damaged") from None
            self._heads[member.removesuffix(".npy")] = (start, shape, fortran, dtype)
        self.sizes = {name: head[3].itemsize * math.prod(head[1]) for name, head in self._heads.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._heads

    def read(self, name: str, most: int) -> npt.NDArray[Any]:
        """Reads one array of at most `most` bytes.

        Raises DataError if it is larger, damaged, or missing.
        """
        if name not in self._heads:
            raise DataError(f"{self.where} is damaged: it lacks '{name}'")
        if self.sizes[name] > most:
            raise DataError(f"{self.where}: its '{name}' has {self.sizes[name]:,} bytes, and may have {most:,}")
        start, shape, fortran, dtype = self._heads[name]
        info = self._archive.members[f"{name}.npy"]
        try:
            with self._archive._archive.open(info) as packed:
                packed.read(start)
                content = packed.read(self.sizes[name])
                if len(content) != self.sizes[name] or packed.read(1):
                    raise ValueError("not of the size that it says")
            return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
        except (*_DAMAGED, OSError):
            raise DataError(f"{self.where} is damaged") from None
