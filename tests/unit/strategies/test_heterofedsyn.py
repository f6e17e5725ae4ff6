"""FedPrivSyn and AdaFedPrivSyn, next to central PrivSyn: budgets, messages, selections, and what comes of a table."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.errors import ConfigError
from fedsyn.front.testing.harness import config_of, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.loading import parse_config
from fedsyn.plugins.strategies.heterofedsyn import AdaFedPrivSyn, FedPrivSyn
from fedsyn.privacy import PrivacyBudget
from fedsyn.selection.indif import Projection, all_pairs
from fedsyn.table.counting.marginals import count
from support.pair_runs import (
    DELTA,
    VARIANTS,
    assert_the_ledger_adds_up,
    pair_error,
    releases,
    run,
    selected,
    table_of,
)

FEDERATED = ("fed_privsyn", "ada_fed_privsyn")


# Budget ---------------------------------------------------------------------------------------------------------------


NOISES = ("server", "local", "distributed")
WAYS = (
    ("fed_privsyn", {}),
    ("fed_privsyn", {"select": "all", "allocation": "even"}),
    ("fed_privsyn", {"one_way_share": 0.2, "score_share": 0.3, "projection": "none"}),
    ("fed_privsyn", {"projection": "gaussian"}),
    ("ada_fed_privsyn", {}),
    ("ada_fed_privsyn", {"fraction": 1.0, "every": 1}),
    ("ada_fed_privsyn", {"fraction": 0.25, "allocation": "even"}),
)


# All noises of the first of either mechanism and one noise of each other by default; `make test-all` has all.
@pytest.mark.parametrize(
    ("name", "options", "noise"),
    [
        pytest.param(name, options, noise, marks=[] if not options or at % 3 == place else pytest.mark.slow)
        for at, (name, options) in enumerate(WAYS)
        for place, noise in enumerate(NOISES)
    ],
)
def test_the_ledger_adds_up_to_the_budget(name, options, noise):
    assert_the_ledger_adds_up(name, options, noise)


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


def test_adaptive_pairs_cost_what_the_corrected_algorithm_5_says():
    """A third of all pairs: each costs 6 rho_3 / (d (d - 1)), and what is left over is unspent."""
    printed = {"rest": "unspent", "allocation": "even"}
    outcome = finished(run("ada_fed_privsyn", every=3, noise_weight=8.0, **printed))
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


def test_private_sizes_leave_less_for_the_rest():
    outcome = finished(run("ada_fed_privsyn", nodes={"privacy": {"client_sizes": "private", "epsilon": 1.0}}))
    assert len(releases(outcome, "sizes")) == 1
    assert outcome.strategy.ledger.spent == pytest.approx(outcome.strategy.ledger.accountant.capacity, rel=1e-6)


# Messages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["server", "local", "distributed"])
@pytest.mark.parametrize("projection", ["signs", "gaussian"])
def test_a_client_sends_at_most_k_numbers_per_pair(projection, noise):
    nodes = {"aggregation": {"noise": noise}}
    outcome = finished(run("fed_privsyn", k=4, projection=projection, nodes=nodes))
    sent = [e for e in outcome.tape.exchanges if e.envelope["request"] == "project"]
    assert len(sent) == 5
    for exchange in sent:
        values = exchange.reply_arrays[-1]
        assert 0 < values.size <= 4 * 21
    firsts = {e.envelope["request"] for e in outcome.tape.exchanges} - {"join"}
    assert firsts == {"one-way", "project", "measure"}


def test_without_projection_a_client_sends_marginals_and_the_server_scores_them():
    outcome = finished(run("fed_privsyn", projection="none"))
    for exchange in (sent := [e for e in outcome.tape.exchanges if e.envelope["request"] == "project"]):
        assert exchange.envelope["sum"]["shapes"] == [[21 * 16]]
    assert len(sent) == 5


def test_a_clients_projections_are_those_of_its_rows():
    outcome = finished(run("fed_privsyn", clients=3, k=5))
    for exchange in outcome.tape.exchanges:
        if exchange.envelope["request"] == "project":
            gaps, values = exchange.reply_arrays
            vector = np.zeros(21 * 5, np.int64)
            vector[np.cumsum(gaps.astype(np.int64))] = values
            projection = Projection(5, 0)
            codes = outcome.federation.parts[exchange.partition]
            expected = projection.apply(codes, outcome.federation.domain, all_pairs(outcome.federation.domain))
            assert np.array_equal(vector, np.concatenate(expected))


def test_a_pair_with_more_cells_than_a_model_may_have_is_no_candidate():
    rng = np.random.default_rng(0)
    table = table_of(rng.integers(0, 2, (300, 3)) * np.array([1, 10, 10]), (2, 12, 12))
    outcome = finished(run("fed_privsyn", table, nodes={"inference": {"max_cells": 100}}, epsilon=100.0))
    asked = [e.envelope["params"]["pairs"] for e in outcome.tape.exchanges if e.envelope["request"] == "project"]
    assert asked == [[0, 1]] * 5  # not (x1, x2) with its 144 cells
    assert (1, 2) not in selected(outcome)


# Selection ------------------------------------------------------------------------------------------------------------


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


def test_scores_are_updated_only_downwards_and_only_beside_selected_pairs(watch):
    seen = watch(AdaFedPrivSyn, "dependencies")
    strategy = finished(run("ada_fed_privsyn", epsilon=100.0)).strategy
    (projected,) = seen[0].arguments
    high, low = np.full(21, 9.0), np.full(21, 1e-9)
    updated = strategy.updated(high, [0], projected)  # (x0, x1)
    beside = np.array([bool({"x0", "x1"} & set(pair)) for pair in strategy.pairs])
    assert np.all(updated[~beside] == 9.0) and updated[0] == 9.0 and np.all(updated[beside][1:] < 9.0)
    assert np.all(strategy.updated(low, [0], projected) <= low)
    assert np.all(high == 9.0)


@pytest.mark.parametrize("rest", ["unspent", "remeasure"])
def test_pairs_of_unequal_cost_stay_within_the_budget_of_all_pairs(rest):
    """Whatever is selected, in whatever batches: together at most rho_3; what it leaves over is spent or not."""
    rng = np.random.default_rng(3)
    shape = (2, 24, 3, 30, 5, 2)
    rows = (rng.random((3000, 1)) ** 2 * np.array(shape)).astype(int)
    rows = np.where(rng.random((3000, 6)) < 0.8, rows, (rng.random((3000, 6)) * np.array(shape)).astype(int))
    options = {"fraction": 0.5, "every": 2, "rest": rest}
    outcome = finished(run("ada_fed_privsyn", table_of(rows, shape), epsilon=3.0, **options))
    rho_3 = 0.4 * PrivacyBudget(3.0, DELTA).mu ** 2 / 2
    costs = [r.rho for r in releases(outcome, "measure")]
    assert len(costs) > 2 and max(costs) > 1.2 * min(costs)  # exchanges do cost differently
    every = all_pairs(outcome.federation.domain)
    chosen = [every.index(q) for q in dict.fromkeys(m.clique for m in outcome.strategy.measurements)]
    expected = rho_3 * outcome.strategy.allocation(rho_3, 1.0).costs(7)[chosen].sum()
    assert sum(costs) == pytest.approx(rho_3 if rest == "remeasure" else expected, rel=1e-9)
    assert sum(costs) <= rho_3 * (1 + 1e-9)


def test_what_a_selection_costs_decides_it_where_the_rest_is_unspent():
    """With costs fixed in advance a pair's noise does not fall when few are chosen: fewer pairs than with the rest."""

    def pairs(rest: str) -> int:
        options = {"fraction": 1.0, "noise_weight": 16.0, "rest": rest}
        return len(selected(finished(run("ada_fed_privsyn", **options))))

    assert pairs("unspent") < pairs("remeasure")


