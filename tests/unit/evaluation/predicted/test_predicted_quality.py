"""The statement of a table's quality: its pieces against brute force, and what it says of tables that are known."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, product
from math import exp, factorial, pi
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import multivariate_normal

from experiments.held_out.held_tables import row_counts
from experiments.quality.run import outcome
from fedsyn.domain import Clique, Domain
from fedsyn.evaluation.predicted import PredictedQuality, SketchError, predict_quality
from fedsyn.evaluation.predicted.beliefs import believed
from fedsyn.evaluation.predicted.effects import (
    Effects,
    Scenario,
    part_of,
    visible,
    visible_anywhere,
)
from fedsyn.evaluation.predicted.links import SeenLink, SeenLinks, seen_links
from fedsyn.evaluation.predicted.looks import Scores
from fedsyn.evaluation.predicted.moments import seen_moments
from fedsyn.evaluation.predicted.quality import Predictor, alike, deviation, kept_noise
from fedsyn.evaluation.scores import few_groups, level_of_codes, link, places
from fedsyn.evaluation.verdict import judged, judged_link
from fedsyn.inference import EmpiricalModel, Evidence, Measurement, MixtureModel, Model, estimate
from fedsyn.inference.held_sums import nearest_counts
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.workload import Workload
from fedsyn.table.schema import Schema

DOMAIN = Domain(("a", "b", "c", "d"), (6, 4, 5, 2))
TRIPLES = Workload.uniform(list(combinations(DOMAIN.attributes, 3)))


@pytest.mark.parametrize("lam", [0.01, 0.5, 1.0, 2.7, 17.0, 49.9, 60.0, 3000.0])
def test_deviations_of_poisson_variables(lam: float) -> None:
    if lam < 100:
        expected = sum(abs(k - lam) * exp(-lam) * lam**k / factorial(k) for k in range(150))
    else:
        expected = float(np.abs(np.random.default_rng(0).poisson(lam, 2_000_000) - lam).mean())  # within 0.1%, 4 sd
    assert deviation(np.array([lam, 0.0])) == pytest.approx([expected, 0.0], rel=2e-3)


def test_what_groups_show_of_normal_scores() -> None:
    mass = np.full(64, 1 / 64)
    halves = np.repeat([0, 1], 32)
    z = np.random.default_rng(1).normal(size=400_000)
    quarters = np.repeat(range(4), 16)
    means = [part.mean() for part in np.array_split(np.sort(z), 4)]
    assert visible(mass, halves) == pytest.approx(2 / pi, rel=0.02)  # 64 values have nearly all of the variance
    assert visible(mass, quarters) == pytest.approx(np.var(means), rel=0.02)
    assert visible(mass, np.arange(64)) == pytest.approx(1.0)


def rows_of(rng: np.random.Generator, n: int, strength: float) -> np.ndarray:
    """Rows whose second and third columns follow the first one with a chance of `strength`."""
    codes = rng.integers(0, DOMAIN.shape, (n, 4))
    for column in (1, 2):
        follows = rng.random(n) < strength
        codes[follows, column] = codes[follows, 0] % DOMAIN.shape[column]
    return codes


def noisy(rng: np.random.Generator, codes: np.ndarray, cliques: list[Clique], sigma: float) -> list[Measurement]:
    exact = count(codes, DOMAIN, cliques)
    return [Measurement(q, m + rng.normal(0, sigma, m.shape), sigma) for q, m in zip(cliques, exact, strict=True)]


def true_error(model: Model, codes: np.ndarray, cliques: list[Clique]) -> float:
    pairs = zip(count(codes, DOMAIN, cliques), model.project_many(cliques), strict=True)
    return float(np.mean([np.abs(t / len(codes) - m / model.total).sum() for t, m in pairs]))


def sketch_error(rng: np.random.Generator, model: Model, codes: np.ndarray, pair: Clique, sigma: float) -> SketchError:
    """A sketch by the values themselves: the difference of the tables, centred, with noise."""
    (exact,), (made,) = count(codes, DOMAIN, [pair]), model.project_many([pair])
    off = exact - made * len(codes) / model.total + rng.normal(0, sigma, exact.shape)
    for axis in (0, 1):
        off = off - off.mean(axis=axis, keepdims=True)
    free = (exact.shape[0] - 1) * (exact.shape[1] - 1)
    squared, spread = float((off**2).sum()) - free * sigma**2, float(np.sqrt(2 * free)) * sigma**2
    return SketchError(pair, squared, spread, len(codes) * free / exact.size, float(exact.size))


ONES: list[Clique] = [(name,) for name in DOMAIN.attributes]
PAIRS: list[Clique] = list(combinations(DOMAIN.attributes, 2))


@pytest.mark.parametrize("strength", [0.0, 0.15, 0.5])
def test_what_sketches_saw_is_what_is_missed(strength: float) -> None:
    """Ten tables: the mean of predicted / true is within 12% of 1 (its sd over seeds is below 3% in each case)."""
    ratios, inside = [], 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        codes = rows_of(rng, 3000, strength)
        measured = noisy(rng, codes, ONES, 8.0)
        model = estimate(DOMAIN, measured, total=3000.0)
        seen = [sketch_error(rng, model, codes, pair, 6.0) for pair in PAIRS]
        said = predict_quality(model, Evidence(tuple(measured), 3000.0), seen, TRIPLES).workload_error
        assert said is not None and said.source == "sketched"
        true = true_error(model, codes, list(TRIPLES.cliques))
        ratios.append(said.value / true)
        inside += said.low <= true <= said.high
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.12) and inside >= 8


def test_more_noise_is_a_larger_error_and_so_it_is_said() -> None:
    rng = np.random.default_rng(3)
    codes = rows_of(rng, 3000, 0.3)
    found = []
    for sigma in (1.0, 10.0, 40.0):
        measured = noisy(rng, codes, [*ONES, *PAIRS], sigma)
        model = estimate(DOMAIN, measured, total=3000.0)
        said = predict_quality(model, Evidence(tuple(measured), 3000.0), (), Workload.uniform(PAIRS)).workload_error
        assert said is not None and said.source == "measured"
        true = true_error(model, codes, PAIRS)
        assert said.low / 1.5 <= true <= said.high * 1.5  # ten of one table: noise of its own
        found.append(said.value)
    assert found == sorted(found) and found[2] > 3 * found[0]


@pytest.mark.parametrize("sigma", [0.5, 4.0, 20.0])
def test_noise_that_a_projection_keeps(sigma: float) -> None:
    """Brute force: 4,000 noisy tables of 40 cells; a mean of them is known to a part in a hundred."""
    rng = np.random.default_rng(0)
    lam = np.concatenate([np.zeros(10), rng.gamma(0.5, 8.0, 30)])
    noise = rng.normal(0, sigma, (4000, 40))
    noise -= noise.mean(axis=1, keepdims=True)  # the total is known
    drawn = [np.abs(nearest_counts(lam + own) - lam).sum() for own in noise]
    assert kept_noise(lam, sigma**2 * 39 / 40) == pytest.approx(np.mean(drawn), rel=0.03)
    assert kept_noise(lam, 0.0) == 0.0


def test_counts_that_stand_for_many_cells_have_their_total_and_their_errors() -> None:
    """20,000 cells from none to thousands of records; a percent between counts is a part in 10^4 of an error."""
    lam = np.random.default_rng(5).gamma(0.05, 40.0, 20_000)
    few, cells = alike(lam)
    assert len(few) < 0.2 * len(lam) and cells.sum() == len(lam)
    assert few @ cells == pytest.approx(lam.sum())
    assert deviation(few) @ cells == pytest.approx(deviation(lam).sum(), rel=2e-4)
    for sigma in (0.5, 20.0):
        assert kept_noise(few, sigma**2, cells) == pytest.approx(kept_noise(lam, sigma**2), rel=2e-4)
    assert all((one == other).all() for one, other in zip(alike(lam[:50]), (lam[:50], np.ones(50)), strict=True))


@pytest.mark.parametrize(("strength", "sigma"), [(0.0, 15.0), (0.3, 60.0)])
def test_a_fit_that_nothing_pulls_keeps_its_noise_and_so_it_is_said(strength: float, sigma: float) -> None:
    """The mean of predicted / true of three tables is within a fifth; told as if it were pulled, it is 0.5 to 0.65."""
    ratios = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        codes = rows_of(rng, 3000, strength)
        measured = noisy(rng, codes, [*ONES, *PAIRS], sigma)
        model = estimate(DOMAIN, measured, total=3000.0)
        said = predict_quality(model, Evidence(tuple(measured), 3000.0), (), Workload.uniform(PAIRS), shrunk=False)
        assert said.workload_error is not None
        ratios.append(said.workload_error.value / true_error(model, codes, PAIRS))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize(
    ("asked", "shrinks", "shrunk"),
    [
        (None, True, True),
        (None, False, False),
        (0.0, True, False),
        ("released", False, True),
        (50.0, False, True),
    ],
)
def test_which_fits_are_shrunk(asked: float | str | None, shrinks: bool, shrunk: bool) -> None:
    node = SimpleNamespace(shrinkage=asked)
    strategy = SimpleNamespace(config=SimpleNamespace(inference=node), shrinks=shrinks)
    assert MechanismStrategy.is_shrunk.fget(strategy) is shrunk  # type: ignore[attr-defined]


def test_what_nobody_saw_is_at_least_its_floor_however_it_was_fitted() -> None:
    rng = np.random.default_rng(4)
    measured = noisy(rng, rows_of(rng, 3000, 0.0), [*ONES, *PAIRS[:-1]], 60.0)
    model = estimate(DOMAIN, measured, total=3000.0)
    evidence, workload = Evidence(tuple(measured), 3000.0), Workload.uniform(PAIRS)
    kept, plain = (predict_quality(model, evidence, (), workload, shrunk=each).workload_error for each in (False, True))
    assert kept is not None and plain is not None and kept.source == plain.source == "unknown"
    assert kept.value > 1.2 * plain.value and kept.low <= plain.value


def test_what_nobody_saw_has_a_bound_and_is_no_prediction() -> None:
    rng = np.random.default_rng(4)
    codes = rows_of(rng, 3000, 0.6)
    measured = noisy(rng, codes, ONES, 5.0)
    model = estimate(DOMAIN, measured, total=3000.0)
    statement = predict_quality(model, Evidence(tuple(measured), 3000.0), (), TRIPLES)
    said = statement.workload_error
    assert said is not None and said.source == "unknown" and said.low < 0.5 * true_error(model, codes, PAIRS)
    assert true_error(model, codes, list(TRIPLES.cliques)) <= said.high
    assert "is at least" in statement.sentence() and statement.advice() == ""
    assert {one.source for one in statement.columns} == {"measured"}


def test_pairs_beside_sketched_ones_are_like_them() -> None:
    rng = np.random.default_rng(5)
    codes = rows_of(rng, 3000, 0.4)
    measured = noisy(rng, codes, ONES, 5.0)
    model = estimate(DOMAIN, measured, total=3000.0)
    seen = [sketch_error(rng, model, codes, pair, 6.0) for pair in PAIRS[:-1]]
    statement = predict_quality(model, Evidence(tuple(measured), 3000.0), seen, TRIPLES)
    assert [one.source for one in statement.pairs] == ["sketched"] * 5 + ["inferred"]
    assert statement.pairs[-1].high > 2 * statement.pairs[-1].value > 4 * statement.pairs[-1].low


def test_an_effect_that_is_measured_in_groups_leaves_what_is_inside_them() -> None:
    rng = np.random.default_rng(6)
    codes = rows_of(rng, 5000, 0.3)
    groups = (np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1]))
    one_way = noisy(rng, codes, ONES, 5.0)
    (exact,) = count(codes, DOMAIN, [("a", "b")])
    coarse = np.array([[exact[np.ix_(groups[0] == i, groups[1] == j)].sum() for j in (0, 1)] for i in (0, 1)])
    m = Measurement(("a", "b"), coarse + rng.normal(0, 5.0, (2, 2)), 5.0, groups=groups)
    model = estimate(DOMAIN, [*one_way, m], total=5000.0)
    effect = Effects(model, Evidence((*one_way, m), 5000.0), (), [("a", "b")])["a", "b"]
    left = effect.left(Scenario())
    (seen,) = effect.coarse  # 0.64 of normal scores in two groups, for each attribute
    assert 1.0 - seen.visible < left.relative < 1.0 - seen.visible + 0.2
    assert 0.8 < left.rows < 1.0  # one of fifteen dimensions was seen
    assert effect.left(Scenario(noise=0.1)).relative < left.relative


def test_a_larger_run_is_better() -> None:
    rng = np.random.default_rng(7)
    codes = rows_of(rng, 2000, 0.3)
    measured = noisy(rng, codes, [*ONES, ("a", "b")], 10.0)
    model = estimate(DOMAIN, measured, total=2000.0)
    seen = [sketch_error(rng, model, codes, pair, 5.0) for pair in PAIRS]
    predictor = Predictor(model, Evidence(tuple(measured), 2000.0), seen, list(TRIPLES.cliques))
    now = predictor.errors(Scenario())[0].errors.mean()
    for scenario in (Scenario(rows=2.0), Scenario(noise=0.5), Scenario(all_seen=True)):
        assert predictor.errors(scenario)[0].errors.mean() < now


def test_without_marginals_nothing_is_said() -> None:
    mixture = MixtureModel(DOMAIN, np.hstack([np.ones((2, size)) / size for size in DOMAIN.shape]), 100.0)
    for model, evidence in ((mixture, Evidence((), 100.0)), (estimate(DOMAIN, [], total=1.0), None)):
        statement = predict_quality(model, evidence, (), TRIPLES)
        assert statement.workload_error is None
        assert statement.sentence() == "nobody can say how good it is, because the mechanism releases no marginals"
        assert PredictedQuality.from_dict(json.loads(json.dumps(statement.to_dict()))) == statement


def test_a_statement_reads_back_as_itself() -> None:
    rng = np.random.default_rng(8)
    codes = rows_of(rng, 500, 0.3)
    measured = noisy(rng, codes, ONES, 5.0)
    statement = predict_quality(estimate(DOMAIN, measured, total=500.0), Evidence(tuple(measured), 500.0), (), TRIPLES)
    assert PredictedQuality.from_dict(json.loads(json.dumps(statement.to_dict()))) == statement


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from([(2, 2), (3, 4), (2, 3, 2)]), st.floats(0.05, 5.0))
def test_no_table_with_these_columns_is_farther_than_the_bound(seed: int, shape: tuple[int, ...], alpha: float) -> None:
    """Brute force: a random table, and the model of its one-way marginals."""
    rng = np.random.default_rng(seed)
    domain = Domain(tuple("abc"[: len(shape)]), shape)
    p = rng.dirichlet(np.full(domain.size(), alpha)).reshape(shape) + 1e-12
    p /= p.sum()
    apart = np.ones(())
    for axis in range(len(shape)):
        apart = np.multiply.outer(apart, p.sum(axis=tuple(k for k in range(len(shape)) if k != axis)))
    measured = [
        Measurement((name,), 100 * p.sum(axis=tuple(k for k in range(len(shape)) if k != axis)), 1e-6)
        for axis, name in enumerate(domain.attributes)
    ]
    model = estimate(domain, measured, total=100.0)
    predictor = Predictor(model, Evidence(tuple(measured), 100.0), (), [domain.attributes])
    assert (
        np.abs(p - apart).sum() <= predictor.errors(Scenario())[0].bounds[0] + 1e-3
    )  # the fit's one-way marginals are near p's


def test_awkward_domains_are_taken() -> None:
    """One value, no rows in a cell, a total near nothing, a clique of one attribute and one measured twice."""
    domain = Domain(("x", "y", "z"), (1, 3, 2))
    values = [np.array([5.0]), np.array([5.0, -2.0, 0.0]), np.array([-1.0, 3.0])]
    measured = [
        Measurement((n,), v, s) for (n, v), s in product(zip(domain.attributes, values, strict=True), (1.0, 9.0))
    ]
    model = estimate(domain, measured, total=0.5)
    workload = Workload.uniform([("x",), ("x", "y"), ("x", "y", "z")])
    statement = predict_quality(model, Evidence(tuple(measured), 0.5), (), workload)
    for one in (*statement.columns, *statement.pairs, *statement.cliques):
        assert 0.0 <= one.low <= one.value <= one.high <= 2.0


def test_what_was_left_alone_is_believed_to_be_more_than_its_looks_say() -> None:
    """Half of the effects are chosen by their looks; the others' looks are too small, and the posterior is not."""
    rng = np.random.default_rng(9)
    true = np.where(rng.random(400) < 0.3, rng.exponential(0.2, 400), 0.0)
    looks = true + rng.normal(0, 0.1, 400)
    left = looks < np.median(looks)
    found = believed(looks, looks, np.full(400, 0.1))
    assert looks[left].mean() < 0 < true[left].mean()
    assert found.means[left].mean() == pytest.approx(true[left].mean(), abs=0.012)
    assert found.means[~left].mean() == pytest.approx(true[~left].mean(), rel=0.15)
    assert (found.spreads < 0.12).all()
    assert found.firsts[0] < true.mean() < found.firsts[1] and found.prior[0] == pytest.approx(true.mean(), abs=0.02)


