"""Rows that come block by block: in memory while they are few, and then in a file that has no name.

A table that is larger than memory is encoded this way. The file lies in the folder for temporary files (`TMPDIR`); it
is unlinked before the first row is written, so nobody else can open it, and nothing of it is left behind.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedsyn.errors import DataError

# What stays in memory.
_IN_MEMORY = 64 << 20


class RowSpool:
    """Rows of a known width, added in blocks and read as one array at the end.

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
        """(n, d) all rows in C order, read-only. Nothing may be added afterwards."""
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


def taken(rows: npt.NDArray[Any], wanted: npt.NDArray[np.bool_], block: int = 1 << 18) -> npt.NDArray[Any]:
    """The rows that a (n,) mask names, in their order, read-only and copied block by block."""
    spool = RowSpool(rows.shape[1], rows.dtype)
    for start in range(0, len(rows), block):
        spool.append(rows[start : start + block][wanted[start : start + block]])
    return spool.rows()


def forget(rows: npt.NDArray[Any]) -> None:
    """Gives back the memory of rows that were read from a spool's file; they can be read again. No other array changes.

    The system would do so by itself, but late: until then the pages count as memory of the process.
    """
    base: Any = rows
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)
