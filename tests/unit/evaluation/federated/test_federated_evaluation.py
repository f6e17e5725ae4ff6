"""Holders are asked how good a table is: what a row moves, what the sums say, and what a client refuses."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom
from unit.privacy.test_neighbouring_persons import AWKWARD
from unit.privacy.test_neighbouring_persons import SHAPE as PERSONS
from unit.privacy.test_neighbouring_persons import holder as holder_of_persons

from fedsyn.domain import Domain
from fedsyn.errors import BudgetExceeded, ConfigError, ProtocolError
from fedsyn.evaluation.boxes import Boxes
from fedsyn.evaluation.federated.intervals import MISS, HolderSums, Interval
from fedsyn.evaluation.federated.question import TableQuestion, compared_cliques
from fedsyn.evaluation.federated.statistics import Entries, vector
from fedsyn.evaluation.inputs import EvaluationInput
from fedsyn.evaluation.real.metrics import evaluate
from fedsyn.evaluation.trees import MOST_CLASSES, Trees, train_trees
from fedsyn.front.testing.harness import config_of, execute, federation_of, finished
from fedsyn.front.testing.schemas import awkward_names, awkward_table
from fedsyn.loading import parse_config
from fedsyn.privacy import GAUSSIAN, Ledger, PrivacyBudget, Release, sigma_for_rho
from fedsyn.protocol.client import OneWay
from fedsyn.protocol.common import Evaluate
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class
from fedsyn.runs.engines import run
from fedsyn.runs.federated_evaluation import question_about
from fedsyn.table.counting.workload import Workload, all_kway
from fedsyn.wire.holder import Holder
from support.halves import asked

SHAPES = [(2,), (1, 3), (3, 2, 4), (5, 1, 2, 2), (2, 30)]


def a_question(shape: tuple[int, ...], rng: np.random.Generator, rows: int = 40) -> TableQuestion:
    """A random table with boxes, and with trees where its label has two values at least."""
    domain = Domain(tuple(f"c{i}" for i in range(len(shape))), shape)
    table = rng.integers(0, shape, (rows, len(shape))).astype(np.uint8)
    workload = all_kway(domain, min(2, len(shape)))
    boxes, number = Boxes.none(), 25
    if len(shape) > 1:
        axes = np.argsort(rng.random((number, len(shape))), axis=1)[:, :2]
        low = rng.integers(0, np.array(shape)[axes])
        high = rng.integers(low - 1, np.array(shape)[axes])
        boxes = Boxes(axes.astype(np.int32), low.astype(np.int32), high.astype(np.int32))
    question = TableQuestion(domain, compared_cliques(workload), table, boxes, a_stump(shape), len(shape) - 1)
    question.check()
    return question


def a_stump(shape: tuple[int, ...]) -> Trees:
    """One tree for each score, which looks at the first column; of one column there is nothing to look at."""
    classes = np.arange(min(shape[-1], MOST_CLASSES), dtype=np.int32)
    scores = len(classes) if len(classes) > 2 else 1
    nodes, values = np.zeros((scores, 3, 4), np.int32), np.zeros((scores, 3))
    if len(shape) == 1:
        return Trees(nodes[:0], values[:0], np.zeros(scores), classes)
    nodes[:, 0] = 0, 1, 1, 2
    values[:, 1:] = np.random.default_rng(4).normal(0.0, 1.0, (scores, 2))
    return Trees(nodes, values, np.zeros(scores), classes)


def sums_of(
    question: TableQuestion, parts: list[np.ndarray], sizes: list[float], sigma: float, rng: Any, off: float
) -> HolderSums:
    entries = Entries.of(question, off != 0)
    total = max(sum(sizes), 1.0)
    exact = sum(vector(question, entries, part, size, total) for part, size in zip(parts, sizes, strict=True))
    noise = sigma * entries.sensitivity
    noisy = exact + rng.normal(0.0, noise, len(entries.moves)) if sigma else exact.astype(float)
    return HolderSums.of(question, entries, noisy, max(noise, 1e-12), sum(sizes), off, len(parts))


def exact_figures(question: TableQuestion, rows: np.ndarray) -> dict[str, float]:
    """The same figures without noise, by other code."""
    data = EvaluationInput(
        train=rows, domain=question.domain, workload=Workload.uniform(question.cliques), synthetic=question.table
    )
    found = evaluate(["workload_error"], data)
    if len(question.boxes):
        inside = [
            np.mean(
                [all(lo <= row[a] <= hi for a, lo, hi in zip(*box, strict=True)) for row in table.astype(int).tolist()]
            )
            for table in (rows, question.table)
            for box in zip(*(a.tolist() for a in question.boxes.arrays()), strict=True)
        ]
        found["range_query_error"] = float(np.abs(np.subtract(*np.array_split(inside, 2))).mean())
    if question.trees.there and question.label is not None:
        found["accuracy"] = float(np.mean(question.trees.predict(rows) == rows[:, question.label]))
    for axis, (name, size) in enumerate(zip(question.domain.attributes, question.domain.shape, strict=True)):
        shares = [np.bincount(t[:, axis], minlength=size) / len(t) for t in (rows, question.table)]
        found[f"column_score: {name}"] = float(1.0 - np.abs(shares[0] - shares[1]).sum() / 2.0)
    return found


# What a row moves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_moves_no_entry_farther_than_is_charged(shape: tuple[int, ...]) -> None:
    """Every row that there can be (some of many) is added to tables of 0 to 30 rows."""
    rng = np.random.default_rng(5)
    question = a_question(shape, rng)
    entries = Entries.of(question, True)
    everything = np.array(list(product(*map(range, shape))), np.uint8)
    most = np.zeros(len(entries.moves), np.int64)
    for rows in (0, 1, 7, 30):
        codes = rng.integers(0, shape, (rows, len(shape))).astype(np.uint8)
        own = float(rng.uniform(0.5, 60.0))
        before = vector(question, entries, codes, own, 3 * own)
        for row in rng.permutation(everything)[:60]:
            after = vector(question, entries, np.vstack([codes, row]), own, 3 * own)
            most = np.maximum(most, np.abs(after - before))
    assert (most <= entries.moves).all()
    assert most[entries.names.index("rows")] == entries.moves[entries.names.index("rows")]
    assert most.max() == max(entries.moves)  # the bound is reached: a smaller one would be wrong
    assert entries.sensitivity == pytest.approx(math.sqrt(sum(m * m for m in entries.moves)))


def test_a_person_moves_no_entry_farther_than_is_charged() -> None:
    """Whole persons, brute force: of each the holder counts one record, however many rows somebody has."""
    question = a_question(PERSONS, np.random.default_rng(1), 60)
    for number, count_rows in product((0, 1), (False, True)):
        entries, whole = Entries.of(question, count_rows), holder_of_persons(number, None)
        for own in (0.0, 11.5, 40.0):
            exact = vector(question, entries, whole, own, 60.0)
            for person in AWKWARD:
                less = vector(question, entries, holder_of_persons(number, person), own, 60.0)
                assert (np.abs(exact - less) <= entries.moves).all(), person
                assert np.linalg.norm(exact - less) <= entries.sensitivity * (1 + 1e-12)


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_a_row_apart_moves_what_is_counted_there_and_nothing_else(shape: tuple[int, ...]) -> None:
    """Every row, added to either part: the norm of what it moves is within the sensitivity, which is less than both."""
    rng = np.random.default_rng(6)
    question = a_question(shape, rng)
    entries = Entries.of(question, True, True)
    there = np.array([name in ("correct", "tested") for name in entries.names])
    assert there.sum() == 2
    farthest = {"here": 0.0, "there": 0.0}
    for size in (0, 5, 30):
        codes, apart = (rng.integers(0, shape, (n, len(shape))).astype(np.uint8) for n in (size, size // 2))
        own = float(rng.integers(0, 40))
        before = vector(question, entries, codes, own, 3 * own, apart)
        for row in product(*map(range, shape)):
            one = np.array([row], np.uint8)
            here = vector(question, entries, np.vstack([codes, one]), own, 3 * own, apart) - before
            gone = vector(question, entries, codes, own, 3 * own, np.vstack([apart, one])) - before
            assert not here[there].any() and not gone[~there].any()
            farthest["here"] = max(farthest["here"], float(np.linalg.norm(here)))
            farthest["there"] = max(farthest["there"], float(np.linalg.norm(gone)))
    assert max(farthest.values()) <= entries.sensitivity < math.sqrt(sum(m * m for m in entries.moves))
    assert farthest["there"] == pytest.approx(64 * math.sqrt(2.0))


@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) > 1])
def test_no_row_is_in_more_boxes_than_their_depth(shape: tuple[int, ...]) -> None:
    for seed in range(5):
        boxes = a_question(shape, np.random.default_rng(seed)).boxes
        everything = np.array(list(product(*map(range, shape))))
        deepest = max(int(boxes.counts(row[None]).sum()) for row in everything)
        assert max(deepest, 1) <= boxes.depth <= len(boxes)


def test_the_depth_is_exact_where_boxes_lie_apart() -> None:
    sides = [np.array([[0, 1]] * 4, np.int32), np.array([[0, 0], [2, 0], [0, 2], [2, 2]], np.int32)]
    assert Boxes(sides[0], sides[1], sides[1] + 1).depth == 1


# What the sums say ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("holders", [1, 3])
def test_without_noise_the_bounds_hold_for_every_table(shape: tuple[int, ...], holders: int) -> None:
    for seed in range(6):
        rng = np.random.default_rng([seed, holders])
        question = a_question(shape, rng)
        rows = (rng.random((60, len(shape))) ** 2 * np.array(shape)).astype(np.uint8)
        parts = np.array_split(rows[np.argsort(rows[:, 0])], holders)  # holders that differ
        sizes = [float(len(part)) for part in parts]
        found = sums_of(question, parts, sizes, 0.0, rng, 0.0).intervals()
        for name, value in exact_figures(question, rows).items():
            assert found[name].low - 1e-9 <= value <= found[name].high + 1e-9, name
        if holders == 1:  # nothing but rounding is left: cells of a table by a part of a row, entries by one
            assert max(f.high - f.low for f in found.values()) < 0.1


@pytest.mark.thorough
@pytest.mark.parametrize("off", [0.0, 4.0, math.inf])
@pytest.mark.parametrize("holders", [1, 4])
def test_intervals_hold_the_exact_figures(off: float, holders: int) -> None:
    """400 draws of the noise; more misses than chance has at 5% come up once in 10^5 such tests (13 intervals each)."""
    rng, shape, runs = np.random.default_rng(11), (3, 2, 4), 400
    question = a_question(shape, rng)
    rows = (rng.random((900, 3)) ** 2 * np.array(shape)).astype(np.uint8)
    parts = np.array_split(rows, holders)
    exact, misses = exact_figures(question, rows), dict.fromkeys(exact_figures(question, rows), 0)
    for _ in range(runs):
        noise = 0.0 if off in (0.0, math.inf) else off / math.sqrt(holders)
        sizes = [max(1.0, len(part) + rng.normal(0.0, noise)) for part in parts]
        found = sums_of(question, parts, sizes, 8.0, rng, off).intervals()
        for name, value in exact.items():
            misses[name] += not found[name].low <= value <= found[name].high
    assert max(misses.values()) <= binom.isf(1e-6, runs, MISS)
    if off == 0.0:  # and the one figure that is a plain count misses about as often as it says
        assert misses["accuracy"] >= binom.ppf(1e-5, runs, MISS)


@pytest.mark.thorough
@pytest.mark.parametrize(("tested", "share"), [(4000, 0.8), (300, 0.1), (40, 0.5)])
def test_held_out_accuracy_holds_as_often_as_it_says(tested: int, share: float) -> None:
    """4,000 draws: Fieller's interval misses in 5% (fewer where it is cut at 0 and 1), up to chance once in 10^6."""
    rng, runs = np.random.default_rng(12), 4000
    question = a_question((3, 2, 4), rng)
    entries = Entries.of(question, False, True)
    noise, right, wide = 6.0, round(tested * share), 0.0
    misses = 0
    for _ in range(runs):
        values = {"correct": right + rng.normal(0, noise), "tested": tested + rng.normal(0, noise)}
        found = HolderSums(question, entries, values, dict.fromkeys(values, noise), 100.0, 0.0, 3).accuracy()
        misses += not found.low <= right / tested <= found.high
        wide = max(wide, found.high - found.low)
    assert misses <= binom.isf(1e-6, runs, MISS) and (misses >= binom.ppf(1e-6, runs, MISS) or tested < 100)
    assert wide < 24.0 * noise / tested + 1e-9 or tested < 100


