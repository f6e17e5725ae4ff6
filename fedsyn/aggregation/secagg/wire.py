"""Messages of a secure sum, and strict reading of their arrays.

Anybody may have sent them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.errors import ProtocolError, refuse

Arrays = list[npt.NDArray[Any]]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


def count_arrays(arrays: Sequence[Any], count: int) -> None:
    """Raises ProtocolError unless there are `count` arrays."""
    refuse(len(arrays) != count, f"a message of the secure sum has {len(arrays)} arrays instead of {count}")


def read_bytes(array: Any, *shape: int) -> Bytes:
    """Returns a uint8 array of exactly this shape; ProtocolError otherwise."""
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.shape != shape:
        raise ProtocolError(f"a message of the secure sum needs an array of {shape} bytes")
    return np.ascontiguousarray(array)


def read_vector(array: Any, length: int) -> npt.NDArray[np.uint64]:
    """Returns a uint64 array of `length` entries; ProtocolError otherwise."""
    if not isinstance(array, np.ndarray) or array.dtype != np.uint64 or array.shape != (length,):
        raise ProtocolError(f"a vector of the secure sum needs {length} unsigned 64-bit entries")
    return np.ascontiguousarray(array)


def write_flags(flags: Flags) -> Bytes:
    """Writes a set of clients as a bitmap, ceil(n / 8) bytes."""
    return np.packbits(flags)


def read_flags(array: Any, size: int) -> Flags:
    """Reads the set of a bitmap.

    It raises ProtocolError if the bitmap is malformed, its unused bits included.
    """
    bits = np.unpackbits(read_bytes(array, (size + 7) // 8)).astype(bool)
    refuse(bits[size:].any(), "a bitmap of the secure sum has bits set beyond its end")
    return bits[:size]


def members(flags: Flags) -> list[int]:
    """Returns the positions that a set holds, ascending."""
    return [int(i) for i in np.flatnonzero(flags)]


def rows(table: Bytes) -> list[bytes]:
    """Returns the rows of a byte array, (m, size)."""
    size, raw = table.shape[1], table.tobytes()
    return [raw[i * size : (i + 1) * size] for i in range(len(table))]


def table(parts: Sequence[bytes], size: int) -> Bytes:
    """Returns m strings of `size` bytes as an array, (m, size)."""
    return np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), size)
