"""With how many rows a client takes part, found from noisy counts: the rule, what it costs, and who refuses what."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_runs import table_of

from fedsyn.errors import ConfigError
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.privacy import GAUSSIAN, Ledger, PrivacyBudget, Release
from fedsyn.privacy.release import COUNTS
from fedsyn.privacy.unit import ROW_COUNTS, UNCAPPED, ClientUnit
from fedsyn.protocol.capping import cap_of, clients_in, grid, place, predicted
from fedsyn.protocol.explain import explain
from fedsyn.protocol.wire.envelope import ANSWER, ENVELOPE, to_json
from fedsyn.protocol.wire.holder import Holder
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class

SHAPE = (3, 2, 4)
RNG = np.random.default_rng(0)
SIZES = [0, 1, 3, *[5] * 12, *[9] * 12, 40, 120]
CODES = (RNG.random((sum(SIZES), 3)) ** 2 * SHAPE).astype(np.uint8)
PARTS = tuple(np.split(CODES, np.cumsum(SIZES)[:-1]))
TABLE = table_of(CODES, SHAPE)
AUTO: dict[str, Any] = {"unit": "client", "client_sizes": "private", "rows_per_client": "auto", "largest_cap": 64}
PLAIN = {"protocol": "plain", "noise": "server"}


def auto_config(name: str = "fed_naive_bayes", **nodes: Any) -> Any:
    privacy = {"epsilon": 60.0, "delta": 1e-5, **AUTO, **nodes.pop("privacy", {})}
    return config_of(name, len(PARTS), privacy=privacy, **{"aggregation": PLAIN, **nodes})


def run(name: str = "fed_naive_bayes", **nodes: Any) -> Outcome:
    return finished(execute(auto_config(name, **nodes), Federation(TABLE, PARTS)))


# The rule -------------------------------------------------------------------------------------------------------------


def test_a_client_is_in_one_cell_whatever_it_has_and_in_none_without_rows() -> None:
    """Every pair of row counts: apart by 1 from none at all, by sqrt(2) at most from another, and that is reached."""
    cells = grid(300)
    vectors = np.zeros((700, len(cells)))
    for rows in range(1, 700):
        own = place(rows, cells)
        assert own is not None and cells[own] <= rows and (own + 1 == len(cells) or rows < cells[own + 1])
        vectors[rows, own] = 1.0
    apart = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    assert place(0, cells) is None and set(apart[0, 1:]) == {1.0} and apart.max() == math.sqrt(2)


@pytest.mark.parametrize("largest", [1, 2, 5, 1000, 10**6])
def test_the_grid_is_geometric_and_ends_where_it_is_told(largest: int) -> None:
    cells = grid(largest)
    assert cells[0] == 1 and cells[-1] == largest and list(cells) == sorted(set(cells)) and len(cells) <= 41
    assert all(b <= max(a + 1, 1.5 * a) for a, b in pairwise(cells))


def error_of(rows: np.ndarray, cap: int, noise: float) -> float:
    """The rule's error, from the clients' exact row counts."""
    kept = np.minimum(rows, cap)
    apart = rows / rows.sum() - kept / kept.sum()
    return float(noise * (cap / kept.sum()) ** 2 + (apart**2).sum() + 1 / kept.sum() - 1 / rows.sum())


def sizes_of(kind: str, clients: int, rng: np.random.Generator) -> np.ndarray:
    made = {
        "equal": np.full(clients, 11),
        "lognormal": np.exp(3 + rng.standard_normal(clients)),
        "two kinds": np.where(rng.random(clients) < 0.9, 5, 300),
        "pareto": np.minimum(5 * (1 + rng.pareto(1.2, clients)), 1000),
    }
    return np.maximum(1, np.rint(made[kind])).astype(int)


def counts_of(rows: np.ndarray, cells: tuple[int, ...]) -> np.ndarray:
    return np.bincount(np.searchsorted(cells, rows, side="right") - 1, minlength=len(cells)).astype(float)


def test_without_noise_the_rule_predicts_what_the_clients_have() -> None:
    """Row counts on the grid, where nothing is rounded; the last summand is that of rows drawn from each client."""
    cells, rng = grid(1000), np.random.default_rng(1)
    rows = rng.choice(cells, 500)
    counts = list(counts_of(rows, cells))
    for noise in (1.0, 100.0, 1e4):
        for cap in cells:
            assert predicted(cap, cells, counts, noise) == pytest.approx(error_of(rows, cap, noise), rel=1e-9)
        best = min(cells, key=lambda cap: error_of(rows, cap, noise))
        assert cap_of(counts, 1e-9, 500, 1000, noise) == best
    caps = [cap_of(counts, 1e-9, 500, 1000, noise) for noise in (1e-3, 1.0, 10.0, 100.0, 1e3, 1e6)]
    assert caps == sorted(caps, reverse=True) and caps[0] == 1000 and caps[-1] == 1


@pytest.mark.parametrize("kind", ["equal", "lognormal", "two kinds", "pareto"])
def test_noise_seldom_costs_much(kind: str) -> None:
    """At epsilon 1 and 3 with 2% of the budget: the error at what is found against the least one on the grid, roots.

    20 draws each, with a fixed seed: what is asserted is what was seen, with room.
    """
    cells, rng = grid(1000), np.random.default_rng(2)
    for rho in (0.036, 0.27):
        for clients in (100, 1000, 10_000):
            rows, noise, sigma = sizes_of(kind, clients, rng), 200 / (0.98 * rho), 1 / math.sqrt(0.04 * rho)
            counts, ratios = counts_of(rows, cells), []
            best = min(error_of(rows, cap, noise) for cap in cells)
            for _ in range(20):
                cap = cap_of(list(counts + sigma * rng.standard_normal(len(cells))), sigma, clients, 1000, noise)
                ratios.append(math.sqrt(error_of(rows, cap, noise) / best))
            assert np.mean(ratios) < 1.1, (rho, clients, np.mean(ratios))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=41), st.floats(1e-6, 1e4), st.integers(1, 10**6))
def test_whatever_the_noise_the_clients_are_no_more_than_took_part(
    counts: list[float], sigma: float, clients: int
) -> None:
    found = clients_in(counts, sigma, clients)
    assert len(found) == len(counts) and min(found) >= 0.0 and math.fsum(found) <= clients * (1 + 1e-9)
    seen = max((j for j, count in enumerate(found) if count), default=-1)
    free = [count for count in counts[: seen + 1] if count > 0.0]
    if math.fsum(free) > clients * (1 + 1e-9):  # the nearest such numbers: all less the same level
        levels = [count - own for count, own in zip(counts, found, strict=True) if own > 0.0]
        assert levels == pytest.approx([levels[0]] * len(levels), abs=1e-3) and levels[0] >= 0.0


def test_noise_alone_seldom_puts_anybody_behind_the_largest_client() -> None:
    """1% of the draws at most. 3,000 draws; false alarm of this test: below 1e-6 (60 of them, 5.5 deviations)."""
    cells, rng, sigma = grid(1000), np.random.default_rng(4), 17.0
    counts = counts_of(np.full(2000, 11), cells)
    own = place(11, cells)
    assert own is not None
    draws = counts + sigma * rng.standard_normal((3000, len(cells)))
    assert sum(any(clients_in(list(draw), sigma, 2000)[own + 1 :]) for draw in draws) <= 60


def test_where_nothing_stands_out_it_is_one_row() -> None:
    assert cap_of([0.0] * len(grid(100)), 5.0, 8, 100, 10.0) == 1
    assert cap_of([-3.0] * len(grid(100)), 5.0, 8, 100, 10.0) == 1


# Ledgers --------------------------------------------------------------------------------------------------------------


def test_a_ledger_enters_row_counts_for_a_client_and_nothing_else_before_it_is_capped() -> None:
    ledger = Ledger(PrivacyBudget(1.0, 1e-5), unit=UNCAPPED, assumptions={"rows_per_client": "auto"})
    counts = Release(ROW_COUNTS, 0, GAUSSIAN, sigma=20.0, replaced=COUNTS)
    other = Release("rows", 0, GAUSSIAN, sigma=2000.0)
    with pytest.raises(ValueError, match="not known yet how many rows"):
        ledger.charge(other)
    whole = ledger.remaining_rho
    ledger.charge(counts)
    assert ledger.releases == (counts,) and ledger.remaining_rho == pytest.approx(whole - counts.rho)
    again = Ledger.from_dict(ledger.to_dict())
    assert again.unit is UNCAPPED and again.spent == ledger.spent
    left = ledger.remaining_rho
    ledger.capped(ClientUnit(7))
    assert ledger.remaining_rho == pytest.approx(left / 49) and ledger.assumptions["rows_per_client"] == 7
    ledger.charge(other)
    assert [entry.sensitivity for entry in ledger.releases] == [1.0, 7.0]
    assert Ledger.from_dict(ledger.to_dict()).unit == ClientUnit(7)
    with pytest.raises(ValueError, match="once in a run"):
        ledger.capped(ClientUnit(8))


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sketch_aim", "augflaim"])  # row counts in a sum, and each client's own
def test_a_run_finds_it_first_pays_for_it_and_spends_the_rest(name: str) -> None:
    outcome = run(name)
    ledger = outcome.strategy.ledger
    first, *rest = ledger.releases
    cap = ledger.unit.rows
    assert (first.name, first.sensitivity, first.replaced) == (ROW_COUNTS, 1.0, COUNTS)
    assert 1 < cap < 64 and {release.name for release in rest} >= {"rows" if name == "sketch_aim" else "sizes"}
    assert first.rho == pytest.approx(0.02 * ledger.accountant.capacity / ledger.accountant.per_rho, rel=1e-9)
    assert all(r.sensitivity >= cap * 0.99 for r in rest if r.mechanism == GAUSSIAN)
    assert ledger.epsilon() == pytest.approx(60.0, rel=1e-6)
    assert {own.unit for own in outcome.ledgers.values()} == {ClientUnit(cap)}
    assert max(own.epsilon() for own in outcome.ledgers.values()) == pytest.approx(60.0, rel=1e-6)
    names = [e.envelope["request"] for e in outcome.tape.exchanges if e.partition == 3]
    assert names[:3] == ["join", "row-counts", "cap"] and names.count("row-counts") == 1
    assert any(f"at most {cap} rows of a client take part" in note for note in outcome.strategy.records[0].notes)


def test_at_most_so_many_rows_of_a_client_take_part_afterwards() -> None:
    outcome = run()
    cap = outcome.strategy.ledger.unit.rows
    for partition, rows in enumerate(SIZES):
        sent = [e.contribution for e in outcome.tape.exchanges if e.partition == partition and e.contribution]
        counted = [part.dense() for part in sent if part.length == sum(SHAPE)]
        assert counted and {int(part.sum()) for part in counted} == {min(rows, cap) * len(SHAPE)}
        (cells,) = [part.dense() for part in sent if part.length == len(grid(64))]
        assert cells.sum() == bool(rows)


def test_report_statement_and_explanation_say_it() -> None:
    report = run().strategy.ledger.report()
    cap = report["rows_per_client"]
    assert isinstance(cap, int) and report["assumptions"]["rows_per_client"] == cap
    assert report["unit"] == report["statement"]["unit"]
    assert report["unit"] == f"one client with all of its rows, of which at most {cap} take part"
    assert "differ in the rows of one client" in report["adjacency"]
    cost, sees = report["statement"]["cost"], report["statement"]["server_sees"]
    assert cost.startswith("finding how many rows of a client take part, at most 64: once 1/(2 sigma^2), of a client")
    assert f"of the rest a client pays {cap}^2 times" in cost and sees.startswith("first, noisy counts of clients by")
    config = auto_config()
    meaning = explain(config, TABLE.schema.domain, client_class("fed_naive_bayes"))
    assert [asked.name for asked in meaning.requests][:4] == ["join", "row-counts", "cap", "rows"]
    said = meaning.render(10_000)
    assert "of the rest a client pays c^2 times" in said and "take part that the run finds first" in said
    assert "times the rows with which a client takes part" in said
    fixed = explain(auto_config(privacy={"rows_per_client": 9}), TABLE.schema.domain, client_class("fed_naive_bayes"))
    assert not {"row-counts", "cap"} & {asked.name for asked in fixed.requests}


def test_a_secure_sum_finds_what_its_simulation_does() -> None:
    models = []
    for protocol in ("plain", "secagg"):
        outcome = run(aggregation={"protocol": protocol, "noise": "distributed"})
        models.append({name: array.tobytes() for name, array in outcome.arrays.items()})
    assert models[0] == models[1]


# Who refuses what -----------------------------------------------------------------------------------------------------


def a_client(outcome: Outcome, partition: int = 4, **privacy: Any) -> Any:
    federation, config = outcome.federation, auto_config(privacy=privacy)
    holder = Holder(partition, PARTS[partition], federation.domain, federation.table.schema.sha256, Randomness(0))
    return client_class("fed_naive_bayes")(config, holder)


def asked(client: Any, sent: Any, arrays: Any = None, sums: Any = None, **params: Any) -> dict[str, Any]:
    envelope = {**sent.envelope, "params": {**sent.envelope["params"], **params}, "config": client.config.sha256}
    if sums is not None:
        envelope["sum"] = {**sent.envelope["sum"], **sums}
    given = list(sent.arrays) if arrays is None else arrays
    return dict(json.loads(client.fit(given, {ENVELOPE: to_json(envelope)})[2][ANSWER]))


def test_a_client_keeps_to_the_order_and_to_the_rule() -> None:
    outcome = run()
    sent = {e.envelope["request"]: e for e in outcome.tape.exchanges if e.partition == 4}
    client = a_client(outcome)
    first = "how many rows of a client take part is to be found before anything else"
    for name in ("rows", "one-way"):
        assert asked(client, sent[name])["message"] == first and client.ledger.spent_rho == 0.0
    less = asked(client, sent["row-counts"], sums={"sigma": 0.9 * sent["row-counts"].envelope["sum"]["sigma"]})
    assert "less noise than the run's plan" in less["message"] and client.ledger.spent_rho == 0.0
    assert asked(client, sent["row-counts"])["ok"] is True
    assert "as often as the run's plan has it" in asked(client, sent["row-counts"])["message"]
    (counts,), rows = sent["cap"].arrays, sent["cap"].envelope["params"]["rows"]
    other = "the rule gives a different number of rows per client for the released counts"
    for bad in (rows + 1, max(1, rows // 2), 10**6):
        assert asked(client, sent["cap"], rows=bad)["message"] == other
    for arrays in ([], [counts[:-1]], [counts.astype(np.float32)], [counts * np.nan], [np.full_like(counts, 1e300)]):
        assert asked(client, sent["cap"], arrays)["error"] == "protocol"
    assert "cap" not in client.holder.state
    assert asked(client, sent["cap"])["ok"] is True and client.holder.state["cap"] == rows
    after = "how many rows of a client take part was found in this run, once"
    assert asked(client, sent["cap"])["message"] == asked(client, sent["row-counts"])["message"] == after
    later = a_client(outcome)
    later.holder.state |= client.holder.state
    later = client_class("fed_naive_bayes")(later.config, later.holder)
    assert later.contract.unit == later.ledger.unit == ClientUnit(rows) and len(later.codes) == min(rows, SIZES[4])
    assert asked(later, sent["rows"])["ok"] is True
    for factor, ok in ((0.995, False), (1.0, True)):  # its plan is what finding has left, for so many rows
        answer = asked(later, sent["one-way"], sums={"sigma": factor * sent["one-way"].envelope["sum"]["sigma"]})
        assert answer["ok"] is ok


def test_a_client_of_another_run_is_not_asked_for_it() -> None:
    outcome = run()
    sent = {e.envelope["request"]: e for e in outcome.tape.exchanges if e.partition == 4}
    client = a_client(outcome, rows_per_client=9)
    for name in ("row-counts", "cap"):
        assert asked(client, sent[name])["message"] == "how many rows of a client take part is not found in this run"
    assert client.ledger.spent_rho == 0.0


def test_public_row_counts_leave_nothing_to_be_found_and_older_runs_keep_their_hash() -> None:
    with pytest.raises(ConfigError, match="read a number off them"):
        auto_config(privacy={"client_sizes": "public"})
    with pytest.raises(ConfigError, match="rows_per_client"):
        auto_config(privacy={"rows_per_client": "some"})
    fixed = auto_config(privacy={"rows_per_client": 5, "largest_cap": 1000})
    assert not {"largest_cap", "cap_share"} & fixed.to_dict()["privacy"].keys()
    found = auto_config().to_dict()["privacy"]
    assert found["rows_per_client"] == "auto" and found["largest_cap"] == 64 and "cap_share" not in found
