"""AIM over a store: scales and releases of a fixed number of rounds, and of budget annealing; one holder or many."""

from __future__ import annotations

from itertools import pairwise
from math import pi, sqrt
from typing import Any

import numpy as np
import pytest

from experiments.variants.aim import PrintedAimContract
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.flower import ConfigRecord, RecordDict
from fedsyn.flower.messages import array_record, read_reply
from fedsyn.front.testing.faults import vanish
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.inference import estimate
from fedsyn.inference.estimation import estimate_config
from fedsyn.plugins.clients.aim import AimClient, AimContract
from fedsyn.privacy import PrivacyBudget
from fedsyn.protocol.stored import Answers, OpenMarginals, SelectClique
from fedsyn.randomness import Randomness
from fedsyn.stores.base import DEALT
from fedsyn.stores.parties.steps import least_sigma
from fedsyn.stores.plain import PlainServer
from fedsyn.table.counting.marginals import count
from fedsyn.wire.holder import Holder
from support.halves import asked

TABLE = awkward_table("missing_values")
DOMAIN = TABLE.schema.domain
CODES = TABLE.encode()
D = len(DOMAIN)
RHO = PrivacyBudget(1.0, 1e-5).rho
PRINTED = "experiments.variants.aim:PrintedAim"


def run(
    codes: np.ndarray = CODES,
    epsilon: float = 1.0,
    nodes: Any = None,
    faults: Any = None,
    name: str = "aim",
    **options: Any,
) -> Outcome:
    config = config_of(name, 1, options, **{"privacy": {"epsilon": epsilon, "delta": 1e-5}, **(nodes or {})})
    return execute(config, Federation(TABLE, (codes,)), faults=faults)


def releases(outcome: Outcome, name: str) -> list[Any]:
    return [release for release in outcome.strategy.ledger.releases if release.name == name]


@pytest.fixture
def terms(monkeypatch) -> list[Any]:
    """The terms of every choice of a run, as they are asked for."""
    seen: list[Any] = []
    choose = PlainServer.choose

    def kept(self: PlainServer, asked: Any, round: int) -> Any:
        seen.append(asked.terms)
        return choose(self, asked, round)

    monkeypatch.setattr(PlainServer, "choose", kept)
    return seen


# A fixed number of rounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "measure_fraction"), [(1, 0.9), (4, 0.9), (4, 0.5)])
def test_fixed_rounds_divide_the_budget_evenly(rounds, measure_fraction):
    outcome = finished(run(rounds=rounds, measure_fraction=measure_fraction))
    ledger = outcome.strategy.ledger
    sigma = sqrt((rounds + D) / (2 * measure_fraction * RHO))
    epsilon = sqrt(8 * (1 - measure_fraction) * RHO / rounds)
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


def test_the_choice_has_the_sensitivity_of_the_largest_eligible_weight(terms):
    outcome = finished(run(rounds=2))
    found = [release.sensitivity for release in releases(outcome, "select")]
    assert found == [float(max(term.weights)) for term in terms] and len(found) == 2


def first_scales(rho, contract=AimContract, **options):
    """sigma and epsilon of the first round."""
    plan = {step.request: step for step in contract(config_of("aim", 1, options), DOMAIN).plan(rho)}
    return plan[OpenMarginals].first_sigma, plan[SelectClique].first_epsilon


def test_fixed_scales_spend_everything():
    sigma, epsilon = first_scales(0.4, rounds=10)
    assert sigma == pytest.approx(sqrt((10 + D) / (2 * 0.9 * 0.4)), rel=1e-14)
    assert epsilon == pytest.approx(sqrt(8 * 0.1 * 0.4 / 10), rel=1e-14)
    assert (10 + D) / (2 * sigma**2) + 10 * epsilon**2 / 8 == pytest.approx(0.4, rel=1e-14)


@pytest.mark.parametrize(
    "options", [{"rounds": 0}, {"rounds": -1}, {"rounds": 1.5}, {"measure_fraction": 0.0}, {"measure_fraction": 1.0}]
)
def test_bad_divisions_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        config_of("aim", 1, options)


# Annealing -----------------------------------------------------------------------------------------------------------


def test_annealing_starts_as_in_aim_and_as_printed_in_flaim():
    scales, printed = (first_scales(0.4, contract, rounds=None) for contract in (AimContract, PrintedAimContract))
    assert scales[0] ** 2 == pytest.approx(16 * D / (2 * 0.9 * 0.4), rel=1e-14)
    assert printed[0] ** 2 == pytest.approx(16 * D / (0.9 * 0.4), rel=1e-14)
    assert scales[1] == printed[1] == pytest.approx(sqrt(8 * 0.1 * 0.4 / (16 * D)), rel=1e-14)