@pytest.mark.parametrize(("mean", "shape"), [(0.0, 1.0), (0.02, 1.0), (0.5, 0.2)])
def test_effects_that_drown_in_noise_are_as_large_as_others_and_seen_ones_as_large_as_they_are(
    mean: float, shape: float
) -> None:
    """64 effects with a mean of nothing, one that drowns in noise of 0.25, one that is seen; pairs have 0.05 at most.

    400 runs. Worlds hold nearly every mean that drowns, and 0.02 adds as good as nothing to an error. Of those that
    are seen they hold nine in ten, with a standard deviation of 1.5%: three of them are exceeded once in 700 runs.
    """
    rng, spread, held, middles = np.random.default_rng(11), np.full(64, 2.0), 0, list[float]()
    for _ in range(400):
        true = rng.gamma(shape, mean / shape, 64) if mean else np.zeros(64)
        looks = true + rng.normal(0, spread * (0.05 if mean > 0.1 else 1.0))
        found = believed(looks, looks, spread * (0.05 if mean > 0.1 else 1.0), usual=0.05)
        held += found.firsts[0] <= max(true.mean(), 0.02) <= found.firsts[1]
        middles.append(found.first)
    assert held / 400 > (0.85 if mean > 0.1 else 0.95)
    assert np.median(middles) == pytest.approx(mean, rel=0.05) if mean > 0.1 else np.median(middles) < 0.1


