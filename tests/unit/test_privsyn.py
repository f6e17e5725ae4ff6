"""PrivSyn, FedPrivSyn and AdaFedPrivSyn: budgets, messages, selections, and what they make of a table."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fedsyn.wire.messages import ANSWER, ENVELOPE

from fedsyn.counting.marginals import count
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.loading import parse_config
from fedsyn.privacy import PrivacyBudget
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class
from fedsyn.schema import CategoricalColumn, NumericColumn, Schema
from fedsyn.selection.indif import INDIF_UNIT, Projection, all_pairs, indif
from fedsyn.testing.harness import Federation, Outcome, config_of, execute, finished, vanish
from fedsyn.testing.schemas import AwkwardTable, awkward_table
from fedsyn.wire.holder import Call, Holder

FEDERATED = ("fed_privsyn", "ada_fed_privsyn")
DELTA = 1e-5


def table_of(codes: np.ndarray, shape: tuple[int, ...]) -> AwkwardTable:
    columns = {f"x{i}": CategoricalColumn(categories=tuple(range(size))) for i, size in enumerate(shape)}
    schema = Schema(columns=columns)
    return AwkwardTable("made", schema, schema.decode(codes.astype(schema.dtype), np.random.default_rng(0)))


def chain(rows: int = 2000) -> AwkwardTable:
    """x0 - x1 - x2 - x3 copy each other nine times out of ten; x4 copies x5 seven times out of ten; x6 is alone."""
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 4, (rows, 7))
    for target, origin, kept in ((1, 0, 0.9), (2, 1, 0.9), (3, 2, 0.9), (5, 4, 0.7)):
        copy = rng.random(rows) < kept
        codes[copy, target] = codes[copy, origin]
    return table_of(codes, (4,) * 7)


CHAIN = chain()


def run(
    name: str,
    table: AwkwardTable = CHAIN,
    clients: int = 5,
    epsilon: float = 1.0,
    faults: Any = None,
    nodes: Any = None,
    **options: Any,
) -> Outcome:
    codes = table.encode()
    clients = 1 if name == "privsyn" else clients
    federation = Federation(table, tuple(codes[k::clients] for k in range(clients)))
    config = config_of(name, clients, options, **{"privacy": {"epsilon": epsilon, "delta": DELTA}, **(nodes or {})})
    return execute(config, federation, faults=faults)


def selected(outcome: Outcome) -> list[tuple[int, ...]]:
    """The selected pairs by the numbers of their attributes, in order, each once."""
    texts = [text for record in outcome.strategy.records for text in record.selected]
    return [tuple(int(name[1:]) for name in text.split(" × ")) for text in dict.fromkeys(texts)]


def releases(outcome: Outcome, name: str) -> list[Any]:
    return [release for release in outcome.strategy.ledger.releases if release.name == name]


def pair_error(outcome: Outcome) -> float:
    """Mean L1 distance between the normalised pairs of the table and of the synthetic rows."""
    domain, real = outcome.federation.domain, np.concatenate(outcome.federation.parts)
    pairs = all_pairs(domain)
    both = zip(count(real, domain, pairs), count(outcome.synthetic, domain, pairs), strict=True)
    return float(np.mean([np.abs(a / len(real) - b / len(outcome.synthetic)).sum() for a, b in both]))


def client_and_call(params: dict[str, Any], table: AwkwardTable = CHAIN) -> tuple[Any, Call]:
    """The first client of a federation over the table, and a call with these parameters."""
    federation = Federation(table, tuple(table.encode()[k::5] for k in range(5)))
    holder = Holder(0, federation.parts[0], federation.domain, "", Randomness(0))
    client = client_class("fed_privsyn")(config_of("fed_privsyn", 5, {}), holder)
    return client, Call(1, params, [], lambda: Randomness(0).generator("test"))


# Budget --------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("noise", ["server", "local", "distributed"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("privsyn", {}),
        ("privsyn", {"select": "random"}),
        ("fed_privsyn", {}),
        ("fed_privsyn", {"select": "all", "allocation": "even"}),
        ("fed_privsyn", {"projection": "none", "one_way_share": 0.2, "score_share": 0.3}),
        ("fed_privsyn", {"projection": "gaussian"}),
        ("ada_fed_privsyn", {}),
        ("ada_fed_privsyn", {"fraction": 1.0, "every": 1}),
        ("ada_fed_privsyn", {"fraction": 0.25, "allocation": "even"}),
    ],
)
def test_the_ledger_adds_up_to_the_budget(name, options, noise):
    outcome = finished(run(name, nodes={"aggregation": {"noise": noise}}, **options))
    ledger = outcome.strategy.ledger
    scored = options.get("select") not in ("all", "random")
    # Shares of a distributed noise are a little larger than asked for, and cost a little less.
    room = 0.02 if noise == "distributed" else 1e-6
    assert ledger.accountant.name == "one Gaussian mechanism"
    assert ledger.epsilon() <= 1.0 + 1e-9 and ledger.spent == pytest.approx(ledger.accountant.capacity, rel=room)
    shares = {key: sum(r.rho for r in releases(outcome, key)) for key in {r.name for r in ledger.releases}}
    total = 0.5 * ledger.accountant.capacity
    one_way = options.get("one_way_share", 0.5)
    assert shares["one-way"] == pytest.approx(one_way * total, rel=room)
    scores = shares.get("project", 0.0) + shares.get("indif", 0.0)
    assert scores == pytest.approx(options.get("score_share", 0.1) * total if scored else 0.0, rel=room)
    for client in outcome.ledgers.values():
        assert client.spent == pytest.approx(ledger.spent, rel=room) and client.epsilon() <= 1.0 + 1e-9


def test_the_scale_of_the_noise_is_that_of_one_exact_gaussian_mechanism():
    """Balle & Wang's mu at (1, 1e-5), divided 0.5 : 0.1 : 0.4, from scratch."""
    mu = PrivacyBudget(1.0, DELTA).mu
    outcome = finished(run("fed_privsyn", k=10))
    (one_way,), (project,) = releases(outcome, "one-way"), releases(outcome, "project")
    assert one_way.sigma == pytest.approx(math.sqrt(7) / (mu * math.sqrt(0.5)), rel=1e-9)
    # 21 pairs of 10 signs: one row moves the integers by sqrt(210).
    assert project.sensitivity == pytest.approx(math.sqrt(210)) and project.count == 1
    assert project.sigma == pytest.approx(math.sqrt(210) / (mu * math.sqrt(0.1)), rel=1e-9)
    precisions = [m.sigma**-2 for m in outcome.strategy.measurements if len(m.clique) == 2]
    assert sum(precisions) == pytest.approx(0.4 * mu**2, rel=1e-9)  # sensitivity 1 each


