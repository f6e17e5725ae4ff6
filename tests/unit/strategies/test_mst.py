"""mst and fed_mst: budgets, the tree against brute force, what is asked, and that a partition changes nothing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.errors import ProtocolError
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import AwkwardTable
from fedsyn.plugins.clients.mst import MstClient, PairSketches, Tree, width_of
from fedsyn.plugins.strategies.mst import FedMst, Mst, distance
from fedsyn.privacy import PrivacyBudget, exponential_rho
from fedsyn.privacy.conversion import gaussian_epsilon
from fedsyn.protocol.joining import Participant
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class
from fedsyn.selection.coarse import grouping_of, pack_grouping
from fedsyn.selection.scores import expected_noise
from fedsyn.selection.views import effective_cells, pack_model
from fedsyn.table.counting.marginals import count
from fedsyn.wire.envelope import Reply
from fedsyn.wire.holder import Holder
from fedsyn.wire.requests import Summed
from support.halves import asked
from support.pair_runs import CHAIN, selected, table_of

DELTA = 1e-5
SMALL = table_of(np.random.default_rng(7).integers(0, 3, (600, 5)) // (1, 1, 2, 1, 2), (3, 3, 2, 3, 2))


def run(name: str, table: AwkwardTable = CHAIN, parts: int = 1, epsilon: float = 1.0, **nodes: Any) -> Outcome:
    codes = table.encode()
    nodes = {"privacy": {"epsilon": epsilon}, **nodes}
    options = nodes.pop("options", {})
    split = tuple(codes[k::parts] for k in range(parts))
    return finished(execute(config_of(name, parts, options, **nodes), Federation(table, split)))


def server(kind: type[Mst], table: AwkwardTable = SMALL, **nodes: Any) -> Any:
    """A server half that has the exact one-way marginals of one client with all rows."""
    name = {Mst: "mst", FedMst: "fed_mst"}[kind]
    half = kind(config_of(name, 1, {}, **nodes), table.schema.domain, "", randomness=Randomness(0))
    half.clients = {0: Participant(0, 1, float(len(table.encode())))}
    ones = [(attribute,) for attribute in half.domain]
    half.estimate(half.opened(Summed(count(table.encode(), half.domain, ones), (1e-6,) * len(ones), (0,)), ones))
    return half


def releases(outcome: Outcome, name: str) -> list[Any]:
    return [release for release in outcome.strategy.ledger.releases if release.name == name]


def named(outcome: Outcome) -> set[tuple[str, ...]]:
    return {(f"x{a}", f"x{b}") for a, b in selected(outcome)}


def independence(table: AwkwardTable, pairs: Any) -> np.ndarray:
    """(m,) ||M_ab - M_a x M_b / n||_1, in records."""
    joints = count(table.encode(), table.schema.domain, pairs)
    return np.array([np.abs(j - np.outer(j.sum(1), j.sum(0)) / j.sum()).sum() for j in joints])


def spanning_trees(domain: Domain, pairs: Any) -> list[set[int]]:
    """Every set of d - 1 pairs that leaves no part of the attributes apart."""
    found = []
    for tree in itertools.combinations(range(len(pairs)), len(domain) - 1):
        reached, before = {domain.attributes[0]}, 0
        while len(reached) > before:
            before = len(reached)
            reached |= {name for j in tree if reached & set(pairs[j]) for name in pairs[j]}
        if len(reached) == len(domain):
            found.append(set(tree))
    return found


# The budget ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", ["public", "private"])
def test_mst_spends_a_third_on_each_of_three_things(sizes: str) -> None:
    outcome = run("mst", privacy={"client_sizes": sizes})
    rho = PrivacyBudget(1.0, DELTA).rho * (1.0 if sizes == "public" else 0.95)
    (ones,), (tree,), (pairs,) = (releases(outcome, name) for name in ("one-way", "tree", "measure"))
    assert (ones.count, tree.count, pairs.count) == (7, 6, 6)
    assert ones.sigma == pytest.approx(math.sqrt(3 * 7 / (2 * rho)), rel=1e-9)
    assert tree.count * exponential_rho(tree.epsilon) == pytest.approx(rho / 3, rel=1e-9)
    assert pairs.sigma == pytest.approx(math.sqrt(3 * 6 / (2 * rho)), rel=1e-9)
    assert tree.sensitivity == ones.sensitivity == pairs.sensitivity == 1.0
    spent = sum(release.rho for release in outcome.strategy.ledger.releases)
    assert spent == pytest.approx(PrivacyBudget(1.0, DELTA).rho, rel=1e-9)
    assert outcome.ledgers[0].spent_rho == pytest.approx(spent, rel=1e-12)


@pytest.mark.parametrize("noise", ["server", "local"])
def test_fed_mst_is_one_gaussian_mechanism_that_spends_the_budget(noise: str) -> None:
    outcome = run("fed_mst", parts=3, aggregation={"noise": noise})
    mu2 = PrivacyBudget(1.0, DELTA).mu ** 2
    ledger = outcome.strategy.ledger
    assert {release.mechanism for release in ledger.releases} == {"gaussian"}
    for name in ("one-way", "sketch", "measure"):
        (release,) = releases(outcome, name)
        assert release.mu2 == pytest.approx(mu2 / 3, rel=1e-9)
    assert releases(outcome, "sketch")[0].sensitivity == pytest.approx(math.sqrt(21), rel=1e-12)
    mu = math.sqrt(sum(release.mu2 for release in ledger.releases))
    assert mu == pytest.approx(math.sqrt(mu2), rel=1e-9) and gaussian_epsilon(mu, DELTA) <= 1.0
    for client in outcome.ledgers.values():
        assert client.spent_rho == pytest.approx(ledger.spent_rho, rel=1e-12)


def test_where_no_pair_is_worth_it_the_one_way_marginals_get_its_share() -> None:
    outcome = run("fed_mst", SMALL, parts=2, epsilon=0.3)
    assert selected(outcome) == [] and not releases(outcome, "measure")
    assert [release.count for release in releases(outcome, "one-way")] == [5, 5]
    spent = sum(release.mu2 for release in outcome.strategy.ledger.releases)
    assert spent == pytest.approx(PrivacyBudget(0.3, DELTA).mu ** 2, rel=1e-9)
    assert "one-way marginals are measured again" in outcome.strategy.records[-1].notes[-1]


@pytest.mark.parametrize("name", ["mst", "fed_mst"])
def test_without_pairs_the_one_way_marginals_get_the_budget(name: str) -> None:
    """No pair of the six has so few cells as one model may have."""
    outcome = run(name, SMALL, epsilon=5.0, inference={"max_cells": 3})
    (ones,) = outcome.strategy.ledger.releases
    accountant = outcome.strategy.ledger.accountant
    assert ones.count == 5 and outcome.strategy.ledger.spent == pytest.approx(accountant.capacity, rel=1e-9)


# The tree ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mst", "fed_mst"])
def test_with_little_noise_the_tree_is_the_heaviest_of_all(name: str) -> None:
    """125 spanning trees; the sketches are the marginals themselves, and compared in the norm that they estimate.

    In `CHAIN` the dependent pairs are far above the others, which have the noise of 2,000 rows: the heaviest forest of
    them. In `SMALL` no two trees have the same weight.
    """
    options = {"width": 64} if name == "fed_mst" else {}
    outcome = run(name, SMALL, epsilon=1000.0, options=options)
    pairs = outcome.strategy.contract.pairs
    if name == "mst":
        weights = independence(SMALL, pairs)
    else:
        weights = exact_distances(outcome.strategy, pairs)
    trees = spanning_trees(outcome.federation.domain, pairs)
    assert len(trees) == 125
    best = max(trees, key=lambda tree: weights[sorted(tree)].sum())
    assert named(outcome) == {pairs[j] for j in best}
    dependent = {("x0", "x1"), ("x1", "x2"), ("x2", "x3"), ("x4", "x5")}
    assert dependent <= named(run(name, CHAIN, epsilon=5.0, options=options))


def exact_distances(strategy: Any, pairs: Any) -> np.ndarray:
    """(m,) the definition without noise: L2 norm of the dependence times the root of the product's effective cells.

    Of the dependence what is left by least squares on all tables u x p_b + p_a x v.
    """
    joints, out = count(SMALL.encode(), SMALL.schema.domain, pairs), []
    for joint in joints:
        a, b = joint.sum(1) / joint.sum(), joint.sum(0) / joint.sum()
        error = (joint - joint.sum() * np.outer(a, b)).ravel()
        nuisance = [np.outer(u, b).ravel() for u in np.eye(len(a))] + [np.outer(a, v).ravel() for v in np.eye(len(b))]
        basis = np.array(nuisance).T
        left = error - basis @ np.linalg.lstsq(basis, error, rcond=None)[0]
        out.append(math.sqrt(float(left @ left) * effective_cells(np.outer(a, b))))
    return np.array(out)


def test_sketched_distances_are_their_definition() -> None:
    half = server(FedMst)
    client = client_class("fed_mst")(half.config, Holder(0, SMALL.encode(), half.domain, "", Randomness(0)))
    half.contract.options.__dict__["width"] = 64
    steps = half.sketched_distances([0], 0.5)
    asked_for = next(steps)
    vector = client.sketch(asked(client, asked_for.request, asked_for.arrays)).dense()
    assert asked_for.sigma == pytest.approx(math.sqrt(10), rel=1e-12) and len(vector) == 67
    with pytest.raises(StopIteration) as end:
        steps.send(Summed([vector.astype(float)], (1e-9,), (0,)))
    distances, inflation = end.value.value
    np.testing.assert_allclose(distances, exact_distances(half, half.contract.pairs), rtol=1e-5)
    assert inflation == pytest.approx(1e-9 / math.sqrt(10), rel=1e-9)


def test_noise_alone_passes_for_a_dependence_as_often_as_it_may() -> None:
    """12 dimensions, 12,000 draws, chance 1/20: within 5 standard errors; beside errors of the one-way marginals."""
    rng, chance = np.random.default_rng(0), 1 / 20
    a, b = np.array([0.1, 0.2, 0.3, 0.4]), np.full(5, 0.2)
    passed = 0
    for _ in range(12_000):
        wrong = np.outer(rng.normal(0, 40, 4), b) + np.outer(a, rng.normal(0, 40, 5))
        passed += distance(rng.normal(0, 7.0, (4, 5)) + wrong, np.outer(a, b), 7.0, chance) > 0
    assert abs(passed / 12_000 - chance) < 5 * math.sqrt(chance * (1 - chance) / 12_000)
    assert distance(np.ones((1, 5)), np.full((1, 5), 0.2), 1.0, chance) == 0.0


def test_the_squared_distance_has_the_mean_that_it_should() -> None:
    """A dependence of squared norm 5,000 and noise of 588 in 12 dimensions: 4,000 draws, within 5 standard errors."""
    rng, independent = np.random.default_rng(1), np.full((4, 5), 1 / 20)
    dependence = 25.0 * np.outer([1, -1, 1, -1], [1, -1, 0, 1, -1]) / math.sqrt(2)
    draws = [distance(dependence + rng.normal(0, 7.0, (4, 5)), independent, 7.0, 1e-3) ** 2 / 20 for _ in range(4000)]
    assert abs(np.mean(draws) - 5000.0) < 5 * np.std(draws) / math.sqrt(4000)


def test_the_servers_tree_is_the_heaviest_by_brute_force() -> None:
    half, rng = server(FedMst), np.random.default_rng(3)
    trees = spanning_trees(half.domain, half.contract.pairs)
    for _ in range(20):
        weights = rng.normal(size=10)
        best = max(trees, key=lambda tree: weights[sorted(tree)].sum())
        tree = half.tree(weights)
        assert set(tree) == best and sorted(-weights[tree]) == (-weights[tree]).tolist()


def test_the_worthwhile_pairs_gain_most_of_all_subsets() -> None:
    """Gain: the distances, less the expected noise of so many pairs that share the budget; 16 subsets."""
    half, rng = server(FedMst), np.random.default_rng(4)
    tree, cells = [0, 1, 2, 3], []
    for a, b in (half.contract.pairs[j] for j in tree):
        cells.append(math.prod(effective_cells(half.model.project((name,)) / half.model.total) for name in (a, b)))
    sizes = set()
    for rho in (0.05, 0.5, 50.0):
        for _ in range(10):
            weights = np.zeros(10)
            weights[tree] = rng.normal(20, 40, 4)

            def gain(chosen: tuple[int, ...], rho: float = rho, weights: np.ndarray = weights) -> float:
                sigma = 2.0 * math.sqrt(len(chosen) / (2 * rho))
                return float(sum(weights[j] - expected_noise(sigma, np.array([cells[j]]))[0] for j in chosen))

            subsets = [s for k in range(5) for s in itertools.combinations(tree, k)]
            best = max(subsets, key=gain)
            found = half.worthwhile(tree, weights, rho, 2.0)
            assert gain(tuple(found)) == pytest.approx(gain(best), rel=1e-9)
            sizes.add(len(found))
    assert {0, 4} < sizes


def test_a_sketch_is_as_long_as_its_noise_allows() -> None:
    assert [width_of(signal, 2.0) for signal in (0.0, 7.9, 25.0, 1e9)] == [4, 4, 12, 64]


# The partition -------------------------------------------------------------------------------------------------------


def test_fed_mst_does_not_depend_on_how_the_rows_are_spread() -> None:
    """Bit for bit: the sums over 1, 3 and 20 clients, and over clients that are sorted by a column, are the same."""
    codes = CHAIN.encode()
    by_column = codes[np.argsort(codes[:, 0], kind="stable")]
    splits = [[codes], [codes[k::3] for k in range(3)], [codes[k::20] for k in range(20)], np.array_split(by_column, 4)]
    models = []
    for parts in splits:
        outcome = finished(execute(config_of("fed_mst", len(parts), {}), Federation(CHAIN, tuple(parts))))
        models.append(outcome.strategy.model.to_arrays())
    for other in models[1:]:
        assert other.keys() == models[0].keys()
        assert all(np.array_equal(other[key], models[0][key]) for key in other)


# What is asked -------------------------------------------------------------------------------------------------------


def test_a_row_moves_no_score_by_more_than_one() -> None:
    """The scores that enter the ledger, of tables with and without each of twenty rows, against one model."""
    half = server(Mst)
    arrays = pack_model(half.model)

    def scores(codes: np.ndarray) -> np.ndarray:
        client = MstClient(half.config, Holder(0, codes, half.domain, "", Randomness(0)))
        client.__class__ = type("Fixed", (MstClient,), {"size": property(lambda self: 600.0)})
        seen: list[np.ndarray] = []
        client.ledger.exponential = lambda s, *_: (seen.append(np.array(s)), 0)[1]  # type: ignore[method-assign]
        client.tree(asked(client, Tree(epsilon=1.0), arrays))
        return seen[0]

    whole = scores(SMALL.encode())
    moved = [np.abs(scores(np.delete(SMALL.encode(), i, axis=0)) - whole) for i in range(20)]
    assert max(m.max() for m in moved) <= 1.0 + 1e-9 and min(m.max() for m in moved) > 0.5


@pytest.mark.parametrize(
    "tree",
    [
        None,
        [5, 6, 9],
        [5, 6, 9, 0],  # an attribute
        [5, 6, 9, 5],
        [5, 6, 9, 99],
        [5, 6, 9, 12],  # x0-x1, x0-x2, x1-x2: a circle
    ],
)
def test_a_reply_that_is_no_spanning_tree_is_refused(tree: Any) -> None:
    half = server(Mst)
    assert half.candidates.cliques[5:7] == (("x0", "x1"), ("x0", "x2")) and half.candidates.cliques[9] == ("x1", "x2")
    with pytest.raises(ProtocolError):
        half.read(Reply(0, [], {"tree": tree}))
    assert half.read(Reply(0, [], {"tree": [5, 6, 7, 8]})) == [5, 6, 7, 8]


@pytest.mark.parametrize("arrays", [[], [np.zeros(3, np.uint16)], [np.full(13, 9, np.uint16)]])
def test_sketches_with_groups_that_do_not_exist_are_refused(arrays: list[np.ndarray]) -> None:
    half = server(FedMst)
    mass = {name: half.model.project((name,)) for name in half.domain}
    groups = pack_grouping(grouping_of(half.domain, half.contract.pairs, 4, mass))
    request = PairSketches(width=4)
    layout = request.layout(half.contract, [groups])
    assert layout.sensitivity == pytest.approx(math.sqrt(10)) and layout.length == 40
    with pytest.raises(ProtocolError, match="groups"):
        request.layout(half.contract, arrays)
