"""Range queries against counting row by row, and the distribution that their bounds are drawn from."""

import numpy as np
import pandas as pd
import pytest

from fedsyn.domain import Domain
from fedsyn.evaluation import boxes
from fedsyn.evaluation.boxes import QUERIES, RangeQueries, random_queries
from fedsyn.evaluation.inputs import ColumnRange, EvaluationInput, column_ranges, sample_rows
from fedsyn.evaluation.real import marginals
from fedsyn.evaluation.real.metrics import evaluate
from fedsyn.table.counting.workload import all_kway
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema

SCHEMA = Schema(
    columns={
        "age": NumericColumn(lower=20, upper=29, bins=5, dtype="integer"),
        "dose": NumericColumn(lower=0, upper=1, bins=4, missing=True),
        "ward": CategoricalColumn(categories=("a", "b", "c"), other=False),
        "site": CategoricalColumn(categories=(10, 20)),
    },
    label="site",
)
DOMAIN = SCHEMA.domain


def frame(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    dose = rng.random(rows)
    dose[rng.random(rows) < 0.2] = np.nan
    return pd.DataFrame(
        {
            "age": rng.integers(20, 30, rows),
            "dose": dose,
            "ward": rng.choice(["a", "b", "c"], rows),
            "site": rng.choice([10, 20], rows),
        }
    )


def given(test: np.ndarray, synthetic: np.ndarray, schema: Schema = SCHEMA, **more: object) -> EvaluationInput:
    domain = schema.domain
    return EvaluationInput(
        train=test,
        domain=domain,
        workload=all_kway(domain, 1),
        test=test,
        synthetic=synthetic,
        ranges=column_ranges(schema),
        **more,
    )


def value(name: str, code: int) -> float:
    """What a code stands for, written out."""
    if name == "age":
        return [20.5, 22.5, 24.5, 26.5, 28.5][code]
    if name == "dose":
        return [0.125, 0.375, 0.625, 0.875, np.nan][code]
    return code


def share(table: list[list[float]], query: RangeQueries, q: int) -> float:
    """Share of rows inside one query, row by row; a comparison with NaN is false."""
    hits = 0
    for row in table:
        bounds = zip(query.axes[q], query.low[q], query.high[q], strict=True)
        hits += all(low <= row[axis] <= high for axis, low, high in bounds)
    return hits / len(table)


@pytest.mark.parametrize("ways", [2, 3])
@pytest.mark.parametrize("raw", [False, True])
def test_the_error_is_the_mean_difference_over_queries_counted_row_by_row(ways: int, raw: bool) -> None:
    real, other = frame(40, 0), frame(40, 1)
    test, synthetic = SCHEMA.encode(real), SCHEMA.encode(other)
    numbers = SCHEMA.block(real).numbers if raw else None
    found = marginals.range_query_error(given(test, synthetic, test_numbers=numbers), ways)

    rng = np.random.default_rng([boxes.QUERY_SEED, ways])
    query = random_queries(DOMAIN, column_ranges(SCHEMA), ways, QUERIES, rng)
    made = [[value(a, c) for a, c in zip(DOMAIN.attributes, row, strict=True)] for row in synthetic]
    held = [[value(a, c) for a, c in zip(DOMAIN.attributes, row, strict=True)] for row in test]
    if raw:
        for row, (_, original) in zip(held, real.iterrows(), strict=True):
            row[:2] = [float(original["age"]), float(original["dose"])]
    expected = np.mean([abs(share(held, query, q) - share(made, query, q)) for q in range(QUERIES)])
    assert found == pytest.approx(expected, abs=1e-12)
    assert found > 0.01


def test_bounds_follow_the_stated_distribution() -> None:
    """lo ~ U(lower, upper), hi ~ U(lo, upper), values and sets of attributes equally likely.

    200,000 queries: each of the 20 means below is within 5 of its standard errors (false alarm below 1e-5).
    """
    number = 200_000
    query = random_queries(DOMAIN, column_ranges(SCHEMA), 2, number, np.random.default_rng(0))
    assert np.all(query.axes[:, 0] != query.axes[:, 1])
    sets = np.bincount(query.axes.min(axis=1) * 4 + query.axes.max(axis=1), minlength=16)
    assert np.all(np.abs(sets[sets > 0] - number / 6) < 5 * np.sqrt(number / 6))
    assert np.count_nonzero(sets) == 6
    for axis, (lower, upper) in enumerate([(20.0, 29.0), (0.0, 1.0)]):
        chosen = query.axes == axis
        low, high = (query.low[chosen] - lower) / (upper - lower), (query.high[chosen] - lower) / (upper - lower)
        error = 5 / np.sqrt(low.size)
        assert low.mean() == pytest.approx(1 / 2, abs=error * np.sqrt(1 / 12))
        assert high.mean() == pytest.approx(3 / 4, abs=error * np.sqrt(7 / 144))
        assert np.mean(high - low) == pytest.approx(1 / 4, abs=error * np.sqrt(7 / 144))
        assert np.corrcoef((high - low) / (1 - low), low)[0, 1] == pytest.approx(0, abs=error)
        assert low.min() >= 0 and np.all(high >= low) and high.max() <= 1
    for axis, size in ((2, 3), (3, 2)):
        chosen = query.axes == axis
        assert np.array_equal(query.low[chosen], query.high[chosen])
        counts = np.bincount(query.low[chosen].astype(int), minlength=size)
        assert counts.size == size
        assert np.all(np.abs(counts - chosen.sum() / size) < 5 * np.sqrt(chosen.sum() / size))


def test_answers_do_not_depend_on_the_size_of_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = given(SCHEMA.encode(frame(50, 0)), SCHEMA.encode(frame(70, 1)))
    whole = evaluate(["range_query_error"], data)
    monkeypatch.setattr(boxes, "_COMPARED_AT_ONCE", 130)
    assert evaluate(["range_query_error"], data) == whole


def test_every_run_of_a_table_answers_the_same_queries() -> None:
    test = SCHEMA.encode(frame(60, 0))
    asked = []
    original = marginals.random_queries

    def spy(*arguments: object) -> RangeQueries:
        asked.append(original(*arguments))
        return asked[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marginals, "random_queries", spy)
        for seed in (1, 2):
            evaluate(["range_query_error"], given(test, SCHEMA.encode(frame(80, seed))))
    np.testing.assert_array_equal(asked[0].axes, asked[1].axes)
    np.testing.assert_array_equal(asked[0].low, asked[1].low)
    np.testing.assert_array_equal(asked[0].high, asked[1].high)


def test_the_same_table_has_no_error_and_an_empty_one_answers_nothing() -> None:
    test = SCHEMA.encode(frame(60, 0))
    names = ["range_query_error", "experiments.paper_metrics:range_query_error_3"]
    assert evaluate(names, given(test, test)) == {"range_query_error": 0.0, "range_query_error_3": 0.0}
    empty = evaluate(names, given(test, test[:0]))
    query = random_queries(DOMAIN, column_ranges(SCHEMA), 2, QUERIES, np.random.default_rng([boxes.QUERY_SEED, 2]))
    assert empty["range_query_error"] == pytest.approx(query.answers(given(test, test).positions(test)).mean())
    assert empty["range_query_error"] > empty["range_query_error_3"] > 0


def test_the_error_grows_with_the_share_of_wrong_rows() -> None:
    rng = np.random.default_rng(0)
    test = np.column_stack([rng.integers(0, 2, 3_000), rng.integers(0, 2, 3_000), np.zeros((3_000, 2), int)])
    wrong = np.column_stack([rng.integers(0, n, 3_000) for n in DOMAIN.shape])
    found = []
    for part in (0, 300, 1_000, 3_000):
        mixed = np.concatenate([wrong[:part], test[part:]])
        found.append(evaluate(["range_query_error"], given(test, mixed))["range_query_error"])
    assert found[0] == 0
    assert np.all(np.diff(found) > 0.005)
    # Linear in the share: the wrong rows' answers are mixed in with that weight.
    assert found[1] == pytest.approx(found[3] / 10, rel=0.2)


def test_more_synthetic_rows_than_held_out_ones_are_sampled_down() -> None:
    """Both sides have the same number of rows, as where the published figures come from."""
    test = SCHEMA.encode(frame(50, 0))
    synthetic = SCHEMA.encode(frame(400, 1))
    answered = []
    original = RangeQueries.answers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RangeQueries, "answers", lambda self, rows: (answered.append(len(rows)), original(self, rows))[1])
        first = evaluate(["range_query_error"], given(test, synthetic))
        assert answered == [50, 50]
        assert evaluate(["range_query_error"], given(test, synthetic)) == first


