"""A message's arrays as one object, and what is no such object."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from fedsyn.flower.messages import apart, array_record, is_together, read_reply, together

ARRAYS = [
    np.arange(6, dtype=np.uint8).reshape(2, 3),
    np.zeros((0, 4)),
    np.array(7, np.int64),
    np.array([-1.5, np.inf]),
    np.arange(5000, dtype=np.uint64),
]


@pytest.fixture(autouse=True)
def _as_in_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.mark.parametrize("count", [0, 1, 2, len(ARRAYS)])
def test_arrays_come_apart_as_they_were(count: int) -> None:
    whole = array_record(ARRAYS[:count])
    packed = together(whole)
    assert is_together(packed) == (count >= 2)
    content = RecordDict({"arrays": apart(packed), "config": ConfigRecord({})})
    arrays, _ = read_reply(Message(content, 1, "train", ttl=1.0))
    assert len(arrays) == count
    for array, back in zip(ARRAYS, arrays, strict=False):
        assert back.dtype == array.dtype and back.shape == array.shape and back.tobytes() == array.tobytes()


def test_they_are_one_object_of_flowers() -> None:
    def objects(record: ArrayRecord) -> int:
        return len(get_all_nested_objects(Message(RecordDict({"arrays": record}), 1, "train", ttl=1.0)))

    whole = array_record(ARRAYS)
    assert objects(together(whole)) == objects(array_record(ARRAYS[:1])) < objects(whole)


GOOD = bytes(together(array_record(ARRAYS))["_together"].data)
BAD = {
    "nothing": b"",
    "half a count": GOOD[:7],
    "more than there are": struct.pack("<Q", 2**60) + GOOD[8:],
    "a length too long": GOOD[:8] + struct.pack("<Q", 2**63) + GOOD[16:],
    "bytes left": GOOD + b"x",
    "bytes missing": GOOD[:-1],
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_other_bytes_are_refused(data: bytes) -> None:
    record = ArrayRecord({"_together": Array(dtype="uint8", shape=(len(data),), stype="bytes", data=data)})
    with pytest.raises(ValueError, match="arrays that travel together"):
        apart(record)
