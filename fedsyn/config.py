"""The configuration: one pydantic model per YAML node.

Unknown keys are errors with the nearest valid key.

A configuration is public: every party of a run sees all of it. `RunConfig.sha256` is the hash that requests carry, so
that a client never answers a server that runs something else than the client was told.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedsyn import yamlio
from fedsyn.errors import ConfigError, DataError, nearest, plainly
from fedsyn.settings import AggregationNode, FheNode, NamedNode, RayNode
from fedsyn.settings import FederationNode as FederationNode
from fedsyn.settings import InferenceNode as InferenceNode
from fedsyn.settings import Node as Node  # plug-ins import it from here
from fedsyn.settings import PartitionNode as PartitionNode
from fedsyn.settings import PrivacyNode as PrivacyNode

#: The mechanism of a configuration that names none: good for one holder and for many (docs/mechanisms/sketch_aim.md).
DEFAULT_MECHANISM = "sketch_aim"
#: Cliques in its workload where a configuration says nothing of them: chosen by a rule in experiments/default_workload.
#: Most other mechanisms count every cell of every clique in each round, for which fifteen times as many are too many.
DEFAULT_CLIQUES = 1000

#: Rows of a synthetic table: more would be a slip of the keyboard, noticed when the budget is spent.
MOST_ROWS = 10**9

#: Version of the files of a run. Each names it.
FORMAT = 1


def check_format(facts: Mapping[str, Any], what: str) -> None:
    """Refuses a file of another format than `FORMAT`; DataError."""
    version = facts.get("format")
    if type(version) is not int or version != FORMAT:
        raise DataError(f"{what}: expected format {FORMAT}, found {version!r}; read it with the fedsyn that wrote it")


class MechanismNode(NamedNode):
    """The mechanism's name; the other keys are that mechanism's own options.

    Attributes:
        name: as `fedsyn mechanisms` lists it, or package.module:Strategy. `mechanism: NAME` is short for it.
    """

    name: str = DEFAULT_MECHANISM


class DataNode(Node):
    """The pooled table of a simulation.

    Attributes:
        source: a registered name (`fedsyn datasets`), `synthfs`, `openml:NAME`, or the path of a CSV or Parquet file.
        holders: files of a simulation whose clients have one each; a list under `source` means the same, and says how
            many clients there are (`federation.partition: native`).
        persons: file of the persons whose rows are in `source`, or one of each client, where `privacy.unit` is 'person'
            and persons and their rows are apart.
        schema_file: YAML schema; required for a path (key `schema` in YAML).
        bins: overrides the number of equal-width bins of numeric columns.
        label: overrides the schema's label column.
        sample: share of the table's rows to use; for tables that are too large for a study.
        test_fraction: share of rows held out for evaluation: they are not in what the clients hold. null: 0.1 in a run
            with a seed, whose table is not for release, and 0 in every other one, so that a table for release is made
            from all rows.
        split_seed: seed of both choices, which takes exactly those shares; null: 0 in a run with a seed. It is not the
            run's seed, so that repetitions of an experiment share one training table (and a cached partition of it).
            In every other run it must be null: each row has coins of its own, from the operating system, and the
            shares are those that are expected.
        options: how a file is read (separator, encoding, decimal, sheet, skip_rows, header, skip_footer; found out
            where left out),
            `rename: {Age: age}` (a column's name in a file, and in the schema), or keyword arguments of a generated
            source (SynthFS: beta, clients, rows, features).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    source: str
    holders: tuple[str, ...] | None = None
    persons: tuple[str, ...] | None = Field(default=None, min_length=1)
    schema_file: str | None = Field(default=None, alias="schema")
    bins: int | None = Field(default=None, ge=1, le=65535)
    label: str | None = None
    sample: float = Field(default=1.0, gt=0, le=1)
    test_fraction: float | None = Field(default=None, ge=0, lt=1)
    split_seed: int | None = Field(default=None, ge=0)
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("persons", mode="before")
    @classmethod
    def _one_file(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _files_of_persons(self) -> DataNode:
        tables = len(self.holders or (self.source,))
        if self.persons is not None and len(self.persons) != tables:
            raise ValueError(f"persons: as many files as source has, {tables}; found {len(self.persons)}")
        return self

    @property
    def by_coins(self) -> bool:
        """Returns whether coins divide the rows that nobody can draw again."""
        return self.split_seed is None and (self.sample < 1 or bool(self.test_fraction))


class WorkloadNode(Node):
    """Workload of cliques.

    `size` random cliques of `degree` attributes (null: all of them), or explicit cliques.

    Attributes:
        degree: attributes of each clique; null: the cliques that make persons and their rows, where the table has
            several rows of one, else 3. With `privacy.unit` 'person' null where it is left out.
        size: how many cliques; null: all of that degree. With `sketch_aim` 1,000 where it is left out.
        seed: seed of the random choice. The workload is public, so this is no secret.
        cliques: explicit list of attribute lists; excludes `size`.
    """

    degree: int | None = Field(default=3, ge=1, le=8)
    size: int | None = Field(default=64, ge=1)
    seed: int = 0
    cliques: tuple[tuple[str, ...], ...] | None = None


class SynthesisNode(Node):
    """The synthetic table.

    Attributes:
        rows: how many; null: as many as the model's estimated total, at most 100,000,000 and no more than the disk
            holds. A sentence says so, and config.yaml then names the number.
        format: of its file, `synthetic.csv` or `synthetic.parquet`; null: csv.
    """

    rows: int | None = Field(default=None, ge=1, le=MOST_ROWS)
    format: Literal["csv", "parquet"] | None = None


class EvaluationNode(Node):
    """Evaluation of the table.

    A list alone stands for `metrics`; a configuration without any has `[workload_error]`.

    Attributes:
        metrics: they compare the table with real rows, in a simulation only (docs/metrics.md); [] for none.
        federated: ask the holders, by one noisy sum from the run's budget, also in a deployment;
            `federated_evaluation.json` and the page say what they answer.
        share: of the budget for that; the mechanism has the rest.
        held_out: share of its rows that each holder keeps out of the run, by a coin a row, to test the classifier on;
            with 0 it is tested on the rows that the table was made from.
    """

    metrics: tuple[str, ...] = ()
    federated: bool = False
    share: float = Field(default=0.05, gt=0, le=0.95)
    held_out: float = Field(default=0.0, ge=0, le=0.5)

    @model_validator(mode="after")
    def _held_out_for_something(self) -> EvaluationNode:
        if self.held_out and not self.federated:
            raise ValueError("held_out is of the holders' own evaluation: it needs federated: true")
        return self


#: What can name a run: a file's name anywhere, and nothing that a terminal or a path would read otherwise.
RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"


class RuntimeNode(Node):
    """The run's runtime; nothing here changes its result.

    Attributes:
        engine: 'inprocess', 'ray' (tasks of a Ray cluster) or 'deployment' (real SuperNodes).
        seed: makes the run a reproducible simulation, which is then not private. Refused by a deployment.
        superlink: Flower connection name of a deployment's SuperLink (from Flower's own configuration).
        patience: seconds for which a deployment's SuperLink may not answer until `fedsyn run` stops watching the run.
        operator: folder with the key by which the computing parties know this server (`fedsyn party keygen`).
        operator_key: file of the key that signs a deployment's order (`fedsyn operator-key`), for holders whose nodes
            obey signed orders only; null: nobody signs.
        ray: which Ray cluster, and what a task needs; null: Ray is started on this machine.
        run: the run's own name, the same at operator, holders and parties; `fedsyn run` writes it.
        nodes: Flower's numbers of the nodes that a deployment asks, each with its holder's partition; `fedsyn deploy
            run` writes them. null: whichever nodes are connected.
        holders: their names, by partition, for sentences; `fedsyn deploy run` writes them.
    """

    engine: Literal["inprocess", "ray", "deployment"] = "inprocess"
    seed: int | None = Field(default=None, ge=0)
    superlink: str | None = None
    patience: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    operator: str | None = None
    operator_key: str | None = None
    ray: RayNode | None = None
    run: str | None = Field(default=None, pattern=RUN_NAME)
    nodes: dict[int, int] | None = None
    holders: dict[int, str] | None = None

    @model_validator(mode="after")
    def _no_seeded_deployment(self) -> RuntimeNode:
        if self.engine == "deployment" and self.seed is not None:
            raise ValueError("a deployment refuses a seed: with it, the noise could be recomputed and removed")
        return self


#: What evaluation gets of a run that is repeatable, and therefore not for release.
_HELD_OUT = 0.1


class RunConfig(Node):
    """A whole run. See the nodes for the keys.

    Three keys are enough: `data` (a file's name alone stands for `data.source`), `epsilon` and `delta`, which written
    at the top stand for `privacy.epsilon` and `privacy.delta`.

    Attributes:
        evaluation: how good the table is; a list of metrics alone stands for `evaluation.metrics`, and [] for none.
    """

    mechanism: MechanismNode = Field(default_factory=lambda: MechanismNode(name=DEFAULT_MECHANISM))
    data: DataNode
    federation: FederationNode = Field(default_factory=FederationNode)
    privacy: PrivacyNode
    workload: WorkloadNode = Field(default_factory=WorkloadNode)
    aggregation: AggregationNode = Field(default_factory=AggregationNode)
    inference: InferenceNode = Field(default_factory=InferenceNode)
    synthesis: SynthesisNode = Field(default_factory=SynthesisNode)
    evaluation: EvaluationNode = Field(default_factory=lambda: EvaluationNode(metrics=("workload_error",)))
    runtime: RuntimeNode = Field(default_factory=RuntimeNode)

    @field_validator("evaluation", mode="before")
    @classmethod
    def _metrics_alone(cls, value: Any) -> Any:
        value = (value,) if isinstance(value, str) else value
        return {"metrics": tuple(value)} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _divided(self) -> RunConfig:
        is_seeded = self.runtime.seed is not None
        if self.data.split_seed is not None and not is_seeded:
            raise ValueError(
                "data.split_seed: leave it out, or set runtime.seed; in a run without a seed each row has coins of its "
                "own, so that no row decides where another one goes"
            )
        left_out = {"test_fraction": _HELD_OUT, "split_seed": 0} if is_seeded else {"test_fraction": 0.0}
        update = {key: value for key, value in left_out.items() if getattr(self.data, key) is None}
        object.__setattr__(self, "data", self.data.model_copy(update=update))
        return self

    @model_validator(mode="after")
    def _cliques(self) -> RunConfig:
        if {"size", "cliques"} & self.workload.model_fields_set:
            return self
        update: dict[str, int | None] = {"size": DEFAULT_CLIQUES} if self.mechanism.name == DEFAULT_MECHANISM else {}
        if self.privacy.unit == "person" and "degree" not in self.workload.model_fields_set:
            update["degree"] = None
        object.__setattr__(self, "workload", self.workload.model_copy(update=update))
        return self

    @model_validator(mode="after")
    def _one_holder_a_file(self) -> RunConfig:
        files, clients = self.data.holders, self.federation.clients
        if files and (clients != len(files) or self.federation.partition.name != "native"):
            raise ValueError(
                f"data.source names {len(files)} files, one of each client: leave out federation.clients and "
                f"federation.partition, or say {len(files)} and native"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values of all keys, defaults included."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def fhe(self) -> FheNode:
        """Settings of protocol 'fhe'."""
        return self.aggregation.fhe or FheNode()

    @cached_property
    def sha256(self) -> str:
        """Hash of everything that client and server must agree on.

        That leaves out the runtime, the metrics, of the data all but what changes the schema, what the server does
        where answers are missing (it may be resumed with another patience), and the engine of its fits.
        """
        document = self.to_dict()
        agreed = ("mechanism", "privacy", "workload", "aggregation", "federation", "inference")
        shared = {key: document[key] for key in agreed}
        for key in ("partition", "patience", "on_loss"):
            del shared["federation"][key]
        for key in ("engine", "estimator"):
            del shared["inference"][key]
        shared["data"] = {key: document["data"][key] for key in ("bins", "label")}
        if self.evaluation.federated:
            shared["evaluation"] = {key: document["evaluation"][key] for key in ("share", "held_out")}
        return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()

    def save(self, path: Path) -> None:
        path.write_text(yamlio.dumps({"format": FORMAT, **self.to_dict()}), encoding="utf-8")


def explain(error: ValidationError, model: type[BaseModel], where: str) -> str:
    """Returns all problems of a pydantic error as one message.

    Each says what is wrong, where, and what is allowed, with the nearest valid key.
    """
    lines = []
    unknown: dict[tuple[str, ...], list[str]] = {}
    for problem in error.errors(include_url=False):
        path = [str(part) for part in problem["loc"]]
        name = ".".join(path) or "the document"
        if problem["type"] == "extra_forbidden":
            # A typing error, a key of another node, or one that does not exist.
            allowed = _keys_at(model, path[:-1])
            allowed += ["epsilon", "delta"] if model is RunConfig and len(path) == 1 else []
            deeper = [key for key in allowed if path[-1] in _keys_at(model, [*path[:-1], key])]
            hint = f" (it stands under '{deeper[0]}')" if deeper else nearest(path[-1], allowed)
            if tuple(allowed) not in unknown:
                lines.append(f"allowed here: {', '.join(allowed) or 'none'}")
            unknown.setdefault(tuple(allowed), []).append(f"unknown key '{name}'{hint}")
        elif problem["type"] == "missing":
            hint = ": write for instance 'epsilon: 1' and 'delta: 1e-6' at the top" if name == "privacy" else ""
            lines.append(f"missing key '{name}'{hint}")
        elif problem["type"] in ("model_type", "model_attributes_type"):
            lines.append(f"{name}: expected keys below it, found a single value or a list")
        else:
            lines.append(f"{name}: {plainly(problem)}" if path else plainly(problem))
    for allowed_, keys in unknown.items():  # what is allowed is said once, behind them
        sentence = f"allowed here: {', '.join(allowed_) or 'none'}"
        lines[lines.index(sentence)] = "; ".join([*keys, sentence])
    return f"{where}: " + "; ".join(lines)


def _keys_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Returns the valid keys of the node at `path`."""
    current: Any = model
    for part in path:
        field = next(
            (f for name, f in current.model_fields.items() if part in (name, f.alias)),
            None,
        )
        if field is None:
            return []
        nodes = [kind for kind in (field.annotation, *get_args(field.annotation)) if is_node(kind)]
        if not nodes:
            return []
        current = nodes[0]
    return [field.alias or name for name, field in current.model_fields.items()]


def is_node(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


M = TypeVar("M", bound=BaseModel)


def parse_options(model: type[M], options: dict[str, Any], where: str) -> M:
    """Returns a node model from its options, with readable errors."""
    try:
        return model(**options)
    except ValidationError as error:
        raise ConfigError(explain(error, model, where)) from None


def load_options(model: type[M], path: Path | str) -> M:
    """Reads a YAML file into a node model.

    Raises:
        ConfigError: if it cannot be read; names every problem, with the nearest valid key.
    """
    document = yamlio.read_mapping(path)
    if not all(isinstance(key, str) for key in document):
        raise ConfigError(f"{path}: every key must be a string")
    loaded: M = parse_options(model, document, str(path))
    return loaded
