"""Central PrivSyn, and what HeteroFedSyn shares with it: one-way marginals, weighted pairs, the greedy choice."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest

from experiments.variants.privsyn import Even, Fixed
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.front.testing.faults import vanish
from fedsyn.front.testing.harness import config_of, finished
from fedsyn.front.testing.schemas import AwkwardTable
from fedsyn.plugins.clients.privsyn import Resolutions, WeightedPairs
from fedsyn.plugins.strategies.privsyn import Allocation, choose_greedily, integer_weights
from fedsyn.privacy import PrivacyBudget
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class
from fedsyn.selection.indif import INDIF_UNIT, all_pairs, indif
from fedsyn.table.counting.marginals import count
from fedsyn.wire.envelope import ANSWER, ENVELOPE
from fedsyn.wire.holder import Holder
from support.halves import asked
from support.pair_runs import (
    CHAIN,
    DELTA,
    NUMBERS,
    assert_the_ledger_adds_up,
    pair_error,
    releases,
    run,
    selected,
    table_of,
)


def a_client(table: AwkwardTable = CHAIN) -> Any:
    """The first of five clients of a federation over the table."""
    codes = table.encode()[::5]
    holder = Holder(0, codes, table.schema.domain, "", Randomness(0))
    return client_class("fed_privsyn")(config_of("fed_privsyn", 5, {}), holder)


# Budget ---------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("noise", ["server", "local", "distributed"])
@pytest.mark.parametrize("options", [{}, {"select": "random"}])
def test_the_ledger_adds_up_to_the_budget(options, noise):
    assert_the_ledger_adds_up("privsyn", options, noise)


@pytest.mark.parametrize(("norm", "power"), [("l2", 1 / 6), ("l1", 1 / 3)])
def test_pairs_of_other_sizes_get_other_noise_and_come_back_as_counts(norm, power):
    """Weighted by integers in the sum: what the server keeps is unweighted, with the noise that it says it has.

    996 cells: none is off by 6 of its standard deviations (chance 2e-6, and the seed is fixed), and they scatter by
    one of them on average, to 5 standard errors.
    """
    rng = np.random.default_rng(1)
    table = table_of((rng.random((3000, 4)) ** 2 * (2, 24, 3, 30)).astype(int), (2, 24, 3, 30))
    outcome = finished(run("fed_privsyn", table, penalty="cells", select="all", norm=norm))
    pairs = [m for m in outcome.strategy.measurements if len(m.clique) == 2]
    exact = count(table.encode(), outcome.federation.domain, [m.clique for m in pairs])
    standard = np.concatenate([((m.values - e) / m.sigma).ravel() for m, e in zip(pairs, exact, strict=True)])
    assert np.abs(standard).max() < 6 and abs((standard**2).mean() - 1) < 5 * math.sqrt(2 / len(standard))
    sigmas = {m.clique: m.sigma for m in pairs}
    # A noise error is the root of the cells, or their number; its share goes with it^(2/3), and sigma^2 with 1 / share.
    assert sigmas["x0", "x2"] / sigmas["x1", "x3"] == pytest.approx((720 / 6) ** power, rel=0.06)
    assert sum(s**-2 for s in sigmas.values()) == pytest.approx(0.5 * PrivacyBudget(1.0, DELTA).mu ** 2, rel=1e-9)


@pytest.mark.parametrize("noise", ["server", "local", "distributed"])
def test_ordered_attributes_are_measured_at_several_resolutions(noise):
    """Blocks come back as counts with the noise that they say they have, and all cost what one share of mu^2 buys.

    164 blocks: none is off by 6 of its standard deviations (chance 4e-7, and the seed is fixed), and they scatter by
    one of them on average, to 5 standard errors.
    """
    outcome = finished(run("fed_privsyn", NUMBERS, nodes={"aggregation": {"noise": noise}}, rest="unspent"))
    assert outcome.federation.domain.ordered == {"u": 40, "v": 40}
    exact = dict(zip("uvw", count(NUMBERS.encode(), outcome.federation.domain, [("u",), ("v",), ("w",)]), strict=True))
    standard = []
    for m in outcome.strategy.one_way:
        weights = np.repeat(m.hierarchy.weights, m.hierarchy.lengths)
        standard.append((m.values * weights - m.hierarchy.apply(exact[m.attribute])) / m.sigma)
    together = np.concatenate(standard)
    assert len(together) == 2 * (40 + 20 + 10 + 5 + 3 + 2) + 1 + 3
    assert np.abs(together).max() < 6 and abs((together**2).mean() - 1) < 5 * math.sqrt(2 / len(together))
    (release,) = releases(outcome, "one-way")
    squared = sum(m.hierarchy.sensitivity**2 for m in outcome.strategy.one_way)
    assert release.sensitivity == pytest.approx(math.sqrt(squared)) and release.count == 1
    widths = {m.attribute: m.hierarchy.widths for m in outcome.strategy.one_way}
    assert widths == {"u": (1, 2, 4, 8, 16, 32), "v": (1, 2, 4, 8, 16, 32), "w": (1,)}


def test_ranges_are_closer_than_from_cells_alone():
    """Mass below each value of the two numeric attributes, mean over 12 seeds of the table's clients' noise."""
    exact = count(NUMBERS.encode(), NUMBERS.schema.domain, [("u",), ("v",)])

    def error(seed: int, one_way: str) -> float:
        options = {"noise_weight": 1e6, "one_way": one_way, "rest": "unspent"}
        outcome = finished(run("fed_privsyn", NUMBERS, nodes={"runtime": {"seed": seed}}, **options))
        made = count(outcome.synthetic, NUMBERS.schema.domain, [("u",), ("v",)])
        return float(np.mean([np.abs(np.cumsum(a) - np.cumsum(b)).mean() for a, b in zip(made, exact, strict=True)]))

    errors = {one_way: np.mean([error(seed, one_way) for seed in range(12)]) for one_way in ("hierarchical", "flat")}
    assert errors["hierarchical"] < 0.8 * errors["flat"]


@pytest.mark.parametrize("synthesizer", ["gum", "pgm"])
def test_one_way_marginals_that_are_measured_twice_count_twice(synthesizer):
    """No pair is selected: both exchanges are in the table, 0.5 and 0.4 of the budget; little noise at epsilon 100."""
    options = {"noise_weight": 1e9, "synthesizer": synthesizer}
    outcome = finished(run("fed_privsyn", NUMBERS, epsilon=100.0, **options))
    assert [len(m.hierarchy.widths) for m in outcome.strategy.one_way] == [6, 6, 1] * 2
    made, real = outcome.synthetic, NUMBERS.encode()
    for clique in (("u",), ("v",), ("w",)):
        a, b = (count(codes, NUMBERS.schema.domain, [clique])[0] / len(codes) for codes in (made, real))
        assert np.abs(a - b).sum() < 0.03
    assert sum(r.rho for r in outcome.strategy.ledger.releases) == pytest.approx(
        outcome.strategy.ledger.accountant.capacity / 2
    )


def test_a_budget_that_selects_nothing_improves_the_one_way_marginals():
    for rest, times in (("remeasure", 2), ("unspent", 1)):
        outcome = finished(run("fed_privsyn", noise_weight=1e6, rest=rest))
        assert selected(outcome) == [] and len(releases(outcome, "one-way")) == times
        assert not releases(outcome, "measure")


# Messages -------------------------------------------------------------------------------------------------------------


def test_the_central_holder_contributes_rounded_multiples_of_indif():
    outcome = finished(run("privsyn"))
    (exchange,) = [e for e in outcome.tape.exchanges if e.envelope["request"] == "indif"]
    gaps, values = exchange.reply_arrays
    vector = np.zeros(21)
    vector[np.cumsum(gaps.astype(np.int64))] = values
    domain, codes = outcome.federation.domain, outcome.federation.parts[0]
    exact = np.array([indif(joint) for joint in count(codes, domain, all_pairs(domain))])
    assert np.abs(vector - INDIF_UNIT * exact).max() <= 0.5
    (release,) = releases(outcome, "indif")
    assert release.sensitivity == pytest.approx(4 * INDIF_UNIT * math.sqrt(21)) and release.count == 1


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"pairs": [0, 1]},
        {"pairs": [0], "weights": [0]},
        {"pairs": [0], "weights": [1.5]},
        {"pairs": [0], "weights": [True]},
        {"pairs": [0, 1], "weights": [1]},
        {"pairs": [0, 0], "weights": [1, 1]},
        {"pairs": [21], "weights": [1]},
        {"pairs": [0], "weights": [2**40]},
        {"pairs": [], "weights": []},
    ],
)
def test_a_client_refuses_malformed_weights_and_pairs(params):
    client = a_client()
    with pytest.raises(ProtocolError):
        client.measure(asked(client, (WeightedPairs, params)))


def resolution(ordered: Any, widths: Any, weights: Any, **more: Any) -> dict[str, Any]:
    return {"ordered": ordered, "widths": widths, "weights": weights, **more}


@pytest.mark.parametrize(
    "resolutions",
    [
        None,
        "flat",
        [],
        [resolution(0, [1], [1])] * 6,
        [resolution(0, [1], [1])] * 8,
        [resolution(0, [1], [1], more=1)] * 7,
        [{"ordered": 0, "widths": [1]}] * 7,
        [[0, [1], [1]]] * 7,
        [resolution(5, [1], [1])] * 7,
        [resolution(-1, [1], [1])] * 7,
        [resolution(True, [1], [1])] * 7,
        [resolution(4, [2], [1])] * 7,
        [resolution(4, [1, 2], [1])] * 7,
        [resolution(4, [1, 3], [1, 1])] * 6 + [resolution(4, [1, 8], [1, 1])],
        [resolution(4, [1, 2, 2], [1, 1, 1])] * 7,
        [resolution(4, [1, 2.0], [1, 1])] * 7,
        [resolution(4, [1], [0])] * 7,
        [resolution(4, [1], [1.5])] * 7,
        [resolution(4, [1], [2**40])] * 7,
        [resolution(4, [], [])] * 7,
        [resolution(4, "1", [1])] * 7,
        [resolution(4, [True], [1])] * 7,
        [resolution(4, [1, 10**400], [1, 1])] * 7,
        [resolution("4", [1], [1])] * 7,
    ],
)
def test_a_client_refuses_malformed_resolutions(resolutions):
    """Seven attributes of four values: a request either is well formed for them, or gets one clear error."""
    client = a_client()
    with pytest.raises(ProtocolError, match="resolutions"):
        client.one_way(asked(client, (Resolutions, {"resolutions": resolutions})))


def test_a_refused_resolution_costs_nothing_and_says_one_sentence():
    """Through `fit`, as a server would: refused before anything is charged."""
    outcome = run("fed_privsyn", NUMBERS)
    sent = next(e for e in outcome.tape.exchanges if e.envelope["request"] == "one-way")
    client = a_client(NUMBERS)
    params = {**sent.envelope["params"], "resolutions": [resolution(40, [1, 3], [1, 1])]}
    envelope = {**sent.envelope, "params": params, "config": client.config.sha256}
    arrays, _, reply = client.fit([], {ENVELOPE: json.dumps(envelope)})
    answer = json.loads(reply[ANSWER])
    assert arrays == [] and not client.ledger.releases
    assert answer["kind"] == "protocol" and "'resolutions'" in answer["sentence"]


def test_a_client_states_the_sensitivity_of_its_resolutions_itself():
    """By brute force: no row added moves the array by more than the client says, and one moves it by that."""
    trees = [resolution(4, [1, 2, 4], [3, 2, 1]), *[resolution(0, [1], [2])] * 5, resolution(3, [1, 3], [1, 5])]
    client = a_client()
    call = asked(client, (Resolutions, {"resolutions": trees}))
    before = client.one_way(call)
    sensitivity = before.layout.sensitivity
    assert sensitivity == pytest.approx(math.sqrt(9 + 4 + 1 + 5 * 4 + 1 + 25))
    moved = []
    rows = client.codes
    for row in (0, 1, 2, 3):
        client.codes = np.concatenate([rows, np.full((1, 7), row, rows.dtype)])
        moved.append(np.linalg.norm(client.one_way(call).dense() - before.dense()))
    assert max(moved) == pytest.approx(sensitivity) and moved[3] < moved[0]


def test_a_client_states_the_sensitivity_of_weighted_marginals_itself():
    """By brute force: each row added moves the weighted array by exactly what the client says."""
    client = a_client()
    call = asked(client, WeightedPairs(pairs=[0, 5, 20], weights=[3, 1, 7]))
    base, rows = client.measure(call), client.codes
    for row in np.random.default_rng(0).integers(0, 4, (20, 7)).astype(rows.dtype):
        client.codes = np.vstack([rows, row])
        more = client.measure(call)
        assert np.linalg.norm(more.dense() - base.dense()) == pytest.approx(more.layout.sensitivity)
    assert base.layout.sensitivity == pytest.approx(math.sqrt(59)) and base.count == 1


# Selection ------------------------------------------------------------------------------------------------------------


def test_effective_cells_are_those_that_carry_the_one_way_marginals():
    """40 bins of an exponential distribution and three equal categories: far fewer than all cells of all pairs."""
    few = finished(run("fed_privsyn", NUMBERS, epsilon=20.0)).strategy
    every = finished(run("fed_privsyn", NUMBERS, epsilon=20.0, penalty="cells")).strategy
    assert every.counted_cells.tolist() == [1640.0, 120.0, 123.0] == every.cells.tolist()
    ones = [one / 3000 for one in count(NUMBERS.encode(), NUMBERS.schema.domain, [("u",), ("v",), ("w",)])]
    u, v, w = (float(np.sqrt(one).sum()) ** 2 for one in ones)
    assert few.counted_cells == pytest.approx([u * v, u * w, v * w], rel=0.1)
    assert np.all(few.allocation(1.0, 1.0).unit < every.allocation(1.0, 1.0).unit)


def total_error(chosen: list[int], scores: np.ndarray, unit: np.ndarray, shares: np.ndarray) -> float:
    """Equation 1 with a divided budget, from its definition."""
    noise = sum(unit[i] / math.sqrt(share) for i, share in zip(chosen, shares, strict=True))
    return noise + sum(scores[j] for j in range(len(scores)) if j not in chosen)


FIXED = np.array([0.4, 0.2, 0.3, 0.25, 0.1, 0.25, 0.15, 0.3])


def shares_of(kind: str, chosen: list[int], unit: np.ndarray) -> np.ndarray:
    if kind == "fixed":
        return FIXED[chosen]
    if kind == "even":
        return np.full(len(chosen), 1 / max(1, len(chosen)))
    parts = np.array([unit[i] ** (2 / 3) for i in chosen])
    return parts / parts.sum()


@pytest.mark.parametrize("kind", ["cells", "even", "fixed"])
@pytest.mark.parametrize("seed", range(8))
def test_greedy_selection_against_brute_force(kind, seed):
    """Eight pairs: each step is the best of all next steps, and it stops when none helps. 24 instances."""
    rng = np.random.default_rng(seed)
    scores, unit = rng.random(8), rng.random(8) * rng.choice([0.05, 0.2, 0.6])
    allocation = {"cells": Allocation(unit), "even": Even(unit), "fixed": Fixed(unit, FIXED)}[kind]
    expected: list[int] = []
    while len(expected) < 6:
        error = total_error(expected, scores, unit, shares_of(kind, expected, unit))
        options = {
            i: total_error([*expected, i], scores, unit, shares_of(kind, [*expected, i], unit))
            for i in range(8)
            if i not in expected
        }
        best = min(options, key=lambda i: options[i])
        if options[best] >= error:
            break
        expected.append(best)
    assert choose_greedily(scores, allocation, 6) == expected
    start = expected[:2]
    assert choose_greedily(scores, allocation, 6, start) == expected[2:]
    assert allocation.error(expected) == pytest.approx(
        total_error(expected, np.zeros(8), unit, shares_of(kind, expected, unit))
    )


@pytest.mark.parametrize("seed", range(5))
def test_with_a_fixed_cost_per_pair_greedy_is_optimal(seed):
    """Then equation 1 falls apart into pairs: the best of all 256 selections is what greedy finds."""
    rng = np.random.default_rng(seed)
    scores, unit = rng.random(8), 0.3 * rng.random(8)
    best = min(
        (list(subset) for r in range(9) for subset in itertools.combinations(range(8), r)),
        key=lambda chosen: total_error(chosen, scores, unit, shares_of("fixed", chosen, unit)),
    )
    assert sorted(choose_greedily(scores, Fixed(unit, FIXED), 8)) == best


@pytest.mark.parametrize("kind", [Even, Allocation])
def test_costs_of_any_selection_stay_within_the_budget(kind):
    """Of all selections of at most three of eight pairs: within 1, reached by one, never above their shares."""
    unit = np.random.default_rng(4).random(8)
    allocation = kind(unit)
    costs = allocation.costs(3)
    subsets = [list(subset) for r in (1, 2, 3) for subset in itertools.combinations(range(8), r)]
    assert max(costs[subset].sum() for subset in subsets) == pytest.approx(1.0)
    for subset in subsets:
        assert (costs[subset] <= allocation.shares(subset) * (1 + 1e-12)).all()
    assert allocation.costs(20).sum() == pytest.approx(1.0)  # there are only eight


@pytest.mark.parametrize(("kind", "dividing"), [("even", Even), ("cells", Allocation)])
def test_greedy_comes_near_the_best_selection_of_a_shared_budget(kind, dividing):
    """20 instances of 8 pairs: never worse than 5% above the best of all 256 selections."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scores, unit = rng.random(8), 0.3 * rng.random(8)

        def error(chosen, scores=scores, unit=unit):
            return total_error(list(chosen), scores, unit, shares_of(kind, list(chosen), unit))

        best = min(error(subset) for r in range(9) for subset in itertools.combinations(range(8), r))
        assert error(choose_greedily(scores, dividing(unit), 8)) <= 1.05 * best


