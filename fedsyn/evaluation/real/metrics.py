"""The metrics by name, and what each of them needs.

`validate_metrics` refuses, before a run starts, what cannot be computed at its end; `evaluate` computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec

from fedsyn.errors import ConfigError, nearest
from fedsyn.evaluation.base import EvaluationInput, Metric
from fedsyn.evaluation.learners.boosting import accuracy, auc, f1, rmse
from fedsyn.evaluation.learners.efficacy import Learner, accuracy_lr, f1_lr, f1_with, rmse_with
from fedsyn.evaluation.real.marginals import (
    heterogeneity,
    kway_error,
    negative_log_likelihood,
    workload_error,
    workload_error_l2,
)
from fedsyn.evaluation.real.queries import range_query_error
from fedsyn.evaluation.real.transport import wasserstein, wasserstein_numeric
from fedsyn.registry import entry_points, load
from fedsyn.version import installing

_LEARNING = frozenset({"test", "label", "synthetic"})
_ROWS = frozenset({"test", "synthetic"})
_LEARNERS: dict[Learner, str] = {"rf": "random forest", "mlp": "MLP", "xgb": "XGBoost"}
_SKLEARN = ("sklearn",)
# Package -> its project, and the extra that brings it.
_PROJECTS = {"sklearn": ("scikit-learn", "evaluation"), "xgboost": ("XGBoost", "papers"), "ot": ("POT", "papers")}

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "workload_error",
            workload_error,
            "mean L1 distance over the workload, normalised marginals of the training table and the model",
        ),
        Metric("workload_error_l2", workload_error_l2, "the same with the L2 distance"),
        Metric("error_2way", partial(kway_error, ways=2), "as workload_error, over pairs, whatever the workload"),
        Metric(
            "error_3way",
            partial(kway_error, ways=3),
            "the same over 64 fixed random triples",
            needs=frozenset({"three_attributes"}),
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
        Metric(
            "auc", auc, "area under the ROC curve of a classifier trained on synthetic rows", False, _LEARNING, _SKLEARN
        ),
        Metric("f1", f1, "macro F1 score of the same classifier", False, _LEARNING, _SKLEARN),
        Metric("accuracy", accuracy, "accuracy of the same classifier", False, _LEARNING, _SKLEARN),
        Metric(
            "f1_lr",
            f1_lr,
            "F1 of the label's last value by a logistic regression trained on synthetic rows",
            False,
            _LEARNING,
            _SKLEARN,
        ),
        Metric("accuracy_lr", accuracy_lr, "accuracy of the same regression", False, _LEARNING, _SKLEARN),
        Metric(
            "rmse",
            rmse,
            "root mean squared error of a regression trained on synthetic rows, in the label's unit",
            needs=_LEARNING | {"label_values"},
            packages=_SKLEARN,
        ),
        Metric(
            "range_query_error",
            range_query_error,
            "mean difference of 1,000 random two-way range queries, held-out and synthetic rows",
            needs=_ROWS | {"two_attributes"},
        ),
        Metric(
            "range_query_error_3",
            partial(range_query_error, ways=3),
            "the same over three-way range queries",
            needs=_ROWS | {"three_attributes"},
        ),
        Metric(
            "wasserstein",
            wasserstein,
            "mean Wasserstein distance between two-way marginals of held-out and synthetic rows",
            needs=_ROWS | {"two_attributes"},
            packages=("ot",),
        ),
        Metric(
            "wasserstein_numeric",
            wasserstein_numeric,
            "the same over pairs of numeric attributes, as the HeteroFedSyn paper reports it",
            needs=_ROWS | {"two_numeric"},
            packages=("ot",),
        ),
        *(
            Metric(
                f"f1_{short}",
                partial(f1_with, learner=short),
                f"F1 score, weighted by class, of {name} trained on synthetic rows",
                False,
                _LEARNING,
                ("xgboost", *_SKLEARN) if short == "xgb" else _SKLEARN,
            )
            for short, name in _LEARNERS.items()
        ),
        *(
            Metric(
                f"rmse_{short}",
                partial(rmse_with, learner=short),
                f"root mean squared error of a regression by {name} trained on synthetic rows, in the label's unit",
                True,
                _LEARNING | {"label_values"},
                ("xgboost", *_SKLEARN) if short == "xgb" else _SKLEARN,
            )
            for short, name in _LEARNERS.items()
        ),
    )
}


def all_metrics() -> dict[str, Metric]:
    """The metrics above, and those of installed packages: entry points of the group `fedsyn.metrics`."""
    foreign = {name: load(point.value, "evaluation") for name, point in entry_points("fedsyn.metrics").items()}
    return {**foreign, **METRICS}


def validate_metrics(
    names: Iterable[str],
    has_test: bool,
    label: str | None,
    *,
    numeric_label: bool | None = None,
    has_model: bool | None = None,
    has_partition: bool | None = None,
    attributes: int | None = None,
    numeric_attributes: int | None = None,
) -> None:
    """Raises ConfigError if a metric is unknown or misses what it needs, a package included; None: not known yet.

    Args:
        names: metric names, as in the configuration's `evaluation`.
        has_test: rows are held out.
        label: the label attribute, None where there is none.
        numeric_label: the label stands for numbers (`label_values` is not None).
        has_model: the mechanism estimates a model.
        has_partition: the pooled rows are split into simulated clients.
        attributes: number of attributes.
        numeric_attributes: number of those that are numeric, which is the size of `EvaluationInput.ranges`.
    """
    missing = {
        "test": None if has_test else "needs held-out rows: set data.test_fraction above 0",
        "label": None if label is not None else "needs a label: set data.label",
        "label_values": "needs a numeric label" if numeric_label is False else None,
        "model": "needs a mechanism that estimates a model" if has_model is False else None,
        "partition": "needs a simulation, which splits one table into clients" if has_partition is False else None,
        "two_attributes": _too_few("attributes", attributes, 2),
        "three_attributes": _too_few("attributes", attributes, 3),
        "two_numeric": _too_few("numeric attributes", numeric_attributes, 2),
    }
    known = all_metrics()
    for name in names:
        if name not in known:
            raise ConfigError(
                f"evaluation: unknown metric '{name}'{nearest(name, known)}; available: {', '.join(known)}"
            )
        for need in sorted(known[name].needs):
            if missing.get(need) is not None:
                raise ConfigError(f"evaluation: '{name}' {missing[need]}")
        for package in known[name].packages:
            if find_spec(package) is None:
                project, extra = _PROJECTS[package]
                raise ConfigError(f"evaluation: '{name}' needs {project}, which is not installed: {installing(extra)}")


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
        attributes=len(data.domain),
        numeric_attributes=len(data.ranges),
    )
    known = all_metrics()
    for name in names:
        if data.synthetic is None and ("synthetic" in known[name].needs or _needs_rows_or_model(name, data)):
            raise ConfigError(f"evaluation: '{name}' needs a synthetic table, which this run does not make")
    return {name: known[name].compute(data) for name in names}


def _too_few(what: str, number: int | None, needed: int) -> str | None:
    return f"needs at least {needed} {what}: the table has {number}" if number is not None and number < needed else None


def _needs_rows_or_model(name: str, data: EvaluationInput) -> bool:
    return name in ("workload_error", "workload_error_l2") and data.model is None
