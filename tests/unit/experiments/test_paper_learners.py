"""Random forest, MLP and XGBoost trained on synthetic rows: scores against scikit-learn, and what cannot be learned."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from experiments import efficacy as module
from experiments.efficacy import features, weighted_f1
from fedsyn.domain import Domain
from fedsyn.evaluation.inputs import ColumnRange, EvaluationInput
from fedsyn.evaluation.real.metrics import evaluate as evaluated
from fedsyn.table.counting.workload import all_kway

pytest.importorskip("xgboost", reason="XGBoost is an extra")

LEARNERS = ("rf", "mlp", "xgb")
F1, RMSE = [f"f1_{x}" for x in LEARNERS], [f"rmse_{x}" for x in LEARNERS]


def evaluate(names: list[str], data: EvaluationInput) -> dict[str, float]:
    return evaluated([f"experiments.paper_metrics:{name}" for name in names], data)


def labelled(rows: int, classes: int, seed: int, noise: float = 0.2) -> tuple[np.ndarray, Domain]:
    """Rows whose label follows from a number and a category, but for a share of noise."""
    rng = np.random.default_rng(seed)
    number, category, idle = rng.integers(0, 40, rows), rng.integers(0, 3, rows), rng.integers(0, 5, rows)
    clean = (number * classes // 40 + (category == 1)) % classes
    y = np.where(rng.random(rows) < noise, rng.integers(0, classes, rows), clean)
    return np.column_stack([number, category, y, idle]), Domain(("n", "c", "y", "i"), (40, 3, classes, 5))


def given(synthetic: np.ndarray, test: np.ndarray, domain: Domain, **more: object) -> EvaluationInput:
    arguments = {
        "ranges": {"n": ColumnRange(np.linspace(0, 1, domain["n"]), 0.0, 1.0)} if "n" in domain else {},
        **more,
    }
    return EvaluationInput(
        train=test,
        domain=domain,
        workload=all_kway(domain, 1),
        synthetic=synthetic,
        test=test,
        label="y",
        **arguments,
    )


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("classes", [2, 4])
def test_classifiers_learn_what_can_be_learned_and_the_score_is_weighted(classes: int) -> None:
    synthetic, domain = labelled(3_000, classes, 0)
    test, _ = labelled(800, classes, 1)
    data = given(synthetic, test, domain)
    found = evaluate(F1, data)
    # 80% of the labels, and one in `classes` of the others, are what number and category say. The standard error
    # of a score over 800 rows is below 0.02.
    for name in F1:
        assert found[name] == pytest.approx(0.8 + 0.2 / classes, abs=0.06), name
    assert evaluate(F1, given(synthetic, test, domain)) == found
    shuffled = synthetic.copy()
    shuffled[:, 2] = np.random.default_rng(2).permutation(shuffled[:, 2])
    for name, score in evaluate(F1, given(shuffled, test, domain)).items():
        assert score < 1 / classes + 0.1, name


def test_f1_is_weighted_by_class() -> None:
    """A constant prediction of a class with 84.5% of the rows scores the published figure for shoppers."""
    constant = weighted_f1(np.repeat([0, 1], [8453, 1547]), np.zeros(10_000, dtype=int))
    assert constant == pytest.approx(0.774, abs=5e-4)


@pytest.mark.slow
@pytest.mark.thorough
def test_regressions_give_errors_in_the_unit_of_the_label() -> None:
    synthetic, domain = labelled(1_000, 6, 0, noise=0)
    test, _ = labelled(300, 6, 1, noise=0)
    values = np.arange(6) * 1000.0 + 500
    data = given(synthetic, test, domain, label_values=values)
    exact = evaluate(RMSE, data)
    spread = np.std(values[test[:, 2]])
    assert exact["rmse_rf"] < 0.1 * spread
    assert exact["rmse_xgb"] < 0.1 * spread
    assert exact["rmse_mlp"] < 0.5 * spread
    thousand = evaluate(RMSE, given(synthetic, test, domain, label_values=values / 1000))
    assert thousand == pytest.approx({name: error / 1000 for name, error in exact.items()}, rel=0.02)
    # Labels in random order leave what the features cannot explain: the spread of the values.
    shuffled = synthetic.copy()
    shuffled[:, 2] = np.random.default_rng(5).permutation(shuffled[:, 2])
    for name, error in evaluate(RMSE, given(shuffled, test, domain, label_values=values)).items():
        assert error > 0.9 * spread, name


def test_real_and_synthetic_labels_share_one_encoding() -> None:
    """Labels that differ in which values occur keep their meaning: 500 off is an error of 500."""
    domain = Domain(("c", "y"), (1, 6))
    values = np.array([0.0, 100.0, 200.0, 600.0, 700.0, 800.0])
    synthetic, test = np.tile([[0, 1]], (60, 1)), np.tile([[0, 3]], (20, 1))
    found = evaluate(RMSE, given(synthetic, test, domain, label_values=values))
    assert found == pytest.approx(dict.fromkeys(RMSE, 500.0))
    mixed = np.repeat([[0, 1], [0, 5]], [30, 30], axis=0)
    # The only feature is constant: each learner predicts the mean, 450.
    found = evaluate(RMSE, given(mixed, test, domain, label_values=values))
    assert found == pytest.approx(dict.fromkeys(RMSE, 150.0), abs=30)
    # Classes that the synthetic table lacks leave gaps in the codes of the label; they keep their numbers.
    synthetic, domain = labelled(600, 3, 0, noise=0)
    test, _ = labelled(200, 3, 1, noise=0)
    gap = evaluate(F1, given(synthetic[synthetic[:, 2] != 0], test[test[:, 2] != 0], domain))
    for name, score in gap.items():
        assert score > 0.85, name


def test_features_are_scaled_by_synthetic_rows_and_encoded_alike_on_both_sides() -> None:
    domain = Domain(("n", "c", "y", "w"), (4, 3, 2, 300))
    synthetic = np.array([[0, 0, 0, 10], [1, 2, 1, 20], [3, 2, 1, 30]])
    test = np.array([[2, 1, 0, 299], [3, 2, 0, 20]])
    column = ColumnRange(np.array([1.0, 3.0, 100.0, np.nan]), 0.0, 100.0)
    x, x_test = features(given(synthetic, test, domain, ranges={"n": column}))
    deviation = np.sqrt(200 / 3)
    expected = [
        [-1, 0, 1, 0, 0, -10 / deviation],
        [1, 0, 0, 0, 1, 0],
        [0, 1, 0, 0, 1, 10 / deviation],
    ]
    np.testing.assert_allclose(x, expected, atol=1e-6)
    # Number 100 is (100 - 2) / 1; the missing one has 0 and a mark; a category that no synthetic row has, its column.
    np.testing.assert_allclose(x_test, [[98, 0, 0, 1, 0, 279 / deviation], [0, 1, 0, 0, 1, 0]], rtol=1e-6, atol=1e-6)


def test_cases_in_which_nothing_can_be_learned() -> None:
    test, domain = labelled(60, 3, 1)
    truth = test[:, 2]
    one = np.tile([[5, 1, 2, 0]], (30, 1))
    assert evaluate(F1, given(one, test, domain)) == pytest.approx(
        dict.fromkeys(F1, f1_score(truth, np.full(60, 2), average="weighted"))
    )
    assert evaluate(F1, given(one[:0], test, domain)) == pytest.approx(
        dict.fromkeys(F1, f1_score(truth, np.zeros(60), average="weighted"))
    )
    values = np.array([10.0, 20.0, 40.0])
    error = np.sqrt(np.mean((values[truth] - 40) ** 2))
    assert evaluate(RMSE, given(one, test, domain, label_values=values)) == pytest.approx(dict.fromkeys(RMSE, error))
    error = np.sqrt(np.mean((values[truth] - 25) ** 2))
    assert evaluate(RMSE, given(one[:0], test, domain, label_values=values)) == pytest.approx(
        dict.fromkeys(RMSE, error)
    )
    alone = Domain(("y",), (3,))
    only = given(np.array([[2], [2], [0]]), truth[:, None], alone, label_values=values)
    assert evaluate(F1, only)["f1_xgb"] == pytest.approx(f1_score(truth, np.full(60, 2), average="weighted"))
    assert evaluate(RMSE, only)["rmse_rf"] == pytest.approx(np.sqrt(np.mean((values[truth] - 30) ** 2)))


@pytest.mark.slow
@pytest.mark.thorough
def test_few_rows_and_rare_classes_are_learned_without_early_stopping() -> None:
    test, domain = labelled(50, 4, 1)
    for rows in (2, 30, 120):
        synthetic, _ = labelled(rows, 4, 2)
        synthetic[0, 2], synthetic[-1, 2] = 0, 1
        found = evaluate(F1 + RMSE, given(synthetic, test, domain, label_values=np.arange(4.0)))
        assert all(np.isfinite(score) for score in found.values())
    # A stratified split can divide neither a class of one row nor two classes where it takes one row.
    rare, two = labelled(400, 2, 3)
    rare[:, 2] = 0
    rare[0, 2] = 1
    few = rare[:8].copy()
    few[:4, 2] = 1
    test, _ = labelled(50, 2, 1)
    for synthetic in (rare, few):
        assert all(0 <= score <= 1 for score in evaluate(F1, given(synthetic, test, two)).values())


def test_labels_without_a_value_are_left_out() -> None:
    synthetic, domain = labelled(500, 3, 0, noise=0)
    test, _ = labelled(100, 3, 1, noise=0)
    found = evaluate(RMSE, given(synthetic, test, domain, label_values=np.array([10.0, 20.0, np.nan])))
    assert all(error < 3 for error in found.values())


def test_results_do_not_depend_on_the_threads_of_the_machine() -> None:
    from threadpoolctl import threadpool_info

    seen = []

    class Spy:
        def fit(self, x: np.ndarray, y: np.ndarray) -> "Spy":
            seen.extend(pool["num_threads"] for pool in threadpool_info())
            return self

        def predict(self, x: np.ndarray) -> np.ndarray:
            return np.zeros(len(x))

    module._predictions(Spy(), np.zeros((2, 1)), np.zeros(2), np.zeros((3, 1)))
    assert seen and set(seen) == {1}