def test_a_look_without_noise_is_believed() -> None:
    looks = np.array([0.002, 0.05, 0.6])
    found = believed(looks, looks, np.full(3, 1e-3))
    assert found.means == pytest.approx(looks, abs=2e-3, rel=0.1)


def test_parts_of_a_measurement_are_its_sums() -> None:
    rng = np.random.default_rng(10)
    values = rng.normal(size=(6, 4, 2))
    m = Measurement(("a", "b", "d"), values, 2.0)
    found = part_of(DOMAIN, m, ("d", "a"))
    assert found.values == pytest.approx(values.sum(axis=1).T) and found.sigma == pytest.approx(4.0)
    groups = (np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1]))
    coarse = Measurement(("b", "a"), rng.normal(size=(2, 2)), 1.0, groups=groups[::-1])
    turned = part_of(DOMAIN, coarse, ("a", "b"))
    assert turned.values == pytest.approx(coarse.values.T) and turned.groups is not None
    assert [len(own) for own in turned.groups] == [6, 4]


@pytest.mark.slow
def test_intervals_hold_the_truth_on_tables_that_are_hard_to_predict() -> None:
    """Six runs on the tuning side, all held; of half the width survey_2 (1.19 of it) and xor_1 (1.14) are not.

    few_1 is three quarters of the truth, and its interval knows that its sketches show nothing. An upper end of twice
    the lower one is what independent columns cost: their sketches cannot tell them from weak links.
    Of their 384 marginals 89% are held, 70% by intervals of half the width, more than 99% by those of twice.
    """
    held, marginals = [], list[bool]()
    for table, epsilon in (
        ("few_1", 1.0),
        ("survey_2", 3.0),
        ("labs_1", 1.0),
        ("xor_1", 3.0),
        ("independent_1", 1.0),
        ("independent_3", 3.0),
    ):
        one = outcome(table, row_counts(table)[-1], epsilon, 1)
        held.append(one.is_inside)
        marginals += [inside for _, inside, _ in one.pieces]
        assert one.rows < 2000 or one.whole.high <= 2.5 * one.whole.low
    assert all(held) and 0.85 < np.mean(marginals) < 0.95