@pytest.mark.thorough
@pytest.mark.parametrize("off", [4.0, math.inf])
def test_accuracy_over_a_noisy_count_misses_half_as_often_as_it_may(off: float) -> None:
    """4,000 draws of a count whose noise is normal: of the two ways to know it one misses in 2.5%, up to chance once in
    10^6 on either side.
    """
    rng, runs, rows, right, noise = np.random.default_rng(14), 4000, 900, 700, 8.0
    question, misses = a_question((3, 2, 4), rng), 0
    entries = Entries.of(question, True, False)
    for _ in range(runs):
        values = {"correct": right + rng.normal(0, noise), "rows": rows + rng.normal(0, noise)}
        own = rows + rng.normal(0, 4.0)
        found = HolderSums(question, entries, values, dict.fromkeys(values, noise), own, off, 3).accuracy()
        misses += not found.low <= right / rows <= found.high
    assert binom.ppf(1e-6, runs, MISS / 2.0) <= misses <= binom.isf(1e-6, runs, MISS / 2.0)


def test_of_too_few_rows_apart_nothing_is_known() -> None:
    question = a_question((3, 2, 4), np.random.default_rng(13))
    values = {"correct": 3.0, "tested": 2.0}
    sums = HolderSums(question, Entries.of(question, False, True), values, dict.fromkeys(values, 5.0), 100.0, 0.0, 3)
    assert sums.accuracy() == Interval(1.0, 0.0, 1.0)


