"""The PrivSyn family on real tables: its scores rank pairs, and its rows answer range queries, within fixed bounds.

The bounds on queries are those that the published code of HeteroFedSyn leaves to beat (five clients, k = 10, 100 bins,
delta = 1e-10): what it gives with local noise, and less than half of that for one noise on a secure sum. Ours lie
far below, so single seeds are enough to notice a regression; the slow tests take the five seeds of the comparison.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from experiments.variants.projections import PROJECTIONS, Whole
from fedsyn.domain import Domain
from fedsyn.loading import load_config
from fedsyn.runs.engines import run
from fedsyn.selection.indif import Noisy, Projection, all_pairs, indif_squared, root
from fedsyn.table.counting.marginals import count
from fedsyn.table.data import load_dataset

FED, ADA = (f"experiments.variants.privsyn:{name}" for name in ("FedPrivSynVariant", "AdaFedPrivSynVariant"))
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(autouse=True)
def _data(fedsyn_data: Path) -> None:
    """Skips without the benchmark tables."""


# Scores --------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def encoded(table: str) -> tuple[Domain, np.ndarray, tuple[float, ...]]:
    """Domain, codes in 100 bins, and the true InDif2 of every pair from the definition."""
    dataset = load_dataset(table, bins=100)
    domain, codes = dataset.schema.domain, dataset.encode()
    joints = [joint / len(codes) for joint in count(codes, domain, all_pairs(domain))]
    true = tuple(float(np.linalg.norm(joint - np.outer(joint.sum(1), joint.sum(0)))) for joint in joints)
    return domain, codes, true


def scores(table: str, projection: Projection) -> np.ndarray:
    """Noise-free InDif2 of every pair from the sums of five clients."""
    domain, codes, _ = encoded(table)
    pairs, n = all_pairs(domain), len(codes)
    parts = [projection.apply(codes[k::5], domain, pairs) for k in range(5)]
    ones = {q[0]: Noisy(m / n, 0.0) for q in itertools.combinations(domain, 1) for m in count(codes, domain, [q])}
    squared = []
    for i, pair in enumerate(pairs):
        summed = Noisy(sum(part[i] for part in parts) / projection.unit / n, 0.0)
        squared.append(indif_squared(domain, pair, summed, ones[pair[0]], ones[pair[1]], projection))
    return root(np.array(squared))


@pytest.mark.parametrize("table", ["adult", "shoppers", "insurance", "obesity", "abalone"])
def test_without_noise_and_projection_scores_are_the_true_distances(table):
    true = np.array(encoded(table)[2])
    assert np.allclose(scores(table, Whole()), true, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("table", "bound"), [("adult", 0.9), ("shoppers", 0.9), ("insurance", 0.75)])
@pytest.mark.parametrize("kind", ["signs", "gaussian"])
def test_ten_projected_numbers_rank_the_pairs(table, bound, kind):
    """Median of five public seeds, and the default seed."""
    true = encoded(table)[2]
    correlations = [spearmanr(scores(table, PROJECTIONS[kind](10, seed)), true)[0] for seed in range(5)]
    assert float(np.median(correlations)) > bound and correlations[0] > bound


# Range queries -------------------------------------------------------------------------------------------------------


def query_error(
    folder: Path,
    name: str,
    table: str,
    epsilon: float,
    noise: str,
    seeds: int,
    *more: str,
    metric: str = "range_query_error",
) -> float:
    """Mean over the seeds; `distributed` is simulated under `plain`, bit for bit what `secagg` opens."""
    errors = []
    for seed in range(seeds):
        settings = [f"data.source={table}", f"privacy.epsilon={epsilon}", f"runtime.seed={seed}", *more]
        if name != "privsyn":
            settings += ["aggregation.protocol=plain", f"aggregation.noise={noise}"]
        config = load_config(CONFIGS / f"{name}.yaml", [*settings, f"evaluation=[{metric}]"])
        errors.append(run(config, folder / f"{name}-{table}-{seed}")[metric.rpartition(":")[2]])
    return sum(errors) / seeds


DISTANCE = "experiments.paper_metrics:wasserstein_numeric"

# table, epsilon, noise, and the bounds on fed_privsyn and ada_fed_privsyn
BOUNDS = [
    ("adult", 1.0, "distributed", 0.0065, 0.0065),
    ("adult", 5.0, "distributed", 0.0049, 0.0049),
    ("shoppers", 1.0, "distributed", 0.018, 0.018),
    ("adult", 1.0, "local", 0.0182, 0.0097),
    ("adult", 5.0, "local", 0.0058, 0.0076),
    ("shoppers", 1.0, "local", 0.043, 0.018),
    ("shoppers", 5.0, "local", 0.0181, 0.0076),
    ("obesity", 1.0, "local", 0.083, 0.078),
    ("insurance", 1.0, "local", 0.054, 0.058),
]


@pytest.mark.slow
@pytest.mark.parametrize(("table", "epsilon", "noise", "fed", "ada"), BOUNDS)
def test_range_queries_of_five_seeds(tmp_path, table, epsilon, noise, fed, ada):
    assert query_error(tmp_path, "fed_privsyn", table, epsilon, noise, 5) <= fed
    assert query_error(tmp_path, "ada_fed_privsyn", table, epsilon, noise, 5) <= ada


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "noise", "bound"),
    [("shoppers", "distributed", 0.0035), ("shoppers", "local", 0.0045), ("insurance", "local", 0.04)],
)
@pytest.mark.parametrize("name", ["fed_privsyn", pytest.param("ada_fed_privsyn", marks=pytest.mark.slow)])
def test_range_queries_of_small_tables(tmp_path, name, table, noise, bound):
    assert query_error(tmp_path, name, table, 1.0, noise, 1) <= bound


@pytest.mark.slow
@pytest.mark.parametrize("name", ["privsyn", "fed_privsyn", "ada_fed_privsyn"])
def test_range_queries_of_adult(tmp_path, name):
    assert query_error(tmp_path, name, "adult", 1.0, "distributed", 1) <= 0.0025


@pytest.mark.slow
@pytest.mark.parametrize("table", ["adult", "shoppers"])
@pytest.mark.parametrize("noise", ["distributed", "local"])
def test_adaptive_selection_answers_queries_better_than_all_or_random_pairs(tmp_path, table, noise):
    adaptive = query_error(tmp_path / "ada", "ada_fed_privsyn", table, 1.0, noise, 5)
    for select in ("all", "random"):
        options = (f"mechanism.name={FED}", f"mechanism.select={select}")
        baseline = query_error(tmp_path / select, "fed_privsyn", table, 1.0, noise, 5, *options)
        assert adaptive < baseline


@pytest.mark.slow
def test_adaptive_selection_has_rows_nearer_to_the_held_out_ones_than_all_or_random_pairs(tmp_path):
    """Wasserstein distance on Shoppers, five fixed seeds: 0.023 against 0.026 over ten seeds, standard error 0.0007.

    On Adult all are as near as the training rows themselves: nothing can be told (experiments/heterofedsyn_baselines).
    """
    common = ("shoppers", 1.0, "distributed", 5)
    adaptive = query_error(tmp_path / "ada", "ada_fed_privsyn", *common, metric=DISTANCE)
    for select in ("all", "random"):
        options = (f"mechanism.name={ADA}", f"mechanism.select={select}")
        folder = tmp_path / select
        assert adaptive < query_error(folder, "ada_fed_privsyn", *common, *options, metric=DISTANCE)
