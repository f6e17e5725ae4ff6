"""The estimator of InDif2^2 is unbiased, for every projection, every kind of noise, and end to end.

All sources are seeded, so no test flickers; LIMIT standard errors would be exceeded by chance with probability 6e-7
per figure, about 2e-5 for all of them together, were the seeds to change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.variants.privsyn import FedPrivSynVariant
from experiments.variants.projections import PROJECTIONS, printed_indif_squared
from fedsyn.domain import Domain
from fedsyn.front.testing.harness import Federation, config_of, execute
from fedsyn.front.testing.schemas import AwkwardTable, awkward_table
from fedsyn.registry import MECHANISMS, MechanismEntry
from fedsyn.selection.indif import Noisy, Projection, all_pairs, distance_squared, indif_squared
from fedsyn.table.counting.marginals import count
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema

LIMIT = 5.0
DOMAIN = Domain(("a", "b"), (6, 4))
PAIR = ("a", "b")
ROWS = 200


def some_joint() -> np.ndarray:
    """(6, 4) counts of 200 rows that depend on each other."""
    rng = np.random.default_rng(5)
    weights = rng.random((6, 4)) ** 3 + 0.4 * np.eye(6, 4)
    return rng.multinomial(ROWS, (weights / weights.sum()).ravel()).reshape(6, 4)


JOINT = some_joint()
TRUTH = float(((JOINT / ROWS - np.outer(JOINT.sum(1), JOINT.sum(0)) / ROWS**2) ** 2).sum())


def noisy(values: np.ndarray, clients: int, sigma: float, rng: np.random.Generator) -> Noisy:
    """Sum of `clients` vectors that each carry their own noise, in proportions, with the sum's standard deviation."""
    parts = rng.multinomial(1, np.full(clients, 1 / clients), size=1).T * values  # who holds what does not matter
    total = sum(part + sigma * rng.standard_normal(values.shape) for part in parts)
    return Noisy(np.asarray(total) / ROWS, sigma * math.sqrt(clients) / ROWS)


def assert_mean(estimates: np.ndarray, truth: float) -> None:
    error = estimates.std(ddof=1) / math.sqrt(len(estimates))
    assert abs(estimates.mean() - truth) < LIMIT * error, f"off by {(estimates.mean() - truth) / error:.1f} errors"


def draws(number: int, projection: str, clients: int, printed: bool, fixed: bool) -> np.ndarray:
    """Estimates with fresh noise, and fresh matrices unless `fixed`; noise as large as the marginals themselves."""
    rng = np.random.default_rng([number, clients, printed])
    estimates = np.empty(number)
    sigmas = [4.0, 18.0, 22.0] if clients > 1 else [8.0, 40.0, 50.0]
    for r in range(number):
        p = PROJECTIONS[projection](5, 0 if fixed else r)
        exact = JOINT.ravel() if projection == "none" else JOINT.ravel() @ p.matrix(DOMAIN, PAIR).astype(float)
        z = noisy(exact / p.unit, clients, sigmas[0], rng)
        a = noisy(JOINT.sum(axis=1).astype(float), clients, sigmas[1], rng)
        b = noisy(JOINT.sum(axis=0).astype(float), clients, sigmas[2], rng)
        estimates[r] = (printed_indif_squared if printed else indif_squared)(DOMAIN, PAIR, z, a, b, p)
    return estimates


@pytest.mark.parametrize("clients", [pytest.param(1, marks=pytest.mark.slow), 5])
@pytest.mark.parametrize(
    ("projection", "printed"),
    [
        ("signs", False),
        ("gaussian", True),
        ("none", False),
        *(
            pytest.param(*which, marks=pytest.mark.slow)
            for which in (("signs", True), ("gaussian", False), ("none", True))
        ),
    ],
)
def test_the_estimate_is_unbiased_over_noise_and_matrices(projection, clients, printed):
    """5,000 draws. One noise on a secure sum is one client with a larger noise; five clients have one each.

    The bias terms are many times the truth here: an estimator without one of them fails by tens of errors.
    """
    assert_mean(draws(5000, projection, clients, printed, fixed=False), TRUTH)


