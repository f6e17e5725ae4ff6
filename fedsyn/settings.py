"""Nodes of the configuration on trust and protection.

The base of every node is here, too.

`fedsyn.config` has the rest, and names all of them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from fedsyn.capabilities import CAPABILITIES, PLAIN, Capabilities, Noise, ProtocolName, Threat
from fedsyn.privacy.budget import PrivacyBudget
from fedsyn.privacy.unit import ROW, ClientUnit, PersonUnit, Unit

#: Default of `inference.max_cells_at_once`: 128 MiB.
CELLS_AT_ONCE = 1 << 24


class Node(BaseModel):
    """Base of all configuration nodes.

    Frozen, strict about keys and numbers: `true` and infinity are refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, data: Any) -> Any:
        for name, key in _numbers(cls) if isinstance(data, Mapping) else ():
            value = data.get(key)
            if isinstance(value, bool):
                raise ValueError(f"{name} must be a number, not {str(value).lower()}")
        return data


@cache
def _numbers(node: type[Node]) -> tuple[tuple[str, str], ...]:
    """Returns name and key of each field of numbers.

    Fields that hold booleans, too, are left out. A sweep makes a dozen nodes for each of its cells.
    """
    kinds = {name: {field.annotation, *get_args(field.annotation)} for name, field in node.model_fields.items()}
    numbers = [name for name, some in kinds.items() if some & {int, float} and bool not in some]
    return tuple((name, node.model_fields[name].alias or name) for name in numbers)


class NamedNode(BaseModel):
    """A name, and its options as other keys.

    The name alone is short for it.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class PartitionNode(NamedNode):
    """Name of a partitioner; the other keys are its options.

    Attributes:
        name: 'native' keeps the data's own holders; the others split the rows. `partition: NAME` is short for it.
    """

    name: str = "iid"


class FederationNode(Node):
    """The federation.

    Attributes:
        clients: number of clients K. A deployment waits for so many nodes to connect.
        sampling_rate: probability p with which a client joins a round's cohort, independently (Poisson sampling).
        max_participations: m, the most rounds in which any one client takes part; null: no bound. With it a row pays
            for m rounds, not for all: cohorts are drawn without replacement, each of `sampling_rate` times the clients,
            and a client refuses a further round. What everybody is asked before the first round (row counts, private
            bounds of a schema) is paid beside it.
        minimum_cohort: fewest clients that a round asks, and fewest that must answer.
        timeout: seconds that the server waits for the replies to one request; later replies are not used.
        connect_timeout: seconds that a deployment waits for all of its clients to connect; then `minimum_cohort` of
            them are enough, or those from which a store of ciphertexts opens (`aggregation.dropout`).
        patience: seconds for which a deployment waits for `minimum_cohort` clients to connect, and asks again what too
            few holders have answered: those that are offline or slow, whose disk is full, whose people have yet to
            approve the run. A simulation has nobody to wait for.
        on_loss: what a run does that lacks answers for good: `stop` ends it, and a deployment's can be resumed; with
            `go_on` it goes on without that sum, to a poorer table.
        partition: how a simulation splits the pooled table; ignored by a deployment.
        columns: which attributes each client holds, where all of them hold the SAME people, in the same order (columns
            split over holders; `aggregation.protocol: fhe` with `compute: packed`); null: all of them.
    """

    clients: int = Field(default=10, ge=1)
    sampling_rate: float = Field(default=1.0, gt=0, le=1)
    max_participations: int | None = Field(default=None, ge=1)
    minimum_cohort: int = Field(default=1, ge=1)
    timeout: float = Field(default=600.0, gt=0)
    connect_timeout: float = Field(default=120.0, gt=0)
    patience: float = Field(default=86400.0, gt=0)
    on_loss: Literal["stop", "go_on"] = "stop"
    partition: PartitionNode = Field(default_factory=PartitionNode)
    columns: tuple[tuple[str, ...], ...] | None = None

    @model_validator(mode="after")
    def _columns_fit(self) -> FederationNode:
        if self.columns is not None:
            named = [name for columns in self.columns for name in columns]
            if len(self.columns) != self.clients or not all(self.columns) or len(set(named)) != len(named):
                raise ValueError(
                    f"columns: expected one non-empty list of attributes for each of the {self.clients} clients, "
                    "and no attribute in two of them"
                )
        return self

    @model_validator(mode="after")
    def _cohort_fits(self) -> FederationNode:
        if self.minimum_cohort > self.clients:
            raise ValueError(f"minimum_cohort ({self.minimum_cohort}) must not exceed clients ({self.clients})")
        return self


def digits_to_compare(public: bytes) -> str:
    """Returns text that two people compare to compare something public.

    The text has 80 bits of its SHA-256.
    """
    return "-".join(re.findall("....", hashlib.sha256(public).hexdigest()[:20]))


def host_of(address: str) -> str:
    """Returns the host of an address, as it is written there.

    Raises:
        ValueError: it is not HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("expected HOST:PORT, with a port from 1 to 65535")
    return host


