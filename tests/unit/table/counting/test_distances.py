"""Distances of many cliques at once, against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fedsyn.selection.views as distances_module
from fedsyn.domain import Clique, Domain
from fedsyn.selection.views import touched_distances
from fedsyn.table.counting.marginals import count
from support.small_tables import DOMAIN, a_model, table

CLIQUES: list[Clique] = [q for k in (1, 2, 3, 4) for q in itertools.combinations(DOMAIN.attributes, k)]


# Distances -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 2, 9, 300])
@pytest.mark.parametrize("at_once", [1, 50, 1 << 20])  # 1: a clique at a time
def test_distances_are_those_of_whole_marginals(rows: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances_module, "_AT_ONCE", at_once)
    codes, model = table(rows, seed=rows), a_model()
    marginals = [p.ravel() / model.total for p in model.project_many(CLIQUES)]
    for size in (0.5, 9.0, 311.7):
        found = touched_distances(codes, DOMAIN, CLIQUES, marginals, size)
        exact = [
            np.abs(c.ravel() - size * p).sum() for c, p in zip(count(codes, DOMAIN, CLIQUES), marginals, strict=True)
        ]
        assert found == pytest.approx(exact, rel=1e-12, abs=1e-12)


def test_sums_of_distances_are_pairwise() -> None:
    """A tenth of a step is allowed for floating point in Distributed AIM's scores: 3e-15 of a value, and no more."""
    rows = 1 << 18
    domain = Domain(("x",), (rows,))
    codes = np.arange(rows, dtype=np.int64)[:, None]
    p = np.full(rows, 0.1 / rows)
    p[0] = 1.0 - 0.1 * (rows - 1) / rows
    (found,) = touched_distances(codes, domain, [("x",)], [p], float(rows))
    exact = (rows * p[0] - 1.0) + (rows - 1) * (1.0 - rows * p[1])
    assert abs(found - exact) < 3e-15 * exact
