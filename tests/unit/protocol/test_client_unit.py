"""A whole client as the unit: what ledgers enter, which rows take part, and who refuses what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsyn.errors import BudgetExceeded, ConfigError, NodeError
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.node.file import load_node_file
from fedsyn.node.policy import Policy
from fedsyn.privacy import (
    EXPONENTIAL,
    GAUSSIAN,
    Ledger,
    PrivacyBudget,
    Release,
    accountant_for,
    sigma_for_rho,
)
from fedsyn.privacy.release import COUNTS, TWICE
from fedsyn.privacy.unit import ROW, ClientUnit, kept_rows
from fedsyn.protocol.explain import explain
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class
from fedsyn.wire.envelope import ANSWER, ENVELOPE, to_json
from fedsyn.wire.holder import Holder
from support.node_folders import POLICY, header_of, make_node, run_of
from support.pair_runs import table_of

CAP = 5
SHAPE = (3, 2, 4)
CODES = (np.random.default_rng(0).random((60, 3)) ** 2 * SHAPE).astype(np.uint8)
PARTS = (CODES[:3], CODES[3:30], CODES[30:], CODES[:0])  # fewer rows than the cap, more, more, none
TABLE = table_of(CODES, SHAPE)
BUDGET = PrivacyBudget(1.0, 1e-5)


def client_config(name: str, unit: str = "client", **nodes: Any) -> Any:
    cap = {"unit": unit, "rows_per_client": CAP} if unit == "client" else {}
    privacy = {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "private", **cap, **nodes.pop("privacy", {})}
    return config_of(name, len(PARTS), privacy=privacy, **nodes)


def run(name: str, parts: tuple[np.ndarray, ...] = PARTS, **nodes: Any) -> Outcome:
    return finished(execute(client_config(name, **nodes), Federation(TABLE, parts)))


# What is entered -----------------------------------------------------------------------------------------------------


def test_an_entry_says_what_a_client_moves_and_pays() -> None:
    unit = ClientUnit(CAP)
    counts = Release("measure", 1, GAUSSIAN, 2.0, sigma=7.0, count=3, extra=1e-3, replaced=COUNTS)
    entry = unit.entered(counts)
    assert (entry.sensitivity, entry.sigma, entry.count, entry.replaced) == (10.0, 7.0, 3, COUNTS)
    assert entry.rho == pytest.approx(CAP**2 * (counts.rho - 1e-3) + 1e-3)  # shares' excess is of the whole density
    assert unit.row_rho(entry) == pytest.approx(counts.rho - 1e-3)
    choice = Release("select", 1, EXPONENTIAL, 3.0, epsilon=0.1)
    assert unit.entered(choice).rho == pytest.approx(CAP**2 * choice.rho)
    # Odds of the same scores: the parameter by twice the sensitivity is that of the row's.
    assert unit.entered(choice).epsilon / unit.entered(choice).sensitivity == pytest.approx(0.1 / 3.0)
    assert ROW.entered(counts) is counts and ROW.row_rho(counts) == pytest.approx(counts.rho - 1e-3)


def test_a_row_count_moves_by_all_rows_of_a_client_when_they_are_exchanged() -> None:
    sizes = Release("sizes", 0, GAUSSIAN, 1.0, sigma=7.0, replaced=0.0)
    assert ClientUnit(CAP).entered(sizes).replaced == ClientUnit(1).entered(sizes).replaced == 1.0
    assert ROW.entered(sizes).replaced == 0.0
    assert ClientUnit(1).entered(Release("sketch", 1, GAUSSIAN, sigma=1.0, replaced=TWICE)).replaced == TWICE


@pytest.mark.parametrize("accountant", ["gaussian", "zcdp"])
def test_what_is_left_for_one_row_is_a_clients_by_the_square_of_its_rows(accountant: str) -> None:
    row, client = (Ledger(BUDGET, accountant_for(accountant, BUDGET), unit=u) for u in (ROW, ClientUnit(CAP)))
    assert client.remaining_rho == pytest.approx(row.remaining_rho / CAP**2)
    sigma = sigma_for_rho(client.remaining_rho)
    client.charge(Release("measure", 1, GAUSSIAN, sigma=sigma))
    assert client.epsilon() == pytest.approx(1.0, abs=1e-6) and client.remaining_rho == pytest.approx(0.0)
    with pytest.raises(BudgetExceeded):
        Ledger(BUDGET, accountant_for(accountant, BUDGET), unit=ClientUnit(CAP + 1)).charge(
            Release("measure", 1, GAUSSIAN, sigma=sigma)
        )


def test_a_ledgers_state_keeps_its_unit_and_states_without_one_are_of_rows() -> None:
    ledger = Ledger(BUDGET, unit=ClientUnit(CAP))
    ledger.charge(Release("measure", 1, GAUSSIAN, sigma=400.0))
    again = Ledger.from_dict(ledger.to_dict())
    assert again.unit == ClientUnit(CAP) and again.spent == ledger.spent and again.releases == ledger.releases
    again.charge(Release("measure", 2, GAUSSIAN, sigma=400.0))  # the factor once, and not again for what it re-entered
    assert again.spent == pytest.approx(2 * ledger.spent)
    old = Ledger(BUDGET).to_dict()
    assert "rows_per_client" not in old and Ledger.from_dict(old).unit == ROW


def test_the_report_says_whose_privacy_it_is() -> None:
    report = run("fed_naive_bayes").strategy.ledger.report()
    assert report["unit"] == "one client with all of its rows, of which at most 5 take part"
    assert report["unit"] == report["statement"]["unit"] and report["rows_per_client"] == CAP
    assert "differ in the rows of one client" in report["adjacency"] and "published" not in report["adjacency"]
    assert report["statement"]["cost"].startswith("a client pays 5^2 times what is said here for one row")
    assert report["assumptions"]["rows_per_client"] == CAP
    assert {entry["sensitivity"] for entry in report["releases"]} == {5.0}
    public = run("fed_naive_bayes", privacy={"client_sizes": "public"}).strategy.ledger.report()
    assert "a client's rows can only be exchanged for as many others" in public["adjacency"]


def test_explain_says_it_before_anybody_joins() -> None:
    config = client_config("sketch_aim")
    meaning = explain(config, TABLE.schema.domain, client_class("sketch_aim"))
    assert (
        meaning.statement["Unit"].startswith("one client") and "differ in the rows of one client" in meaning.neighbours
    )
    assert [asked.name for asked in meaning.requests][:2] == ["join", "rows"]
    row = explain(client_config("sketch_aim", "row"), TABLE.schema.domain, client_class("sketch_aim"))
    assert meaning.smallest_sigma == pytest.approx(CAP * row.smallest_sigma)
    assert "rows" not in {asked.name for asked in row.requests}


# Which rows take part ------------------------------------------------------------------------------------------------


def test_every_choice_of_so_many_rows_is_equally_likely() -> None:
    """Chi-squared over the 20 choices of 3 out of 6 rows, 4,000 draws: false alarm 1e-6. The seed is fixed."""
    rng, seen = np.random.default_rng(1), {}
    for _ in range(4000):
        kept = kept_rows(6, 3, rng)
        assert list(kept) == sorted(set(kept)) and set(kept) <= set(range(6))
        seen[tuple(kept)] = seen.get(tuple(kept), 0) + 1
    assert len(seen) == 20
    assert stats.chisquare(list(seen.values())).pvalue > 1e-6
    assert list(kept_rows(3, 3, rng)) == [0, 1, 2] and list(kept_rows(0, 3, rng)) == []


@pytest.mark.parametrize("seed", [0, None])
def test_a_client_takes_part_with_the_same_rows_in_the_whole_run(seed: int | None) -> None:
    outcome = run("fed_naive_bayes", runtime={"seed": seed}, mechanism={"name": "fed_naive_bayes", "rounds": 3})
    for partition, rows in enumerate((3, CAP, CAP, 0)):
        mine = [e.contribution for e in outcome.tape.exchanges if e.partition == partition and e.contribution]
        sent = [c.dense() for c in mine if c.length == sum(SHAPE)]
        assert len(sent) == 3 and all(np.array_equal(sent[0], other) for other in sent)
        assert [int(part.sum()) for part in np.split(sent[0], np.cumsum(SHAPE)[:-1])] == [rows] * len(SHAPE)


def test_two_clients_do_not_draw_the_same_places() -> None:
    """Clients with the same 40 rows, numbered by their first attribute, in one run with a seed."""
    codes = np.column_stack([np.arange(40), np.zeros(40, int)]).astype(np.uint8)
    table, parts = table_of(codes, (40, 2)), (codes, codes, codes)
    config = config_of("fed_naive_bayes", 3, privacy={"unit": "client", "rows_per_client": 4, "client_sizes": "public"})
    outcome = finished(execute(config, Federation(table, parts)))
    taken = {
        e.partition: tuple(np.flatnonzero(e.contribution.dense()[:40]))
        for e in outcome.tape.exchanges
        if e.contribution
    }
    assert len(set(taken.values())) == 3 and all(len(rows) == 4 for rows in taken.values())


def test_row_counts_come_as_one_sum_and_each_client_stands_for_an_even_part() -> None:
    outcome = run("sketch_aim", privacy={"epsilon": 500.0})
    strategy = outcome.strategy
    assert strategy.total == pytest.approx(3 + CAP + CAP + 0, abs=2.0)  # sigma is 0.2 or so
    assert len({client.rows for client in strategy.clients.values()}) == 1
    assert [r.name for r in strategy.ledger.releases].count("rows") == 1
    assert not any(e.envelope["request"] == "sizes" for e in outcome.tape.exchanges)


def test_clients_that_score_by_their_own_size_release_it_with_the_noise_of_a_client() -> None:
    for name in ("distributed_aim", "augflaim"):
        outcome = run(name)
        (sizes,) = [r for r in outcome.strategy.ledger.releases if r.name == "sizes"]
        assert sizes.sensitivity == CAP and not any(e.envelope["request"] == "rows" for e in outcome.tape.exchanges)
        assert outcome.strategy.ledger.epsilon() == pytest.approx(1.0, abs=1e-6)
        assert {round(ledger.epsilon(), 6) for ledger in outcome.ledgers.values()} == {1.0}


# Who refuses what ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["aim", "distaim", "fhaim"])
def test_stores_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="keeps a store of exact answers"):
        client_config(name, aggregation={"noise": "server"})


def test_one_holder_baselines_and_encrypted_sums_are_refused() -> None:
    for name, why in (("privsyn", "has one holder"), ("augflaim_oracle", "protects nobody")):
        with pytest.raises(ConfigError, match=why):
            client_config(name)
    with pytest.raises(ConfigError, match="the crypto party of fhe accounts for single rows"):
        client_config("sketch_aim", aggregation={"protocol": "fhe", "noise": "distributed"})


@pytest.mark.parametrize("privacy", [{"unit": "client"}, {"rows_per_client": 3}, {"unit": "row", "rows_per_client": 3}])
def test_unit_and_cap_come_together(privacy: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give both, or neither"):
        config_of("sketch_aim", 3, privacy={"epsilon": 1.0, "delta": 1e-5, **privacy})


def test_the_unit_is_in_a_configurations_hash() -> None:
    row, client = client_config("sketch_aim", "row"), client_config("sketch_aim")
    assert client.to_dict()["privacy"]["rows_per_client"] == CAP and row.sha256 != client.sha256


def a_client(outcome: Outcome, unit: str = "client", **privacy: Any) -> Any:
    """Client 1 of a run before its first message."""
    federation, config = outcome.federation, client_config(outcome.config.mechanism.name, unit, privacy=privacy)
    holder = Holder(1, PARTS[1], federation.domain, federation.table.schema.sha256, Randomness(0))
    return client_class(config.mechanism.name)(config, holder)


def asked(client: Any, sent: Any, **sums: Any) -> dict[str, Any]:
    """The answer to a request whose sum is described otherwise."""
    envelope = {**sent.envelope, "sum": {**sent.envelope["sum"], **sums}, "config": client.config.sha256}
    return dict(json.loads(client.fit(list(sent.arrays), {ENVELOPE: to_json(envelope)})[2][ANSWER]))


def test_a_client_refuses_the_noise_of_a_row() -> None:
    """A server that plans for rows: the sum's layout is the same, its noise a fifth of what a client's plan has."""
    outcome = run("fed_naive_bayes")
    sent = next(e for e in outcome.tape.exchanges if e.envelope["request"] == "one-way")
    sigma, client = sent.envelope["sum"]["sigma"], a_client(outcome)
    refusal = asked(client, sent, sigma=sigma / CAP)
    assert refusal["kind"] == "protocol" and "less noise than the run's plan" in refusal["sentence"]
    assert client.ledger.spent_rho == 0.0
    assert asked(client, sent)["ok"] is True and client.ledger.spent_rho > 0.0
    assert asked(a_client(outcome, "row"), sent, sigma=sigma / CAP)["ok"] is True


def test_the_sum_of_row_counts_is_asked_once_and_where_it_belongs() -> None:
    outcome = run("sketch_aim")
    sent, client = next(e for e in outcome.tape.exchanges if e.envelope["request"] == "rows"), a_client(outcome)
    assert asked(client, sent)["ok"] is True
    assert "was asked as often as the run's plan has it" in asked(client, sent)["sentence"]
    for other in (a_client(outcome, "row"), a_client(outcome, client_sizes="public")):
        assert asked(other, sent)["sentence"] == "row counts are not summed in this run"
        assert other.ledger.spent_rho == 0.0


def test_a_node_can_refuse_to_be_protected_row_by_row(tmp_path: Path) -> None:
    policy = Policy(load_node_file(make_node(tmp_path / "node", policy=POLICY | {"unit": "client"})))
    for unit in ({"unit": "client", "rows_per_client": 20}, {}):
        config = run_of(privacy=unit)
        header = header_of(config, "join")
        if unit:
            policy.admit(header["run_config"], header["scalars"])
        else:
            with pytest.raises(NodeError, match="takes part as a whole"):
                policy.admit(header["run_config"], header["scalars"])


def test_a_secure_sum_opens_what_its_simulation_does() -> None:
    """Bit for bit: the masks, and the shares of noise, know nothing of the unit."""
    nodes = {"mechanism": {"name": "fed_naive_bayes", "rounds": 1}}
    models = []
    for protocol in ("plain", "secagg"):
        outcome = run("fed_naive_bayes", aggregation={"protocol": protocol, "noise": "distributed"}, **nodes)
        models.append({name: array.tobytes() for name, array in outcome.arrays.items()})
        assert {r.sensitivity for r in outcome.strategy.ledger.releases} == {float(CAP)}
    assert models[0] == models[1]
