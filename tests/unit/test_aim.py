"""Central AIM: scales and releases of a fixed number of rounds, and of budget annealing."""

from __future__ import annotations

from itertools import pairwise
from math import pi, sqrt
from typing import Any

import numpy as np
import pytest

from fedsyn.counting.candidates import Candidates
from fedsyn.counting.marginals import count
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.privacy import PrivacyBudget
from fedsyn.testing.harness import Federation, Outcome, config_of, execute, finished, vanish
from fedsyn.testing.schemas import awkward_table
from fedsyn.wire.messages import Reply
from strategies.aim import Aim

TABLE = awkward_table("missing_values")
DOMAIN = TABLE.schema.domain
CODES = TABLE.encode()
D = len(DOMAIN)
RHO = PrivacyBudget(1.0, 1e-5).rho


def run(
    codes: np.ndarray = CODES, epsilon: float = 1.0, nodes: Any = None, faults: Any = None, **options: Any
) -> Outcome:
    config = config_of("aim", 1, options, **{"privacy": {"epsilon": epsilon, "delta": 1e-5}, **(nodes or {})})
    return execute(config, Federation(TABLE, (codes,)), faults=faults)


def releases(outcome: Outcome, name: str) -> list[Any]:
    return [release for release in outcome.strategy.ledger.releases if release.name == name]


# A fixed number of rounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "ratio"), [(1, 0.9), (4, 0.9), (4, 0.5)])
def test_fixed_rounds_divide_the_budget_evenly(rounds, ratio):
    outcome = finished(run(rounds=rounds, ratio=ratio))
    ledger = outcome.strategy.ledger
    sigma = sqrt((rounds + D) / (2 * ratio * RHO))
    epsilon = sqrt(8 * (1 - ratio) * RHO / rounds)
    assert [r.count for r in releases(outcome, "one-way")] == [D]
    measured, chosen = releases(outcome, "measure"), releases(outcome, "select")
    assert [r.round for r in measured] == [r.round for r in chosen] == list(range(1, rounds + 1))
    assert all(r.sigma == pytest.approx(sigma, rel=1e-12) and r.count == 1 for r in measured)
    assert all(r.epsilon == pytest.approx(epsilon, rel=1e-12) and r.count == 1 for r in chosen)
    assert ledger.spent_rho == pytest.approx(RHO, rel=1e-9)
    assert ledger.epsilon() == pytest.approx(1.0, rel=1e-6) and ledger.epsilon() <= 1 + 1e-9
    assert outcome.ledgers[0].spent_rho == pytest.approx(RHO, rel=1e-9)


def test_private_sizes_leave_less_for_the_rounds():
    outcome = finished(run(rounds=2, nodes={"privacy": {"client_sizes": "private"}}))
    (sizes,) = releases(outcome, "sizes")
    assert sizes.rho == pytest.approx(0.05 * RHO)
    assert outcome.strategy.ledger.spent_rho == pytest.approx(RHO, rel=1e-9)


def test_the_choice_has_the_sensitivity_of_the_largest_eligible_weight():
    outcome = finished(run(rounds=2))
    candidates = Candidates.of(outcome.strategy.workload, DOMAIN)
    asked = [e for e in outcome.tape.exchanges if e.envelope["request"] == "select"]
    for release, exchange in zip(releases(outcome, "select"), asked, strict=True):
        eligible = exchange.envelope["params"]["eligible"]
        assert release.sensitivity == max(candidates.weights[eligible])
    largest = {float(max(candidates.weights[e.envelope["params"]["eligible"]])) for e in asked}
    assert {r.sensitivity for r in outcome.ledgers[0].releases if r.name == "select"} == largest


# Annealing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_printed", [False, True])
def test_annealing_starts_as_algorithm_2_says(as_printed):
    outcome = finished(run(rounds=None, as_printed=as_printed))
    variance = 16 * D / (2 * 0.9 * RHO) * (2 if as_printed else 1)
    (start,) = releases(outcome, "one-way")
    assert start.sigma == pytest.approx(sqrt(variance), rel=1e-12) and start.count == D
    assert releases(outcome, "select")[0].epsilon == pytest.approx(sqrt(8 * 0.1 * RHO / (16 * D)), rel=1e-12)


@pytest.mark.parametrize("as_printed", [False, True])
@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_annealing_halves_only_when_a_round_changed_too_little_and_ends_with_all_that_is_left(as_printed, epsilon):
    outcome = finished(run(epsilon=epsilon, rounds=None, as_printed=as_printed))
    ledger = outcome.strategy.ledger
    rho = PrivacyBudget(epsilon, 1e-5).rho
    measured, chosen = releases(outcome, "measure"), releases(outcome, "select")
    assert len(measured) == len(chosen) >= 3
    halved = 0
    spent = releases(outcome, "one-way")[0].rho
    before = [(releases(outcome, "one-way")[0].sigma, chosen[0].epsilon)]
    for i, (measure, select) in enumerate(zip(measured, chosen, strict=True)):
        sigma, eps = before[-1]
        last = i == len(measured) - 1
        left = rho - spent
        if not last:
            # Either as the round before, or half the noise and twice epsilon.
            assert (measure.sigma, select.epsilon) in (
                pytest.approx((sigma, eps), rel=1e-12),
                pytest.approx((sigma / 2, 2 * eps), rel=1e-12),
            )
            halved += measure.sigma < 0.9 * sigma
            assert left > 2 * (measure.rho + select.rho) * (1 - 1e-12)
        else:
            assert measure.rho == pytest.approx(0.9 * left, rel=1e-9)
            assert select.rho == pytest.approx(0.1 * left, rel=1e-9)
        before.append((measure.sigma, select.epsilon))
        spent += measure.rho + select.rho
    assert halved > 0, "a table of 60 rows does not change the model much: some round must have halved the noise"
    assert ledger.spent_rho == pytest.approx(rho, rel=1e-9)
    assert ledger.epsilon() <= epsilon * (1 + 1e-9)


