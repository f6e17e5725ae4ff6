"""Two looks at noisy sketches: independent noise, of which each knows how much it has."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedsyn.domain import Codes, Domain, Floats
from fedsyn.selection.coarse import grouping_of
from fedsyn.selection.halves import halves
from fedsyn.selection.sketches import Interactions

DOMAIN = Domain(("a", "b", "c"), (4, 6, 5), {"a": 4, "b": 6, "c": 5})
PAIRS = tuple(combinations(DOMAIN, 2))
SKETCHER = Interactions(
    DOMAIN,
    PAIRS,
    16,
    grouping_of(DOMAIN, PAIRS, 16, {name: np.full(DOMAIN[name], 1.0 / DOMAIN[name]) for name in DOMAIN}),
)


def exact() -> list[Floats]:
    codes: Codes = np.random.default_rng(3).integers(0, 4, (500, 3))
    return SKETCHER.split(SKETCHER.of_rows(codes))


def test_halves_share_the_numbers_and_no_noise() -> None:
    """Over 2,000 draws: the exact sketches are in both, beside independent noise of the variance that they say."""
    numbers, sigma, rng = np.concatenate(exact()), 40.0, np.random.default_rng(0)
    noises = np.empty((2, 2_000, len(numbers)))
    for draw in range(noises.shape[1]):
        opened = SKETCHER.split(SKETCHER.of_rows(np.zeros((0, 3), np.int64)) + sigma * rng.normal(size=SKETCHER.length))
        values = [x + z for x, z in zip(exact(), opened, strict=True)]
        one, other, said = halves(SKETCHER, values, sigma, rng)
        noises[:, draw] = np.concatenate(one) - numbers, np.concatenate(other) - numbers
    variance = sum(SKETCHER.noises(i) * SKETCHER.sigma_of(i, said) ** 2 for i in range(len(PAIRS)))
    squared = (noises**2).sum(axis=2).mean(axis=1)
    # Each of two means of 2,000, 3% wide at the most: 5 standard deviations.
    np.testing.assert_allclose(squared, variance, rtol=0.05)
    assert abs((noises[0] * noises[1]).sum(axis=1).mean()) < 0.05 * variance


def test_what_one_half_chooses_the_other_does_not_flatter() -> None:
    """The largest of many noisy zeros stands out on the half that chose it, and on the other half it does not."""
    rng, seen = np.random.default_rng(1), np.empty((2, 1_000))
    for row in range(seen.shape[1]):
        one, other, _ = halves(SKETCHER, SKETCHER.split(rng.normal(size=SKETCHER.length)), 1.0, rng)
        chooser, judge = (np.concatenate(half) for half in (one, other))
        place = int(np.argmax(chooser))
        seen[:, row] = chooser[place], judge[place]
    flattered, honest = seen.mean(axis=1)
    assert flattered > 10.0 * abs(honest)
    assert honest == pytest.approx(0.0, abs=5.0 * seen[1].std() / np.sqrt(seen.shape[1]))
