"""Distributed AIM: encoding and sensitivity by brute force, local scores, Gaussian top-k, division of the budget."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.config import InferenceNode
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.front.testing.faults import vanish
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, federation_of, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.inference import EstimateConfig, Measurement, Model, estimate
from fedsyn.inference.capacity import Capacity
from fedsyn.plugins.clients.distributed_aim import (
    LARGEST,
    DistributedAimClient,
    Scores,
    decode,
    encode,
    encoded_moves,
)
from fedsyn.plugins.strategies.distributed_aim import DistributedAim
from fedsyn.privacy import PrivacyBudget
from fedsyn.protocol.client import Marginals
from fedsyn.randomness import Randomness
from fedsyn.selection.scores import l1_distances
from fedsyn.selection.views import ModelView, pack_model
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.workload import Candidates, build_workload
from fedsyn.testing import check_mechanism
from fedsyn.wire.holder import Holder
from fedsyn.wire.requests import Summed
from support.halves import asked

TABLE = awkward_table("missing_values")
DOMAIN = TABLE.schema.domain
CODES = TABLE.encode()
D = len(DOMAIN)
MU = PrivacyBudget(1.0, 1e-5).mu
NAME = "distributed_aim"
VARIANT = "experiments.variants.distributed_aim:DistributedAimVariant"
SWITCHES = {"initial", "remeasure", "printed_scores"}


def run(federation: Federation | None = None, epsilon: float = 1.0, nodes: Any = None, **options: Any) -> Outcome:
    federation = federation or federation_of(TABLE, False)
    privacy = {"epsilon": epsilon, "delta": 1e-5, **(nodes or {}).get("privacy", {})}
    name = NAME if SWITCHES.isdisjoint(options) else VARIANT
    config = config_of(name, len(federation.parts), options, **{**(nodes or {}), "privacy": privacy})
    return execute(config, federation)


def strategy_of(outcome: Outcome) -> DistributedAim:
    assert isinstance(outcome.strategy, DistributedAim)
    return outcome.strategy


def releases(outcome: Outcome, name: str) -> list[Any]:
    return [release for release in outcome.strategy.ledger.releases if release.name == name]


def a_model(seed: int = 3, total: float = 60.0) -> Model:
    rng = np.random.default_rng(seed)
    measured = [Measurement((name,), rng.random(DOMAIN.shape_of((name,))) ** 4 * 20, 1.0) for name in DOMAIN]
    return estimate(DOMAIN, measured, total=total, config=EstimateConfig(iterations=60))


def client(codes: np.ndarray, released_size: float | None = None, **options: Any) -> DistributedAimClient:
    """A client whose size is public, or one that has released its size before (and so may gain or lose a row)."""
    nodes = {} if released_size is None else {"privacy": {"client_sizes": "private"}}
    config = config_of(NAME, 4, options, **nodes)
    state = {} if released_size is None else {"size": released_size}
    return DistributedAimClient(config, Holder(0, codes, DOMAIN, TABLE.schema.sha256, Randomness(0), state))


def contribution(holder: DistributedAimClient, model: Model, eligible: list[int]) -> Any:
    return holder.scores(asked(holder, (Scores, {"eligible": eligible}), pack_model(model)))


def all_candidates() -> Candidates:
    return Candidates.of(build_workload(config_of(NAME, 4, {}).workload, DOMAIN), DOMAIN)


# Algorithms 3 and 4 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1, 7, 1000, 2**20])
def test_decoding_inverts_encoding_to_half_a_step(scale: int) -> None:
    values = np.array([0.0, 0.49, -0.51, 3.0, -7.25, 1e6 + 1 / 3, -1e6])
    assert np.abs(decode(encode(values, scale), scale) - values).max() <= 0.5 / scale * (1 + 1e-9)
    whole = np.array([-5, 0, 12345])
    assert np.array_equal(decode(encode(whole, scale), scale), whole), "counts pass unchanged"


def test_a_sum_in_the_ring_decodes_to_the_sum_with_its_sign() -> None:
    """Negative numbers wrap to the upper half of Z_2^64 and back; intermediate sums may wrap as often as they like."""
    parts = np.array([[2.5, -3.25, -0.001], [-7.0, 1.0, 0.0], [1.5, 0.25, 0.0]])
    masks = np.random.default_rng(0).integers(0, 2**64, (2, 3), dtype=np.uint64)
    masks = np.concatenate([masks, (np.uint64(0) - masks.sum(0, dtype=np.uint64))[None]])
    ring = (encode(parts, 1000).view(np.uint64) + masks).sum(axis=0, dtype=np.uint64)
    assert decode(ring.view(np.int64), 1000) == pytest.approx([-3.0, -2.0, -0.001], abs=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**53])
def test_what_cannot_be_encoded_is_refused(value: float) -> None:
    with pytest.raises(ValueError):
        encode(np.array([1.0, value]), 1)


def test_rounding_can_move_further_than_the_values_do() -> None:
    """Why a whole scale * w is not enough as a sensitivity: halves go to the even neighbour."""
    assert encode(1.5, 1) - encode(0.5, 1) == 2 == encoded_moves(1.0, 1)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.floats(0, 1e6),
    st.one_of(st.floats(0.001, 50), st.integers(1, 50).map(float)),
    st.floats(-1, 1),
    st.one_of(st.integers(1, 3000), st.just(1)),
    st.booleans(),
)
def test_encoded_values_move_no_further_than_said(x: float, moves: float, part: float, scale: int, half: bool) -> None:
    x = (round(x) + 0.5) / scale if half else x
    y = x + (moves if half else part * moves)
    assert abs(int(encode(y, scale)) - int(encode(x, scale))) <= encoded_moves(moves, scale)
    assert encoded_moves(moves, scale) <= scale * moves + 1.1


# Local scores --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1, 10, 1000])
def test_one_row_moves_the_scores_by_their_sensitivity_at_most(scale: int) -> None:
    """Brute force over added and removed rows, of an empty client too; the largest move comes near the bound."""
    candidates, eligible = all_candidates(), list(range(len(all_candidates())))
    bound = float(np.linalg.norm(encoded_moves(candidates.weights, scale).astype(float)))
    rng = np.random.default_rng(5)
    largest = 0.0
    for rows, size in ((0, 1.0), (1, 1.0), (20, 17.3), (60, 60.0)):
        codes, model = CODES[:rows], a_model(rows)
        first = contribution(client(codes, size, resolution=scale), model, eligible)
        assert first.layout.sensitivity == pytest.approx(bound, rel=1e-12)
        assert first.count == 1 and first.length == len(eligible)
        neighbours = [np.concatenate([codes, CODES[[rng.integers(60)]]]) for _ in range(12)]
        neighbours += [np.concatenate([codes, np.array([DOMAIN.shape]).astype(codes.dtype) - 1])]
        neighbours += [np.delete(codes, i, axis=0) for i in range(min(rows, 6))]
        for codes_ in neighbours:
            other = contribution(client(codes_, size, resolution=scale), model, eligible)
            moved = np.linalg.norm((other.dense() - first.dense()).astype(float))
            assert moved <= bound
            largest = max(largest, float(moved))
    # A row in a cell that the model expects nobody in moves every distance by one whole record.
    assert largest > 0.8 * scale * float(np.linalg.norm(candidates.weights))


def test_no_score_exceeds_what_the_ring_is_checked_for() -> None:
    candidates, eligible = all_candidates(), list(range(len(all_candidates())))
    strategy = strategy_of(finished(run(rounds=1)))
    yielded = strategy.score_sum((0,), eligible, 1.0)
    sums = yielded.request.layout(strategy.contract, yielded.arrays)
    for seed in range(3):
        one = CODES[[7] * 40]  # all rows alike, against models that expect them elsewhere
        assert contribution(client(one), a_model(seed), eligible).values.max() <= 40 * sums.magnitude
        assert contribution(client(one), a_model(seed), eligible).values.max() > 40 * sums.magnitude / 4
    assert sums == contribution(client(CODES), a_model(), eligible).layout
    assert yielded.sigma == sums.sensitivity
    assert candidates.weights.max() * 2000 <= sums.magnitude <= candidates.weights.max() * 2000 + 2


def test_local_scores_sum_to_no_less_than_the_score_of_all_rows() -> None:
    """The triangle inequality: why the paper's selection depends on how rows are distributed."""
    candidates, eligible, model = all_candidates(), list(range(len(all_candidates()))), a_model()
    view = ModelView(model)
    for parts in ([CODES[k::3] for k in range(3)], [CODES[np.argsort(CODES[:, 0])][20 * k :][:20] for k in range(3)]):
        summed = decode(sum(contribution(client(part), model, eligible).dense() for part in parts), 1000)
        pooled = candidates.weights * l1_distances(np.concatenate(parts), DOMAIN, candidates.cliques, view, 60.0)
        assert (summed >= pooled - 3 * 0.5 / 1000 - 1e-9).all()
        assert summed.sum() > 1.05 * pooled.sum(), "different clients: more than the pooled distance"


