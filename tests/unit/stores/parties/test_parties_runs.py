"""Three parties in one process: what they compute is what a trusted curator would, and what ends a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from fedsyn.crypto.primitives import KeyPair
from fedsyn.domain import Domain
from fedsyn.errors import RunError
from fedsyn.ledgers.party_ledger import PartyLedger
from fedsyn.loading import parse_config
from fedsyn.privacy import Ledger
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.stores.parties.checks import Host
from fedsyn.stores.parties.interface import ChooseOrder, SealedDeal, sealed_for
from fedsyn.stores.parties.local import LocalParties
from fedsyn.stores.parties.party import Party
from fedsyn.stores.parties.steps import least_sigma
from fedsyn.table.counting.stored import StoredLayout
from support.parties_bench import (
    CLIENTS,
    CODES,
    DOMAIN,
    RHO,
    Bench,
    announced,
    dropped,
    mpc_config,
    policy,
    three_hosts,
)


# What is computed ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("norm", "threat"), [("l1", "semi_honest"), ("squared_l2", "semi_honest"), ("l1", "malicious")]
)
def test_a_choice_is_the_argmax_of_scores_and_shares(norm: str, threat: str) -> None:
    options = {"rounds": None, "score": norm}
    bench = Bench(mpc_config(options, aggregation={"threat": threat}))
    assert bench.deal() == {}
    differs = 0
    for seed in range(6 if threat == "semi_honest" else 2):
        order = bench.choice(epsilon=0.2, norm=norm, seed=seed)
        noisy, largest = bench.expected_choice(order)
        assert bench.parties.choose(order) == noisy
        differs += noisy != largest
    assert differs or threat == "malicious", "noise that never matters would not be seen to be missing"


@pytest.mark.parametrize("threat", ["semi_honest", "malicious"])
def test_what_is_opened_is_counts_and_all_three_shares(threat: str) -> None:
    bench = Bench(mpc_config(aggregation={"threat": threat}))
    bench.deal([0, 2])
    assert np.array_equal(bench.parties.open(first := bench.opening()), bench.expected_opening(first))
    bench.deal([1])
    order = bench.opening(cliques=(bench.layout.cliques[0], bench.layout.cliques[0][::-1][:1]))
    assert np.array_equal(bench.parties.open(order), bench.expected_opening(order))
    assert not np.array_equal(bench.parties.open(bench.opening()), bench.expected_opening(first))


def test_private_row_counts_choose_alike() -> None:
    bench = Bench(mpc_config(privacy={"client_sizes": "private"}))
    bench.deal()
    order = bench.choice(rows=len(bench.rows) + 17)
    assert bench.parties.choose(order) == bench.expected_choice(order)[0]


@pytest.mark.parametrize("threat", ["semi_honest", "malicious"])
def test_the_threat_model_of_the_configuration_is_that_of_the_computation(threat: str) -> None:
    bench = Bench(mpc_config(aggregation={"threat": threat}))
    assert {party._begun.session.malicious for party in bench.parties.halves} == {threat == "malicious"}


@pytest.mark.parametrize("threat", ["semi_honest", "malicious"])
def test_counts_that_no_table_has_wrap_and_move_no_score_by_more(threat: str) -> None:
    """A hostile client deals 64-bit numbers: every cell counts for 2^(bits-1) at most, and the choice is defined."""
    bench = Bench(mpc_config(aggregation={"threat": threat}))
    bench.deal([0, 1])
    wild = np.random.default_rng(3).integers(-(2**63), 2**63, bench.layout.length)
    assert bench.parties.deal({3: bench.sealed(3, vector=wild)}) == {}
    total = bench.vector(bench.rows) + wild
    for seed in range(3 if threat == "semi_honest" else 1):
        order = bench.choice(epsilon=0.2, seed=seed)
        terms = order.terms
        stored = np.concatenate([bench.layout.marginal(total, clique).ravel() for clique in terms.cliques])
        far = stored * terms.scale - terms.model
        half = 1 << (terms.bits - 1)
        wrapped = np.abs((far + half) % (2 * half) - half)
        scores = terms.weights * (np.add.reduceat(wrapped, terms.starts) - terms.penalties)
        noisy = scores + bench.noise_of(order)
        assert bench.parties.choose(order) == int(np.argmax(noisy))


def test_costs_grow_with_what_is_computed() -> None:
    bench = Bench()
    bench.deal()
    before = bench.parties.costs
    bench.parties.choose(bench.choice())
    for old, new in zip(before, bench.parties.costs, strict=True):
        assert new.bytes_sent > old.bytes_sent > 0 and new.rounds > old.rounds > 0 and new.cpu > old.cpu > 0
    held = bench.parties.costs
    bench.parties.end()
    assert [cost.rounds for cost in bench.parties.costs] == [cost.rounds for cost in held]


@pytest.mark.parametrize("threat", ["semi_honest", "malicious"])
def test_a_partys_whole_view_is_uniform_but_for_public_facts(threat: str) -> None:
    """Bytes of all words that each party receives, and of its two slots of the sum: chi-square, 255 degrees of freedom.

    Random by construction, so this fails by chance: 12 tests at 1e-10 each, about once in 10^9 runs. Beside words a
    party gets digests (32 B) with a nonce or a key (48, 64 B), one line about each client, verdicts and "ok".
    """
    bench = Bench(mpc_config(aggregation={"threat": threat}), seed=None, record=True)
    bench.deal()
    for seed in range(3):
        bench.parties.choose(bench.choice(seed=seed))
    bench.parties.open(bench.opening())
    compared = 32 + 49 * CLIENTS
    public = {2, CLIENTS, 32, 48, 64, compared}
    limit = chi2.isf(1e-10, 255)
    for party in bench.parties.halves:
        view = [payload for _, payload in bench.parties.network.views[party.index]]
        words = [payload for payload in view if len(payload) not in public]
        assert len(words) > 40 and all(len(payload) % 8 == 0 for payload in words)
        slots = party._begun.deals.total
        for seen in (b"".join(words), slots.own.tobytes() + slots.next.tobytes()):
            found = np.bincount(np.frombuffer(seen, np.uint8), minlength=256)
            assert found.sum() > 5 * 256
            assert ((found - found.mean()) ** 2).sum() / found.mean() < limit, f"party {party.index}"
        assert all(payload == b"ok" for payload in view if len(payload) == 2)
        assert all(set(payload) == {0} for payload in view if len(payload) == CLIENTS)
    views = bench.parties.network.views
    assert not {p for _, p in views[0] if len(p) > compared} & {p for _, p in views[1] if len(p) > compared}


# What is refused, and ends the run -----------------------------------------------------------------------------------


def test_nothing_comes_out_below_the_minimum(tmp_path: Path) -> None:
    hosts = three_hosts(tmp_path, minimum_clients=3)
    bench = Bench(hosts=hosts)
    bench.deal([0, 1])
    with pytest.raises(RunError, match="2 clients have dealt, and nothing comes out below 3"):
        bench.parties.open(bench.opening())
    assert dropped(bench) and all(host.book.spent == 0.0 for host in hosts)


def test_the_minimum_of_the_run_counts_too() -> None:
    bench = Bench(minimum=4)
    bench.deal([0, 1, 2])
    with pytest.raises(RunError, match="below 4"):
        bench.parties.choose(bench.choice())


def test_order_numbers_ascend_and_none_is_answered_twice() -> None:
    bench = Bench()
    bench.deal()
    order = bench.opening()
    bench.parties.open(order)
    with pytest.raises(RunError, match="order 0 is not later than order 0"):
        bench.parties.open(replace(order, round=7))
    assert dropped(bench)
    with pytest.raises(RunError, match="the run is over at this party: order 0 is not"):
        bench.parties.open(bench.opening())
    bench.parties.end()  # never an error


@pytest.mark.parametrize("number", [-1, 2**31, True, 1.0, "1", None])
def test_numbers_of_another_kind_are_refused(number: Any) -> None:
    bench = Bench()
    bench.deal()
    with pytest.raises(RunError, match=r"order -1|order 2147483648|malformed"):
        bench.parties.open(replace(bench.opening(), number=number))


@pytest.mark.parametrize("name", ["", "x" * 101, 7])
def test_orders_need_a_name_for_the_ledgers(name: Any) -> None:
    bench = Bench()
    bench.deal()
    with pytest.raises(RunError, match="an order is malformed"):
        bench.parties.open(replace(bench.opening(), name=name))


Telling = Callable[[Bench, int], Callable[[Any], Any]]
NOTHING: list[tuple[()]] = [()] * 3  # what each party is called with besides


def _other_opening(bench: Bench, liar: int) -> Callable[[Any], Any]:
    order = bench.opening()
    return lambda party: party.open(replace(order, sigma=order.sigma * 1.01) if party.index == liar else order)


def _other_choice(bench: Bench, liar: int) -> Callable[[Any], Any]:
    order = bench.choice()
    model = order.terms.model.copy()
    model[0] += 1 if model[0] == 0 else -1
    other = replace(order, terms=replace(order.terms, model=model))
    return lambda party: party.choose(other if party.index == liar else order)


def _choice_or_opening(bench: Bench, liar: int) -> Callable[[Any], Any]:
    opening = bench.opening()
    choice = replace(bench.choice(), number=opening.number)
    return lambda party: party.open(opening) if party.index == liar else party.choose(choice)


def _other_round(bench: Bench, liar: int) -> Callable[[Any], Any]:
    order = bench.opening()
    return lambda party: party.open(replace(order, round=9) if party.index == liar else order)


@pytest.mark.parametrize("liar", [0, 1, 2])
@pytest.mark.parametrize("telling", [_other_opening, _other_choice, _choice_or_opening, _other_round])
def test_a_server_that_tells_parties_different_things_gets_nothing(telling: Telling, liar: int, tmp_path: Path) -> None:
    hosts = three_hosts(tmp_path)
    bench = Bench(hosts=hosts)
    bench.deal()
    with pytest.raises(RunError, match="the server told this party something else than party"):
        bench.parties.take(telling(bench, liar), NOTHING)
    assert dropped(bench) and all(host.book.spent == 0.0 for host in hosts), "refused before any charge"


def test_a_server_that_announces_different_runs_has_none(tmp_path: Path) -> None:
    hosts = three_hosts(tmp_path)
    bench = Bench(hosts=hosts)
    bench.parties.end()
    other = [replace(bench.announcement, rho=RHO / (1 + (index == 1))) for index in range(3)]
    fresh = Bench(hosts=hosts)
    parties = [type(p)(p.index, p.host, fresh.parties.network.endpoints[p.index]) for p in fresh.parties.halves]
    fresh.parties.halves = tuple(parties)
    with pytest.raises(RunError, match="announced different runs to this party and to party"):
        fresh.parties.take(lambda party: party.begin(other[party.index]), NOTHING)


def test_a_server_that_hands_over_different_clients_ends_the_run() -> None:
    bench = Bench()
    deals = {k: bench.sealed(k) for k in range(2)}
    told = [(parts(deals if index else {0: deals[0]}, index),) for index in range(3)]
    with pytest.raises(RunError, match="something else"):
        bench.parties.take(Party.deal, told)
    assert dropped(bench)


def parts(deals: dict[int, SealedDeal], index: int) -> dict[int, Any]:
    from fedsyn.stores.parties.sealing import DealPart

    return {k: DealPart.of(deal, index) for k, deal in deals.items()}


def test_an_error_of_our_own_code_ends_the_run_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.deal()

    def broken(*_: Any) -> Any:
        raise ValueError("17 rows of Alice")

    monkeypatch.setattr(StoredLayout, "marginal", broken)
    with pytest.raises(RunError) as caught:
        bench.parties.open(bench.opening())
    assert "Alice" not in str(caught.value) and "an internal error (ValueError)" in str(caught.value)
    assert dropped(bench)


def test_a_failure_leaves_the_server_with_the_first_reason_and_a_quiet_end() -> None:
    bench = Bench()
    bench.deal([0])
    with pytest.raises(RunError):
        bench.parties.open(replace(bench.opening(), sigma=-1.0))
    bench.parties.end()
    bench.parties.end()
    bench.parties.begin(bench.announcement)  # a new run may follow


# Budgets -------------------------------------------------------------------------------------------------------------


def test_a_run_beyond_the_partys_limit_is_refused(tmp_path: Path) -> None:
    hosts = three_hosts(tmp_path, epsilon_per_run=0.5)
    with pytest.raises(RunError, match=r"its policy allows epsilon = 0\.5 at delta = 1e-05 per run"):
        Bench(hosts=hosts)
    assert all(not host.book.path.read_bytes() for host in hosts)


def test_one_partys_total_is_enough_to_refuse(tmp_path: Path) -> None:
    hosts = three_hosts(tmp_path)
    one = hosts[1].book
    one.begin("old", 0.9 * one.budget.rho)
    one.charge("old", 0.9 * one.budget.rho)
    one.end("old")
    with pytest.raises(RunError, match="party 1: over all runs this party may release epsilon = 3"):
        Bench(hosts=hosts)
    assert not hosts[0].book.path.read_bytes(), "no run has begun anywhere"


def test_an_order_beyond_the_announced_budget_is_refused_before_noise(tmp_path: Path, watch: Any) -> None:
    hosts = three_hosts(tmp_path)
    bench = Bench(hosts=hosts)
    bench.deal()
    drawn, charged = watch(Ledger, "distributed"), watch(PartyLedger, "charge")
    bench.parties.open(bench.opening(sigma=math.sqrt(2 / (2 * 0.9 * RHO))))
    assert len(drawn) == len(charged) == 3
    with pytest.raises(RunError, match="nothing was released"):
        bench.parties.open(bench.opening(sigma=math.sqrt(2 / (2 * 0.2 * RHO))))
    assert len(drawn) == len(charged) == 3 and dropped(bench)
    assert [host.book.spent for host in hosts] == [pytest.approx(0.9 * RHO)] * 3


def test_every_release_is_charged_at_every_party(tmp_path: Path) -> None:
    hosts = three_hosts(tmp_path)
    bench = Bench(hosts=hosts)
    bench.deal()
    bench.parties.choose(choice := bench.choice())
    bench.parties.open(opening := bench.opening())
    bench.parties.end()
    spent = choice.epsilon**2 / 8 + 2 / (2 * opening.sigma**2)
    assert [host.book.spent for host in hosts] == [pytest.approx(spent, rel=1e-12)] * 3


def test_a_client_is_refused_that_deals_for_less_than_the_run_may_still_spend() -> None:
    bench = Bench()
    assert bench.parties.deal({0: bench.sealed(0, rho=RHO * 0.999)}) == {
        0: "party 0: its deal allows for a smaller budget than this run may still spend"
    }
    bench.deal([1, 2])
    bench.parties.open(bench.opening(sigma=math.sqrt(2 / (2 * 0.5 * RHO))))
    assert bench.parties.deal({0: bench.sealed(0, rho=RHO * 0.51), 3: bench.sealed(3, rho=RHO * 0.49)}).keys() == {3}


# What a mechanism or a norm demands ----------------------------------------------------------------------------------


def test_fixed_rounds_have_a_least_sigma() -> None:
    config = mpc_config({"rounds": 2})
    least = least_sigma(contract_class("distaim")(config, DOMAIN), RHO)
    assert least is not None
    bench = Bench(config)
    bench.deal()
    bench.parties.open(bench.opening(sigma=least))
    with pytest.raises(RunError, match=rf"this run has {least:.6g} at least"):
        bench.parties.open(bench.opening(sigma=least * (1 - 1e-6)))


def test_squared_l2_may_not_name_fewer_rows_than_were_dealt() -> None:
    bench = Bench(mpc_config({"rounds": None, "score": "squared_l2"}))
    bench.deal()
    with pytest.raises(
        RunError, match=rf"the terms name {len(CODES) - 1} rows, and the clients have dealt {len(CODES)}"
    ):
        bench.parties.choose(bench.choice(norm="squared_l2", rows=len(CODES) - 1))


def _terms(change: Callable[[ChoiceTerms], ChoiceTerms]) -> Callable[[Bench], ChooseOrder]:
    return lambda bench: replace(order := bench.choice(), terms=change(order.terms))


@pytest.mark.parametrize(
    "made",
    [
        _terms(lambda t: replace(t, norm="l3")),
        _terms(lambda t: replace(t, sizes=(t.sizes[0] + 1, *t.sizes[1:]))),
        _terms(lambda t: replace(t, weights=t.weights[1:])),
        _terms(lambda t: replace(t, weights=t.weights * 0)),
        _terms(lambda t: replace(t, model=t.model[1:])),
        _terms(lambda t: replace(t, model=-t.model - 1)),
        _terms(lambda t: replace(t, scale=0)),
        _terms(lambda t: replace(t, scale=2**70)),
        _terms(lambda t: replace(t, rows=2**70)),
        _terms(lambda t: replace(t, penalties=np.full_like(t.penalties, 2**62))),
        _terms(lambda t: replace(t, cliques=(("nobody",), *t.cliques[1:]))),
        _terms(lambda t: replace(t, cliques=())),
        lambda bench: replace(bench.choice(), epsilon=0.0),
        lambda bench: replace(bench.choice(), epsilon=math.nan),
        lambda bench: replace(bench.choice(), epsilon=math.inf),
        lambda bench: replace(bench.choice(), epsilon=1e-300),
    ],
)
def test_terms_that_do_not_fit_are_refused_before_a_charge(made: Any, tmp_path: Path) -> None:
    hosts = three_hosts(tmp_path)
    bench = Bench(hosts=hosts)
    bench.deal()
    with pytest.raises(RunError, match=r"malformed|fit|order|terms|clique|noise|could reach") as caught:
        bench.parties.choose(made(bench))
    assert "internal" not in str(caught.value)
    assert dropped(bench) and all(host.book.spent == 0.0 for host in hosts)


@pytest.mark.parametrize(
    "change",
    [
        {"sigma": 0.0},
        {"sigma": math.nan},
        {"sigma": math.inf},
        {"sigma": 1e-300},
        {"cliques": ()},
        {"cliques": ((),)},
        {"cliques": (("nobody",),)},
        {"cliques": ((DOMAIN.attributes[0], DOMAIN.attributes[0]),)},
        {"cliques": (DOMAIN.attributes,)},
    ],
)
def test_openings_that_do_not_fit_are_refused_before_a_charge(change: Any, tmp_path: Path) -> None:
    hosts = three_hosts(tmp_path)
    bench = Bench(hosts=hosts)
    bench.deal()
    with pytest.raises(RunError) as caught:
        bench.parties.open(replace(bench.opening(), **change))
    assert "internal" not in str(caught.value)
    assert dropped(bench) and all(host.book.spent == 0.0 for host in hosts)


# Two worlds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"domain": {}},  # one clique of the same length
        {"mechanism": {"score": "squared_l2"}},
        {"privacy": {"client_sizes": "private"}},
        {"aggregation": {"threat": "malicious"}},
        {"workload": {"seed": 99}},
        {"federation": {"minimum_cohort": 2}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_server_that_shows_clients_and_parties_different_worlds_carries_deals_that_nobody_can_open(
    change: dict[str, Any],
) -> None:
    """Clients agreed to one configuration and schema, the parties were told of another one."""
    told = Bench()
    length = told.layout.length
    config, domain, cliques = told.config, DOMAIN, told.announcement.cliques
    if "domain" in change:
        domain, cliques = Domain(("x", "y"), (1, length)), (("x", "y"),)
    else:
        document = config.to_dict()
        for node, keys in change.items():
            document[node] = {**document[node], **keys}
        config = parse_config(document)
        assert config.sha256 != told.config.sha256
    agreed = sealed_for(told.run, config, domain, cliques)  # what such a client seals to
    refused = told.parties.deal({0: told.sealed(0, run=agreed), 1: told.sealed(1)})
    assert list(refused) == [0] and "not sealed for this run" in refused[0]


def test_a_run_that_could_never_let_anything_out_is_refused_before_clients_pay() -> None:
    hosts = tuple(Host(KeyPair(), policy(minimum_clients=CLIENTS + 1), Randomness(None)) for _ in range(3))
    with pytest.raises(RunError, match=f"below {CLIENTS + 1} clients, and the run has {CLIENTS}"):
        Bench(hosts=hosts, seed=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("clients", [0, 2])
def test_a_run_that_too_few_have_joined_is_refused_before_clients_pay(clients: int) -> None:
    """The run goes on with two, these parties with three: what two have dealt would come out to nobody."""
    hosts = tuple(Host(KeyPair(), policy(minimum_clients=3), Randomness(None)) for _ in range(3))
    parties = LocalParties(Randomness(None), hosts, timeout=20.0)
    with pytest.raises(RunError, match=f"below 3 clients, and the run has {clients}"):
        parties.begin(announced(mpc_config(), clients=clients))
    for enough in (3, CLIENTS + 1):  # whoever is connected is asked
        parties.begin(announced(mpc_config(), clients=enough))
    parties.end()


def test_the_configurations_minimum_binds_the_server() -> None:
    config = mpc_config(federation={"minimum_cohort": 3})
    with pytest.raises(RunError, match="minimum_cohort is 3"):
        Bench(config, minimum=2)
