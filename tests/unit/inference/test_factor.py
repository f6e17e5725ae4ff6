"""The model of factors: its margins, its pairs by Mehler's series, rows without the hidden attribute, files, fits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fedsyn.config import InferenceNode
from fedsyn.domain import Domain
from fedsyn.errors import ProtocolError
from fedsyn.inference import Measurement, Model, estimate
from fedsyn.inference.shrinkage import smoothed
from fedsyn.selection.factors import LEVELS, Cuts, factor_model
from fedsyn.selection.views import pack_model, unpack_model

DOMAIN = Domain(("a", "b", "c", "d"), (5, 3, 4, 2), {"a": 5})
CUTS = {
    "a": Cuts.of([1, 2, 3, 2, 2], range(5)),
    "b": Cuts.of([5, 3, 2], [1, 0, -1]),  # the last value has no place
    "c": Cuts.of([1, 2, 3, 4], [0, 0, 1, 1]),  # values that were not told apart
    "d": Cuts.of([3, 7], [0, 1]),
}
LOADINGS = {"a": 0.8, "b": -0.7, "c": 0.5}
TOTAL = 1000.0
ROWS = np.array(list(product(*map(range, DOMAIN.shape))))


@pytest.fixture(scope="module")
def model() -> Model:
    return factor_model(DOMAIN, CUTS, [LOADINGS], TOTAL)


def test_the_domain_hides_the_factor(model: Model) -> None:
    assert list(model.domain) == ["a", "b", "c", "d"] and len(model.domain) == 4
    assert model.domain.hidden == (("factor 1", LEVELS),) and model.domain["factor 1"] == LEVELS


def test_margins_are_those_that_were_given(model: Model) -> None:
    for name, cuts in CUTS.items():
        np.testing.assert_allclose(model.project((name,)), TOTAL * cuts.mass, rtol=1e-3)


def test_pairs_are_mehlers_series(model: Model) -> None:
    """Levels of the factor are intervals: between them lies all but 1.2% of its variance."""
    for a, b in (("a", "b"), ("a", "c"), ("b", "c"), ("a", "d")):
        r = LOADINGS.get(a, 0.0) * LOADINGS.get(b, 0.0)
        terms = np.array([r**k for k in range(1, 41)])
        series = (CUTS[a].moments(40) * terms) @ CUTS[b].moments(40).T
        expected = np.multiply.outer(CUTS[a].mass, CUTS[b].mass) + series
        np.testing.assert_allclose(model.project((a, b)) / TOTAL, expected, atol=3e-3)


def test_values_of_one_place_say_the_same_and_values_without_one_say_nothing(model: Model) -> None:
    table = model.project(("a", "c"))
    np.testing.assert_allclose(table[:, 0] * 2.0, table[:, 1])
    alone = model.project(("a", "b"))[:, 2]
    np.testing.assert_allclose(alone, 0.2 * model.project(("a",)))


def test_rows_are_of_the_visible_attributes(model: Model) -> None:
    likelihoods = np.exp(model.log_likelihood(ROWS)).reshape(DOMAIN.shape)
    assert likelihoods.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(likelihoods.sum(axis=(2, 3)) * TOTAL, model.project(("a", "b")))
    rows = model.sample(2000, np.random.default_rng(1))
    assert rows.shape == (2000, 4)
    counts = np.bincount(rows[:, 0] * 3 + rows[:, 1], minlength=15).reshape(5, 3)
    # 15 cells of 2,000 rows: a standard deviation is at most 20 records, and systematic rounding does better
    np.testing.assert_allclose(counts, 2.0 * model.project(("a", "b")), atol=80)


def test_arrays_bring_the_model_back_and_a_message_may_not_hold_it(model: Model) -> None:
    back = Model.from_arrays(DOMAIN, model.to_arrays())
    np.testing.assert_array_equal(back.project(("a", "c")), model.project(("a", "c")))
    with pytest.raises(ProtocolError, match="cannot be read"):
        unpack_model(DOMAIN, pack_model(model), InferenceNode())


@pytest.mark.parametrize("hidden", [[["f", 1 << 20]], [["f"]], [["a", 4]], 3, [["f", 1], ["g", 1], ["h", 1], ["i", 1]]])
def test_a_file_with_another_hidden_attribute_is_refused(model: Model, hidden: object) -> None:
    import json

    arrays = model.to_arrays()
    head = {**json.loads(arrays["model"].tobytes()), "hidden": hidden}
    arrays["model"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    with pytest.raises(ProtocolError):
        Model.from_arrays(DOMAIN, arrays)


def test_a_fit_moves_what_was_measured_and_leaves_the_factor_given_a_row(model: Model) -> None:
    """Potentials move on visible attributes alone, so the factor's distribution given a row is the base's."""
    measured = [
        Measurement(("d",), np.array([500.0, 500.0]), 1.0),
        Measurement(("a", "d"), np.array([[90, 10], [150, 50], [150, 150], [60, 140], [50, 150]], float), 1.0),
    ]
    fitted = estimate(model.domain, measured, total=TOTAL, prior=model)
    np.testing.assert_allclose(fitted.project(("a", "d")), measured[1].values, atol=2.0)
    names = ("a", "b", "c", "d", "factor 1")
    given = [
        m.project(names) / np.maximum(m.project(names).sum(axis=-1, keepdims=True), 1e-12) for m in (model, fitted)
    ]
    np.testing.assert_allclose(given[1], given[0], atol=1e-6)


def test_shrinking_towards_factors_keeps_their_pairs(model: Model) -> None:
    ones = [Measurement((name,), TOTAL * cuts.mass, 1.0) for name, cuts in CUTS.items()]
    noisy = Measurement(("a", "b"), np.full((5, 3), TOTAL / 15), 1e6)
    fitted = estimate(model.domain, [*ones, noisy], total=TOTAL, prior=model, shrinkage=TOTAL)
    np.testing.assert_allclose(fitted.project(("a", "c")), model.project(("a", "c")), atol=1.0)


def test_smoothing_keeps_the_factor(model: Model) -> None:
    kept = smoothed(model, {"a": 0.01})
    assert kept.domain == model.domain
    np.testing.assert_allclose(kept.project(("a", "c")), model.project(("a", "c")), atol=2.0)


def test_several_factors_are_apart() -> None:
    two = factor_model(DOMAIN, CUTS, [{"a": 0.8, "b": 0.8}, {"c": 0.9, "d": 0.9}], TOTAL)
    assert len(two.domain.hidden) == 2
    apart = np.multiply.outer(two.project(("a",)), two.project(("c",))) / TOTAL
    np.testing.assert_allclose(two.project(("a", "c")), apart)


def test_a_hidden_name_gives_way_to_a_column() -> None:
    domain = Domain(("factor 1", "x"), (3, 2))
    cuts = {"factor 1": Cuts.of([1, 1, 1], range(3)), "x": Cuts.of([1, 1], range(2))}
    assert factor_model(domain, cuts, [{"factor 1": 0.5, "x": 0.5}], 10.0).domain.hidden[0][0] == "factor 1'"


def test_likelihoods_are_the_same_in_blocks_of_rows(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model.log_likelihood(ROWS)
    monkeypatch.setattr("fedsyn.inference.model._CELLS_AT_ONCE", 7 * LEVELS)
    np.testing.assert_array_equal(model.log_likelihood(ROWS), whole)


def test_nobody_names_a_hidden_attribute(model: Model) -> None:
    with pytest.raises(ValueError, match="a condition needs an attribute of the domain"):
        model.conditioned({"factor 1": np.ones(LEVELS, bool)})