def test_numbers_before_binning_decide_what_a_range_holds() -> None:
    schema = Schema(
        columns={"x": NumericColumn(lower=0, upper=1, bins=1), "y": CategoricalColumn(categories=(0,), other=False)}
    )
    test = np.zeros((100, 2), dtype=np.uint8)
    numbers = np.full((100, 1), 0.9, dtype=np.float32)
    rng = np.random.default_rng([boxes.QUERY_SEED, 2])
    query = random_queries(schema.domain, column_ranges(schema), 2, QUERIES, rng)
    low, high = query.low[query.axes == 0], query.high[query.axes == 0]
    apart = np.mean(((low <= 0.9) & (high >= 0.9)) != ((low <= 0.5) & (high >= 0.5)))
    found = evaluate(["range_query_error"], given(test, test, schema, test_numbers=numbers))["range_query_error"]
    assert found == pytest.approx(apart)
    assert apart > 0.3
    assert evaluate(["range_query_error"], given(test, test, schema))["range_query_error"] == 0


def test_numbers_outside_the_bounds_stand_at_them_and_missing_ones_where_their_code_does() -> None:
    schema = Schema(
        columns={
            "w": CategoricalColumn(categories=("u", "v"), other=False),
            "x": NumericColumn(lower=0, upper=10, bins=5),
            "y": NumericColumn(lower=0, upper=10, bins=5, missing=True),
        }
    )
    table = pd.DataFrame(
        {
            "w": ["v"] * 5,
            "x": [-3.0, 12.0, np.nan, np.inf, 2.5],  # a row without a number is left out: none is missing
            "y": [11.0, np.nan, -np.inf, 0.25, None],
        }
    )
    test = schema.encode(table)
    data = given(test, test, schema, test_numbers=schema.block(table).numbers)
    expected = np.array([[1, 0, 10], [1, 10, -np.inf], [1, 9, 0.25], [1, 2.5, -np.inf]])
    np.testing.assert_allclose(data.test_positions(), expected)
    np.testing.assert_allclose(data.positions(test)[:, 1], [1, 9, 9, 3])


