"""Two neighbours on a real SuperLink: nobody learns from who takes part, or from a public file, which one it was."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.deployed import SCHEMA
from support.loopback import federation_of
from support.neighbours import PAIRS, csv, public_shape

pytestmark = [pytest.mark.xdist_group("flower"), pytest.mark.slow]

CONFIG = """\
mechanism: {name: fed_naive_bayes, rounds: 1}
data: {source: wards, schema: schema.yaml}
federation: {clients: 3, minimum_cohort: 3, connect_timeout: 90}
privacy: {epsilon: 8.0, delta: 1.0e-5}
aggregation: {protocol: secagg, noise: distributed}
evaluation: []
runtime: {engine: deployment, superlink: loopback}
"""


def released(folder: Path, lake: Path) -> dict[str, Any]:
    """Runs three nodes, of which lake's has this table; returns the public files but for values."""
    folder.mkdir(exist_ok=True)
    with federation_of(folder, SCHEMA, CONFIG) as federation:
        tables = [lake, csv(folder / "north", seed=1), csv(folder / "south", seed=2)]
        for number, table in enumerate(tables):
            federation.add_node(f"holder{number}", table, folder / "schema.yaml", partition=number)
        out = folder / "out"
        done = federation.fedsyn_run(folder / "run.yaml", out, timeout=300)
        assert done.returncode == 0, done.stderr + federation.log("holder0")
    shape = public_shape(out)
    # Which sentences on quality a README has follows the released values, and each run has a name of its own.
    shape["README.md"] = re.findall(r"the rows of [^;.]*holders", shape["README.md"])
    del shape["predicted_quality.json"], shape["ledger.json"][0]["run"], shape["config.yaml"]["runtime"]
    lines = [json.loads(line) for line in (out / "measured.jsonl").read_text(encoding="utf-8").splitlines()]
    return {**shape, "bytes": [line["bytes_up"] // 100 for line in lines], "said": done.stdout.count("\n")}


@pytest.mark.parametrize("what", ["a word for a number", "the only row"])
def test_neighbours_are_told_apart_by_nothing_but_values(what: str, tmp_path: Path) -> None:
    with_row = released(tmp_path / "with", PAIRS[what](tmp_path / "with" / "lake", True))
    without = released(tmp_path / "without", PAIRS[what](tmp_path / "without" / "lake", False))
    assert with_row["rounds.jsonl"][0]["not_joined"] == [] and len(with_row["rounds.jsonl"][0]["cohort"]) == 3
    assert with_row == without