@pytest.mark.parametrize(("norm", "power"), [("l2", 1 / 6), ("l1", 1 / 3)])
def test_pairs_of_other_sizes_get_other_noise_and_come_back_as_counts(norm, power):
    """Weighted by integers in the sum: what the server keeps is unweighted, with the noise that it says it has.

    996 cells: none is off by 6 of its standard deviations (chance 2e-6, and the seed is fixed), and they scatter by
    one of them on average, to 5 standard errors.
    """
    rng = np.random.default_rng(1)
    table = table_of((rng.random((3000, 4)) ** 2 * (2, 24, 3, 30)).astype(int), (2, 24, 3, 30))
    outcome = finished(run("fed_privsyn", table, select="all", norm=norm, penalty="cells"))
    pairs = [m for m in outcome.strategy.measurements if len(m.clique) == 2]
    exact = count(table.encode(), outcome.federation.domain, [m.clique for m in pairs])
    standard = np.concatenate([((m.values - e) / m.sigma).ravel() for m, e in zip(pairs, exact, strict=True)])
    assert np.abs(standard).max() < 6 and abs((standard**2).mean() - 1) < 5 * math.sqrt(2 / len(standard))
    sigmas = {m.clique: m.sigma for m in pairs}
    # A noise error is the root of the cells, or their number; its share goes with it^(2/3), and sigma^2 with 1 / share.
    assert sigmas["x0", "x2"] / sigmas["x1", "x3"] == pytest.approx((720 / 6) ** power, rel=0.06)
    assert sum(s**-2 for s in sigmas.values()) == pytest.approx(0.5 * PrivacyBudget(1.0, DELTA).mu ** 2, rel=1e-9)


