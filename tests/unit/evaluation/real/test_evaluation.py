"""Metrics against definitions computed by hand or by brute force over the whole domain."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError
from fedsyn.evaluation.inputs import EvaluationInput, label_values
from fedsyn.evaluation.real import marginals as marginal_metrics
from fedsyn.evaluation.real.marginals import client_heterogeneity
from fedsyn.evaluation.real.metrics import evaluate
from fedsyn.evaluation.real.prediction import _classify
from fedsyn.registry import METRICS, installed_only, metric
from fedsyn.table.counting.workload import Workload, all_kway

DOMAIN = Domain(("a", "b", "c", "y"), (3, 4, 2, 2))
PAPERS = "experiments.paper_metrics"


@dataclass
class Table:
    """A distribution given by all its probabilities: what the junction tree must agree with."""

    domain: Domain
    p: np.ndarray
    total: float = 50.0

    def project_many(self, cliques: list[Clique]) -> list[np.ndarray]:
        return [self.total * self._marginal(clique) for clique in cliques]

    def probability_at(self, clique: Clique, cells: np.ndarray) -> np.ndarray:
        return self._marginal(clique)[tuple(cells.T)]

    def log_likelihood(self, codes: np.ndarray) -> np.ndarray:
        return np.log(self.p[tuple(codes.T)])

    def _marginal(self, clique: Clique) -> np.ndarray:
        axes = self.domain.axes(clique)
        kept = self.p.sum(axis=tuple(i for i in range(self.p.ndim) if i not in axes))
        return np.transpose(kept, np.argsort(np.argsort(axes)))


def draw(rows: int, seed: int = 0, domain: Domain = DOMAIN) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, n, rows) ** 2 // n for n in domain.shape], axis=1).astype(np.uint8)


def joint(seed: int = 0, domain: Domain = DOMAIN) -> Table:
    return Table(domain, np.random.default_rng(seed).dirichlet(np.ones(domain.size())).reshape(domain.shape))


def histogram(codes: np.ndarray, clique: Clique, domain: Domain = DOMAIN) -> np.ndarray:
    """Normalised marginal, row by row."""
    counts = np.zeros(domain.shape_of(clique))
    for row in codes:
        counts[tuple(row[list(domain.axes(clique))])] += 1
    return counts / len(codes)


WORKLOAD = Workload((("a", "b"), ("c", "a"), ("b", "c", "y"), ("y",)), (1.0, 2.0, 0.5, 4.0))


def by_hand(codes: np.ndarray, other: list[np.ndarray]) -> float:
    errors = [np.abs(histogram(codes, q) - p).sum() for q, p in zip(WORKLOAD.cliques, other, strict=True)]
    return sum(w * e for w, e in zip(WORKLOAD.weights, errors, strict=True)) / sum(WORKLOAD.weights)


def test_workload_error_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    train, model = draw(60), joint()
    data = EvaluationInput(train=train, domain=DOMAIN, workload=WORKLOAD, model=model)
    expected = by_hand(train, [m / model.total for m in model.project_many(list(WORKLOAD.cliques))])
    assert evaluate(["workload_error"], data)["workload_error"] == pytest.approx(expected, abs=1e-12)
    # The way of counting depends on the sizes of the cliques; the result does not.
    monkeypatch.setattr(marginal_metrics, "_CELLS_AT_ONCE", 1)
    assert evaluate(["workload_error"], data)["workload_error"] == pytest.approx(expected, abs=1e-12)
    monkeypatch.setattr(marginal_metrics, "_LARGEST_DENSE", 1)
    assert evaluate(["workload_error"], data)["workload_error"] == pytest.approx(expected, abs=1e-12)


def test_workload_error_of_a_synthetic_table() -> None:
    train, synthetic = draw(60), draw(35, seed=1)
    data = EvaluationInput(train=train, domain=DOMAIN, workload=WORKLOAD, synthetic=synthetic)
    expected = by_hand(train, [histogram(synthetic, q) for q in WORKLOAD.cliques])
    assert evaluate(["workload_error"], data)["workload_error"] == pytest.approx(expected, abs=1e-12)
    same = EvaluationInput(train=train, domain=DOMAIN, workload=WORKLOAD, synthetic=np.tile(train, (3, 1)))
    assert evaluate(["workload_error"], same)["workload_error"] == pytest.approx(0, abs=1e-12)
    empty = EvaluationInput(train=train, domain=DOMAIN, workload=WORKLOAD, synthetic=train[:0])
    assert evaluate(["workload_error"], empty)["workload_error"] == pytest.approx(1)


def test_workload_error_of_a_clique_with_more_cells_than_an_integer_can_number() -> None:
    wide = Domain(tuple(f"a{i}" for i in range(12)), (256,) * 12)
    train = np.random.default_rng(0).integers(0, 256, (30, 12))
    other = train.copy()
    other[:6, 0] = (other[:6, 0] + 1) % 256  # in an index of 64 bits the first four columns would be lost
    workload = Workload.uniform([wide.attributes])
    data = EvaluationInput(train=train, domain=wide, workload=workload, synthetic=other)
    assert evaluate(["workload_error"], data)["workload_error"] == pytest.approx(2 * 6 / 30)


def test_nll_is_the_mean_over_held_out_rows() -> None:
    model, test = joint(), draw(20, seed=2)
    data = EvaluationInput(train=draw(5), domain=DOMAIN, workload=WORKLOAD, model=model, test=test)
    expected = -sum(math.log(model.p[tuple(row)]) for row in test) / 20
    assert evaluate(["nll"], data)["nll"] == pytest.approx(expected, abs=1e-12)


def test_heterogeneity_is_the_distance_of_each_client_from_the_pooled_table() -> None:
    train = draw(40)
    parts = [np.array(rows) for rows in np.split(np.random.default_rng(3).permutation(40), [1, 7, 30])]
    pooled = [histogram(train, q) for q in WORKLOAD.cliques]
    expected = [by_hand(train[part], pooled) for part in parts]
    found = client_heterogeneity(train, DOMAIN, WORKLOAD, parts)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    data = EvaluationInput(train=train, domain=DOMAIN, workload=WORKLOAD, partition=parts)
    assert evaluate(["heterogeneity"], data)["heterogeneity"] == pytest.approx(np.mean(expected), abs=1e-12)


def test_heterogeneity_of_one_client_is_zero_and_of_disjoint_clients_is_twice_the_other_share() -> None:
    train = np.repeat([[0, 0, 0, 0], [2, 3, 1, 1]], [30, 10], axis=0)
    workload = all_kway(DOMAIN, 2)
    assert client_heterogeneity(train, DOMAIN, workload, [np.arange(40)])[0] == 0.0
    split = client_heterogeneity(train, DOMAIN, workload, [np.arange(30), np.arange(30, 40)])
    np.testing.assert_allclose(split, [2 * 0.25, 2 * 0.75])


def learning(synthetic: np.ndarray, test: np.ndarray, domain: Domain = DOMAIN, **more: object) -> EvaluationInput:
    return EvaluationInput(
        train=test, domain=domain, workload=WORKLOAD, synthetic=synthetic, test=test, label="y", **more
    )


def labelled(rows: int, classes: int, seed: int, noise: float = 0.2) -> tuple[np.ndarray, Domain]:
    """Rows whose label follows from the first column, but for a share of noise."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 30, (rows, 3))
    y = np.where(rng.random(rows) < noise, rng.integers(0, classes, rows), x[:, 0] * classes // 30)
    return np.column_stack([x, y]), Domain(("a", "b", "c", "y"), (30, 30, 30, classes))


@pytest.mark.parametrize("classes", [2, 4])
def test_classifier_metrics_are_as_defined(classes: int) -> None:
    """AUC counts pairs that are ranked rightly, ties one half; F1 is 2 TP / (rows of the class + rows predicted)."""
    synthetic, domain = labelled(2_000, classes, 0)
    test, _ = labelled(500, classes, 1)
    data = learning(synthetic, test, domain)
    found = evaluate(["auc", "f1", "accuracy"], data)
    scores, truth = _classify(data).scores, test[:, 3]
    predicted = np.argmax(scores, axis=1)
    areas, f1 = [], []
    for code in range(classes):
        real, made = truth == code, predicted == code
        above = scores[real, code][:, None] - scores[~real, code][None, :]
        areas.append(np.mean((np.sign(above) + 1) / 2))
        f1.append(2 * np.sum(real & made) / (np.sum(real) + np.sum(made)))
    assert found["auc"] == pytest.approx(np.mean(areas)) and found["f1"] == pytest.approx(np.mean(f1))
    assert found["accuracy"] == np.mean(truth == predicted)
    # 80% of the labels, and one in `classes` of the others, are what the first column says.
    assert found["accuracy"] == pytest.approx(0.8 + 0.2 / classes, abs=0.06)
    assert found["auc"] > 0.8
    assert evaluate(["auc", "f1", "accuracy"], learning(synthetic, test, domain)) == found


def test_a_synthetic_label_with_one_value_predicts_it() -> None:
    test = draw(50, seed=4)
    synthetic = draw(80)
    synthetic[:, 3] = 1
    share = float(np.mean(test[:, 3] == 1))
    found = evaluate(["auc", "f1", "accuracy"], learning(synthetic, test))
    assert found == {"auc": 0.5, "f1": pytest.approx(2 * share / (1 + share) / 2), "accuracy": share}


def test_a_synthetic_table_without_rows_predicts_the_first_value() -> None:
    test = draw(50, seed=4)
    found = evaluate(["auc", "accuracy"], learning(draw(0), test))
    assert found == {"auc": 0.5, "accuracy": float(np.mean(test[:, 3] == 0))}


def test_a_table_of_the_label_alone_predicts_the_most_frequent_value() -> None:
    domain = Domain(("y",), (3,))
    synthetic, test = np.repeat([[2], [0]], [6, 4], axis=0), np.array([[2], [2], [0], [1]])
    data = EvaluationInput(
        train=test,
        domain=domain,
        workload=Workload.uniform([("y",)]),
        synthetic=synthetic,
        test=test,
        label="y",
    )
    assert evaluate(["auc", "accuracy"], data) == {"auc": 0.5, "accuracy": 0.5}


def test_held_out_rows_of_one_class_and_classes_never_seen() -> None:
    synthetic, domain = labelled(300, 3, 0)
    test, _ = labelled(60, 3, 1)
    alone = evaluate(["auc", "f1", "accuracy"], learning(synthetic, test[test[:, 3] == 1], domain))
    assert alone["auc"] == 0.5
    unseen = evaluate(["auc", "accuracy"], learning(synthetic[synthetic[:, 3] != 0], test, domain))
    assert 0 < unseen["accuracy"] < 1
    assert 0.5 < unseen["auc"] < 1


def test_rmse_is_in_the_unit_of_the_label() -> None:
    synthetic, domain = labelled(2_000, 10, 0, noise=0)
    test, _ = labelled(300, 10, 1, noise=0)
    values = np.arange(10) * 1000.0 + 500
    exact = evaluate(["rmse"], learning(synthetic, test, domain, label_values=values))["rmse"]
    assert exact < 0.1 * 1000
    # What the features do not explain remains: labels in random order have the spread of the values.
    shuffled = synthetic.copy()
    shuffled[:, 3] = np.random.default_rng(5).permutation(shuffled[:, 3])
    loose = evaluate(["rmse"], learning(shuffled, test, domain, label_values=values))["rmse"]
    assert loose == pytest.approx(np.std(values[test[:, 3]]), rel=0.2)


def test_rmse_leaves_missing_labels_out() -> None:
    synthetic, domain = labelled(500, 3, 0, noise=0)
    test, _ = labelled(100, 3, 1, noise=0)
    values = np.array([10.0, 20.0, np.nan])
    found = evaluate(["rmse"], learning(synthetic, test, domain, label_values=values))["rmse"]
    assert found < 1
    known = values[test[:, 3]][test[:, 3] < 2]
    nothing = synthetic[synthetic[:, 3] == 2]
    fallback = evaluate(["rmse"], learning(nothing, test, domain, label_values=values))["rmse"]
    assert fallback == pytest.approx(np.sqrt(np.mean((known - 15) ** 2)))


def test_label_values_are_middles_of_bins_or_numeric_categories() -> None:
    from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema

    schema = Schema(
        columns={
            "float": NumericColumn(lower=0, upper=10, bins=4, missing=True),
            "integer": NumericColumn(lower=1, upper=6, bins=3, dtype="integer"),
            "number": CategoricalColumn(categories=(3, 1)),
            "text": CategoricalColumn(categories=("u", "v")),
        }
    )
    np.testing.assert_array_equal(label_values(schema, "float"), [1.25, 3.75, 6.25, 8.75, np.nan])
    np.testing.assert_array_equal(label_values(schema, "integer"), [1.5, 3.5, 5.5])
    np.testing.assert_array_equal(label_values(schema, "number"), [3, 1])
    assert label_values(schema, "text") is None
    for name, column in schema.columns.items():
        values = label_values(schema, name)
        assert values is None or values.shape == (column.size,)


@pytest.mark.parametrize(
    ("names", "arguments", "message"),
    [
        (["workload_eror"], {}, r"unknown metric 'workload_eror' \(did you mean 'workload_error'\?\)"),
        (
            ["workload_error", "nll"],
            {"has_test": False},
            r"'nll' needs held-out rows: set data\.test_fraction",
        ),
        (["auc"], {"has_test": False}, "'auc' needs held-out rows"),
        (["f1"], {"label": None}, r"'f1' needs a label: set data\.label"),
        (["rmse"], {"numeric_label": False}, "'rmse' needs a numeric label"),
        (["nll"], {"has_model": False}, "'nll' needs a mechanism that estimates a model"),
        (["heterogeneity"], {"has_partition": False}, "'heterogeneity' needs a simulation"),
        (["range_query_error"], {"has_test": False}, "'range_query_error' needs held-out rows"),
        (["range_query_error"], {"attributes": 1}, "'range_query_error' needs at least 2 attributes: the table has 1"),
        (["error_3way"], {"attributes": 2}, "'error_3way' needs at least 3 attributes"),
        (
            [f"{PAPERS}:wasserstein_numeric"],
            {"attributes": 5, "numeric_attributes": 1},
            "'wasserstein_numeric' needs at least 2 numeric attributes: the table has 1",
        ),
        ([f"{PAPERS}:f1_rf"], {"label": None}, r"'f1_rf' needs a label: set data\.label"),
        ([f"{PAPERS}:rmse_xgb"], {"numeric_label": False}, "'rmse_xgb' needs a numeric label"),
        ([f"{PAPERS}:f1_with"], {}, "is not a Metric of that name"),
        ([f"{PAPERS}:f1_nobody"], {}, "has no 'f1_nobody'"),
    ],
)
def test_a_metric_that_cannot_be_computed_is_refused_beforehand(
    names: list[str], arguments: dict, message: str
) -> None:
    with installed_only(), pytest.raises(ConfigError, match="is the path of a module"):
        metric(f"{PAPERS}:f1_rf")
    for name in METRICS:
        metric(name).require(has_test=True, label="y")
    with pytest.raises(ConfigError, match=message):
        for name in names:
            metric(name).require(**{"has_test": True, "label": "y", **arguments})


@pytest.mark.parametrize(
    ("package", "name", "project", "extra"),
    [
        ("xgboost", f"{PAPERS}:f1_xgb", "XGBoost", "papers"),
        ("ot", f"{PAPERS}:wasserstein", "POT", "papers"),
        ("sklearn", "rmse", "scikit-learn", "evaluation"),
    ],
)
def test_a_missing_package_is_named_before_the_run(
    package: str, name: str, project: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsyn.evaluation.inputs.find_spec", lambda asked: None if asked == package else object())
    message = rf"'{name.rpartition(':')[2]}' needs {project}, which is not installed: pip install '.*\.whl\[{extra}\]'"
    with pytest.raises(ConfigError, match=message):
        metric(name).require(has_test=True, label="y")
    for other in ("workload_error", "range_query_error"):
        metric(other).require(has_test=True, label="y")


def test_directions_of_the_metrics() -> None:
    higher = {name for name in METRICS if not metric(name).lower_is_better}
    assert higher == {"auc", "f1", "accuracy"}


def test_evaluate_refuses_what_the_input_lacks() -> None:
    bare = EvaluationInput(train=draw(5), domain=DOMAIN, workload=WORKLOAD, test=draw(5), label="y")
    with pytest.raises(ConfigError, match="'workload_error' needs a synthetic table"):
        evaluate(["workload_error"], bare)
    with pytest.raises(ConfigError, match="'auc' needs a synthetic table"):
        evaluate(["auc"], bare)
    with pytest.raises(ConfigError, match="'nll' needs"):
        evaluate(["nll"], bare)
    with pytest.raises(ConfigError, match="held-out rows"):
        evaluate(["auc"], learning(draw(5), draw(0)))
    with pytest.raises(ConfigError, match="'wasserstein_numeric' needs at least 2 numeric attributes: the table has 0"):
        evaluate([f"{PAPERS}:wasserstein_numeric"], learning(draw(5), draw(5)))
    with pytest.raises(ConfigError, match="'range_query_error' needs a synthetic table"):
        evaluate(["range_query_error"], bare)


def test_a_run_measures_its_held_out_rows_with_their_own_numbers(tmp_path: Path) -> None:
    """The metrics of a run are those of the rows that it held out, read again from the table."""
    import json

    from fedsyn.evaluation.inputs import column_ranges
    from fedsyn.loading import load_config
    from fedsyn.runs.engines import run
    from fedsyn.runs.prepare import split_rows
    from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema

    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.random(300) ** 3, "y": rng.random(300), "z": rng.choice(["u", "v"], 300)})
    schema = Schema(
        columns={
            "x": NumericColumn(lower=0, upper=1, bins=4),
            "y": NumericColumn(lower=0, upper=1, bins=4),
            "z": CategoricalColumn(categories=("u", "v"), other=False),
        },
        label="z",
    )
    schema.save(tmp_path / "schema.yaml")
    of_papers = ("range_query_error_3", "wasserstein", "wasserstein_numeric", "f1_xgb")
    names = ["range_query_error", *(f"{PAPERS}:{name}" for name in of_papers)]
    written = {
        "mechanism": {"name": "aim"},
        "data": {"source": "given", "schema": str(tmp_path / "schema.yaml"), "test_fraction": 0.2},
        "privacy": {"epsilon": 5.0, "delta": 1e-5},
        "workload": {"degree": 2},
        "evaluation": names,
        "runtime": {"engine": "inprocess", "seed": 0},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(written))
    config = load_config(tmp_path / "run.yaml")
    with pytest.MonkeyPatch.context() as patch:
        seen: list[EvaluationInput] = []
        patch.setattr("fedsyn.runs.finish.evaluate", lambda asked, data: (seen.append(data), evaluate(asked, data))[1])
        found = run(config, tmp_path / "out", table=table)
    held = np.flatnonzero(split_rows(config.data, 300)[1])
    (data,) = seen
    np.testing.assert_array_equal(data.test_numbers, schema.block(table.iloc[held]).numbers)
    np.testing.assert_array_equal(data.test, schema.encode(table.iloc[held]))
    again = EvaluationInput(
        train=data.train,
        domain=schema.domain,
        workload=data.workload,
        test=schema.encode(table.iloc[held]),
        synthetic=data.synthetic,
        label="z",
        ranges=column_ranges(schema),
        test_numbers=schema.block(table.iloc[held]).numbers,
    )
    assert evaluate(names, again) == {name: found[name] for name in ("range_query_error", *of_papers)}