# The classifier ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("classes", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_trees_that_travel_predict_as_those_that_were_trained(classes: int) -> None:
    from fedsyn.evaluation.trees import classifier

    rng = np.random.default_rng(2)
    codes = rng.integers(0, (6, classes, 9, 4), (300, 4)).astype(np.uint8)
    codes[:, 1] = np.where(rng.random(300) < 0.7, (codes[:, 0] + codes[:, 2]) % classes, codes[:, 1])
    trees = train_trees(codes, 1)
    assert not isinstance(trees, str)
    trees.check((6, max(2, classes), 9, 4), 1)
    if classes > 1:
        x = np.delete(codes, 1, axis=1).astype(np.float64)
        expected = classifier().fit(x, codes[:, 1]).predict(x)
        assert (trees.predict(codes) == expected).all() and np.mean(expected == codes[:, 1]) > 0.6
    else:
        assert (trees.predict(codes) == 0).all()
    assert train_trees(np.arange(80, dtype=np.uint8).reshape(40, 2), 1) == (
        "accuracy is asked of labels with at most 32 values"
    )


# Hostile questions ---------------------------------------------------------------------------------------------------


def _damaged() -> dict[str, Any]:
    def at(place: int, change: Any) -> Any:
        def damage(arrays: list[Any]) -> list[Any]:
            arrays[place] = change(arrays[place].copy())
            return arrays

        return damage

    def put(place: Any, value: Any) -> Any:
        def change(array: np.ndarray) -> np.ndarray:
            array[place] = value
            return array

        return change

    return {
        "too few arrays": lambda arrays: arrays[:-1],
        "signed table": at(0, lambda a: a.astype(np.int64)),
        "a code that there is not": at(0, put((0, 0), 200)),
        "an empty table": at(0, lambda a: a[:0]),
        "a flat table": at(0, lambda a: a.ravel()),
        "boxes of floats": at(1, lambda a: a.astype(np.float32)),
        "a column that there is not": at(1, put((0, 0), 9)),
        "a column twice": at(1, put(0, 1)),
        "a box below the domain": at(2, put((0, 0), -1)),
        "a box beyond the domain": at(3, put((0, 0), 99)),
        "another number of boxes": at(3, lambda a: a[:-1]),
        "a tree that leads back": at(4, put((0, 0), (0, 1, 0, 1))),
        "a tree beyond its nodes": at(4, put((0, 0), (0, 1, 500, 501))),
        "a tree that sees the label": at(4, put((0, 0), (2, 1, 1, 2))),
        "values that are not finite": at(5, put((0, 0), np.nan)),
        "a score too many": at(6, lambda a: np.zeros(9)),
        "classes out of order": at(7, lambda a: a[::-1]),
        "no classes": at(7, lambda a: a[:0]),
    }


