"""Four holders' nodes, a server that is honest to all of them, and one that tampers with what it sends to the first.

The nodes are `fedsyn.node.answering.Answering`, whole: gate, ledger, memory and audit log on a disk, malicious
sums. In the middle of an honest run each attack gets its message to node 0 before the honest one; what came back, and
what the ledger on the disk says, is kept. The run then goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn import yamlio
from fedsyn.config import RunConfig
from fedsyn.flower import Context, Message
from fedsyn.flower.grid import InProcessGrid
from fedsyn.flower.messages import array_record, pack, read_reply
from fedsyn.keys.holder_keys import load_operator_key, new_identity
from fedsyn.ledgers.node_ledger import NodeLedger, init_ledger
from fedsyn.loading import parse_config
from fedsyn.node.answering import Answering
from fedsyn.node.file import load_node_file
from fedsyn.node.task import NodeReply, Task
from fedsyn.protocol.federated_evaluation import federated_evaluation
from fedsyn.randomness import Randomness
from fedsyn.registry import strategy_class
from fedsyn.runs.federated_evaluation import question_about
from fedsyn.runs.run_config import run_config_of
from fedsyn.table.schema import Schema
from fedsyn.wire.envelope import ANSWER, ENVELOPE
from fedsyn.wire.orders import Subject, signed_order

HOLDERS = 4
FAB = "fa" * 32
SCHEMA = """\
label: ill
columns:
  age: {kind: numeric, lower: 0, upper: 100, bins: 5, dtype: integer}
  ward: {kind: categorical, categories: [zebra-north, zebra-south, zebra-west]}
  ill: {kind: categorical, categories: ['no', 'yes']}
