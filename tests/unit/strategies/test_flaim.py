"""The FLAIM family: scales, releases, measurements and rounds, on federations small enough to compute by hand."""

from __future__ import annotations

import itertools
from math import sqrt
from typing import Any

import numpy as np
import pytest

from fedsyn.config import RunConfig
from fedsyn.front.testing.faults import vanish
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.inference import model_size
from fedsyn.plugins.clients.flaim import _means
from fedsyn.plugins.strategies.flaim import AugFlaim
from fedsyn.privacy import PrivacyBudget
from fedsyn.protocol.joining import Participant
from fedsyn.randomness import Randomness
from fedsyn.registry import strategy_class
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.workload import Candidates
from fedsyn.wire.envelope import Reply
from fedsyn.wire.requests import Ask, Sum, Summed

TABLE = awkward_table("missing_values")
DOMAIN = TABLE.schema.domain
PARTS = (TABLE.encode()[:10], TABLE.encode()[10:35], TABLE.encode()[35:])
D = len(DOMAIN)
VARIANT = "experiments.variants.flaim:AugFlaimVariant"


def test_means_over_cliques_are_those_of_each_clique_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(D) * 10.0 ** rng.integers(-8, 9, D)
    cliques = tuple(itertools.chain(*(itertools.combinations(DOMAIN, n) for n in range(1, min(D, 5)))))[::-1]
    axes = [list(DOMAIN.axes(clique)) for clique in cliques]
    assert _means(values, DOMAIN, cliques).tolist() == [float(np.mean(values[own])) for own in axes]
    assert _means(values, DOMAIN, ()).shape == (0,)


def config(
    clients: int = 3,
    epsilon: float = 1.0,
    federation: dict[str, Any] | None = None,
    inference: dict[str, Any] | None = None,
    **options: Any,
) -> RunConfig:
    return config_of(
        VARIANT if "totals" in options else "augflaim",
        clients,
        {"rounds": 3, **options},
        privacy={"epsilon": epsilon, "delta": 1e-5},
        federation=federation or {},
        inference=inference or {},
    )


def run(config: RunConfig, parts: tuple[np.ndarray, ...] = PARTS, **named: Any) -> Outcome:
    return execute(config, Federation(TABLE, parts), **named)


def strategy_of(config: RunConfig, *rows: float) -> AugFlaim:
    """A server whose clients, of so many rows, have joined."""
    strategy = strategy_class(config.mechanism.name)(config, DOMAIN, TABLE.schema.sha256, randomness=Randomness(0))
    strategy.clients = {k: Participant(k, k + 1, n) for k, n in enumerate(rows)}
    return strategy


def asked_to_choose(strategy: AugFlaim) -> tuple[Any, Ask]:
    """The body of the mechanism, after its first sum, and what it asks then."""
    body = strategy.protocol()
    first = next(body)
    shapes = first.request.layout(strategy.contract, ()).shapes
    everyone = strategy.everyone()
    noisy = [np.full(shape, strategy.total / np.prod(shape)) for shape in shapes]
    return body, body.send(Summed(noisy, (first.sigma,) * D, everyone))


def sigma_of(outcome: Outcome) -> float:
    """The one sigma of a run with a fixed number of rounds."""
    (sigma,) = {r.sigma for r in outcome.strategy.ledger.releases if r.sigma is not None}
    return float(sigma)


def of_kind(outcome: Outcome, name: str) -> list[Any]:
    return [r for r in outcome.strategy.ledger.releases if r.name == name]


# Budget ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("s", [1, 4])
def test_scales_and_releases_are_those_of_lemma_4_1(s):
    """s = 1: as printed. s > 1: the s - 1 local measurements of a round are releases, so 2s - 1 + d in all."""
    rounds, measure_fraction = 3, 0.8
    outcome = finished(run(config(local_rounds=s, measure_fraction=measure_fraction)))
    rho = PrivacyBudget(1.0, 1e-5).rho
    sigma = sqrt(rounds * (2 * s - 1 + D) / (2 * measure_fraction * rho))
    epsilon = sqrt(8 * (1 - measure_fraction) * rho / (rounds * s))
    gaussians: dict[int, int] = {}
    choices: dict[int, int] = {}
    for release in outcome.strategy.ledger.releases:
        if release.mechanism == "gaussian":
            assert release.sigma == pytest.approx(sigma, rel=1e-12) and release.sensitivity == 1.0
            gaussians[release.round] = gaussians.get(release.round, 0) + release.count
        else:
            assert release.epsilon == pytest.approx(epsilon, rel=1e-12)
            choices[release.round] = choices.get(release.round, 0) + release.count
    assert choices == {1: s, 2: s, 3: s}
    # A union smaller than s makes a round cheaper, never more costly.
    assert set(gaussians) == {1, 2, 3} and max(gaussians.values()) == 2 * s - 1 + D
    assert [r.count for r in of_kind(outcome, "local measure")] == ([s - 1] * rounds if s > 1 else [])


