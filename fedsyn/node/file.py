"""`node.yaml`: a holder's machine, and its holder's decisions.

They hold whatever a server asks.

It is read once, when the node starts: a changed file needs a restart (`fedsyn node serve` again), so that nothing that
happens while it runs can loosen it. Unknown keys are errors with the nearest valid key; each problem is one sentence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from fedsyn.capabilities import CAPABILITIES, Noise, ProtocolName
from fedsyn.config import load_options
from fedsyn.errors import ConfigError, nearest
from fedsyn.files import described_by, is_open_to_others
from fedsyn.ledgers.limits import LifetimeLimits
from fedsyn.privacy import PrivacyBudget
from fedsyn.registry import client_class, mechanisms
from fedsyn.settings import HostPort, Node, all_hex, as_list

_HASHES = all_hex("a configuration's hash has 64 lower-case hex digits ('fedsyn explain' prints it)")
_KEYS = all_hex("an operator's public key has 64 lower-case hex digits ('fedsyn operator-key' prints it)")


class LimitNode(Node):
    """A limit on what the holder's table may give away.

    Attributes:
        epsilon: at `delta`.
        delta: null: that of `lifetime`.
    """

    epsilon: float = Field(gt=0, le=1000)
    delta: float | None = Field(default=None, gt=0, lt=1)


class PeriodNode(LimitNode):
    """A limit within any period of this many days.

    Attributes:
        days: length of the period that ends now.
    """

    days: float = Field(gt=0, le=36525)


class LifetimeNode(LimitNode):
    """A limit over all runs of the table's life.

    Attributes:
        delta: of this limit, and of each other one that names none.
    """

    delta: float = Field(gt=0, lt=1)


class PolicyNode(Node):
    """Runs that the holder agrees to.

    No server can loosen any of it.

    Attributes:
        per_run: the most that one run may ask for; null: no such limit.
        per_period: the most within any period; null: no such limit.
        lifetime: the most of all runs together, as this node's ledger adds them up.
        mechanisms: that may be run; null: any that is registered here. A `package.module:Strategy` is imported only if
            it stands in this list.
        requests: of these mechanisms that may be asked ('join', which tells nothing of rows, always may); null: all.
        protocols: values of aggregation.protocol that may be used. With 'plain' a server sees what a client sends.
        noise: values of aggregation.noise that may be used. With 'server' the noise is the server's promise.
        threat: 'malicious': refuse runs that are not protected against a deviating server and clients; null: either.
        client_sizes: 'private': refuse runs that publish exact row counts (privacy.client_sizes: public); 'any'.
        unit: 'person': refuse runs that protect single rows only (privacy.unit: row); 'client': also those that protect
            one person; 'any'.
        minimum_cohort: fewest clients in a sum, of the run's configuration and of each sum itself.
        corrupted: least aggregation.corrupted of a run whose noise, or masks, rest on the clients of a sum: with 0 a
            run counts on nobody who knows its own share of the noise, or tells the server.
        dropout: largest aggregation.dropout of such a run; null: any.
        approval: 'always': whatever the rest of the policy allows; 'by hash': one of `configurations`; 'by person': the
            run waits until somebody types `fedsyn node approve RUN`.
        configurations: hashes (`fedsyn explain CONFIG` prints them) of the configurations that may be run; null: any.
        operators: public keys (`fedsyn operator-key`) of which one must have signed the run; null: any, also none.
    """

    per_run: LimitNode | None = None
    per_period: PeriodNode | None = None
    lifetime: LifetimeNode
    mechanisms: tuple[str, ...] | None = Field(default=None, min_length=1)
    requests: tuple[str, ...] | None = None
    protocols: tuple[ProtocolName, ...] = Field(
        default=tuple(one.name for one in CAPABILITIES.values() if one.hides), min_length=1
    )
    noise: tuple[Noise, ...] = Field(default=("local", "distributed"), min_length=1)
    threat: Literal["malicious"] | None = None
    client_sizes: Literal["private", "any"] = "private"
    unit: Literal["person", "client", "any"] = "any"
    minimum_cohort: int = Field(default=2, ge=1)
    corrupted: float = Field(default=0.05, ge=0, lt=1)
    dropout: float | None = Field(default=None, ge=0, lt=1)
    approval: Literal["always", "by hash", "by person"] = "by person"
    configurations: Annotated[tuple[str, ...], _HASHES] | None = None
    operators: Annotated[tuple[str, ...], Field(min_length=1), _KEYS] | None = None

    _lists = field_validator(
        "mechanisms", "requests", "protocols", "noise", "configurations", "operators", mode="before"
    )(as_list)

    @model_validator(mode="after")
    def _can_be_approved(self) -> PolicyNode:
        if self.approval == "by hash" and not self.configurations:
            raise ValueError("approval 'by hash' needs configurations: the hashes that 'fedsyn explain' prints")
        return self

    @property
    def limits(self) -> LifetimeLimits:
        """The limits as plain budgets."""
        delta = self.lifetime.delta
        period = self.per_period
        return LifetimeLimits(
            None if self.per_run is None else _budget(self.per_run, delta),
            None if period is None else (_budget(period, delta), period.days),
            _budget(self.lifetime, delta),
        )


class NodeFile(Node):
    """`node.yaml`, which `fedsyn node serve` reads.

    File names are relative to the file.

    Attributes:
        format: version of this file's format.
        name: of the node, for its log, its health page and its holder.
        superlink: HOST:PORT of the SuperLink's Fleet API.
        root_certificates: file of the authority that the SuperLink's certificate must come from.
        insecure: true instead of `root_certificates`: no TLS, for trials on one machine only.
        key: private key by which the SuperLink knows this node (ECDSA P-384, `ssh-keygen -t ecdsa -b 384`).
        data: the holder's table; may be a sealed file (`fedsyn node seal`), then with `data_key`.
        persons: the holder's table of persons, where `data` has their rows alone.
        data_key: key file of a sealed table.
        schema: that the holder approved.
        rename: name of a column in the table -> its name in the schema.
        partition: the node's number in the federation; null: the server gives one.
        identity: this holder's signing key (`fedsyn identity`), for secure sums under the malicious threat model.
        roster: everybody's public keys, as this holder pinned them; with `identity`.
        state: folder of the ledger, the audit log, approvals and what a run has to remember; readable by its owner.
        listen: HOST:PORT of /healthz, /readyz and /metrics; null: none.
        policy: see there.
    """

    format: Literal[1] = 1
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    superlink: HostPort
    root_certificates: str | None = None
    insecure: bool = False
    key: str
    data: str
    persons: str | None = None
    data_key: str | None = None
    schema_file: str = Field(alias="schema")
    rename: dict[str, str] = Field(default_factory=dict)
    partition: int | None = Field(default=None, ge=0, lt=2**20)
    identity: str | None = None
    roster: str | None = None
    state: str = "state"
    listen: HostPort | None = None
    policy: PolicyNode

    @model_validator(mode="after")
    def _belongs_together(self) -> NodeFile:
        if self.insecure == (self.root_certificates is not None):
            raise ValueError(
                "root_certificates: name the file of the authority that signed the SuperLink's certificate, or write "
                "insecure: true for a trial without TLS; one of the two"
            )
        if (self.identity is None) != (self.roster is None):
            missing = "roster" if self.roster is None else "identity"
            raise ValueError(f"{missing} is missing: secure sums that clients sign need both identity and roster")
        only_sums = not any(CAPABILITIES[name].parties for name in self.policy.protocols)
        if self.policy.threat == "malicious" and only_sums and self.identity is None:
            raise ValueError(
                "policy.threat: malicious needs identity and roster, as 'fedsyn identity' and the other holders give"
            )
        return self

    def anchored(self, folder: Path) -> NodeFile:
        """Returns a copy with absolute file names."""
        named = {name: getattr(self, name) for name in (*_FILES, "state")}
        update = {name: str(folder / Path(value).expanduser()) for name, value in named.items() if value is not None}
        return self.model_copy(update=update)

    @property
    def files(self) -> dict[str, Path]:
        """Every file that the node reads, by its key."""
        names = {name.removesuffix("_file"): getattr(self, name) for name in _FILES}
        return {key: Path(name) for key, name in names.items() if name is not None}

    @property
    def state_folder(self) -> Path:
        return Path(self.state)

    @property
    def ledger_file(self) -> Path:
        """The ledger of the table's life."""
        return self.state_folder / "ledger.jsonl"


