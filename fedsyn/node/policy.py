"""The holder's policy against a server's requests.

It looks at public facts only, before anything of the rows is looked at.

A policy is read once, when the node starts. Whoever changes the file restarts the node; nothing that arrives over the
network changes it. Every refusal is a fixed sentence (`NodeError`): it depends on the request, the run's configuration
and the holder's file, never on a row, and quotes none of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedsyn.aggregation.base import Limits
from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, NodeError, SchemaError
from fedsyn.ledgers.limits import ACCOUNTANTS
from fedsyn.node.file import NodeFile
from fedsyn.registry import client_class, mechanisms
from fedsyn.runs.holders import require_agreed, require_all_columns, require_deployment, require_resolved
from fedsyn.runs.run_config import config_of
from fedsyn.table.counting.workload import MOST_CLIQUES, bound_on_cliques
from fedsyn.table.schema import Schema
from fedsyn.table.schema.persons import require_records
from fedsyn.wire.envelope import Envelope
from fedsyn.wire.holder import MOST_PARTITIONS
from fedsyn.wire.orders import Subject, is_run_name, operator_of
from fedsyn.wire.refusals import INVALID

#: Characters of a configuration that a node reads.
MOST_TEXT = 2**20


@dataclass(frozen=True)
class Admitted:
    """A request that the holder's policy allows.

    Attributes:
        config: of the run.
        subject: the run's name, and the hashes of its configuration and of this node's schema under it.
        operator: public key of the operator who signed the run; "" where nobody did.
        request: its name.
    """

    config: RunConfig
    subject: Subject
    operator: str
    request: str


class Policy:
    """A holder's policy, as its file said when the node started.

    Args:
        file: of the node, with absolute file names.

    Raises:
        ConfigError: the schema cannot be read, or knows no persons though the policy is for them.
    """

    def __init__(self, file: NodeFile) -> None:
        self.file = file
        self.node = file.policy
        self._schema = Schema.load(file.schema_file)
        self._schema.require_approved()
        if self.node.unit == "person":
            _require_persons(self._schema)
        self._schema_hash = lru_cache(maxsize=8)(self._adjusted_hash)

    # The run's configuration ------------------------------------------------------------------------------------------

    def read(self, run_config: Mapping[str, Any]) -> RunConfig:
        """Reads the configuration of a run that a server submitted.

        Opens no file, and imports nothing that it names.

        Raises:
            NodeError: it does not travel with the run, is no deployment's, or names what this node would have to open,
                import or make room for.
        """
        require_resolved(run_config)
        text = str(run_config["resolved"])
        if len(text) > MOST_TEXT:
            raise NodeError("the run's configuration is longer than this node reads")
        try:
            self._before_parsing(json.loads(text))
            return config_of(run_config)
        except NodeError:
            raise
        except (ConfigError, ValueError, RecursionError):
            # What the parser says quotes the configuration, and may name what is installed here.
            raise NodeError(INVALID) from None

    def _before_parsing(self, document: Any) -> None:
        """Checks what parsing relies on.

        It imports a mechanism by its name, and makes tables as large as it says.
        """
        if not isinstance(document, dict):
            raise NodeError(INVALID)
        runtime, federation, workload = (_node(document, key) for key in ("runtime", "federation", "workload"))
        require_deployment(runtime.get("engine"), runtime.get("seed"))
        mechanism = document.get("mechanism")
        self._require_mechanism(mechanism.get("name") if isinstance(mechanism, dict) else mechanism)
        clients = federation.get("clients", 1)
        if type(clients) is not int or not 0 < clients <= MOST_PARTITIONS:
            raise NodeError("the run has more clients than this node assumes")
        privacy = _node(document, "privacy")
        schema = self._schema.records if privacy.get("unit") == "person" else self._schema
        if bound_on_cliques(workload, len(schema.columns)) > MOST_CLIQUES:
            raise NodeError("the run's workload has more cliques than this node makes")

    def _require_mechanism(self, name: object) -> None:
        allowed = mechanisms() if self.node.mechanisms is None else self.node.mechanisms
        if not isinstance(name, str) or name not in allowed:
            raise NodeError("this node's holder does not allow the run's mechanism")

    # One request ------------------------------------------------------------------------------------------------------

    def admit(self, run_config: Mapping[str, Any], scalars: Mapping[str, Any]) -> Admitted:
        """Checks a request against what the holder allows.

        Charges and remembers nothing.

        Args:
            run_config: as the server submitted it; every fact is the server's until it has passed.
            scalars: of the message.

        Raises:
            NodeError: the holder does not allow it; one sentence of public facts.
            ProtocolError: the message is no request.
        """
        config = self.read(run_config)
        envelope = Envelope.from_scalars(scalars)
        self.check_configuration(config)
        run, order = (str(run_config.get(key) or "") for key in ("run", "order"))
        if not is_run_name(run):
            raise NodeError("the run has no name that this node takes: 1 to 64 letters, digits, '.', '_' and '-'")
        if config.runtime.run not in (None, run):
            raise NodeError("the run has two names: that of its order, and another one in its runtime.run")
        subject = self.subject(run, config)
        admitted = Admitted(config, subject, self._operator(order, subject), envelope.request[:40])
        self._check_request(admitted, None if envelope.sum is None else envelope.sum.asked)
        return admitted

    def subject(self, run: str, config: RunConfig) -> Subject:
        """Returns what the holder approves, and an operator signs.

        That is the run, its configuration, and this node's own schema.
        """
        return Subject(run, config.sha256, self._schema_hash(config.data.bins, config.data.label))

    def _adjusted_hash(self, bins: int | None, label: str | None) -> str:
        try:
            return self._schema.adjusted(bins, label).sha256
        except SchemaError:
            raise NodeError("the run's data.bins or data.label does not fit this node's schema") from None

    def _operator(self, order: str, subject: Subject) -> str:
        """Returns the public key of the operator who signed the run.

        "" if the policy does not ask for one and the run has none.

        Raises:
            NodeError: the order is not the run's, or not of an operator that the policy names.
        """
        operator = operator_of(order, subject)
        if self.node.operators is not None:
            if not operator:
                raise NodeError("this node's holder obeys signed orders only: start the run with --operator-key FILE")
            if operator not in self.node.operators:
                raise NodeError("this node's holder does not know the operator who signed the run")
        return operator

    @property
    def needs_approval(self) -> bool:
        """Returns whether a person approves each run."""
        return self.node.approval == "by person"

    def check_configuration(self, config: RunConfig) -> None:
        """Refuses a run that no order could make the holder take.

        Raises:
            NodeError: one sentence of public facts.
        """
        node, aggregation = self.node, config.aggregation
        require_deployment(config.runtime.engine, config.runtime.seed)
        require_all_columns(config)
        self._require_mechanism(config.mechanism.name)
        if client_class(config.mechanism.name).Contract.accountant not in ACCOUNTANTS:
            raise NodeError("this node's ledger for life cannot add up what the run's mechanism releases")
        if aggregation.protocol not in node.protocols:
            raise NodeError("this node's holder does not allow the run's aggregation.protocol")
        if aggregation.noise not in node.noise:
            raise NodeError("this node's holder does not allow the run's aggregation.noise")
        if node.threat is not None and aggregation.threat != node.threat:
            raise NodeError("this node's holder takes part in runs with aggregation.threat: malicious only")
        if config.privacy.client_sizes == "public" and node.client_sizes == "private":
            raise NodeError("this node's holder does not publish its row count: set privacy.client_sizes: private")
        if config.privacy.unit != "client" and node.unit == "client":
            raise NodeError("this node's holder takes part as a whole: set privacy.unit: client and rows_per_client")
        if config.privacy.unit == "row" and node.unit == "person":
            raise NodeError("this node's holder takes part in runs that protect persons: set privacy.unit: person")
        if config.privacy.unit == "person" and (self._schema.persons is None or self._schema.open):
            raise NodeError(
                "the run protects persons, and this node's schema says none, or has private bins, bounds or categories"
            )
        self._check_limits(config)
        require_agreed(config, node.configurations, self.needs_approval, pinned=self.file.identity is not None)

    def _check_limits(self, config: RunConfig) -> None:
        """Checks a sum's fewest clients, and a run's assumed colluders."""
        node, aggregation, minimum = self.node, config.aggregation, config.federation.minimum_cohort
        if minimum < node.minimum_cohort:
            raise NodeError(
                f"the run's federation.minimum_cohort is {minimum}, and this node's holder demands at least "
                f"{node.minimum_cohort}"
            )
        if not aggregation.rests_on_clients:
            return
        if aggregation.corrupted < node.corrupted:
            raise NodeError(
                f"the run's aggregation.corrupted is {aggregation.corrupted:g}, and this node's holder demands at "
                f"least {node.corrupted:g}"
            )
        if node.dropout is not None and aggregation.dropout > node.dropout:
            raise NodeError(
                f"the run's aggregation.dropout is {aggregation.dropout:g}, and this node's holder allows at most "
                f"{node.dropout:g}"
            )

    def _check_request(self, admitted: Admitted, cohort: int | None) -> None:
        """Checks one request.

        `cohort` is the number of the sum's clients, by its description; None if it is no sum, or not described.
        """
        node, config = self.node, admitted.config
        if node.requests is not None and admitted.request not in (*node.requests, "join"):
            raise NodeError("this node's holder does not allow this request")
        if cohort is not None:
            fewest = min(cohort, Limits.of(config.aggregation, cohort, config.federation.minimum_cohort).fewest)
            if fewest < node.minimum_cohort:
                raise NodeError(
                    f"the sum may be opened with {fewest} clients, and this node's holder demands at least "
                    f"{node.minimum_cohort}"
                )


def _require_persons(schema: Schema) -> None:
    """Refuses a policy for persons without a schema of them.

    Raises ConfigError.
    """
    try:
        require_records(schema)
    except SchemaError as error:
        raise ConfigError(f"policy.unit: person allows no run with this schema: {error}") from None


def _node(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}
