"""Where samples come from: populations of eight columns whose every quantity is known.

A population is a distribution over cells of eight coded columns. Samples are drawn from it with replacement, so its
quantities are what an interval has to cover; Adult's population is the distribution of its 48,842 rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Domain

Floats = npt.NDArray[np.float64]

#: Of Adult, in 16 bins where they are numeric.
ADULT = ("age", "workclass", "education-num", "marital-status", "occupation", "sex", "hours-per-week", "income")
_BINS = 16


@dataclass(frozen=True, eq=False)
class Population:
    """Distinct rows with their probabilities.

    Attributes:
        name: of it.
        domain: eight attributes.
        rows: (cells, 8) codes, each row once.
        weights: (cells,) probabilities.
        values: attribute -> (size,) the number that stands for each code: the middle of a bin, 0 and 1 of two values.
    """

    name: str
    domain: Domain
    rows: npt.NDArray[np.uint8]
    weights: Floats
    values: dict[str, Floats]

    def sample(self, n: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
        """(n, 8) codes, drawn independently."""
        return self.rows[rng.choice(len(self.rows), n, p=self.weights)]

    def joint(self, clique: tuple[str, ...]) -> Floats:
        """Probabilities of a clique's cells."""
        return counts(self.rows, self.domain, clique, self.weights)


def counts(
    codes: npt.NDArray[np.integer], domain: Domain, clique: tuple[str, ...], weights: Floats | None = None
) -> Floats:
    """Marginal of some rows over a clique, of shape `domain.shape_of(clique)`."""
    shape = domain.shape_of(clique)
    index = np.ravel_multi_index([codes[:, domain.attributes.index(name)].astype(np.intp) for name in clique], shape)
    return np.bincount(index, weights, int(np.prod(shape))).astype(np.float64).reshape(shape)


@cache
def adult() -> Population:
    """Adult in the bins of its schema."""
    from fedsyn.table.data import load_dataset

    dataset = load_dataset("adult", bins=_BINS)
    whole, schema = dataset.schema.domain, dataset.schema
    at = [whole.attributes.index(name) for name in ADULT]
    domain = Domain(ADULT, tuple(whole.shape[i] for i in at))
    rows, number = np.unique(dataset.encode()[:, at].astype(np.uint8), axis=0, return_counts=True)
    values = {}
    for name in ADULT:
        column = schema.columns[name]
        if column.kind == "numeric":
            edges = np.linspace(column.lower, column.upper, column.bins + 1)
            values[name] = (edges[1:] + edges[:-1]) / 2
        else:
            values[name] = np.arange(domain[name], dtype=np.float64)
    # Married or not: a term of two values.
    return Population("adult", domain, rows, number / number.sum(), values)


@cache
def generated() -> Population:
    """A pairwise model with eleven associations of various strengths among eight columns: 49,152 cells."""
    names = ("age", "sex", "ward", "severity", "smoker", "region", "readmitted", "days")
    sizes = (8, 2, 3, 8, 2, 4, 2, 8)
    domain, rng = Domain(names, sizes), np.random.default_rng(17)
    grids = np.meshgrid(*(np.linspace(-1, 1, size) for size in sizes), indexing="ij")
    x = dict(zip(names, grids, strict=True))
    strength = {
        ("age", "severity"): 1.0,
        ("age", "readmitted"): 0.6,
        ("age", "smoker"): -0.4,
        ("severity", "readmitted"): 0.7,
        ("severity", "days"): 1.2,
        ("ward", "severity"): 0.5,
        ("ward", "days"): -0.5,
        ("sex", "smoker"): 0.4,
        ("smoker", "days"): 0.3,
        ("sex", "readmitted"): -0.3,
        ("age", "days"): 0.5,
    }
    log = sum(weight * x[a] * x[b] for (a, b), weight in strength.items())
    for axis, size in enumerate(sizes):
        own = rng.normal(0, 0.4, size)
        log = log + own.reshape([-1 if i == axis else 1 for i in range(len(sizes))])
    weights = np.exp(log).ravel()
    rows = np.indices(sizes).reshape(len(sizes), -1).T.astype(np.uint8)
    values = {name: np.arange(size, dtype=np.float64) for name, size in zip(names, sizes, strict=True)}
    return Population("generated", domain, np.ascontiguousarray(rows), weights / weights.sum(), values)


POPULATIONS = {"adult": adult, "generated": generated}
