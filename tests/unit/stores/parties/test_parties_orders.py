"""An order computes what the run promised, or nothing: a deviating server against honest parties.

Each attack is written out: against parties that take what they are told, it reads a table, or a row. Here all of them
end in a refusal, before a charge in a ledger or a book.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_parties_policy import host

from experiments.fhaim_table3.polynomial import L1Polynomial  # a norm that no party computes
from fedsyn.capabilities import MPC, PLAIN
from fedsyn.config import RunConfig
from fedsyn.crypto.fhe.bfv import DecryptionQuery
from fedsyn.crypto.primitives import KeyPair
from fedsyn.errors import ConfigError, ProtocolError, RunError
from fedsyn.front.testing.harness import config_of
from fedsyn.ledgers.party_ledger import PartyLedger
from fedsyn.privacy import Ledger, PrivacyBudget
from fedsyn.protocol.stored import SelectClique
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class
from fedsyn.selection.terms import NORMS, ChoiceTerms
from fedsyn.stores import make_store
from fedsyn.stores.base import ServedRun
from fedsyn.stores.parties.checks import Host, Orders, check_announcement, plan_choice
from fedsyn.stores.parties.interface import Announcement, ChooseOrder, TotalOrder
from fedsyn.stores.parties.party import _norms
from fedsyn.stores.parties.policy import LimitsNode
from fedsyn.stores.plain import PlainServer
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.stored import StoreFacts
from fedsyn.wire.requests import Choose
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

CLIQUE = next(q for q in contract_class("distaim")(mpc_config(), DOMAIN).candidates.cliques if len(q) == 2)
OTHER = [q for q in contract_class("distaim")(mpc_config(), DOMAIN).candidates.cliques if len(q) == 2][1]
Threat = str


def unspent(bench: Bench, hosts: tuple[Host, Host, Host] | None = None) -> bool:
    """Whether nothing was entered anywhere, and the run is over."""
    books = [host.book for host in hosts or ()]
    return dropped(bench) and all(book is not None and book.spent == 0.0 for book in books)


def run(folder: Path, score: str, threat: Threat) -> tuple[Bench, Any]:
    """A run in which everybody but the server is honest, and all have dealt."""
    hosts = three_hosts(folder, threat="malicious" if threat == "malicious" else None)
    bench = Bench(mpc_config({"rounds": None, "score": score}, aggregation={"threat": threat}), hosts=hosts)
    assert bench.deal() == {}
    return bench, hosts


# Every norm in a run of every other score ----------------------------------------------------------------------------

SCORES = [("l1", "semi_honest"), ("l1", "malicious"), ("squared_l2", "semi_honest")]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("score", "threat"), SCORES)
def test_parties_choose_by_the_norm_of_the_runs_score_alone(
    score: str, threat: Threat, norm: str, tmp_path: Path, watch: Any
) -> None:
    bench, hosts = run(tmp_path, score, threat)
    entered = [watch(Ledger, name) for name in ("charge", "selection_share")]
    order = bench.choice(epsilon=0.01, norm=norm)
    if norm == score:
        assert bench.parties.choose(order) == bench.expected_choice(order)[0]
        assert entered[1]
        return
    with pytest.raises(RunError, match=f"by another norm is ordered, and this run's score is {score}"):
        bench.parties.choose(order)
    assert unspent(bench, hosts) and not any(entered)


def _made_up(score: str, threat: Threat, sizes: str = "public") -> RunConfig:
    """A configuration that no contract of ours takes, as that of a plug-in might."""
    config = mpc_config({"rounds": None, "score": score})
    aggregation = config.aggregation.model_copy(update={"threat": threat})
    privacy = config.privacy.model_copy(update={"client_sizes": sizes})
    return config.model_copy(update={"aggregation": aggregation, "privacy": privacy})


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ((L1Polynomial.name, "semi_honest"), "three parties compute scores with 'l1', 'squared_l2'"),
        ((L1Polynomial.name, "malicious"), "three parties compute scores with 'l1', 'squared_l2'"),
        (("squared_l2", "malicious"), "takes clients at their word"),
        (("squared_l2", "semi_honest", "private"), "needs public row counts"),
    ],
)
def test_no_party_begins_a_run_whose_score_it_cannot_keep(
    facts: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the mechanism's own contract lets pass: here one that refuses nothing."""
    from fedsyn.plugins.clients.aim import AimOptions, DistAimContract

    class Options(AimOptions):
        score: str = "l1"  # type: ignore[assignment]

    check_announcement(announced(mpc_config()), host())
    monkeypatch.setattr(DistAimContract, "Options", Options)
    monkeypatch.setattr(DistAimContract, "check", classmethod(lambda cls, config: None))
    with pytest.raises(ProtocolError, match=said):
        check_announcement(replace(announced(mpc_config()), config=_made_up(*facts)), host())