def numbers(rows: int = 3000) -> AwkwardTable:
    """Two skewed numeric attributes of 40 bins, one of them with missing values, and a category."""
    rng = np.random.default_rng(5)
    skewed = {"u": rng.exponential(8.0, rows), "v": rng.exponential(3.0, rows)}
    frame = pd.DataFrame({**skewed, "w": rng.integers(0, 3, rows)})
    frame.loc[rng.random(rows) < 0.1, "v"] = np.nan
    numeric = {"lower": 0.0, "upper": 40.0, "bins": 40}
    columns = {
        "u": NumericColumn(**numeric),
        "v": NumericColumn(**numeric, missing=True),
        "w": CategoricalColumn(categories=(0, 1, 2)),
    }
    return AwkwardTable("numbers", Schema(columns=columns), frame)


NUMBERS = numbers()


@pytest.mark.parametrize("noise", ["server", "local", "distributed"])
def test_ordered_attributes_are_measured_at_several_resolutions(noise):
    """Blocks come back as counts with the noise that they say they have, and all cost what one share of mu^2 buys.

    164 blocks: none is off by 6 of its standard deviations (chance 4e-7, and the seed is fixed), and they scatter by
    one of them on average, to 5 standard errors.
    """
    outcome = finished(run("fed_privsyn", NUMBERS, rest="unspent", nodes={"aggregation": {"noise": noise}}))
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
        options = {"one_way": one_way, "noise_weight": 1e6, "rest": "unspent"}
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


def test_adaptive_pairs_cost_what_the_corrected_algorithm_5_says():
    """A third of all pairs: each costs 6 rho_3 / (d (d - 1)), and what is left over is unspent."""
    outcome = finished(run("ada_fed_privsyn", rest="unspent", every=3, noise_weight=8.0, allocation="even"))
    rho = PrivacyBudget(1.0, DELTA).mu ** 2 / 2
    chosen = selected(outcome)
    assert 0 < len(chosen) < 7
    spent = sum(r.rho for r in releases(outcome, "measure"))
    assert spent == pytest.approx(len(chosen) * 6 * 0.4 * rho / (7 * 6), rel=1e-9)
    for m in outcome.strategy.measurements:
        if len(m.clique) == 2:
            assert 1 / (2 * m.sigma**2) == pytest.approx(6 * 0.4 * rho / (7 * 6), rel=1e-9)


def test_the_rest_of_an_adaptive_run_measures_the_selected_pairs_again():
    outcome = finished(run("ada_fed_privsyn", noise_weight=8.0))
    rho = PrivacyBudget(1.0, DELTA).mu ** 2 / 2
    chosen = selected(outcome)
    assert 0 < len(chosen) < 7
    pairs = [m for m in outcome.strategy.measurements if len(m.clique) == 2]
    assert len(pairs) > len(chosen) and {m.clique for m in pairs} == {tuple(f"x{i}" for i in q) for q in chosen}
    assert sum(1 / (2 * m.sigma**2) for m in pairs) == pytest.approx(0.4 * rho, rel=1e-9)


def test_a_budget_that_selects_nothing_improves_the_one_way_marginals():
    for rest, times in (("remeasure", 2), ("unspent", 1)):
        outcome = finished(run("fed_privsyn", noise_weight=1e6, rest=rest))
        assert selected(outcome) == [] and len(releases(outcome, "one-way")) == times
        assert not releases(outcome, "measure")


