"""The secure sums of the Distributed AIM paper, beside the experiments on its times: right sums, whoever drops out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from experiments.bell import Bell, Bonawitz, degree_and_threshold
from fedsyn import aggregation
from fedsyn.errors import Lost
from fedsyn.front.testing.faults import Fault, vanish
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table


def run(kind: type | None, faults: Mapping[int, Fault] | None = None, **node: Any) -> Outcome:
    """Eight clients and one sum; without a kind, the simulation of it without masks."""
    table = awkward_table("odd_names")
    protocol = "plain" if kind is None else "secagg"
    made = {"protocol": protocol, "noise": "distributed", "corrupted": 0.0, "dropout": 0.25, **node}
    parts = tuple(table.encode()[k::8] for k in range(8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(aggregation.PROTOCOLS, "secagg", kind)
        config = config_of("fed_naive_bayes", 8, {"rounds": 1}, aggregation=made)
        return execute(config, Federation(table, parts), faults=faults)


def model(outcome: Outcome) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in finished(outcome).arrays.items()}


KINDS = [
    (Bell, {}, 4),
    pytest.param(Bonawitz, {}, 4, marks=pytest.mark.slow),  # its four stages are among the five below
    (Bonawitz, {"threat": "malicious"}, 5),
]


@pytest.mark.parametrize(("kind", "node", "stages"), KINDS, ids=["Bell", "Bonawitz", "malicious"])
def test_it_opens_what_its_simulation_opens_whoever_drops_out(kind: type, node: dict[str, str], stages: int) -> None:
    whole = run(kind, **node)
    assert model(whole) == model(run(None))
    asked = [e for e in whole.tape.exchanges if e.envelope["kind"] == "sum"]
    assert len(asked) == stages * 8 and not whole.dropped
    vectors = [e.reply_arrays[0] for e in asked if e.envelope["stage"]["name"] == "masked"]
    assert min(np.median(vector >> np.uint64(32)) for vector in vectors) > 2**20  # counts of a few rows are small
    for stage in range(1, stages + 1):  # after `join`, two answer one message less than the stage
        gone = {3: vanish(stage), 6: vanish(stage)}
        before = {3: vanish(1), 6: vanish(1)} if stage <= 3 else {}
        assert model(run(kind, gone, **node)) == model(run(None, before))


def test_one_dropout_too_many_opens_nothing() -> None:
    outcome = run(Bell, {k: vanish(3) for k in (1, 3, 6)})
    assert isinstance(outcome.error, Lost) and not outcome.strategy.ledger.releases


def test_degrees_are_those_that_the_experiments_were_measured_with() -> None:
    """5% corrupted, 10% dropouts, 2^-40."""
    found = {n: degree_and_threshold(n, n // 20, n // 10, 40) for n in (20, 100, 1000, 5000)}
    assert found == {20: (4, 2), 100: (16, 6), 1000: (46, 21), 5000: (52, 23)}
    assert degree_and_threshold(10, 4, 4, 40) == (9, 5), "no sparse graph is safe: the full one"
