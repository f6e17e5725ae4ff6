"""The bounds on the model's size."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedsyn.config import InferenceNode
from fedsyn.domain import Domain
from fedsyn.inference import model_size, pass_cost
from fedsyn.inference.capacity import PLANNED_ATTRIBUTES, Capacity
from fedsyn.inference.estimation import estimate_config

DOMAIN = Domain(tuple("abcdef"), (10, 10, 10, 10, 10, 10))


def capacity(cells: int = 10_000, cost: float = 1e9) -> Capacity:
    return Capacity(DOMAIN, InferenceNode(max_cells=cells, max_message_passing_cost=cost))


def test_only_maximal_cliques_are_kept():
    held = capacity()
    held.add([("b", "a"), ("a",)])
    assert held.cliques == (("a", "b"),)
    held.add([("a", "b", "c")])
    assert held.cliques == (("a", "b", "c"),)


def test_cells_bound_the_model_and_a_share_of_them_a_round():
    held = capacity(cells=1100)
    assert held.fits(("a", "b"))
    assert not held.fits(("a", "b", "c", "d"))  # 10,000 cells
    assert held.which_fit([("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d")]) == [0, 1, 2]
    # The tree spans the whole domain: attributes that nobody measured have their own cells.
    assert model_size(DOMAIN, [("a", "b")]) == 100 + 4 * 10
    assert held.which_fit([("a",), ("a", "b"), ("a", "b", "c")], share=0.2) == [0, 1]


def test_a_clique_inside_a_measured_one_always_fits():
    held = capacity(cells=1100)
    held.add([("a", "b", "c")])
    held.max_cells = 1
    assert held.fits(("a", "c")) and not held.fits(("d",))


def test_the_cost_of_a_pass_is_a_bound_of_its_own():
    cliques = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
    cost = pass_cost(DOMAIN, cliques)
    held = capacity(cells=10**9, cost=cost - 1)
    held.add(cliques[:3])
    assert not held.fits(cliques[3])
    held.max_message_passing_cost = cost
    assert held.fits(cliques[3])


def test_cliques_that_fit_alone_may_not_fit_together():
    """A cycle's last edge merges its cliques, which each alone would have been small."""
    cliques = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f"), ("f", "a")]
    held = capacity(cells=1500)
    assert held.which_fit(cliques) == list(range(6))
    assert held.add_while_fitting(cliques) == [0, 1, 2, 3, 4]
    assert model_size(DOMAIN, held.cliques) <= 1500 < model_size(DOMAIN, cliques)


def test_what_a_plan_takes_is_what_fits_and_never_more_than_the_bounds() -> None:
    """Few attributes: exactly what `fits` says. Many in many cycles: the tree of all that is taken is within both."""
    for d, cells, cost in ((9, 3_000, 60_000), (30, 20_000, 400_000)):
        rng = np.random.default_rng(d)
        domain = Domain(tuple(f"a{i}" for i in range(d)), tuple(rng.integers(2, 7, d).tolist()))
        node = InferenceNode(max_cells=cells, max_message_passing_cost=cost)
        planned, plain, tangled = Capacity(domain, node), Capacity(domain, node), 0
        pairs, taken, refused, told = list(combinations(domain.attributes, 2)), 0, 0, 0
        for i in rng.permutation(len(pairs)):
            before, found = planned.cliques, planned.take(pairs[i], 0.9)
            if d == 9:
                fits = plain.fits(pairs[i], 0.9)
                assert found == fits
                plain.add([pairs[i]] * fits)
            taken, refused = taken + found, refused + (not found)
            assert found or planned.cliques == before
            assert model_size(domain, planned.cliques) <= 0.9 * cells
            assert pass_cost(domain, planned.cliques) <= 0.9 * cost
            tangled = max(tangled, max(c.core.bit_count() for c in planned.growth.components))
            if tangled > 16 and i % 8 == 0:
                told += _told_at_once(planned, pairs)
        assert taken > d and refused > d / 2 and (d == 9 or (tangled > 16 and told > 1000))


def _told_at_once(planned: Capacity, pairs: list[tuple[str, str]]) -> int:
    """How many pairs are told to have no room; none of them has any."""
    lacking = planned.lacking(planned.pairs(pairs), 0.9)
    fits = planned.test(0.9, PLANNED_ATTRIBUTES)
    assert not any(fits(pair) for pair, full in zip(pairs, lacking.tolist(), strict=True) if full)
    return int(lacking.sum())


def test_what_the_tree_cannot_hold_is_not_taken_whatever_an_estimate_says(monkeypatch: pytest.MonkeyPatch) -> None:
    held = capacity(cells=200)  # 140 with the first clique, 230 with the second
    assert held.take(("a", "b")) and not held.fits(("b", "c"))
    monkeypatch.setattr(Capacity, "test", lambda *_: lambda clique: True)
    assert not held.take(("b", "c")) and held.cliques == (("a", "b"),) and held.growth.cells == (140, 140)
    assert held.take(("a",)), "what is inside costs nothing"


def test_estimate_config_takes_the_end_of_a_fit_from_the_configuration():
    config = estimate_config(InferenceNode(stop_at_noise_level=True), 17)
    assert (config.iterations, config.stop_at_noise_level) == (17, True)
    assert not estimate_config(
        InferenceNode(stop_at_noise_level=False), 17, stop_at_noise_level=True
    ).stop_at_noise_level