#: An address to connect to, or to listen on.
HostPort = Annotated[str, AfterValidator(lambda address: host_of(address) and address)]


def as_list(value: Any) -> Any:
    """Returns a list unchanged.

    Raises ValueError for a name alone, which says what it lacks.
    """
    if isinstance(value, str):
        raise ValueError(f"expected a list: [{value}]")
    return value


def all_hex(otherwise: str) -> AfterValidator:
    """Returns a check of texts of 64 lower-case hexadecimal digits.

    Its error is that sentence.
    """

    def check(texts: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch("[0-9a-f]{64}", text) for text in texts):
            raise ValueError(otherwise)
        return texts

    return AfterValidator(check)


class PartyCard(Node):
    """A computing or crypto party, as `fedsyn party card` prints it.

    All of it is public.

    Attributes:
        name: of the party.
        address: host:port of its service.
        key: its X25519 public key, to which clients seal their shares (64 hex digits).
        certificate: its TLS certificate, PEM; nothing else is accepted from that address.
    """

    name: str = Field(min_length=1, max_length=100)
    address: str
    key: str = Field(pattern="^[0-9a-f]{64}$")
    certificate: str

    @field_validator("name", "certificate")
    @classmethod
    def _is_text(cls, text: str) -> str:
        # It is shown to whoever decides on it: no sequence may move a terminal's cursor, or turn the text around.
        if not all(line.isprintable() for line in text.split("\n")):
            raise ValueError("expected printable text")
        return text

    @field_validator("name")
    @classmethod
    def _is_one_line(cls, name: str) -> str:
        if "\n" in name:
            raise ValueError("expected one line")
        return name

    @field_validator("address")
    @classmethod
    def _reachable(cls, address: str) -> str:
        host = host_of(address)
        if re.fullmatch(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]", host) is None:
            raise ValueError("expected HOST:PORT, a host name or an IP and a port from 1 to 65535")
        if host in ("0.0.0.0", "[::]"):
            raise ValueError(f"nobody can reach {host}: give the name that others use, and {address} as 'listen'")
        return address

    @field_validator("certificate")
    @classmethod
    def _is_pem(cls, certificate: str) -> str:
        lines = certificate.strip().splitlines()
        if not lines or lines[0] != "-----BEGIN CERTIFICATE-----" or lines[-1] != "-----END CERTIFICATE-----":
            raise ValueError("expected a certificate in PEM, as 'fedsyn party card' prints it")
        return certificate

    @property
    def fingerprint(self) -> str:
        """Text that two people read to each other to compare cards."""
        return digits_to_compare(json.dumps([self.name, self.address, self.key, self.certificate.strip()]).encode())


