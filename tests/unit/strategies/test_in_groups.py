"""Counts of groups of values: sensitivity by brute force, fits that take them as they are, requests, whole runs."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from experiments.sketch_aim_ablation.variant import Variant, VariantClient, Weighed, blocks
from fedsyn.domain import Domain
from fedsyn.errors import ProtocolError
from fedsyn.front.testing.harness import Federation, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.inference import EstimateConfig, Hierarchy, Measurement, Model, estimate
from fedsyn.inference.calibrate import Calibrator
from fedsyn.inference.engines import ESTIMATORS
from fedsyn.inference.junction_tree import axes_of, build_tree
from fedsyn.inference.measurements import merge
from fedsyn.inference.shrinkage import of_measurements
from fedsyn.inference.solvers import Problem, Seen
from fedsyn.plugins.clients.sketch_aim import Residuals
from fedsyn.plugins.strategies.sketch_aim import SketchAim
from fedsyn.privacy import PrivacyBudget
from fedsyn.protocol.joining import Participant
from fedsyn.randomness import Randomness
from fedsyn.selection.coarse import CoarseMarginals
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.sums import cost, group_of_cells
from fedsyn.wire.holder import Holder
from fedsyn.wire.requests import Summed
from support.halves import asked

TABLE = awkward_table("missing_values")
DOMAIN = TABLE.schema.domain
CODES = TABLE.encode()
VARIANT = "experiments.sketch_aim_ablation.variant:Variant"
CLIENT = VariantClient(config_of(VARIANT, 1), Holder(0, CODES, DOMAIN, "", Randomness(0)))
CANDIDATES = CLIENT.contract.candidates.cliques

SMALL = Domain(("a", "b", "c"), (4, 3, 2))
GROUPS = (np.array([0, 0, 1, 1]), np.array([0, 1, 1]))
TOTAL = 300.0


@st.composite
def some_groups(draw: st.DrawFn, domain: Domain, clique: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Any groups, neighbours or not, all of them in use."""
    out = []
    for name in clique:
        drawn = draw(st.lists(st.integers(0, domain[name] - 1), min_size=domain[name], max_size=domain[name]))
        out.append(np.unique(np.array(drawn), return_inverse=True)[1].reshape(-1))
    return tuple(out)


# Sensitivity ---------------------------------------------------------------------------------------------------------


@st.composite
def requests(draw: st.DrawFn) -> tuple[Weighed, CoarseMarginals]:
    """A request for some candidates, repeated ones too, in any groups, with any weights."""
    which = draw(st.lists(st.integers(0, len(CANDIDATES) - 1), min_size=1, max_size=4))
    groups = [draw(some_groups(DOMAIN, CANDIDATES[i])) for i in which]
    weights = draw(st.lists(st.integers(1, 16), min_size=len(which), max_size=len(which)))
    coarse = CoarseMarginals.in_groups(DOMAIN, [CANDIDATES[i] for i in which], groups)
    return Weighed(shapes=[list(s) for s in coarse.shapes], cliques=which, weights=weights), coarse


@settings(max_examples=60, deadline=None)
@given(requests(), st.integers(0, len(CODES) - 1))
def test_one_row_moves_weighed_groups_by_exactly_their_sensitivity(
    made: tuple[Weighed, CoarseMarginals], row: int
) -> None:
    """Tables that differ in any one row, whatever the groups; and what is sent is what it says."""
    request, coarse = made
    vectors = []
    for rows in (CODES, np.delete(CODES, row, axis=0)):
        client = VariantClient(CLIENT.config, Holder(0, rows, DOMAIN, "", Randomness(0)))
        sent = client.measure(asked(client, request, [coarse.pack()]))
        assert (np.diff(sent.cells) > 0).all() and sent.values.dtype == np.int64
        vectors.append(sent.dense())
    moved, layout = vectors[0] - vectors[1], sent.layout
    assert (layout.count, layout.signed, layout.length) == (1, False, sum(coarse.lengths))
    assert sqrt(float(moved @ moved)) == pytest.approx(layout.sensitivity, rel=1e-12)
    assert np.abs(moved).max() <= layout.magnitude == max(request.weights)
    parts = coarse.split(vectors[0])
    for part, clique, groups, weight in zip(parts, coarse.cliques, coarse.groups, request.weights, strict=True):
        fine = count(CODES, DOMAIN, [clique])[0]
        index, length = group_of_cells(groups)
        expected = np.bincount(index, fine.ravel(), length).astype(int)
        assert np.array_equal(part.ravel(), weight * expected)