def test_nothing_is_chosen_where_noise_exceeds_every_dependency():
    assert choose_greedily(np.full(4, 0.1), Allocation(np.full(4, 0.2)), 4) == []
    assert choose_greedily(np.zeros(3), Allocation(np.full(3, 1e-9)), 3) == []
    assert choose_greedily(np.ones(3), Allocation(np.full(3, 1e-9)), 2) == [0, 1]


def test_shares_minimise_the_sum_of_noise_errors():
    """No division of 500 random ones has a smaller error than the allocation's."""
    rng = np.random.default_rng(0)
    allocation = Allocation(rng.random(5))
    shares = allocation.shares(range(5))
    assert shares.sum() == pytest.approx(1.0)
    for other in rng.dirichlet(np.ones(5), 500):
        assert (allocation.unit / np.sqrt(other)).sum() > allocation.error(range(5))
    near = shares * (1 + 1e-3 * rng.standard_normal(5))
    assert (allocation.unit / np.sqrt(near / near.sum())).sum() > allocation.error(range(5))


def test_integer_weights_follow_the_shares():
    assert integer_weights(np.full(4, 0.25)) == [1, 1, 1, 1]
    shares = np.array([0.01, 0.04, 0.2, 0.75])
    weights = np.array(integer_weights(shares), float)
    wanted = np.sqrt(shares / shares.min())
    assert np.all(np.abs(weights / weights[0] / wanted - 1) < 1 / 15)
    assert min(integer_weights(np.array([1e-12, 1.0]))) >= 1 and max(integer_weights(np.array([1e-12, 1.0]))) <= 1 << 16


