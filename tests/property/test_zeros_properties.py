"""Structural zeros and conditions on models that hypothesis makes up, each against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedsyn.domain import Clique, Domain, Zeros
from fedsyn.errors import InputError
from fedsyn.inference import (
    EmpiricalModel,
    EstimateConfig,
    GumConfig,
    Measurement,
    Model,
    estimate,
    model_size,
    synthesize,
)
from fedsyn.table.counting.marginals import count
from support.inference_reference import CASES, all_cliques, broadcast, domain_of, marginal


@st.composite
def restricted(draw: st.DrawFn) -> tuple[Domain, list[Clique]]:
    """A small domain with random zeros that leave some row possible, and cliques over it."""
    if draw(st.booleans()):
        shape, cliques = CASES[draw(st.sampled_from(sorted(CASES)))]
    else:
        shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)))
        names = domain_of(shape).attributes
        clique = st.lists(st.sampled_from(names), max_size=3, unique=True).map(tuple)
        cliques = tuple(draw(st.lists(clique, max_size=5)))
    domain = domain_of(shape)
    barred = draw(
        st.lists(st.lists(st.sampled_from(domain.attributes), min_size=1, max_size=3, unique=True), max_size=4)
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share = draw(st.sampled_from([0.1, 0.4, 0.8]))
    zeros = tuple(Zeros(q, rng.random(domain.shape_of(q)) < share) for q in barred)
    domain = Domain(domain.attributes, domain.shape, zeros=zeros)
    assume(allowed(domain).any())
    return domain, list(cliques)


def allowed(domain: Domain) -> np.ndarray:
    out = np.ones(domain.shape, dtype=bool)
    for clique, cells in domain.zeros:
        out &= ~broadcast(domain, clique, cells)
    return out


def joint_of(domain: Domain, model: Model) -> np.ndarray:
    """The model's distribution by its potentials alone, over the possible rows."""
    score = np.zeros(domain.shape)
    for clique, table in model.potentials.items():
        score = score + broadcast(domain, clique, table)
    score = np.where(allowed(domain), score, -np.inf)
    joint = np.exp(score - score.max())
    return np.asarray(joint / joint.sum())


@given(restricted(), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 30.0, 900.0]))
@settings(max_examples=40, deadline=None)
def test_a_model_with_zeros_agrees_with_brute_force(case: tuple[Domain, list[Clique]], seed: int, scale: float) -> None:
    domain, cliques = case
    rng = np.random.default_rng(seed)
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        model = Model(domain, {c: scale * rng.standard_normal(domain.shape_of(c)) for c in cliques}, 10.0)
        truth = joint_of(domain, model)
        asked = all_cliques(domain)
        for index in rng.choice(len(asked), size=min(8, len(asked)), replace=False):
            clique = asked[index]
            found, expected = model.project(clique) / 10.0, marginal(domain, truth, clique)
            np.testing.assert_allclose(found, expected, atol=1e-12)
            impossible = ~marginal(domain, allowed(domain), clique).astype(bool)
            assert (found[impossible] == 0.0).all()
            known = domain.impossible(clique)
            assert known is None or (impossible | ~known).all()
        rows = model.sample(400, rng)
    assert not domain.violated(rows).any() and allowed(domain)[tuple(rows.T)].all()
    codes = np.stack([rng.integers(0, n, 30) for n in domain.shape], axis=1)
    logs = model.log_likelihood(codes)
    np.testing.assert_array_equal(np.isneginf(logs), ~allowed(domain)[tuple(codes.T)])
    possible = np.isfinite(logs)
    np.testing.assert_allclose(np.exp(logs[possible]), truth[tuple(codes[possible].T)], rtol=1e-9, atol=1e-12)
    again = Model.from_arrays(domain, model.to_arrays())
    assert np.array_equal(again.project(domain.attributes), model.project(domain.attributes))
    assert model_size(domain, cliques) == sum(domain.size(clique) for clique in model.cliques)