def test_groups_show_as_much_of_independent_relative_errors_as_is_said() -> None:
    rng = np.random.default_rng(4)
    mass, groups = np.array([0.4, 0.2, 0.2, 0.1, 0.07, 0.03]), np.array([0, 1, 2, 1, 2, 0])
    errors = rng.normal(size=(20_000, 6))
    errors -= (errors @ mass)[:, None]
    joined, masses = np.eye(3)[groups], np.bincount(groups, mass)
    between = (((errors * mass) @ joined) ** 2 / masses).sum(axis=1).mean()
    assert visible_anywhere(mass, groups) == pytest.approx(between / (mass * errors**2).sum(axis=1).mean(), rel=0.02)
    assert visible_anywhere(mass, np.arange(6)) == pytest.approx(1.0)


def test_what_no_sketch_saw_of_three_columns_is_open_at_the_upper_end_alone() -> None:
    rng = np.random.default_rng(3)
    codes = rows_of(rng, 4000, 0.35)
    model = estimate(DOMAIN, (measured := noisy(rng, codes, ONES, 4.0)), total=4000.0)
    looks = [SketchError(pair, 4e4, 1e4, 1e3, 16.0) for pair in combinations(DOMAIN, 2)]
    triple = tuple(DOMAIN)[:3]
    effects = Effects(model, Evidence(tuple(measured), 4000.0), looks, [triple])
    pair, high = triple[:2], effects.squared(triple, 1)
    assert effects.squared(triple, None) == effects.squared(triple, 0) == 0.0
    assert effects.squared(pair, 0) < effects.squared(pair, None) < effects.squared(pair, 1) <= high
    triples = [*looks, SketchError(triple, 0.0, 1e4, 1e3, 64.0)]
    assert Effects(model, Evidence(tuple(measured), 4000.0), triples, [triple]).squared(triple, 1) < high