def test_the_budget_is_spent_exactly():
    ledger = finished(run(config())).strategy.ledger
    assert ledger.epsilon() == pytest.approx(1.0, rel=1e-6) and ledger.epsilon() <= 1.0 + 1e-9
    assert ledger.spent == pytest.approx(ledger.accountant.capacity, rel=1e-9)


def test_a_client_of_every_round_spends_what_the_server_accounts_for():
    outcome = finished(run(config(local_rounds=2)))
    spent = outcome.strategy.ledger.spent_rho
    for ledger in outcome.ledgers.values():
        assert ledger.spent_rho <= spent * (1 + 1e-9)
    assert max(ledger.spent_rho for ledger in outcome.ledgers.values()) == pytest.approx(spent, rel=1e-9)


def test_the_sensitivity_of_a_choice_is_twice_the_largest_eligible_weight():
    outcome = finished(run(config()))
    candidates = Candidates.of(outcome.strategy.workload, DOMAIN)
    largest = max(w for q, w in zip(candidates.cliques, candidates.weights, strict=True) if len(q) > 1)
    assert [r.sensitivity for r in of_kind(outcome, "select")] == [2 * largest] * 3
    for ledger in outcome.ledgers.values():
        assert {r.sensitivity for r in ledger.releases if r.name == "select"} == {2 * largest}


def test_a_choice_that_was_asked_for_is_charged_even_if_no_reply_can_be_used():
    """Clients answer 'join' and the first one-way sum, then they are gone: they may have released their choice."""
    outcome = run(config(rounds=1), faults=dict.fromkeys(range(3), vanish(2)))
    assert [r.count for r in of_kind(outcome, "select")] == [1]


# What is asked -------------------------------------------------------------------------------------------------------


def test_the_first_round_sums_the_one_way_marginals_before_it_selects():
    outcome = finished(run(config(rounds=2)))
    order = [(e.envelope["round"], e.envelope["request"]) for e in outcome.tape.exchanges if e.partition == 0]
    assert order[1:] == [(1, "one-way"), (1, "select"), (1, "measure"), (2, "select"), (2, "measure")]
    later = [e for e in outcome.tape.exchanges if e.envelope["request"] == "measure" and e.envelope["round"] == 2]
    assert all(e.envelope["params"]["one_way"] for e in later)


def test_one_way_marginals_are_not_eligible():
    outcome = finished(run(config()))
    candidates = Candidates.of(outcome.strategy.workload, DOMAIN)
    asked = [e for e in outcome.tape.exchanges if e.envelope["request"] == "select"]
    assert asked and any(len(q) == 1 for q in candidates.cliques)
    for exchange in asked:
        assert all(len(candidates.cliques[i]) > 1 for i in exchange.envelope["params"]["eligible"])


def test_a_client_contributes_only_to_what_it_chose():
    outcome = finished(run(config(rounds=1)))
    chosen = {e.partition: e.reply["params"]["chosen"] for e in outcome.tape.exchanges if "chosen" in e.reply["params"]}
    measured = {e.partition: e for e in outcome.tape.exchanges if e.envelope["request"] == "measure"}
    union = sorted({i for own in chosen.values() for i in own})
    assert len(union) > 1, "the test needs clients that choose differently"
    for partition, exchange in measured.items():
        assert exchange.envelope["params"]["cliques"] == union
        gaps, values = exchange.reply_arrays
        cells = np.cumsum(gaps.astype(np.int64))
        candidates = Candidates.of(outcome.strategy.workload, DOMAIN)
        bounds = np.cumsum([0, *(DOMAIN.size(candidates.cliques[i]) for i in union)])
        touched = {union[j] for j in np.searchsorted(bounds, cells, side="right") - 1}
        assert touched == set(chosen[partition])
        assert values.sum() == len(PARTS[partition]) * len(chosen[partition])


def test_each_local_round_chooses_another_clique():
    outcome = finished(run(config(rounds=1, local_rounds=4)))
    chosen = [e.reply["params"]["chosen"] for e in outcome.tape.exchanges if "chosen" in e.reply["params"]]
    assert len(chosen) == 3 and all(len(set(own)) == 4 for own in chosen)


