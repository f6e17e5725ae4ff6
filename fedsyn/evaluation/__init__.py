"""How good a run is: metrics by name.

`validate_metrics` refuses, before a run starts, what cannot be computed at its end; `evaluate` computes.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedsyn.errors import ConfigError, nearest
from fedsyn.evaluation.base import EvaluationInput, Metric
from fedsyn.evaluation.learning import accuracy, auc, f1, label_values, rmse
from fedsyn.evaluation.marginals import (
    client_heterogeneity,
    heterogeneity,
    negative_log_likelihood,
    workload_error,
)

_LEARNING = frozenset({"test", "label", "synthetic"})

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "workload_error",
            workload_error,
            "mean L1 distance over the workload, normalised marginals of the training table and the model",
        ),
        Metric(
            "nll",
            negative_log_likelihood,
            "mean negative log-likelihood of held-out rows under the model",
            needs=frozenset({"test", "model"}),
        ),
        Metric(
            "heterogeneity",
            heterogeneity,
            "mean L1 distance over clients and workload, normalised marginals of client and pooled table",
            needs=frozenset({"partition"}),
        ),
        Metric("auc", auc, "area under the ROC curve of a classifier trained on synthetic rows", False, _LEARNING),
        Metric("f1", f1, "macro F1 score of the same classifier", False, _LEARNING),
        Metric("accuracy", accuracy, "accuracy of the same classifier", False, _LEARNING),
        Metric(
            "rmse",
            rmse,
            "root mean squared error of a regression trained on synthetic rows, in the label's unit",
            needs=_LEARNING | {"label_values"},
        ),
    )
}

__all__ = [
    "METRICS",
    "EvaluationInput",
    "Metric",
    "client_heterogeneity",
    "evaluate",
    "label_values",
    "validate_metrics",
]


def validate_metrics(
    names: Iterable[str],
    has_test: bool,
    label: str | None,
    *,
    numeric_label: bool | None = None,
    has_model: bool | None = None,
    has_partition: bool | None = None,
) -> None:
    """Raises ConfigError if a metric is unknown or misses what it needs; None means: not known yet.

    Args:
        names: metric names, as in the configuration's `evaluation`.
        has_test: rows are held out.
        label: the label attribute, None where there is none.
        numeric_label: the label stands for numbers (`label_values` is not None).
        has_model: the mechanism estimates a model.
        has_partition: the pooled rows are split into simulated clients.
    """
    missing = {
        "test": None if has_test else "needs held-out rows: set data.test_fraction above 0",
        "label": None if label is not None else "needs a label: set data.label",
        "label_values": "needs a numeric label" if numeric_label is False else None,
        "model": "needs a mechanism that estimates a model" if has_model is False else None,
        "partition": "needs a simulation, which splits one table into clients" if has_partition is False else None,
    }
    for name in names:
        if name not in METRICS:
            raise ConfigError(
                f"evaluation: unknown metric '{name}'{nearest(name, METRICS)}; available: {', '.join(METRICS)}"
            )
        for need in sorted(METRICS[name].needs):
            if missing.get(need) is not None:
                raise ConfigError(f"evaluation: '{name}' {missing[need]}")


def evaluate(names: Iterable[str], data: EvaluationInput) -> dict[str, float]:
    """The named metrics, in the order of the names.

    Raises:
        ConfigError: as `validate_metrics`, or `data` lacks something else that a metric needs.
    """
    names = list(names)
    validate_metrics(
        names,
        data.has_test,
        data.label,
        numeric_label=data.label_values is not None,
        has_model=data.model is not None,
        has_partition=data.partition is not None,
    )
    for name in names:
        if data.synthetic is None and ("synthetic" in METRICS[name].needs or _needs_rows_or_model(name, data)):
            raise ConfigError(f"evaluation: '{name}' needs a synthetic table, which this run does not make")
    return {name: METRICS[name].compute(data) for name in names}


def _needs_rows_or_model(name: str, data: EvaluationInput) -> bool:
    return name == "workload_error" and data.model is None