class RayNode(Node):
    """Settings of `runtime.engine: ray`.

    A sweep on Ray reserves `cpus` and `memory` for each of its cells, too.

    Attributes:
        address: of a cluster that runs already and of which this machine is a node: HOST:PORT, or 'auto' to find it;
            null starts Ray on this machine for the run.
        cpus: that a task reserves, of which it uses one.
        memory: gigabytes that a task reserves; null: none, so that as many run at a time as there are CPUs.
        clients_per_task: clients whose messages one task answers; null: at most 256, and four tasks for each CPU.
        retries: how often a task may be lost, with its machine or its process, before the run fails.
        wait: seconds to wait for a machine that is large enough for a task, while the cluster has none.
        runtime_env: what Ray sets up on the machines for the run, as Ray's documentation describes it.
    """

    address: str | None = None
    cpus: float = Field(default=1.0, gt=0)
    memory: float | None = Field(default=None, gt=0)
    clients_per_task: int | None = Field(default=None, ge=1)
    retries: int = Field(default=5, ge=0)
    wait: float = Field(default=300.0, gt=0)
    runtime_env: dict[str, Any] | None = None

    @field_validator("address")
    @classmethod
    def _a_cluster(cls, address: str | None) -> str | None:
        if address in (None, "auto"):
            return address
        try:
            host_of(str(address))
        except ValueError as error:
            raise ValueError(f"{error}, of a Ray cluster; or 'auto' to find the one of this machine, or null") from None
        return address

    @field_validator("cpus")
    @classmethod
    def _as_ray_counts(cls, cpus: float) -> float:
        if cpus > 1 and cpus != int(cpus):
            raise ValueError("a task of Ray reserves a share of one CPU, or a whole number of CPUs")
        return cpus


class FheNode(Node):
    """Settings of `aggregation.protocol: fhe`.

    Sums need none of it: they are always exact.

    Attributes:
        compute: who counts. 'client': each client counts its rows and encrypts the counts; 'packed': clients encrypt
            one-hot columns, and the server multiplies them, many cells at a time (what columns that are split over
            holders need).
    """

    compute: Literal["client", "packed"] = "client"

    @property
    def is_bound(self) -> bool:
        """Returns whether openings are bound to contributors and their noise.

        If they are not, the server is trusted with it.
        """
        return self.compute == "client"