@pytest.mark.parametrize("name", ["aim", PRINTED])
def test_annealing_starts_as_algorithm_2_says(name):
    outcome = finished(run(rounds=None, name=name))
    variance = 16 * D / (2 * 0.9 * RHO) * (2 if name == PRINTED else 1)
    (start,) = releases(outcome, "one-way")
    assert start.sigma == pytest.approx(sqrt(variance), rel=1e-12) and start.count == D
    assert releases(outcome, "select")[0].epsilon == pytest.approx(sqrt(8 * 0.1 * RHO / (16 * D)), rel=1e-12)


@pytest.mark.parametrize("name", ["aim", PRINTED])
@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_annealing_halves_only_when_a_round_changed_too_little_and_ends_with_all_that_is_left(name, epsilon):
    outcome = finished(run(epsilon=epsilon, rounds=None, name=name))
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


def test_what_is_measured_is_what_was_chosen(measured, terms):
    outcome = finished(run(rounds=3))
    strategy = outcome.strategy
    chosen = [d.output for d in outcome.tape.draws["server"] if d.kind == "exponential"]
    cliques = [m.clique for m in measured(strategy)[D:]]
    assert cliques == [term.cliques[i] for term, i in zip(terms, chosen, strict=True)]
    assert [record.selected for record in strategy.records[1:]] == [[" × ".join(q)] for q in cliques]


def test_early_rounds_may_use_a_share_of_the_model_only(terms):
    finished(run(rounds=4, nodes={"inference": {"max_cells": 120}}))
    eligible = [len(term.cliques) for term in terms]
    assert eligible == sorted(eligible) and eligible[0] < eligible[-1]


# Who deals -----------------------------------------------------------------------------------------------------------


def test_the_holder_is_asked_once_and_pays_for_everything_at_once():
    outcome = finished(run(rounds=5))
    assert [e.envelope["request"] for e in outcome.tape.exchanges] == ["join", "deal"]
    (entry,) = outcome.ledgers[0].releases
    assert entry.name == "deal" and entry.rho == pytest.approx(RHO, rel=1e-9)


def test_a_holder_that_never_deals_ends_the_run_with_an_error_and_nothing_spent():
    outcome = run(rounds=5, faults={0: vanish(1)})
    assert outcome.error is not None and outcome.strategy.model is None
    assert not outcome.strategy.ledger.releases


@pytest.mark.parametrize("rounds", [3, None])
def test_nobody_ever_deals(rounds):
    outcome = run(rounds=rounds, faults={0: vanish(1)})
    assert "too few" in outcome.strategy.records[-1].notes[0] and outcome.strategy.round <= 16 * D


def test_a_client_deals_in_the_first_round_in_which_it_is_drawn():
    parts = tuple(CODES[k::6] for k in range(6))
    config = config_of("distaim", 6, {"rounds": 6}, federation={"sampling_rate": 0.4})
    outcome = finished(execute(config, Federation(TABLE, parts)))
    asked = [(e.envelope["round"], e.partition) for e in outcome.tape.exchanges if e.envelope["request"] == "deal"]
    first = {}
    for record in outcome.strategy.records[1:]:
        for k in record.cohort:
            first.setdefault(k, record.round)
    assert asked == sorted((t, k) for k, t in first.items())
    promised = {k: ledger.spent_rho for k, ledger in outcome.ledgers.items()}
    left = {0: RHO}
    for t in range(1, 7):
        left[t] = RHO - sum(r.rho for r in outcome.strategy.ledger.releases if r.round <= t)
    assert promised == {k: pytest.approx(left[t - 1], rel=1e-6) for k, t in first.items()}


def test_distaim_with_everybody_present_is_aim_to_the_last_bit():
    """Algorithm 3 with p = 1 over a store that adds up is Algorithm 2: same integers, same noise, same fits."""
    parts = tuple(CODES[k::7] for k in range(7))
    central = finished(run(rounds=4))
    many = finished(execute(config_of("distaim", 7, {"rounds": 4}), Federation(TABLE, parts)))
    assert central.arrays.keys() == many.arrays.keys()
    assert all(central.arrays[key].tobytes() == many.arrays[key].tobytes() for key in central.arrays)
    assert np.array_equal(central.synthetic, many.synthetic)


