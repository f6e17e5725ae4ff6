"""Reductions and the order of a deal by faster ways than NumPy's plain ones, with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.inference import calibrate
from fedsyn.inference.calibrate import BLOCK_CELLS, Calibrator, inner_first, outer_first, reduce_rows, turns
from fedsyn.inference.junction_tree import axes_of, build_tree
from fedsyn.inference.sampling import shuffled_order


@pytest.mark.parametrize("width", range(2, 8))
@pytest.mark.parametrize("rows", [1, 2, 7000, 40_000])
def test_short_rows_have_the_bits_of_a_plain_sum(width: int, rows: int) -> None:
    # Tiny beside huge: another order of addition would show in the last bits.
    rng = np.random.default_rng(width)
    table = rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-9, 9, (rows, width))
    out = np.zeros(rows)
    reduce_rows(np.add, table, out, np.empty(BLOCK_CELLS))
    np.testing.assert_array_equal(out, np.add.reduce(table.reshape(rows, width, 1), 1)[:, 0])


@pytest.mark.parametrize("width", [2, 3, 16, 42, 63])
def test_short_rows_have_the_maximum(width: int) -> None:
    table = np.random.default_rng(width).standard_normal((3000, width))
    out = np.zeros(3000)
    reduce_rows(np.maximum, table, out, np.empty(1000))  # many blocks, the last one smaller
    np.testing.assert_array_equal(out, table.max(axis=1))


def test_only_short_rows_of_large_tables_are_turned() -> None:
    assert turns(np.add, 10_000, 7, 1) and turns(np.maximum, 10_000, 63, 1)
    assert not turns(np.add, 10_000, 8, 1)  # from eight on, a row's sum is pairwise
    assert not turns(np.maximum, 10_000, 64, 1)
    assert not turns(np.add, 10_000, 7, 2)
    assert not turns(np.add, 10, 7, 1)


@pytest.mark.parametrize("kept", [(1, 0, 1, 0), (0, 1, 0, 1), (0, 0, 1, 1), (1, 1, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1)])
def test_both_orders_reduce_to_the_same_axes(kept: tuple[int, ...]) -> None:
    shape = (2, 3, 4, 5)
    table = np.random.default_rng(0).standard_normal(shape)
    gone = tuple(axis for axis in range(4) if not kept[axis])
    for order in (inner_first, outer_first):
        left = table.reshape(-1)
        for before, reduced, after in order(shape, [bool(keep) for keep in kept]):
            left = np.maximum.reduce(left.reshape(before, reduced, after), 1).reshape(-1)
        np.testing.assert_array_equal(left, table.max(axis=gone).reshape(-1))


@pytest.mark.parametrize("groups", [1, 2, 300, 65_536, 65_537, 1_000_000])
@pytest.mark.parametrize("ties", [False, True])
def test_rows_are_shuffled_within_their_groups_as_a_plain_sort_does(groups: int, ties: bool) -> None:
    rng = np.random.default_rng(groups)
    group, shuffle = rng.integers(0, groups, 20_000), rng.random(20_000)
    group[:2] = groups - 1
    if ties:
        shuffle = np.round(shuffle, 2)
    np.testing.assert_array_equal(shuffled_order(group, shuffle, groups), np.lexsort((shuffle, group)))


def test_no_rows_have_an_order_too() -> None:
    assert shuffled_order(np.zeros(0, np.int64), np.zeros(0), 3).shape == (0,)


@pytest.mark.parametrize(("size", "width"), [(2, 13), (3, 8), (4, 7), (7, 5)])
def test_a_pass_has_the_bits_of_plain_reductions(size: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(f"a{i:02d}" for i in range(width + 4))
    domain = Domain(names, (size,) * len(names))
    axes = axes_of(domain)
    chain = [domain.attributes[i : i + width] for i in range(0, 5, 2)]
    masks = sorted(axes.mask(clique) for clique in [*chain, *((name,) for name in domain.attributes)])
    turned = 0

    def plain(*step: Any) -> bool:
        nonlocal turned
        turned += turns(*step)
        return False

    passes = [Calibrator(build_tree(axes, masks), masks)]
    monkeypatch.setattr(calibrate, "turns", plain)
    monkeypatch.setattr(calibrate, "outer_first", inner_first)
    passes.append(Calibrator(build_tree(axes, masks), masks))
    for one in passes:
        one.theta[:] = 3 * np.random.default_rng(size).standard_normal(one.theta.size)
        one.run()
    assert turned  # else this compares nothing
    assert passes[0].log_partition == passes[1].log_partition
    np.testing.assert_array_equal(passes[0].marginals, passes[1].marginals)