def test_parties_compute_two_norms_and_no_other_one() -> None:
    bench = Bench()
    terms = bench.deal() or bench.terms()
    assert set(MPC.scores) < set(NORMS)
    for norm in set(NORMS) - set(MPC.scores):
        with pytest.raises(ProtocolError, match="that three parties do not compute"):
            _norms(None, replace(terms, norm=norm), None)  # type: ignore[arg-type]


def test_squared_l2_needs_public_row_counts_in_every_order() -> None:
    bench = Bench(mpc_config({"rounds": None, "score": "squared_l2"}))
    bench.deal()
    with pytest.raises(ProtocolError, match="squared_l2 needs public row counts"):
        plan_choice(bench.choice(norm="squared_l2"), bench.layout, LimitsNode(), None, bounded=False)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("score", PLAIN.scores)
@pytest.mark.parametrize("shares", [False, True])
def test_a_plain_store_chooses_by_the_norm_of_the_runs_score_alone(score: str, norm: str, shares: bool) -> None:
    bench = Bench()
    bench.deal()
    noise = "distributed" if shares else "server"
    config = config_of("distaim", CLIENTS, {"score": score}, aggregation={"protocol": "plain", "noise": noise})
    contract = contract_class("distaim")(config, DOMAIN)
    ledgers: list[Ledger] = []

    def ledger(_: int = 0) -> Ledger:
        ledgers.append(Ledger(PrivacyBudget(1.0, 1e-5), noise_by="server"))
        return ledgers[-1]

    served = ServedRun(contract, ledger(), Randomness(5), ledger, {}, lambda k, why: None, lambda k: 1e9)
    store = PlainServer(served, make_store(config), shares)
    store.total += bench.vector(bench.rows)
    asked = Choose(SelectClique(epsilon=0.01), bench.terms(norm=norm))
    if norm == score:
        store.choose(asked, 1)
        assert ledgers[0].releases
        return
    with pytest.raises(ConfigError, match=f"by the norm {norm} is asked for, and this run's score is {score}"):
        store.choose(asked, 1)
    assert not any(ledger.releases for ledger in ledgers)


# What a confused norm bought -----------------------------------------------------------------------------------------


def _tables(codes: np.ndarray) -> list[np.ndarray]:
    return [table.ravel().astype(np.int64) for table in count(codes, DOMAIN, [CLIQUE, OTHER])]


ROW = _tables(CODES[3:4])
KNOWN = _tables(np.delete(CODES, 3, axis=0))  # everything but one row, which the server wants


def with_or_without(folder: Path, threat: Threat, there: bool) -> tuple[Bench, Any]:
    """A run in which one client of four has a row more, or not."""
    hosts = three_hosts(folder, seed=None, threat="malicious" if threat == "malicious" else None)
    bench = Bench(
        mpc_config(aggregation={"threat": threat}, privacy={"client_sizes": "private"}), hosts=hosts, seed=None
    )
    rest = np.delete(CODES, 3, axis=0)
    parts = {k: rest[k::CLIENTS] for k in range(CLIENTS)}
    parts[0] = np.concatenate([parts[0], CODES[3:4]]) if there else parts[0]
    assert bench.parties.deal({k: bench.sealed(k, vector=bench.vector(rows)) for k, rows in parts.items()}) == {}
    return bench, hosts


def guesses(norm: str, played: Callable[[bool], Bench], games: int, epsilon: float = 0.05) -> int:
    """How often a server that knows all other rows tells whether one row is there.

    A row moves the squared norm of its cell by γ² (2 x + 1), halfway to which the penalty of the first candidate lies;
    the other one's model is what the server knows. The noise of `l1_polynomial` is for a row that moves a score by
    2.4 γ.
    """
    scale, sizes = 2**10, (len(KNOWN[0]), len(KNOWN[1]))
    cell = int(KNOWN[0][ROW[0] == 1][0])
    far = int((KNOWN[0] ** 2).sum()) if norm != "l1" else int(KNOWN[0].sum())
    step = scale**2 if norm != "l1" else scale
    model = np.concatenate([np.zeros(sizes[0], np.int64), scale * KNOWN[1]])
    penalties = np.array([step * (far + (cell if norm != "l1" else 0)), 0])
    terms = ChoiceTerms(norm, (CLIQUE, OTHER), sizes, np.ones(2, np.int64), penalties, model, scale, 128)
    right = 0
    for game in range(games):
        there = bool(game % 2)
        chosen = played(there).parties.choose(ChooseOrder(0, "select", 1, epsilon, terms))
        right += (chosen == 0) == there
    return right


