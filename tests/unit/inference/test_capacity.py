"""The bounds on the model's size."""

from __future__ import annotations

from fedsyn.config import InferenceNode
from fedsyn.domain import Domain
from fedsyn.inference import model_size, pass_cost
from fedsyn.inference.capacity import Capacity
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


def test_estimate_config_takes_the_end_of_a_fit_from_the_configuration():
    config = estimate_config(InferenceNode(stop_at_noise_level=True), 17)
    assert (config.iterations, config.stop_at_noise_level) == (17, True)
    assert not estimate_config(
        InferenceNode(stop_at_noise_level=False), 17, stop_at_noise_level=True
    ).stop_at_noise_level
