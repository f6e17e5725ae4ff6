"""Generated tables whose structure is known: each stands for a kind of table that mechanisms were not tuned on.

A generator takes a seed and gives codes and sizes; structure and rows are both drawn from it, so another seed is
another table of the same kind. Nothing here is private: these tables are public test data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Planted:
    """A generated table.

    Attributes:
        codes: (n, d) int64.
        sizes: number of values of each column.
        ordered: whether their codes are bins of numbers.
    """

    codes: Codes
    sizes: tuple[int, ...]
    ordered: bool = False


def binary(seed: int) -> Planted:
    """30 binary columns, 20,000 rows; each has one or two parents among the columns before it, strong ones."""
    return _network(np.random.default_rng([1, seed]), [2] * 30, rows=20_000, parents=2, strength=0.5)


def few(seed: int) -> Planted:
    """300 rows of 12 columns with 2 to 8 values, one parent each: less is known than even one-way marginals want."""
    rng = np.random.default_rng([2, seed])
    return _network(rng, rng.integers(2, 9, 12).tolist(), rows=300, parents=1, strength=0.5)


def heavy(seed: int) -> Planted:
    """8 columns of 20 to 100 values with a Zipf distribution, 10,000 rows: most cells of a marginal are empty."""
    rng = np.random.default_rng([3, seed])
    sizes = rng.integers(20, 101, 8).tolist()
    return _network(rng, sizes, rows=10_000, parents=1, strength=0.6, tail=1.3)


def xor(seed: int) -> Planted:
    """15 columns of 2 or 3 values, 10,000 rows, in five triples whose third is the sum of the others in 9 rows of 10.

    Every pair is independent: who looks at pairs sees nothing.
    """
    rng = np.random.default_rng([4, seed])
    columns, sizes = [], []
    for _ in range(5):
        size = int(rng.integers(2, 4))
        one, two = rng.integers(0, size, (2, 10_000))
        kept = rng.random(10_000) < 0.9
        columns += [one, two, np.where(kept, (one + two) % size, rng.integers(0, size, 10_000))]
        sizes += [size] * 3
    order = rng.permutation(len(sizes))
    return Planted(np.stack(columns, axis=1)[:, order].astype(np.int64), tuple(sizes[i] for i in order))


def wide(seed: int) -> Planted:
    """60 columns of 2 to 6 values, one parent each, 8,000 rows: more marginals than the budget can measure."""
    rng = np.random.default_rng([5, seed])
    return _network(rng, rng.integers(2, 7, 60).tolist(), rows=8_000, parents=1, strength=0.5)


def independent(seed: int) -> Planted:
    """12 columns of 2 to 16 values that know nothing of each other, 5,000 rows: one-way marginals are all there is."""
    rng = np.random.default_rng([6, seed])
    return _network(rng, rng.integers(2, 17, 12).tolist(), rows=5_000, parents=0, strength=0.0)


def survey(seed: int) -> Planted:
    """10 to 16 Likert items of one factor, 1,200 rows, and two columns beside it; answers in alphabetical order.

    Agree, disagree, neither, strongly agree, strongly disagree: neighbouring codes are not alike.
    """
    rng = np.random.default_rng([7, seed])
    latent = _factor(rng, 1_200, int(rng.integers(10, 17)), loadings=(0.65, 0.85))
    items = np.array([4, 1, 2, 0, 3])[_cut(latent, [0.1, 0.3, 0.5, 0.8])]
    others = np.stack([rng.integers(0, 3, len(items)), rng.integers(0, 6, len(items))], axis=1)
    return Planted(np.hstack([items, others]), (5,) * items.shape[1] + (3, 6))


def labs(seed: int) -> Planted:
    """12 to 18 laboratory values of one factor, 4,000 rows, skewed to the right, in 10 bins of equal width."""
    rng = np.random.default_rng([8, seed])
    latent = _factor(rng, 4_000, int(rng.integers(12, 19)), loadings=(0.5, 0.95))
    return _binned(np.exp(rng.uniform(0.2, 0.6, latent.shape[1]) * latent), 10)


def panel(seed: int) -> Planted:
    """50 numeric columns of one factor, 2,000 rows, in 8 bins of equal width."""
    rng = np.random.default_rng([9, seed])
    return _binned(_factor(rng, 2_000, 50, loadings=(0.6, 0.95)), 8)


GENERATORS: dict[str, Callable[[int], Planted]] = {
    made.__name__: made for made in (binary, few, heavy, xor, wide, independent, survey, labs, panel)
}


def _factor(
    rng: np.random.Generator, rows: int, columns: int, *, loadings: tuple[float, float]
) -> npt.NDArray[np.float64]:
    """(rows, columns) standard normal scores that one factor links."""
    loading = rng.uniform(*loadings, columns)
    own = rng.normal(size=(rows, columns)) * np.sqrt(1 - loading**2)
    return np.asarray(rng.normal(size=(rows, 1)) * loading + own, np.float64)


def _cut(scores: npt.NDArray[np.float64], shares: Sequence[float]) -> Codes:
    """Codes of scores, cut at these shares of the rows."""
    return np.stack([np.searchsorted(np.quantile(own, shares), own) for own in scores.T], axis=1).astype(np.int64)


def _binned(values: npt.NDArray[np.float64], bins: int) -> Planted:
    """Values in bins of equal width between the 1st and the 99th of each column's hundredths."""
    low, high = np.quantile(values, [0.01, 0.99], axis=0)
    codes = np.clip((values - low) / (high - low) * bins, 0, bins - 1).astype(np.int64)
    return Planted(codes, (bins,) * values.shape[1], ordered=True)


def _network(
    rng: np.random.Generator, sizes: Sequence[int], *, rows: int, parents: int, strength: float, tail: float = 0.5
) -> Planted:
    """Rows of a random Bayesian network.

    Args:
        sizes: of the columns.
        rows: how many.
        parents: most parents of a column, drawn among the five before it.
        strength: how often a column's value is the one that its parents decide; otherwise it is drawn from its own
            distribution.
        tail: exponent of that distribution over its ranks, p(r) ~ r^-tail.
    """
    codes = np.zeros((rows, len(sizes)), np.int64)
    for column, size in enumerate(sizes):
        mass = np.arange(1, size + 1) ** -tail
        own = rng.permutation(size)[rng.choice(size, rows, p=mass / mass.sum())]
        codes[:, column] = own
        near = np.arange(max(0, column - 5), column)
        chosen = rng.permutation(near)[: min(parents, len(near))]
        if len(chosen):
            decided = np.zeros(rows, np.int64)
            for parent in chosen:
                decided = decided * sizes[parent] + codes[:, parent]
            table = rng.choice(size, int(np.prod([sizes[i] for i in chosen])), p=mass / mass.sum())
            codes[:, column] = np.where(rng.random(rows) < strength, table[decided], own)
    return Planted(codes, tuple(int(size) for size in sizes))
