"""Computes metrics of marginals, range queries and likelihood.

Range queries are answered as the published code of HeteroFedSyn (Li et al. 2026) does it: the real side is the held-out
rows, so that a mechanism which repeats its training rows gains nothing, with their numbers as they were before binning;
the synthetic side is a sample of as many rows, each number the middle of its bin. Even the training rows themselves
therefore have an error above 0, from sampling and from the bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedsyn.domain import Clique, Domain
from fedsyn.evaluation.boxes import QUERIES, QUERY_SEED, random_queries
from fedsyn.evaluation.inputs import EvaluatedModel, EvaluationInput, sample_rows
from fedsyn.table.counting.marginals import count, groups_within
from fedsyn.table.counting.workload import Workload, random_kway

# Dense marginals that are held at the same time; 4 million cells are 32 MB.
_CELLS_AT_ONCE = 1 << 22
# Bytes of counts that are kept for the next model: as many as one block of marginals has.
_MOST_KEPT = 8 * _CELLS_AT_ONCE
#: Of `EvaluationInput.cache`: cliques -> the training table's marginals, where memory holds all of a workload's.
COUNTED = "counted"
# A larger clique is compared on the cells that rows touch.
_LARGEST_DENSE = 1 << 24
_SAMPLE_SEED = 20_261  # of the synthetic rows that answer range queries
# Pairs that `kway_error` compares at most.
_COMMON = {2: 1000}


def workload_error(data: EvaluationInput) -> float:
    """Returns the workload error, between 0 and 2.

    Weighted mean over the workload of ||M_q(D)/n - M_q(model)/total||_1.

    D is the pooled training table. Without a model the synthetic table takes its place. An empty table counts
    as a marginal of zeros, so its error is 1.

    Source: Maddock et al. 2024, appendix B.3, "Average Workload Error".
    """
    if data.model is not None:
        errors = _model_errors(data, data.model)
    else:
        assert data.synthetic is not None, "workload errors need a model or a synthetic table"
        errors = _table_errors(data.train, data.synthetic, data.domain, data.workload.cliques)
    return float(np.average(errors, weights=np.array(data.workload.weights)))


def kway_error(data: EvaluationInput, ways: int) -> float:
    """Returns the error over all marginals of `ways` attributes.

    It is between 0 and 2, as `workload_error` is.

    All of them where there are at most `_COMMON` (1,000 pairs, 64 larger ones), else as many drawn with a fixed seed:
    every run of a table is measured on the same ones.
    """
    workload = random_kway(data.domain, ways, _COMMON.get(ways, 64), np.random.default_rng(1))
    return workload_error(replace(data, workload=workload, cache={}))


def negative_log_likelihood(data: EvaluationInput) -> float:
    """Returns the mean of -log p(row) over the held-out rows.

    The logarithm is natural. The mean is infinite where the model excludes a row.

    Source: Maddock et al. 2024, appendix B.3.
    """
    assert data.model is not None and data.test is not None
    return float(-np.mean(data.model.log_likelihood(data.test)))


def heterogeneity(data: EvaluationInput) -> float:
    """Unweighted mean of `client_heterogeneity` over the clients, between 0 and 2.

    Table 5 of Maddock et al. 2024 prints total variation distances, half of this, over all 1-, 2- and 3-way
    marginals.
    """
    assert data.partition is not None
    return float(np.mean(client_heterogeneity(data.train, data.domain, data.workload, data.partition)))


def client_heterogeneity(
    codes: np.ndarray, domain: Domain, workload: Workload, parts: Sequence[np.ndarray | range]
) -> np.ndarray:
    """Returns how far each client's table is from the pooled one.

    Distances are workload means of tau_k(q).

    tau_k(q) = ||M_q(D_k)/n_k - M_q(D)/n||_1 (Maddock et al. 2024, Section 4.1). Outside the cells that the
    client's rows touch, the distance is the mass that D has there, so only touched cells are visited: the
    cost grows with rows times cliques and neither with clients nor with cells.

    Args:
        codes: (n, d) codes of the pooled table.
        domain: its attributes.
        workload: weighted cliques.
        parts: row indices of each client; one without rows has no table to compare, and is left out.

    Returns:
        (clients with rows,) float64, in the order of `parts`, between 0 and 2.
    """
    parts = [part for part in parts if len(part)]
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    rows = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
    client = np.repeat(np.arange(len(parts)), sizes)
    ordered = codes[rows]
    total = np.zeros(len(parts))
    for clique, weight in zip(workload.cliques, workload.weights, strict=True):
        _, cell, pooled = np.unique(_cell_ids(ordered, domain, clique), return_inverse=True, return_counts=True)
        key = np.sort(client * pooled.size + cell)
        first = np.flatnonzero(np.diff(key, prepend=-1))
        owner, touched = np.divmod(key[first], pooled.size)
        p = pooled[touched] / rows.size
        p_client = np.diff(first, append=key.size) / sizes[owner]
        # Each client starts from the mass that it does not touch: 1 minus what it does.
        tau = 1.0 + np.bincount(owner, np.abs(p_client - p) - p, minlength=len(parts))
        total += weight * tau
    # Rounding can leave a difference of two equal tables slightly below 0.
    return np.clip(total / math.fsum(workload.weights), 0.0, 2.0)


def range_query_error(data: EvaluationInput, ways: int = 2) -> float:
    """Returns the mean error over 1,000 random range queries, 0 to 1.

    |share of held-out rows - share of synthetic rows|.

    A synthetic table without rows answers 0 to every query.
    """
    assert data.test is not None and data.synthetic is not None
    queries = random_queries(data.domain, data.ranges, ways, QUERIES, np.random.default_rng([QUERY_SEED, ways]))
    synthetic = sample_rows(data.synthetic, data.test.shape[0], np.random.default_rng(_SAMPLE_SEED))
    real = queries.answers(data.test_positions())
    return float(np.abs(real - queries.answers(data.positions(synthetic))).mean())


def _model_errors(data: EvaluationInput, model: EvaluatedModel) -> np.ndarray:
    """(Q,) L1 distances, in blocks of cliques that fit in memory together."""
    codes, domain, cliques = data.train, data.domain, data.workload.cliques
    errors, sizes = np.empty(len(cliques)), [domain.size(clique) for clique in cliques]
    for index in (i for i, cells in enumerate(sizes) if cells > _LARGEST_DENSE):
        errors[index] = _touched_error(codes, domain, cliques[index], model)
    dense = [i for i, cells in enumerate(sizes) if cells <= _LARGEST_DENSE]
    known, narrow = data.cache.setdefault(COUNTED, {}), np.min_scalar_type(len(codes))
    few = sum(sizes[i] for i in dense) * narrow.itemsize <= _MOST_KEPT
    for block in groups_within(_CELLS_AT_ONCE, dense, sizes.__getitem__):
        some = tuple(cliques[i] for i in block)
        real = known.get(some) or count(codes, domain, some)
        if few and some not in known:
            known[some] = [counts.astype(narrow) for counts in real]
        pairs = zip(real, model.project_many(some), strict=True)
        errors[block] = [_distance(counted, modelled) for counted, modelled in pairs]
    return errors


def _touched_error(codes: np.ndarray, domain: Domain, clique: Clique, model: EvaluatedModel) -> float:
    """Returns the L1 distance from the cells that the table touches.

    The other cells add the model's remaining mass.
    """
    _, first, counts = np.unique(_cell_ids(codes, domain, clique), return_index=True, return_counts=True)
    p = model.probability_at(clique, codes[first][:, domain.axes(clique)])
    return float(np.abs(counts / max(codes.shape[0], 1) - p).sum() + max(1.0 - p.sum(), 0.0))


def _table_errors(real: np.ndarray, synthetic: np.ndarray, domain: Domain, cliques: Sequence[Clique]) -> np.ndarray:
    errors = np.empty(len(cliques))
    both = np.concatenate([real, synthetic])
    for index, clique in enumerate(cliques):
        _, cell = np.unique(_cell_ids(both, domain, clique), return_inverse=True)
        size = int(cell.max()) + 1 if cell.size else 0
        p_real = _normalised(np.bincount(cell[: real.shape[0]], minlength=size))
        p_synthetic = _normalised(np.bincount(cell[real.shape[0] :], minlength=size))
        errors[index] = np.abs(p_real - p_synthetic).sum()
    return errors


def _cell_ids(codes: np.ndarray, domain: Domain, clique: Clique) -> np.ndarray:
    """Returns the id of each row's cell of the clique, (n,) int64.

    Equal for two rows exactly when they fall into the same cell.
    """
    ids, size = np.zeros(codes.shape[0], dtype=np.int64), 1
    for axis in domain.axes(clique):
        if size * domain.shape[axis] > 2**62:  # number the cells that occur, before the index overflows
            occurring, ids = np.unique(ids, return_inverse=True)
            size = max(occurring.size, 1)
        ids = ids * domain.shape[axis] + codes[:, axis]
        size *= domain.shape[axis]
    return ids


def _distance(counted: np.ndarray, modelled: np.ndarray) -> float:
    """Returns the L1 distance of two tables' distributions."""
    off = _normalised(counted)
    off -= _normalised(modelled)
    np.abs(off, out=off)
    return float(off.sum())


def _normalised(counts: np.ndarray) -> np.ndarray:
    total = float(counts.sum())
    return counts / total if total > 0 else np.zeros(counts.shape)
