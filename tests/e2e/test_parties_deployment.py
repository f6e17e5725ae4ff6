"""A consortium: holders' nodes, a real SuperLink and three services that compute on what nobody sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsyn.loading import load_config
from support.loopback import Federation
from support.party_services import NAMES, Services
from support.run_folders import read_lines

pytestmark = [pytest.mark.xdist_group("flower"), pytest.mark.slow]

SCHEMA = """\
columns:
  job: {kind: categorical, categories: [clerk, driver, nurse]}
  smokes: {kind: categorical, categories: ['no', 'yes']}
  floor: {kind: categorical, categories: ['0', '1', '2', '3']}
"""
RUN = """\
mechanism: {name: distaim, rounds: 2}
data: {source: survey, schema: schema.yaml, label: smokes}
federation: {clients: 3, minimum_cohort: 3}
privacy: {epsilon: 1.0, delta: 1.0e-5}
workload: {degree: 2, size: null}
aggregation:
  protocol: mpc
  noise: distributed
  parties: [alder/card.yaml, birch/card.yaml, cedar/card.yaml]
evaluation: []
runtime: {engine: deployment, superlink: loopback, operator: operator}
"""


def test_three_holders_three_parties_and_a_server_that_sees_nothing(tmp_path: Path) -> None:
    """The table is made, the books and hashes count, and a holder that agreed to nothing stays out."""
    assert NAMES == ("alder", "birch", "cedar")
    services = Services(tmp_path)
    federation = Federation(tmp_path)
    try:
        (tmp_path / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
        (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
        agreed = load_config(tmp_path / "run.yaml").sha256
        for k in range(4):
            rng = np.random.default_rng(k)
            rows = zip(
                rng.choice(["clerk", "driver", "nurse"], 200),
                rng.choice(["no", "yes"], 200),
                rng.integers(0, 4, 200),
                strict=True,
            )
            text = "\n".join(["job,smokes,floor", *(",".join(map(str, row)) for row in rows), ""])
            (tmp_path / f"{k}.csv").write_text(text, encoding="utf-8")
            keys: dict[str, Any] = {} if k == 3 else {"agreed": agreed, "partition": k}
            federation.add_node(f"holder{k}", tmp_path / f"{k}.csv", tmp_path / "schema.yaml", **keys)
        out = tmp_path / "out"
        done = federation.fedsyn_run(tmp_path / "run.yaml", out, timeout=500)
        assert done.returncode == 0, done.stderr + federation.log("superlink") + services.log("alder")
        ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
        assert ledger["private"] is True and 0 < ledger["epsilon"] <= 1.0
        assert "simulation" not in json.dumps(ledger["statement"])
        assert [entry["name"] for entry in ledger["releases"]][:2] == ["sizes", "one-way"]
        assert (out / "synthetic.csv").read_text(encoding="utf-8").startswith("job,smokes,floor")
        first, *_ = read_lines(out / "rounds.jsonl")
        assert any("must agree to the three parties" in each["why"]["sentence"] for each in first["not_joined"])
        store = sum(entry["rho"] for entry in ledger["releases"] if entry["name"] != "sizes")
        for name in NAMES:
            assert services.book(name).spent == pytest.approx(store, rel=1e-6)
    finally:
        federation.close()
        services.close()
