"""By brute force: a whole client moves a run's releases at most as far as the ledger says, whatever rows and schema."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.front.testing.harness import Federation, config_of, execute, finished
from fedsyn.front.testing.tape import TapedRelease
from support.pair_runs import table_of

# Every mechanism that only sums, and one with choices of each client's own.
MECHANISMS = ("sketch_aim", "fed_naive_bayes", "flaim_random", "fed_privsyn", "distributed_aim", "augflaim")
NOISE = ("server", "local", "distributed")

shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4)
tables = st.tuples(st.integers(0, 12), st.floats(0.1, 8.0), st.integers(0, 2**16))  # rows, how skewed, seed


def rows_of(shape: list[int], drawn: tuple[int, float, int]) -> np.ndarray:
    rows, skew, seed = drawn
    return (np.random.default_rng(seed).random((rows, len(shape))) ** skew * shape).astype(np.uint8)


@pytest.mark.parametrize("name", ["sketch_aim", "fed_privsyn", "distributed_aim"])
@settings(max_examples=3, deadline=None)
@given(shape=shapes, one=tables, other=tables, cap=st.integers(1, 5), noise=st.sampled_from(NOISE))
def test_a_whole_client_moves_no_release_farther_than_its_entry(
    name: str, shape: list[int], one: Any, other: Any, cap: int, noise: str
) -> None:
    """The client's rows against none, and against others: in L2 norm, every vector that enters a ledger."""
    assert_bounded(name, shape, (rows_of(shape, one), rows_of(shape, other)), cap, noise)


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
@settings(max_examples=150, deadline=None)
@given(shape=shapes, one=tables, other=tables, cap=st.integers(1, 5), noise=st.sampled_from(NOISE))
def test_a_whole_client_moves_no_release_farther_than_its_entry_on_many_tables(
    name: str, shape: list[int], one: Any, other: Any, cap: int, noise: str
) -> None:
    assert_bounded(name, shape, (rows_of(shape, one), rows_of(shape, other)), cap, noise)


def assert_bounded(
    name: str, shape: list[int], tables: tuple[np.ndarray, np.ndarray], cap: int, noise: str
) -> dict[str, list[TapedRelease]]:
    own, others = tables
    rest = rows_of(shape, (9, 2.0, 1))
    privacy = {"epsilon": 2.0, "delta": 1e-5, "client_sizes": "private", "unit": "client", "rows_per_client": cap}
    config = config_of(name, 2, privacy=privacy, aggregation={"noise": noise})
    table = table_of(np.zeros((1, len(shape)), int), tuple(shape))
    first = finished(execute(config, Federation(table, (own, rest))))
    for neighbour, factor in ((own[:0], 1.0), (others, None)):
        again = execute(config, Federation(table, (neighbour, rest)), script=first.tape.draws)
        assert not again.tape.problems
        for party in first.tape.draws:
            for draw, moved in zip(first.tape.draws[party], again.tape.draws[party], strict=True):
                pairs = zip(draw.inputs, moved.inputs, strict=True)
                allowed = (draw.replaced if factor is None else factor) * draw.sensitivity * (1 + 1e-9)
                if draw.kind == "exponential":
                    with np.errstate(invalid="ignore"):
                        moves = [float(np.nan_to_num(np.abs(a - b)).max()) for a, b in pairs]
                else:
                    moves = [float(np.linalg.norm(np.subtract(a, b, dtype=np.float64))) for a, b in pairs]
                assert max(moves) <= allowed + 1e-9, (party, draw.name, moves, allowed)
                # All arrays together: what `count` of them would move by themselves.
                assert np.linalg.norm(moves) <= allowed * np.sqrt(draw.count) + 1e-9, (party, draw.name, moves)
    return first.tape.draws


def test_the_bound_is_reached() -> None:
    """A client with more equal rows than the cap moves every marginal by exactly the cap."""
    rest = rows_of([3, 4], (9, 2.0, 1))
    privacy = {"epsilon": 2.0, "delta": 1e-5, "unit": "client", "rows_per_client": 4}
    config = config_of("fed_naive_bayes", 2, privacy=privacy)
    table, equal = table_of(rest, (3, 4)), np.tile(np.array([[2, 3]], np.uint8), (9, 1))
    with_client, without = (
        finished(execute(config, Federation(table, (part, rest)))).tape.draws["server"] for part in (equal, equal[:0])
    )
    moves = [
        np.linalg.norm(a - b)
        for one, two in zip(with_client, without, strict=True)
        for a, b in zip(one.inputs, two.inputs, strict=True)
    ]
    assert moves == [4.0] * len(moves) and {draw.sensitivity for draw in with_client} == {4.0}