def test_private_sizes_leave_less_for_the_rest():
    outcome = finished(run("ada_fed_privsyn", nodes={"privacy": {"client_sizes": "private", "epsilon": 1.0}}))
    assert len(releases(outcome, "sizes")) == 1
    assert outcome.strategy.ledger.spent == pytest.approx(outcome.strategy.ledger.accountant.capacity, rel=1e-6)


# Messages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["server", "local", "distributed"])
@pytest.mark.parametrize("projection", ["signs", "gaussian"])
def test_a_client_sends_at_most_k_numbers_per_pair(projection, noise):
    outcome = finished(run("fed_privsyn", projection=projection, k=4, nodes={"aggregation": {"noise": noise}}))
    sent = [e for e in outcome.tape.exchanges if e.envelope["request"] == "project"]
    assert len(sent) == 5
    for exchange in sent:
        values = exchange.reply_arrays[-1]
        assert 0 < values.size <= 4 * 21
    firsts = {e.envelope["request"] for e in outcome.tape.exchanges} - {"join"}
    assert firsts == {"one-way", "project", "measure"}


def test_without_projection_a_client_sends_marginals_and_the_server_scores_them():
    outcome = finished(run("fed_privsyn", projection="none"))
    (spec,) = {e.envelope["params"]["sum"] for e in outcome.tape.exchanges if e.envelope["request"] == "project"}
    assert spec.startswith(f"[[[{21 * 16}]]")


def test_a_clients_projections_are_those_of_its_rows():
    outcome = finished(run("fed_privsyn", clients=3, k=5))
    for exchange in outcome.tape.exchanges:
        if exchange.envelope["request"] == "project":
            gaps, values = exchange.reply_arrays
            vector = np.zeros(21 * 5, np.int64)
            vector[np.cumsum(gaps.astype(np.int64))] = values
            projection = Projection("signs", 5, 0)
            codes = outcome.federation.parts[exchange.partition]
            expected = projection.project(codes, outcome.federation.domain, all_pairs(outcome.federation.domain))
            assert np.array_equal(vector, np.concatenate(expected))


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


def test_a_pair_with_more_cells_than_a_model_may_have_is_no_candidate():
    rng = np.random.default_rng(0)
    table = table_of(rng.integers(0, 2, (300, 3)) * np.array([1, 10, 10]), (2, 12, 12))
    outcome = finished(run("fed_privsyn", table, nodes={"inference": {"max_cells": 100}}, epsilon=100.0))
    asked = [e.envelope["params"]["pairs"] for e in outcome.tape.exchanges if e.envelope["request"] == "project"]
    assert asked == [[0, 1]] * 5  # not (x1, x2) with its 144 cells
    assert (1, 2) not in selected(outcome)


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
    client, call = client_and_call(params)
    with pytest.raises(ProtocolError):
        client.measure(call)


@pytest.mark.parametrize(
    "resolutions",
    [
        None,
        "flat",
        [],
        [[0, [1], [1]]] * 6,
        [[0, [1], [1], 1]] * 7,
        [[5, [1], [1]]] * 7,
        [[-1, [1], [1]]] * 7,
        [[True, [1], [1]]] * 7,
        [[4, [2], [1]]] * 7,
        [[4, [1, 2], [1]]] * 7,
        [[4, [1, 3], [1, 1]]] * 6 + [[4, [1, 8], [1, 1]]],
        [[4, [1, 2, 2], [1, 1, 1]]] * 7,
        [[4, [1, 2.0], [1, 1]]] * 7,
        [[4, [1], [0]]] * 7,
        [[4, [1], [1.5]]] * 7,
        [[4, [1], [2**40]]] * 7,
        [[4, "1", [1]]] * 7,
        [[4, [True], [1]]] * 7,
        [[4, [1, 10**400], [1, 1]]] * 7,
        [["4", [1], [1]]] * 7,
    ],
)
def test_a_client_refuses_malformed_resolutions(resolutions):
    """Seven attributes of four values: a request either is well formed for them, or gets one clear error."""
    client, call = client_and_call({"resolutions": resolutions})
    with pytest.raises(ProtocolError, match=r"resolutions|weights"):
        client.one_way(call)