def test_local_scores_of_equal_clients_sum_to_the_score_of_all_rows() -> None:
    candidates, eligible, model = all_candidates(), list(range(len(all_candidates()))), a_model()
    parts = [CODES] * 4
    summed = decode(sum(contribution(client(part), model, eligible).dense() for part in parts), 1000)
    everyone = np.concatenate(parts)
    pooled = candidates.weights * l1_distances(everyone, DOMAIN, candidates.cliques, ModelView(model), 240.0)
    assert summed == pytest.approx(pooled, abs=4 * 0.5 / 1000 + 1e-9)


def test_a_client_refuses_what_it_could_not_compute_exactly() -> None:
    with pytest.raises(ProtocolError, match="eligible"):
        contribution(client(CODES), a_model(), [])
    most = LARGEST / (2 * 1000 * float(all_candidates().weights.max()))
    contribution(client(CODES, 0.99 * most), a_model(), [0, len(all_candidates()) - 1])
    with pytest.raises(ProtocolError, match=r"mechanism\.resolution"):
        contribution(client(CODES, 1.01 * most), a_model(), list(range(len(all_candidates()))))


def test_measured_marginals_are_exact_counts() -> None:
    candidates = all_candidates()
    wanted, holder = [0, len(candidates) - 1], client(CODES)
    part = holder.measure(asked(holder, Marginals(cliques=wanted)))
    exact = np.concatenate([m.ravel() for m in count(CODES, DOMAIN, [candidates.cliques[i] for i in wanted])])
    assert np.array_equal(part.dense(), exact) and part.layout.sensitivity == 1.0 and part.count == 2