# What a client takes -------------------------------------------------------------------------------------------------

PAIR = next(i for i, q in enumerate(CANDIDATES) if len(q) == 2)
WHOLE = CoarseMarginals.in_groups(
    DOMAIN, [CANDIDATES[PAIR]], [tuple(np.arange(n) for n in DOMAIN.shape_of(CANDIDATES[PAIR]))]
)


@pytest.mark.parametrize(
    ("changes", "arrays", "says"),
    [
        ({}, [], "does not bring the groups"),
        ({}, [WHOLE.pack()] * 2, "or more than them"),
        ({"shapes": []}, [WHOLE.pack()], "or more than them"),
        ({}, [WHOLE.pack()[:-1]], "do not fit the domain"),
        ({}, [WHOLE.pack().astype(float)], "do not fit the domain"),
        ({}, [WHOLE.pack().reshape(1, -1)], "do not fit the domain"),
        ({}, [WHOLE.pack() + np.uint16(1)], "do not exist"),
        ({"shapes": [[1, 1]]}, [WHOLE.pack()], "do not exist"),
        ({"shapes": [[10_000, 1]]}, [WHOLE.pack()], "do not exist"),
        ({"shapes": [[1]]}, [WHOLE.pack()], "'shapes' must hold the groups"),
        ({"shapes": [[1, 1], [1, 1]]}, [WHOLE.pack()], "'shapes' must hold the groups"),
        ({"shapes": [[0, 1]]}, [WHOLE.pack()], "'shapes'"),
        ({"shapes": [[True, 1]]}, [WHOLE.pack()], "'shapes'"),
        ({"shapes": [], "cliques": [PAIR, PAIR], "weights": [1, 1]}, [], "'cliques' repeats an entry"),
        ({"weights": [1, 1]}, [WHOLE.pack()], "one weight for each"),
    ],
)
def test_a_client_refuses_malformed_groups_in_one_sentence(changes: Any, arrays: Any, says: str) -> None:
    good = {"shapes": [list(WHOLE.shapes[0])], "cliques": [PAIR], "weights": [2]}
    for request, answer in ((Weighed, CLIENT.measure), (Residuals, CLIENT.measure_residuals)):
        answer(asked(CLIENT, (request, good), [WHOLE.pack()]))
        with pytest.raises(ProtocolError, match=says) as refused:
            answer(asked(CLIENT, (request, {**good, **changes}), arrays))
        assert "\n" not in str(refused.value) and len(str(refused.value)) <= 160


def test_groups_of_very_many_values_survive_the_message() -> None:
    domain = Domain(("a", "b"), (70_000, 2))
    made = CoarseMarginals.in_groups(domain, [("a", "b")], [(np.arange(70_000), np.arange(2))])
    again = CoarseMarginals.unpack(domain, [("a", "b")], [[70_000, 2]], made.pack())
    assert np.array_equal(again.groups[0][0], np.arange(70_000)) and WHOLE.pack().dtype == np.uint16


# Fits ----------------------------------------------------------------------------------------------------------------


def joint() -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.full(24, 0.7)).reshape(SMALL.shape)


def marginal(p: np.ndarray, clique: tuple[str, ...]) -> np.ndarray:
    return p.sum(axis=tuple(i for i, name in enumerate("abc") if name not in clique))


def measured() -> list[Measurement]:
    """One-way marginals, one of them also in two blocks, a pair in groups and another in cells."""
    rng, p, out = np.random.default_rng(1), joint() * TOTAL, []
    looks: list[tuple[tuple[str, ...], Any, float]] = [
        (("a",), None, 5.0), (("b",), None, 5.0), (("c",), None, 5.0), (("a",), (np.array([0, 0, 1, 1]),), 2.0),
        (("a", "b"), GROUPS, 4.0), (("b", "c"), None, 6.0), (("a", "b"), (GROUPS[0], np.arange(3)), 9.0),
    ]  # fmt: skip
    for clique, groups, sigma in looks:
        exact = Measurement(clique, np.zeros(0), sigma, groups=groups).of_cells(marginal(p, clique))
        out.append(Measurement(clique, exact + rng.normal(0, sigma, len(exact)), sigma, groups=groups))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("kappa", [0.0, 20.0])
