"""Metrics of single papers, which a sweep names as `evaluation: [experiments.paper_metrics:f1_rf]`.

They are reported as `f1_rf`, by the name alone. Those of learners and of transport need the extra `papers`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from experiments.efficacy import accuracy_lr as accuracy_of_regression
from experiments.efficacy import f1_lr as f1_of_regression
from experiments.efficacy import f1_with, rmse_with
from experiments.transport import wasserstein as distance
from experiments.transport import wasserstein_numeric as distance_of_numbers
from fedsyn.errors import ConfigError
from fedsyn.evaluation.inputs import EvaluationInput, Metric
from fedsyn.evaluation.real.marginals import range_query_error
from fedsyn.table.counting.marginals import count, groups_within

_LEARNING = frozenset({"test", "label", "synthetic"})
_ROWS = frozenset({"test", "synthetic"})
_SKLEARN, _XGBOOST, _POT = ("sklearn",), ("xgboost", "sklearn"), ("ot",)
# Cells of a marginal that is formed, and of those that are held together.
_LARGEST, _CELLS_AT_ONCE = 1 << 24, 1 << 22


def workload_error_in_l2(data: EvaluationInput) -> float:
    """As `workload_error` with the L2 distance of the model's normalised marginals, between 0 and sqrt(2).

    Small where the mass is spread over many cells, whether or not they are right: marginals of few cells and a few
    heavy ones decide it.

    Source: Sedimo & Near, Figure 3, "l2 error"; the paper does not say what it is averaged over or divided by.

    Raises:
        ConfigError: a workload clique is too large to form its marginal.
    """
    assert data.model is not None
    cliques, errors = data.workload.cliques, np.empty(len(data.workload))
    sizes = [data.domain.size(clique) for clique in cliques]
    for clique, size in zip(cliques, sizes, strict=True):
        if size > _LARGEST:
            raise ConfigError(
                f"evaluation: workload_error_l2 forms whole marginals, of at most {_LARGEST:,} cells; "
                f"{' × '.join(clique)} has {size:,}"
            )
    for block in groups_within(_CELLS_AT_ONCE, range(len(cliques)), sizes.__getitem__):
        some = [cliques[i] for i in block]
        pairs = zip(count(data.train, data.domain, some), data.model.project_many(some), strict=True)
        off = (real / max(1, real.sum()) - made / made.sum() for real, made in pairs)
        errors[block] = [np.sqrt(np.square(apart).sum()) for apart in off]  # BLAS has other bits elsewhere
    return float(np.average(errors, weights=np.array(data.workload.weights)))


workload_error_l2 = Metric(
    "workload_error_l2", workload_error_in_l2, "workload_error with the L2 distance", needs=frozenset({"model"})
)
range_query_error_3 = Metric(
    "range_query_error_3",
    partial(range_query_error, ways=3),
    "range_query_error over three-way range queries",
    needs=_ROWS | {"three_attributes"},
)
wasserstein = Metric(
    "wasserstein",
    distance,
    "mean Wasserstein distance between two-way marginals of held-out and synthetic rows",
    needs=_ROWS | {"two_attributes"},
    packages=_POT,
)
wasserstein_numeric = Metric(
    "wasserstein_numeric",
    distance_of_numbers,
    "the same over pairs of numeric attributes, as the HeteroFedSyn paper reports it",
    needs=_ROWS | {"two_numeric"},
    packages=_POT,
)
f1_lr = Metric(
    "f1_lr", f1_of_regression, "F1 of the label's last value by a logistic regression", False, _LEARNING, _SKLEARN
)
accuracy_lr = Metric(
    "accuracy_lr", accuracy_of_regression, "accuracy of the same regression", False, _LEARNING, _SKLEARN
)
_F1, _RMSE = "F1 score, weighted by class, of", "root mean squared error, in the label's unit, of"
_NUMBERS = _LEARNING | {"label_values"}
f1_rf = Metric("f1_rf", partial(f1_with, learner="rf"), f"{_F1} random forest", False, _LEARNING, _SKLEARN)
f1_mlp = Metric("f1_mlp", partial(f1_with, learner="mlp"), f"{_F1} an MLP", False, _LEARNING, _SKLEARN)
f1_xgb = Metric("f1_xgb", partial(f1_with, learner="xgb"), f"{_F1} XGBoost", False, _LEARNING, _XGBOOST)
rmse_rf = Metric("rmse_rf", partial(rmse_with, learner="rf"), f"{_RMSE} random forest", True, _NUMBERS, _SKLEARN)
rmse_mlp = Metric("rmse_mlp", partial(rmse_with, learner="mlp"), f"{_RMSE} an MLP", True, _NUMBERS, _SKLEARN)
rmse_xgb = Metric("rmse_xgb", partial(rmse_with, learner="xgb"), f"{_RMSE} XGBoost", True, _NUMBERS, _XGBOOST)