@pytest.mark.parametrize("threat", ["semi_honest", "malicious"])
def test_no_row_is_told_by_a_norm_that_the_noise_is_not_for(threat: Threat, tmp_path: Path) -> None:
    runs: list[Any] = []

    def played(there: bool) -> Bench:
        runs.append(with_or_without(tmp_path, threat, there))
        return runs[-1][0]

    with pytest.raises(RunError, match="this run's score is l1"):
        guesses(L1Polynomial.name, played, 40)
    assert len(runs) == 1 and unspent(*runs[0])


def test_model_and_penalties_of_the_runs_own_norm_tell_no_row(tmp_path: Path) -> None:
    """The same game with an order that is answered: as good as a coin, whatever model, penalties and scale say.

    At epsilon 0.05 the best guess is right with probability 0.5125: 33 and more of 40 about once in 24,000 runs.
    """
    folders = iter(tmp_path / str(k) for k in range(40))

    def played(there: bool) -> Bench:
        folder = next(folders)
        folder.mkdir()
        return with_or_without(folder, "semi_honest", there)[0]

    assert guesses("l1", played, 40) < 33


def cell_by_search(bench: Bench, norm: str, cell: int, epsilon: float = 0.005) -> int:
    """An exact count by comparisons, at next to no price: of two candidates that differ in one cell of their model.

    Their squared norms differ by 2 γ² (M - mid - 1/2), far beyond noise that was sized for a sum of absolute values.
    """
    scale, rows, size = 2**14, 64, DOMAIN.size(CLIQUE)
    low, high = 0, rows
    while low < high:
        middle = (low + high) // 2
        model = np.zeros((2, size), np.int64)
        model[:, cell] = scale * middle, scale * (middle + 1)
        ones, zeros = np.ones(2, np.int64), np.zeros(2, np.int64)
        terms = ChoiceTerms(norm, (CLIQUE, CLIQUE), (size, size), ones, zeros, model.ravel(), scale, rows)
        number = next(bench.numbers)
        # The first one is farther, so chosen, if the count is above the middle.
        above = bench.parties.choose(ChooseOrder(number, "select", 1, epsilon, terms)) == 0
        low, high = (middle + 1, high) if above else (low, middle)
    return low


@pytest.mark.parametrize("threat", ["semi_honest", "malicious"])
@pytest.mark.parametrize("norm", [L1Polynomial.name, "squared_l2"])
def test_no_table_is_read_by_comparisons(norm: str, threat: Threat, tmp_path: Path) -> None:
    bench, hosts = run(tmp_path, "l1", threat)
    with pytest.raises(RunError, match="this run's score is l1"):
        cell_by_search(bench, norm, 0)
    assert unspent(bench, hosts)


def test_the_same_comparisons_by_the_runs_own_norm_are_no_order_either(tmp_path: Path) -> None:
    """A clique stands in an order once, in whatever groups or models."""
    bench, hosts = run(tmp_path, "l1", "semi_honest")
    with pytest.raises(RunError, match="an order names a clique twice"):
        cell_by_search(bench, "l1", 0)
    assert unspent(bench, hosts)


def test_a_friend_among_the_clients_does_not_make_rows_of_others_count_for_more(tmp_path: Path) -> None:
    """It publishes few rows and deals a million: in a squared norm a row beside them moves the score by as much."""
    hosts = three_hosts(tmp_path, threat="malicious")
    bench = Bench(mpc_config(aggregation={"threat": "malicious"}), hosts=hosts)
    wild = np.zeros(bench.layout.length, np.int64)
    wild[0] = 10**6
    assert bench.parties.deal({0: bench.sealed(0, vector=wild)}) == {}
    bench.deal([1, 2, 3])
    size = DOMAIN.size(CLIQUE)
    ones, zeros = np.ones(2, np.int64), np.zeros(2, np.int64)
    sizes = (size, DOMAIN.size(OTHER))
    terms = ChoiceTerms("squared_l2", (CLIQUE, OTHER), sizes, ones, zeros, np.zeros(sum(sizes), np.int64), 1, 128)
    with pytest.raises(RunError, match="this run's score is l1"):
        bench.parties.choose(ChooseOrder(0, "select", 1, 0.05, terms))
    assert unspent(bench, hosts)


# How often, which, and by which name ---------------------------------------------------------------------------------


def facts_of(bench: Bench) -> StoreFacts:
    return contract_class("distaim")(bench.config, DOMAIN).store_facts


