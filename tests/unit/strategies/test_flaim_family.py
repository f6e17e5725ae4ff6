"""The variants of FLAIM beside AugFLAIM (Private): the lines in which they differ, and what they cost."""

from __future__ import annotations

import itertools
from math import sqrt
from typing import Any

import numpy as np
import pytest

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.inference import Measurement, estimate
from fedsyn.loading import parse_config
from fedsyn.plugins.clients.flaim import AugFlaimClient, AugFlaimOracleClient, FlaimClient, lemma_4_1
from fedsyn.plugins.strategies.flaim import AugFlaimOracle, NaiveFlaim
from fedsyn.privacy import EXPONENTIAL, GAUSSIAN, Ledger, PrivacyBudget, Release, epsilon_for_rho, sigma_for_rho
from fedsyn.privacy.conversion import gaussian_epsilon
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class, strategy_class
from fedsyn.selection.views import ModelView, pooled_view
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.workload import Candidates
from fedsyn.wire.holder import Holder

TABLE = awkward_table("missing_values")
DOMAIN = TABLE.schema.domain
PARTS = (TABLE.encode()[:10], TABLE.encode()[10:35], TABLE.encode()[35:])
POOLED = np.concatenate(PARTS)
D = len(DOMAIN)
FAMILY = ["naive_flaim", "augflaim_oracle", "augflaim", "flaim_random", "fed_naive_bayes"]


def config(name: str, epsilon: float = 1.0, **options: Any) -> RunConfig:
    privacy = {"epsilon": epsilon, "delta": 1e-5}
    return config_of(name, 3, {"rounds": 3, **options}, privacy=privacy)


def run(name: str, **options: Any) -> Outcome:
    return finished(execute(config(name, **options), Federation(TABLE, PARTS)))


def kinds(outcome: Outcome) -> list[tuple[int, str, int]]:
    return [(r.round, r.mechanism, r.count) for r in outcome.strategy.ledger.releases]


# Lemma 4.1 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["naive_flaim", "augflaim_oracle"])
def test_naive_and_oracle_measure_one_way_marginals_once(name: str) -> None:
    outcome = run(name, measure_fraction=0.8)
    rho = PrivacyBudget(1.0, 1e-5).rho
    sigma = sqrt((3 + D) / (2 * 0.8 * rho))
    assert all(r.sigma == pytest.approx(sigma, rel=1e-12) for r in outcome.strategy.ledger.releases if r.sigma)
    gaussians = [(t, n) for t, kind, n in kinds(outcome) if kind == "gaussian"]
    assert gaussians == [(1, D), (1, 1), (2, 1), (3, 1)]
    assert outcome.strategy.ledger.remaining_rho == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("name", "factor"), [("naive_flaim", 1.0), ("augflaim_oracle", 2.0), ("augflaim", 2.0)])
def test_the_heterogeneity_term_doubles_the_sensitivity(name: str, factor: float) -> None:
    outcome = run(name)
    weights = Candidates.of(outcome.strategy.workload, DOMAIN).weights
    sensitivities = {r.sensitivity for r in outcome.strategy.ledger.releases if r.mechanism == "exponential"}
    assert max(sensitivities) <= factor * weights.max()
    assert {s / factor for s in sensitivities} <= set(weights.tolist())


def test_the_sensitivity_of_a_score_is_that_of_the_offered_cliques() -> None:
    for name, moves in (("naive_flaim", 1.0), ("augflaim_oracle", 2.0), ("augflaim", 2.0)):
        contract = contract_class(name)(config(name), DOMAIN)
        weights = contract.candidates.weights
        assert len(set(weights.tolist())) > 1
        for i in range(len(weights)):
            assert contract.score_sensitivity([i]) == moves * weights[i]
        assert contract.score_sensitivity(range(len(weights))) == moves * weights.max()


ONE_WAY = {"naive": lambda rounds, d: d, "oracle": lambda rounds, d: d, "private": lambda rounds, d: rounds * d}


def test_scales_pay_for_local_measurements() -> None:
    rho, rounds, local, attributes, measure_fraction = 0.37, 5, 3, 7, 0.8
    private = lemma_4_1(rho, rounds, local, rounds * attributes, measure_fraction)
    naive = lemma_4_1(rho, rounds, local, attributes, measure_fraction)
    assert sigma_for_rho(private[0]) == pytest.approx(
        sqrt(5 * (2 * 3 - 1 + 7) / (2 * measure_fraction * rho)), rel=1e-14
    )
    assert sigma_for_rho(naive[0]) == pytest.approx(
        sqrt((5 * (2 * 3 - 1) + 7) / (2 * measure_fraction * rho)), rel=1e-14
    )
    assert 5 * (2 * 3 - 1 + 7) * private[0] + 5 * 3 * private[1] == pytest.approx(rho, rel=1e-14)
    printed = measure_fraction * rho / (rounds * local + rounds * attributes)
    really = 5 * (2 * 3 - 1 + 7) * printed + (1 - measure_fraction) * rho
    assert really > rho * 1.1  # what the lemma leaves unpaid


