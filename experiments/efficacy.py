"""Machine learning efficacy by random forest, MLP and XGBoost: train on synthetic, test on held-out real rows.

Source: Li et al. 2026 (HeteroFedSyn), Section 6.1 "Accuracy in Machine Learning Tasks", after Du & Li 2024
(SynMeter). Classification labels give the F1 score, averaged over the classes with their share of the held-out rows as
weights, as the published code does. So averaged, a constant prediction scores 0.774 on shoppers, which is what several
entries of the paper's Table 4 are: read these metrics beside the unweighted `f1`. Numeric labels give the root mean
squared error in the label's unit.

One encoding serves synthetic and real rows. It takes from the schema which columns there are (one per category; one per
numeric attribute, the middle of the bin; one for its missing values), and from the synthetic rows, which alone are
there to train on, what numbers are scaled by (mean 0, standard deviation 1). The label is encoded by the schema on
both sides; the published code numbers the label values of the two sides separately, which makes its RMSE void.

One fixed setting per learner serves all tables (SynMeter tunes one per table on real rows): a random forest of 100
trees with at least 2 rows in a leaf; an MLP of one layer of 100 units, stopped early on a tenth of the synthetic rows
(not where that tenth is too small to judge by); XGBoost with 100 trees of depth 6 and step 0.1. All are seeded and run
on one thread. Where nothing can be learned the answers are fixed: the most frequent label value, the label's first
value without any row, the middle of its range without any number.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np

from fedsyn.evaluation.inputs import EvaluationInput
from fedsyn.evaluation.real.prediction import regression_error
from fedsyn.evaluation.trees import one_thread

Learner = Literal["rf", "mlp", "xgb"]

_FOREST = {"n_estimators": 100, "min_samples_leaf": 2, "n_jobs": 1, "random_state": 0}
_MLP = {"hidden_layer_sizes": (100,), "max_iter": 200, "random_state": 0}
_BOOSTED = {"n_estimators": 100, "max_depth": 6, "learning_rate": 0.1, "n_jobs": 1, "random_state": 0}
_VALIDATION = 0.1  # share of the synthetic rows that the MLP's early stopping looks at: scikit-learn's default
_FEWEST_VALIDATED = 10
_MOST_CATEGORIES = 256  # an attribute with more enters as the number of its category, to bound the memory


def f1_with(data: EvaluationInput, learner: Learner) -> float:
    """F1 score of that classifier, weighted by the held-out classes, between 0 and 1."""
    assert data.test is not None and data.synthetic is not None and data.label is not None
    axis = data.label_axis
    x, x_test = features(data)
    truth = data.test[:, axis].astype(np.int64)
    # XGBoost wants classes numbered without gaps.
    seen, y = np.unique(data.synthetic[:, axis].astype(np.int64), return_inverse=True)
    if seen.size < 2 or x.shape[1] == 0:
        predicted = np.full(truth.size, seen[np.argmax(np.bincount(y))] if seen.size else 0)
    else:
        predicted = seen[_predictions(_classifier(learner, y), x, y, x_test)]
    return weighted_f1(truth, predicted)


def weighted_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Returns the mean F1 score of the classes that `truth` has, each counted by its rows there."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, labels=np.unique(truth), average="weighted"))


def logistic(data: EvaluationInput) -> np.ndarray:
    """(m,) label codes that a logistic regression predicts for the held-out rows (FHAIM, appendix E.2: seed 42)."""
    assert data.test is not None and data.synthetic is not None and data.label is not None
    if "logistic" not in data.cache:
        y = data.synthetic[:, data.label_axis].astype(np.int64)
        x, x_test = features(data)
        if np.unique(y).size < 2 or x.shape[1] == 0:
            predicted = np.full(len(x_test), np.argmax(np.bincount(y)) if y.size else 0)
        else:
            from sklearn.linear_model import LogisticRegression

            predicted = _predictions(LogisticRegression(max_iter=1000, random_state=42), x, y, x_test)
        data.cache["logistic"] = predicted
    found: np.ndarray = data.cache["logistic"]
    return found


def accuracy_lr(data: EvaluationInput) -> float:
    """Share of held-out rows whose label the logistic regression predicts."""
    assert data.test is not None and data.label is not None
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(data.test[:, data.label_axis], logistic(data)))


def f1_lr(data: EvaluationInput) -> float:
    """F1 score of the same for the label's last value where there are two (as FHAIM's Table 3), else weighted."""
    assert data.test is not None and data.label is not None
    from sklearn.metrics import f1_score

    truth, made = data.test[:, data.label_axis].astype(np.int64), logistic(data)
    if data.domain[data.label] != 2:
        return weighted_f1(truth, made)
    return float(f1_score(truth, made, labels=[1], average="macro", zero_division=0.0))


def rmse_with(data: EvaluationInput, learner: Learner) -> float:
    """Root mean squared error of that regression, in the label's unit; rows without a label value are left out."""

    def predict(x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> np.ndarray:
        mean, spread = y.mean(), y.std()
        if spread == 0:
            return np.full(len(x_test), mean)
        standard = _predictions(_regressor(learner, len(y)), x, (y - mean) / spread, x_test)
        predicted: np.ndarray = mean + spread * standard
        return predicted

    return regression_error(data, *features(data), predict)


def features(data: EvaluationInput) -> tuple[np.ndarray, np.ndarray]:
    """(s, w) and (m, w) float32 features of the synthetic and of the held-out rows; see the module's text."""
    assert data.test is not None and data.synthetic is not None
    if "features" not in data.cache:
        columns: list[tuple[np.ndarray, np.ndarray]] = []
        for axis, (name, size) in enumerate(zip(data.domain.attributes, data.domain.shape, strict=True)):
            if name == data.label:
                continue
            made, real = data.synthetic[:, axis].astype(np.int64), data.test[:, axis].astype(np.int64)
            if name in data.ranges:
                columns.append(_scaled(data.ranges[name].values, made, real))
            elif size > _MOST_CATEGORIES:
                columns.append(_scaled(np.arange(size, dtype=np.float64), made, real))
            else:
                columns.append((_one_hot(made, size), _one_hot(real, size)))
        data.cache["features"] = (
            np.concatenate([np.empty((len(data.synthetic), 0), np.float32), *(made for made, _ in columns)], axis=1),
            np.concatenate([np.empty((len(data.test), 0), np.float32), *(real for _, real in columns)], axis=1),
        )
    encoded: tuple[np.ndarray, np.ndarray] = data.cache["features"]
    return encoded


def _one_hot(codes: np.ndarray, size: int) -> np.ndarray:
    indicators: np.ndarray = np.eye(size, dtype=np.float32)[codes]
    return indicators


def _scaled(values: np.ndarray, made: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One column with mean 0 and deviation 1 on the synthetic rows, 0 for a missing value; one that marks those."""
    known = values[made][np.isfinite(values[made])]
    mean, spread = (known.mean(), known.std()) if known.size else (0.0, 1.0)
    table = ((values - mean) / (spread or 1.0))[:, None].astype(np.float32)
    missing = ~np.isfinite(values)
    table[missing] = 0.0
    if missing.any():
        table = np.column_stack([table, missing.astype(np.float32)])
    return table[made], table[real]


def _classifier(learner: Learner, y: np.ndarray) -> Any:
    if learner == "xgb":
        from xgboost import XGBClassifier

        return XGBClassifier(**_BOOSTED)
    if learner == "rf":
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(**_FOREST)
    from sklearn.neural_network import MLPClassifier

    # The split for early stopping is stratified: every class needs a row on each side.
    classes = np.bincount(y)
    validated = int(_VALIDATION * y.size)
    early = validated >= max(_FEWEST_VALIDATED, classes.size) and classes.min() >= 2
    return MLPClassifier(**_MLP, early_stopping=early)


def _regressor(learner: Learner, rows: int) -> Any:
    if learner == "xgb":
        from xgboost import XGBRegressor

        return XGBRegressor(**_BOOSTED)
    if learner == "rf":
        from sklearn.ensemble import RandomForestRegressor

        return RandomForestRegressor(**_FOREST)
    from sklearn.neural_network import MLPRegressor

    return MLPRegressor(**_MLP, early_stopping=int(_VALIDATION * rows) >= _FEWEST_VALIDATED)


def _predictions(model: Any, x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> np.ndarray:
    from sklearn.exceptions import ConvergenceWarning

    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        predicted: np.ndarray = np.asarray(model.fit(x, y).predict(x_test))
    return predicted