def test_a_refused_resolution_costs_nothing_and_says_one_sentence():
    """Through `fit`, as a server would: refused before anything is charged."""
    outcome = run("fed_privsyn", NUMBERS)
    sent = next(e for e in outcome.tape.exchanges if e.envelope["request"] == "one-way")
    client, _ = client_and_call({}, NUMBERS)
    params = {**sent.envelope["params"], "resolutions": [[40, [1, 3], [1, 1]]]}
    envelope = {**sent.envelope, "params": params, "config": client.config.sha256}
    arrays, _, reply = client.fit([], {ENVELOPE: json.dumps(envelope)})
    answer = json.loads(reply[ANSWER])
    assert arrays == [] and not client.ledger.releases
    assert answer["error"] == "protocol" and "'resolutions'" in answer["message"]


def test_a_client_states_the_sensitivity_of_its_resolutions_itself():
    """By brute force: no row added moves the array by more than the client says, and one moves it by that."""
    resolutions = [[4, [1, 2, 4], [3, 2, 1]], *[[0, [1], [2]]] * 5, [3, [1, 3], [1, 5]]]
    client, call = client_and_call({"resolutions": resolutions})
    before = client.one_way(call)
    assert before.sensitivity == pytest.approx(math.sqrt(9 + 4 + 1 + 5 * 4 + 1 + 25))
    moved = []
    rows = client.codes
    for row in (0, 1, 2, 3):
        client.codes = np.concatenate([rows, np.full((1, 7), row, rows.dtype)])
        moved.append(np.linalg.norm(client.one_way(call).dense() - before.dense()))
    assert max(moved) == pytest.approx(before.sensitivity) and moved[3] < moved[0]


def test_a_client_states_the_sensitivity_of_weighted_marginals_itself():
    """By brute force: each row added moves the weighted array by exactly what the client says."""
    outcome = run("fed_privsyn")
    codes, domain = outcome.federation.parts[0], outcome.federation.domain
    call = Call(1, {"pairs": [0, 5, 20], "weights": [3, 1, 7]}, [], lambda: Randomness(0).generator("test"))

    def measured(rows: np.ndarray) -> Any:
        return client_class("fed_privsyn")(outcome.config, Holder(0, rows, domain, "", Randomness(0))).measure(call)

    base = measured(codes)
    for row in np.random.default_rng(0).integers(0, 4, (20, 7)).astype(codes.dtype):
        more = measured(np.vstack([codes, row]))
        assert np.linalg.norm(more.dense() - base.dense()) == pytest.approx(more.sensitivity)
    assert base.sensitivity == pytest.approx(math.sqrt(59)) and base.count == 1


# Selection -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["privsyn", *FEDERATED])
def test_the_strongest_pairs_are_selected_first(name):
    options = {} if name == "privsyn" else {"projection": "none"}
    first = selected(finished(run(name, epsilon=100.0, **options)))
    assert set(first[:3]) == {(0, 1), (1, 2), (2, 3)}


def test_adaptive_selection_passes_over_what_the_chain_implies():
    """(x0, x2) depends more on each other than (x4, x5), but the chain x0 - x1 - x2 has it already.

    With room for four pairs of 21, greedy takes a redundant one and leaves x4 and x5 unrelated.
    """
    options = {"epsilon": 100.0, "projection": "none"}
    adaptive = finished(run("ada_fed_privsyn", fraction=4 / 21, every=1, **options))
    greedy = selected(finished(run("fed_privsyn", **options)))
    assert set(selected(adaptive)) == {(0, 1), (1, 2), (2, 3), (4, 5)}
    assert (4, 5) not in greedy[:4] and len(set(greedy[:4]) & {(0, 2), (1, 3), (0, 3)}) >= 1


