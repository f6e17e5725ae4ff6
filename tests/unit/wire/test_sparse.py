"""Encoding of sparse contributions, and flat vectors cut into arrays; what is malformed is refused, not believed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsyn.errors import ProtocolError
from fedsyn.wire.sparse import decode_sparse, encode_sparse, split_vector


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
