"""From noisy marginals to marginals that agree with each other and are non-negative.

Zhang et al. 2021 (PrivSyn), section 4.2: average what marginals share by precision, take the negative cells out, repeat.

What is optimal. Under independent noise of one sigma per marginal, `agree` is the generalised least squares estimate
under the linear constraints (equal projections on shared attributes, a known total), in one pass and in closed form:
the noise of a marginal splits into independent parts, one for each subset of its attributes (its main effects,
interactions), and marginals meet only in the parts of shared subsets. Averaging the projections subset by subset, from
small to large, averages exactly these parts, with weights 1 / (sigma^2 * summed cells). `norm_sub` is the Euclidean
projection onto {x >= 0, sum = total}. Both are projections in the same norm (squares over sigma^2), so Dykstra's
alternation converges to THE least squares estimate under all constraints together.

What is a heuristic. Marginals that agree pairwise need not be those of any table (a larger set than PGM's polytope);
least squares ignores that a count's error after clipping is no longer symmetric; the alternation is stopped early.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from fedsyn.domain import Clique, Domain
from fedsyn.inference.measurements import Measurement, least_variance_total, merge
from fedsyn.inference.model import from_rank_order
from fedsyn.inference.triangulation import axes_of

Tables = dict[Clique, np.ndarray]


def consistent(
    domain: Domain,
    measurements: Sequence[Measurement],
    *,
    total: float | None = None,
    iterations: int = 50,
    tolerance: float = 1e-3,
) -> Tables:
    """Non-negative marginals that (nearly) agree, by least squares: `agree` and `norm_sub` in Dykstra's alternation.

    Args:
        domain: all attributes.
        measurements: noisy marginals in counts, each with its own sigma; repeated and permuted cliques are merged.
        total: public number of records; None for the least-variance estimate from the measurements, at least 1.
        iterations: at most this many alternations.
        tolerance: stop when making the marginals agree would move no more than this share of the records in any of
            them.

    Returns:
        For each measured clique but (), in domain order, a float64 array of shape `domain.shape_of(clique)`:
        non-negative and summing to `total` exactly (to rounding), equal to the others on shared attributes within
        the tolerance.

    Raises:
        ValueError: a malformed measurement, or a total that is negative or not finite.
    """
    axes = axes_of(domain)
    merged = merge(axes, measurements)
    if total is None:
        total = least_variance_total(merged)
    if not (math.isfinite(total) and total >= 0):
        raise ValueError("the total must be finite and not negative")
    cliques = {m.mask: axes.clique(m.mask) for m in merged if m.mask}
    tables = {
        cliques[m.mask]: from_rank_order(domain, cliques[m.mask], m.values).copy(order="C") for m in merged if m.mask
    }
    shared = Shared(tables, {cliques[m.mask]: m.sigma for m in merged if m.mask})
    removed = {clique: np.zeros_like(table) for clique, table in tables.items()}
    thresholds = dict.fromkeys(tables, 0.0)
    for done in range(iterations + 1):
        before = {clique: table.copy() for clique, table in tables.items()}
        shared.agree(tables, total)
        if done and max(_moved(before[q], tables[q]) for q in tables) <= tolerance * total:
            return before
        for clique, table in tables.items():
            table += removed[clique]
            clipped, thresholds[clique] = _project(table.ravel(), total, thresholds[clique])
            clipped = clipped.reshape(table.shape)
            removed[clique] = table - clipped
            tables[clique] = clipped
    return tables


def _moved(a: np.ndarray, b: np.ndarray) -> float:
    return 0.5 * float(np.abs(a - b).sum())


class Shared:
    """What marginals share: the subsets of attributes that at least two of them contain, and the weights there.

    Args:
        tables: marginals by clique (their shapes are used).
        sigmas: standard deviation of the noise in a cell of each.
    """

    def __init__(self, tables: Mapping[Clique, np.ndarray], sigmas: Mapping[Clique, float]) -> None:
        holders: dict[frozenset[str], list[Clique]] = {}
        for clique in tables:
            for size in range(1, len(clique) + 1):
                for names in combinations(clique, size):
                    holders.setdefault(frozenset(names), []).append(clique)
        least = min(sigmas.values(), default=1.0)
        # One entry for each subset: (clique, axes summed out, cells summed, weight of its projection).
        self._steps: list[list[tuple[Clique, tuple[int, ...], int, float]]] = []
        for names in sorted(holders, key=lambda s: (len(s), sorted(s))):
            if len(holders[names]) < 2:
                continue
            step = []
            for clique in holders[names]:
                out = tuple(axis for axis, name in enumerate(clique) if name not in names)
                cells = math.prod(tables[clique].shape[axis] for axis in out)
                step.append((clique, out, cells, (least / sigmas[clique]) ** 2 / cells))
            scale = math.fsum(weight for *_, weight in step)
            self._steps.append([(clique, out, cells, weight / scale) for clique, out, cells, weight in step])

    def agree(self, tables: Tables, total: float) -> None:
        """Makes the marginals agree on every shared subset and sum to `total`, in place; cells may be negative.

        Each subset's projections are replaced by their precision-weighted average; what a marginal must change is
        spread evenly over the cells that were summed. From small subsets to large ones: a later step keeps what the
        earlier ones made equal, because its average has the same projections on smaller subsets as each of its terms.
        """
        for table in tables.values():
            table += (total - table.sum()) / table.size
        for step in self._steps:
            sums = [tables[clique].sum(axis=out, keepdims=True) for clique, out, _, _ in step]
            flat = [s.reshape(tables[step[0][0]].sum(axis=step[0][1]).shape) for s in sums]
            mean = sum((weight * s for (*_, weight), s in zip(step, flat, strict=True)), np.zeros(()))
            for (clique, _, cells, _), s in zip(step, sums, strict=True):
                tables[clique] += (mean.reshape(s.shape) - s) / cells


def norm_sub(values: np.ndarray, total: float) -> np.ndarray:
    """The nearest array (in L2) that is non-negative and sums to `total` >= 0.

    It subtracts one number from every cell and clips at 0 ("norm-sub", Zhang et al. 2021, section 4.2). Integer or
    float values of any shape; float64 result. An array that is valid already comes back unchanged up to rounding.
    """
    flat = np.asarray(values, dtype=np.float64).ravel()
    return _project(flat, total, 0.0)[0].reshape(np.shape(values))


def _project(flat: np.ndarray, total: float, threshold: float) -> tuple[np.ndarray, float]:
    """`norm_sub` of a flat array, and the number that it subtracted; `threshold` is a guess of that number.

    Newton's method on f(t) = sum(max(x - t, 0)) - total, which is convex, decreasing and piecewise linear: from the
    second step on t rises to the root, which is reached exactly after finitely many steps.
    """
    if total <= 0:
        return np.zeros_like(flat), float(flat.max(initial=0.0))
    active = flat > threshold
    if not active.any():
        active = np.ones(flat.size, dtype=bool)
    count = -1
    for _ in range(200):
        found = int(np.count_nonzero(active))
        if found == count:
            break
        count = found
        threshold = (float(flat[active].sum()) - total) / count
        active = flat > threshold
    out = np.maximum(flat - threshold, 0.0)
    # Sums over many cells leave a rounding error in the total; it goes back proportionally.
    return out * (total / out.sum()), threshold