@pytest.mark.parametrize("damage", _damaged())
def test_a_damaged_question_is_refused(damage: str) -> None:
    question = a_question((3, 2, 4), np.random.default_rng(1))
    workload = Workload.uniform(question.cliques)
    assert TableQuestion.read(question.domain, workload, question.arrays(), 2).label == 2
    with pytest.raises(ProtocolError, match="question about the table"):
        TableQuestion.read(question.domain, workload, _damaged()[damage](question.arrays()), 2)


def a_client(**evaluation: Any) -> tuple[Any, TableQuestion, Evaluate]:

    table = awkward_table("every_kind")
    config = config_of("sketch_aim", 3, evaluation=evaluation)
    codes, schema = table.encode(), table.schema
    client = client_class("sketch_aim")(config, Holder(0, codes, schema.domain, schema.sha256, Randomness(0)))
    question, _ = question_about(schema, client.contract.workload, codes[:20])
    label = 0 if question.label is None else question.label + 1
    return client, question, Evaluate(total=200.0, even=50.0, label=label)


def test_a_client_answers_only_where_the_run_says_so() -> None:
    client, question, request = a_client(federated=False)
    with pytest.raises(ProtocolError, match="does not ask its holders"):
        client.evaluate_table(asked(client, request, question.arrays()))
    client, question, request = a_client(federated=True)
    part = client.evaluate_table(asked(client, request, question.arrays()))
    assert part.count == 1 and part.values.min() >= 0


