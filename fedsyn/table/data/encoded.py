"""Encoded rows on disk, shared by thousands of clients.

A folder holds three files:
    codes.npy     (n, d) codes in C order, permuted so that each client's rows stand one after the other
    offsets.npy   (K + 1,) int64: client k's rows are offsets[k] .. offsets[k + 1]
    table.json    format version and domain

A process maps `codes.npy` once, read-only. Mapping reads nothing: the operating system fetches the pages that
a client's slice touches, and processes share them. One mapping per process rather than one per client,
because every mapping costs an open file and a process may have few of those.

**Files without a name.** A run keeps its encoded rows in files that have no name on the disk: the system removes them
when the last process that uses them has ended, however it ends (SIGKILL, out of memory, a loss of power). Where the
file would stand lies a link to it, `/proc/PID/fd/N` of the process that made it: other processes of the same user open
it by its path as they would any file, as long as that process lives and keeps it. Afterwards the link leads nowhere.
Linux has such links. Elsewhere (and where /proc is another system's) the files have their names, as any others, and who
made their folder has to remove them.

**Rows that come in blocks** stay in memory while they are few, and go into a file when they are many: a table larger
than memory is encoded this way. The file lies in the folder for temporary files (`TMPDIR`); it is unlinked before the
first row is written, so nobody else can open it, and nothing of it is left behind.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Domain, Flags
from fedsyn.errors import DataError
from fedsyn.files import write_text


class RowFiles:
    """Makes files without a name, and keeps them.

    It keeps them until it is closed, or until nobody holds it any more.
    """

    def __init__(self) -> None:
        self._open: list[int] = []
        self.close = weakref.finalize(self, _close_all, self._open)

    @contextmanager
    def create(self, path: Path) -> Iterator[IO[bytes]]:
        """Yields a file to write to, for its owner alone.

        After it is written it can be opened at `path`.

        What was at `path` is replaced then: who has that open keeps it.

        Raises:
            OSError: no room, or no right.
        """
        _leave_room()
        number = _unnamed(path.parent)
        link = f"/proc/{os.getpid()}/fd/{number}"
        if not _leads_to(link, number):
            os.close(number)
            with _named(path) as file:
                yield file
            return
        self._open.append(number)
        with os.fdopen(number, "wb", closefd=False) as file:
            yield file
        part = _beside(path)
        part.symlink_to(link)
        part.replace(path)

    def save(self, path: Path, array: npt.NDArray[Any]) -> None:
        """`numpy.save` into such a file."""
        with self.create(path) as file:
            np.save(file, array, allow_pickle=False)

    def write_text(self, path: Path, text: str) -> None:
        with self.create(path) as file:
            file.write(text.encode("utf-8"))


def _unnamed(folder: Path) -> int:
    """Returns the descriptor of an empty file without a name.

    The file is in this folder's file system and stands in no folder.
    """
    with suppress(OSError, AttributeError):
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    number, name = tempfile.mkstemp(prefix=".unnamed-", dir=folder)
    os.unlink(name)  # noqa: PTH108 - before a byte is in it
    return number


def _leave_room() -> None:
    """Raises the limit of open files to its maximum.

    A file of rows stays open, and a wide open schema has two for each column.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource  # which not every system has

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _leads_to(link: str, number: int) -> bool:
    try:
        return os.path.samestat(os.stat(link), os.fstat(number))  # noqa: PTH116
    except OSError:
        return False


@contextmanager
def _named(path: Path) -> Iterator[IO[bytes]]:
    part = _beside(path)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        yield file
    part.replace(path)


def _beside(path: Path) -> Path:
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    return part


def _close_all(numbers: list[int]) -> None:
    while numbers:
        with suppress(OSError):
            os.close(numbers.pop())


# The table ------------------------------------------------------------------------------------------------------------


_VERSION = 1
# Rows that are written at a time.
_BLOCK = 1 << 18


class EncodedTable:
    """An encoded table that is split between clients, open for reading.

    Attributes:
        domain: the attributes of the codes.
        offsets: (K + 1,) int64 row offsets of the clients.
    """

    def __init__(self, folder: str | Path) -> None:
        """Opens the folder without reading the codes.

        Raises:
            DataError: the folder does not hold an encoded table, or one of another version.
        """
        folder = Path(folder)
        try:
            header = json.loads((folder / "table.json").read_text(encoding="utf-8"))
            if header.get("version") != _VERSION:
                raise DataError(f"{folder} holds an encoded table of another version of fedsyn")
            self.domain = Domain.described(header)
            self.offsets: np.ndarray = np.load(folder / "offsets.npy", allow_pickle=False)
            # mmap does not work on an empty array.
            mode: Literal["r"] | None = "r" if self.offsets[-1] and len(self.domain) else None
            codes: np.ndarray = np.load(folder / "codes.npy", mmap_mode=mode, allow_pickle=False)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} does not hold an encoded table ({type(error).__name__})") from None
        if codes.shape != (int(self.offsets[-1]), len(self.domain)):
            raise DataError(f"{folder} holds a damaged encoded table")
        self._codes = codes.view(np.ndarray)  # slicing a memmap is ten times slower than a plain view
        self._codes.flags.writeable = False

    @classmethod
    def of_arrays(cls, codes: np.ndarray, offsets: np.ndarray, domain: Domain) -> EncodedTable:
        """Returns a table that did not come from its folder.

        It takes (n, d) codes, client after client, and their offsets.
        """
        table = cls.__new__(cls)
        table.domain, table.offsets, table._codes = domain, offsets, codes.view(np.ndarray)
        table._codes.flags.writeable = False
        return table

    @property
    def clients(self) -> int:
        """Number of clients K."""
        return len(self.offsets) - 1

    def rows(self, client: int) -> np.ndarray:
        """Returns the read-only codes of one client, (n_k, d).

        They are a view that touches no other client's rows.

        Raises:
            DataError: no such client.
        """
        if not 0 <= client < self.clients:
            raise DataError(f"no client {client}: the table is split between {self.clients}")
        return self._codes[self.offsets[client] : self.offsets[client + 1]]

    def pooled(self) -> np.ndarray:
        """Returns the read-only codes of all clients together, (n, d).

        They stand client after client. They are for evaluation and oracles.
        """
        return self._codes