"""
#: In no reply: a category of the rows, which a public schema has, but no message about a request needs.
MARK = "zebra"


def configuration(**changes: Mapping[str, Any]) -> RunConfig:
    """The run that everybody agreed to, or one with other keys."""
    document: dict[str, Any] = {
        "mechanism": {"name": "sketch_aim", "rounds": 2},
        "data": {"source": "survey"},
        "federation": {"clients": HOLDERS, "minimum_cohort": 3, "connect_timeout": 1},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "private"},
        "workload": {"degree": 2, "size": None},
        "aggregation": {
            "protocol": "secagg",
            "noise": "distributed",
            "threat": "malicious",
            "corrupted": 0.25,
            "dropout": 0.25,
        },
        "evaluation": {"federated": True, "share": 0.05, "metrics": []},
        "runtime": {"engine": "deployment"},
    }
    for key, node in changes.items():
        document[key] = {**document[key], **node}
    return parse_config(document)


#: Also agreed to: a run that asks for more than the holders' limit for life, and one of the same name as another.
GREEDY = {"privacy": {"epsilon": 9.0}}
TWIN = {"mechanism": {"rounds": 1}}


@dataclass
class Outcome:
    """What came of one attack.

    Attributes:
        reply: of the node.
        charged: rho by which the ledger on the disk grew.
    """

    reply: NodeReply
    charged: float

    @property
    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.reply.scalars[ANSWER])
        return answer


Attack = Callable[["Hospital", Task], Task]


@dataclass
class Hospital:
    """A federation of nodes, and the operator's key, which the hostile server has.

    Args:
        folder: for the files.
        seed: of the holders' rows.
        attacks: point (request, or request/stage) -> name -> attack on node 0.

    Attributes:
        outcomes: of the attacks, by name.
        honest: the honest messages that node 0 was sent, and its replies.
        strategy: the server's half of the run, once it is over.
    """

    folder: Path
    seed: int
    attacks: Mapping[str, Mapping[str, Attack]] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    honest: list[tuple[Task, NodeReply]] = field(default_factory=list)
    strategy: Any = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.schema = Schema.loads(SCHEMA)
        self.config = configuration()
        public = new_identity(self.folder / "operator.key")
        new_identity(self.folder / "stranger.key")
        agreed = [self.config.sha256, configuration(**GREEDY).sha256, configuration(**TWIN).sha256]
        folders = [self.folder / f"node{k}" for k in range(HOLDERS)]
        for each in folders:
            each.mkdir()
        keys = {k: new_identity(each / "identity.key") for k, each in enumerate(folders)}
        self.nodes = [self._node(k, each, keys, public, agreed) for k, each in enumerate(folders)]

    def _node(self, k: int, folder: Path, keys: Mapping[int, str], operator: str, agreed: list[str]) -> Answering:
        rng = np.random.default_rng([self.seed, k])
        rows = int(rng.integers(30, 90))
        lines = [
            f"{rng.integers(0, 101)},{MARK}-{rng.choice(['north', 'south', 'west'])},{rng.choice(['no', 'yes'])}"
            for _ in range(rows)
        ]
        (folder / "rows.csv").write_text("\n".join(["age,ward,ill", *lines]) + "\n", encoding="utf-8")
        (folder / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
        (folder / "roster.yaml").write_text(yamlio.dumps(dict(keys)), encoding="utf-8")
        document = {
            "name": f"node{k}",
            "superlink": "localhost:1",
            "insecure": True,
            "key": "node.key",
            "data": "rows.csv",
            "schema": "schema.yaml",
            "partition": k,
            "identity": "identity.key",
            "roster": "roster.yaml",
            "policy": {
                "lifetime": {"epsilon": 1.4, "delta": 1e-5},
                "mechanisms": ["sketch_aim"],
                "protocols": ["secagg"],
                "noise": ["distributed"],
                "threat": "malicious",
                "minimum_cohort": 3,
                "corrupted": 0.25,
                "dropout": 0.25,
                "approval": "by hash",
                "configurations": agreed,
                "operators": [operator],
            },
        }
        (folder / "node.yaml").write_text(yamlio.dumps(document), encoding="utf-8")
        file = load_node_file(folder / "node.yaml")
        file.state_folder.mkdir(mode=0o700)
        init_ledger(file.ledger_file)
        return Answering(file)

    # What the server does ---------------------------------------------------------------------------------------------

    def order(self, run: str, config: RunConfig, key: str = "operator") -> str:
        """An operator's signature under a run."""
        signer = load_operator_key(self.folder / f"{key}.key")
        return signed_order(signer, Subject(run, config.sha256, self.schema.sha256))

    def run_config(self, run: str, config: RunConfig) -> dict[str, str]:
        """What is submitted with a run, signed."""
        return run_config_of(config, schema=self.schema, run=run, order=self.order(run, config))

    def drive(self, run: str = "first") -> Any:
        """An honest run, with the attacks on the way; the server's half when it is over."""
        submitted = self.run_config(run, self.config)

        def app(message: Message, context: Context) -> Message:
            arrays, scalars = read_reply(message)
            for array in arrays:
                array.flags.writeable = False
            partition = int(context.node_config["partition-id"])
            task = Task(1, submitted, FAB, scalars, arrays)
            if partition == 0:
                self.attack(task)
            reply = self.nodes[partition].answer(task)
            if partition == 0:
                self.honest.append((task, reply))
            return Message(pack(array_record(reply.arrays), reply.scalars), reply_to=message)

        grid = InProcessGrid(app, [{"partition-id": k} for k in range(HOLDERS)], {})  # type: ignore[arg-type]
        made = strategy_class(self.config.mechanism.name)
        schema = self.schema
        strategy = made(self.config, schema.domain, self.schema.sha256, randomness=Randomness(None))
        strategy.afterwards = lambda: federated_evaluation(
            strategy, question_about(schema, strategy.workload, drawn(strategy))[0]
        )
        strategy.start(grid)
        return strategy

    def attack(self, task: Task) -> None:
        """Tries every attack of this point on node 0, which then gets the honest message."""
        facts = envelope(task)
        stage = facts.get("stage")
        point = facts["request"] if stage is None else f"{facts['request']}/{stage['name']}"
        for name, made in self.attacks.get(point, {}).items():
            if name not in self.outcomes:
                self.outcomes[name] = self.asked(made(self, task))

    def asked(self, task: Task, node: int = 0) -> Outcome:
        """What a node says to a message, and what the ledger on its disk says to that."""
        before = self.spent(node)
        reply = self.nodes[node].answer(task)
        return Outcome(reply, self.spent(node) - before)

    def spent(self, node: int = 0) -> float:
        """rho of the ledger on a node's disk, as another process reads it."""
        file = self.nodes[node].file
        return NodeLedger(file.ledger_file, file.policy.limits).spent


def drawn(strategy: Any) -> np.ndarray:
    """The synthetic table that the holders are asked about last."""
    codes: np.ndarray = strategy.model.sample(200, np.random.default_rng(0))
    return codes


# Messages ------------------------------------------------------------------------------------------------------------


def envelope(task: Task) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(task.scalars[ENVELOPE])
    return facts


def changed(task: Task, **facts: Any) -> Task:
    """The same message with other facts; `params`, `sum` and `stage` are merged into what is there."""
    old = envelope(task)
    for key, value in facts.items():
        old[key] = {**old[key], **value} if isinstance(value, dict) and isinstance(old.get(key), dict) else value
    return replace(task, scalars={ENVELOPE: json.dumps(old)})


def resubmitted(task: Task, **submitted: Any) -> Task:
    """The same message in a run of another submission."""
    return replace(task, run_config={**task.run_config, **submitted})


def without(task: Task, *keys: str) -> Task:
    """The same message without some facts."""
    return replace(task, scalars={ENVELOPE: json.dumps({k: v for k, v in envelope(task).items() if k not in keys})})
