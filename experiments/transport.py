"""Wasserstein distance between the two-way marginals of held-out real rows and of the synthetic table.

Source: Li et al. 2026 (HeteroFedSyn), Eq. 6, measured as Du & Li 2024 (SynMeter) do it: exact optimal transport with
POT between at most 3,000 held-out rows and as many synthetic ones (both samples of a fixed seed). Moving a row costs
the sum over the two attributes of

- numeric: |difference| after scaling the values of both samples together to [0, 1]; a missing value is 1 away from
  every number;
- categorical: 0 for the same category, 1 for another.

The published figures of HeteroFedSyn are means over the pairs of two numeric attributes only: `wasserstein_numeric`.
`wasserstein` is the mean over all pairs (above 1,000 pairs: over a sample of 1,000, of a fixed seed). Held-out rows
have their numbers as they were before binning, a synthetic row the middle of its bin, as there. The cost is a metric,
so mass that both sides have at a point stays there and only the difference of the two is transported: the same distance
from a far smaller problem. Every distance lies between 0 and 2, and that of two samples of one distribution above 0.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from fedsyn.errors import RunError
from fedsyn.evaluation.inputs import EvaluationInput, sample_rows

MOST_ROWS = 3_000
MOST_PAIRS = 1_000
_SAMPLE_SEED = 20_262
_PAIR_SEED = 20_263
_ITERATIONS = 10_000_000  # of the network simplex; hard problems of 3,000 rows a side need some 100,000


def wasserstein(data: EvaluationInput) -> float:
    """Mean Wasserstein distance over the two-way marginals, between 0 and 2; 2 for a synthetic table without rows."""
    return _mean_distance(data, range(len(data.domain)))


def wasserstein_numeric(data: EvaluationInput) -> float:
    """The same mean over pairs of numeric attributes only, to compare with the figures of the paper."""
    return _mean_distance(data, [axis for axis, name in enumerate(data.domain) if name in data.ranges])


def pair_distance(real: np.ndarray, synthetic: np.ndarray, numeric: tuple[bool, bool]) -> float:
    """Wasserstein distance between the distributions of two tables of two columns, neither without rows.

    Args:
        real: (n, 2) float64 positions (see `EvaluationInput.positions`).
        synthetic: (m, 2) float64 positions.
        numeric: which of the columns are numeric.

    Raises:
        RunError: the transport did not converge.
    """
    n, m = real.shape[0], synthetic.shape[0]
    points, inverse = np.unique(np.concatenate([real, synthetic]), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    # Integers: n m times the difference of the two distributions, without rounding.
    surplus = m * np.bincount(inverse[:n], minlength=len(points)) - n * np.bincount(inverse[n:], minlength=len(points))
    source, target = surplus > 0, surplus < 0
    moved = int(surplus[source].sum())
    if moved == 0:
        return 0.0
    cost = np.zeros((int(source.sum()), int(target.sum())))
    for at, is_numeric in zip(points.T, numeric, strict=True):
        cost += _distances(_unit(at), source, target) if is_numeric else at[source][:, None] != at[target]
    return float(_transport(surplus[source] / moved, -surplus[target] / moved, cost) * moved / (n * m))


def _unit(at: np.ndarray) -> np.ndarray:
    """Numbers scaled to [0, 1]; missing ones stay -inf."""
    known = at[np.isfinite(at)]
    spread = np.ptp(known) if known.size else 0.0
    return (at - known.min()) / spread if spread > 0 else np.where(np.isfinite(at), 0.0, at)


def _distances(at: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(sources, targets) float64 |difference|; 1 between a missing value and a number."""
    missing = ~np.isfinite(at)
    distances = np.abs(np.where(missing, 0.0, at)[source][:, None] - np.where(missing, 0.0, at)[target])
    either = missing[source][:, None] | missing[target]
    costs: np.ndarray = np.where(either, missing[source][:, None] != missing[target], distances)
    return costs


def _transport(masses: np.ndarray, demands: np.ndarray, cost: np.ndarray) -> float:
    """The cost of the cheapest plan; masses and demands sum to 1."""
    import ot

    # POT's network simplex is up to 25 times faster with the larger side first (measured; the cost is the same).
    if len(masses) < len(demands):
        masses, demands, cost = demands, masses, np.ascontiguousarray(cost.T)
    value, log = ot.emd2(masses, demands, cost, numItermax=_ITERATIONS, log=True)
    if log["warning"] is not None:
        raise RunError(f"evaluation: the transport of a Wasserstein distance failed: {log['warning']}")
    return float(value)


def _mean_distance(data: EvaluationInput, axes: range | list[int]) -> float:
    """Mean over pairs of columns; each distance is computed once per evaluation."""
    assert data.test is not None and data.synthetic is not None
    if data.synthetic.shape[0] == 0:
        return 2.0
    rng = np.random.default_rng(_SAMPLE_SEED)
    real = sample_rows(data.test_positions(), MOST_ROWS, rng)
    synthetic = data.positions(sample_rows(data.synthetic, real.shape[0], rng))
    numeric = [name in data.ranges for name in data.domain]
    known: dict[tuple[int, int], float] = data.cache.setdefault("wasserstein", {})
    pairs = list(combinations(axes, 2))
    if len(pairs) > MOST_PAIRS:
        chosen = np.random.default_rng(_PAIR_SEED).choice(len(pairs), MOST_PAIRS, replace=False)
        pairs = [pairs[i] for i in np.sort(chosen)]
    for a, b in pairs:
        if (a, b) not in known:
            known[a, b] = pair_distance(real[:, (a, b)], synthetic[:, (a, b)], (numeric[a], numeric[b]))
    return float(np.mean([known[pair] for pair in pairs]))