def test_a_client_refuses_less_noise_than_was_set_aside_and_a_second_time() -> None:
    client, question, request = a_client(federated=True, share=0.1)
    layout = request.layout(client.contract, question.arrays())
    rho = client.contract.budget.evaluation
    assert rho == pytest.approx(0.1 / 0.9 * client.contract.budget.table)
    client._require_planned(request, layout, rho)
    with pytest.raises(ProtocolError, match="less noise than the run's plan"):
        client._require_planned(request, layout, 1.01 * rho)
    client.ledger.charge(Release("evaluate", 1, GAUSSIAN, 1.0, sigma=sigma_for_rho(0.6 * rho)))
    with pytest.raises(ProtocolError, match="as often as the run's plan has it"):
        client._require_planned(request, layout, 0.6 * rho)


@pytest.mark.parametrize("seed", [0, None])
def test_rows_apart_are_in_no_sum_but_the_last(seed: int | None) -> None:
    """The same ones in every message, each by its own coin: a seeded run repeats them, and no state tells them."""
    table = awkward_table("every_kind")
    codes, schema = np.tile(table.encode(), (60, 1)), table.schema
    config = config_of("sketch_aim", 3, evaluation={"federated": True, "held_out": 0.25})
    state: dict[str, Any] = {}

    def client(place: int | None, rows: np.ndarray = codes) -> Any:
        return client_class("sketch_aim")(
            config, Holder(place, rows, schema.domain, schema.sha256, Randomness(seed), state)
        )

    first, again = client(0 if seed == 0 else None), client(0)
    assert len(first.codes) + len(first.apart) == len(codes) and 0.15 < len(first.apart) / len(codes) < 0.35
    assert np.array_equal(first.apart, again.apart) and np.array_equal(first.codes, again.codes)
    longer = client(0, np.vstack([codes, codes[:1]]))
    assert np.array_equal(longer.apart[: len(first.apart)], first.apart)  # the others' coins are what they were
    question, _ = question_about(schema, first.contract.workload, codes[:20])
    assert len(first.marginals(OneWay().layout(first.contract, [])).values)
    part = first.marginals(OneWay().layout(first.contract, []))
    assert part.values[: schema.domain.shape[0]].sum() == len(first.codes)
    label = 0 if question.label is None else question.label + 1
    answer = first.evaluate_table(asked(first, Evaluate(total=2000.0, even=500.0, label=label), question.arrays()))
    names = Entries.of(question, config.privacy.client_sizes != "public", True).names
    if "tested" in names:
        assert answer.values[names.index("tested")] == 64 * len(first.apart)