# Protocol 1: top-k ---------------------------------------------------------------------------------------------------


def selecting(gains: np.ndarray, top: int = 1, remeasure: bool = True) -> list[int]:
    """What the server selects from noisy scores whose gains are these."""
    strategy = strategy_of(finished(run(rounds=1, top=top, remeasure=remeasure)))
    strategy.capacity = Capacity(DOMAIN, strategy.config.inference)
    (step,) = (step for step in strategy.contract.plan(strategy.ledger.budget.rho) if step.request is Marginals)
    eligible = list(range(len(strategy.candidates)))
    scores = (gains + strategy.penalty(eligible, step.sigma)) * strategy.options.resolution
    return strategy.select(Summed([scores], (1.0,), (0,)), eligible, step.sigma)


def test_the_best_are_selected_and_ties_go_to_the_smaller_index() -> None:
    gains = np.zeros(len(all_candidates()))
    gains[[5, 2, 9]] = [3.0, 7.0, 5.0]
    assert selecting(gains) == [2]
    assert selecting(gains, top=3) == [2, 5, 9]
    assert selecting(gains * 0, top=3) == [0, 1, 2]


def test_a_clique_inside_a_better_one_is_left_out_unless_it_may_be_measured_again() -> None:
    cliques = all_candidates().cliques
    pair = cliques.index(("age", "grade"))
    gains = np.zeros(len(cliques))
    gains[pair], gains[cliques.index(("age",))], gains[cliques.index(("city",))] = 9.0, 7.0, 5.0
    assert selecting(gains, top=2, remeasure=True) == [cliques.index(("age",)), pair]
    assert selecting(gains, top=2, remeasure=False) == [cliques.index(("city",)), pair]


