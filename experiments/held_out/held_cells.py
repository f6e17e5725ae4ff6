"""A cell of the protocol: one mechanism on some rows of one table at one epsilon, run in this process.

What is run is the library's own: the registered halves of the mechanism on the in-process Grid. A mechanism that only
sums has two clients here and the noise of a secure sum, drawn by the server: the sum of more is the same number.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import fedsyn
from experiments.held_out.held_tables import rows_of
from fedsyn import yamlio
from fedsyn.config import RunConfig, WorkloadNode
from fedsyn.domain import Clique, Domain
from fedsyn.errors import FedsynError
from fedsyn.evaluation.inputs import EvaluationInput
from fedsyn.evaluation.real.metrics import evaluate
from fedsyn.flower import Context
from fedsyn.flower.direct import TableApp
from fedsyn.flower.grid import InProcessGrid
from fedsyn.flower.state import read_state, write_state
from fedsyn.inference import AnyModel, Model
from fedsyn.loading import assign, parse_config
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class, contract_class, strategy_class
from fedsyn.selection.views import pooled_view
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.workload import build_workload
from fedsyn.wire.holder import Holder

#: What every mechanism is judged by, whatever workload it was given: 64 random triples.
WORKLOAD = WorkloadNode(degree=3, size=64, seed=0)
METRICS = ("workload_error", "nll")
DELTA = 1e-5

Assignments = tuple[str, ...]

#: The yardsticks by name: a mechanism, and what is set.
AIM: dict[str, Assignments] = {
    f"aim {penalty} T={rounds}": (
        "mechanism.name=aim",
        f"mechanism.penalty={penalty}",
        f"mechanism.rounds={'null' if rounds == 'annealed' else rounds}",
    )
    for rounds in (10, 20, "annealed")
    for penalty in ("cells", "effective")
}
ONE_WAY = {"one-way": ("mechanism.name=sketch_aim", "workload={degree: 1, size: null}")}
MST = {"mst": ("mechanism.name=mst",)}
YARDSTICKS = AIM | ONE_WAY | MST


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        table: its name.
        rows: number of training rows.
        epsilon: the budget.
        seed: of the noise.
        name: of the mechanism with its settings, for tables.
        sets: assignments KEY.KEY=VALUE.
        clients: of a mechanism that is not central.
    """

    table: str
    rows: int
    epsilon: float
    seed: int
    name: str
    sets: Assignments
    clients: int = 2

    @property
    def place(self) -> tuple[str, int, float, int]:
        """Where cells of several mechanisms are compared."""
        return self.table, self.rows, self.epsilon, self.seed

    @property
    def id(self) -> str:
        """Hash of the configuration, without the name."""
        facts = {key: value for key, value in asdict(self).items() if key != "name"}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def config(self) -> RunConfig:
        """The run's configuration."""
        document: dict[str, Any] = {
            "mechanism": {"name": "sketch_aim"},
            "data": {"source": "table", "test_fraction": 0.1},
            "privacy": {"epsilon": self.epsilon, "delta": DELTA, "client_sizes": "public"},
            "workload": WORKLOAD.model_dump(mode="json"),
            "aggregation": {"protocol": "plain", "noise": "server"},
            "evaluation": list(METRICS),
            "runtime": {"engine": "inprocess", "seed": self.seed},
            "federation": {"clients": self.clients},
        }
        for text in self.sets:
            key, _, value = text.partition("=")
            assign(document, key, yamlio.loads(value, text), text)
        return parse_config(document)


def run_cell(cell: Cell) -> dict[str, Any]:
    """The metrics of a cell, the CPU seconds of its run and what was noted; a failure is a result too."""
    facts: dict[str, Any] = {"id": cell.id, **asdict(cell), "code": code_hash()}
    table, started = rows_of(cell.table), time.process_time()
    try:
        strategy = fitted(cell.config(), table.train[: cell.rows], table.domain)
        facts["cpu"] = round(time.process_time() - started, 2)
        facts |= measures(cell, strategy.model) | {"measured": len(strategy.records)}
    except FedsynError as error:
        facts |= {"error": str(error), "cpu": round(time.process_time() - started, 2)}
    return facts


def measures(cell: Cell, model: AnyModel | None) -> dict[str, float | None]:
    """The metrics of a model in a cell; None stands for infinity, and where there is no such pair.

    Beside the model's own, `table_error` is the workload error of a table that was sampled from it, with as many rows
    as the model counts.
    """
    table = rows_of(cell.table)
    train, workload = table.train[: cell.rows], build_workload(WORKLOAD, table.domain)
    data = EvaluationInput(train=train, domain=table.domain, workload=workload, test=table.held, model=model)
    found = {name: value if np.isfinite(value) else None for name, value in evaluate(METRICS, data).items()}
    if model is not None:
        rows = model.sample(max(1, round(model.total)), Randomness(cell.seed).generator("sampled table"))
        made = EvaluationInput(train=train, domain=table.domain, workload=workload, synthetic=rows)
        found |= {"table_error": evaluate(["workload_error"], made)["workload_error"]}
    return found | pair_errors(model, train, table.domain, workload.cliques)


