"""Central AIM: scales and releases of a fixed number of rounds, and of budget annealing."""

from __future__ import annotations

import json
from itertools import pairwise
from math import pi, sqrt
from typing import Any

import numpy as np
import pytest

from fedsyn.counting.candidates import Candidates
from fedsyn.counting.marginals import count
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.flower import ConfigRecord
from fedsyn.inference import estimate
from fedsyn.inference.fitting import estimate_config
from fedsyn.privacy import PrivacyBudget
from fedsyn.testing.harness import Federation, Outcome, config_of, execute, finished, vanish
from fedsyn.testing.schemas import awkward_table
from fedsyn.wire.envelope import ANSWER, Reply, to_json
from strategies.aim import annealing_start, choice, fixed_scales

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


def test_fixed_scales_spend_everything():
    scales = fixed_scales(0.4, rounds=10, attributes=14, ratio=0.9)
    assert scales.sigma == pytest.approx(sqrt(24 / (2 * 0.9 * 0.4)), rel=1e-14)
    assert scales.epsilon == pytest.approx(sqrt(8 * 0.1 * 0.4 / 10), rel=1e-14)
    assert scales.rho == pytest.approx(0.4, rel=1e-14)


@pytest.mark.parametrize("options", [{"rounds": 0}, {"rounds": -1}, {"rounds": 1.5}, {"ratio": 0.0}, {"ratio": 1.0}])
def test_bad_divisions_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        config_of("aim", 1, options)


# Annealing -----------------------------------------------------------------------------------------------------------


def test_annealing_starts_as_in_aim_and_as_printed_in_flaim():
    scales, printed = annealing_start(0.4, 14), annealing_start(0.4, 14, as_printed=True)
    assert scales.sigma**2 == pytest.approx(16 * 14 / (2 * 0.9 * 0.4), rel=1e-14)
    assert printed.sigma**2 == pytest.approx(16 * 14 / (0.9 * 0.4), rel=1e-14)
    assert scales.epsilon == printed.epsilon == pytest.approx(sqrt(8 * 0.1 * 0.4 / (16 * 14)), rel=1e-14)


@pytest.mark.parametrize("as_printed", [False, True])
def test_annealing_starts_as_algorithm_2_says(as_printed):
    outcome = finished(run(rounds=None, ablation={"printed_start": as_printed}))
    variance = 16 * D / (2 * 0.9 * RHO) * (2 if as_printed else 1)
    (start,) = releases(outcome, "one-way")
    assert start.sigma == pytest.approx(sqrt(variance), rel=1e-12) and start.count == D
    assert releases(outcome, "select")[0].epsilon == pytest.approx(sqrt(8 * 0.1 * RHO / (16 * D)), rel=1e-12)


@pytest.mark.parametrize("as_printed", [False, True])
@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_annealing_halves_only_when_a_round_changed_too_little_and_ends_with_all_that_is_left(as_printed, epsilon):
    outcome = finished(run(epsilon=epsilon, rounds=None, ablation={"printed_start": as_printed}))
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


def test_a_round_halves_the_noise_exactly_if_its_marginal_moved_less_than_the_noise(measured):
    """Recomputed from outside: the model before and after each round, at the clique that was measured."""
    outcome = finished(run(rounds=None, epsilon=5.0))
    strategy, measurements = outcome.strategy, measured(outcome.strategy)
    model, settled = None, []
    for n in range(D, len(measurements) + 1):
        if n > D:
            clique, sigma = measurements[n - 1].clique, measurements[n - 1].sigma
            before = model.project(clique)
        model = estimate(
            DOMAIN,
            measurements[:n],
            total=float(len(CODES)),
            config=estimate_config(strategy.config.inference, strategy.options.iterations),
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


def test_without_noise_the_model_reproduces_what_was_measured(measured):
    codes = np.repeat(CODES, 1000, axis=0)
    outcome = finished(run(codes, epsilon=1000.0, rounds=6, iterations=300, final_iterations=500))
    strategy = outcome.strategy
    assert strategy.model is not None and strategy.model.total == len(codes)
    for measurement in measured(strategy):
        exact = count(codes, DOMAIN, [measurement.clique])[0]
        assert np.abs(measurement.values - exact).max() < 8 * measurement.sigma
        assert np.abs(strategy.model.project(measurement.clique) - exact).sum() / len(codes) < 0.02
    assert any(len(m.clique) == 2 for m in measured(strategy))


def test_selected_cliques_are_those_that_the_holder_chose(measured):
    outcome = finished(run(rounds=3))
    strategy = outcome.strategy
    chosen = [e.reply["params"]["chosen"] for e in outcome.tape.exchanges if "chosen" in e.reply["params"]]
    cliques = [m.clique for m in measured(strategy)[D:]]
    assert cliques == [strategy.candidates.cliques[i] for i in chosen]
    assert [record.selected for record in strategy.records[1:]] == [[" × ".join(q)] for q in cliques]


def test_early_rounds_may_use_a_share_of_the_model_only():
    outcome = finished(run(rounds=4, nodes={"inference": {"max_cells": 120}}))
    eligible = [
        len(e.envelope["params"]["eligible"]) for e in outcome.tape.exchanges if e.envelope["request"] == "select"
    ]
    assert eligible == sorted(eligible) and eligible[0] < eligible[-1]


# The holder ----------------------------------------------------------------------------------------------------------


def test_the_holder_gone_in_the_middle_leaves_what_was_measured(measured):
    outcome = finished(run(rounds=5, faults={0: vanish(4)}))  # join, one-way, select, measure
    assert len(measured(outcome.strategy)) == D + 1
    # Round 2's choice was asked for, and may have been released.
    assert [r.round for r in releases(outcome, "select")] == [1, 2]


def test_a_holder_that_never_measures_ends_the_run_with_an_error():
    outcome = run(rounds=5, faults={0: vanish(1)})
    assert outcome.error is not None and outcome.strategy.model is None


@pytest.mark.parametrize("chosen", [[], [2], 3, 10**6, "0", None, -1, True, 1.0])
def test_a_reply_that_does_not_choose_one_eligible_clique_is_refused(chosen):
    with pytest.raises(ProtocolError):
        choice([0, 1, 2], Reply(0, [], {"chosen": chosen}))
    assert choice([0, 1, 2], Reply(0, [], {"chosen": 2})) == 2


def test_a_holder_that_chooses_what_was_not_offered_leaves_the_one_way_model(measured):
    outcome = finished(run(rounds=3, faults={0: choosing(10**6)}))
    assert set(outcome.strategy.record.dropped) == {0} and outcome.strategy.round == 1
    assert [m.clique for m in measured(outcome.strategy)] == [(name,) for name in DOMAIN]
    assert not releases(outcome, "measure")


def choosing(index: int) -> Any:
    """Whatever the holder chose, its reply says `index`."""

    def fault(reply: Any, earlier: int) -> Any:
        answer = json.loads(reply.content["config"][ANSWER])
        if "chosen" in answer.get("params", {}):
            answer["params"]["chosen"] = index
            reply.content["config"] = ConfigRecord({ANSWER: to_json(answer)})
        return reply

    return fault


def test_participation_below_one_is_refused():
    with pytest.raises(ConfigError, match="participation"):
        config_of("aim", 1, {}, federation={"participation": 0.5})
