"""Prediction of held-out real rows by a learner.

It is trained on synthetic rows.

The learner is scikit-learn's histogram gradient boosting with FLAIM's setting of 100 trees of depth 4, on the
integer codes as numbers, as in FLAIM's experiments. It is deterministic. Cases in which nothing can be
learned have fixed answers instead of errors, so that a run that fails its purpose still gets numbers:

- a synthetic label with one value (or one column, or no rows) gives a constant prediction: that value, or the
  label's first value where there are no rows. Its AUC is 0.5;
- held-out rows with a single class have no ranking: AUC 0.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from fedsyn.domain import Domain
from fedsyn.evaluation.inputs import EvaluationInput, sample_rows
from fedsyn.evaluation.real.reading import Readings
from fedsyn.evaluation.scores import Codes
from fedsyn.evaluation.trees import LEARNER, classifier, one_thread
from fedsyn.table.counting.workload import Workload
from fedsyn.version import installing

# Features and label values of the synthetic rows, features of the held-out rows -> predictions for the latter.
Regression = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
MOST_ROWS = 10_000  # of each kind: enough for 100 trees of depth 4
MOST_CLASSES = 8  # classes beyond these, the rarest, count as one


# Metrics -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Predictions:
    """Labels and scores of the held-out rows.

    `truth` (m,) label codes; `scores` (m, C) probability of each label code.
    """

    truth: np.ndarray
    scores: np.ndarray


def auc(data: EvaluationInput) -> float:
    """Returns the area under the ROC curve.

    It is the mean over the held-out classes, each against the rest.

    Classes that no held-out row has, or that all of them have, are left out; without any class it is 0.5.
    """
    from sklearn.metrics import roc_auc_score

    predictions = _classify(data)
    classes = np.unique(predictions.truth)
    areas = [
        roc_auc_score(predictions.truth == code, predictions.scores[:, code]) for code in classes if classes.size > 1
    ]
    return float(np.mean(areas)) if areas else 0.5


def f1(data: EvaluationInput) -> float:
    """Returns the unweighted mean F1 score of the held-out classes.

    Macro F1, also for two classes.
    """
    from sklearn.metrics import f1_score

    truth, predicted = _truth_and_predicted(data)
    return float(f1_score(truth, predicted, labels=np.unique(truth), average="macro"))


def accuracy(data: EvaluationInput) -> float:
    """Returns the share of held-out rows whose label is predicted."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(*_truth_and_predicted(data)))