@pytest.mark.parametrize("fraction", [0.25, 1 / 3, 0.5])
def test_the_fraction_bounds_the_number_of_pairs(fraction):
    outcome = finished(run("ada_fed_privsyn", fraction=fraction, noise_weight=1e-6, epsilon=50.0))
    assert 0 < len(selected(outcome)) <= math.floor(fraction * 21)


@pytest.mark.parametrize("every", [1, 2, 10])
def test_pairs_between_two_updates_are_asked_for_together(every):
    outcome = finished(run("ada_fed_privsyn", every=every, fraction=0.5, noise_weight=1e-6, epsilon=50.0))
    sizes = [len(record.selected) for record in outcome.strategy.records if record.selected]
    assert max(sizes) == min(every, 10)


@pytest.mark.slow
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


# Synthesis ------------------------------------------------------------------------------------------------------------


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


def test_local_noise_is_debiased_and_weighed_with_the_root_of_the_clients(watch):
    scored, weighed = watch(FedPrivSyn, "dependencies"), watch(FedPrivSyn, "allocation")
    for noise in ("server", "local"):
        finished(run("fed_privsyn", penalty="cells", nodes={"aggregation": {"noise": noise}}))
    server, local = (call.arguments[0][0].sigma for call in scored)
    assert local == pytest.approx(math.sqrt(5) * server)
    assert [call.arguments[1] for call in weighed] == [1.0, pytest.approx(math.sqrt(5))]
    server, local = (call.result.unit for call in weighed)
    assert local == pytest.approx(math.sqrt(5) * server)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEDERATED)
def test_hundreds_of_clients_and_two(name):
    many, few = finished(run(name, clients=200, epsilon=10.0)), finished(run(name, clients=2, epsilon=10.0))
    assert pair_error(many) < 0.2 and pair_error(few) < 0.2


# Options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (VARIANTS["privsyn"], {"select": "adaptive"}, "select"),
        (VARIANTS["privsyn"], {"projection": "signs"}, "projection"),
        (VARIANTS["fed_privsyn"], {"projection": "sign"}, "projection"),
        ("fed_privsyn", {"projection": "signs"}, "projection"),
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


def test_names_with_signs_and_letters_of_all_kinds_make_matrices():
    outcome = finished(run("ada_fed_privsyn", awkward_table("odd_names"), epsilon=50.0))
    assert len(outcome.synthetic) == 40 and isinstance(outcome.federation.domain, Domain)
    assert parse_config(outcome.config.to_dict()).sha256 == outcome.config.sha256
