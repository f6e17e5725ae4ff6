"""The public integers of a choice from a store, what one row moves, and where a store finds a marginal."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.domain import Domain
from fedsyn.errors import ConfigError
from fedsyn.selection.terms import FINEST, LARGEST_SCORE, NORMS, ChoiceTerms
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.stored import StoredLayout, stored_cliques

DOMAIN = Domain(("a", "b", "c", "d"), (3, 2, 4, 1))
CLIQUES = [q for k in (1, 2, 3) for q in combinations(DOMAIN.attributes, k)]


def terms_of(
    norm: str, seed: int, *, sigma: float = 2.0, rows: int = 40, weights: np.ndarray | None = None
) -> ChoiceTerms:
    rng = np.random.default_rng(seed)
    p = [rng.dirichlet(np.full(DOMAIN.size(q), 0.4)) for q in CLIQUES]
    w = rng.integers(1, 9, len(CLIQUES)).astype(float) if weights is None else weights
    cells = np.array([float(DOMAIN.size(q)) for q in CLIQUES])
    return ChoiceTerms.of(norm, CLIQUES, p, w, cells, sigma=sigma, size=float(rows), rows=rows)


def table(seed: int, rows: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, n, rows) for n in DOMAIN.shape], axis=1)


@pytest.mark.parametrize("norm", sorted(NORMS))
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(0, 39), sigma=st.sampled_from([0.2, 1.0, 30.0]))
def test_one_row_moves_no_score_by_more_than_the_terms_say(norm: str, seed: int, rows: int, sigma: float) -> None:
    terms, codes = terms_of(norm, seed, sigma=sigma), table(seed, rows + 1)
    before, after = (terms.scores(count(part, DOMAIN, CLIQUES)) for part in (codes[:-1], codes))
    assert np.abs(after - before).max() <= terms.moved
    assert terms.sensitivity * terms.unit == terms.moved


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), hostile=st.integers(0, 2**40 - 1), cell=st.integers(0, 2**20))
def test_no_count_that_a_client_deals_makes_anothers_row_move_an_l1_score_by_more(
    seed: int, hostile: int, cell: int
) -> None:
    """Nor leaves the bound on scores: what follows fits 64 bits."""
    terms, codes = terms_of("l1", seed), table(seed, 8)
    marginals = [count(part, DOMAIN, CLIQUES) for part in (codes[:-1], codes)]
    for world in marginals:
        for marginal in world:
            marginal.ravel()[cell % marginal.size] += hostile
    before, after = (terms.scores(world) for world in marginals)
    assert np.abs(after - before).max() <= terms.moved
    assert max(np.abs(before).max(), np.abs(after).max()) <= terms.reach < LARGEST_SCORE


def test_the_bounds_are_attained() -> None:
    codes = np.zeros((40, 4), np.int64)
    for norm in ("l1", "squared_l2"):
        terms = terms_of(norm, 0)
        empty = replace(terms, model=np.zeros_like(terms.model), penalties=np.zeros_like(terms.penalties))
        moved = empty.scores(count(codes, DOMAIN, CLIQUES)) - empty.scores(count(codes[:-1], DOMAIN, CLIQUES))
        largest = int(terms.weights.max()) * (terms.scale if norm == "l1" else terms.scale**2 * 79)
        assert moved.max() == largest <= terms.moved
    squared = terms_of("squared_l2", 0)
    assert squared.moved == int(squared.weights.max()) * squared.scale**2 * 81  # 2 N + 1 for a row beyond the 40


def test_integer_weights_stay_and_others_are_rounded_to_a_fine_grid() -> None:
    assert terms_of("l1", 0, weights=np.arange(1.0, len(CLIQUES) + 1)).weights.tolist() == [*range(1, len(CLIQUES) + 1)]
    w = np.linspace(0.1, 0.7, len(CLIQUES))
    kept = terms_of("l1", 0, weights=w).weights
    assert np.abs(kept / kept.max() - w / w.max()).max() <= 2.0**-12


@pytest.mark.parametrize("sigma", [0.01, 1.0, 40.0, 5000.0])
def test_the_scale_makes_rounding_small_beside_noise_and_sensitivity(sigma: float) -> None:
    terms = terms_of("l1", 3, sigma=sigma)
    assert terms.scale & (terms.scale - 1) == 0 and terms.moved >= FINEST
    assert 0.5 / terms.scale <= sigma / 64


def test_terms_that_do_not_fit_are_refused() -> None:
    good = terms_of("l1", 1)
    good.check()
    bad = [
        replace(good, weights=good.weights * 0),
        replace(good, model=good.model[1:]),
        replace(good, model=good.model - 10**6),
        replace(good, model=good.model + 10**9),
        replace(good, norm="l3"),
        replace(good, rows=0),
        replace(good, penalties=good.penalties[1:]),
        replace(good, weights=good.weights * (LARGEST_SCORE // 1000)),
        replace(good, penalties=good.penalties + LARGEST_SCORE),
    ]
    for terms in bad:
        with pytest.raises(ConfigError):
            terms.check()


# Where a store finds a marginal --------------------------------------------------------------------------------------


def test_a_store_keeps_the_largest_cliques_and_every_attribute() -> None:
    assert stored_cliques([("a",), ("b",), ("a", "b")], DOMAIN) == (("a", "b"), ("c",), ("d",))
    assert stored_cliques([("a", "b"), ("b", "c"), ("b",)], DOMAIN) == (("a", "b"), ("b", "c"), ("d",))


def test_every_candidate_is_found_as_it_would_be_counted() -> None:
    codes = table(5, 200)
    layout = StoredLayout(stored_cliques(CLIQUES, DOMAIN), DOMAIN)
    vector = np.concatenate([c.ravel() for c in count(codes, DOMAIN, layout.cliques)])
    assert layout.length == len(vector) == sum(math.prod(DOMAIN.shape_of(q)) for q in layout.cliques)
    for clique, counts in zip(CLIQUES, count(codes, DOMAIN, CLIQUES), strict=True):
        assert np.array_equal(layout.marginal(vector, clique), counts)
    with pytest.raises(KeyError):
        layout.place(DOMAIN.attributes)


@pytest.mark.parametrize("norm", sorted(NORMS))
def test_scores_of_honest_tables_are_exact_as_doubles(norm: str) -> None:
    """Also with penalties beyond all measure: they are cut, and one row's step stays one step."""
    for sigma in (1.0, 1e12):
        terms, codes = terms_of(norm, 2, sigma=sigma), table(2, 40)
        scores = terms.scores(count(codes, DOMAIN, CLIQUES))
        assert terms.exact and [int(s) for s in scores.astype(np.float64)] == scores.tolist()
    assert not replace(terms_of("l1", 2), rows=2**50).exact
