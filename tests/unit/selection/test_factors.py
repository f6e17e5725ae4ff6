"""What all sketched pairs say together: correlations without noise, no factor in noise, no order in a listing."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import norm

from fedsyn.domain import Domain
from fedsyn.selection.coarse import grouping_of
from fedsyn.selection.factors import Correlations, Cuts, correlations, factors, looks, one_factor, scores
from fedsyn.selection.sketches import Interactions

Codes = npt.NDArray[np.int64]
RNG = np.random.default_rng(3)
ROWS = 20_000.0
LOADINGS = np.array([0.9, 0.8, 0.7, 0.6, 0.5, -0.7])
NAMES = tuple("abcdef")


def table(rows: int, sizes: tuple[int, ...], loadings: npt.NDArray[np.float64] = LOADINGS) -> Codes:
    """Codes of columns that one factor links, in their order."""
    z = RNG.normal(size=(rows, 1))
    own = z * loadings + RNG.normal(size=(rows, len(sizes))) * np.sqrt(1 - loadings**2)
    return np.stack([np.digitize(own[:, i], norm.ppf(np.arange(1, g) / g)) for i, g in enumerate(sizes)], axis=1)


def sketched(codes: Codes, domain: Domain, width: int = 64, sigma: float = 1e-3, seed: int = 0):  # type: ignore[no-untyped-def]
    """Sketches of all pairs, the masses, and the looks that they are."""
    n, cliques = len(codes), tuple(combinations(domain, 2))
    masses = {name: np.bincount(codes[:, i], minlength=domain[name]) / n for i, name in enumerate(domain)}
    sketcher = Interactions(domain, cliques, width, grouping_of(domain, cliques, width, masses))
    noise = np.random.default_rng(seed).normal(0.0, sigma, sketcher.length)
    return masses, list(looks(sketcher, sketcher.split(sketcher.of_rows(codes) + noise), sigma, masses, n))


def ordered_cuts(masses: dict[str, npt.NDArray[np.float64]]) -> dict[str, Cuts]:
    return {name: Cuts.of(own, range(len(own))) for name, own in masses.items()}


@pytest.mark.parametrize(("size", "width"), [(2, 4), (5, 64), (8, 4), (8, 16), (20, 64)])
def test_correlations_of_normal_scores_come_back_whatever_the_groups(size: int, width: int) -> None:
    """40,000 rows: a tetrachoric correlation has a standard error of at most 0.009; five of them."""
    domain = Domain(NAMES, (size,) * 6, dict.fromkeys(NAMES, size))
    masses, found = sketched(table(40_000, domain.shape), domain, width)
    known = correlations(found, ordered_cuts(masses), ROWS)
    expected = np.multiply.outer(LOADINGS, LOADINGS)
    off = ~np.eye(6, dtype=bool)
    np.testing.assert_allclose(known.values[off], expected[off], atol=0.045)


def test_one_factor_has_its_loadings() -> None:
    domain = Domain(NAMES, (6,) * 6, dict.fromkeys(NAMES, 6))
    masses, found = sketched(table(40_000, domain.shape), domain)
    (own,) = factors(correlations(found, ordered_cuts(masses), ROWS))
    loadings = np.array([own[name] for name in NAMES])
    np.testing.assert_allclose(loadings * np.sign(loadings[0]), LOADINGS, atol=0.03)


def test_noise_alone_shows_a_factor_in_one_run_of_twenty_at_most() -> None:
    """400 matrices of noise; 20 of them are expected to show one, and 36 or more with a chance of 5e-4."""
    rng, shown = np.random.default_rng(0), 0
    for i in range(400):
        d = (5, 12, 30, 60)[i % 4]
        noise = np.triu(rng.normal(size=(d, d)), 1)
        precision = np.full((d, d), 4.0) - 4.0 * np.eye(d)
        shown += bool(one_factor(Correlations(tuple(map(str, range(d))), (noise + noise.T) / 2.0, precision)))
    assert shown < 36


def test_two_blocks_are_two_factors_and_no_column_has_both() -> None:
    one, two = (table(20_000, (4,) * 6) for _ in range(2))
    domain = Domain(tuple("abcdefghijkl"), (4,) * 12, dict.fromkeys("abcdefghijkl", 4))
    masses, found = sketched(np.hstack([one, two]), domain)
    blocks = [set(own) for own in factors(correlations(found, ordered_cuts(masses), ROWS))]
    assert sorted(map(sorted, blocks)) == [list("abcdef"), list("ghijkl")]


def test_unordered_values_get_their_order_back_however_they_are_listed() -> None:
    codes = table(3_000, (5,) * 6)
    domain = Domain(NAMES, (5,) * 6)
    listing = [np.random.default_rng(i).permutation(5) for i in range(6)]
    listed = np.stack([order[codes[:, i]] for i, order in enumerate(listing)], axis=1)
    found = []
    for own in (codes, listed):
        masses, seen = sketched(own, domain)
        found.append(scores(seen, ordered_cuts(masses), NAMES))
    for i, name in enumerate(NAMES):
        assert abs(np.corrcoef(found[0][name], np.arange(5))[0, 1]) > 0.95
        again = found[1][name][listing[i]]
        assert abs(np.corrcoef(found[0][name], again)[0, 1]) > 0.999


def test_no_order_is_read_from_noise() -> None:
    """Columns that nothing links, 60 runs: a false order is seen in at most 3 on average; 10 has a chance of 1e-3."""
    domain, shown = Domain(NAMES, (5,) * 6), 0
    for i in range(60):
        codes = np.random.default_rng(i).integers(0, 5, (1_000, 6))
        masses, seen = sketched(codes, domain, sigma=600.0, seed=i)
        shown += bool(scores(seen, ordered_cuts(masses), NAMES))
    assert shown < 10


def test_a_column_without_places_has_no_correlation() -> None:
    domain = Domain(("a", "b"), (4, 4), {"a": 4})
    masses, found = sketched(table(1_000, (4, 4), LOADINGS[:2]), domain)
    cuts = ordered_cuts(masses) | {"b": Cuts.of(masses["b"], np.zeros(4, int))}
    known = correlations(found, cuts, ROWS)
    assert not known.values.any() and not known.precision.any()
