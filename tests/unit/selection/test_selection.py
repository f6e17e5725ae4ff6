"""Distances, scores and choices of a client: values against brute force, and what one row may change."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.config import InferenceNode, WorkloadNode
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.inference import EstimateConfig, Measurement, estimate
from fedsyn.loading import parse_config
from fedsyn.plugins.clients.aim import AimContract
from fedsyn.plugins.clients.flaim import AugFlaimClient
from fedsyn.privacy import Ledger, PrivacyBudget
from fedsyn.protocol.stored import SelectClique
from fedsyn.randomness import Randomness
from fedsyn.selection.scores import expected_noise, l1_distances
from fedsyn.selection.views import ModelView, pack_model, unpack_model
from fedsyn.settings import CELLS_AT_ONCE
from fedsyn.stores import make_store
from fedsyn.stores.base import ServedRun
from fedsyn.stores.plain import PlainServer
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.workload import Candidates, Workload, all_kway, build_workload
from fedsyn.wire.holder import Holder
from fedsyn.wire.requests import Choose

DOMAIN = Domain(("a", "b", "c"), (2, 3, 4))
CLIQUES = [("a",), ("b",), ("c",), ("a", "b"), ("b", "c"), ("a", "b", "c")]


def table(rows: int, seed: int = 0, domain: Domain = DOMAIN) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, domain.shape, (rows, len(domain))).astype(np.uint8)


def a_model(domain: Domain = DOMAIN, total: float = 50.0, seed: int = 3):
    rng = np.random.default_rng(seed)
    cliques = list(itertools.pairwise(domain.attributes))
    measured = [Measurement(q, rng.random(domain.shape_of(q)) * 10 + 0.1, 1.0) for q in cliques]
    return estimate(domain, measured, total=total, config=EstimateConfig(iterations=30))


def brute_force(codes: np.ndarray, domain: Domain, clique: tuple[str, ...], model, size: float) -> float:
    counts = np.zeros(domain.shape_of(clique))
    axes = domain.axes(clique)
    for row in codes:
        counts[tuple(int(row[axis]) for axis in axes)] += 1
    return float(np.abs(counts - size * model.project(clique) / model.total).sum())


# Distances ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 3, 200])  # few rows: only the touched cells are read; many: whole marginals
@pytest.mark.parametrize("at_once", [1 << 24, 9, 1])  # 9: part by part; 1: no marginal is formed, but single cells
def test_l1_distances_are_those_of_whole_marginals(rows, at_once):
    codes, model = table(rows), a_model()
    for size in (float(rows), rows + 2.5):
        found = l1_distances(codes, DOMAIN, CLIQUES, ModelView(model, at_once), size)
        expected = [brute_force(codes, DOMAIN, q, model, size) for q in CLIQUES]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_l1_distances_of_a_clique_too_large_to_form():
    domain = Domain(tuple("abcdef"), (40, 40, 40, 40, 40, 40))  # 4 billion cells
    model = a_model(domain, total=10.0)
    codes = table(5, domain=domain)
    clique = domain.attributes
    assert domain.size(clique) > CELLS_AT_ONCE
    touched = np.exp(model.log_likelihood(codes))
    _, first, counts = np.unique(codes, axis=0, return_index=True, return_counts=True)
    p = touched[first]
    expected = np.abs(counts - 5 * p).sum() + 5 * (1 - p.sum())
    found = l1_distances(codes, domain, [clique], ModelView(model), 5.0)
    np.testing.assert_allclose(found, [expected], rtol=1e-9)


def test_model_views_are_found_by_content():
    one, two = a_model(seed=1), a_model(seed=2)
    view = ModelView.of(DOMAIN, pack_model(one), InferenceNode())
    assert ModelView.of(DOMAIN, pack_model(one), InferenceNode()) is view
    assert ModelView.of(DOMAIN, pack_model(two), InferenceNode()) is not view
    np.testing.assert_allclose(view.probabilities([("a", "b")])[0], one.project(("a", "b")).ravel() / one.total)


def test_a_model_survives_its_message_bit_for_bit():
    model = a_model()
    again = unpack_model(DOMAIN, pack_model(model), InferenceNode())
    for clique in CLIQUES:
        assert again.project(clique).tobytes() == model.project(clique).tobytes()
    with pytest.raises(ProtocolError):
        unpack_model(DOMAIN, [np.arange(3)], InferenceNode())
    with pytest.raises(ProtocolError):
        unpack_model(DOMAIN, [], InferenceNode())


# Workload and candidates -------------------------------------------------------------------------------------------


def test_candidates_are_the_downward_closure_with_aims_weights():
    workload = Workload((("a", "b"), ("b", "c")), (1.0, 2.0))
    candidates = Candidates.of(workload, DOMAIN)
    assert candidates.cliques == (("a",), ("b",), ("c",), ("a", "b"), ("b", "c"))
    np.testing.assert_array_equal(candidates.weights, [1.0, 3.0, 2.0, 4.0, 5.0])
    np.testing.assert_array_equal(candidates.cells, [2, 3, 4, 6, 12])


def test_an_explicit_workload_is_canonical_and_checked():
    node = WorkloadNode(cliques=(("c", "a"), ("a", "c"), ("b",)))
    assert build_workload(node, DOMAIN).cliques == (("a", "c"), ("b",))
    with pytest.raises(ConfigError, match="unknown attribute 'x'"):
        build_workload(WorkloadNode(cliques=(("x",),)), DOMAIN)
    with pytest.raises(ConfigError, match="at least one"):
        build_workload(WorkloadNode(cliques=()), DOMAIN)


def test_expected_noise_is_the_mean_l1_norm_of_gaussian_noise():
    noise = np.random.default_rng(0).standard_normal((20_000, 12)) * 3.0
    mean = np.abs(noise).sum(axis=1).mean()
    assert expected_noise(3.0, np.array([12.0]))[0] == pytest.approx(mean, rel=0.01)


# Sensitivity -------------------------------------------------------------------------------------------------------

MODEL = a_model()
SPARSE = Domain(("a", "b", "c"), (2, 50, 60))
SPARSE_MODEL = a_model(SPARSE, seed=5)
CONFIG = parse_config(
    {
        "mechanism": {"name": "augflaim", "rounds": 1},
        "data": {"source": "x.csv"},
        "privacy": {"epsilon": 1, "delta": 1e-5},
        "evaluation": [],
    }
)


def proxy(codes: np.ndarray, domain: Domain, model, size: float) -> np.ndarray:
    client = AugFlaimClient(CONFIG, Holder(0, codes, domain, "", Randomness(0), {"size": size}))
    # The size that a client uses is a constant of the analysis, whatever it is.
    client.config = CONFIG.model_copy(update={"privacy": CONFIG.privacy.model_copy(update={"client_sizes": "private"})})
    return client.proxy(CLIQUES, ModelView(model))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 40),
    seed=st.integers(0, 10_000),
    size=st.floats(1.0, 60.0),
    sparse=st.booleans(),
    data=st.data(),
)
def test_one_row_moves_a_score_by_at_most_w_for_aim_and_2w_for_augflaim(rows, seed, size, sparse, data):
    domain, model = (SPARSE, SPARSE_MODEL) if sparse else (DOMAIN, MODEL)
    codes = table(rows, seed, domain)
    row = [data.draw(st.integers(0, n - 1)) for n in domain.shape]
    more = np.concatenate([codes, np.array([row], dtype=codes.dtype)])
    weights = Candidates.of(all_kway(domain, 3), domain)
    w = np.array([dict(zip(weights.cliques, weights.weights, strict=True))[q] for q in CLIQUES])
    view = ModelView(model)
    distances = [l1_distances(c, domain, CLIQUES, view, size) for c in (codes, more)]
    assert np.all(np.abs(w * (distances[1] - distances[0])) <= w * (1 + 1e-9))
    tau = [proxy(c, domain, model, size) for c in (codes, more)]
    assert np.all(np.abs(tau[1] - tau[0]) <= 1 + 1e-9)
    scores = [w * (d - t) for d, t in zip(distances, tau, strict=True)]
    assert np.all(np.abs(scores[1] - scores[0]) <= 2 * w * (1 + 1e-9))


def test_the_bound_of_augflaim_is_attained():
    """A row in a cell where the model has nothing moves the distance up; in a one-way cell it lacks, tau down."""
    domain = Domain(("a", "b"), (2, 2))
    # The client's rows agree with the model's one-way marginals except for what the added row completes.
    model = estimate(
        domain,
        [Measurement(("a", "b"), np.array([[5.0, 0.0], [0.0, 5.0]]), 1e-3)],
        total=10.0,
        config=EstimateConfig(iterations=300),
    )
    codes = np.array([[0, 0]] * 4 + [[1, 1]] * 4, dtype=np.uint8)
    more = np.concatenate([codes, np.array([[0, 1]], dtype=np.uint8)])
    view = ModelView(model)
    distances = [l1_distances(c, domain, [("a", "b")], view, 10.0)[0] for c in (codes, more)]
    ones = [l1_distances(c, domain, [("a",), ("b",)], view, 10.0).mean() for c in (codes, more)]
    moved = (distances[1] - ones[1]) - (distances[0] - ones[0])
    assert moved == pytest.approx(2.0, abs=0.02)


def test_the_proxy_is_the_mean_one_way_distance():
    codes = table(30)
    found = proxy(codes, DOMAIN, MODEL, 30.0)
    one = {name: brute_force(codes, DOMAIN, (name,), MODEL, 30.0) for name in DOMAIN}
    np.testing.assert_allclose(found, [np.mean([one[name] for name in q]) for q in CLIQUES])


# The choice --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thorough
def test_choices_follow_the_exponential_mechanism():
    """6,000 choices among a tiny domain's candidates against the probabilities exp(eps u / 2 Delta) / sum."""
    domain = Domain(("a", "b"), (2, 2))
    workload = all_kway(domain, 2)
    candidates = Candidates.of(workload, domain)
    codes = np.array([[0, 0]] * 6 + [[1, 1]] * 2, dtype=np.uint8)
    model = a_model(domain, total=8.0, seed=7)
    config = parse_config(
        {
            "mechanism": {"name": "aim"},
            "data": {"source": "x.csv"},
            "privacy": {"epsilon": 1, "delta": 1e-5, "client_sizes": "public"},
            "workload": {"degree": 2, "size": None},
            "evaluation": [],
        }
    )
    contract = AimContract(config, domain)
    epsilon, sigma = 0.3, 0.1
    # By brute force: w_q is 1 for the one-ways, 2 for the pair, and the penalty is sqrt(2/pi) sigma n_q.
    distances = [brute_force(codes, domain, q, model, 8.0) for q in candidates.cliques]
    weights, cells = [1.0, 1.0, 2.0], [2, 2, 4]
    utility = [w * (d - np.sqrt(2 / np.pi) * sigma * n) for w, d, n in zip(weights, distances, cells, strict=True)]
    p = np.exp(epsilon * np.array(utility) / (2 * max(weights)))
    p /= p.sum()
    trials = 6000
    hits = np.zeros(3)
    terms = contract.terms(ModelView(model), [0, 1, 2], sigma, 8.0, 8)
    layout = contract.stored
    run = ServedRun(
        contract,
        Ledger(PrivacyBudget(1e9, 1e-5), noise_by="server"),
        Randomness(5),
        lambda party: Ledger(PrivacyBudget(1.0, 1e-5)),
        {},
        lambda k, why: None,
        lambda k: 1e9,
    )
    server = PlainServer(run, make_store(config), shares=False)
    server.total += np.concatenate([c.ravel() for c in count(codes, domain, layout.cliques)])
    for _ in range(trials):
        hits[server.choose(Choose(SelectClique(epsilon=epsilon), terms), 1)] += 1
    assert np.all(np.abs(hits / trials - p) <= 4.5 * np.sqrt(p * (1 - p) / trials))
    assert p.max() - p.min() > 0.1  # a uniform choice would not pass
    assert np.abs(np.sqrt(p) / np.sqrt(p).sum() - p).max() > 0.1  # nor one of half the sensitivity, or twice