def test_a_fit_to_groups_is_the_minimum_over_all_tables(kappa: float) -> None:
    """Against a quasi-Newton method on the logarithms of all 24 cells."""
    given = measured()
    config = EstimateConfig(iterations=3000, tolerance=0.0)
    prior = estimate(SMALL, [m for m in given if len(m.clique) == 1 and m.groups is None], total=TOTAL, config=config)
    p0 = prior.project("abc").ravel() / TOTAL

    def objective(p: np.ndarray) -> float:
        table = TOTAL * p.reshape(SMALL.shape)
        fit = sum(0.5 * np.sum(((m.of_cells(marginal(table, m.clique)) - m.values) / m.sigma) ** 2) for m in given)
        return float(fit + kappa * np.sum(p * np.log(np.maximum(p, 1e-300) / p0)))

    def loss(x: np.ndarray) -> float:
        e = np.exp(x - x.max())
        return objective(e / e.sum())

    model = estimate(SMALL, given, total=TOTAL, config=config, prior=prior, shrinkage=kappa)
    best = minimize(loss, np.log(p0), method="L-BFGS-B", options={"maxiter": 400, "maxfun": 10**5, "ftol": 1e-13})
    assert objective(model.project("abc").ravel() / TOTAL) == pytest.approx(best.fun, rel=2e-4)
    assert model.info is not None and model.info.loss + 0.0 == pytest.approx(
        objective(model.project("abc").ravel() / TOTAL) - kappa * kl(model, p0), rel=1e-9
    )


def kl(model: Model, p0: np.ndarray) -> float:
    p = model.project("abc").ravel() / TOTAL
    return float(np.sum(p * np.log(p / p0)))


def test_inside_a_group_cells_follow_the_one_way_marginals() -> None:
    exact = joint() * TOTAL
    ones = [Measurement((name,), marginal(exact, (name,)), 1e-3) for name in "abc"]
    counts = Measurement(("a", "b"), np.zeros(0), 1e-3, groups=GROUPS).of_cells(marginal(exact, ("a", "b")))
    coarse = Measurement(("b", "a"), counts.reshape(2, 2).T, 1e-3, groups=GROUPS[::-1])
    config = EstimateConfig(iterations=3000, tolerance=0.0)
    table = estimate(SMALL, [*ones, coarse], total=TOTAL, config=config).project(("a", "b"))
    for g, h in ((0, 0), (0, 1), (1, 0), (1, 1)):
        block = table[np.ix_(GROUPS[0] == g, GROUPS[1] == h)]
        assert block.sum() == pytest.approx(counts.reshape(2, 2)[g, h], rel=1e-3)
        assert np.allclose(block, np.outer(block.sum(1), block.sum(0)) / block.sum(), rtol=1e-6)


def test_measurements_of_groups_are_merged_by_their_groups() -> None:
    axes, given = axes_of(SMALL), measured()
    found = merge(axes, given)
    assert len(found) == 7 and [m.index is None for m in found].count(False) == 3
    again = merge(axes, given[::-1])
    assert all(np.array_equal(x.values, y.values) and x.sigma == y.sigma for x, y in zip(found, again, strict=True))
    own = tuple(np.arange(n) for n in (4, 3))
    cells = Measurement(("a", "b"), np.ones((4, 3)), 1.0)
    (one,) = merge(axes, [cells, replace(cells, values=3 * np.ones(12), groups=own)])
    assert one.index is None and np.allclose(one.values, 2.0), "every value in a group of its own is no group"
    with pytest.raises(ValueError, match="group for each value"):
        merge(axes, [replace(cells, groups=(own[0], own[1][:-1]))])
    with pytest.raises(ValueError, match="shape"):
        merge(axes, [replace(cells, groups=GROUPS)])


def test_a_group_of_impossible_cells_is_known_to_be_empty() -> None:
    barred = np.zeros((4, 3), bool)
    barred[:2, 1:] = True
    barred[3, 0] = True
    domain = Domain(SMALL.attributes, SMALL.shape, zeros=((("a", "b"), barred),))
    (one,) = merge(axes_of(domain), [Measurement(("a", "b"), np.full((2, 2), 7.0), 1.0, groups=GROUPS)])
    axes = axes_of(domain)
    by_name = one.values if axes.rank["a"] < axes.rank["b"] else one.values.T
    assert by_name.tolist() == [[7.0, 0.0], [7.0, 7.0]] and one.noisy == 3