def write_encoded(
    folder: str | Path, codes: np.ndarray, domain: Domain, partition: Sequence[np.ndarray], files: RowFiles
) -> EncodedTable:
    """Writes a table once for all clients.

    Args:
        folder: made if it does not exist. A table already there is replaced; who has it open keeps the old
            one.
        codes: (n, d) integer codes.
        domain: the attributes of `codes`.
        partition: row indices of each client. Clients may be empty; rows of no client are not written.
        files: keeps the rows in files without a name, as long as it is there.

    Returns:
        The table, open for reading.

    Raises:
        ValueError: `codes` does not fit the domain.
        IndexError: a row index out of range.
    """
    if codes.ndim != 2 or codes.shape[1] != len(domain):
        raise ValueError(f"codes of shape {codes.shape} do not fit a domain of {len(domain)} attributes")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [np.asarray(rows, dtype=np.int64) for rows in partition]
    offsets = np.cumsum([0, *(len(rows) for rows in parts)], dtype=np.int64)
    with files.create(folder / "codes.npy") as file:
        _write_rows(file, codes, parts)
    files.save(folder / "offsets.npy", offsets)  # how many rows each client has may be private too
    write_text(folder / "table.json", json.dumps({"version": _VERSION, **domain.describe()}))
    return EncodedTable(folder)


def _write_rows(file: IO[bytes], array: np.ndarray, parts: Sequence[np.ndarray]) -> None:
    """Writes the rows that `parts` name, in NumPy's format.

    It writes block by block, so the whole is never in memory.
    """
    shape = (sum(len(rows) for rows in parts), *array.shape[1:])
    described = np.lib.format.header_data_from_array_1_0(array[:0])
    np.lib.format.write_array_header_1_0(file, described | {"shape": shape, "fortran_order": False})
    for rows in parts:
        for start in range(0, len(rows), _BLOCK):
            file.write(np.ascontiguousarray(array[rows[start : start + _BLOCK]]).data)


# Rows that come block by block ----------------------------------------------------------------------------------------


# What stays in memory.
_IN_MEMORY = 64 << 20


class RowSpool:
    """Rows of a known width that come in blocks.

    They are read as one array at the end.

    >>> spool = RowSpool(2, np.uint8)
    >>> spool.append(np.array([[1, 2], [3, 4]])); spool.append(np.array([[5, 6]]))
    >>> spool.rows().tolist()
    [[1, 2], [3, 4], [5, 6]]

    Args:
        columns: d.
        dtype: of the array; blocks are converted.
        in_memory: bytes up to which no file is written; 64 MB unless given.
    """

    def __init__(self, columns: int, dtype: npt.DTypeLike, in_memory: int | None = None) -> None:
        self.columns, self.dtype = columns, np.dtype(dtype)
        self.in_memory = _IN_MEMORY if in_memory is None else in_memory
        self._blocks: list[np.ndarray] = []
        self._file: IO[bytes] | None = None
        self._rows = self._held = 0

    def __len__(self) -> int:
        return self._rows

    def append(self, block: npt.NDArray[Any]) -> None:
        """Adds (m, d) rows; they are copied.

        Raises:
            DataError: no room for the file.
        """
        block = np.array(block, dtype=self.dtype, order="C", ndmin=2)
        self._rows += len(block)
        self._held += block.nbytes
        self._blocks.append(block)
        if self._held > self.in_memory:
            self._spill()

    def rows(self) -> npt.NDArray[Any]:
        """Returns all rows in C order, read-only, (n, d).

        Nothing may be added afterwards.
        """
        if self._file is not None and self._rows and self.columns:
            self._spill()
            self._file.flush()
            # The mapping keeps the file; its pages are the system's to drop and to fetch again.
            array = np.memmap(self._file, dtype=self.dtype, mode="r", shape=(self._rows, self.columns)).view(np.ndarray)
        else:
            array, done = np.empty((self._rows, self.columns), self.dtype), 0
            for number, block in enumerate(self._blocks):
                array[done : done + len(block)] = block
                done += len(block)
                self._blocks[number] = block[:0]
        self._blocks = []
        array.flags.writeable = False
        return array

    def _spill(self) -> None:
        """Moves what is in memory to the file."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="fedsyn-")  # noqa: SIM115  the array outlives this call
            for block in self._blocks:
                self._file.write(block.data)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise DataError(
                f"cannot keep the encoded table in {tempfile.gettempdir()}: {reason}; it needs "
                f"{self.columns * self.dtype.itemsize} bytes a row (TMPDIR names another folder)"
            ) from None
        self._blocks, self._held = [], 0


def taken(rows: npt.NDArray[Any], wanted: Flags, block: int = 1 << 18) -> npt.NDArray[Any]:
    """Returns the rows that a (n,) mask names, read-only.

    They keep their order and are copied block by block.
    """
    spool = RowSpool(rows.shape[1], rows.dtype)
    for start in range(0, len(rows), block):
        spool.append(rows[start : start + block][wanted[start : start + block]])
    return spool.rows()


def forget(rows: npt.NDArray[Any]) -> None:
    """Gives back the memory of rows read from a spool's file.

    The rows can be read again. No other array changes.

    The system would do so by itself, but late: until then the pages count as memory of the process.
    """
    base: Any = rows
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)
