"""Workloads, downward closure and candidate weights."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.table.counting import workload as module
from fedsyn.table.counting.workload import Workload, all_kway, candidate_weights, downward_closure, random_kway

DOMAIN = Domain(tuple("fedcba"), (2, 3, 4, 5, 6, 7))  # not in alphabetical order


def test_all_kway_lists_every_clique_once_in_domain_order():
    workload = all_kway(DOMAIN, 3)
    assert len(workload) == math.comb(6, 3)
    assert workload.cliques[0] == ("f", "e", "d")
    assert all(clique == DOMAIN.canonical(clique) for clique in workload.cliques)
    assert len(set(workload.cliques)) == len(workload)
    assert set(workload.weights) == {1.0}


def test_a_small_domain_gives_one_clique_of_all_its_attributes():
    assert all_kway(Domain(("x",), (2,)), 3).cliques == (("x",),)
    assert random_kway(Domain(("x",), (2,)), 3, 64, np.random.default_rng(0)).cliques == (("x",),)


def test_random_kway_draws_distinct_cliques_and_repeats_with_the_seed():
    first = random_kway(DOMAIN, 3, 7, np.random.default_rng(5))
    again = random_kway(DOMAIN, 3, 7, np.random.default_rng(5))
    other = random_kway(DOMAIN, 3, 7, np.random.default_rng(6))
    assert first == again
    assert first != other
    assert len(set(first.cliques)) == 7
    assert set(first.cliques) < set(all_kway(DOMAIN, 3).cliques)
    for size in (None, 20, 1000):
        assert random_kway(DOMAIN, 3, size, np.random.default_rng(5)) == all_kway(DOMAIN, 3)


def test_random_kway_is_uniform_over_the_cliques():
    rng = np.random.default_rng(1)
    drawn = [clique for _ in range(400) for clique in random_kway(DOMAIN, 2, 5, rng).cliques]
    counts = np.array([drawn.count(clique) for clique in all_kway(DOMAIN, 2).cliques])
    # 400 draws of 5 from 15: mean 133.3, standard deviation below 10
    assert np.abs(counts - 400 / 3).max() < 5 * 10


def test_random_kway_of_very_many_cliques_does_not_enumerate_them(monkeypatch):
    monkeypatch.setattr(module, "_ENUMERABLE", 10)
    workload = random_kway(DOMAIN, 3, 8, np.random.default_rng(5))
    assert len(set(workload.cliques)) == 8
    assert set(workload.cliques) < set(all_kway(DOMAIN, 3).cliques)
    huge = Domain(tuple(f"a{i}" for i in range(2000)), (2,) * 2000)
    monkeypatch.setattr(module, "_ENUMERABLE", 1000)
    assert len(set(random_kway(huge, 3, 50, np.random.default_rng(0)).cliques)) == 50


def test_downward_closure_holds_all_subsets_sorted():
    closure = downward_closure([("a", "f", "c"), ("e", "f"), ("c", "f")], DOMAIN)
    assert closure == [
        ("f",),
        ("e",),
        ("c",),
        ("a",),
        ("f", "e"),
        ("f", "c"),
        ("f", "a"),
        ("c", "a"),
        ("f", "c", "a"),
    ]
    assert downward_closure([], DOMAIN) == []


def test_candidate_weights_equal_the_double_sum():
    rng = np.random.default_rng(3)
    cliques = random_kway(DOMAIN, 3, 6, rng).cliques
    workload = Workload(cliques, tuple(rng.random(6) + 0.1))
    candidates = [c for k in (1, 2, 3) for c in itertools.combinations(DOMAIN.attributes, k)]
    weights = candidate_weights(workload, candidates)
    assert list(weights) == candidates
    for q in candidates:
        expected = sum(w * len(set(q) & set(r)) for r, w in zip(workload.cliques, workload.weights, strict=True))
        assert weights[q] == pytest.approx(expected, abs=1e-12)


def test_mistakes_are_refused():
    with pytest.raises(ValueError, match="2 cliques but 1 weights"):
        Workload((("a",), ("b",)), (1.0,))
    for weight in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive"):
            Workload((("a",),), (weight,))
    with pytest.raises(ValueError, match="repeats"):
        Workload((("a", "a"),), (1.0,))
    with pytest.raises(ValueError, match="at least one attribute"):
        all_kway(DOMAIN, 0)
    with pytest.raises(ValueError, match="at least one clique"):
        random_kway(DOMAIN, 2, 0, np.random.default_rng(0))
