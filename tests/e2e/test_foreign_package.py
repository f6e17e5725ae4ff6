"""A mechanism, a partitioner and a metric of a package that is not this repository: in process, on Ray, in a sweep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CLIENT = '''
"""Two public pairs, measured once."""
from pydantic import Field

from fedsyn.config import Node
from fedsyn.privacy import PrivacyStatement
from fedsyn.protocol.client import Marginals, TableClient, answers
from fedsyn.protocol.contract import Contract


class Options(Node):
    pairs: int = Field(default=2, ge=1)
    iterations: int = 20
    final_iterations: int = 20


class PairsContract(Contract):
    Options = Options
    accountant = "gaussian"
    statement = PrivacyStatement(
        public="{public}", trust="{trust}", server_sees="{server}", client_sees="the names of the requests",
        cost="{n} marginals at mu^2 = 1/sigma^2; noise drawn by {noise}", sampler="{sampler}",
    )

    def words(self):
        return {"n": len(self.domain) + self.options.pairs}


class PairsClient(TableClient):
    Contract = PairsContract

    @answers(Marginals)
    def measure(self, call):
        return self.marginals(call.request.layout(self.contract, call.arrays))
'''
SERVER = """
from fedsyn.privacy import sigma_for_rho
from fedsyn.protocol.client import Marginals, OneWay
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.wire.requests import Sum
from halves.client import PairsClient


class Pairs(MechanismStrategy):
    Client = PairsClient

    def protocol(self):
        wide = [i for i, q in enumerate(self.candidates.cliques) if len(q) == 2][: self.options.pairs]
        sigma = sigma_for_rho(self.ledger.remaining_rho / (len(self.domain) + len(wide)))
        self.begin_round(1)
        measured = self.opened((yield Sum(self.everyone(), OneWay(), sigma)), [(name,) for name in self.domain])
        if wide:
            cliques = [self.candidates.cliques[i] for i in wide]
            measured += self.opened((yield Sum(self.everyone(), Marginals(cliques=wide), sigma)), cliques)
            self.selected(cliques)
        self.estimate(measured, True)
"""
EXTRAS = """
import numpy as np

from fedsyn.evaluation.inputs import Metric
from fedsyn.table.data.partition import Partitioner


class Blocks(Partitioner):
    name = "blocks"

    def assign(self, table, clients, rng):
        return np.array_split(np.arange(len(table.codes)), clients)


rows_made = Metric("rows_made", lambda data: float(len(data.synthetic)), "rows", needs=frozenset({"synthetic"}))
"""
ENTRY_POINTS = """
[fedsyn.mechanisms]
pairs = halves.server:Pairs

[fedsyn.partitioners]
blocks = halves.extras:Blocks

[fedsyn.metrics]
rows_made = halves.extras:rows_made
"""
CONFIG = """
mechanism: {name: pairs, pairs: 3}
data: {source: synthfs, bins: 8, options: {beta: 1.0, rows: 600, features: 4}}
federation: {clients: 4, partition: blocks}
privacy: {epsilon: 1.0, delta: 1.0e-5}
workload: {degree: 2, size: null}
evaluation: [workload_error, rows_made]
runtime: {seed: 1}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install` of such a package leaves: its modules, and its entry points."""
    folder = tmp_path_factory.mktemp("foreign")
    package, facts = folder / "site" / "halves", folder / "site" / "halves-0.1.dist-info"
    package.mkdir(parents=True)
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 0.1\n", encoding="utf-8")
    (facts / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    for name, text in {"__init__": "", "client": CLIENT, "server": SERVER, "extras": EXTRAS}.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    (folder / "run.yaml").write_text(CONFIG, encoding="utf-8")
    (folder / "sweep.yaml").write_text(
        "base: run.yaml\ngrid: {mechanism.pairs: [1, 2]}\nseeds: [0, 1]\n", encoding="utf-8"
    )
    return folder


def fedsyn(folder: Path, *arguments: str, installed: bool = True) -> subprocess.CompletedProcess[str]:
    """The command line, in the folder, with the package on the path or without it."""
    paths = [str(folder / "site")] if installed else []
    paths += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return subprocess.run(
        [sys.executable, "-m", "fedsyn.front.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def table(out: Path) -> bytes:
    return (out / "synthetic.csv").read_bytes()


@pytest.fixture(scope="module")
def in_process(folder: Path) -> Path:
    done = fedsyn(folder, "run", "run.yaml", "--out", "one")
    assert done.returncode == 0, done.stderr
    return folder / "one"


@pytest.mark.slow
def test_it_runs_in_process_by_the_name_of_its_entry_point(in_process: Path) -> None:
    metrics = json.loads((in_process / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["rows_made"] == len(table(in_process).splitlines()) - 1
    ledger = json.loads((in_process / "ledger.json").read_text(encoding="utf-8"))
    assert ledger["epsilon"] <= 1.0 and "marginals at mu^2" in ledger["statement"]["cost"]


@pytest.mark.slow
def test_it_runs_by_the_path_of_its_server_half(folder: Path, in_process: Path) -> None:
    done = fedsyn(folder, "run", "run.yaml", "--set", "mechanism.name=halves.server:Pairs", "--out", "two")
    assert done.returncode == 0, done.stderr
    assert table(folder / "two") == table(in_process)
    assert fedsyn(folder, "report", "two").returncode == 0


@pytest.mark.slow
def test_it_runs_on_ray(folder: Path, in_process: Path) -> None:
    done = fedsyn(folder, "run", "run.yaml", "--set", "runtime.engine=ray", "--out", "three")
    assert done.returncode == 0, done.stderr
    assert table(folder / "three") == table(in_process)


@pytest.mark.slow
def test_it_runs_in_a_sweep(folder: Path) -> None:
    done = fedsyn(folder, "sweep", "sweep.yaml", "--workers", "2", "--out", "swept")
    assert done.returncode == 0, done.stderr
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / "swept").glob("cells/*/cell.json")]
    assert len(cells) == 4 and all(cell["status"] == "done" for cell in cells)
    assert fedsyn(folder, "report", "swept").returncode == 0


@pytest.mark.slow
def test_it_passes_the_conformance_suite(folder: Path) -> None:
    code = "from fedsyn.testing import check_mechanism; check_mechanism('pairs', tables=['two_rows', 'odd_names'])"
    paths = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("halves.server:Pear", "the module 'halves.server' has no 'Pear'"),
        pytest.param("halves.sever:Pairs", "module 'halves.sever' of", marks=pytest.mark.slow),
        ("pears", "did you mean 'pairs'?"),
    ],
)
def test_a_wrong_name_is_one_sentence(folder: Path, name: str, told: str) -> None:
    done = fedsyn(folder, "run", "run.yaml", "--set", f"mechanism.name={name}")
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


def test_a_package_that_is_not_there_is_one_sentence(folder: Path) -> None:
    named = "mechanism.name=halves.server:Pairs"
    done = fedsyn(folder, "run", "run.yaml", "--set", named, "--set", "federation.partition=iid", installed=False)
    assert done.returncode == 2 and "install its package" in done.stderr and "Traceback" not in done.stderr