_FILES = ("root_certificates", "key", "data", "persons", "data_key", "schema_file", "identity", "roster")
#: Keys of private files: whoever may read them is this node.
_SECRETS = ("key", "identity", "data_key")


def load_node_file(path: Path | str) -> NodeFile:
    """Reads `node.yaml`.

    Looks for none of the files that it names (`require_files` does).

    Raises:
        ConfigError: names every problem, with the nearest valid key.
    """
    what = (
        "a node is described by a file with its table, schema, SuperLink and policy, which 'fedsyn deploy init' or its "
    )
    loaded = load_options(NodeFile, described_by(path, f"{what}holder writes (docs/deployment.md)"))
    _check_policy(loaded.policy, path)
    return loaded.anchored(Path(path).resolve().parent)


def require_files(file: NodeFile) -> None:
    """Checks the files that a node reads, and its keys' permissions.

    Raises:
        ConfigError: names the key and the place; or a private key that others may read.
    """
    for key, path in file.files.items():
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "no such file"
            raise ConfigError(f"{key}: {what}: {path}; file names in a node's file are relative to that file")
        if key in _SECRETS and is_open_to_others(path):
            raise ConfigError(f"{key}: {path} is readable by others than its owner; type: chmod 600 {path}")


def _check_policy(policy: PolicyNode, path: Path | str) -> None:
    """Checks what the models cannot know.

    These are names of plug-ins, and limits that contradict each other.
    """
    known = mechanisms()
    for name in policy.mechanisms or ():
        if name not in known and ":" not in name:
            raise ConfigError(
                f"{path}: policy.mechanisms: no mechanism '{name}'{nearest(name, known)}; "
                f"allowed: {', '.join(sorted(known))}"
            )
    if policy.requests is not None:
        _check_requests(policy, path)
    limits = policy.limits
    smaller = {"policy.per_run": limits.per_run, "policy.per_period": limits.per_period and limits.per_period[0]}
    for key, budget in smaller.items():
        if budget is not None and budget.rho > limits.lifetime.rho:
            raise ConfigError(f"{path}: {key} is more than policy.lifetime allows for all runs together")


def _check_requests(policy: PolicyNode, path: Path | str) -> None:
    from fedsyn.protocol.finding import FindingClient

    allowed = set(FindingClient.requests)
    for name in policy.mechanisms or mechanisms():
        allowed |= set(client_class(name).requests)
    for request in policy.requests or ():
        if request not in allowed:
            raise ConfigError(
                f"{path}: policy.requests: no request '{request}'{nearest(request, allowed)}; "
                f"allowed: {', '.join(sorted(allowed))}"
            )


def _budget(limit: LimitNode, delta: float) -> PrivacyBudget:
    return PrivacyBudget(limit.epsilon, delta if limit.delta is None else limit.delta)