class AggregationNode(Node):
    """Aggregation of the clients' numbers.

    It says how they come together, who sees what of them, and who adds the noise.

    Attributes:
        protocol: 'plain': the server receives every client's vector and is trusted with it; 'secagg': a secure sum, of
            which the server learns the total and nothing else; 'mpc': a store that three parties compute on and none of
            them sees (mechanisms that choose from a store: `distaim`, `aim`); 'fhe': the server computes on
            ciphertexts, and a crypto party holds the key (a store, and sums in one message of each client).
        noise: 'server': one noise on the sum, drawn by the server; 'local': each client adds the full noise itself;
            'distributed': each client adds a share, sized for the fewest honest clients that a sum may have. Of a
            store, 'distributed' are the shares of the three parties, one of which may be corrupted; with 'fhe' what the
            clients deal, encrypted. Protocols 'mpc' and 'fhe' have no other noise, and have it where none is given.
        corrupted: theta, the largest share that may collude with the server: of a sum's asked clients, and of those
            that a setup of secure sums invites. Where that is less than one client, one is counted all the same: each
            knows its own share of the noise. 0 counts on nobody.
        dropout: share of a sum's asked clients that may drop out of it; with more dropouts it is not opened.
        threat: 'semi_honest': everybody follows the protocol; 'malicious': the server and the corrupted clients may do
            anything (contributions stay confidential; the sum may be wrong).
        roster: public keys (64 hex digits) by partition id, by which the server finds out whose signature is bad under
            the malicious threat model; without it one bad signature ends the sum. Clients trust their own rosters only.
            With protocol 'fhe' the crypto party knows the clients by it, where its own policy pins the configuration.
        statistical_security_bits: a secure sum is insecure, or fails with an allowed number of dropouts, with
            probability at most 2^-statistical_security_bits.
        parties: the three computing parties of a deployment with protocol 'mpc': their cards, in a file the names of
            the cards' files; a simulation makes its own.
        crypto: the card of the crypto party of a deployment with protocol 'fhe', likewise.
        fhe: how protocol 'fhe' computes; null: its defaults.
    """

    protocol: ProtocolName = PLAIN.name
    noise: Noise = "server"
    corrupted: float = Field(default=0.05, ge=0, lt=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    threat: Threat = "semi_honest"
    statistical_security_bits: int = Field(default=40, ge=10, le=120)
    roster: dict[int, str] | None = None
    parties: tuple[PartyCard, PartyCard, PartyCard] | None = None
    crypto: PartyCard | None = None
    fhe: FheNode | None = None

    @model_validator(mode="after")
    def _noise_of_the_protocol(self) -> AggregationNode:
        if "noise" not in self.model_fields_set:
            object.__setattr__(self, "noise", self.capabilities.noises[0])
        return self

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the protocol."""
        return CAPABILITIES[self.protocol]

    @property
    def rests_on_clients(self) -> bool:
        """Returns whether `corrupted` and `dropout` matter.

        They say how many clients noise or masks rest on.
        """
        return self.capabilities.masks or (self.noise == "distributed" and self.capabilities.sums)

    @property
    def signs_masks(self) -> bool:
        """Returns whether clients sign their messages to each other.

        The keys stand in rosters of their own.
        """
        return self.capabilities.masks and self.threat == "malicious"

    @property
    def is_signed(self) -> bool:
        """Returns whether clients sign their messages with pinned keys."""
        return self.signs_masks or (self.capabilities.pins_clients and self.roster is not None)

    @property
    def encrypts_columns(self) -> bool:
        """Returns whether clients encrypt columns instead of counts.

        They are counted as ciphertexts.
        """
        return self.capabilities.splits_columns and self.fhe is not None and self.fhe.compute != "client"

    @field_validator("parties")
    @classmethod
    def _three_different(
        cls, parties: tuple[PartyCard, PartyCard, PartyCard] | None
    ) -> tuple[PartyCard, PartyCard, PartyCard] | None:
        for what in ("name", "address", "key", "certificate"):
            if parties is not None and len({getattr(party, what) for party in parties}) < 3:
                raise ValueError(f"two of the three cards have the same {what}")
        return parties

    @field_validator("roster")
    @classmethod
    def _hexadecimal(cls, roster: dict[int, str] | None) -> dict[int, str] | None:
        for partition, key in (roster or {}).items():
            if len(key) != 64 or any(digit not in "0123456789abcdef" for digit in key):
                raise ValueError(f"the public key of partition {partition} must be 64 lower-case hex digits")
        return roster


class PrivacyNode(Node):
    """The guarantee: (epsilon, delta)-differential privacy.

    It holds for one row at one client, for a person with all rows, or for a whole client.

    Attributes:
        epsilon: the run's whole budget; smaller is more private.
        delta: chance that the promise fails outright; keep it well below one divided by the number of rows.
        unit: whose presence is hidden: one 'row', added or removed, at one client; one 'person' with all rows at one
            client; or one 'client' with all its rows. A person needs a schema that says who is one (`persons`).
            With such a schema 'row' has to be written: left out, it is refused.
        holders_per_person: h, at how many clients the rows of one person may lie, where the unit is a person. With 1 a
            person's rows lie at one client; who may be known to h of them costs h^2 times as much.
        rows_per_client: the most rows with which a client takes part, where the unit is a client. One with more draws
            so many at random, once in a run. More of them mean more noise, fewer a larger sampling error. Public: it
            must not be read off the rows.
        client_sizes: 'private' releases the clients' row counts with noise first, and pays for it from the same budget.
            'public' publishes them exactly: then whoever knows a count sees a row that was added or removed, so the
            ledger's "added or removed" is not the whole truth (it says what holds instead). It is for counts that are
            public knowledge anyway, and for reproducing papers, which all take them for public.
        size_share: share of the zCDP budget that private sizes cost.
        schema_share: share of it, after the sizes, that finding the private bounds, bins and categories of a schema may
            cost; null: 0.1 times the root of the number of such columns, at most a third. What finding leaves over
            goes to the mechanism. Without such columns it means nothing.
    """

    epsilon: float = Field(gt=0, le=1000)
    delta: float = Field(gt=0, lt=1)
    unit: Literal["row", "person", "client"] = "row"
    holders_per_person: int = Field(default=1, ge=1, le=10**4)
    rows_per_client: int | None = Field(default=None, ge=1, le=10**6)
    client_sizes: Literal["public", "private"] = "private"
    size_share: float = Field(default=0.05, gt=0, lt=1)
    schema_share: float | None = Field(default=None, gt=0, lt=1)

    @property
    def budget(self) -> PrivacyBudget:
        """Budget of the run."""
        return PrivacyBudget(self.epsilon, self.delta)

    @property
    def hidden(self) -> Unit:
        """Unit whose presence the run hides."""
        if self.unit == "person":
            return PersonUnit(self.holders_per_person)
        return ROW if self.rows_per_client is None else ClientUnit(self.rows_per_client)

    @model_validator(mode="after")
    def _rows_of_a_client(self) -> PrivacyNode:
        if (self.unit == "client") != (self.rows_per_client is not None):
            raise ValueError(
                "rows_per_client says with how many rows at most a client takes part, where unit is 'client', "
                "and nothing else: give both, or neither"
            )
        if self.holders_per_person > 1 and self.unit != "person":
            raise ValueError("holders_per_person says at how many clients one person may be, where unit is 'person'")
        return self

    @model_validator(mode="after")
    def _not_lost_in_doubles(self) -> PrivacyNode:
        # With less, even the number of rows is off by millions; tails of noise end at about 1e-300.
        for key, least in (("epsilon", 1e-9), ("delta", 1e-200)):
            if getattr(self, key) < least:
                raise ValueError(f"{key} {getattr(self, key):g} is too small to compute with; take {least:g} or more")
        return self


class InferenceNode(Node):
    """Estimation of the model from noisy marginals (see `fedsyn.inference`).

    Attributes:
        engine: makes the server's fits: 'native' is fedsyn's own solver, 'mbi' Private-PGM's package (extra `pgm`;
            docs/private_pgm.md). A client's own fits, which some mechanisms choose by, are native.
        estimator: of mbi, by its name there; means nothing to the native engine.
        iterations: of the fit after every round; null: the mechanism's own default.
        final_iterations: of the last fit; null: the mechanism's own default.
        stop_at_noise_level: a fit ends when the noise of the measurements explains what is left of them, if that is
            before its last iteration; null: as the mechanism has it.
        shrinkage: pseudo-records of the independent model that a fit is shrunk towards; 'released': found from
            released values; 0: none; null: as the mechanism has it.
        smoothing: the last model gives every possible row a probability that what was released does not rule out
            (docs/mechanisms.md); null: as the mechanism has it.
        max_cells: largest model, in cells of the junction tree's cliques.
        max_cells_at_once: most cells of candidates' marginals that are formed at once, 8 bytes each. A workload with
            more is compared part by part; a run with a single candidate of more does not start.
        max_message_passing_cost: largest cost of one message-passing sweep, in cells touched.
    """

    engine: Literal["native", "mbi"] = "native"
    estimator: Literal["MirrorDescent", "InteriorGradient", "UniversalAcceleratedMethod"] = "MirrorDescent"
    iterations: int | None = Field(default=None, ge=1)
    final_iterations: int | None = Field(default=None, ge=1)
    stop_at_noise_level: bool | None = None
    shrinkage: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["released"] | None = None
    smoothing: bool | None = None
    max_cells: int = Field(default=1_000_000, ge=1)
    max_cells_at_once: int = Field(default=CELLS_AT_ONCE, ge=1)
    max_message_passing_cost: float = Field(default=4_000_000, gt=0)