def test_scales_hold_bins_and_bounds_of_numeric_columns_only() -> None:
    found = column_ranges(SCHEMA)
    assert list(found) == ["age", "dose"]
    np.testing.assert_array_equal(found["age"].values, [20.5, 22.5, 24.5, 26.5, 28.5])
    np.testing.assert_array_equal(found["dose"].values, [0.125, 0.375, 0.625, 0.875, np.nan])
    assert (found["age"].lower, found["age"].upper) == (20, 29)
    assert Schema(columns={"ward": SCHEMA.columns["ward"]}).block(frame(7, 0)[["ward"]]).numbers.shape == (7, 0)


def test_columns_of_one_value_and_tables_without_numbers_have_queries() -> None:
    domain = Domain(("a", "b", "c"), (1, 2, 1))
    test = np.zeros((20, 3), dtype=np.uint8)
    data = EvaluationInput(
        train=test,
        domain=domain,
        workload=all_kway(domain, 1),
        test=test,
        synthetic=test + np.array([0, 1, 0], np.uint8),
        ranges={"c": ColumnRange(np.array([5.0]), 5.0, 5.0)},
    )
    rng = np.random.default_rng([boxes.QUERY_SEED, 2])
    asks_b = np.mean(np.any(random_queries(domain, data.ranges, 2, QUERIES, rng).axes == 1, axis=1))
    # A query that looks at b tells the tables apart whichever value it asks for; the others hold every row.
    assert evaluate(["range_query_error"], data)["range_query_error"] == pytest.approx(asks_b)
    assert 0.6 < asks_b < 0.75


def test_a_query_over_more_attributes_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="3 attributes of a domain that has 2"):
        random_queries(Domain(("a", "b"), (2, 2)), {}, 3, 10, np.random.default_rng(0))


def test_a_sample_holds_different_rows_in_their_order() -> None:
    codes = np.arange(100)[:, None]
    sample = sample_rows(codes, 90, np.random.default_rng(0))
    assert sample.shape == (90, 1)
    assert np.all(np.diff(sample[:, 0]) > 0)
    assert sample_rows(codes, 100, np.random.default_rng(0)) is codes
