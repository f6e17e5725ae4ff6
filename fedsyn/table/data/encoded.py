"""The encoded table on disk: one file that thousands of clients share, of which each opens only its own rows.

A folder holds three files:
    codes.npy     (n, d) codes in C order, permuted so that each client's rows stand one after the other
    offsets.npy   (K + 1,) int64: client k's rows are offsets[k] .. offsets[k + 1]
    table.json    format version and domain

A process maps `codes.npy` once, read-only. Mapping reads nothing: the operating system fetches the pages that
a client's slice touches, and processes share them. One mapping per process rather than one per client,
because every mapping costs an open file and a process may have few of those.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Literal

import numpy as np

from fedsyn.domain import Domain
from fedsyn.errors import DataError
from fedsyn.table.data.row_files import RowFiles

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
        """A table that came another way than by its folder: (n, d) codes, client after client, and their offsets."""
        table = cls.__new__(cls)
        table.domain, table.offsets, table._codes = domain, offsets, codes.view(np.ndarray)
        table._codes.flags.writeable = False
        return table

    @property
    def clients(self) -> int:
        """Number of clients K."""
        return len(self.offsets) - 1

    def rows(self, client: int) -> np.ndarray:
        """(n_k, d) read-only codes of one client: a view that touches no other client's rows.

        Raises:
            DataError: no such client.
        """
        if not 0 <= client < self.clients:
            raise DataError(f"no client {client}: the table is split between {self.clients}")
        return self._codes[self.offsets[client] : self.offsets[client + 1]]

    def pooled(self) -> np.ndarray:
        """(n, d) read-only codes of all clients together, client after client: for evaluation and oracles."""
        return self._codes


def write_encoded(
    folder: str | Path,
    codes: np.ndarray,
    domain: Domain,
    partition: Sequence[np.ndarray],
    files: RowFiles,
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
    header = {"version": _VERSION, **domain.describe()}
    text = folder / "table.json.part"
    text.write_text(json.dumps(header), encoding="utf-8")
    text.replace(folder / "table.json")
    return EncodedTable(folder)


def _write_rows(file: IO[bytes], array: np.ndarray, parts: Sequence[np.ndarray]) -> None:
    """The rows that `parts` name, in NumPy's format, block by block: the whole is never in memory."""
    shape = (sum(len(rows) for rows in parts), *array.shape[1:])
    described = np.lib.format.header_data_from_array_1_0(array[:0])
    np.lib.format.write_array_header_1_0(file, described | {"shape": shape, "fortran_order": False})
    for rows in parts:
        for start in range(0, len(rows), _BLOCK):
            file.write(np.ascontiguousarray(array[rows[start : start + _BLOCK]]).data)