def test_given_the_matrix_it_is_unbiased_for_the_projected_distance():
    """5,000 draws with ONE public matrix. The mean-over-matrices form of Theorem 5 is off there, by its own design."""
    p = Projection(5, 0)
    x = (JOINT / ROWS - np.outer(JOINT.sum(1), JOINT.sum(0)) / ROWS**2).ravel()
    projected = float((((x @ p.matrix(DOMAIN, PAIR)) / p.unit) ** 2).sum())
    ours = draws(5000, "signs", 1, False, fixed=True)
    assert_mean(ours, projected)
    theirs = draws(5000, "signs", 1, True, fixed=True)
    assert abs(theirs.mean() - projected) > LIMIT * theirs.std() / math.sqrt(5000)


def test_the_distance_to_a_table_is_unbiased():
    """5,000 draws of Algorithm 4's score against a fixed table."""
    rng = np.random.default_rng(3)
    table = np.full((6, 4), 1 / 24)
    truth = float(((JOINT / ROWS - table) ** 2).sum())
    estimates = np.empty(5000)
    for r in range(5000):
        p = Projection(5, r)
        z = noisy(JOINT.ravel() @ p.matrix(DOMAIN, PAIR) / p.unit, 3, 4.0, rng)
        estimates[r] = distance_squared(DOMAIN, PAIR, z, table, p)
    assert_mean(estimates, truth)


class ScoresOnly(FedPrivSynVariant):
    """FedPrivSyn up to its scores: keeps the squares before they are clipped, measures and synthesises nothing."""

    squared: Sequence[float]

    def distances(self, squared: Sequence[float], which: Any = slice(None)) -> np.ndarray:
        """Nothing depends on anything: no pair is selected."""
        self.squared = squared
        return np.zeros(len(squared))

    def synthesise(self, *, last: bool) -> None:
        pass


def ordered_table() -> AwkwardTable:
    """Two attributes of twelve ordered values, measured at several resolutions, and one of three without an order."""
    rng = np.random.default_rng(7)
    first = rng.integers(0, 12, 60)
    frame = pd.DataFrame({"u": first, "v": (first + rng.integers(0, 3, 60)) % 12, "w": first % 3})
    twelve = {"lower": 0, "upper": 11, "bins": "values", "dtype": "integer"}
    columns = {"u": NumericColumn(**twelve), "v": NumericColumn(**twelve), "w": CategoricalColumn(categories=(0, 1, 2))}
    return AwkwardTable("ordered", Schema(columns=columns), frame)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "noise"),
    [
        pytest.param(lambda: awkward_table("missing_values"), "server", marks=pytest.mark.slow),
        pytest.param(lambda: awkward_table("missing_values"), "local", marks=pytest.mark.slow),
        pytest.param(lambda: awkward_table("missing_values"), "distributed", marks=pytest.mark.slow),
        (ordered_table, "server"),
    ],
    ids=["server", "local", "distributed", "several resolutions"],
)
def test_the_scores_of_a_run_are_unbiased(made, noise, monkeypatch):
    """250 runs over real sums of four clients, each with its own noise and matrices: up to ten pairs, end to end.

    Integers are summed, divided by their scale, and debiased with the sums' own sigmas: one noise for `server`, sqrt(c)
    times as much for `local`, and whatever the shares add up to for `distributed`.
    """
    entry = MechanismEntry(f"{__name__}:ScoresOnly", "experiments.variants.privsyn:FedPrivSynVariantClient", "", "")
    monkeypatch.setitem(MECHANISMS, "scores_only", entry)
    table = made()
    codes, domain = table.encode(), table.schema.domain
    federation = Federation(table, tuple(codes[k::4] for k in range(4)))
    runs = []
    for r in range(250):
        config = config_of(
            "scores_only",
            4,
            {
                "k": 4,
                "one_way_share": 0.45,
                "score_share": 0.45,
                "projection_seed": r,
                "rest": "unspent",
            },
            privacy={"epsilon": 10.0, "delta": 1e-5},
            aggregation={"noise": noise},
            runtime={"seed": r},
        )
        runs.append(execute(config, federation).strategy)
    assert any(len(m.hierarchy.widths) > 1 for m in runs[0].one_way) == (table.name == "ordered")
    n = len(codes)
    for i, joint in enumerate(count(codes, domain, all_pairs(domain))):
        truth = float(((joint / n - np.outer(joint.sum(1), joint.sum(0)) / n**2) ** 2).sum())
        assert_mean(np.array([run.squared[i] for run in runs]), truth)