def pair_errors(
    model: AnyModel | None, train: np.ndarray, domain: Domain, workload: Iterable[Clique]
) -> dict[str, float | None]:
    """Mean L1 errors, 0 to 2, of the pairs that queries hold, `inside`, and of all others, `outside`."""
    asked = {pair for clique in workload for pair in combinations(clique, 2)}
    errors: dict[str, list[float]] = {"inside": [], "outside": []}
    if isinstance(model, Model):
        pairs = list(combinations(domain.attributes, 2))
        for pair, true, made in zip(pairs, count(train, domain, pairs), model.project_many(pairs), strict=True):
            off = np.abs(np.asarray(true).ravel() / len(train) - np.asarray(made).ravel() / model.total)
            errors["inside" if pair in asked else "outside"].append(float(off.sum()))
    return {name: float(np.mean(some)) if some else None for name, some in errors.items()}


def fitted(
    config: RunConfig, train: np.ndarray, domain: Domain, make_grid: type[InProcessGrid] = InProcessGrid
) -> MechanismStrategy:
    """The server half after a run over the rows, spread evenly over the clients."""
    clients = 1 if contract_class(config.mechanism.name).central else config.federation.clients
    parts = [train[k::clients] for k in range(clients)]
    schema_hash = hashlib.sha256(repr((domain.attributes, domain.shape)).encode()).hexdigest()

    def client_fn(context: Context) -> Any:
        partition, text = int(context.node_config["partition-id"]), read_state(context)
        holder = Holder(
            partition,
            parts[partition],
            domain,
            schema_hash,
            Randomness(config.runtime.seed),
            json.loads(text) if text else {},
            save=lambda kept: write_state(context, json.dumps(kept, separators=(",", ":"))),
            pooled=lambda: pooled_view(train, domain),
        )
        return client_class(config.mechanism.name)(config, holder)

    nodes = [{"partition-id": k, "num-partitions": clients} for k in range(clients)]
    strategy: MechanismStrategy = strategy_class(config.mechanism.name)(
        config, domain, schema_hash, randomness=Randomness(config.runtime.seed)
    )
    with closing(make_grid(TableApp(client_fn), nodes, {})) as grid:
        strategy.run(grid)
    return strategy


@lru_cache(maxsize=1)
def code_hash() -> str:
    """Of all code that can change a result: two checkouts that say the same compute the same."""
    package = Path(fedsyn.__file__).resolve().parent
    halves = ("plugins/clients", "plugins/strategies")
    rooms = (*halves, "aggregation", "inference", "privacy", "protocol", "selection", "table")
    files = [file for room in rooms for file in sorted((package / room).resolve(strict=True).rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


class Cache:
    """Results in a file of JSON lines. Several processes may append to it.

    Args:
        path: of the file, outside of the repository; made when the first result comes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[tuple[str, str], dict[str, Any]] = {}
        self._latest: dict[str, dict[str, Any]] = {}
        for facts in self._read():
            self._keep(facts)

    def _read(self) -> Iterator[dict[str, Any]]:
        if self.path.is_file():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    yield json.loads(line)
                except ValueError:  # the line that was being written when a process was killed
                    continue

    def _keep(self, facts: dict[str, Any]) -> None:
        self._lines[facts["id"], facts["code"]] = facts
        self._latest[facts["id"]] = facts

    def find(self, cell: Cell, *, any_code: bool = False) -> dict[str, Any] | None:
        """The result of a cell by this code, or by whatever code computed it last."""
        return self._latest.get(cell.id) if any_code else self._lines.get((cell.id, code_hash()))

    def add(self, facts: Mapping[str, Any]) -> None:
        self._keep(dict(facts))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, (json.dumps(facts, default=str) + "\n").encode())
        finally:
            os.close(handle)


def mechanism_of(sets: Iterable[str]) -> str:
    """The mechanism's name that assignments choose."""
    names = [text.partition("=")[2].strip() for text in sets if text.partition("=")[0].strip() == "mechanism.name"]
    return names[-1] if names else "sketch_aim"


def cost_of(table: str) -> float:
    """A guess at what a run costs, by which cells are ordered: cheap tables first."""
    domain = rows_of(table).domain
    return len(domain) ** 2 * float(np.mean(domain.shape))


def spread(tables: Sequence[str]) -> list[str]:
    """The tables, cheap ones first."""
    return sorted(tables, key=lambda name: (cost_of(name), name))
