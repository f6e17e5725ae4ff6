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
    """

    codes: Codes
    sizes: tuple[int, ...]


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


GENERATORS: dict[str, Callable[[int], Planted]] = {
    made.__name__: made for made in (binary, few, heavy, xor, wide, independent)
}


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
