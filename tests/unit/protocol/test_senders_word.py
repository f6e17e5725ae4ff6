"""What a lie buys where a field is the sender's word (`docs/site/fields.py`): each is told, and no more is got for it.

`test_fields.py` names the test of each word; those that other files have anyway are not repeated here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_hostile_requests import DOMAIN as PAIR
from test_hostile_requests import INFERENCE, asked, client_of

from fedsyn.errors import FedsynError
from fedsyn.front.testing.harness import config_of
from fedsyn.inference.model import Model
from fedsyn.registry import contract_class
from fedsyn.selection.scores import l1_distances
from fedsyn.selection.terms import L1, ChoiceTerms, SquaredL2
from fedsyn.selection.views import ModelView, pack_model
from fedsyn.stores.parties.interface import run_id
from fedsyn.table.counting.marginals import count
from fedsyn.wire.envelope import SumSpec
from support.hostile_server import Hospital
from support.parties_bench import CODES, DOMAIN, Bench

# Labels --------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_superlinks_number_of_a_run_and_hash_of_an_app_are_labels_of_the_audit_log(tmp_path: Path) -> None:
    """The same bytes come back, nothing is charged, and no app is run."""
    hospital = Hospital(tmp_path / "hospital", 3)
    node = hospital.nodes[0]
    hospital.drive()
    (task, reply), other = hospital.honest[-1], {"run": 99, "fab_hash": "0" * 64}
    told = hospital.asked(replace(task, **other))
    assert told.reply.scalars == reply.scalars and told.charged == 0.0
    assert all(map(np.array_equal, told.reply.arrays, reply.arrays))
    last = json.loads((node.file.state_folder / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["flower_run"], last["app"], last["event"]) == ("99", "0" * 64, "repeated")


def test_a_round_that_stands_still_buys_requests_within_plan_and_budget_alone() -> None:
    """One participation of three rounds: the plan gives a round the whole budget, and there is no second one in it."""
    federation = {"max_participations": 1, "clients": 30, "sampling_rate": 0.1}
    aggregation = {"protocol": "plain", "noise": "local"}
    options = {"rounds": 3}
    config = config_of("fed_naive_bayes", 30, options, aggregation=aggregation, federation=federation)
    client = client_of(config)
    sigma = client.contract.steps[0].sigma * (1.0 + 1e-9)
    spec = SumSpec(((3,), (4,)), sigma, 1.0, 2, asked=3)
    answers = [asked(client, "one-way", {}, replace(spec, number=number))[1] for number in range(3)]  # all of round 1
    assert [answer["ok"] for answer in answers] == [True, False, False]
    assert client.ledger.spent <= config.privacy.epsilon * (1.0 + 1e-9)


def test_the_round_of_an_order_is_a_label() -> None:
    """The same choice and the same opening in another round: the same price, and an entry that says the other round."""
    for label in (0, 1, 2**31 - 1):
        bench = Bench()
        bench.deal()
        order = replace(bench.choice(epsilon=0.05), round=label)
        bench.parties.choose(order)
        bench.parties.open(replace(bench.opening(), round=label))
        (choice, opening) = bench.parties.halves[0]._begun.ledger.releases
        assert choice.round == opening.round == label
        assert choice.rho == pytest.approx(0.05**2 / 8) and opening.rho == pytest.approx(2 / (2 * 20.0**2))


def test_a_nonce_of_the_server_alone_makes_no_two_runs_the_same() -> None:
    one, two = Bench(), Bench()
    assert one.announcement.nonce == two.announcement.nonce and one.run != two.run
    assert one.run not in {run_id(one.announcement, []), two.run}, "the parties' own nonces are in it"
    assert "not sealed for this run" in two.parties.deal({0: one.sealed(0)})[0]


# The public numbers of a choice --------------------------------------------------------------------------------------


def hostile_terms(rng: np.random.Generator, norm: str, rows: int) -> ChoiceTerms:
    """Anything that passes `ChoiceTerms.check`."""
    contract = contract_class("distaim")(Bench().config, DOMAIN)
    able = [q for q in contract.candidates.cliques if len(q) < 3]
    cliques = tuple(able[i] for i in sorted(rng.choice(len(able), 4, replace=False)))
    sizes, scale = tuple(map(DOMAIN.size, cliques)), int(2 ** rng.integers(0, 8))
    model = rng.integers(0, scale * rows + 1, sum(sizes)) * rng.integers(0, 2, sum(sizes))
    weights = rng.choice([1, 2, 1000], len(cliques))
    penalties = rng.choice([0, 17, -(2**40), 2**40], len(cliques))
    terms = ChoiceTerms(norm, cliques, sizes, weights, penalties, model, scale, rows)
    terms.check()
    return terms


@pytest.mark.parametrize("norm", [L1.name, SquaredL2.name])
def test_whatever_model_weights_penalties_and_scale_say_a_row_moves_a_score_as_far_as_the_noise_is_for(
    norm: str,
) -> None:
    rng = np.random.default_rng(7)
    reached = 0.0
    for _ in range(40):
        kept = CODES[rng.random(len(CODES)) < 0.7]
        terms = hostile_terms(rng, norm, len(kept) + 1)
        one = terms.scores(count(kept, DOMAIN, list(terms.cliques)))
        for row in CODES[rng.choice(len(CODES), 3)]:
            other = terms.scores(count(np.vstack([kept, row]), DOMAIN, list(terms.cliques)))
            moved = np.abs(other - one)
            assert moved.max() <= terms.moved
            reached = max(reached, moved.max() / terms.moved)
    assert reached > (0.9 if norm == L1.name else 0.1), "a bound that nothing comes near to says little"


def test_too_few_rows_wrap_an_l1_score_and_move_it_no_farther() -> None:
    rng = np.random.default_rng(8)
    for rows in (1, 2, 5):
        terms = hostile_terms(rng, L1.name, rows)
        one, other = (terms.scores(count(codes, DOMAIN, list(terms.cliques))) for codes in (CODES[1:], CODES))
        assert np.abs(other - one).max() <= terms.moved


def test_too_few_rows_make_the_noise_of_a_squared_score_too_small_by_their_factor_and_no_more() -> None:
    """So every party refuses it, with the row counts that it has from the clients (`test_parties_runs`)."""
    attribute = DOMAIN.attributes[:1]
    full = np.repeat(CODES[:1], 1000, axis=0)
    size, zeros = DOMAIN.size(attribute), np.zeros(1, np.int64)
    for told in (1, 10, 1000):
        terms = ChoiceTerms(SquaredL2.name, (attribute,), (size,), zeros + 1, zeros, np.zeros(size, np.int64), 1, told)
        one, other = (terms.scores(count(codes, DOMAIN, [attribute])) for codes in (full[1:], full))
        beyond = int(np.abs(other - one).max()) / terms.moved
        assert beyond <= (2 * len(full) + 1) / (2 * told + 1) and (beyond > 1.0) is (told < len(full))


def test_rows_that_a_client_makes_up_break_a_squared_score_and_no_l1_score() -> None:
    """It says 20 rows and deals a million in one cell: beside them a row counts for that many, in a squared norm."""
    clique = next(q for q in contract_class("distaim")(Bench().config, DOMAIN).candidates.cliques if len(q) == 1)
    size, rows = DOMAIN.size(clique), 128
    for norm, breaks in ((L1.name, False), (SquaredL2.name, True)):
        zeros = np.zeros(size, np.int64)
        terms = ChoiceTerms(norm, (clique,), (size,), np.ones(1, np.int64), np.zeros(1, np.int64), zeros, 1, rows)
        wild = zeros.copy()
        wild[0] = 10**6
        more = wild.copy()
        more[0] += 1
        moved = abs(int((terms.scores([more]) - terms.scores([wild]))[0]))
        assert (moved > terms.moved) is breaks
        if breaks:
            assert moved == 2 * 10**6 + 1


# Models --------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-600.0, 600.0), min_size=12, max_size=12), st.floats(1.0, 1e6), st.integers(0, 11))
def test_against_whatever_model_a_row_moves_a_distance_by_one(potentials: list[float], total: float, cell: int) -> None:
    model = Model(PAIR, {PAIR.attributes: np.array(potentials).reshape(3, 4)}, total)
    try:
        view = ModelView.of(PAIR, pack_model(model), INFERENCE)
    except FedsynError:
        return  # refused
    codes = np.random.default_rng(1).integers(0, PAIR.shape, (30, 2)).astype(np.uint8)
    row = np.array([divmod(cell, 4)], np.uint8)
    cliques = [("a",), ("b",), ("a", "b")]
    one, other = (l1_distances(rows, PAIR, cliques, view, 30.0) for rows in (codes, np.vstack([codes, row])))
    assert np.abs(one - other).max() <= 1.0 + 1e-9
