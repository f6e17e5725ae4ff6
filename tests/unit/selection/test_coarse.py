"""Coarse marginals: how coarse, what a client takes for groups, and what they say of cells."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.errors import ProtocolError
from fedsyn.inference import Measurement, estimate
from fedsyn.inference.junction_tree import axes_of
from fedsyn.inference.measurements import merge
from fedsyn.selection.coarse import CoarseMarginals, best_cells, resolution
from fedsyn.table.counting.marginals import count

DOMAIN = Domain(("a", "b", "c"), (12, 8, 5), ordered={"a": 12, "b": 7})
PAIRS = (("a", "b"), ("b", "c"))
RNG = np.random.default_rng(0)
CODES = RNG.integers(0, (12, 8, 5), (500, 3))
MASS = {name: count(CODES, DOMAIN, [(name,)])[0] / 500 for name in DOMAIN}


def coarse(*cells: int) -> CoarseMarginals:
    return CoarseMarginals.of(DOMAIN, PAIRS, cells, MASS)


def test_the_best_number_of_cells_has_the_least_error() -> None:
    """Against the error at 4,000 numbers of cells around it."""
    for distance, sigma in ((100.0, 1.0), (3000.0, 40.0), (50.0, 0.1)):

        def error(k: np.ndarray, distance: float = distance, sigma: float = sigma) -> np.ndarray:
            return math.sqrt(2 / math.pi) * sigma * k + distance / np.sqrt(k)

        k = best_cells(distance, sigma)
        assert float(error(np.array(k))) <= error(np.geomspace(k / 10, k * 10, 4000)).min()
        assert resolution(distance, sigma, 1e9) == pytest.approx((k, float(error(np.array(k)))))
        fine = math.sqrt(2 / math.pi) * sigma * 2.9 * k
        assert resolution(distance, sigma, 2.9 * k) == pytest.approx((math.inf, fine))  # below 3 k cells are better
    assert resolution(0.0, 1.0, 1e9) == pytest.approx((4.0, 4 * math.sqrt(2 / math.pi)))


def test_only_values_with_an_order_are_put_together() -> None:
    made = coarse(20, 15)
    assert [len(q) for q in made.groups] == [2, 2] and made.shapes[1] == (3, 5)
    assert made.groups[0][1][-1] == made.shapes[0][1] - 1 and list(made.groups[0][1]).count(made.shapes[0][1] - 1) == 1
    assert list(made.groups[1][1]) == [0, 1, 2, 3, 4]
    assert math.prod(made.shapes[0]) <= 20 and all((np.diff(g) >= 0).all() for own in made.groups for g in own)
    assert coarse(96, 40).shapes == ((12, 8), (8, 5))
    assert coarse(1, 1).shapes == ((2, 3), (3, 5))  # two groups at least, and one of its own for the missing value


def test_coarse_marginals_are_sums_of_cells() -> None:
    made = coarse(20, 15)
    for table, fine, groups, shape in zip(
        made.of_rows(CODES), count(CODES, DOMAIN, PAIRS), made.groups, made.shapes, strict=True
    ):
        expected = np.zeros(shape, int)
        np.add.at(expected, np.ix_(*groups), fine)
        assert np.array_equal(table, expected) and table.sum() == 500


def test_groups_come_back_from_a_message() -> None:
    made = coarse(20, 15)
    back = CoarseMarginals.unpack(DOMAIN, PAIRS, made.shapes, made.pack())
    assert back.shapes == made.shapes
    assert all(
        np.array_equal(a, b) for x, y in zip(back.groups, made.groups, strict=True) for a, b in zip(x, y, strict=True)
    )


@pytest.mark.parametrize(
    ("shapes", "change"),
    [
        (((4, 5),), None),
        (((4, 5), (3,)), None),
        (((4, 4), (3, 5)), None),  # a group that does not exist
        (((0, 5), (3, 5)), None),
        (((13, 8), (3, 5)), None),  # more groups than values
        (None, lambda packed: packed[:-1]),
        (None, lambda packed: packed.astype(float)),
        (None, lambda packed: packed[None]),
        (None, lambda packed: np.where(np.arange(len(packed)) == 3, -1, packed.astype(int))),
    ],
)
def test_groups_that_do_not_exist_are_refused(shapes, change) -> None:
    made = replace(coarse(20, 15))
    packed = made.pack() if change is None else change(made.pack())
    with pytest.raises(ProtocolError, match="groups"):
        CoarseMarginals.unpack(DOMAIN, PAIRS, shapes or made.shapes, packed)


def test_inside_a_group_the_attributes_are_independent() -> None:
    """Expanded counts add up to the coarse ones, and are products of the one-way marginals inside each group."""
    made, table = coarse(20, 15), None
    table = made.of_rows(CODES)[0].astype(float)
    cells = made.expanded(0, table, 3.0, MASS)
    again = np.zeros(made.shapes[0])
    np.add.at(again, np.ix_(*made.groups[0]), cells.values)
    np.testing.assert_allclose(again, table, rtol=1e-12)
    first = np.ix_(made.groups[0][0] == 0, made.groups[0][1] == 0)
    product = np.outer(MASS["a"][made.groups[0][0] == 0], MASS["b"][made.groups[0][1] == 0])
    np.testing.assert_allclose(cells.values[first] / table[0, 0], product / product.sum(), rtol=1e-9)


def test_a_coarse_measurement_weighs_in_a_fit_as_its_noise_says() -> None:
    """One attribute's total is known, 500; a coarse marginal of equal groups, one measured twice as precisely.

    Errors of whole groups that meet in a fit are averaged with the weights of their precisions, as exact coarse
    measurements would be: 4 : 1.
    """
    domain = Domain(("a", "b"), (4, 4), ordered={"a": 4, "b": 4})
    mass = {name: np.full(4, 0.25) for name in domain}
    made = CoarseMarginals.of(domain, (("a", "b"),), (4,), mass)
    one, other = np.array([[150.0, 100.0], [100.0, 150.0]]), np.array([[100.0, 150.0], [150.0, 100.0]])
    measured = [made.expanded(0, one, 1.0, mass), made.expanded(0, other, 2.0, mass)]
    assert measured[0].sigma == pytest.approx(0.5)  # four cells share each group's noise
    model = estimate(domain, measured, total=500.0)
    fitted = model.project(("a", "b"))
    assert fitted[:2, :2].sum() == pytest.approx((4 * 150 + 100) / 5, rel=1e-3)
    fine = CoarseMarginals.of(domain, (("a", "b"),), (16,), mass)
    assert fine.expanded(0, np.ones((4, 4)), 1.5, mass).sigma == 1.5
    assert isinstance(fine.expanded(0, np.ones((4, 4)), 1.5, mass), Measurement)


def test_a_fit_expects_as_much_noise_as_there_was() -> None:
    """The squared noise that expanded cells carry, in units of their sigma^2: one a group, on average over 2,000 draws.

    Within 5 standard errors. A fit that ends where noise explains what is left counts so many.
    """
    made, rng = coarse(20, 15), np.random.default_rng(3)
    zero = np.zeros(made.shapes[0])
    draws = []
    for _ in range(2000):
        m = made.expanded(0, zero + rng.normal(0, 3.0, zero.shape), 3.0, MASS)
        draws.append(float(((m.values / m.sigma) ** 2).sum()))
    assert m.noises == zero.size and abs(np.mean(draws) - m.noises) < 5 * np.std(draws) / math.sqrt(2000)
    again = Measurement(m.clique, m.values, m.sigma, 3)
    axes = axes_of(DOMAIN)
    assert [one.noisy for one in merge(axes, [m])] == [zero.size]
    assert [one.noisy for one in merge(axes, [again, m])] == [zero.size]
    assert [one.noisy for one in merge(axes, [m, Measurement(m.clique, m.values, 1.0)])] == [96]


def test_a_sight_is_what_independent_attributes_have_in_the_groups() -> None:
    made = coarse(20, 15)
    table = made.of_rows(CODES)[0].astype(float)
    departure = made.departure(0, table, 3.0, {name: 500.0 * p for name, p in MASS.items()})
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)).ravel() / 500**2
    np.testing.assert_allclose(departure.independent, expected, rtol=1e-12)
    assert departure.sigma == 3.0 and np.array_equal(departure.values, table.ravel())