@pytest.mark.parametrize("rounds,attributes,measure_fraction", [(10, 14, 0.9), (5, 7, 0.5), (1, 1, 0.1)])
@pytest.mark.parametrize("variant", ONE_WAY)
def test_scales_of_one_local_round_are_those_that_lemma_4_1_prints(
    variant: str, rounds: int, attributes: int, measure_fraction: float
) -> None:
    rho, one_way = 0.37, ONE_WAY[variant](rounds, attributes)
    gaussian, choice = lemma_4_1(rho, rounds, 1, one_way, measure_fraction)
    assert sigma_for_rho(gaussian) == pytest.approx(sqrt((rounds + one_way) / (2 * measure_fraction * rho)), rel=1e-14)
    assert epsilon_for_rho(choice) == pytest.approx(sqrt(8 * (1 - measure_fraction) * rho / rounds), rel=1e-14)


@pytest.mark.parametrize("local_rounds", [1, 2, 4])
def test_a_ledger_accepts_the_right_scales_exactly(local_rounds: int) -> None:
    """Every release of a client asked in all rounds, entered one by one, fills the budget and no more."""
    budget, rounds, attributes = PrivacyBudget(1.0, 1e-9), 4, 6
    gaussian, choice = lemma_4_1(budget.rho, rounds, local_rounds, rounds * attributes)
    sigma, epsilon = sigma_for_rho(gaussian), epsilon_for_rho(choice)
    ledger = Ledger(budget)
    for t in range(1, rounds + 1):
        ledger.charge(Release("one-way", t, GAUSSIAN, sigma=sigma, count=attributes))
        for step in range(local_rounds):
            ledger.charge(Release("select", t, EXPONENTIAL, 2.0, epsilon=epsilon))
            if step < local_rounds - 1:
                ledger.charge(Release("local measurement", t, GAUSSIAN, sigma=sigma))
        ledger.charge(Release("measure", t, GAUSSIAN, sigma=sigma, count=local_rounds))
    assert ledger.spent == pytest.approx(budget.rho, rel=1e-12)
    assert ledger.epsilon() <= budget.epsilon
    assert not ledger.can_afford(Release("one more", 5, GAUSSIAN, sigma=1e3 * sigma))


@pytest.mark.parametrize("name", ["flaim_random", "fed_naive_bayes"])
def test_the_baselines_are_one_gaussian_mechanism(name: str) -> None:
    """Their mu^2 adds up to the budget's exactly, and the exact epsilon is the promised one."""
    ledger = run(name).strategy.ledger
    assert {r.mechanism for r in ledger.releases} == {"gaussian"}
    count_ = 3 + D if name == "flaim_random" else 3 * D
    assert sum(r.count for r in ledger.releases) == count_
    mu = sqrt(sum(r.count / r.sigma**2 for r in ledger.releases))
    assert mu == pytest.approx(PrivacyBudget(1.0, 1e-5).mu, rel=1e-8)
    assert gaussian_epsilon(mu, 1e-5) <= 1.0
    with pytest.raises(ConfigError, match=r"rounds.*whole number"):  # annealed scales would need a filter
        config(name, rounds=None)


# The coloured lines ------------------------------------------------------------------------------------------------


def client(kind: type[FlaimClient], name: str, rows: np.ndarray) -> FlaimClient:
    holder = Holder(0, rows, DOMAIN, TABLE.schema.sha256, Randomness(0), pooled=lambda: pooled_view(POOLED, DOMAIN))
    return kind(config(name), holder)


