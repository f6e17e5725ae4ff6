"""The baseline in which every holder makes a table of its own rows, and the tables are put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsyn.errors import ConfigError
from fedsyn.front.testing.faults import vanish
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import AwkwardTable
from fedsyn.inference import EmpiricalModel
from fedsyn.randomness import Randomness
from fedsyn.table.schema import Schema

ROWS = (1500, 900, 0, 1200)


def federation() -> Federation:
    """Four linked columns; each holder has its own half of the values, one has no rows."""
    rng = np.random.default_rng(0)
    column = {"kind": "categorical", "categories": list(range(8))}
    schema = Schema.from_dict({"columns": dict.fromkeys("abcd", column)})
    parts = []
    for k, rows in enumerate(ROWS):
        shared = rng.integers(0, 4, (rows, 1)) + 4 * (k % 2)
        own = rng.integers(0, 8, (rows, 4))
        parts.append(np.where(rng.random((rows, 4)) < 0.7, shared, own).astype(schema.dtype))
    table = AwkwardTable("linked", schema, schema.decode(np.concatenate(parts), rng))
    return Federation(table, tuple(parts))


FEDERATION = federation()
LOCAL = {"aggregation": {"protocol": "plain", "noise": "local"}}


def run(**named: Any) -> Outcome:
    return finished(execute(config_of("each_alone", len(ROWS), {"rounds": 2}, **LOCAL), FEDERATION, **named))


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run()


def test_each_holder_spends_the_whole_budget_on_its_own_rows(outcome: Outcome) -> None:
    ledger = outcome.strategy.ledger
    assert ledger.spent == pytest.approx(ledger.accountant.capacity, rel=1e-9)
    assert {release.clients for release in ledger.releases} == {(0,), (1,), (3,)}
    for partition in (0, 1, 3):
        mine = outcome.ledgers[partition]
        assert mine.spent == pytest.approx(ledger.accountant.capacity, rel=1e-9)
        assert {release.noise_by for release in mine.releases} == {"client"}
    assert 2 not in outcome.ledgers
    assert {len(record.cohort) for record in outcome.strategy.records[1:]} == {1}


def test_a_holders_part_is_the_table_of_the_default_with_one_holder(outcome: Outcome) -> None:
    assert isinstance(outcome.strategy.model, EmpiricalModel)
    first = outcome.strategy.model.codes[: ROWS[0]]
    one = Federation(FEDERATION.table, FEDERATION.parts[:1])
    alone = finished(execute(config_of("sketch_aim", 1, {"rounds": 2}, **LOCAL), one))
    model = alone.strategy.model
    assert model is not None and any(len(clique) > 1 for clique in model.cliques)
    assert np.array_equal(first, model.sample(ROWS[0], Randomness(0).ordinary("alone", 0)))


def test_the_tables_are_put_together_in_proportion(outcome: Outcome) -> None:
    model = outcome.strategy.model
    assert isinstance(model, EmpiricalModel)
    assert len(model.codes) == model.total == sum(ROWS)
    upper = [float((part >= 4).mean()) for part in np.split(model.codes, np.cumsum([1500, 900]))]
    assert upper[0] < 0.25 and upper[1] > 0.75 and upper[2] > 0.75  # as in the holders' rows


def test_a_lost_holder_costs_its_own_table_alone(outcome: Outcome) -> None:
    lost = run(faults={1: vanish(2)})  # it joins, and answers one request
    assert 1 in lost.dropped
    model, whole = lost.strategy.model, outcome.strategy.model
    assert isinstance(model, EmpiricalModel) and isinstance(whole, EmpiricalModel)
    assert np.array_equal(model.codes[: ROWS[0]], whole.codes[: ROWS[0]])
    assert model.total == whole.total


@pytest.mark.parametrize(
    ("nodes", "word"),
    [
        ({"aggregation": {"protocol": "secagg", "noise": "distributed"}}, "adds up nothing"),
        ({"federation": {"sampling_rate": 0.5}}, "one at a time"),
        ({"federation": {"minimum_cohort": 2}}, "one at a time"),
        ({"federation": {"max_participations": 2, "sampling_rate": 0.5}}, "one at a time"),
    ],
)
def test_what_needs_several_holders_is_refused(nodes: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        config_of("each_alone", len(ROWS), **nodes)
