"""Workload errors in L2, against brute force."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from experiments import paper_metrics
from fedsyn.errors import ConfigError
from fedsyn.evaluation.inputs import EvaluationInput
from fedsyn.evaluation.real.metrics import evaluate
from fedsyn.table.counting.workload import Workload, all_kway
from support.small_tables import DOMAIN, a_model, table

NAME = "experiments.paper_metrics:workload_error_l2"


def by_hand(real: np.ndarray, made: list[np.ndarray], workload: Workload) -> float:
    total = 0.0
    for clique, weight, other in zip(workload.cliques, workload.weights, made, strict=True):
        p = np.zeros(DOMAIN.shape_of(clique))
        for row in real:
            p[tuple(int(row[axis]) for axis in DOMAIN.axes(clique))] += 1 / len(real)
        total += weight * sqrt(float(((p - other / other.sum()) ** 2).sum()))
    return total / sum(workload.weights)


def test_l2_error_of_a_model_is_that_of_its_marginals() -> None:
    workload = Workload(all_kway(DOMAIN, 2).cliques, tuple(np.arange(1.0, 7.0)))
    real, model = table(70), a_model()
    data = EvaluationInput(train=real, domain=DOMAIN, workload=workload, model=model)
    errors = evaluate(["workload_error", NAME], data)
    expected = by_hand(real, list(model.project_many(workload.cliques)), workload)
    assert errors["workload_error_l2"] == pytest.approx(expected, rel=1e-9)
    assert errors["workload_error_l2"] < errors["workload_error"], "the L2 norm is the smaller one"


def test_l2_error_needs_marginals_that_can_be_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_metrics, "_LARGEST", 19)
    data = EvaluationInput(train=table(20), domain=DOMAIN, workload=all_kway(DOMAIN, 2), model=a_model())
    with pytest.raises(ConfigError, match="c × d has 20"):
        evaluate([NAME], data)
