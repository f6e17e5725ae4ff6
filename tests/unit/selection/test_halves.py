"""Two looks at noisy numbers: independent noise, of which each half knows how much it has."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fedsyn.selection.halves import ADDED, Half, halves


def coefficients() -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each split, what unit noise in y and in w puts into either half, (2,) each."""
    of_y, of_w = (list(halves([np.array(y)], [np.array(w)])) for y, w in ((1.0, 0.0), (0.0, 1.0)))
    return [
        tuple(np.array([float(a.values[0]), float(b.values[0])]) for a, b in zip(one, other, strict=True))  # type: ignore[misc]
        for one, other in zip(of_y, of_w, strict=True)
    ]


def test_the_noises_of_both_halves_are_uncorrelated_and_as_large_as_they_say() -> None:
    splits = list(halves([np.zeros(1)], [np.zeros(1)]))
    assert len(splits) == 2
    for both, (planned, judged) in zip(coefficients(), splits, strict=True):
        assert both[0] @ both[1] == pytest.approx(0.0, abs=1e-12)
        assert [float(one @ one) for one in both] == pytest.approx([planned.variance, judged.variance])
        assert both[0][0] == both[1][0] == 1.0  # the exact numbers are in both, whole
    assert [planned.variance for planned, _ in splits] == [1.0 + ADDED] * 2


def test_what_one_half_chooses_the_other_does_not_flatter() -> None:
    """The largest of 200 numbers that are all 0: noise, and no more, on the half that did not choose."""
    rng, told = np.random.default_rng(0), np.empty((400, 2))
    for row in told:
        y, w = rng.normal(size=(2, 200))
        planned, judged = next(halves([y], [w]))
        row[:] = y[np.argmax(y)], judged.values[0][np.argmax(planned.values[0])]
    flattered, honest = told.mean(axis=0)
    assert flattered > 2.5 and abs(honest) < 4.0 * np.sqrt((1.0 + 1.0 / ADDED) / len(told))


@pytest.mark.parametrize("scale", [1.5, 40.0])
def test_discrete_noise_is_as_good(scale: float) -> None:
    """Squared distances between a half's choice and the other half are right on average, whatever integer noise is."""
    rng, exact, off = np.random.default_rng(1), np.repeat([0.0, 3.0 * scale], 50), []
    for _ in range(600):
        y, w = exact + np.rint(rng.normal(0.0, scale, 100)), rng.normal(0.0, np.hypot(scale, 12**-0.5), 100)
        for planned, judged in halves([y], [w]):
            model = np.where(planned.values[0] > 1.5 * scale, planned.values[0], 0.0)  # it follows the noise
            variance = judged.variance * (scale**2 + 1 / 12)
            off.append(((judged.values[0] - model) ** 2 - variance - (exact - model) ** 2).mean())
    assert abs(np.mean(off)) < 4.0 * np.std(off) / np.sqrt(len(off) / 2)


def test_both_splits_are_halves_of_everything() -> None:
    pairs = halves([np.zeros(3), np.zeros((2, 2))], [np.ones(3), np.ones((2, 2))])
    for one, (i, shape) in product((half for both in pairs for half in both), enumerate([(3,), (2, 2)])):
        assert isinstance(one, Half) and one.values[i].shape == shape
