"""`federation.max_participations`: nobody takes part in more than m rounds, and a row pays for those."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsyn.config import RunConfig
from fedsyn.errors import BudgetExceeded, ConfigError, ProtocolError
from fedsyn.front.testing.faults import vanish
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, federation_of, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.plugins.clients.flaim import FedNaiveBayesClient
from fedsyn.privacy import Ledger, PrivacyBudget, accountant_for, exponential_rho, gaussian_rho, sigma_for_rho
from fedsyn.privacy.release import GAUSSIAN, Release
from fedsyn.protocol.client import OneWay
from fedsyn.protocol.cohorts import ROUNDS, Cohorts, cohort_size, take_part
from fedsyn.randomness import Randomness
from fedsyn.settings import FederationNode
from fedsyn.wire.envelope import ANSWER, Envelope
from fedsyn.wire.holder import Holder
from support.second_account import rho_of_entries, within_budget

TABLE = awkward_table("missing_values")
FEDERATION = federation_of(TABLE, False)
K = len(FEDERATION.parts)
FAMILIES = ("augflaim", "naive_flaim", "flaim_random", "fed_naive_bayes", "distributed_aim", "sketch_aim")


def config(name: str, rounds: int, m: int | None, p: float, **nodes: Any) -> Any:
    federation = {"sampling_rate": p, "max_participations": m, **nodes.pop("federation", {})}
    return config_of(name, K, {"rounds": rounds}, federation=federation, **nodes)


def run(name: str, rounds: int, m: int | None, p: float, faults: Any = None, **nodes: Any) -> Outcome:
    return execute(config(name, rounds, m, p, **nodes), FEDERATION, faults=faults)


# Cohorts -------------------------------------------------------------------------------------------------------------


@given(
    clients=st.integers(1, 40),
    joined=st.integers(1, 40),
    m=st.integers(1, 4),
    rounds=st.integers(1, 30),
    p=st.floats(0.02, 1.0),
    minimum=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_nobody_is_asked_more_often_whatever_the_seed_and_whoever_joined(
    clients: int, joined: int, m: int, rounds: int, p: float, minimum: int, seed: int
) -> None:
    node = FederationNode(
        clients=clients, sampling_rate=p, max_participations=m, minimum_cohort=min(minimum, clients), partition="iid"
    )
    everyone, drawn, source = range(min(joined, clients)), Cohorts(node), np.random.default_rng(seed)
    seen = np.zeros(clients, int)
    sizes = []
    for _ in range(rounds):
        cohort = drawn.draw(everyone, p, source)
        assert list(cohort) == sorted(set(cohort)) and set(cohort) <= set(everyone)
        assert not cohort or len(cohort) >= node.minimum_cohort
        seen[list(cohort)] += 1
        sizes.append(len(cohort))
        assert seen.max() <= m and np.ptp(seen[list(everyone)]) <= 1
    size = cohort_size(p, node.minimum_cohort, len(everyone))
    if rounds * size <= m * len(everyone) and size <= len(everyone):  # nobody is missing where the numbers work out
        assert sizes == [size] * rounds


def test_where_every_number_fits_everybody_takes_part_equally_often() -> None:
    node = FederationNode(clients=100, sampling_rate=0.1, max_participations=2)
    drawn, source = Cohorts(node), np.random.default_rng(0)
    cohorts = [drawn.draw(range(100), 0.1, source) for _ in range(20)]
    assert np.array_equal(np.bincount(np.concatenate(cohorts)), np.full(100, 2))
    assert len(set(cohorts)) == 20  # and not the same ten groups twice


def test_without_a_bound_cohorts_are_what_they_were() -> None:
    drawn = Cohorts(FederationNode(clients=50, sampling_rate=0.3))
    one = drawn.draw(range(50), 0.3, np.random.default_rng(3))
    source = np.random.default_rng(3)
    assert one == tuple(k for k in range(50) if source.random() < 0.3)


# What is refused -----------------------------------------------------------------------------------------------------


def test_a_configuration_that_runs_out_of_clients_is_refused_with_what_would_work() -> None:
    words = "10 rounds of 50 clients each need 500 participations, and 100 clients with at most 3 each have 300"
    with pytest.raises(ConfigError, match=words) as refused:
        config_of(
            "augflaim", 100, {"rounds": 10}, federation={"clients": 100, "sampling_rate": 0.5, "max_participations": 3}
        )
    for offer in ("sampling_rate to 0.3 or less", "rounds to 6 or less", "max_participations to 5 or more"):
        assert offer in str(refused.value)
    for works in ({"sampling_rate": 0.3}, {"max_participations": 5}):
        federation = {"clients": 100, "sampling_rate": 0.5, "max_participations": 3, **works}
        config_of("augflaim", 100, {"rounds": 10}, federation=federation)


@pytest.mark.parametrize("clients", [1, 3, 50, 20_000])
@pytest.mark.parametrize("rounds", [2, 7, 3_000])
@pytest.mark.parametrize("p", [1e-4, 0.3, 1.0])
@pytest.mark.parametrize("minimum", [1, 3])
def test_whatever_is_offered_works(clients: int, rounds: int, p: float, minimum: int) -> None:
    """No rate of 0, and none at all where even one client a round is too many."""
    node: dict[str, Any] = {"clients": clients, "sampling_rate": p, "minimum_cohort": min(minimum, clients)}
    node["max_participations"] = 1

    def made(rounds: int, **changes: Any) -> RunConfig:
        return config_of("augflaim", clients, {"rounds": rounds}, federation=node | changes)

    asked = cohort_size(p, node["minimum_cohort"], clients)
    if rounds * asked <= clients:
        made(rounds)
        return
    with pytest.raises(ConfigError, match="participations") as refused:
        made(rounds)
    offers = dict(re.findall(r"(\w+) to ([0-9.e-]+) or", str(refused.value)))
    assert ("sampling_rate" in offers) == (rounds <= clients)
    if "sampling_rate" in offers:
        made(rounds, sampling_rate=float(offers["sampling_rate"]), minimum_cohort=1)
    made(int(offers["rounds"]))
    made(rounds, max_participations=int(offers["max_participations"]))


@pytest.mark.parametrize(
    ("name", "options"),
    [("privsyn", {}), ("fed_privsyn", {}), ("ada_fed_privsyn", {}), ("aim", {}), ("augflaim", {"rounds": None})],
)
def test_mechanisms_without_rounds_of_cohorts_refuse(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"max_participations: '{name}' has .*; leave it out"):
        config_of(name, 1 if name in ("aim", "privsyn") else K, options, federation={"max_participations": 1})


def test_a_bound_that_binds_nobody_changes_only_the_words() -> None:
    free, bound = run("augflaim", 2, None, 1.0), run("augflaim", 2, 2, 1.0)
    assert [r.to_dict() for r in finished(free).strategy.ledger.releases] == [
        r.to_dict() for r in finished(bound).strategy.ledger.releases
    ]


# Budget --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("sizes", ["public", "private"])
def test_a_row_pays_for_its_rounds_and_totals_are_exact(name: str, sizes: str) -> None:
    rounds, p = 4, 1 / 2
    outcome = finished(run(name, rounds, 2, p, privacy={"client_sizes": sizes}))
    server, report = outcome.strategy.ledger, outcome.strategy.ledger.report()
    spent = {k: ledger.spent_rho for k, ledger in outcome.ledgers.items()}
    assert server.spent_rho == pytest.approx(max(spent.values()), rel=1e-9)
    assert within_budget(report, 1.0, 1e-5)
    assert report["rho"] == pytest.approx(rho_of_entries(report["releases"]), rel=1e-12)
    # All of it is spent: the scales divide the budget over two rounds and not over four.
    assert server.spent_rho == pytest.approx(outcome.strategy.contract.budget.table, rel=1e-6)
    assert server.epsilon() <= 1.0 and report["assumptions"]["max_participations"] == 2
    # By hand, of one client: the entries that name it.
    for k in range(K):
        mine = [r.rho for r in server.releases if not r.clients or k in r.clients]
        assert spent.get(k, 0.0) <= sum(mine) * (1 + 1e-9)


def test_the_same_budget_over_fewer_rounds_has_less_noise() -> None:
    sigma = {m: config_and_sigma(m) for m in (None, 1, 2)}
    assert sigma[None] == pytest.approx(2 * sigma[1]) and sigma[2] == pytest.approx(np.sqrt(2) * sigma[1])


def config_and_sigma(m: int | None) -> float:
    made = config("fed_naive_bayes", 4, m, 0.25)
    contract = FedNaiveBayesClient.Contract(made, FEDERATION.domain)
    return float(contract.plan(1.0)[0].sigma)  # type: ignore[attr-defined]


def test_a_ledger_refuses_whoever_would_pay_too_much_and_nobody_else() -> None:
    budget = PrivacyBudget(1.0, 1e-5)
    ledger = Ledger(budget, accountant_for("zcdp", budget), noise_by="server")
    sigma = sigma_for_rho(budget.rho / 2)
    entry = Release("measure", 1, GAUSSIAN, sigma=sigma, noise_by="server")
    for cohort in ((1, 2), (2, 3), (4,)):
        with ledger.among(cohort):
            ledger.charge(entry)
    assert ledger.spent == pytest.approx(budget.rho)  # client 2 took part twice
    with ledger.among((1, 2)), pytest.raises(BudgetExceeded):
        ledger.charge(entry)
    with ledger.among((1, 3, 4)):
        assert ledger.can_afford(replace_clients(entry, (1, 3, 4)))
        ledger.charge(entry)
    with pytest.raises(BudgetExceeded):
        ledger.charge(entry)  # of everybody
    again = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert again.releases == ledger.releases and again.spent == ledger.spent
    assert ledger.epsilon_replace_one >= ledger.epsilon()


def replace_clients(entry: Release, clients: tuple[int, ...]) -> Release:
    return Release.from_dict({**entry.to_dict(), "clients": list(clients)})


@given(
    entries=st.lists(
        st.tuples(st.sets(st.integers(0, 4), max_size=4), st.floats(0.5, 50.0), st.booleans()), min_size=1, max_size=8
    )
)
def test_totals_are_the_largest_sum_of_one_client(entries: list[tuple[set[int], float, bool]]) -> None:
    budget = PrivacyBudget(500.0, 1e-5)
    ledger = Ledger(budget, accountant_for("zcdp", budget), noise_by="server")
    for clients, value, gaussian in entries:
        with ledger.among(sorted(clients)):
            release = (
                Release("a", 1, GAUSSIAN, sigma=value, noise_by="server")
                if gaussian
                else Release("b", 1, "exponential", epsilon=1 / value, noise_by="server")
            )
            ledger.charge(release)

    def of(k: int) -> float:
        own = [(v, g) for clients, v, g in entries if not clients or k in clients]
        return float(sum(gaussian_rho(v) if g else exponential_rho(1 / v) for v, g in own))

    assert ledger.spent == pytest.approx(max(of(k) for k in range(-1, 5)), rel=1e-12)
    assert rho_of_entries(ledger.report()["releases"]) == pytest.approx(ledger.spent_rho, rel=1e-12)


@pytest.mark.parametrize("name", ["augflaim", "distributed_aim"])
def test_who_drops_out_has_taken_part(name: str) -> None:
    outcome = finished(run(name, 2, 1, 1 / 2, faults={0: vanish(1), 2: vanish(1)}))
    cohorts = [set(record.cohort) for record in outcome.strategy.records[1:]]
    assert cohorts[0] and not cohorts[0] & cohorts[1]
    assert outcome.strategy.ledger.spent_rho <= outcome.strategy.contract.budget.table * (1 + 1e-9)


def test_a_store_asks_each_client_once_in_whatever_round() -> None:
    outcome = finished(run("distaim", 4, 1, 1 / K))
    cohorts = [tuple(record.cohort) for record in outcome.strategy.records[1:]]
    assert len(cohorts) == 4 and len({k for cohort in cohorts for k in cohort}) == min(4, K)
    assert any("nobody is left" in note for record in outcome.strategy.records for note in record.notes) == (K < 4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["sketch_aim", "augflaim"])
def test_secure_sums_over_cohorts_are_their_simulation_and_no_committee_counts(name: str) -> None:
    """All clients are asked for keys in round 1, a committee in every round: that is no part."""
    parts = tuple(TABLE.encode()[k::12] for k in range(12))
    noise = {"noise": "distributed", "corrupted": 0.1, "dropout": 0.1}
    federation = {"sampling_rate": 0.5, "max_participations": 1}
    outcomes = []
    for protocol in ({"protocol": "plain"}, {"protocol": "secagg"}):
        made = config_of(name, 12, {"rounds": 2}, federation=federation, aggregation={**noise, **protocol})
        outcomes.append(finished(execute(made, Federation(TABLE, parts))))
    plain, secure = outcomes
    assert not any(record.dropped for record in secure.strategy.records)
    assert plain.arrays.keys() == secure.arrays.keys()
    assert all(np.array_equal(plain.arrays[key], secure.arrays[key]) for key in plain.arrays)
    assert secure.ledgers.keys() == set(range(12))
    assert plain.strategy.ledger.spent == secure.strategy.ledger.spent


# A server that asks once more ----------------------------------------------------------------------------------------


def ask(made: Any, state: dict[str, Any], t: int, number: int) -> tuple[dict[str, Any], Ledger, dict[str, Any]]:
    """A new process of the client for each message, on the state that the last one left."""
    kept = json.loads(json.dumps(state))
    holder = Holder(0, FEDERATION.parts[0], FEDERATION.domain, "", Randomness(0), kept, save=lambda new: None)
    client = FedNaiveBayesClient(made, holder)
    contract = client.contract
    layout = OneWay().layout(contract, ())
    sigma = contract.plan(contract.budget.table)[0].sigma * 3.0  # type: ignore[attr-defined]
    spec = layout.spec(sigma, K, number)
    scalars = Envelope("one-way", "sum", t, made.sha256, {}, number, sum=spec).to_scalars()
    _, _, metrics = client.fit([], dict(scalars))
    return json.loads(metrics[ANSWER]), client.ledger, kept


def test_a_client_refuses_the_next_round_from_its_own_disk_before_noise_is_drawn() -> None:
    made = config("fed_naive_bayes", 2, 1, 0.5)
    first, ledger, state = ask(made, {}, 1, 1)
    assert first["ok"] and state[ROUNDS] == [1]
    again, ledger, state = ask(made, state, 1, 2)  # the same round: another request of it
    assert again["ok"] and state[ROUNDS] == [1]
    spent = ledger.spent
    for t in (2, 0, 7):  # each in a new process
        refused, ledger, state = ask(made, state, t, 3)
        assert not refused["ok"] and "max_participations allows 1" in refused["sentence"]
        assert ledger.spent == spent and state[ROUNDS] == [1]


def test_round_0_is_no_way_around_the_bound() -> None:
    state: dict[str, Any] = {}
    with pytest.raises(ProtocolError, match="max_participations allows 2"):
        take_part(OneWay(), 0, FederationNode(max_participations=2), state)
    take_part(OneWay(), 0, FederationNode(), state)
    assert state.get(ROUNDS, []) == []


def test_the_check_of_a_configuration_knows_the_minimum_cohort() -> None:
    with pytest.raises(ConfigError, match="2 rounds of 4 clients each need 8 participations"):
        config("augflaim", 2, 1, 0.1, federation={"minimum_cohort": K})
