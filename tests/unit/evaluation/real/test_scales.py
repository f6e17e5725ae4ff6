"""The scale of a metric: the training rows, independent columns and uniform rows, in that order of goodness."""

from __future__ import annotations

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.evaluation.inputs import EvaluationInput
from fedsyn.evaluation.real.scales import scales
from fedsyn.inference import Model
from fedsyn.table.counting.workload import all_kway


@pytest.fixture
def data() -> EvaluationInput:
    """Three columns that follow one another; a label among them."""
    rng = np.random.default_rng(0)
    domain = Domain(("a", "b", "c"), (4, 4, 2))

    def rows(n: int) -> np.ndarray:
        a = np.minimum(3, rng.geometric(0.5, n) - 1)
        b = np.where(rng.random(n) < 0.8, a, rng.integers(0, 4, n))
        return np.column_stack([a, b, (b > 0) ^ (rng.random(n) < 0.1)]).astype(np.uint8)

    train = rows(5000)
    return EvaluationInput(
        train=train, domain=domain, workload=all_kway(domain, 2), test=rows(1000), model=Model(domain, {}, 5000.0),
        synthetic=train, label="c",
    )  # fmt: skip


PAPERS = "experiments.paper_metrics"


def test_a_scale_is_in_order(data: EvaluationInput) -> None:
    pytest.importorskip("sklearn")
    found = scales(
        ["workload_error", "nll", "auc", f"{PAPERS}:wasserstein", f"{PAPERS}:f1_rf"], data, np.random.default_rng(1)
    )
    assert list(found) == ["workload_error", "nll", "auc"]  # those of papers have none
    error, nll, auc = (list(found[name].values()) for name in found)
    assert error[0] == 0.0 and 0.1 < error[1] < error[2]
    assert nll[0] is not None and nll[0] < nll[1] < nll[2] == pytest.approx(np.log(32))
    assert auc[0] > 0.85 and auc[1:] == [0.5]  # a learner of nothing guesses, of whichever table that knows nothing


def test_independent_columns_are_the_product_of_the_marginals(data: EvaluationInput) -> None:
    found = scales(["workload_error"], data, np.random.default_rng(1))["workload_error"]["independent columns"]
    distances = []
    for a, b in ((0, 1), (0, 2), (1, 2)):
        table = np.histogram2d(data.train[:, a], data.train[:, b], bins=[np.arange(5), np.arange(5)])[0] / 5000
        distances.append(np.abs(table - np.outer(table.sum(1), table.sum(0))).sum())
    assert found == pytest.approx(np.mean(distances), abs=1e-6)


def test_values_that_nobody_has_are_not_ruled_out(data: EvaluationInput) -> None:
    rare = data.train.copy()
    rare[:, 1] = 0
    found = scales(["nll"], EvaluationInput(**{**vars(data), "train": rare, "cache": {}}), np.random.default_rng(1))
    assert found["nll"]["training rows"] is None and found["nll"]["independent columns"] < 20  # type: ignore[operator]