def rmse(data: EvaluationInput) -> float:
    """Returns the root mean squared error of a regression.

    The regression predicts the label, and its error is in the label's unit.

    A label code stands for the middle of its bin on both sides, so the bins' width is not part of the error.
    Rows without a label value are left out; without any synthetic value the prediction is the middle of the
    label's range.
    """
    assert data.test is not None and data.synthetic is not None

    def predict(x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> np.ndarray:
        from sklearn.ensemble import HistGradientBoostingRegressor

        with one_thread():
            predicted: np.ndarray = HistGradientBoostingRegressor(**LEARNER).fit(x, y).predict(x_test)
        return predicted

    x, x_test = _features_and_label(data.synthetic, data)[0], _features_and_label(data.test, data)[0]
    return regression_error(data, x, x_test, predict)


def regression_error(data: EvaluationInput, x: np.ndarray, x_test: np.ndarray, predict: Regression) -> float:
    """Returns the RMSE of a regression on the label.

    The features of the synthetic (x) and of the held-out rows may be any; see `rmse`.
    """
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
    predictions = _classify(data)
    return predictions.truth, np.argmax(predictions.scores, axis=1)


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


# Synthetic rows beside real ones -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """Prediction of real rows by a model of the synthetic table.

    Attributes:
        label: the predicted column.
        measure: 'AUC' (higher is better, 0.5 is guessing) or 'RMSE' (lower is better, in the label's unit).
        synthetic: of the model trained on synthetic rows.
        real: of the same model trained on as many real rows.
        guess: of a prediction that looks at nothing: 0.5, or the spread of the label.
        held_out: whether the rows tested on were held out; otherwise they are a half of the rows that the table was
            made from, which flatters both.
        rows: tested rows.
        chance: gain over guessing that a model which knows nothing has by chance in one table of 700 (three standard
            errors of an AUC of 0.5, Hanley & McNeil 1982); 0 where the measure is no AUC.
    """

    label: str
    measure: str
    synthetic: float
    real: float
    guess: float
    held_out: bool
    rows: int
    chance: float = 0.0

    @property
    def can_judge(self) -> bool:
        """Returns whether real rows predict the label at all.

        They must beat the guess by more than a fiftieth and by more than chance.
        """
        good = (self.real - self.guess) * (-1 if self.measure == "RMSE" else 1)
        return good > max(self.chance, 0.02 if self.measure == "AUC" else 0.02 * abs(self.guess))

    @property
    def kept(self) -> float:
        """Share of what real rows teach that synthetic rows teach.

        May lie outside 0 to 1.
        """
        gain = self.real - self.guess
        return (self.synthetic - self.guess) / gain if gain else 0.0

    def words(self) -> str:
        """Returns a clause on what a model learns from the table.

        The clause compares that with what it learns from real rows.
        """
        if not self.can_judge:
            return f"{self.rows:,} real rows do not show that {self.label} can be predicted"
        if self.kept >= 0.9:
            return "predicts nearly as well as one from real rows"
        if self.kept >= 0.5:
            return "predicts worse than one from real rows"
        return "predicts little" if self.kept > 0.1 else "predicts nothing"


def prediction(
    readings: Readings,
    real: Codes,
    synthetic: Codes,
    holdout: Codes | None,
    label: str | None,
    halves: tuple[Codes, Codes],
    rng: np.random.Generator,
) -> Prediction | str:
    """Measures prediction by histogram gradient boosting.

    At most 10,000 rows are read, as for the metric `auc`. Returns a text where something is missing.

    A label of many categories is predicted as its most frequent ones and the rest.
    """
    if label is None:
        return "needs a label: set data.label"
    if find_spec("sklearn") is None or find_spec("threadpoolctl") is None:
        return f"needs scikit-learn: {installing('evaluation')}"
    # Rows to train on and to test on: held-out ones, or a half of the real rows.
    held_out = holdout is not None and len(holdout) > 0
    train, test = (real, holdout) if held_out else halves
    assert test is not None
    train, test, table = (sample_rows(codes, MOST_ROWS, rng) for codes in (train, test, synthetic))
    # A label with many categories keeps the frequent ones; one with many numbers is regressed.
    axis, domain, values = readings.domain.axes((label,))[0], readings.domain, readings.places(label)
    numeric = values is not None and np.count_nonzero(readings.columns[label].counts) > MOST_CLASSES
    if not numeric and domain[label] > MOST_CLASSES:
        classes = _classes(train[:, axis], domain[label])
        train, test, table = (_with_label(codes, axis, classes) for codes in (train, test, table))
        domain = Domain(domain.attributes, tuple(MOST_CLASSES if i == axis else n for i, n in enumerate(domain.shape)))
    # The same learner, trained on synthetic and on real rows.
    scores = [
        (rmse if numeric else auc)(
            EvaluationInput(
                train=train,
                domain=domain,
                workload=Workload((), ()),
                test=test,
                synthetic=rows,
                label=label,
                label_values=values if numeric else None,
            )
        )
        for rows in (table, train)
    ]
    # The score of a guess that looks at no column.
    spread = 0.5
    if numeric:
        assert values is not None
        known, learned = values[test[:, axis]], values[train[:, axis]]
        spread = float(np.sqrt(np.nanmean((known - np.nanmean(learned)) ** 2)))
    chance = 0.0 if numeric else _chance(test[:, axis])
    return Prediction(label, "RMSE" if numeric else "AUC", scores[0], scores[1], spread, held_out, len(test), chance)


def _chance(labels: Codes) -> float:
    """Returns three standard errors of the mean AUC, or more.

    The AUC is 0.5, and the mean is over the classes. Their errors count as if they were one.
    """
    rows, counts = len(labels), np.unique(labels, return_counts=True)[1].astype(np.float64)
    apart = counts[counts < rows]
    return float(np.mean(3.0 * np.sqrt((rows + 1.0) / (12.0 * apart * (rows - apart))))) if len(apart) else 0.0


def _classes(codes: Codes, size: int) -> Codes:
    """Returns the class of each label code, (size,).

    The most frequent ones, and one for the rest.
    """
    result = np.full(size, MOST_CLASSES - 1)
    frequent = np.argsort(-np.bincount(codes.astype(np.int64), minlength=size), kind="stable")[: MOST_CLASSES - 1]
    result[frequent] = np.arange(MOST_CLASSES - 1)
    return result


def _with_label(codes: Codes, axis: int, classes: Codes) -> Codes:
    result = codes.astype(np.int64)
    result[:, axis] = classes[codes[:, axis]]
    return result