def test_a_client_deals_once_in_a_run():
    holder = Holder(0, CODES, DOMAIN, TABLE.schema.sha256, Randomness(0))
    client = AimClient(config_of("aim", 1, {"rounds": 2}), holder)
    call = asked(client, Answers(rho=1e-3))
    client._deal(client.deal, call)
    assert holder.state[DEALT] and client.ledger.spent_rho == pytest.approx(1e-3)
    with pytest.raises(ProtocolError, match="already"):
        client._deal(client.deal, call)
    assert client.ledger.spent_rho == pytest.approx(1e-3)


# What a configuration may say ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["aim", "distaim"])
@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"protocol": "secagg", "noise": "distributed"}, "has no store.*allowed: plain, mpc"),
        ({"protocol": "plain", "noise": "local"}, "allowed for this mechanism: server, distributed"),
        ({"protocol": "mpc", "noise": "server"}, "allowed: distributed"),
        ({"protocol": "plain", "threat": "malicious"}, "allowed: mpc"),
    ],
)
def test_what_a_store_cannot_do_is_refused_in_one_sentence(name, node, said):
    with pytest.raises(ConfigError, match=said):
        config_of(name, 3, {}, aggregation=node)


def test_a_mechanism_that_sums_is_told_that_mpc_is_a_store():
    with pytest.raises(ConfigError, match="forms sums; allowed: plain, secagg"):
        config_of("augflaim", 3, {}, aggregation={"protocol": "mpc", "noise": "distributed"})


def test_squared_distances_need_public_sizes():
    with pytest.raises(ConfigError, match="allowed with private sizes: l1"):
        config_of("distaim", 3, {"score": "squared_l2"}, privacy={"client_sizes": "private"})


@pytest.mark.parametrize("score", ["l1", "squared_l2"])
@pytest.mark.parametrize("noise", ["server", "distributed"])
def test_every_score_runs_with_every_noise(score, noise):
    parts = tuple(CODES[k::3] for k in range(3))
    config = config_of("distaim", 3, {"rounds": 3, "score": score}, aggregation={"noise": noise})
    outcome = finished(execute(config, Federation(TABLE, parts)))
    assert outcome.strategy.ledger.spent_rho == pytest.approx(RHO, rel=1e-9)
    (sigma,) = {r.sigma for r in releases(outcome, "measure")}
    assert sigma == pytest.approx(first_scales(RHO, rounds=3)[0])


def test_squared_distances_take_no_liars():
    with pytest.raises(ConfigError, match=r"allowed with aggregation\.threat: malicious: l1"):
        node = {"protocol": "mpc", "noise": "distributed", "threat": "malicious"}
        config_of("distaim", 3, {"score": "squared_l2"}, aggregation=node)
    contract = AimContract(config_of("aim", 1, {"score": "squared_l2"}), DOMAIN)
    assert "every client" in contract.filled("seeded").to_dict()["trust"]


@pytest.mark.parametrize("change", [lambda v: v + 1, lambda v: v * 1000, lambda v: np.append(v[:-1], v[-1] + 2)])
def test_a_plain_store_takes_no_counts_that_are_not_of_a_table_of_the_published_size(change):
    """Every marginal has as many rows as the client published; what has not is dropped, and costs nobody else."""
    parts = tuple(CODES[k::3] for k in range(3))

    def lie(reply: Any, earlier: int) -> Any:
        if earlier == 1:
            arrays, scalars = read_reply(reply)
            record = array_record([arrays[0].astype(np.int64), change(arrays[1].astype(np.int64))])
            reply.content = RecordDict({"arrays": record, "config": ConfigRecord(scalars)})
        return reply

    config = config_of("distaim", 3, {"rounds": 2})
    outcome = finished(execute(config, Federation(TABLE, parts), faults={1: lie}))
    without = finished(execute(config, Federation(TABLE, parts), faults={1: vanish(1)}))
    assert outcome.dropped == {1} and "not those of one table" in str(outcome.strategy.records)
    assert all(outcome.arrays[key].tobytes() == without.arrays[key].tobytes() for key in outcome.arrays)


def test_least_sigma_is_that_of_the_plan():
    contract = AimContract(config_of("aim", 1, {"rounds": 4}), DOMAIN)
    assert least_sigma(contract, RHO) == first_scales(RHO, rounds=4)[0]
    assert least_sigma(AimContract(config_of("aim", 1, {"rounds": None}), DOMAIN), RHO) is None


def test_participation_below_one_is_refused():
    with pytest.raises(ConfigError, match="sampling_rate"):
        config_of("aim", 1, {}, federation={"sampling_rate": 0.5})
