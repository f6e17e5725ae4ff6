"""AIM's scores of candidates, and the annealing of its budget.

A score is the distance of a marginal from the model's, less what the noise of measuring it is expected to cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import Literal

import numpy as np

from fedsyn.domain import Clique, Codes, Domain, Floats, Integers
from fedsyn.inference import Model
from fedsyn.privacy import epsilon_for_rho, exponential_rho, gaussian_rho, sigma_for_rho
from fedsyn.selection.views import (
    ModelView,
    Part,
    flat_cells,
    flat_counts,
    flat_layout,
    formed_together,
    touched_distances,
)
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.workload import Candidates

Penalty = Literal["cells", "effective"]

# Up to so many rows, array calls cost more than what they compute, and all cliques are done in one set of them.
_FEW_ROWS = 512
# From so many cliques on they are compared together, as long as all are formed at once.
_MANY = 256
# In records; see `expected_noise`.
_LARGEST_PENALTY = 2.0**32


def l1_distances(codes: Codes, domain: Domain, cliques: Sequence[Clique], view: ModelView, size: float) -> Floats:
    """Returns ||M_q(D_k) - size * p_q||_1 for each clique q, in records.

    Only the cells that the rows touch are read: the model's mass elsewhere is one minus what was touched. `size` is a
    public or already released number, so one row changes each distance by at most 1.

    Args:
        codes: (n, d) a client's rows.
        domain: its domain.
        cliques: m cliques.
        view: the current model (or, for an oracle, the pooled table).
        size: row count to scale the model to.

    Returns:
        (m,) float64.
    """
    # Many marginals of many rows: one flat vector for all of them.
    if len(cliques) >= _MANY and len(codes) > _FEW_ROWS:
        layout = flat_layout(domain, cliques)
        if int(layout.sizes.max()) <= 4 * len(codes) and layout.bounds[-1] <= view.at_once:
            differences = flat_counts(codes, layout) - size * view.flat(layout)
            return layout.sums(np.abs(differences, out=differences))
    parts = formed_together(domain, tuple(cliques), view.at_once)
    return np.concatenate([np.empty(0), *(_distances(codes, domain, part, view, size) for part in parts)])


def _distances(codes: Codes, domain: Domain, part: Part, view: ModelView, size: float) -> Floats:
    """Returns the `l1_distances` of cliques that are formed together."""
    cliques, small = part.cliques, part.small
    # Few rows touch few cells; otherwise small marginals are counted densely.
    distances = np.empty(len(cliques))
    marginals = dict(zip(small, view.probabilities([cliques[i] for i in small]), strict=True))
    if len(codes) <= _FEW_ROWS:
        distances[small] = touched_distances(codes, domain, [cliques[i] for i in small], list(marginals.values()), size)
        dense, single = [], sorted(set(range(len(cliques))) - set(small))
    else:
        dense = [i for i in small if domain.size(cliques[i]) <= 4 * len(codes)]
        single = sorted(set(range(len(cliques))) - set(dense))
    # Dense marginals, cell by cell.
    for i, counts in zip(dense, count(codes, domain, [cliques[i] for i in dense]), strict=True):
        distances[i] = np.abs(counts.ravel() - size * marginals[i]).sum()
    # All others at the cells that the rows touch.
    columns: dict[str, Integers] = {}
    for i in single:
        flat = flat_cells(codes, domain, cliques[i], columns)
        cells, counts = np.unique(flat, return_counts=True)
        if i in marginals:
            touched = marginals[i][cells]
        else:
            shape = domain.shape_of(cliques[i])
            touched = view.probability_at(cliques[i], np.stack(np.unravel_index(cells, shape), axis=1))
        outside = max(0.0, 1.0 - float(touched.sum()))
        distances[i] = np.abs(counts - size * touched).sum() + size * outside
    return distances


def expected_noise(sigma: float, cells: Floats) -> Floats:
    """Returns AIM's penalty, the noise's expected L1 norm in records.

    It is sqrt(2/pi) * sigma * n_q for Gaussian noise on a marginal, but at most 2^32 records: a hostile server names
    sigma, and subtracting 1e18 would round a distance to multiples of 128, so that one row could move a score by 128
    times what it is charged.
    """
    return np.minimum(sqrt(2.0 / pi) * sigma * cells, _LARGEST_PENALTY)


def contained_in(cliques: Iterable[Clique]) -> Callable[[Clique], bool]:
    """Returns a test: does a clique lie inside one of these?"""
    holding: dict[str, list[frozenset[str]]] = {}
    for clique in cliques:
        for name in clique:
            holding.setdefault(name, []).append(frozenset(clique))
    return lambda clique: any(other.issuperset(clique) for other in holding.get(clique[0], ()))


def penalised_cells(penalty: Penalty, candidates: Candidates, which: Sequence[int], view: ModelView) -> Floats:
    """Returns the cells that `expected_noise` charges for, (m,).

    They are all cells of a marginal, or the effective ones in the current model. Both depend on public and released
    values only, so neither moves a score's sensitivity.
    """
    if penalty == "cells":
        return candidates.cells[list(which)]
    return view.effective_cells([candidates.cliques[i] for i in which])


# Annealing ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scales:
    """The noise of one round.

    Attributes:
        sigma: standard deviation of every Gaussian release, in records.
        epsilon: parameter of every exponential mechanism.
        gaussians: number of Gaussian releases in it that one row takes part in.
        choices: number of exponential mechanisms in it that one row takes part in.
    """

    sigma: float
    epsilon: float
    gaussians: int
    choices: int


def annealed(scales: Scales, settled: bool, left: float, measure_fraction: float) -> tuple[Scales, bool]:
    """Returns the next round's scales, and whether that round is the last.

    Lines 17-18: a settled round halves sigma and doubles epsilon. Lines 19-20: if what is left would not pay for two
    rounds, one last round spends all of it. The scales depend on released values only; that their sum stays within the
    budget is the ledger's business, which refuses a round that it does not.

    Args:
        scales: those of the last round; `gaussians` and `choices` say how many releases of each kind one row takes part
            in per round.
        settled: whether the last round changed the model by less than its noise (see `is_settled`).
        left: zCDP budget that is left.
        measure_fraction: share of the last round's budget for Gaussian noise.
    """
    g, c = scales.gaussians, scales.choices
    sigma, epsilon = scales.sigma, scales.epsilon
    if settled:
        sigma, epsilon = sigma / 2.0, epsilon * 2.0
    cost = g * gaussian_rho(sigma) + c * exponential_rho(epsilon)
    if left > 2.0 * cost:
        return Scales(sigma, epsilon, g, c), False
    return Scales(
        sigma_for_rho(measure_fraction * left / g), epsilon_for_rho((1.0 - measure_fraction) * left / c), g, c
    ), True


def is_settled(before: Model, after: Model, cliques: Sequence[Clique], sigmas: Sequence[float]) -> bool:
    """Returns whether a round moved the model by less than its noise.

    The model has settled if a measured marginal of it moved by no more than the expected norm of its noise (line 17).
    With several marginals in a round one of them is enough (appendix B.4).

    Args:
        before: the model before the round.
        after: the model after it.
        cliques: the round's chosen cliques.
        sigmas: noise of each measurement, in records of the model's total.
    """
    pairs = zip(before.project_many(cliques), after.project_many(cliques), sigmas, strict=True)
    return any(np.abs(new - old).sum() <= sqrt(2.0 / pi) * sigma * old.size for old, new, sigma in pairs)