@pytest.mark.parametrize("remeasure", [False, True])
def test_nothing_inside_a_measured_clique_is_scored_again_while_there_is_something_else(remeasure: bool) -> None:
    outcome = finished(run(rounds=9, top=2, remeasure=remeasure))
    cliques = strategy_of(outcome).candidates.cliques
    measured = {(name,) for name in DOMAIN}
    exhausted = 0
    for exchange in [e for e in outcome.tape.exchanges if e.partition == 0]:
        params = exchange.envelope["params"]
        if exchange.envelope["request"] == "scores":
            inside = [any(set(cliques[i]) <= set(q) for q in measured) for i in params["eligible"]]
            exhausted += all(inside)
            assert remeasure or all(inside) or not any(inside)
            assert not remeasure or len(inside) == len(cliques)
        elif exchange.envelope["request"] == "measure":
            measured |= {cliques[i] for i in params["cliques"]}
    assert remeasure or exhausted > 0, "nine rounds of two use up the six pairs, and then all may be measured again"
    assert outcome.strategy.ledger.spent == pytest.approx(MU**2, rel=1e-8)


def test_a_clique_that_the_model_cannot_take_leaves_its_place_to_the_next() -> None:
    strategy = strategy_of(finished(run(rounds=1, top=2)))
    cells = strategy.candidates.cells
    largest = int(np.argmax(cells))
    strategy.capacity = Capacity(DOMAIN, InferenceNode(max_cells=30))
    eligible = list(range(len(cells)))
    scores = np.where(np.arange(len(cells)) == largest, 1e9, np.arange(len(cells))[::-1] * 1e6)
    assert strategy.select(Summed([scores], (1.0,), (0,)), eligible, 1e-9) == [0, 1]


def test_the_penalty_is_subtracted_once_however_many_clients_there_are() -> None:
    few = strategy_of(finished(run(Federation(TABLE, (CODES[:30], CODES[30:])), rounds=1)))
    many = strategy_of(finished(run(Federation(TABLE, tuple(CODES[k::6] for k in range(6))), rounds=1)))
    eligible = list(range(len(few.candidates)))
    for strategy in (few, many):
        strategy.model = a_model()
    assert np.array_equal(few.penalty(eligible, 2.0), many.penalty(eligible, 2.0))


def test_penalties_in_cells_in_effective_cells_and_as_printed() -> None:
    kinds = {}
    for name, options in (("cells", {}), ("effective", {}), ("printed", {"printed_scores": True})):
        penalty = name if name != "printed" else "cells"
        strategy = strategy_of(finished(run(rounds=1, penalty=penalty, **options)))
        strategy.model = a_model()
        kinds[name] = strategy.penalty(list(range(len(strategy.candidates))), 2.0)
    weights, cells = strategy.candidates.weights, strategy.candidates.cells
    unit = sqrt(2 / np.pi) * 2.0
    assert kinds["cells"] == pytest.approx(unit * weights * cells)
    assert kinds["printed"] == pytest.approx(unit * cells)
    for clique, weight, value in zip(strategy.candidates.cliques, weights, kinds["effective"], strict=True):
        p = a_model().project(clique).ravel() / 60.0
        assert value == pytest.approx(unit * weight * np.sqrt(p).sum() ** 2)
    assert (kinds["effective"] <= kinds["cells"] * (1 + 1e-12)).all()
    assert kinds["effective"].sum() < 0.98 * kinds["cells"].sum()


