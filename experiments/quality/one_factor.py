"""Generated tables where many columns share one factor: surveys, lab panels, wide tables.

A generator takes a seed and gives codes and sizes, as those of `experiments/held_out/planted.py` do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from experiments.held_out import held_tables
from experiments.held_out.planted import Planted

Floats = npt.NDArray[np.float64]
#: Places of the alphabet: agree, disagree, neither, strongly agree, strongly disagree.
_LISTED = np.array([4, 1, 2, 0, 3])


def likert(seed: int) -> Planted:
    """3,000 answers to 10 items of one factor, in the order of agreement, and 4 columns that know a little of it."""
    return _survey(np.random.default_rng([7, seed]), None)


def listed(seed: int) -> Planted:
    """The same, with the five answers in the order of the alphabet."""
    return _survey(np.random.default_rng([8, seed]), _LISTED)


def labs(seed: int) -> Planted:
    """5,000 rows of 20 measurements in 8 bins of equal width, skewed, most of them of one factor."""
    rng = np.random.default_rng([9, seed])
    load = np.where(rng.random(20) < 0.75, rng.uniform(0.6, 0.9, 20), rng.uniform(0.0, 0.3, 20))
    values = np.exp(rng.uniform(0.2, 0.8, 20) * _scores(rng, 5_000, load))
    tops = np.quantile(values, 0.995, axis=0)
    return Planted(np.minimum(values / tops * 8, 7).astype(np.int64), (8,) * 20)


def panel(seed: int) -> Planted:
    """4,000 rows of 40 columns of 2 to 6 values, half of them of one factor."""
    rng = np.random.default_rng([10, seed])
    load = np.where(rng.random(40) < 0.5, rng.uniform(0.5, 0.8, 40), 0.0)
    sizes = rng.integers(2, 7, 40)
    return Planted(_cut(rng, _scores(rng, 4_000, load), sizes), tuple(map(int, sizes)))


GENERATORS: dict[str, Callable[[int], Planted]] = {made.__name__: made for made in (likert, listed, labs, panel)}


def _survey(rng: np.random.Generator, places: npt.NDArray[np.int64] | None) -> Planted:
    load = np.concatenate([rng.uniform(0.65, 0.85, 10), rng.uniform(0.0, 0.3, 4)])
    sizes = np.array([5] * 10 + [2, 3, 6, 6])
    codes = _cut(rng, _scores(rng, 3_000, load), sizes)
    if places is not None:
        codes[:, :10] = places[codes[:, :10]]
    return Planted(codes, tuple(map(int, sizes)))


def _scores(rng: np.random.Generator, rows: int, load: Floats) -> Floats:
    """(rows, columns) standard normal, with a correlation of load_i load_j."""
    factor = rng.standard_normal((rows, 1))
    return np.asarray(load * factor + np.sqrt(1 - load**2) * rng.standard_normal((rows, len(load))))


def _cut(rng: np.random.Generator, scores: Floats, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Codes of scores that are cut where Dirichlet shares of each column's values end."""
    found = np.empty(scores.shape, np.int64)
    for column, size in enumerate(sizes):
        ends = norm.ppf(np.cumsum(rng.dirichlet(np.full(size, 4.0)))[:-1])
        found[:, column] = np.searchsorted(ends, scores[:, column])
    return found


def added() -> None:
    """Put these tables beside those of `held_out`, each on the side that its name decides."""
    from experiments.held_out import planted

    for kind in GENERATORS.keys() - planted.GENERATORS.keys():
        planted.GENERATORS[kind] = GENERATORS[kind]
    known = {table.name for table in held_tables.TABLES.values()}
    held_tables.TABLES.update({table.name: table for table in held_tables._planted() if table.name not in known})