def test_what_a_model_explains_of_others_is_not_believed_to_be_missing() -> None:
    """Of 200 effects a model of other pairs leaves a tenth; a prior that does not know would be ten times as large."""
    rng = np.random.default_rng(5)
    true, spread = rng.gamma(1.0, 0.02, 200), np.full(200, 0.02)
    alone = true + rng.normal(0, spread)
    last = alone - 0.9 * true
    left = Effects._left(alone, last, spread, np.full(200, True))
    assert left == pytest.approx(0.1, abs=0.15)
    assert believed(alone, last, spread, left).means.mean() < 0.6 * believed(alone, last, spread).means.mean()
    assert Effects._left(alone, last, spread, np.full(200, False)) == 1.0


# What links two columns -----------------------------------------------------------------------------------------------


def linked_pair(seed: int, sigma: float, how: str, shrink: float = 1.0) -> tuple[Effects, list[SketchError], float]:
    """A run that looked at one pair with much noise, and what its model keeps of the link, by the exact counts."""
    rng = np.random.default_rng(seed)
    codes = rows_of(rng, 4000, 0.35)
    measured = noisy(rng, codes, ONES, 4.0)
    pair: Clique = ("a", "b")
    fitted = [*measured, *(noisy(rng, codes, [pair], sigma) if how == "measured" else [])]
    model = estimate(DOMAIN, fitted, total=4000.0)
    (exact,), (made,) = count(codes, DOMAIN, [pair]), model.project_many([pair])
    sketches = []
    if how == "sketched":
        whole = estimate(DOMAIN, noisy(rng, codes, [*ONES, pair], 0.5), total=4000.0)
        (near,), alone = whole.project_many([pair]), np.outer(exact.sum(1), exact.sum(0)) / 4000.0
        cells = alone + shrink * (near - alone)
        model = estimate(DOMAIN, [*measured, Measurement(pair, cells, 0.5)], total=4000.0)
        (made,) = model.project_many([pair])
        seen = exact + rng.normal(0, sigma, exact.shape)
        view = Effects(model, Evidence(tuple(measured), 4000.0), (), PAIRS).masses
        apart = 4000.0 * np.outer(view["a"], view["b"])
        last, first = (float(((seen - own) ** 2).sum()) - exact.size * sigma**2 for own in (made, apart))
        spread = float(np.sqrt(2 * exact.size)) * sigma**2
        sketches = [SketchError(pair, last, spread, 4000.0 * 15 / 24, 24.0, None, first, exact.size)]
    true = link(exact / 4000.0, 4000, made / model.total, 10**9).kept
    evidence = Evidence(tuple(fitted if how == "measured" else measured), 4000.0)
    return Effects(model, evidence, sketches, PAIRS), sketches, true


