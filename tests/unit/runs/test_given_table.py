"""A table that travels with a deployment's configuration, and what its server makes of a damaged one."""

from __future__ import annotations

import base64
import io
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, RunError
from fedsyn.runs import given_table
from fedsyn.runs.given_table import received, sent

DOMAIN = Domain(("a", "b"), (3, 300))
HEAD = io.BytesIO()
np.lib.format.write_array_header_1_0(HEAD, {"descr": "|u1", "fortran_order": False, "shape": (1 << 50, 2)})
HUGE = HEAD.getvalue()  # a petabyte, as its header says


def text_of(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return base64.b85encode(zlib.compress(file.getvalue())).decode()


@given(rows=st.integers(1, 50), seed=st.integers(0, 2**32 - 1))
def test_a_table_arrives_as_it_was_sent(rows: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, DOMAIN.shape, (rows, 2)).astype(np.uint16)
    np.testing.assert_array_equal(received(sent(codes), DOMAIN), codes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not base85 \x00",
        base64.b85encode(b"not zlib").decode(),
        base64.b85encode(zlib.compress(b"not an array")).decode(),
        text_of(np.zeros((0, 2), np.uint8)),
        text_of(np.zeros((4, 3), np.uint8)),
        text_of(np.zeros((4, 2))),
        text_of(np.array([[3, 0]], np.uint16)),
        text_of(np.array([[0, 300]], np.uint16)),
        text_of(np.zeros((4, 2), np.uint8))[:-9],
        pytest.param(base64.b85encode(zlib.compress(HUGE)).decode(), id="a petabyte"),
    ],
)
def test_a_damaged_table_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(RunError, match="damaged, or of another schema") as refused:
        received(text, DOMAIN)
    assert "\n" not in str(refused.value)


def test_a_table_that_is_too_large_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_table, "MOST_CODES", 9)
    sent(np.zeros((4, 2), np.uint8))
    with pytest.raises(ConfigError, match=r"too large to travel to a deployment \(5 rows\)"):
        sent(np.zeros((5, 2), np.uint8))