def test_scores_are_updated_only_downwards_and_only_beside_selected_pairs():
    outcome = finished(run("ada_fed_privsyn", epsilon=100.0))
    strategy = outcome.strategy
    high, low = np.full(21, 9.0), np.full(21, 1e-9)
    updated = strategy.update(high, [0])  # (x0, x1)
    beside = np.array([bool({"x0", "x1"} & set(pair)) for pair in strategy.pairs])
    assert np.all(updated[~beside] == 9.0) and updated[0] == 9.0 and np.all(updated[beside][1:] < 9.0)
    assert np.all(strategy.update(low, [0]) <= low)
    assert np.all(high == 9.0)


def test_effective_cells_are_those_that_carry_the_one_way_marginals():
    """40 bins of an exponential distribution and three equal categories: far fewer than all cells of all pairs."""
    few = finished(run("fed_privsyn", NUMBERS, epsilon=20.0)).strategy
    every = finished(run("fed_privsyn", NUMBERS, epsilon=20.0, penalty="cells")).strategy
    assert every.counted_cells.tolist() == [1640.0, 120.0, 123.0] == every.cells.tolist()
    ones = [one / 3000 for one in count(NUMBERS.encode(), NUMBERS.schema.domain, [("u",), ("v",), ("w",)])]
    u, v, w = (float(np.sqrt(one).sum()) ** 2 for one in ones)
    assert few.counted_cells == pytest.approx([u * v, u * w, v * w], rel=0.1)
    assert np.all(few.plan().unit < every.plan().unit)


@pytest.mark.parametrize("rest", ["unspent", "remeasure"])
def test_pairs_of_unequal_cost_stay_within_the_budget_of_all_pairs(rest):
    """Whatever is selected, in whatever batches: together at most rho_3; what it leaves over is spent or not."""
    rng = np.random.default_rng(3)
    shape = (2, 24, 3, 30, 5, 2)
    rows = (rng.random((3000, 1)) ** 2 * np.array(shape)).astype(int)
    rows = np.where(rng.random((3000, 6)) < 0.8, rows, (rng.random((3000, 6)) * np.array(shape)).astype(int))
    outcome = finished(run("ada_fed_privsyn", table_of(rows, shape), rest=rest, fraction=0.5, every=2, epsilon=3.0))
    rho_3 = 0.4 * PrivacyBudget(3.0, DELTA).mu ** 2 / 2
    costs = [r.rho for r in releases(outcome, "measure")]
    assert len(costs) > 2 and max(costs) > 1.2 * min(costs)  # exchanges do cost differently
    every = all_pairs(outcome.federation.domain)
    chosen = [every.index(q) for q in dict.fromkeys(m.clique for m in outcome.strategy.measurements)]
    expected = rho_3 * outcome.strategy.plan().costs(7)[chosen].sum()
    assert sum(costs) == pytest.approx(rho_3 if rest == "remeasure" else expected, rel=1e-9)
    assert sum(costs) <= rho_3 * (1 + 1e-9)


def test_what_a_selection_costs_decides_it_where_the_rest_is_unspent():
    """With costs fixed in advance a pair's noise does not fall when few are chosen: fewer pairs than with the rest."""
    unspent = selected(finished(run("ada_fed_privsyn", rest="unspent", fraction=1.0, noise_weight=16.0)))
    shared = selected(finished(run("ada_fed_privsyn", rest="remeasure", fraction=1.0, noise_weight=16.0)))
    assert len(unspent) < len(shared)


@pytest.mark.parametrize("fraction", [0.25, 1 / 3, 0.5])
def test_the_fraction_bounds_the_number_of_pairs(fraction):
    outcome = finished(run("ada_fed_privsyn", fraction=fraction, noise_weight=1e-6, epsilon=50.0))
    assert 0 < len(selected(outcome)) <= math.floor(fraction * 21)


@pytest.mark.parametrize("every", [1, 2, 10])
def test_pairs_between_two_updates_are_asked_for_together(every):
    outcome = finished(run("ada_fed_privsyn", every=every, fraction=0.5, noise_weight=1e-6, epsilon=50.0))
    sizes = [len(record.selected) for record in outcome.strategy.records if record.selected]
    assert max(sizes) == min(every, 10)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["privsyn", *FEDERATED])
