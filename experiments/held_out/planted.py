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
        ordered: of each column, how many of its first codes are bins of numbers; empty: of none.
    """

    codes: Codes
    sizes: tuple[int, ...]
    ordered: tuple[int, ...] = ()


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


def shapes(seed: int) -> Planted:
    """14 measures of a shape and its kind, 12,000 rows, 16 bins: length and width decide nearly all of them.

    Areas, perimeters and ratios are near-linear in one another, or curved; four to eight kinds have centres of their
    own.
    """
    rng = np.random.default_rng([10, seed])
    n, kinds = 12_000, int(rng.integers(4, 9))
    kind = rng.choice(kinds, n, p=rng.dirichlet(np.full(kinds, 4.0)))
    size = rng.normal(0.0, 0.4, kinds)[kind] + rng.normal(0.0, 0.12, n)
    stretch = rng.uniform(0.15, 0.7, kinds)[kind] * np.exp(rng.normal(0.0, 0.12, n))
    rough = rng.uniform(0.005, 0.03, kinds)[kind] * rng.gamma(3.0, 1.0 / 3.0, n)
    length, width = np.exp(size + stretch / 2.0), np.exp(size - stretch / 2.0)
    area = np.pi / 4.0 * length * width * np.exp(rng.normal(0.0, 0.005, n))
    hull, box = area * (1.0 + rough), length * width * np.exp(rng.normal(0.0, 0.05, n))
    perimeter = np.pi * np.sqrt((length**2 + width**2) / 2.0) * (1.0 + 2.0 * rough)
    measures = [
        length,
        width,
        area,
        hull,
        perimeter,
        np.sqrt(area),
        length / width,
        np.sqrt(1.0 - (width / length) ** 2),
    ]
    measures += [area / box, area / hull, area / perimeter**2, length / area, width / area, area / length**2]
    return _beside(_binned(np.stack(measures, axis=1), 16), [kind], [kinds])


def quantities(seed: int) -> Planted:
    """12 physical quantities of a plant that three hidden states drive, 8,000 rows, 16 bins.

    Laws are curved (squares, products, exponentials), and their scatter grows with the load.
    """
    rng = np.random.default_rng([11, seed])
    n = 8_000
    load, weather, wear = rng.beta(2.0, 2.0, n), rng.normal(size=n), rng.gamma(2.0, 0.5, n)
    noise = rng.uniform(0.02, 0.1, 12) * rng.normal(size=(n, 12)) * (0.3 + load)[:, None]
    air, flow = 0.6 * weather + 0.2 * rng.normal(size=n), load * (1.0 + 0.1 * rng.normal(size=n))
    current = flow * (1.0 + 0.05 * wear)
    laws = [air, np.exp(0.6 * air), -air + 0.4 * rng.normal(size=n), flow, flow**2 * (1.0 + 0.2 * wear), current]
    laws += [current * (1.0 - 0.1 * current), np.log(0.05 + flow), air + 2.0 * current**2, wear + 0.2 * load]
    laws += [np.sin(3.0 * load), flow / (1.0 + 0.3 * np.exp(air))]
    return _binned(np.stack(laws, axis=1) + noise, 16)


def prices(seed: int) -> Planted:
    """Weight, three lengths, two proportions and the price of things, and three grades, 12,000 rows, 16 bins.

    Lengths follow from the weight, the price grows faster than it and scatters in proportion, the grades move it.
    """
    rng = np.random.default_rng([12, seed])
    n, grades = 12_000, [5, 7, 8]
    weight = np.exp(rng.normal(0.0, 0.5, n)) * rng.choice([0.5, 1.0, 2.0], n, p=[0.5, 0.35, 0.15])
    given = [rng.choice(g, n, p=rng.dirichlet(np.full(g, 3.0))) for g in grades]
    better = sum(rng.normal(0.0, 0.12, g)[codes] for g, codes in zip(grades, given, strict=True))
    flat, wide = rng.normal(0.62, 0.015, n), rng.normal(0.57, 0.02, n)
    x = np.cbrt(weight) * np.exp(rng.normal(0.0, 0.015, n))
    y, z = x * np.exp(rng.normal(0.0, 0.008, n)), flat * x * np.exp(rng.normal(0.0, 0.01, n))
    price = weight ** rng.uniform(1.4, 1.8) * np.exp(better + rng.normal(0.0, 0.12, n))
    names = [int(code) for code in rng.permutation(3)]
    return _beside(
        _binned(np.stack([weight, x, y, z, flat, wide, price], axis=1), 16),
        [given[i] for i in names],
        [grades[i] for i in names],
    )


def sparse(seed: int) -> Planted:
    """32 binary columns of which 1 to 6 in 100 rows have any, 10,000 rows: one in two comes with an earlier one."""
    rng = np.random.default_rng([13, seed])
    codes = (rng.random((10_000, 32)) < rng.uniform(0.01, 0.06, 32)).astype(np.int64)
    for column in range(1, 32, 2):
        parent = codes[:, rng.integers(0, column)] == 1
        codes[:, column] |= parent & (rng.random(len(codes)) < rng.uniform(0.3, 0.8))
    return Planted(codes, (2,) * 32)


def amounts(seed: int) -> Planted:
    """12 amounts that are zero in 50 to 95 of 100 rows, and two numbers beside them, 8,000 rows.

    How active a row is decides which are not zero, and how large those are. Zero has a code of its own.
    """
    rng = np.random.default_rng([14, seed])
    n = 8_000
    scores = _factor(rng, n, 14, loadings=(0.4, 0.8))
    sizes = np.exp(scores[:, :12] * rng.uniform(0.5, 1.2, 12) + rng.normal(0.0, 0.7, (n, 12)))
    active = scores[:, :12] > np.quantile(scores[:, :12], rng.uniform(0.5, 0.95, 12), axis=0).diagonal()
    logs = _binned(np.log(sizes), 10).codes + 1
    codes = np.hstack([np.where(active, logs, 0), _binned(scores[:, 12:], 12).codes])
    every = (11,) * 12 + (12, 12)
    return Planted(codes, every, every)


def dropouts(seed: int) -> Planted:
    """Four measures at six visits and an arm, 6,000 rows, 8 bins; after a visit of its own a row has none.

    What is missing has a code behind the bins. Who does badly leaves earlier.
    """
    rng = np.random.default_rng([15, seed])
    n, visits = 6_000, 6
    state, arm = rng.normal(size=(n, 4)), rng.integers(0, 2, n)
    seen, left = [], np.zeros(n, bool)
    for _ in range(visits):
        state = 0.8 * state + 0.15 * arm[:, None] + 0.6 * rng.normal(size=(n, 4)) * [1.0, 0.8, 0.6, 0.4]
        codes = _binned(state + 0.3 * rng.normal(size=(n, 1)), 8).codes
        seen.append(np.where(left[:, None], 8, codes))
        left |= rng.random(n) < 0.12 / (1.0 + np.exp(state[:, 0]))
    return _beside(Planted(np.hstack(seen), (9,) * 24, (8,) * 24), [arm], [2])


GENERATORS: dict[str, Callable[[int], Planted]] = {
    made.__name__: made
    for made in (
        *(binary, few, heavy, xor, wide, independent, survey, labs, panel),
        *(shapes, quantities, prices, sparse, amounts, dropouts),
    )
}


def _beside(numbers: Planted, codes: Sequence[Codes], sizes: Sequence[int]) -> Planted:
    """The table with columns that have no order behind its own."""
    ordered = (*numbers.ordered, *(0 for _ in sizes))
    return Planted(np.column_stack([numbers.codes, *codes]), (*numbers.sizes, *sizes), ordered)


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
    every = (bins,) * values.shape[1]
    return Planted(codes, every, every)


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