# The budget ----------------------------------------------------------------------------------------------------------


def test_what_is_kept_back_is_refused_until_it_is_free() -> None:
    ledger = Ledger(PrivacyBudget(1.0, 1e-5))
    whole = ledger.remaining_rho
    ledger.keep_back(0.25)
    assert ledger.remaining_rho == pytest.approx(0.75 * whole)
    ledger.charge(Release("first", 1, GAUSSIAN, 1.0, sigma=sigma_for_rho(ledger.remaining_rho)))
    more = Release("last", 1, GAUSSIAN, 1.0, sigma=sigma_for_rho(0.25 * whole))
    assert not ledger.can_afford(more)
    with pytest.raises(BudgetExceeded):
        ledger.charge(more)
    again = Ledger.from_dict(ledger.to_dict())
    assert max(again.remaining_rho, ledger.remaining_rho) == pytest.approx(0.0, abs=1e-15)
    for one in (ledger, again):
        one.keep_back(0.0)
        one.charge(more)
        assert one.epsilon() <= 1.0
    with pytest.raises(ValueError, match="below 1"):
        ledger.keep_back(1.0)


@pytest.mark.parametrize("name", awkward_names())
def test_every_awkward_table_can_be_judged(name: str) -> None:
    federation = federation_of(awkward_table(name), False)
    config = config_of("fed_naive_bayes", len(federation.parts), {"rounds": 1}, evaluation={"federated": True})
    outcome = finished(execute(config, federation))
    assert outcome.strategy.record.notes[-1] == "evaluated" and not outcome.dropped
    assert outcome.strategy.ledger.releases[-1].name == "evaluate"
    assert outcome.strategy.ledger.epsilon() == pytest.approx(1.0, abs=1e-6)


MODES: dict[str, dict[str, Any]] = {
    "private sizes": {"privacy": {"client_sizes": "private"}},
    "a client as the unit": {"privacy": {"client_sizes": "private", "unit": "client", "rows_per_client": 5}},
    "some rounds of each": {"federation": {"sampling_rate": 0.6, "max_participations": 1}},
    "local noise": {"aggregation": {"protocol": "plain", "noise": "local"}},
    "secure sums": {"aggregation": {"protocol": "secagg", "noise": "distributed"}},
    "ciphertexts": {"aggregation": {"protocol": "fhe", "noise": "distributed"}},
}


@pytest.mark.parametrize("mode", MODES)
def test_it_is_paid_from_the_budget_whatever_is_protected(mode: str) -> None:
    if mode == "ciphertexts":
        pytest.importorskip("tenseal")
    federation = federation_of(awkward_table("every_kind"), False)
    nodes = {**MODES[mode], "evaluation": {"federated": True, "share": 0.2}}
    outcome = finished(execute(config_of("sketch_aim", len(federation.parts), None, **nodes), federation))
    ledger, contract = outcome.strategy.ledger, outcome.strategy.contract
    (entry,) = [release for release in ledger.releases if release.name == "evaluate"]
    assert ledger.unit.row_rho(entry) == pytest.approx(contract.budget.evaluation, rel=1e-3)
    assert contract.budget.evaluation == pytest.approx(0.25 * contract.budget.table)
    assert ledger.epsilon() <= 1.0 and outcome.strategy.record.notes[-1] == "evaluated"
    assert "noisy sums of how far" in ledger.report()["statement"]["server_sees"]
    for own in outcome.ledgers.values():
        assert own.epsilon() <= 1.0 and sum(release.name == "evaluate" for release in own.releases) == 1


