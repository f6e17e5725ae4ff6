"""Wasserstein distances against a linear program over all rows, and against closed forms."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from experiments import transport as module
from experiments.transport import pair_distance
from fedsyn.domain import Domain
from fedsyn.errors import RunError
from fedsyn.evaluation.inputs import ColumnRange, EvaluationInput
from fedsyn.evaluation.real.metrics import evaluate as evaluated
from fedsyn.table.counting.workload import all_kway

DOMAIN = Domain(("x", "y", "c", "e"), (10, 5, 3, 2))
RANGES = {
    "x": ColumnRange(np.arange(10) * 2.0 + 1.0, 0.0, 20.0),
    "y": ColumnRange(np.array([-1.0, 0.0, 5.0, 6.0, np.nan]), -1.0, 6.0),
}


def evaluate(names: list[str], data: EvaluationInput) -> dict[str, float]:
    return evaluated([f"experiments.paper_metrics:{name}" for name in names], data)


@pytest.fixture(autouse=True, scope="module")
def pot() -> None:
    """Imported by the worker that runs the tests alone: it brings JAX along."""
    pytest.importorskip("ot", reason="POT is an extra")


def given(test: np.ndarray, synthetic: np.ndarray, **more: object) -> EvaluationInput:
    arguments = {"domain": DOMAIN, "ranges": RANGES, **more}
    return EvaluationInput(
        train=test, workload=all_kway(arguments["domain"], 1), test=test, synthetic=synthetic, **arguments
    )


def draw(rows: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, n, rows) for n in DOMAIN.shape], axis=1).astype(np.uint8)


def cost(a: float, b: float, numeric: bool, spread: float) -> float:
    if not numeric or np.isinf(a) or np.isinf(b):
        return float(a != b)
    return abs(a - b) / spread if spread else 0.0


def program(real: np.ndarray, made: np.ndarray, numeric: tuple[bool, bool]) -> float:
    """Optimal transport between all rows, as a linear program over every pair of them."""
    n, m = len(real), len(made)
    both = np.concatenate([real, made])
    spreads = [np.ptp(column[np.isfinite(column)]) for column in both.T]
    costs = [
        sum(cost(a, b, is_numeric, spread) for a, b, is_numeric, spread in zip(r, s, numeric, spreads, strict=True))
        for r in real
        for s in made
    ]
    flows = np.concatenate([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    result = linprog(costs, A_eq=flows, b_eq=np.repeat([1 / n, 1 / m], [n, m]), method="highs")
    assert result.success
    return float(result.fun)


@pytest.mark.parametrize("axes", list(itertools.combinations(range(4), 2)))
@pytest.mark.parametrize(("n", "m"), [(15, 15), (9, 20)])
def test_distances_are_those_of_the_linear_program(axes: tuple[int, int], n: int, m: int) -> None:
    data = given(draw(n, 1), draw(m, 2))
    real, made = data.positions(data.test)[:, axes], data.positions(data.synthetic)[:, axes]
    numeric = (axes[0] < 2, axes[1] < 2)
    expected = program(real, made, numeric)
    assert pair_distance(real, made, numeric) == pytest.approx(expected, abs=1e-9)
    assert pair_distance(made, real, numeric) == pytest.approx(expected, abs=1e-9)
    assert expected > 0.05


def test_the_metrics_are_means_over_pairs() -> None:
    data = given(draw(30, 1), draw(30, 2))
    real, made = data.positions(data.test), data.positions(data.synthetic)
    by_pair = {
        pair: program(real[:, pair], made[:, pair], (pair[0] < 2, pair[1] < 2))
        for pair in itertools.combinations(range(4), 2)
    }
    found = evaluate(["wasserstein_numeric", "wasserstein"], data)
    assert found["wasserstein"] == pytest.approx(np.mean(list(by_pair.values())), abs=1e-9)
    assert found["wasserstein_numeric"] == pytest.approx(by_pair[0, 1], abs=1e-9)
    assert evaluate(["wasserstein"], given(draw(30, 1), draw(30, 2)))["wasserstein"] == found["wasserstein"]


def test_a_shift_costs_its_length() -> None:
    rng = np.random.default_rng(0)
    real = rng.random((400, 2))
    real[0], real[1] = 0.0, 1.0
    moved = real + np.array([0.25, 0.0])
    # Scaled by the range of both sides together, 1.25 along the first axis.
    assert pair_distance(real, moved, (True, True)) == pytest.approx(0.25 / 1.25)
    both = pair_distance(real, real + np.array([0.25, 0.5]), (True, True))
    assert both == pytest.approx(0.25 / 1.25 + 0.5 / 1.5)


def test_categorical_pairs_have_between_one_and_two_total_variations() -> None:
    """One category apart costs 1; where only one attribute differs the distance is the total variation."""
    rng = np.random.default_rng(0)
    real = np.column_stack([rng.integers(0, 4, 500), np.zeros(500)]).astype(float)
    made = np.column_stack([rng.integers(0, 3, 500), np.zeros(500)]).astype(float)
    variation = np.abs(
        np.bincount(real[:, 0].astype(int), minlength=4) - np.bincount(made[:, 0].astype(int), minlength=4)
    )
    assert pair_distance(real, made, (False, False)) == pytest.approx(variation.sum() / 1_000)
    assert pair_distance(real, made + np.array([0, 1]), (False, False)) == pytest.approx(1 + variation.sum() / 1_000)


def test_a_missing_number_is_one_away_from_every_number() -> None:
    here, missing = np.array([[2.0, 0.0], [4.0, 0.0]]), np.array([[-np.inf, 0.0], [-np.inf, 0.0]])
    assert pair_distance(here, missing, (True, False)) == pytest.approx(1.0)
    assert pair_distance(missing, missing, (True, False)) == 0.0
    half = np.array([[2.0, 0.0], [-np.inf, 0.0]])
    assert pair_distance(here, half, (True, False)) == pytest.approx(0.5)


def test_the_same_table_is_at_distance_zero_and_an_empty_one_as_far_as_can_be() -> None:
    test = draw(50, 1)
    names = ["wasserstein", "wasserstein_numeric"]
    assert evaluate(names, given(test, test[::-1])) == dict.fromkeys(names, 0.0)
    assert evaluate(names, given(test, test[:0])) == dict.fromkeys(names, 2.0)
    # The farthest that two tables can be apart.
    ends = np.array([[0, 0, 0, 0]]), np.array([[9, 3, 1, 1]])
    assert evaluate(names, given(*ends)) == pytest.approx(dict.fromkeys(names, 2.0))


def test_columns_of_one_value_are_at_distance_zero() -> None:
    test = np.zeros((12, 4), dtype=np.uint8)
    assert evaluate(["wasserstein"], given(test, test[:5]))["wasserstein"] == 0.0


def test_distances_grow_with_the_share_of_wrong_rows() -> None:
    rng = np.random.default_rng(0)
    test = np.column_stack([rng.integers(0, 3, 1_000), rng.integers(0, 2, 1_000), np.zeros((1_000, 2), int)])
    wrong = draw(1_000, 3)
    found = [
        evaluate(["wasserstein", "wasserstein_numeric"], given(test, np.concatenate([wrong[:k], test[k:]])))
        for k in (0, 100, 300, 1_000)
    ]
    for name in ("wasserstein", "wasserstein_numeric"):
        values = [metrics[name] for metrics in found]
        assert values[0] == 0
        assert np.all(np.diff(values) > 0.01)


def test_tables_are_sampled_down_to_the_same_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    original = module.pair_distance

    def spy(real: np.ndarray, made: np.ndarray, numeric: tuple[bool, bool]) -> float:
        sizes.append((len(real), len(made)))
        return original(real, made, numeric)

    monkeypatch.setattr(module, "pair_distance", spy)
    first = evaluate(["wasserstein"], given(draw(40, 1), draw(200, 2)))
    assert set(sizes) == {(40, 40)} and len(sizes) == 6
    assert evaluate(["wasserstein"], given(draw(40, 1), draw(200, 2))) == first
    sizes.clear()
    evaluate(["wasserstein_numeric"], given(draw(40, 1), draw(7, 2)))
    assert sizes == [(40, 7)]
    sizes.clear()
    monkeypatch.setattr(module, "MOST_ROWS", 25)
    evaluate(["wasserstein_numeric"], given(draw(40, 1), draw(200, 2)))
    assert sizes == [(25, 25)]


def test_many_pairs_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    data = given(draw(30, 1), draw(30, 2))
    evaluate(["wasserstein"], data)
    distances = data.cache["wasserstein"]
    monkeypatch.setattr(module, "MOST_PAIRS", 3)
    found = evaluate(["wasserstein"], given(draw(30, 1), draw(30, 2)))["wasserstein"]
    means = {np.round(np.mean(chosen), 12) for chosen in itertools.combinations(distances.values(), 3)}
    assert np.round(found, 12) in means
    assert evaluate(["wasserstein"], given(draw(30, 1), draw(30, 2)))["wasserstein"] == found


def test_numbers_before_binning_are_transported_where_they_are_known() -> None:
    domain, column = Domain(("x", "y"), (2, 2)), ColumnRange(np.array([0.25, 0.75]), 0.0, 1.0)
    test = np.array([[0, 0], [1, 1]])
    more = {"domain": domain, "ranges": {"x": column, "y": column}}
    assert evaluate(["wasserstein"], given(test, test, **more))["wasserstein"] == 0
    numbers = np.array([[0.0, 0.25], [1.0, 0.75]], dtype=np.float32)
    found = evaluate(["wasserstein"], given(test, test, test_numbers=numbers, **more))["wasserstein"]
    assert found == pytest.approx(0.25)


def test_a_transport_that_stops_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ITERATIONS", 2)
    with pytest.raises(RunError, match="transport of a Wasserstein distance failed"), pytest.warns(UserWarning):
        evaluate(["wasserstein"], given(draw(100, 1), draw(100, 2)))