@pytest.mark.parametrize("top", [1, 3])
def test_with_hardly_any_noise_the_largest_sums_of_local_scores_are_measured(top: int, measured: Any) -> None:
    """Recomputed from outside: the model of the exact one-way marginals, scored by every client."""
    parts = tuple(np.repeat(CODES[k::3], 500, axis=0) for k in range(3))
    outcome = finished(run(Federation(TABLE, parts), epsilon=900.0, rounds=1, top=top, iterations=400))  # pairs only
    strategy, measurements = strategy_of(outcome), measured(outcome.strategy)
    start = estimate(DOMAIN, measurements[:D], total=30_000.0, config=EstimateConfig(iterations=400))
    view, cliques = ModelView(start), strategy.candidates.cliques
    local = sum(l1_distances(part, DOMAIN, cliques, view, float(len(part))) for part in parts)
    gains = strategy.candidates.weights * local
    gains[[len(q) == 1 for q in cliques]] = -np.inf  # measured already
    expected = set(np.argsort(-gains)[:top].tolist())
    assert {cliques.index(m.clique) for m in measurements[D:]} == expected
    assert len(measurements) == D + top


# The budget ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("initial", ["one_way", "none"])
@pytest.mark.parametrize(("rounds", "top", "measure_fraction"), [(1, 1, 0.5), (3, 1, 0.9), (2, 3, 0.5)])
@pytest.mark.parametrize("sizes", ["public", "private"])
def test_the_ledger_adds_up_to_the_budget(
    rounds: int, top: int, measure_fraction: float, initial: str, sizes: str
) -> None:
    options = {"rounds": rounds, "top": top, "measure_fraction": measure_fraction, "initial": initial}
    outcome = finished(run(nodes={"privacy": {"client_sizes": sizes}}, **options))
    ledger = outcome.strategy.ledger
    assert ledger.accountant.name == "one Gaussian mechanism"
    assert ledger.spent == pytest.approx(MU**2, rel=1e-8)
    assert ledger.epsilon() == pytest.approx(1.0, rel=1e-6) and ledger.epsilon() <= 1.0
    left = MU**2 - sum(r.mu2 for r in releases(outcome, "sizes"))
    measured = D * (initial == "one_way") + rounds * top
    assert [r.mu2 for r in releases(outcome, "scores")] == pytest.approx(
        [(1 - measure_fraction) * left / rounds] * rounds
    )
    assert [r.mu2 for r in releases(outcome, "measure")] == pytest.approx(
        [top * measure_fraction * left / measured] * rounds
    )
    assert [r.count for r in releases(outcome, "one-way")] == ([D] if initial == "one_way" else [])
    for ledger_ in outcome.ledgers.values():
        assert ledger_.spent <= ledger.spent * (1 + 1e-9)


def test_fewer_cliques_than_k_share_the_rounds_budget() -> None:
    outcome = finished(run(rounds=2, top=50, measure_fraction=0.5, initial="none", remeasure=True))
    candidates = len(strategy_of(outcome).candidates)
    assert candidates < 50
    for release in releases(outcome, "measure"):
        assert release.count == candidates
        assert release.mu2 == pytest.approx(MU**2 / 4, rel=1e-8)
    assert outcome.strategy.ledger.spent == pytest.approx(MU**2, rel=1e-8)


def test_scores_are_one_vector_with_the_norm_of_the_weights_as_sensitivity() -> None:
    outcome = finished(run(rounds=2, measure_fraction=0.5))
    candidates = strategy_of(outcome).candidates
    asked = [e for e in outcome.tape.exchanges if e.envelope["request"] == "scores" and e.partition == 0]
    assert len(asked) == 2
    for release, exchange in zip(releases(outcome, "scores"), asked, strict=True):
        eligible = exchange.envelope["params"]["eligible"]
        moves = encoded_moves(candidates.weights[eligible], 1000).astype(float)
        assert release.count == 1 and release.sensitivity == pytest.approx(np.linalg.norm(moves))
        assert release.sensitivity == pytest.approx(1000 * np.linalg.norm(candidates.weights[eligible]), rel=1e-3)
        assert release.sensitivity / release.sigma == pytest.approx(MU / 2, rel=1e-8)  # half of mu^2 over two rounds