# What is measured ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("totals", ["sizes", "marginal"])
def test_measurements_are_the_cohorts_sums_scaled_to_the_federation(totals, measured):
    """Noise is negligible at epsilon = 1000 on tables 1,000 times as large: every measurement is a known sum."""
    parts = tuple(np.repeat(part, 1000, axis=0) for part in PARTS)
    # Partition 2 answers 'join' and no more: a sum over clients 0 and 1 stands for 3 clients.
    outcome = finished(run(config(epsilon=1000, totals=totals), parts, faults={2: vanish(1)}))
    measurements = measured(outcome.strategy)
    federation = sum(len(part) for part in parts)
    sigma = sigma_of(outcome)
    one_way = [m for m in measurements if len(m.clique) == 1]
    assert len(one_way) == 3 * D
    behind = len(parts[0]) + len(parts[1])
    for measurement in one_way:
        exact = count(np.concatenate(parts[:2]), DOMAIN, [measurement.clique])[0]
        np.testing.assert_allclose(
            measurement.values, exact * federation / behind, atol=8 * sigma * federation / behind
        )
        assert measurement.sigma == pytest.approx(
            sigma * federation / behind, rel=1e-3 if totals == "marginal" else 1e-12
        )
    chosen = [m for m in measurements if len(m.clique) > 1]
    sets = [(0,), (1,), (0, 1)]
    for measurement in chosen:
        fits = []
        for who in sets:
            rows = np.concatenate([parts[k] for k in who])
            expected = count(rows, DOMAIN, [measurement.clique])[0] * federation / len(rows)
            fits.append(np.allclose(measurement.values, expected, atol=8 * sigma * federation / len(rows)))
            if fits[-1]:
                assert measurement.sigma == pytest.approx(sigma * federation / len(rows), rel=1e-3)
        assert sum(fits) == 1, f"{measurement.clique} is the sum of no set of its choosers"


def test_without_noise_the_model_reproduces_the_federations_marginals(measured):
    parts = tuple(np.repeat(part, 1000, axis=0) for part in PARTS)
    outcome = finished(run(config(epsilon=1000, rounds=4, iterations=200, final_iterations=400), parts))
    pooled, model = np.concatenate(parts), outcome.strategy.model
    assert model is not None and model.total == len(pooled)
    for name in DOMAIN:
        exact = count(pooled, DOMAIN, [(name,)])[0]
        assert np.abs(model.project((name,)) - exact).sum() / len(pooled) < 0.01
    # Cliques chosen by every client are sums over the whole federation.
    sigma = sigma_of(outcome)
    everyones = [m for m in measured(outcome.strategy) if len(m.clique) > 1 and m.sigma < sigma * (1 + 1e-9)]
    for measurement in everyones:
        exact = count(pooled, DOMAIN, [measurement.clique])[0]
        assert np.abs(model.project(measurement.clique) - exact).sum() / len(pooled) < 0.05


def test_the_marginal_option_skips_a_sum_without_a_positive_total(measured):
    """What noise alone can do: the sum of one attribute's marginal is negative. The others are fitted."""
    strategy = strategy_of(config(totals="marginal"), 60.0)
    body = strategy.protocol()
    first = next(body)
    shapes = first.request.layout(strategy.contract, ()).shapes
    noisy = [np.full(shape, -1.0 if name == "age" else 1.0) for name, shape in zip(DOMAIN, shapes, strict=True)]
    body.send(Summed(noisy, (first.sigma,) * D, (0,)))
    assert [m.clique for m in measured(strategy)] == [(name,) for name in DOMAIN if name != "age"]


# Sizes of the model -----------------------------------------------------------------------------------------------


def test_a_union_that_does_not_fit_is_not_measured():
    candidates = strategy_of(config()).candidates.cliques
    pairs = [i for i, q in enumerate(candidates) if len(q) == 2]
    one, other = pairs[0], pairs[1]
    # Either clique fits alone, but not both.
    both = model_size(DOMAIN, [candidates[one], candidates[other]])
    strategy = strategy_of(config(inference={"max_cells": both - 1}), 5.0, 50.0)
    body, select = asked_to_choose(strategy)
    assert {one, other} <= set(select.request.eligible)
    measure = body.send({0: Reply(0, [], {"chosen": [one]}), 1: Reply(1, [], {"chosen": [other]})})
    # Client 1 has more records behind its choice.
    assert measure.request.cliques == [other] and measure.cohort == (0, 1)
    assert strategy.capacity.cliques == (candidates[other],)


