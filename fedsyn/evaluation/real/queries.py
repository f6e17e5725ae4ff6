"""Random range queries: the share of rows inside a random box, on held-out real rows and on synthetic ones.

Source: Li et al. 2026 (HeteroFedSyn), Eq. 5, measured as the published code and Du & Li 2024 (SynMeter) do it:

- 1,000 queries over two (or three) different attributes, every set of attributes equally likely;
- on a numeric attribute the range from lo ~ U(lower, upper) to hi ~ U(lo, upper) of the public bounds; on a
  categorical one a single value, every value equally likely; the label is an attribute like the others;
- the real side is the held-out rows, so that a mechanism which repeats its training rows gains nothing, with their
  numbers as they were before binning; the synthetic side is a sample of as many rows, each number the middle of its
  bin. Even the training rows themselves therefore have an error above 0, from sampling and from the bins.

One departure: the queries come from a fixed seed and the schema alone, so that every run of a table answers the same
ones (the published code draws others each time). A missing number lies in no range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedsyn.domain import Domain
from fedsyn.evaluation.base import ColumnRange, EvaluationInput, sample_rows
from fedsyn.evaluation.federated.boxes import rows_inside

QUERIES = 1_000
QUERY_SEED = 20_260  # public: the same queries for every run of a table
_SAMPLE_SEED = 20_261


@dataclass(frozen=True, eq=False)
class RangeQueries:
    """Boxes of positions (see `EvaluationInput.positions`): Q queries over k attributes each.

    Attributes:
        axes: (Q, k) int64 column indices, different within a query.
        low, high: (Q, k) float64 bounds, both included.
    """

    axes: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def answers(self, positions: np.ndarray) -> np.ndarray:
        """(Q,) float64 share of the rows of (n, d) positions inside each box; 0 for a table without rows."""
        return rows_inside(positions, self.axes, self.low, self.high) / max(1, len(positions))


def random_queries(
    domain: Domain, ranges: Mapping[str, ColumnRange], ways: int, number: int, rng: np.random.Generator
) -> RangeQueries:
    """That many random boxes over `ways` different attributes; see the module's text for their distribution.

    Raises:
        ValueError: the domain has fewer attributes.
    """
    if not 1 <= ways <= len(domain):
        raise ValueError(f"a query over {ways} attributes of a domain that has {len(domain)}")
    axes = np.argsort(rng.random((number, len(domain))), axis=1)[:, :ways]
    first, second = rng.random((2, number, ways))
    low = np.floor(first * np.array(domain.shape)[axes])
    high = low.copy()
    for name, column in ranges.items():
        chosen = axes == domain.axes((name,))[0]
        low[chosen] = column.lower + first[chosen] * (column.upper - column.lower)
        high[chosen] = low[chosen] + second[chosen] * (column.upper - low[chosen])
    return RangeQueries(axes, low, high)


def range_query_error(data: EvaluationInput, ways: int = 2) -> float:
    """Mean over 1,000 random queries of |share of held-out rows - share of synthetic rows|, between 0 and 1.

    A synthetic table without rows answers 0 to every query.
    """
    assert data.test is not None and data.synthetic is not None
    queries = random_queries(data.domain, data.ranges, ways, QUERIES, np.random.default_rng([QUERY_SEED, ways]))
    synthetic = sample_rows(data.synthetic, data.test.shape[0], np.random.default_rng(_SAMPLE_SEED))
    real = queries.answers(data.test_positions())
    return float(np.abs(real - queries.answers(data.positions(synthetic))).mean())