def test_line_7_against_its_definition() -> None:
    rows = PARTS[1]
    cliques = list(client(FlaimClient, "naive_flaim", rows).candidates.cliques)
    one_way = [Measurement((a,), count(POOLED, DOMAIN, [(a,)])[0] + 1.0, 1.0) for a in DOMAIN]
    view = ModelView(estimate(DOMAIN, one_way, total=float(len(POOLED))))
    assert not client(FlaimClient, "naive_flaim", rows).proxy(cliques, view).any()
    oracle = client(AugFlaimOracleClient, "augflaim_oracle", rows).proxy(cliques, view)
    private = client(AugFlaimClient, "augflaim", rows).proxy(cliques, view)
    for q, exact, proxy in zip(cliques, oracle, private, strict=True):
        own = count(rows, DOMAIN, [q])[0]
        assert exact == pytest.approx(np.abs(own - len(rows) * count(POOLED, DOMAIN, [q])[0] / len(POOLED)).sum())
        parts = [
            np.abs(count(rows, DOMAIN, [(j,)])[0] - len(rows) * view.model.project((j,)) / view.model.total).sum()
            for j in q
        ]
        assert proxy == pytest.approx(np.mean(parts))


def test_line_16_weighs_sums_alike_or_by_their_records() -> None:
    federation, records, cohort = 100.0, 10.0, 40.0
    naive, oracle = (
        kind(config(name), DOMAIN, TABLE.schema.sha256, randomness=Randomness(0))
        for kind, name in ((NaiveFlaim, "naive_flaim"), (AugFlaimOracle, "augflaim_oracle"))
    )
    assert naive.noise_factor(federation, records, cohort) == federation / cohort
    assert oracle.noise_factor(federation, records, cohort) == federation / records


def test_line_5_filters_one_way_marginals_only_where_they_are_measured_anyway() -> None:
    for name, options, expected in (
        ("naive_flaim", {}, True),
        ("experiments.variants.flaim:NaiveFlaimVariant", {"filter_and_combine": True}, False),
        ("augflaim", {}, False),
        ("experiments.variants.flaim:AugFlaimVariant", {"filter_and_combine": False}, True),
    ):
        strategy = strategy_class(name)(config(name, **options), DOMAIN, TABLE.schema.sha256, randomness=Randomness(0))
        cliques = strategy.candidates.cliques
        eligible = {cliques[i] for i in strategy.eligible()}
        assert eligible >= {q for q in cliques if len(q) > 1} and len(cliques) > D
        assert ((DOMAIN.attributes[0],) in eligible) is expected, (name, options)


def test_random_choices_do_not_depend_on_the_rows() -> None:
    """The same clients with other rows (of the same number) choose the same cliques."""
    other = tuple(np.zeros_like(part) for part in PARTS)
    chosen = [
        [
            record.selected
            for record in finished(execute(config("flaim_random"), Federation(TABLE, parts))).strategy.records
        ]
        for parts in (PARTS, other)
    ]
    assert chosen[0] == chosen[1] and any(chosen[0])


# The oracle is a baseline, not a mechanism ---------------------------------------------------------------------------


def test_the_oracle_says_that_it_is_not_private_and_refuses_a_deployment() -> None:
    report = run("augflaim_oracle").strategy.ledger.report()
    assert report["private"] is False
    assert any("pooled table" in reason for reason in report["not_private_because"])
    document = config("augflaim_oracle").to_dict()
    document["runtime"] = {"engine": "deployment", "superlink": "somewhere"}
    document["evaluation"] = []
    document["data"]["split_seed"] = None
    with pytest.raises(ConfigError, match="no party of a deployment has"):
        parse_config(document)


def test_a_client_without_the_pooled_table_cannot_play_the_oracle() -> None:
    oracle = client(AugFlaimOracleClient, "augflaim_oracle", PARTS[0])
    oracle.holder.pooled = None
    with pytest.raises(Exception, match="only a simulation has"):
        oracle.proxy([DOMAIN.attributes[:2]], pooled_view(POOLED, DOMAIN))


# Annealing (appendix B.4) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["naive_flaim", "augflaim_oracle", "augflaim"])
def test_annealing_starts_from_8d_rounds_and_spends_the_budget(name: str) -> None:
    outcome = run(name, rounds=None)
    ledger, records = outcome.strategy.ledger, outcome.strategy.records
    d = 8 * D if name == "augflaim" else 1
    rounds = 8 * D
    first = sqrt((rounds * (1 + D) if d > 1 else rounds + D) / (2 * 0.9 * PrivacyBudget(1.0, 1e-5).rho))
    assert records[1].sigma == pytest.approx(first, rel=1e-12)
    scales = [(r.sigma, r.epsilon) for r in records[1:]]
    for (s0, e0), (s1, e1) in itertools.pairwise(scales[:-1]):
        assert (s1, e1) in [(s0, e0), (s0 / 2, e0 * 2)]
    assert 1 < len(scales) <= 16 * D
    assert ledger.epsilon() <= 1.0
    # The last round spends what is left, unless one of its choices is not measured.
    assert ledger.remaining_rho <= 0.5 * ledger.budget.rho