def test_metrics_of_the_inference_engine_match_brute_force() -> None:
    from fedsyn.inference import Measurement, estimate

    target = joint(7)
    cliques = [("a", "b"), ("b", "c"), ("c", "y")]
    measured = zip(cliques, target.project_many(cliques), strict=True)
    model = estimate(DOMAIN, [Measurement(q, m, 1.0) for q, m in measured], total=target.total)
    p = np.exp(model.log_likelihood(np.array(list(np.ndindex(DOMAIN.shape))))).reshape(DOMAIN.shape)
    brute = Table(DOMAIN, p)
    train, test = draw(60), draw(30, seed=1)
    more = {"train": train, "test": test, "domain": DOMAIN, "workload": WORKLOAD}
    ours = evaluate(["workload_error", "nll"], EvaluationInput(model=model, **more))
    assert ours == pytest.approx(evaluate(["workload_error", "nll"], EvaluationInput(model=brute, **more)), abs=1e-9)


def test_every_run_of_a_wide_table_is_measured_on_the_same_thousand_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    domain = Domain(tuple(f"c{i}" for i in range(46)), (2,) * 46)
    data = EvaluationInput(train=np.zeros((1, 46), int), domain=domain, workload=all_kway(domain, 1))
    asked: list[tuple[Clique, ...]] = []

    def error(data: EvaluationInput) -> float:
        asked.append(data.workload.cliques)
        return 0.0

    monkeypatch.setattr(marginal_metrics, "workload_error", error)
    for ways in (2, 2, 3):
        marginal_metrics.kway_error(data, ways)
    assert [len(cliques) for cliques in asked] == [1_000, 1_000, 64] and asked[0] == asked[1]