# Synthesis ------------------------------------------------------------------------------------------------------------


def test_pgm_selects_what_its_junction_tree_can_hold():
    narrow = {"inference": {"max_cells": 100}}
    outcome = finished(run("fed_privsyn", synthesizer="pgm", epsilon=100.0, nodes=narrow))
    wide = finished(run("fed_privsyn", synthesizer="pgm", epsilon=100.0))
    assert 0 < len(selected(outcome)) < len(selected(wide))


def test_a_client_that_leaves_is_scaled_for():
    """A fifth of the rows is missing in the last sum: its marginals still stand for the whole federation."""
    outcome = finished(run("fed_privsyn", epsilon=100.0, faults={0: vanish(3)}))
    assert 0 in outcome.dropped and pair_error(outcome) < 0.2
    for m in outcome.strategy.measurements:
        assert float(m.values.sum()) == pytest.approx(2000, rel=0.05)


def test_a_client_that_leaves_early_is_scaled_for():
    outcome = finished(run("fed_privsyn", NUMBERS, epsilon=100.0, faults={0: vanish(1)}))
    assert 0 in outcome.dropped
    for m in outcome.strategy.one_way:
        assert float(m.cells.sum()) == pytest.approx(3000, rel=0.02)


# Options --------------------------------------------------------------------------------------------------------------


def test_central_privsyn_needs_its_one_holder():
    with pytest.raises(ConfigError, match="sampling_rate"):
        config_of("privsyn", 1, federation={"sampling_rate": 0.5})
