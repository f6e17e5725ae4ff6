"""No cell decides whether its holder takes part: two neighbours give the same public files but for values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsyn.loading import parse_config
from fedsyn.runs.engines import run
from fedsyn.runs.holders import load_rows
from support.neighbours import PAIRS, csv, public_shape, schema_for


def ran(folder: Path, lake: Path, schema: str, engine: str) -> Path:
    """Runs three holders, of whom lake is one, and returns the folder of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.yaml").write_text(schema, encoding="utf-8")
    others = [csv(folder / name, seed=seed) for seed, name in enumerate(("north", "south"))]
    document: dict[str, Any] = {
        "mechanism": {"name": "fed_naive_bayes", "rounds": 1},
        "data": {"source": [str(lake), *map(str, others)], "schema": str(folder / "schema.yaml")},
        "federation": {"clients": 3, "partition": "native", "minimum_cohort": 3},
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
        "aggregation": {"protocol": "secagg", "noise": "distributed"},
        "evaluation": [],
        "runtime": {"engine": engine, "seed": 5},
    }
    run(parse_config(document), folder / "out")
    return folder / "out"


def both(what: str, folder: Path, engine: str = "inprocess") -> list[Path]:
    """Runs on a table with the row and on one without."""
    schema, sides = schema_for(what), {"with": True, "without": False}
    lakes = {side: PAIRS[what](folder / side / "lake", is_there) for side, is_there in sides.items()}
    return [ran(folder / side, lake, schema, engine) for side, lake in lakes.items()]


def sent(out: Path) -> list[list[float]]:
    """Returns the messages of each round, and their bytes."""
    lines = [json.loads(line) for line in (out / "measured.jsonl").read_text(encoding="utf-8").splitlines()]
    return [[line["messages"], line["bytes_up"], line["bytes_down"]] for line in lines]


def require_alike(one: Path, other: Path) -> None:
    shape = public_shape(one)
    (joined, *_) = shape["rounds.jsonl"]
    assert joined["not_joined"] == [] and len(joined["cohort"]) == 3
    assert shape == public_shape(other)
    np.testing.assert_allclose(sent(one), sent(other), atol=40)  # a released number has more or fewer digits


@pytest.mark.parametrize("what", PAIRS)
def test_a_holder_is_in_a_run_with_and_without_the_row(what: str, tmp_path: Path) -> None:
    require_alike(*both(what, tmp_path))


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_on_ray_too(tmp_path: Path) -> None:
    require_alike(*both("a word for a number", tmp_path, "ray"))


@pytest.mark.parametrize("what", PAIRS)
def test_a_row_changes_the_codes_of_no_other(what: str, tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(schema_for(what), encoding="utf-8")
    codes = []
    for side in ("with", "without"):
        data = PAIRS[what](tmp_path / side, side == "with")
        codes.append(load_rows(str(data), str(tmp_path / "schema.yaml"), None, None).codes)
    more, fewer = (sorted(map(tuple, each.tolist())) for each in codes)
    assert len(more) - len(fewer) in (0, 1)
    for row in fewer:
        more.remove(row)
    assert len(more) <= 1
