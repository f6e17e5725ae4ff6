"""Fits by Private-PGM's mbi beside fedsyn's own, what it cannot fit, and models that go there and come back."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.errors import ConfigError
from fedsyn.front.testing.harness import config_of
from fedsyn.inference import EstimateConfig, Measurement, Model, estimate
from fedsyn.inference.engines import ESTIMATORS, Fits, engine_of
from fedsyn.registry import contract_class, strategy_class
from fedsyn.settings import InferenceNode
from support.inference_reference import marginal

SHAPE, TOTAL = (3, 4, 2, 5), 500.0
CLIQUES = (("a", "b"), ("b", "c"), ("d", "c"), ("b", "a"), ("d",), ("a",), ("b",))
PLAIN = Domain(tuple("abcd"), SHAPE)
ZEROS = Domain(tuple("abcd"), SHAPE, zeros=((("b", "a"), np.arange(12).reshape(4, 3) % 5 == 1),))
HIDDEN = Domain(tuple("abcd"), SHAPE, hidden=(("h", 2),))
GROUPS = (np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1, 2]))
MIRROR = ESTIMATORS["MirrorDescent"]


def measured(domain: Domain) -> list[Measurement]:
    """Noisy marginals of a random table, some of them of groups or residuals."""
    rng = np.random.default_rng(3)
    joint = TOTAL * rng.dirichlet(np.full(PLAIN.size(), 0.5)).reshape(SHAPE)
    if domain.zeros:
        joint[domain.impossible(tuple("abcd"))] = 0.0
        joint *= TOTAL / joint.sum()
    exact = [Measurement(q, marginal(PLAIN, joint, q), 2.0 + i % 2) for i, q in enumerate(CLIQUES)]
    table = marginal(PLAIN, joint, ("b", "d"))
    for more in ({"groups": GROUPS}, {"beyond": True}):
        shape = (2, 3) if "groups" in more else table.shape
        one = Measurement(("b", "d"), np.zeros(shape), 2.0, share=0.5, **more)
        exact.append(Measurement(("b", "d"), one.of_cells(table).reshape(shape), 2.0, share=0.5, **more))
    return [
        Measurement(m.clique, m.values + m.sigma * rng.standard_normal(np.shape(m.values)), m.sigma, **kind(m))
        for m in exact
    ]


def kind(m: Measurement) -> dict[str, Any]:
    return {"groups": m.groups, "beyond": m.beyond, "share": m.share, "noises": m.noises}


def prior_on(domain: Domain) -> Model:
    rng = np.random.default_rng(4)
    beside = ("h",) if domain.hidden else ()
    cliques = [(name, *beside) for name in domain]
    return Model(domain, {q: rng.standard_normal(domain.shape_of(q)) for q in cliques}, TOTAL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("domain", "shrinkage"),
    [
        pytest.param(ZEROS, 0.0, id="structural zeros", marks=pytest.mark.slow),
        pytest.param(ZEROS, 40.0, id="structural zeros and shrinkage", marks=pytest.mark.slow),
        pytest.param(PLAIN, 40.0, id="shrinkage", marks=pytest.mark.slow),
        pytest.param(HIDDEN, 0.0, id="a factor", marks=pytest.mark.slow),
        pytest.param(HIDDEN, 40.0, id="a factor and shrinkage", marks=pytest.mark.thorough),
    ],
)
def test_mirror_descent_finds_the_model_that_ours_finds(domain: Domain, shrinkage: float) -> None:
    pytest.importorskip("mbi")
    given, prior = measured(domain), prior_on(domain)
    settings = {"total": TOTAL, "prior": prior, "shrinkage": shrinkage}
    ours = estimate(domain, given, config=EstimateConfig(3000, 0.0), **settings)
    theirs = estimate(domain, given, config=EstimateConfig(2000, 0.0), engine=MIRROR, **settings)
    assert ours.info is not None and theirs.info is not None
    assert theirs.info.loss == pytest.approx(ours.info.loss, rel=1e-4) and theirs.info.iterations == 2000
    for clique in (("a", "b"), ("b", "d"), ("a", "d"), ("a", "b", "c", "d")):
        assert np.abs(theirs.project(clique) - ours.project(clique)).sum() < 1e-3 * TOTAL


@pytest.mark.slow
def test_mirror_descent_makes_the_fit_that_another_estimator_cannot_finish() -> None:
    pytest.importorskip("mbi")
    given, config = measured(ZEROS), EstimateConfig(100, 0.0)
    fits = [
        estimate(ZEROS, given, total=TOTAL, config=config, engine=ESTIMATORS[name])
        for name in ("InteriorGradient", "MirrorDescent")
    ]
    assert np.array_equal(fits[0].project(("a", "b", "d")), fits[1].project(("a", "b", "d")))


@pytest.mark.slow
def test_a_fit_ends_at_the_noise_level_and_at_its_tolerance() -> None:
    pytest.importorskip("mbi")
    given = [one for one in measured(PLAIN) if one.clique in (("a", "b"), ("d", "c"))]
    for config in (EstimateConfig(5000, 0.0, stop_at_noise_level=True), EstimateConfig(5000, 1e-3)):
        info = estimate(PLAIN, given, total=TOTAL, config=config, engine=MIRROR).info
        assert info is not None and info.converged and info.iterations < 1000
    longest = estimate(PLAIN, given, total=TOTAL, config=EstimateConfig(120, 0.0), engine=MIRROR).info
    assert longest is not None and longest.iterations == 150 and not longest.converged


@pytest.mark.slow
def test_both_engines_end_at_the_noise_level_after_the_same_step() -> None:
    """Early ends would differ by mbi's block of 50 iterations, if a fit took steps beyond."""
    pytest.importorskip("mbi")
    rng, sigma = np.random.default_rng(6), 80.0
    given = [
        Measurement(q, TOTAL / PLAIN.size(q) + sigma * rng.standard_normal(PLAIN.shape_of(q)), sigma) for q in CLIQUES
    ]
    more = {"total": TOTAL, "prior": prior_on(PLAIN), "shrinkage": 2.0}
    config = EstimateConfig(100, 0.0, stop_at_noise_level=True)
    ours, theirs = (estimate(PLAIN, given, config=config, engine=engine, **more) for engine in (None, MIRROR))
    longer = estimate(PLAIN, given, config=EstimateConfig(50, 0.0), **more)
    assert ours.info is not None and theirs.info is not None
    assert ours.info.converged and ours.info.iterations < 5 and theirs.info.converged and theirs.info.iterations == 50
    for clique in (("a", "b"), ("d", "c"), ("a", "d")):
        distances = [np.abs(one.project(clique) - ours.project(clique)).sum() for one in (theirs, longer)]
        assert distances[0] < 1e-3 * TOTAL < distances[1] / 10


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("engine", [None, MIRROR], ids=["native", "mbi"])
def test_a_fit_leaves_the_model_that_fits_better_for_the_one_that_it_is_pulled_to(engine: Any) -> None:
    if engine is not None:
        pytest.importorskip("mbi")
    given, prior = [one for one in measured(ZEROS) if not one.beyond and one.groups is None], prior_on(ZEROS)
    pulled = {"total": TOTAL, "prior": prior, "shrinkage": 400.0}
    best = estimate(ZEROS, given, config=EstimateConfig(3000, 0.0), **pulled)
    before = estimate(ZEROS, given, total=TOTAL, config=EstimateConfig(3000, 0.0))  # a step of the loss ends here
    after = estimate(ZEROS, given, config=EstimateConfig(1000, 1e-6), warm_start=before, engine=engine, **pulled)
    assert best.info is not None and before.info is not None and before.info.loss < best.info.loss / 1.5
    for clique in (("a", "b"), ("c", "d"), ("a", "d")):
        assert np.abs(after.project(clique) - best.project(clique)).sum() < 1e-3 * TOTAL


