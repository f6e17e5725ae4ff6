"""Metrics of machine learning on the synthetic table: train on synthetic rows, test on held-out real ones.

The learner is scikit-learn's histogram gradient boosting with FLAIM's setting of 100 trees of depth 4, on the
integer codes as numbers, as in FLAIM's experiments. It is deterministic. Cases in which nothing can be
learned have fixed answers instead of errors, so that a run that fails its purpose still gets numbers:

- a synthetic label with one value (or one column, or no rows) gives a constant prediction: that value, or the
  label's first value where there are no rows. Its AUC is 0.5;
- held-out rows with a single class have no ranking: AUC 0.5.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsyn.evaluation.base import EvaluationInput

# Features and label values of the synthetic rows, features of the held-out rows -> predictions for the latter.
Regression = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

_LEARNER = {"max_iter": 100, "max_depth": 4, "early_stopping": False, "random_state": 0}


@dataclass(frozen=True, eq=False)
class _Predictions:
    """`truth` (m,) label codes of the held-out rows; `scores` (m, C) probability of each label code."""

    truth: np.ndarray
    scores: np.ndarray


def auc(data: EvaluationInput) -> float:
    """Return the area under the ROC curve: the mean over the held-out classes, each against the rest.

    Classes that no held-out row has, or that all of them have, are left out; without any class it is 0.5.
    """
    from sklearn.metrics import roc_auc_score

    found = _classify(data)
    classes = np.unique(found.truth)
    areas = [roc_auc_score(found.truth == code, found.scores[:, code]) for code in classes if classes.size > 1]
    return float(np.mean(areas)) if areas else 0.5


def f1(data: EvaluationInput) -> float:
    """Return the unweighted mean over the held-out classes of the F1 score (macro F1, also for two classes)."""
    from sklearn.metrics import f1_score

    truth, predicted = _truth_and_predicted(data)
    return float(f1_score(truth, predicted, labels=np.unique(truth), average="macro"))


def accuracy(data: EvaluationInput) -> float:
    """Return the share of held-out rows whose label is predicted."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(*_truth_and_predicted(data)))


def rmse(data: EvaluationInput) -> float:
    """Root of the mean squared error of a regression on the label, in the label's unit.

    A label code stands for the middle of its bin on both sides, so the bins' width is not part of the error.
    Rows without a label value are left out; without any synthetic value the prediction is the middle of the
    label's range.
    """
    assert data.test is not None and data.synthetic is not None

    def predict(x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> np.ndarray:
        from sklearn.ensemble import HistGradientBoostingRegressor

        with one_thread():
            predicted: np.ndarray = HistGradientBoostingRegressor(**_LEARNER).fit(x, y).predict(x_test)
        return predicted

    x, x_test = _features_and_label(data.synthetic, data)[0], _features_and_label(data.test, data)[0]
    return regression_error(data, x, x_test, predict)


def regression_error(data: EvaluationInput, x: np.ndarray, x_test: np.ndarray, predict: Regression) -> float:
    """RMSE of a regression on the label, for any features of the synthetic (x) and of the held-out rows; see `rmse`."""
    assert data.test is not None and data.synthetic is not None and data.label is not None
    assert data.label_values is not None
    from sklearn.metrics import root_mean_squared_error

    axis = data.label_axis
    y, y_test = data.label_values[data.synthetic[:, axis]], data.label_values[data.test[:, axis]]
    known, known_test = np.isfinite(y), np.isfinite(y_test)
    x, y, x_test, y_test = x[known], y[known], x_test[known_test], y_test[known_test]
    if y_test.size == 0:
        return 0.0
    if y.size < 2 or x.shape[1] == 0:
        middle = (np.nanmin(data.label_values) + np.nanmax(data.label_values)) / 2
        predicted = np.full(y_test.size, y.mean() if y.size else middle)
    else:
        predicted = predict(x, y, x_test)
    return float(root_mean_squared_error(y_test, predicted))


def _classify(data: EvaluationInput) -> _Predictions:
    """The predictions that auc, f1 and accuracy share."""
    if "predictions" not in data.cache:
        data.cache["predictions"] = _fit_classifier(data)
    predictions: _Predictions = data.cache["predictions"]
    return predictions


def _truth_and_predicted(data: EvaluationInput) -> tuple[np.ndarray, np.ndarray]:
    found = _classify(data)
    return found.truth, np.argmax(found.scores, axis=1)


def _fit_classifier(data: EvaluationInput) -> _Predictions:
    assert data.test is not None and data.synthetic is not None and data.label is not None
    x, y = _features_and_label(data.synthetic, data)
    x_test, truth = _features_and_label(data.test, data)
    scores = np.zeros((truth.size, data.domain[data.label]))
    seen, counts = np.unique(y, return_counts=True)
    if seen.size < 2 or x.shape[1] == 0:
        scores[:, seen] = counts / max(y.size, 1)
        return _Predictions(truth, scores)
    with one_thread():
        learner = classifier().fit(x, y)
        scores[:, learner.classes_] = learner.predict_proba(x_test)
    return _Predictions(truth, scores)


def _features_and_label(codes: np.ndarray, data: EvaluationInput) -> tuple[np.ndarray, np.ndarray]:
    """(n, d - 1) float64 features and (n,) int64 label codes."""
    assert data.label is not None
    axis = data.label_axis
    return np.delete(codes, axis, axis=1).astype(np.float64), codes[:, axis].astype(np.int64)


def one_thread() -> AbstractContextManager[object]:
    """Keeps learners on one thread: no result depends on the number of cores, and on busy cores threads cost time."""
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def classifier() -> Any:
    """Return the untrained classifier of `auc`, `f1` and `accuracy`."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(**_LEARNER)
