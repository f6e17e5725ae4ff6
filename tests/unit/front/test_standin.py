"""Tables that stand in for one that nobody has seen: they are like what was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.plan.run import likeness
from fedsyn.domain import Domain, Zeros
from fedsyn.front.standin import TYPICAL, Likeness, drawn_rows

SIZES = (2, 3, 5, 8, 12, 16, 20, 4)
DOMAIN = Domain(tuple("abcdefgh"), SIZES, {"f": 16, "g": 20})


@pytest.mark.parametrize("asked", [*TYPICAL, Likeness(0.2, 0.05)])
def test_drawn_tables_are_as_uneven_and_as_linked_as_asked(asked: Likeness) -> None:
    # Means over 12 tables of 20,000 rows. Cut into a few values a score shows less than it has, so links are below.
    found = [likeness(drawn_rows(DOMAIN, 20_000, asked, np.random.default_rng(seed)), DOMAIN)[0] for seed in range(12)]
    unevenness, links = np.mean(found, axis=0)
    assert unevenness == pytest.approx(asked.unevenness, abs=0.015)
    assert 0.25 * asked.links < links < 1.3 * asked.links + 0.001


def test_equal_masses_and_nothing_linked() -> None:
    codes = drawn_rows(DOMAIN, 50_000, Likeness(-1.0, 0.0), np.random.default_rng(0))
    found, within = likeness(codes, DOMAIN)
    assert found.unevenness < 1e-3 and within < 1e-3 and found.links < 1e-3


def test_links_follow_the_order_of_numbers_and_no_order_of_categories() -> None:
    domain, along = Domain(("x", "y", "z"), (20, 20, 20), {"x": 20, "y": 20}), list[np.ndarray]()
    for seed in range(20):
        codes = drawn_rows(domain, 4000, Likeness(0.0, 0.6), np.random.default_rng(seed))
        along.append(np.asarray(np.corrcoef(codes.T))[0, 1:])
    (numbers, categories) = np.mean(np.abs(along), axis=0)
    assert numbers > 0.5 > 2 * categories


def test_no_row_is_impossible_and_a_column_may_have_one_value() -> None:
    cells = np.triu(np.ones((8, 8), bool), 1)
    domain = Domain(("x", "y", "one"), (8, 8, 1), {"x": 8, "y": 8}, (Zeros(("x", "y"), cells),))
    codes = drawn_rows(domain, 500, TYPICAL[1], np.random.default_rng(0))
    assert codes.shape == (500, 3) and not domain.violated(codes).any() and not codes[:, 2].any()
    assert likeness(codes, domain)[0].links > 0.0
