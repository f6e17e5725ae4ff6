"""FHAIM as a consortium runs it: holders' nodes, a real SuperLink, and one service that holds the key."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsyn.errors import ConfigError
from fedsyn.keys.holder_keys import new_identity
from fedsyn.loading import load_config
from support.crypto_services import CryptoServices
from support.loopback import Federation
from support.run_folders import read_lines

pytest.importorskip("tenseal")
pytestmark = [pytest.mark.xdist_group("flower"), pytest.mark.slow]

SCHEMA = """\
columns:
  job: {kind: categorical, categories: [clerk, driver, nurse]}
  smokes: {kind: categorical, categories: ['no', 'yes']}
  floor: {kind: categorical, categories: ['0', '1', '2', '3']}
"""
RUN = """\
mechanism: {name: fhaim, rounds: 3}
data: {source: survey, schema: schema.yaml, label: smokes}
federation: {clients: 3, minimum_cohort: 3}
privacy: {epsilon: 8.0, delta: 1.0e-5, client_sizes: public}
workload: {degree: 2, size: null}
aggregation: {protocol: fhe, noise: distributed, crypto: elder/card.yaml, roster: ROSTER}
evaluation: []
runtime: {engine: deployment, superlink: loopback, operator: operator}
"""
SPLIT = RUN.replace("clients: 3, minimum_cohort: 3", "clients: 2, minimum_cohort: 2, columns: [[floor, smokes], [job]]")
SPLIT = SPLIT.replace("crypto: elder/card.yaml", "crypto: elder/card.yaml, corrupted: 0.5, fhe: {compute: packed}")
POLICY = {"epsilon_per_run": 8.0, "epsilon_total": 16.0}


class Consortium:
    """A crypto party, a SuperLink and the data holders that have agreed to a configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.services = folder, CryptoServices(folder, policy=POLICY)
        self.federation: Federation | None = None

    def agree(self, run: str) -> None:
        """Everybody has the same configuration, with the holders' keys in it, and its hash, which the party has too."""
        keys = {k: new_identity(self.folder / f"{k}.key") for k in range(3)}
        text = "".join(f"{k}: {key}\n" for k, key in keys.items())
        (self.folder / "roster.yaml").write_text(text, encoding="utf-8")
        (self.folder / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
        (self.folder / "run.yaml").write_text(run.replace("ROSTER", json.dumps(keys)), encoding="utf-8")
        self.agreed = load_config(self.folder / "run.yaml").sha256
        self.services.kill()
        self.services.pin([self.agreed])
        self.services.start()
        self.federation = Federation(self.folder)

    def add(self, k: int, rows: Sequence[dict[str, str]], *columns: str, pinned: bool = True) -> None:
        """A node whose table has these columns and no others."""
        assert self.federation is not None
        lines = [",".join(columns), *(",".join(row[name] for name in columns) for row in rows), ""]
        (self.folder / f"{k}.csv").write_text("\n".join(lines), encoding="utf-8")
        files = (self.folder / f"{k}.csv", self.folder / "schema.yaml")
        keys = {"identity": str(self.folder / f"{k}.key"), "roster": str(self.folder / "roster.yaml"), "partition": k}
        self.federation.add_node(f"holder{k}", *files, **({"agreed": self.agreed, **keys} if pinned else {}))

    def run(self, name: str = "out") -> tuple[dict[str, Any], list[dict[str, str]]]:
        """The ledger and the table of a run that must end well; the books agree."""
        assert self.federation is not None
        before, out = self.services.spent, self.folder / name
        done = self.federation.fedsyn_run(self.folder / "run.yaml", out, timeout=500)
        said = done.stderr + self.federation.log("superlink") + self.services.log()
        assert done.returncode == 0, said
        ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
        assert ledger["private"] is True and 0 < ledger["epsilon"] <= 8.0
        assert "simulation" not in json.dumps(ledger["statement"])
        store = sum(entry["rho"] for entry in ledger["releases"])
        assert self.services.spent - before == pytest.approx(store, rel=1e-6) and self.services.book.open is None
        with (out / "synthetic.csv").open(encoding="utf-8", newline="") as file:
            return ledger, list(csv.DictReader(file))

    def close(self) -> None:
        if self.federation is not None:
            self.federation.close()
        self.services.close()


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Consortium]:
    made = Consortium(tmp_path)
    try:
        yield made
    finally:
        made.close()


def people(count: int, seed: int) -> list[dict[str, str]]:
    """Nurses smoke, and nobody else does."""
    rng = np.random.default_rng(seed)
    jobs, floors = rng.choice(["clerk", "driver", "nurse"], count), rng.integers(0, 4, count)
    return [
        {"job": str(job), "smokes": "yes" if job == "nurse" else "no", "floor": str(floor)}
        for job, floor in zip(jobs, floors, strict=True)
    ]


def share_of_smokers(table: Sequence[dict[str, str]], job: str) -> float:
    smokes = [row["smokes"] == "yes" for row in table if row["job"] == job]
    return sum(smokes) / max(1, len(smokes))


def test_three_holders_a_crypto_party_and_a_server_that_sees_nothing(consortium: Consortium) -> None:
    """The table is made, the books and hashes count, and a holder that agreed to nothing stays out."""
    consortium.agree(RUN)
    for k in range(4):
        consortium.add(k, people(200, k), "job", "smokes", "floor", pinned=k < 3)
    ledger, table = consortium.run()
    assert [entry["name"] for entry in ledger["releases"]] == ["one-way", *["select", "measure"] * 3]
    assert len(table) == 600 and list(table[0]) == ["job", "smokes", "floor"]
    # Of 200 nurses with a noise of a few records in each cell.
    assert share_of_smokers(table, "nurse") > 0.8 > 0.2 > share_of_smokers(table, "clerk")
    first, *_ = read_lines(consortium.folder / "out" / "rounds.jsonl")
    assert any("must agree to the crypto party" in each["why"]["sentence"] for each in first["not_joined"])


def test_columns_split_over_holders_are_for_simulations(tmp_path: Path) -> None:
    """Nothing binds what is opened of encrypted columns to all people, nor to the noise: no real holder is asked."""
    CryptoServices(tmp_path, policy=POLICY).close()
    (tmp_path / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    keys = {k: new_identity(tmp_path / f"{k}.key") for k in range(2)}
    (tmp_path / "run.yaml").write_text(SPLIT.replace("ROSTER", json.dumps(keys)), encoding="utf-8")
    with pytest.raises(ConfigError, match="trusts the server with what is opened and is for simulations"):
        load_config(tmp_path / "run.yaml")