def test_there_is_no_choice_after_the_last_one(tmp_path: Path) -> None:
    hosts = three_hosts(tmp_path)
    bench = Bench(mpc_config({"rounds": 2}), hosts=hosts)
    bench.deal()
    for _ in range(facts_of(bench).choices):
        bench.parties.choose(bench.choice(epsilon=0.01))
    spent = hosts[0].book.spent
    with pytest.raises(RunError, match="this run has 2 choices, and no more"):
        bench.parties.choose(bench.choice(epsilon=0.01))
    assert dropped(bench) and all(host.book.spent == spent for host in hosts)


def test_there_is_no_opening_after_the_last_one(tmp_path: Path) -> None:
    hosts = three_hosts(tmp_path)
    bench = Bench(mpc_config({"rounds": 2}), hosts=hosts)
    bench.deal()
    for _ in range(facts_of(bench).openings):
        bench.parties.open(bench.opening(sigma=100.0))
    spent = hosts[0].book.spent
    with pytest.raises(RunError, match="this run has 3 openings, and no more"):
        bench.parties.open(bench.opening(sigma=100.0))
    assert dropped(bench) and all(host.book.spent == spent for host in hosts)


@pytest.mark.parametrize("name", ["measured", "deal", "measure", "sizes\nspent 0", "", 7])
def test_a_choice_has_the_name_of_a_request_that_chooses(name: Any, tmp_path: Path) -> None:
    bench, hosts = run(tmp_path, "l1", "semi_honest")
    with pytest.raises(RunError, match="its name is not that of a request of the mechanism"):
        bench.parties.choose(replace(bench.choice(), name=name))
    assert unspent(bench, hosts)


def test_only_candidates_are_chosen_from_and_opened(tmp_path: Path) -> None:
    """A marginal inside a stored one that is no candidate: computed as well as any other, and never promised."""
    config = mpc_config(workload={"cliques": [list(DOMAIN.attributes[:3])]})
    contract = contract_class("distaim")(config, DOMAIN)
    orders, layout = Orders(contract, config), contract.stored
    bench = Bench(hosts=three_hosts(tmp_path))
    bench.deal()
    known = set(contract.store_facts.cliques)
    turned = DOMAIN.attributes[1::-1]
    assert turned not in known
    layout.place(turned)  # its cells are there
    with pytest.raises(ProtocolError, match="a clique that is not a candidate"):
        orders.take(replace(bench.opening(), cliques=(turned,)))


@pytest.mark.parametrize("mechanism", ["sketch_aim", "distributed_aim"])
def test_a_run_of_sums_has_totals_of_its_own_requests_alone(mechanism: str) -> None:
    config = config_of(mechanism, CLIENTS, aggregation={"protocol": "fhe", "noise": "distributed"})
    orders = Orders(contract_class(mechanism)(config, DOMAIN), config)
    total = TotalOrder(0, "measure", 1, 4.0, 1.0, 1, 40, CLIENTS)
    orders.take(total)
    with pytest.raises(ProtocolError, match="its name is not that"):
        orders.take(replace(total, number=1, name="join"))
    with pytest.raises(ProtocolError, match="it has no store to choose from"):
        orders.take(replace(Bench().opening(), number=2))


# The crypto party ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("score", "fhe"),
    [
        ("squared_l2", {}),
        ("squared_l2", {"compute": "packed"}),
    ],
)
def test_a_crypto_party_chooses_by_the_norm_of_the_runs_score_alone(
    score: str, fhe: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("tenseal")
    from fedsyn.stores.parties.local import LocalCryptoParty

    config = config_of(
        "fhaim",
        CLIENTS,
        {"rounds": 2, "score": score},
        aggregation={"protocol": "fhe", "noise": "distributed", "fhe": fhe},
    )
    cliques = contract_class("fhaim")(config, DOMAIN).stored.cliques
    bench = Bench()
    bench.deal()
    for norm in NORMS:
        rules = policy(mechanisms=["fhaim"])
        book = PartyLedger(tmp_path / f"{norm}.jsonl", rules.total_budget)
        party = LocalCryptoParty(Randomness(5), [Host(KeyPair(), rules, Randomness(5), book)])
        party.begin(Announcement(config, DOMAIN, cliques, RHO, 1, bytes(16), config.federation.clients))
        order = ChooseOrder(0, "select", 1, 0.01, bench.terms(norm=norm))
        right = "a question to the key holder" if fhe else "this run's store is not whole"
        said = right if norm == score else f"this run's score is {score}"
        with pytest.raises(RunError, match=said):
            party.choose(order, DecryptionQuery((), (), ()))
        reached = norm == score and bool(fhe)
        assert (book.spent > 0.0) == reached, "only the right one came as far as its ciphertexts, where nobody deals"
