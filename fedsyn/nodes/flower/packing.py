"""A message's arrays as one of Flower's objects.

Flower sends each array as two objects, and the SuperLink takes a call for each of them, from the sender and from the
receiver. A stage of a secure sum has a dozen arrays. Between a server and a `fedsyn node` they travel together: one
array whose bytes are a count, the length of each, and then all of them in NumPy's format. Who does not know of it is
sent none (`fedsyn.nodes.flower.patient`), and answers as Flower would.
"""

from __future__ import annotations

import struct

from flwr.app import Array, ArrayRecord

_KEY = "_together"  # of the one array
_FORM = "numpy.ndarray"


def together(record: ArrayRecord) -> ArrayRecord:
    """The same arrays as one; a record of none or of one is left as it is."""
    if len(record) < 2:
        return record
    parts = [bytes(array.data) for array in record.values()]
    data = struct.pack(f"<{len(parts) + 1}Q", len(parts), *map(len, parts)) + b"".join(parts)
    return ArrayRecord({_KEY: Array(dtype="uint8", shape=(len(data),), stype="bytes", data=data)})


def is_together(record: ArrayRecord) -> bool:
    return list(record) == [_KEY]


def apart(record: ArrayRecord) -> ArrayRecord:
    """The arrays of `together` again; a record of another kind is left as it is.

    Raises:
        ValueError: the lengths are not those of the bytes.
    """
    if not is_together(record):
        return record
    data = bytes(record[_KEY].data)
    if len(data) < 8:
        raise ValueError("arrays that travel together need a count")
    (count,) = struct.unpack_from("<Q", data)
    if count > (len(data) - 8) // 8:
        raise ValueError("arrays that travel together are fewer than they say")
    sizes = struct.unpack_from(f"<{count}Q", data, 8)
    start = 8 + 8 * count
    if start + sum(sizes) != len(data):
        raise ValueError("arrays that travel together have other lengths than they say")
    arrays = {}
    for place, size in enumerate(sizes):
        arrays[str(place)] = Array(dtype="", shape=(), stype=_FORM, data=data[start : start + size])
        start += size
    return ArrayRecord(arrays)