def test_baselines_release_no_scores(name):
    everything = finished(run(name, select="all"))
    assert sorted(selected(everything)) == [(i, j) for i in range(7) for j in range(i + 1, 7)]
    numbers = set()
    for seed in range(4):
        outcome = finished(run(name, select="random", nodes={"runtime": {"seed": seed}}))
        numbers.add(len(selected(outcome)))
        assert not releases(outcome, "project") and not releases(outcome, "indif")
    assert len(numbers) > 1


# Synthesis -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("synthesizer", ["gum", "pgm"])
@pytest.mark.parametrize("name", ["privsyn", *FEDERATED])
def test_with_a_large_budget_the_rows_have_the_tables_pairs(name, synthesizer):
    assert pair_error(finished(run(name, epsilon=1000.0, synthesizer=synthesizer))) < 0.06


def test_attributes_in_no_selected_pair_follow_their_one_way_marginals():
    outcome = finished(run("ada_fed_privsyn", fraction=0.05, epsilon=100.0))  # one pair
    assert len(selected(outcome)) == 1
    domain, real = outcome.federation.domain, np.concatenate(outcome.federation.parts)
    ones = [(name,) for name in domain]
    for a, b in zip(count(real, domain, ones), count(outcome.synthetic, domain, ones), strict=True):
        assert np.abs(a / len(real) - b / len(outcome.synthetic)).sum() < 0.02


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


def test_local_noise_is_debiased_and_weighed_with_the_root_of_the_clients():
    server = finished(run("fed_privsyn", penalty="cells"))
    local = finished(run("fed_privsyn", penalty="cells", nodes={"aggregation": {"noise": "local"}}))
    assert local.strategy.inflation == pytest.approx(math.sqrt(5)) and server.strategy.inflation == 1.0
    assert local.strategy.projected[0].sigma == pytest.approx(math.sqrt(5) * server.strategy.projected[0].sigma)
    assert local.strategy.plan().unit == pytest.approx(math.sqrt(5) * server.strategy.plan().unit)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FEDERATED)
def test_hundreds_of_clients_and_two(name):
    many, few = finished(run(name, clients=200, epsilon=10.0)), finished(run(name, clients=2, epsilon=10.0))
    assert pair_error(many) < 0.2 and pair_error(few) < 0.2


# Options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("privsyn", {"select": "adaptive"}, "select"),
        ("privsyn", {"projection": "signs"}, "projection"),
        ("fed_privsyn", {"projection": "sign"}, "projection"),
        ("fed_privsyn", {"k": 0}, "k"),
        ("fed_privsyn", {"one_way_share": 0.5, "score_share": 0.5}, "must leave something for the pairs"),
        ("fed_privsyn", {"synthesizer": "gun"}, "synthesizer"),
        ("fed_privsyn", {"noise_weight": 0}, "noise_weight"),
        ("ada_fed_privsyn", {"fraction": 1.5}, "fraction"),
        ("ada_fed_privsyn", {"every": 0}, "every"),
        ("ada_fed_privsyn", {"rounds": 3}, "rounds"),
    ],
)
def test_wrong_options_are_config_errors(name, options, message):
    with pytest.raises(ConfigError, match=message):
        config_of(name, 2, options)


def test_central_privsyn_needs_its_one_holder():
    with pytest.raises(ConfigError, match="participation"):
        config_of("privsyn", 1, federation={"participation": 0.5})


def test_names_with_signs_and_letters_of_all_kinds_make_matrices():
    outcome = finished(run("ada_fed_privsyn", awkward_table("odd_names"), epsilon=50.0))
    assert len(outcome.synthetic) == 40 and isinstance(outcome.federation.domain, Domain)
    assert parse_config(outcome.config.to_dict()).sha256 == outcome.config.sha256