def test_a_round_halves_the_noise_exactly_if_its_marginal_moved_less_than_the_noise():
    """Recomputed from outside: the model before and after each round, at the clique that was measured."""
    outcome = finished(run(rounds=None, epsilon=5.0))
    strategy = outcome.strategy
    assert isinstance(strategy, Aim)
    from fedsyn.inference import estimate
    from fedsyn.inference.fitting import estimate_config

    model, settled = None, []
    for n in range(D, len(strategy.measurements) + 1):
        if n > D:
            clique, sigma = strategy.measurements[n - 1].clique, strategy.measurements[n - 1].sigma
            before = model.project(clique)
        model = estimate(
            DOMAIN,
            strategy.measurements[:n],
            total=float(len(CODES)),
            config=estimate_config(strategy.run.inference, strategy.config.iterations),
            warm_start=model,
        )
        if n > D:
            change = np.abs(model.project(clique) - before).sum()
            settled.append(change <= sqrt(2 / pi) * sigma * DOMAIN.size(clique))
    sigmas = [r.sigma for r in releases(outcome, "measure")]
    halvings = [later < 0.9 * earlier for earlier, later in pairwise(sigmas)]
    assert halvings[:-1] == settled[: len(halvings) - 1]  # the last round spends the rest instead
    assert True in halvings


# Result --------------------------------------------------------------------------------------------------------------


def test_without_noise_the_model_reproduces_what_was_measured():
    codes = np.repeat(CODES, 1000, axis=0)
    outcome = finished(run(codes, epsilon=1000.0, rounds=6, iterations=300, final_iterations=500))
    strategy = outcome.strategy
    assert isinstance(strategy, Aim) and strategy.model is not None
    assert strategy.model.total == len(codes)
    for measurement in strategy.measurements:
        exact = count(codes, DOMAIN, [measurement.clique])[0]
        assert np.abs(measurement.values - exact).max() < 8 * measurement.sigma
        assert np.abs(strategy.model.project(measurement.clique) - exact).sum() / len(codes) < 0.02
    assert any(len(m.clique) == 2 for m in strategy.measurements)


def test_selected_cliques_are_those_that_the_holder_chose():
    outcome = finished(run(rounds=3))
    strategy = outcome.strategy
    assert isinstance(strategy, Aim)
    chosen = [e.reply["params"]["chosen"][0] for e in outcome.tape.exchanges if "chosen" in e.reply["params"]]
    measured = [m.clique for m in strategy.measurements[D:]]
    assert measured == [strategy.candidates.cliques[i] for i in chosen]
    assert [record.selected for record in strategy.records[1:]] == [[" × ".join(q)] for q in measured]


def test_early_rounds_may_use_a_share_of_the_model_only():
    outcome = finished(run(rounds=4, nodes={"inference": {"max_cells": 120}}))
    eligible = [
        len(e.envelope["params"]["eligible"]) for e in outcome.tape.exchanges if e.envelope["request"] == "select"
    ]
    assert eligible == sorted(eligible) and eligible[0] < eligible[-1]


# The holder ----------------------------------------------------------------------------------------------------------


def test_the_holder_gone_in_the_middle_leaves_what_was_measured():
    outcome = finished(run(rounds=5, faults={0: vanish(4)}))  # join, one-way, select, measure
    strategy = outcome.strategy
    assert isinstance(strategy, Aim) and len(strategy.measurements) == D + 1
    # Round 2's choice was asked for, and may have been released.
    assert [r.round for r in releases(outcome, "select")] == [1, 2]


def test_a_holder_that_never_measures_ends_the_run_with_an_error():
    outcome = run(rounds=5, faults={0: vanish(1)})
    assert outcome.error is not None and outcome.strategy.model is None


@pytest.mark.parametrize("chosen", [[], [0, 1], [3], [10**6], "0", None, [-1], [True]])
def test_a_reply_that_does_not_choose_one_eligible_clique_is_refused(chosen):
    outcome = finished(run(rounds=1))
    strategy = outcome.strategy
    assert isinstance(strategy, Aim)
    strategy.open = frozenset([0, 1, 2])
    with pytest.raises(ProtocolError):
        strategy.read_choice(Reply(0, [], {"chosen": chosen}))
    assert strategy.read_choice(Reply(0, [], {"chosen": [2]})) == 2


def test_participation_below_one_is_refused():
    with pytest.raises(ConfigError, match="participation"):
        config_of("aim", 1, {}, federation={"participation": 0.5})
