"""A node says who it is before anything else: the coins that keep rows out of a run are its own from then on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedsyn.config import RunConfig
from fedsyn.loading import parse_config
from fedsyn.node.answering import Answering
from fedsyn.node.file import load_node_file
from fedsyn.node.task import Task
from fedsyn.protocol.client import APART
from fedsyn.wire.envelope import ANSWER
from support.node_folders import POLICY, RUN, header_of, make_node

JUDGED = {"federated": True, "share": 0.1, "held_out": 0.5, "metrics": []}
OPEN = POLICY | {"client_sizes": "any"}


def config_of(evaluation: Any) -> RunConfig:
    privacy = RUN["privacy"] | {"client_sizes": "public"}
    return parse_config(RUN | {"evaluation": evaluation, "privacy": privacy}, "run.yaml")


def joined(folder: Path, config: Any, sequence: int) -> dict[str, Any]:
    """What a node that has just been started says to `join`."""
    header = header_of(config, "join", sequence=sequence)
    node = Answering(load_node_file(folder))
    answer = node.answer(Task(7, header["run_config"], header["fab_hash"], header["scalars"], []))
    told: dict[str, Any] = json.loads(answer.scalars[ANSWER])
    assert told["ok"], told
    state: dict[str, Any] = node.memory.load("first").state
    return {"rows": told["params"]["rows"], "state": state}


def test_the_row_count_that_a_node_tells_is_that_of_the_rows_it_then_works_with(tmp_path: Path) -> None:
    config = config_of(JUDGED)
    folder = make_node(tmp_path / "node", rows=400, policy=OPEN)
    first, *others = (joined(folder, config, t) for t in range(4))
    assert 120 < first["rows"] < 280 and APART in first["state"]
    assert others == [first] * 3


@pytest.mark.parametrize("evaluation", [{**JUDGED, "held_out": 0}, []])
def test_a_node_without_coins_remembers_nothing_of_who_asked(tmp_path: Path, evaluation: Any) -> None:
    told = joined(make_node(tmp_path / "node", rows=400, policy=OPEN), config_of(evaluation), 0)
    assert told == {"rows": 400, "state": {}}