def test_a_model_that_takes_no_pair_is_made_of_one_way_marginals(measured):
    outcome = finished(run(config(rounds=2, inference={"max_cells": 1})))
    assert not of_kind(outcome, "select")
    assert {len(m.clique) for m in measured(outcome.strategy)} == {1}


# Rounds and replies ----------------------------------------------------------------------------------------------


def test_a_round_that_nobody_answers_is_skipped():
    """Clients answer the first round (one-way, select, measure), then nothing: its model stands."""
    going_on = config(rounds=3, federation={"on_loss": "go_on"})
    outcome = finished(run(going_on, faults=dict.fromkeys(range(3), vanish(4))))
    strategy = outcome.strategy
    assert isinstance(strategy, AugFlaim)
    assert [record.round for record in strategy.records] == [0, 1, 2, 3]
    assert set(strategy.records[2].dropped) == {0, 1, 2}
    assert not [r for r in strategy.ledger.releases if r.mechanism == "gaussian" and r.round > 1]
    alone = finished(run(going_on, faults=dict.fromkeys(range(3), vanish(4))))
    assert all(np.array_equal(a, b) for a, b in zip(outcome.arrays.values(), alone.arrays.values(), strict=True))


def test_too_small_a_first_cohort_starts_again_in_the_next_round():
    """The only sum of round 1 is not opened: round 2 begins with the one-way marginals, and a model comes about."""

    def late(reply: Any, earlier: int) -> Any:
        return None if earlier == 1 else reply  # each client's reply to round 1's one-way sum

    outcome = finished(run(config(rounds=2, federation={"on_loss": "go_on"}), faults=dict.fromkeys(range(3), late)))
    requests = [(e.envelope["round"], e.envelope["request"]) for e in outcome.tape.exchanges if e.partition == 0]
    assert requests[1:] == [(1, "one-way"), (2, "one-way"), (2, "select"), (2, "measure")]
    assert [r.round for r in of_kind(outcome, "one-way")] == [2]
    assert outcome.strategy.records[1].notes


@pytest.mark.parametrize("chosen", [[], [0], "everything", [10**6], [5, 5], None, [True]])
def test_a_choice_that_was_not_offered_is_refused(chosen):
    strategy = strategy_of(config(), 20.0, 40.0)
    body, select = asked_to_choose(strategy)
    assert select.request.eligible == [i for i, q in enumerate(strategy.candidates.cliques) if len(q) > 1]
    assert 0 not in select.request.eligible
    good = select.request.eligible[1]
    measure = body.send({0: Reply(0, [], {"chosen": chosen}), 1: Reply(1, [], {"chosen": [good]})})
    assert set(strategy.record.dropped) == {0}
    assert measure.request.cliques == [good] and measure.cohort == (1,)


def test_the_cohort_is_a_sample_and_the_same_for_every_engine():
    parts = tuple(TABLE.encode()[k::12] for k in range(12))
    config_ = config(12, federation={"sampling_rate": 0.3}, rounds=4)
    outcome = finished(run(config_, parts))
    cohorts = [record.cohort for record in outcome.strategy.records[1:]]
    assert len({tuple(cohort) for cohort in cohorts}) > 1 and all(0 < len(cohort) < 12 for cohort in cohorts)
    again = finished(run(config_, parts, reverse=True))
    assert cohorts == [record.cohort for record in again.strategy.records[1:]]


def test_the_body_asks_in_the_order_of_algorithm_1():
    """The generator alone, without any Grid: what it yields is what the paper's lines say."""
    strategy = strategy_of(config(rounds=1), 60.0)
    body = strategy.protocol()
    first = next(body)
    layout = first.request.layout(strategy.contract, ())
    assert isinstance(first, Sum) and first.request.name == "one-way" and layout.count == D
    noisy = [np.full(shape, 60.0 / np.prod(shape)) for shape in layout.shapes]
    second = body.send(Summed(noisy, (first.sigma,) * D, (0,)))
    assert isinstance(second, Ask) and second.request.name == "select" and second.request.sigma == first.sigma
    choice = second.request.eligible[2]
    third = body.send({0: Reply(0, [], {"chosen": [choice]})})
    layout = third.request.layout(strategy.contract, ())
    assert isinstance(third, Sum) and layout.count == 1 and third.request.cliques == [choice]
    assert layout.shapes == (DOMAIN.shape_of(strategy.candidates.cliques[choice]),)
    with pytest.raises(StopIteration):
        body.send(Summed([np.full(layout.shapes[0], 1.0)], (third.sigma,), (0,)))
    assert strategy.model is not None