@pytest.mark.parametrize(("how", "sigma", "shrink"), [("measured", 80.0, 1.0), ("sketched", 12.0, -0.5)])
def test_what_is_kept_of_a_link_is_told_without_its_rows(how: str, sigma: float, shrink: float) -> None:
    """A model that fits noise, and one of a reversed link: off by 0.05 on average, mostly within 2.5 spreads."""
    off, near = [], 0
    for seed in range(12):
        effects, sketches, true = linked_pair(seed, sigma, how, shrink)
        (found,) = [each for each in seen_links(effects, sketches, PAIRS, None, {}).links if each.columns == ("a", "b")]
        off.append(found.kept - true)
        near += abs(off[-1]) < 2.5 * found.spread
    assert abs(np.mean(off)) < 0.05 and near >= 10


def test_an_order_is_not_asked_for_of_two_values() -> None:
    """Beside `other` and missing ones they have four codes, which a sketch saw in three groups."""
    effects, (sketch,), _ = linked_pair(0, 12.0, "sketched", -0.5)
    seen = replace(sketch, groups=(np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 2, 2])))
    columns: dict[str, dict[str, object]] = {
        name: {"kind": "categorical", "categories": [f"{name}{k}" for k in range(size)], "other": False}
        for name, size in zip(DOMAIN.attributes, DOMAIN.shape, strict=True)
    }
    columns["b"] |= {"categories": ["no", "yes"], "other": True, "missing": True}
    found = seen_links(effects, [seen], PAIRS, Schema.from_dict({"columns": columns}), {})
    assert found.joined == ("a", "b") and found.orderless == ("a",)