@pytest.mark.slow
def test_a_fit_goes_on_from_the_model_before() -> None:
    pytest.importorskip("mbi")
    given = measured(PLAIN)
    before = estimate(PLAIN, given, total=TOTAL, config=EstimateConfig(3000, 0.0))
    short = EstimateConfig(50, 0.0)
    warm, cold = (
        estimate(PLAIN, given, total=TOTAL, config=short, engine=MIRROR, warm_start=m) for m in (before, None)
    )
    assert before.info is not None and warm.info is not None and cold.info is not None
    assert warm.info.loss == pytest.approx(before.info.loss, rel=1e-3) and cold.info.loss > warm.info.loss * 1.05


@pytest.mark.slow
def test_nothing_measured_is_uniform() -> None:
    pytest.importorskip("mbi")
    assert np.allclose(estimate(PLAIN, [], total=TOTAL, engine=MIRROR).project(("a", "c")), TOTAL / 6)


# There and back ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_measurements_go_to_mbi_and_come_back() -> None:
    mbi = pytest.importorskip("mbi")
    rng = np.random.default_rng(5)
    given = measured(PLAIN)
    for one in given:
        theirs = one.to_mbi()
        table = rng.integers(0, 50, PLAIN.shape_of(one.clique)).astype(float)
        factor = mbi.Factor(mbi.Domain(one.clique, table.shape), table)
        assert np.allclose(theirs.query(factor), one.of_cells(table), rtol=1e-5, atol=1e-3)
        back = Measurement.from_mbi(theirs)
        assert (back.clique, back.sigma, back.beyond, back.share) == (one.clique, one.sigma, one.beyond, one.share)
        assert np.array_equal(np.ravel(back.values), np.ravel(one.values)) and back.count == one.count
        assert (back.groups is None) == (one.groups is None)
    counts = [one for one in given if not one.beyond]
    expected = estimate(PLAIN, counts).total
    assert mbi.estimation.minimum_variance_unbiased_total([m.to_mbi() for m in given]) == pytest.approx(expected)
    plain = mbi.LinearMeasurement(np.arange(3.0), ("a",), 2.0)
    assert Measurement.from_mbi(plain).values.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="expected counts of cells"):
        Measurement.from_mbi(mbi.LinearMeasurement(np.arange(2.0), ("a",), 2.0, mbi.SlicedQuery(1)))