def test_a_store_of_a_trusted_server_is_followed_by_a_sum() -> None:
    federation = federation_of(awkward_table("every_kind"), False)
    outcome = finished(execute(config_of("distaim", len(federation.parts), evaluation={"federated": True}), federation))
    assert [release.name for release in outcome.strategy.ledger.releases][-1] == "evaluate"
    assert all(own.releases[-1].name == "evaluate" and own.epsilon() <= 1.0 for own in outcome.ledgers.values())


# Configuration -------------------------------------------------------------------------------------------------------


def a_config(**nodes: Any) -> Any:
    return parse_config({"data": "survey.csv", "epsilon": 1, "delta": 1e-6, **nodes})


def test_a_list_of_metrics_is_short_for_its_key() -> None:
    old, new = a_config(evaluation=["error_2way"]), a_config(evaluation={"metrics": ["error_2way"]})
    assert old == new and old.to_dict()["evaluation"]["metrics"] == ["error_2way"]
    assert a_config().evaluation.metrics == ("workload_error",) and a_config(evaluation=[]).evaluation.metrics == ()
    assert old.sha256 == a_config(evaluation=[]).sha256
    asks = a_config(evaluation={"federated": True})
    assert asks.evaluation.metrics == () and asks.sha256 != old.sha256
    assert parse_config(asks.to_dict()) == asks
    assert asks.sha256 != a_config(evaluation={"federated": True, "share": 0.1}).sha256
    assert asks.sha256 != a_config(evaluation={"federated": True, "held_out": 0.1}).sha256


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.federated.*store"):
        a_config(mechanism="distaim", evaluation={"federated": True})
    with pytest.raises(ConfigError, match="share"):
        a_config(evaluation={"federated": True, "share": 0})
    with pytest.raises(ConfigError, match="held_out is of the holders' own evaluation"):
        a_config(evaluation={"held_out": 0.1})


# Runs ----------------------------------------------------------------------------------------------------------------


def test_a_run_says_how_good_its_table_is(tmp_path: Path) -> None:
    """The written table is the one that was asked about, and the figures hold."""
    from fedsyn.runs.prepare import prepare
    from fedsyn.table.data import encode_file
    from fedsyn.table.schema import Schema

    config = parse_config(
        {
            "mechanism": {"name": "sketch_aim", "rounds": 2},
            "data": {
                "source": "synthfs",
                "bins": 6,
                "options": {"beta": 1.0, "clients": 3, "rows": 900, "features": 4},
            },
            "federation": {"clients": 3, "partition": "iid"},
            "privacy": {"epsilon": 5.0, "delta": 1e-5},
            "workload": {"degree": 2, "size": None},
            "evaluation": {"federated": True},
            "runtime": {"seed": 3},
        }
    )
    run(config, tmp_path / "out", full_page=False)
    facts = json.loads((tmp_path / "out" / "federated_evaluation.json").read_text(encoding="utf-8"))
    schema = Schema.load(tmp_path / "out" / "schema.yaml")
    made = encode_file(tmp_path / "out" / "synthetic.csv", schema)
    prepared = prepare(config, tmp_path / "rows")
    from fedsyn.table.data import EncodedTable

    data = EvaluationInput(
        train=EncodedTable(prepared.folder).pooled(),
        domain=schema.domain,
        workload=all_kway(schema.domain, 2),
        synthetic=made,
    )
    figure = facts["figures"]["workload_error"]
    assert figure["low"] <= evaluate(["workload_error"], data)["workload_error"] <= figure["high"] < 1.0
    assert facts["holders"] == 3 and facts["confidence"] == 0.95
    ledger = json.loads((tmp_path / "out" / "ledger.json").read_text(encoding="utf-8"))
    assert ledger["releases"][-1]["name"] == "evaluate" and ledger["epsilon"] <= 5.0
    assert "column_score" in (tmp_path / "out" / "report_public.html").read_text(encoding="utf-8")