def test_a_column_that_noise_widened_weakens_its_correlations() -> None:
    """A twentieth of a skewed column's rows moved to any bin: its correlation falls more than its link in groups."""
    columns = {name: {"kind": "numeric", "lower": 0, "upper": 64, "bins": 32} for name in ("x", "y")}
    schema = Schema.from_dict({"columns": columns})
    domain, rows, pair = schema.domain, 20_000, ("x", "y")
    off, called, near = [], [], 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        z = rng.multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], rows)
        codes = np.minimum(np.stack([np.exp(0.8 * z[:, 0]) * 2, np.exp(0.8 * z[:, 1]) * 2], axis=1) / 2, 31).astype(int)
        (exact,) = count(codes, domain, [pair])
        moved = codes.copy()
        moved[: rows // 20, 0] = rng.integers(0, 32, rows // 20)
        model, (made,) = EmpiricalModel(domain, moved), count(moved, domain, [pair])
        released = [Measurement(pair, exact + rng.normal(0, 3.0, exact.shape), 3.0)]
        released += [
            Measurement((n,), m + rng.normal(0, 3.0, 32), 3.0)
            for n, m in zip(pair, (exact.sum(1), exact.sum(0)), strict=True)
        ]
        effects = Effects(model, Evidence(tuple(released), float(rows)), (), [pair])
        moments = seen_moments(effects, schema)
        (found,) = seen_links(effects, (), [pair], schema, moments).links
        values = [
            level_of_codes(schema.columns[n], made.sum(axis=1 - a) / rows, places(schema, n), rows)
            for a, n in enumerate(pair)
        ]
        was, now = (correlation(table / rows, *values) for table in (exact, made))
        off.append(found.kept - now / was)
        near += abs(off[-1]) < 2.5 * found.spread
        called.append(found.judged().state)
        assert found.widths and "the columns' spread" in found.judged().why
        first, second = (judged("", moments[name].losses()) for name in pair)
        assert first.state == "lost" and second.state != "lost"
        exact_mean, made_mean = (table.sum(axis=1) @ values[0] / rows for table in (exact, made))
        exact_sd = np.sqrt(exact.sum(axis=1) @ (values[0] - exact_mean) ** 2 / rows)
        assert moments["x"].mean == pytest.approx((made_mean - exact_mean) / exact_sd, rel=0.3)  # 4 sd of its unit
    assert now / was < 0.7 and abs(np.mean(off)) < 0.05 and near >= 10 and "kept" not in called


def correlation(shares: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's, of two columns with such values of their codes."""
    apart = [v - p @ v for p, v in ((shares.sum(axis=1), x), (shares.sum(axis=0), y))]
    squares = [p @ v**2 for p, v in ((shares.sum(axis=1), apart[0]), (shares.sum(axis=0), apart[1]))]
    return float(apart[0] @ shares @ apart[1] / np.sqrt(squares[0] * squares[1]))


@pytest.mark.parametrize("r", [-0.9, 0.0, 0.7, 0.995])
def test_normal_scores_have_the_cells_of_a_bivariate_normal_distribution(r: float) -> None:
    """Brute force; a value without a place is independent of the other column."""
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.full(6, 2.0)), rng.dirichlet(np.full(5, 2.0))
    each = (np.arange(6), np.arange(5))
    at = (np.array([3.0, 1.0, 2.0, 0.0, 4.0, np.nan]), np.arange(5.0))
    scores = Scores({"x": p, "y": q}, ("x", "y"), at, each, each)
    order, within = np.array([3, 1, 2, 0, 4]), p[:5].sum()
    bounds = [ndtri(np.concatenate([[1e-15], np.cumsum(own)[:-1], [1 - 1e-15]])) for own in (p[order] / within, q)]
    normal = multivariate_normal([0, 0], [[1, r], [r, 1]], allow_singular=True)
    below = np.array([[normal.cdf([a, b]) for b in bounds[1]] for a in bounds[0]])
    expected = np.outer(p, q)
    expected[order] = within * np.diff(np.diff(below, axis=0), axis=1)
    in_order = expected[[3, 1, 2, 0, 4, 5]]
    (found,) = scores.cells(np.array([r]))
    assert found.reshape(6, 5) == pytest.approx(in_order, abs=2e-3)


@pytest.mark.parametrize(
    ("scatter", "size", "state"), [(0.3, 6, "changed"), (0.3, 16, "kept"), (8.0, 5, "changed"), (8.0, 11, "kept")]
)
def test_of_a_strong_link_what_lies_inside_groups_is_not_kept(scatter: float, size: int, state: str) -> None:
    """Two dates and a stay of days, or of months, counted in some groups and compared in eight."""
    schema = Schema.from_dict(
        {"columns": {name: {"kind": "numeric", "lower": 0, "upper": 32, "bins": 32} for name in ("x", "y")}}
    )
    domain, rows, pair, groups = schema.domain, 20_000, ("x", "y"), np.arange(32) * size // 32
    off = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        codes = rng.uniform(0, 32, (rows, 1)) + np.abs(rng.normal(0, scatter, (rows, 2))) * [0, 1]
        codes = np.minimum(codes, 31.9).astype(int)
        (exact,) = count(codes, domain, [pair])
        onto = np.eye(size)[groups]
        released = [Measurement((n,), exact.sum(axis=1 - a) + rng.normal(0, 9, 32), 9.0) for a, n in enumerate(pair)]
        coarse = onto.T @ exact @ onto + rng.normal(0, 20.0, (size, size))
        released.append(Measurement(pair, coarse, 20.0, groups=(groups, groups)))
        model = estimate(domain, released, total=float(rows))
        effects = Effects(model, Evidence(tuple(released), float(rows)), (), [pair])
        (found,) = seen_links(effects, (), [pair], schema, {}).links
        few = [few_groups(effects.masses[n], places(schema, n), 0.0) for n in pair]
        tables = [np.eye(8)[few[0]].T @ t @ np.eye(8)[few[1]] for t in (exact / rows, model.project(pair) / rows)]
        true = link(tables[0], rows, tables[1], 10**9)
        off.append((found.kept - true.kept, found.seen - true.real))
        assert found.judged().state == judged_link("", 1.0, 1.0, true.kept).state == state
    assert np.abs(np.mean(off, axis=0)).max() < 0.05


def test_the_label_s_link_is_foremost_though_another_one_is_stronger() -> None:
    strong, own = SeenLink(("a", "b"), 0.8, 0.8, 0.95, 0.01), SeenLink(("b", "y"), 0.3, 0.05, 0.1, 0.02)
    said = PredictedQuality(seen=SeenLinks((strong, own), pairs=3, looked=3), label="y", why="nothing else is known")
    assert [one.name for one in said.verdict().foremost] == ["a × b", "b × y"]
    assert PredictedQuality.from_dict(said.to_dict()).label == "y"
    assert [one.name for one in replace(said, label=None).verdict().foremost] == ["a × b"]


def test_a_link_in_doubt_is_neither_kept_nor_lost() -> None:
    kept, lost = SeenLink(("a", "b"), 0.3, 0.28, 0.9, 0.05), SeenLink(("a", "b"), 0.3, 0.1, 0.3, 0.08)
    assert kept.judged().state == "kept" and lost.judged().state == "lost"
    assert replace(kept, spread=0.15).judged().state == replace(lost, spread=0.15).judged().state == "changed"