def test_the_printed_noise_is_larger_and_leaves_budget() -> None:
    ours = finished(run(rounds=2, measure_fraction=0.5, initial="none"))
    printed = finished(run(rounds=2, measure_fraction=0.5, initial="none", printed_scores=True))
    weights = strategy_of(ours).candidates.weights
    factor = sqrt(len(weights)) * weights.max() / np.linalg.norm(weights)
    assert factor > 1.05
    first, second = releases(ours, "scores")[0], releases(printed, "scores")[0]
    assert second.sensitivity == first.sensitivity
    assert second.sigma / first.sigma == pytest.approx(factor, rel=1e-3)
    assert printed.strategy.ledger.spent < 0.99 * ours.strategy.ledger.spent


# The protocol --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("initial", ["one_way", "none"])
def test_clients_answer_sums_only(initial: str) -> None:
    outcome = finished(run(rounds=2, top=2, initial=initial))
    names = [(e.envelope["request"], e.envelope["kind"]) for e in outcome.tape.exchanges if e.partition == 0]
    start = [("one-way", "sum")] if initial == "one_way" else []
    assert names == [("join", "ask"), *start, *[("scores", "sum"), ("measure", "sum")] * 2]


def test_without_one_way_marginals_the_first_scores_are_taken_against_the_uniform_distribution() -> None:
    outcome = finished(run(rounds=1, initial="none"))
    (first,) = [e for e in outcome.tape.exchanges if e.partition == 0 and e.envelope["request"] == "scores"]
    view = ModelView.of(DOMAIN, list(first.arrays), InferenceNode())
    for clique, p in zip(all_candidates().cliques, view.probabilities(all_candidates().cliques), strict=True):
        assert p == pytest.approx(np.full(DOMAIN.size(clique), 1 / DOMAIN.size(clique)))


def test_a_sum_over_some_clients_stands_for_all_of_them(measured: Any) -> None:
    """A client that leaves after the scores: the others' marginals are scaled up, and their noise with them."""
    federation = federation_of(TABLE, False)
    config = config_of(NAME, len(federation.parts), {"rounds": 1, "top": 1})
    outcome = finished(execute(config, federation, faults={0: vanish(3)}))  # join, one-way, scores
    measurements = measured(outcome.strategy)
    scale = len(CODES) / (len(CODES) - len(federation.parts[0]))
    one_way, chosen = measurements[0], measurements[-1]
    assert chosen.sigma / one_way.sigma == pytest.approx(scale) and scale > 1.4
    (released,) = [d for d in outcome.tape.draws["server"] if d.name == "measure"]
    assert chosen.values.ravel() == pytest.approx(np.concatenate([a.ravel() for a in released.output]) * scale)


@pytest.mark.parametrize(
    "options",
    [
        {"rounds": 0},
        {"rounds": None},
        {"top": 0},
        {"top": 1.5},
        {"measure_fraction": 0.0},
        {"measure_fraction": 1.0},
        {"resolution": 0},
        {"resolution": 2**20 + 1},
        {"penalty": "some"},
        {"initial": "none"},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        config_of(NAME, 4, options)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", ["cells", "effective"])
def test_conformance_of_the_printed_variant(penalty: str) -> None:
    options = {
        "rounds": 2,
        "top": 3,
        "measure_fraction": 0.5,
        "penalty": penalty,
        "initial": "none",
        "printed_scores": True,
        "remeasure": True,
    }
    check_mechanism(VARIANT, tables=["missing_values"], options=options)
