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
from typing import TYPE_CHECKING

import numpy as np

from fedsyn.errors import ConfigError
from fedsyn.evaluation.base import EvaluationInput, bin_middles

if TYPE_CHECKING:
    from fedsyn.schema import Schema

# Features and label values of the synthetic rows, features of the held-out rows -> predictions for the latter.
Regression = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

_LEARNER = {"max_iter": 100, "max_depth": 4, "early_stopping": False, "random_state": 0}


@dataclass(frozen=True, eq=False)
class _Predictions:
    """`truth` (m,) label codes of the held-out rows; `scores` (m, C) probability of each label code."""

    truth: np.ndarray
    scores: np.ndarray

    @property
    def predicted(self) -> np.ndarray:
        classes: np.ndarray = np.argmax(self.scores, axis=1)
        return classes


def auc(data: EvaluationInput) -> float:
    """Area under the ROC curve; the mean of one class against the rest over the held-out classes.

    Classes that no held-out row has, or that all of them have, are left out; if no class remains the answer
    is 0.5.
    """
    predictions = _classify(data)
    areas = []
    for code in np.unique(predictions.truth):
        positive = predictions.truth == code
        if not positive.all():
            areas.append(_area(predictions.scores[:, code], positive))
    return float(np.mean(areas)) if areas else 0.5


def f1(data: EvaluationInput) -> float:
    """Unweighted mean over the held-out classes of the F1 score (macro F1, also for two classes)."""
    predictions = _classify(data)
    scores = []
    for code in np.unique(predictions.truth):
        real, made = predictions.truth == code, predictions.predicted == code
        scores.append(2 * np.sum(real & made) / (np.sum(real) + np.sum(made)))
    return float(np.mean(scores))


def accuracy(data: EvaluationInput) -> float:
    """Share of held-out rows whose label is predicted."""
    predictions = _classify(data)
    return float(np.mean(predictions.predicted == predictions.truth))


def rmse(data: EvaluationInput) -> float:
    """Root of the mean squared error of a regression on the label, in the label's unit.

    A label code stands for the middle of its bin on both sides, so the bins' width is not part of the error.
    Rows without a label value are left out; without any synthetic value the prediction is the middle of the
    label's range.
    """
    assert data.test is not None and data.synthetic is not None

    def predict(x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> np.ndarray:
        _require_sklearn()
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
    axis = data.domain.axes((data.label,))[0]
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
    return float(np.sqrt(np.mean((predicted - y_test) ** 2)))


def label_values(schema: Schema, label: str) -> np.ndarray | None:
    """The number that each code of the label stands for, for `rmse`.

    Returns:
        (cardinality,) float64: the middle of each bin of a numeric column (of an integer column: of its
        integers), or the categories where all of them are numbers; NaN for the missing category. None for
        other columns.
    """
    from fedsyn.schema import BinnedColumn

    column = schema.columns[label]
    if isinstance(column, BinnedColumn):
        return bin_middles(column)
    if any(isinstance(value, bool | str) for value in column.values):
        return None
    values = np.array([float(value) for value in column.values])
    return np.append(values, np.nan) if column.missing else values


def _classify(data: EvaluationInput) -> _Predictions:
    """The predictions that auc, f1 and accuracy share."""
    if "predictions" not in data.cache:
        data.cache["predictions"] = _fit_classifier(data)
    predictions: _Predictions = data.cache["predictions"]
    return predictions


def _fit_classifier(data: EvaluationInput) -> _Predictions:
    assert data.test is not None and data.synthetic is not None and data.label is not None
    x, y = _features_and_label(data.synthetic, data)
    x_test, truth = _features_and_label(data.test, data)
    scores = np.zeros((truth.size, data.domain[data.label]))
    seen, counts = np.unique(y, return_counts=True)
    if seen.size < 2 or x.shape[1] == 0:
        scores[:, seen] = counts / max(y.size, 1)
        return _Predictions(truth, scores)
    _require_sklearn()
    from sklearn.ensemble import HistGradientBoostingClassifier

    with one_thread():
        learner = HistGradientBoostingClassifier(**_LEARNER).fit(x, y)
        scores[:, learner.classes_] = learner.predict_proba(x_test)
    return _Predictions(truth, scores)


def train_trees(codes: np.ndarray, label: int, most: int) -> tuple[np.ndarray, ...] | str:
    """The classifier of `accuracy`, trained on a table, as arrays that need no scikit-learn to be followed.

    Args:
        codes: (n, d) codes of the table.
        label: column that is predicted.
        most: classes that are allowed.

    Returns:
        nodes (T, M, 4), values (T, M), base, classes as of `fedsyn.judging.trees.Trees`, or why there are none.
    """
    classes, counts = np.unique(codes[:, label], return_counts=True)
    nothing = np.zeros((0, 1, 4), np.int32), np.zeros((0, 1))
    if len(classes) > most:
        return f"accuracy is asked of labels with at most {most} values"
    if len(classes) < 2 or codes.shape[1] < 2:
        return (*nothing, np.zeros(1), classes[np.argmax(counts)][None].astype(np.int32))
    try:
        _require_sklearn()
    except ConfigError as error:
        return str(error)
    from sklearn.ensemble import HistGradientBoostingClassifier

    columns = np.delete(np.arange(codes.shape[1]), label)
    with one_thread():
        learner = HistGradientBoostingClassifier(**_LEARNER).fit(codes[:, columns].astype(np.float64), codes[:, label])
    grown = [tree.nodes for step in learner._predictors for tree in step]
    nodes = np.zeros((len(grown), max(map(len, grown)), 4), np.int32)
    values = np.zeros(nodes.shape[:2])
    for tree, own in enumerate(grown):
        inner = own["is_leaf"] == 0
        values[tree, : len(own)] = own["value"]
        nodes[tree, : len(own), 0] = np.where(inner, columns[own["feature_idx"]], 0)
        nodes[tree, : len(own), 1] = np.where(inner, np.floor(np.where(inner, own["num_threshold"], 0.0)), 0)
        nodes[tree, : len(own), 2] = np.where(inner, own["left"], 0)
        nodes[tree, : len(own), 3] = np.where(inner, own["right"], 0)
    base = np.asarray(learner._baseline_prediction, np.float64).ravel()
    return nodes, values, base, learner.classes_.astype(np.int32)


def _features_and_label(codes: np.ndarray, data: EvaluationInput) -> tuple[np.ndarray, np.ndarray]:
    """(n, d - 1) float64 features and (n,) int64 label codes."""
    assert data.label is not None
    axis = data.domain.axes((data.label,))[0]
    return np.delete(codes, axis, axis=1).astype(np.float64), codes[:, axis].astype(np.int64)


def _area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Probability that a positive row has a higher score than a negative one; ties count one half."""
    from scipy.stats import rankdata

    n_positive = int(positive.sum())
    n_negative = positive.size - n_positive
    above = rankdata(scores)[positive].sum() - n_positive * (n_positive + 1) / 2
    return float(above / (n_positive * n_negative))


def one_thread() -> AbstractContextManager[object]:
    """Keeps learners on one thread: no result depends on the number of cores, and on busy cores threads cost time."""
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def _require_sklearn() -> None:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise ConfigError(
            "auc, f1, accuracy and rmse need scikit-learn, which is not installed: pip install 'fedsyn[evaluation]'"
        ) from None
