"""Encoding of requests, replies and sparse contributions; what is malformed is refused, not believed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsyn.aggregation import SumSpec
from fedsyn.errors import ProtocolError
from fedsyn.wire.messages import (
    ENVELOPE,
    PROTOCOL_VERSION,
    Envelope,
    Sum,
    decode_sparse,
    encode_sparse,
    from_json,
    split_vector,
    to_json,
)


@st.composite
def sparse_vectors(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    length = draw(st.integers(1, 10**7))
    cells = sorted(draw(st.sets(st.integers(0, length - 1), max_size=40)))
    values = draw(st.lists(st.integers(0, 2**53 - 1), min_size=len(cells), max_size=len(cells)))
    return np.array(cells, np.int64), np.array(values, np.int64), length


@given(sparse_vectors())
def test_sparse_vectors_survive_the_round_trip(vector: tuple[np.ndarray, np.ndarray, int]) -> None:
    cells, values, length = vector
    decoded_cells, decoded_values = decode_sparse(encode_sparse(cells, values), length)
    np.testing.assert_array_equal(decoded_cells, cells)
    np.testing.assert_array_equal(decoded_values, values)
    assert decoded_cells.dtype == decoded_values.dtype == np.int64


def test_sparse_vectors_are_small_on_the_wire() -> None:
    cells = np.arange(0, 1_000_000, 200)
    gaps, counts = encode_sparse(cells, np.full(len(cells), 3))
    assert gaps.dtype == counts.dtype == np.uint8


def u8(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)


@pytest.mark.parametrize(
    "arrays",
    [
        pytest.param([], id="nothing"),
        pytest.param([u8(0, 1)], id="one array"),
        pytest.param([u8(0), u8(1), u8(1)], id="three arrays"),
        pytest.param([u8(0, 1), u8(1)], id="lengths differ"),
        pytest.param([u8(0, 1).reshape(1, 2), u8(1, 1).reshape(1, 2)], id="matrix"),
        pytest.param([np.array(1), np.array(1)], id="scalar"),
        pytest.param([u8(0, 1), np.array([0.5, 1.0])], id="fractions"),
        pytest.param([u8(0, 1), np.array([np.nan, 1.0])], id="NaN"),
        pytest.param([np.array([0.0, 1.0]), u8(1, 1)], id="cells as floats"),
        pytest.param([u8(0, 1), np.array([True, False])], id="booleans"),
        pytest.param([u8(3, 0), u8(1, 1)], id="a cell twice"),
        pytest.param([np.array([5, -1]), u8(1, 1)], id="cells decrease"),
        pytest.param([np.array([-1, 3]), u8(1, 1)], id="negative cell"),
        pytest.param([u8(4, 6), u8(1, 1)], id="cell beyond the end"),
        pytest.param([np.array([0, 2**64 - 1], np.uint64), u8(1, 1)], id="cell wraps around"),
        pytest.param([np.array([2**63, 2**63], np.uint64), u8(1, 1)], id="sum of cells wraps around"),
        pytest.param([u8(0, 1), np.array([1, -1])], id="negative count"),
        pytest.param([u8(0, 1), np.array([1, 2**60])], id="count beyond 2^53"),
        pytest.param([u8(0, 1), np.array([1, 2**64 - 1], np.uint64)], id="count wraps around"),
        pytest.param([np.ones(11, np.uint8), np.ones(11, np.uint8)], id="more cells than the vector has"),
    ],
)
def test_malformed_sparse_vectors_are_refused(arrays: list[np.ndarray]) -> None:
    with pytest.raises(ProtocolError):
        decode_sparse(arrays, 10)


def test_the_last_cell_and_the_empty_vector_are_accepted() -> None:
    cells, values = decode_sparse([u8(9), u8(7)], 10)
    assert cells.tolist() == [9] and values.tolist() == [7]
    cells, values = decode_sparse(encode_sparse(np.zeros(0, np.int64), np.zeros(0, np.int64)), 10)
    assert cells.size == values.size == 0


def test_split_vector_gives_the_arrays_in_order() -> None:
    parts = split_vector(np.arange(11), ((2, 3), (1,), (4,)))
    assert [part.tolist() for part in parts] == [[[0, 1, 2], [3, 4, 5]], [6], [7, 8, 9, 10]]


# The envelope ------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@given(st.text(), st.text(), st.integers(0, 10**6), st.text(), st.dictionaries(st.text(), json_values, max_size=4))
def test_envelopes_survive_the_round_trip(request_: str, kind: str, t: int, config: str, params: dict) -> None:
    sent = Envelope(request_, kind, t, config, params)
    assert Envelope.from_scalars(sent.to_scalars()) == sent


def fields(**changes: object) -> dict[str, str]:
    good = {"version": PROTOCOL_VERSION, "request": "r", "kind": "ask", "round": 1, "sequence": 3}
    good |= {"config": "c", "params": {}}
    return {ENVELOPE: json.dumps({k: v for k, v in (good | changes).items() if v is not ...})}


def test_the_good_envelope_of_these_tests_is_accepted() -> None:
    assert Envelope.from_scalars(fields()) == Envelope("r", "ask", 1, "c", {}, 3)


@pytest.mark.parametrize("field", ["request", "kind", "config", "params", "round", "sequence", "version"])
@pytest.mark.parametrize("value", [..., None, [], True, 1.5])
def test_an_envelope_needs_every_field_with_its_type(field: str, value: object) -> None:
    with pytest.raises(ProtocolError, match=field):
        Envelope.from_scalars(fields(**{field: value}))


def test_another_protocol_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(ProtocolError, match=r"version 99, this side speaks .*install the same fedsyn"):
        Envelope.from_scalars(fields(version=99))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", "null", b"{}", 3, None, "[" * 200_000, '{"n": ' + "9" * 10_000 + "}", "\ud800"]
)
def test_what_is_not_a_json_object_is_a_protocol_error(text: object) -> None:
    with pytest.raises(ProtocolError, match="not a JSON object"):
        from_json(text, "answer")


def test_json_is_written_the_same_whatever_the_order_of_keys() -> None:
    assert to_json({"b": 1, "a": [2]}) == to_json({"a": [2], "b": 1}) == '{"a":[2],"b":1}'


# The description of a sum ------------------------------------------------------------------------------------------


def test_a_sum_describes_itself_to_its_clients() -> None:
    request = Sum((0, 1), "measure", ((2, 3), (4,)), sigma=1.5, count=2, signed=True, magnitude=3.0)
    spec = SumSpec.from_text(SumSpec.of(request, number=7).to_text())
    assert spec == SumSpec(((2, 3), (4,)), 1.5, 1.0, 2, True, 3.0, asked=2, number=7)
    assert spec.length == request.length == 10


GOOD = {
    "shapes": [[2, 3]],
    "sigma": 1.0,
    "sensitivity": 1.0,
    "count": 1,
    "signed": False,
    "magnitude": 1.0,
    "asked": 1,
    "number": 0,
}


def test_the_good_description_of_these_tests_is_accepted() -> None:
    assert SumSpec.from_text(json.dumps(list(GOOD.values()))) == SumSpec(((2, 3),), 1.0, 1.0, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"shapes": None},
        {"shapes": [[0]]},
        {"shapes": [[-2, -3]]},
        {"shapes": [["x"]]},
        {"shapes": 3},
        {"shapes": [[math.inf]]},
        {"sigma": 0},
        {"sigma": -1.0},
        {"sigma": math.inf},
        {"sigma": math.nan},
        {"sigma": "1e"},
        {"sigma": 10**400},
        {"sensitivity": 0},
        {"sensitivity": math.nan},
        {"sensitivity": math.inf},
        {"count": 0},
        {"count": -1},
        {"count": None},
        {"magnitude": 0},
        {"magnitude": math.nan},
        {"asked": 0},
        {"asked": None},
        {"number": -1},
    ],
)
def test_a_malformed_description_of_a_sum_is_refused(change: dict) -> None:
    with pytest.raises(ProtocolError):
        SumSpec.from_text(json.dumps(list((GOOD | change).values())))


@pytest.mark.parametrize("text", [None, "", "{}", "[]", "3", "sum", "[[[2]],1.0,1.0]", "[" * 200_000])
def test_a_missing_description_of_a_sum_is_refused(text: str | None) -> None:
    with pytest.raises(ProtocolError):
        SumSpec.from_text(text)
