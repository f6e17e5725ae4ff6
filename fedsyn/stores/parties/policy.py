"""A party's limits, and the file that describes it.

Its administrator decides them, whatever a server asks.

A server cannot loosen any of it. Unknown keys are errors with the nearest valid key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fedsyn.config import load_options
from fedsyn.errors import ConfigError, nearest
from fedsyn.files import described_by
from fedsyn.privacy import PrivacyBudget
from fedsyn.registry import contract_class, mechanisms
from fedsyn.settings import HostPort, Node, all_hex, as_list


class LimitsNode(Node):
    """Sizes above which a party refuses.

    No server can exhaust its memory.

    An entry takes 16 bytes of it at a computing party, 64 at a crypto party.

    Attributes:
        entries: cells that one client deals.
        cells: cells that one choice compares, or one opening releases.
        candidates: cliques of one choice, of the workload, or of what is dealt.
        clients: of a run.
    """

    entries: int = Field(default=20_000_000, ge=1, le=200_000_000)
    cells: int = Field(default=20_000_000, ge=1, le=200_000_000)
    candidates: int = Field(default=20_000, ge=1, le=10_000_000)
    clients: int = Field(default=10_000, ge=1, le=1_000_000)


Names = Annotated[tuple[str, ...], BeforeValidator(as_list)]
_HASHES = all_hex("a configuration's hash has 64 lower-case hex digits (RunConfig.sha256)")


class PartyPolicy(Node):
    """Runs that a party agrees to.

    Attributes:
        epsilon_per_run: largest epsilon, at `delta`, that the store of one run may release.
        epsilon_total: the same over all runs of this party's life, as its ledger adds them up.
        delta: of both.
        mechanisms: that may be run; their code is this party's own copy of fedsyn.
        configurations: hashes (`RunConfig.sha256`) of the configurations that may be run; null: any of the above.
        minimum_clients: that must have dealt before anything is chosen or opened; the larger one of this and the run's.
        corrupted: of a crypto party: least aggregation.corrupted of a run. With 0 it counts on nobody who knows its own
            share of the noise.
        dropout: of a crypto party: largest aggregation.dropout of a run; null: any.
        threat: 'malicious': refuse runs whose computation is not protected against a deviating party; null: either.
        limits: see there.
    """

    epsilon_per_run: float = Field(gt=0, allow_inf_nan=False)
    epsilon_total: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(gt=0, lt=1)
    mechanisms: Names = Field(min_length=1)
    configurations: Annotated[Names, _HASHES] | None = None
    minimum_clients: int = Field(default=2, ge=1)
    corrupted: float = Field(default=0.05, ge=0, lt=1)
    dropout: float | None = Field(default=None, ge=0, lt=1)
    threat: Literal["malicious"] | None = None
    limits: LimitsNode = Field(default_factory=LimitsNode)

    @property
    def run_budget(self) -> PrivacyBudget:
        return PrivacyBudget(self.epsilon_per_run, self.delta)

    @property
    def total_budget(self) -> PrivacyBudget:
        return PrivacyBudget(self.epsilon_total, self.delta)

    @classmethod
    def of_simulation(cls, mechanism: str) -> PartyPolicy:
        """Anything that a configuration can ask for: a simulation's parties protect nobody."""
        limits = LimitsNode(entries=2 * 10**8, cells=2 * 10**8, candidates=10**7, clients=10**6)
        facts: dict[str, Any] = {"epsilon_per_run": 1e6, "epsilon_total": 1e6, "delta": 0.5, "minimum_clients": 1}
        facts["corrupted"] = 0.0
        return cls(mechanisms=(mechanism,), limits=limits, **facts)


class PartyFile(Node):
    """`party.yaml`, which `fedsyn party serve` reads.

    File names are relative to the file.

    Attributes:
        role: 'compute': one of the three parties of protocol 'mpc'; 'crypto': the key holder of protocol 'fhe'.
        folder: with this party's keys and card (`fedsyn party keygen`).
        listen: host:port to listen on; null: the address of the card.
        listen_health: host:port of /healthz, /readyz, /status and /metrics, plain HTTP without a password: an address
            of this machine, or of the network in which it is watched; null: none of them.
        parties: cards of the other two computing parties; a crypto party has none.
        operators: certificates of the servers that may give orders.
        ledger: this party's own ledger, for its life.
        timeout: seconds to wait for a message of another party.
        idle: seconds without an order after which a run is dropped.
        policy: see there.
    """

    role: Literal["compute", "crypto"] = "compute"
    folder: str = "."
    listen: HostPort | None = None
    listen_health: HostPort | None = None
    parties: Names = ()
    operators: Names = Field(min_length=1)
    ledger: str = "ledger.jsonl"
    timeout: float = Field(default=60.0, gt=0, le=3600)
    idle: float = Field(default=900.0, gt=0)
    policy: PartyPolicy

    def anchored(self, folder: Path) -> PartyFile:
        """Returns a copy with absolute file names."""

        def absolute(name: str) -> str:
            return str(folder / Path(name).expanduser())

        one: dict[str, Any] = {key: absolute(getattr(self, key)) for key in ("folder", "ledger")}
        several = {key: tuple(map(absolute, getattr(self, key))) for key in ("parties", "operators")}
        return self.model_copy(update=one | several)


def load_party_file(path: Path | str) -> PartyFile:
    """Reads `party.yaml`; ConfigError names every problem, with the nearest valid key."""
    what = (
        "a party is described by a file with its role, operators and policy, which its administrator writes "
        "(docs/parties.md)"
    )
    loaded = load_options(PartyFile, described_by(path, what))
    policy = loaded.policy
    if policy.run_budget.rho > policy.total_budget.rho:
        raise ConfigError(
            f"{path}: policy.epsilon_per_run is more than policy.epsilon_total allows for all runs together"
        )
    _check_role(loaded, path)
    known = {name for name in mechanisms() if contract_class(name).store or loaded.role == "crypto"}
    on = " computes on a store" if loaded.role == "compute" else ""
    for name in policy.mechanisms:
        if name not in known:
            raise ConfigError(
                f"{path}: policy.mechanisms: no mechanism '{name}'{on}{nearest(name, known)}; "
                f"allowed: {', '.join(sorted(known))}"
            )
    return loaded.anchored(Path(path).resolve().parent)


def _check_role(loaded: PartyFile, path: Path | str) -> None:
    if loaded.role == "compute" and len(loaded.parties) != 2:
        raise ConfigError(
            f"{path}: parties: role 'compute' needs the cards of the other two parties, found {len(loaded.parties)}; "
            "the only party of protocol 'fhe' has role: crypto"
        )
    if loaded.role == "crypto" and loaded.parties:
        raise ConfigError(
            f"{path}: parties: role 'crypto' has no other parties; leave it out, or set role: compute for one of the "
            "three parties of protocol 'mpc'"
        )
    if loaded.role == "crypto" and loaded.policy.threat is not None:
        raise ConfigError(
            f"{path}: policy.threat: no run with a crypto party is protected against a server that deviates; leave it "
            "out, or set role: compute for protocol 'mpc'"
        )