def test_the_pull_is_found_where_groups_see_it() -> None:
    rows = np.random.default_rng(3).integers(0, SMALL.shape, (4000, 3))
    rows[:, 1] = np.where(np.arange(4000) % 3 == 0, rows[:, 0] // 2, rows[:, 1])
    table = count(rows, SMALL, [("a", "b")])[0].astype(float)
    prior = estimate(SMALL, [Measurement((n,), count(rows, SMALL, [(n,)])[0] * 1.0, 1e-3) for n in "abc"])
    fine = Measurement(("a", "b"), table, 1e-3)
    coarse = Measurement(("a", "b"), fine.values, 1e-3, groups=GROUPS)
    coarse = replace(coarse, values=coarse.of_cells(table))
    p = prior.project(("a", "b")) / prior.total
    seen = coarse.of_cells(p)
    expected = (1 - (seen**2).sum()) / ((coarse.values / prior.total - seen) ** 2).sum()
    assert of_measurements([coarse], prior) == pytest.approx(expected, rel=1e-3)


# Hierarchies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "ordered"), [(12, 12), (33, 32), (20, 20), (5, 5), (14, 0)])
def test_a_hierarchys_blocks_are_groups(size: int, ordered: int) -> None:
    tree = Hierarchy.binary(size, ordered)
    counts = np.random.default_rng(size).integers(0, 9, size)
    expected = np.split(tree.scaled(1.0).apply(counts), np.cumsum(tree.lengths)[:-1])
    for groups, own, weight in zip(blocks(tree), expected, tree.scaled(1.0).weights, strict=True):
        assert np.array_equal(np.bincount(groups, counts)[: len(own)] * weight, own)
        assert groups.max() + 1 == len(own) + (0 if len(own) == size else size - tree.ordered)


# Whole runs ----------------------------------------------------------------------------------------------------------


def test_a_planned_group_is_asked_for_counted_and_opened_as_such() -> None:
    config = config_of(VARIANT, 1, {"residuals": False})
    strategy = Variant(config, DOMAIN, TABLE.schema.sha256, randomness=Randomness(0))
    strategy.clients = {0: Participant(0, 1, float(len(CODES)))}
    strategy.estimate([Measurement((name,), count(CODES, DOMAIN, [(name,)])[0] * 1.0, 1e-3) for name in DOMAIN])
    strategy.measured_in[PAIR] = 1
    single = next(i for i, q in enumerate(CANDIDATES) if len(q) == 1)
    request, sigma, groups = strategy.asked({single: 1.0, PAIR: 4.0})
    assert request.cliques == [single, PAIR] and request.weights == [8, 16] and sigma**2 == pytest.approx(320 / 5)
    assert request.shapes[1] == strategy.resolutions.ladder(CANDIDATES[PAIR]).counts[1].tolist()
    assert request.shapes[0] == [DOMAIN.size(CANDIDATES[single])] and request.shapes[1] != list(WHOLE.shapes[0])
    sent = CLIENT.measure(asked(CLIENT, request, groups)).dense().astype(float)
    one, pair = strategy.opened_residuals(Summed([sent], (sigma,), (0,)), request, groups)
    for found, weight in ((one, 8), (pair, 16)):
        exact = count(CODES, DOMAIN, [found.clique])[0]
        assert np.array_equal(found.values.ravel(), found.of_cells(exact)) and found.sigma == sigma / weight
    assert one.groups is None and pair.groups is not None
    cells, _, none = strategy.asked({single: 1.0})
    assert none == [] and cells.shapes == []


def test_a_planned_residual_is_asked_for_counted_and_opened_as_such() -> None:
    strategy = SketchAim(config_of("sketch_aim", 1), DOMAIN, TABLE.schema.sha256, randomness=Randomness(0))
    strategy.clients = {0: Participant(0, 1, float(len(CODES)))}
    strategy.estimate([Measurement((name,), count(CODES, DOMAIN, [(name,)])[0] * 1.0, 1e-3) for name in DOMAIN])
    strategy.measured_in[PAIR] = 1
    single = next(i for i, q in enumerate(CANDIDATES) if len(q) == 1)
    request, sigma, groups = strategy.asked({single: 1.0, PAIR: 4.0})
    assert isinstance(request, Residuals)
    contribution = CLIENT.measure_residuals(asked(CLIENT, request, groups))
    assert (contribution.layout.sensitivity / sigma) ** 2 == pytest.approx(5.0, rel=1e-12)
    one, pair = strategy.opened_residuals(Summed([contribution.dense() * 1.0], (sigma,), (0,)), request, groups)
    for found, budget in ((one, 1.0), (pair, 4.0)):
        exact = count(CODES, DOMAIN, [found.clique])[0]
        assert found.values.ravel() == pytest.approx(found.of_cells(exact))
        assert cost(found.values.shape) / found.sigma**2 == pytest.approx(budget, rel=0.06)
    assert (one.beyond, one.groups, pair.beyond, pair.groups is None) == (False, None, True, False)
    cells, _, none = strategy.asked({single: 1.0})
    assert none == [] and cells.shapes == []


def test_a_hierarchy_divides_the_budget_of_its_attribute() -> None:
    domain = Domain(("age", "sex"), (20, 2), ordered={"age": 20})
    config = config_of(VARIANT, 1, {"one_way": "hierarchical"})
    strategy = Variant(config, domain, "", randomness=Randomness(0))
    ones = {q: i for i, q in enumerate(strategy.candidates.cliques) if len(q) == 1}
    request, sigma, _ = strategy.asked({ones["age",]: 3.0, ones["sex",]: 1.0})
    assert request.shapes == [[20], [10], [5], [3], [2], [2]]
    lengths = np.array([20, 10, 5, 3, 2, 2])
    precisions = np.square(request.weights) * lengths * (lengths - 1) / sigma**2
    assert precisions.sum() == pytest.approx(4.0, rel=1e-12)
    assert precisions / precisions[1] == pytest.approx([4, 1, 1, 1, 1, 8 / 3], rel=0.1)


@pytest.mark.parametrize("one_way", ["flat", "hierarchical"])
def test_a_run_in_groups_is_one_gaussian_mechanism_that_spends_the_budget(one_way: str) -> None:
    nodes = {"workload": {"degree": 2, "size": None, "seed": 1}, "privacy": {"epsilon": 0.1, "delta": 1e-5}}
    config = config_of(VARIANT, 3, {"rounds": 3, "one_way": one_way}, **nodes)
    many, mu = np.repeat(CODES, 24, axis=0), PrivacyBudget(0.1, 1e-5).mu
    outcome = finished(execute(config, Federation(TABLE, (many[:200], many[200:500], many[500:]))))
    measured = [r for r in outcome.strategy.ledger.releases if r.name == "measure"]
    assert {r.mechanism for r in outcome.strategy.ledger.releases} == {"gaussian"} and measured
    assert sum((r.sensitivity / r.sigma) ** 2 for r in measured) == pytest.approx(0.8 * mu**2, rel=1e-8)
    assert outcome.strategy.ledger.spent == pytest.approx(mu**2, rel=1e-8)
    asked_for = [e.envelope["params"] for e in outcome.tape.exchanges if e.envelope["request"] == "measure"]
    assert any(params["shapes"] for params in asked_for)


def test_the_way_between_two_models_is_their_divergence_also_where_groups_are_seen() -> None:
    axes, rng = axes_of(SMALL), np.random.default_rng(5)
    mask = axes.mask(("a", "b"))
    calibrator = Calibrator(build_tree(axes, [mask]), [mask], {})
    index, length = group_of_cells(GROUPS if axes.rank["a"] < axes.rank["b"] else GROUPS[::-1])
    seen = Seen([0, 12], [(0, index, length)])
    problem = Problem(calibrator, np.full(length, 0.25), np.full(length, 3.0), 1.0, np.zeros(12), seen=seen)
    old, new = rng.normal(size=(2, 12))
    before = problem.residual(old)
    cells, p = problem.reached(), calibrator.marginals.copy()
    change = problem.residual(new) - before
    q = calibrator.marginals
    expected = float((q * np.log(q / p)).sum() + (p * np.log(p / q)).sum())
    assert problem.travelled(new, old, change, cells) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_mbi_fits_groups_to_the_same_optimum() -> None:
    pytest.importorskip("mbi")
    given, config = measured(), EstimateConfig(iterations=2000, tolerance=0.0)
    ours = estimate(SMALL, given, total=TOTAL, config=config).info
    theirs = estimate(SMALL, given, total=TOTAL, config=config, engine=ESTIMATORS["MirrorDescent"]).info
    assert ours is not None and theirs is not None
    assert theirs.loss == pytest.approx(ours.loss, rel=1e-3)
