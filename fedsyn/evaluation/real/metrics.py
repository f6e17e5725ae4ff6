"""Metrics by name, and the costs that every run reports.

`fedsyn.registry` finds them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from fedsyn.errors import ConfigError
from fedsyn.evaluation.inputs import EvaluationInput, Metric
from fedsyn.evaluation.real import marginals, prediction
from fedsyn.registry import metric, metrics

_LEARNING = frozenset({"test", "label", "synthetic"})
_SKLEARN = ("sklearn",)
#: Names the baseline of independent columns; with an underscore it begins the names of its metrics.
INDEPENDENT = "independent"
#: What every run reports beside its metrics.
COSTS = {
    "seconds": "seconds from the start of the run to its end",
    "peak_mb": "largest memory of this process, in megabytes",
    "client_mb_up": "megabytes that an average client sent",
    "client_mb_down": "megabytes that an average client received",
    "dropped": "replies that could not be used",
    "seconds_deal": "seconds of clients and store for dealing shares",
    "seconds_choose": "seconds of the store for choosing",
    "seconds_open": "seconds of clients and store for opening sums",
    "party_mb": "megabytes that the busiest party sent to the others",
    "party_rounds": "rounds of messages between the parties",
    "party_cpu": "seconds of processor of the busiest party",
}

workload_error = Metric(
    "workload_error",
    marginals.workload_error,
    "mean L1 distance over the workload, normalised marginals of the training table and the model",
)
error_2way = Metric(
    "error_2way", partial(marginals.kway_error, ways=2), "as workload_error, over pairs, whatever the workload"
)
error_3way = Metric(
    "error_3way",
    partial(marginals.kway_error, ways=3),
    "the same over 64 fixed random triples",
    needs=frozenset({"three_attributes"}),
)
nll = Metric(
    "nll",
    marginals.negative_log_likelihood,
    "mean negative log-likelihood of held-out rows under the model",
    needs=frozenset({"test", "model"}),
)
heterogeneity = Metric(
    "heterogeneity",
    marginals.heterogeneity,
    "mean L1 distance over clients and workload, normalised marginals of client and pooled table",
    needs=frozenset({"partition"}),
)
auc = Metric(
    "auc",
    prediction.auc,
    "area under the ROC curve of a classifier trained on synthetic rows",
    False,
    _LEARNING,
    _SKLEARN,
)
f1 = Metric("f1", prediction.f1, "macro F1 score of the same classifier", False, _LEARNING, _SKLEARN)
accuracy = Metric("accuracy", prediction.accuracy, "accuracy of the same classifier", False, _LEARNING, _SKLEARN)
rmse = Metric(
    "rmse",
    prediction.rmse,
    "root mean squared error of a regression trained on synthetic rows, in the label's unit",
    needs=_LEARNING | {"label_values"},
    packages=_SKLEARN,
)
range_query_error = Metric(
    "range_query_error",
    marginals.range_query_error,
    "mean difference of 1,000 random two-way range queries, held-out and synthetic rows",
    needs=frozenset({"test", "synthetic", "two_attributes"}),
)


def all_metrics() -> dict[str, Metric]:
    """Returns the metrics above, and those of installed packages."""
    return {name: metric(name) for name in metrics()}


def is_quality(name: str) -> bool:
    """Returns whether a number of metrics.json is not a cost.

    Every run reports the costs. Nor is it of independent columns, a sweep's baseline.
    """
    return name not in COSTS and not name.startswith(f"{INDEPENDENT}_")


def evaluate(names: Iterable[str], data: EvaluationInput) -> dict[str, float]:
    """Computes the named metrics in their order, as they are reported.

    Raises:
        ConfigError: `data` lacks something that a metric needs.
    """
    metrics: list[Metric] = list(map(metric, names))
    for one in metrics:
        one.require(
            data.has_test,
            data.label,
            numeric_label=data.label_values is not None,
            has_model=data.model is not None,
            has_partition=data.partition is not None,
            attributes=len(data.domain),
            numeric_attributes=len(data.ranges),
        )
    for one in metrics:
        needed = "synthetic" in one.needs or (one.name == "workload_error" and data.model is None)
        if needed and data.synthetic is None:
            raise ConfigError(f"evaluation: '{one.name}' needs a synthetic table, which this run does not make")
    return {one.name: one.compute(data) for one in metrics}