@pytest.mark.slow
@given(restricted(), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_the_fit_is_the_optimum_over_the_possible_rows(case: tuple[Domain, list[Clique]], seed: int) -> None:
    """No feasible direction lowers the loss: its gradient is least, over the possible rows, on the fit's own mass."""
    domain, cliques = case
    rng = np.random.default_rng(seed)
    measurements = [
        Measurement(c, 40.0 * marginal(domain, rng.dirichlet(np.full(domain.size(), 0.3)).reshape(domain.shape), c)
                    + rng.standard_normal(domain.shape_of(c)), float(rng.uniform(0.5, 2.0)))
        for c in cliques
    ]  # fmt: skip
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        config = EstimateConfig(iterations=3000, tolerance=1e-12)
        model = estimate(domain, measurements, total=40.0, config=config)
    joint = model.project(domain.attributes) / 40.0
    assert (joint[~allowed(domain)] == 0.0).all() and np.isfinite(joint).all()
    gradient = np.zeros(domain.shape)
    for measurement in measurements:
        clique = measurement.clique
        gap = (40.0 * marginal(domain, joint, clique) - measurement.values) / measurement.sigma**2
        gradient = gradient + broadcast(domain, clique, np.asarray(gap))
    # Frank-Wolfe's duality gap, in units of the loss: f(fit) - f(optimum) is at most this.
    gap = 40.0 * float((gradient * joint).sum() - gradient[allowed(domain)].min())
    worst = 0.5 * sum(float(((m.values / m.sigma) ** 2).sum()) for m in measurements)
    assert gap <= 2e-2 * (1.0 + worst)
    assert model.info is not None and np.isfinite(model.info.loss)


def test_marginals_and_zeros_give_the_maximum_entropy_over_the_possible_rows() -> None:
    """Proportional fitting of the possible rows to a <= b <= c, four one-way marginals and one pair: the same table.

    The pair is measured as a residual, which also has noise of its parts that the fit must not read.
    """
    domain = domain_of((4, 4, 4, 3))
    a, b, c, d = domain.attributes
    zeros = (Zeros((a, b), np.tri(4, k=-1)), Zeros((b, c), np.tri(4, k=-1)))
    domain = Domain(domain.attributes, domain.shape, zeros=zeros)
    possible = allowed(domain)
    rng = np.random.default_rng(5)
    real = np.where(possible, rng.gamma(1.0, size=domain.shape) + 0.1, 0.0)
    real *= 1000.0 / real.sum()
    asked: list[Clique] = [(name,) for name in domain.attributes] + [(c, d)]
    table = possible.astype(float)
    for clique in asked * 2000:
        table = table * broadcast(domain, clique, marginal(domain, real, clique) / marginal(domain, table, clique))
    known = [Measurement(q, marginal(domain, real, q), 1.0) for q in asked[:-1]]
    parts = rng.normal(size=(4, 1)) + rng.normal(size=(1, 3))
    known.append(Measurement((c, d), marginal(domain, real, (c, d)) + parts, 1.0, beyond=True))
    model = estimate(domain, known, total=1000.0, config=EstimateConfig(iterations=5000, tolerance=1e-14))
    found = model.project(domain.attributes)
    assert (found[~possible] == 0.0).all()
    np.testing.assert_allclose(found, table, atol=0.02)
    blind = estimate(domain_of((4, 4, 4, 3)), known, total=1000.0).project(domain.attributes)
    assert np.abs(found - real).sum() < 0.6 * np.abs(blind - real).sum()


@given(restricted(), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_conditioning_is_exact(case: tuple[Domain, list[Clique]], seed: int) -> None:
    domain, cliques = case
    rng = np.random.default_rng(seed)
    model = Model(domain, {c: 3.0 * rng.standard_normal(domain.shape_of(c)) for c in cliques}, 50.0)
    names = rng.permutation(domain.attributes)[: rng.integers(1, len(domain) + 1)].tolist()
    masks = {name: rng.random(domain[name]) < 0.6 for name in names}
    inside = np.ones(domain.shape, dtype=bool)
    for name, mask in masks.items():
        inside &= broadcast(domain, (name,), mask)
    truth = np.where(inside, joint_of(domain, model), 0.0)
    rows = model.sample(200, rng)
    table = EmpiricalModel(domain, rows)
    if not truth.any():
        with pytest.raises(InputError, match="condition"):
            model.conditioned(masks)
    else:
        conditioned = model.conditioned(masks)
        np.testing.assert_allclose(conditioned.total, 50.0 * truth.sum(), rtol=1e-9)
        np.testing.assert_allclose(conditioned.project(domain.attributes), 50.0 * truth, atol=1e-9)
        assert inside[tuple(conditioned.sample(100, rng).T)].all()
        again = Model.from_arrays(domain, conditioned.to_arrays())
        assert np.array_equal(again.project(domain.attributes), conditioned.project(domain.attributes))
        twice = model.conditioned({names[0]: masks[names[0]]}).conditioned(masks)
        np.testing.assert_allclose(twice.project(domain.attributes), 50.0 * truth, atol=1e-9)
    kept = rows[inside[tuple(rows.T)]]
    if len(kept):
        found = table.conditioned(masks)
        assert np.array_equal(found.codes, kept) and found.total == pytest.approx(len(kept))
    else:
        with pytest.raises(InputError, match="condition"):
            table.conditioned(masks)


@given(restricted(), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=30, deadline=None)
def test_gum_makes_possible_rows_only(case: tuple[Domain, list[Clique]], seed: int, from_rows: bool) -> None:
    domain, cliques = case
    rng = np.random.default_rng(seed)
    measurements = [Measurement(c, 60.0 * rng.random(domain.shape_of(c)), 1.0) for c in cliques]
    given_rows = np.stack([rng.integers(0, n, 40) for n in domain.shape], axis=1) if from_rows else None
    config = GumConfig(iterations=6, duplicate=float(rng.random()))
    rows = synthesize(domain, measurements, 150, rng, config, total=150.0, start=given_rows)
    assert rows.shape == (150, len(domain)) and allowed(domain)[tuple(rows.T)].all()


def test_zeros_lower_the_error_on_data_that_obeys_them() -> None:
    """L1 over the pairs with the same noise, means of four tables; twelve other tables gave no exception."""
    pairs: list[Clique] = [("b", "c"), ("c", "d"), ("a", "d"), ("a", "b")]
    domain = Domain(("a", "b", "c", "d"), (6, 6, 5, 4))
    zeroed = Domain(domain.attributes, domain.shape, zeros=(Zeros(("a", "b"), np.tri(6, k=-1)),))
    found = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        a = rng.integers(0, 6, 4000)
        b = np.minimum(5, a + rng.integers(0, 4, 4000))  # a <= b
        c = (b + rng.integers(0, 3, 4000)) % 5
        real = count(np.stack([a, b, c, (c + a + rng.integers(0, 2, 4000)) % 4], axis=1), domain, pairs)
        noisy = [Measurement(q, m + rng.normal(0, 10, m.shape), 10.0) for q, m in zip(pairs, real, strict=True)]
        made = []
        for space, known in ((domain, noisy), (zeroed, noisy), (domain, noisy[:3]), (zeroed, noisy[:3])):
            rows = synthesize(space, known, 4000, np.random.default_rng(1), total=4000.0)
            made += [count(rows, domain, pairs), estimate(space, known, total=4000.0).project_many(pairs)]
        found.append([sum(float(np.abs(x - y).sum()) for x, y in zip(m, real, strict=True)) for m in made])
    gum, model, gum_zeros, model_zeros, blind_gum, blind_model, told_gum, told_model = np.mean(found, axis=0)
    assert gum_zeros < gum and model_zeros < model
    assert told_gum < 0.6 * blind_gum and told_model < 0.6 * blind_model  # zeros tell of (a, b) what nobody measured


def test_a_rare_condition_loses_no_accuracy() -> None:
    domain = Domain(("a", "b"), (2, 2))
    model = Model(domain, {("a", "b"): np.array([[0.0, 0.0], [-600.0, -599.0]])}, 1e6)
    shares = model.conditioned({"a": [False, True]}).project(("b",))
    np.testing.assert_allclose(shares / shares.sum(), [1 / (1 + np.e), np.e / (1 + np.e)], rtol=1e-12)


def test_zeros_that_leave_nothing_are_refused() -> None:
    domain = Domain(("a",), (2,), zeros=(Zeros(("a",), [True, True]),))
    with pytest.raises(ValueError, match="no possible row"):
        Model(domain, {}, 1.0).project(("a",))
    with pytest.raises(ValueError, match="no possible row"):
        estimate(domain, [Measurement(("a",), np.array([1.0, 2.0]), 1.0)])


def test_a_domain_travels_with_its_zeros() -> None:
    domain = Domain(("a", "b", "c"), (2, 3, 2), zeros=(Zeros(("c", "b"), np.eye(2, 3)), Zeros(("a",), [False, True])))
    assert Domain.described(domain.describe()) == domain
    assert domain.project(("c", "b")).zeros == domain.zeros[:1]
    assert domain != Domain(domain.attributes, domain.shape) and hash(domain) != hash(Domain(("a",), (1,)))
    with pytest.raises(ValueError):
        Domain.described({**domain.describe(), "zeros": [{"clique": ["a", "b"], "cells": ""}]})