@pytest.mark.thorough
@pytest.mark.parametrize("domain", [PLAIN, ZEROS, HIDDEN], ids=["plain", "structural zeros", "a factor"])
def test_models_go_to_mbi_and_come_back(domain: Domain) -> None:
    pytest.importorskip("mbi")
    model = estimate(domain, measured(domain), total=TOTAL, prior=prior_on(domain))
    theirs = model.to_mbi()
    back = Model.from_mbi(theirs, domain)
    assert back.domain == domain and back.total == model.total
    for clique in (("a", "b"), ("d", "a"), ("c",)):
        assert np.allclose(back.project(clique), model.project(clique), rtol=1e-12)
    assert np.allclose(theirs.project(("d", "a")).values, model.project(("d", "a")), rtol=1e-4, atol=1e-3)


@pytest.mark.thorough
def test_conditions_and_infinite_potentials_come_back_as_structural_zeros() -> None:
    mbi = pytest.importorskip("mbi")
    model = estimate(PLAIN, measured(PLAIN), total=TOTAL).conditioned({"c": [True, False]})
    back = Model.from_mbi(model.to_mbi())
    assert back.domain.zeros and np.allclose(back.project(("a", "c")), model.project(("a", "c")))
    empty = Model(ZEROS, {}, TOTAL)
    assert np.allclose(empty.to_mbi().project(("a", "c")).values, empty.project(("a", "c")), rtol=1e-5)
    pairs = Domain(("a", "b"), (2, 2))
    field = Model(pairs, {("a",): np.array([0.0, 1.0])}, 10.0).to_mbi()
    table = mbi.Factor(mbi.Domain(("b", "a"), (2, 2)), np.array([[0.0, -np.inf], [0.0, 0.0]]))
    vector = mbi.CliqueVector(field.domain, (("b", "a"),), {("b", "a"): table})
    barred = Model.from_mbi(mbi.MarkovRandomField(potentials=vector, marginals=field.marginals, total=10.0))
    assert np.allclose(barred.project(("b", "a")), [[10 / 3, 0.0], [10 / 3, 10 / 3]])
    with pytest.raises(ValueError, match="another domain"):
        Model.from_mbi(field, PLAIN)
    with pytest.raises(ValueError, match="has no potentials"):
        Model.from_mbi(field.marginals)


# Refusals, before anything is charged ---------------------------------------------------------------------------------


def test_the_native_engine_needs_nothing() -> None:
    assert engine_of(InferenceNode()) is None and engine_of(InferenceNode(engine="mbi")) is MIRROR


@pytest.mark.parametrize(("version", "said"), [(None, "not installed"), ("1.1.0", "found version 1.1.0")])
def test_a_missing_package_is_named_with_its_extra(
    version: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lookup(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", lookup)
    with pytest.raises(ConfigError, match=rf"needs the package 'mbi', version 2 \({said}\): pip install '.*\[pgm\]'"):
        MIRROR.require(Fits())


@pytest.mark.parametrize("name", ["InteriorGradient", "UniversalAcceleratedMethod"])
def test_an_estimator_that_averages_refuses_what_it_cannot_hold(name: str) -> None:
    pytest.importorskip("mbi")
    estimator = ESTIMATORS[name]
    estimator.require(Fits())
    MIRROR.require(Fits(True, True, True, True))
    for fits, said in (
        (Fits(zeros=True), "structural zeros"),
        (Fits(shrinkage=True), "inference.shrinkage: 0"),
        (Fits(noise_level=True), "stop_at_noise_level: false"),
        (Fits(factors=True), "hidden factors"),
    ):
        with pytest.raises(ConfigError, match=f"inference.estimator: {name} cannot .*{said}"):
            estimator.require(fits)


@pytest.mark.parametrize(
    ("mechanism", "inference", "said"),
    [
        ("privsyn", {}, "mechanism 'privsyn' fits none with its options"),
        ("fed_dp_ctgan", {}, "mechanism 'fed_dp_ctgan' fits none"),
        ("sketch_aim", {"estimator": "InteriorGradient"}, "cannot hold hidden factors"),
        ("fed_mst", {"estimator": "InteriorGradient"}, "cannot shrink towards independence"),
        ("fed_mst", {"estimator": "InteriorGradient", "shrinkage": 0}, "cannot end at the noise level"),
        ("aim", {"estimator": "InteriorGradient"}, None),
        ("sketch_aim", {}, None),
    ],
)
def test_a_mechanism_is_refused_what_its_engine_cannot_fit(
    mechanism: str, inference: dict[str, Any], said: str | None
) -> None:
    pytest.importorskip("mbi")
    config = config_of(mechanism, 1 if mechanism == "aim" else 3, inference={"engine": "mbi", **inference})
    contract = contract_class(mechanism)(config, PLAIN)
    if said is None:
        strategy_class(mechanism).require_engine(contract)
        return
    with pytest.raises(ConfigError, match=said):
        strategy_class(mechanism).require_engine(contract)
