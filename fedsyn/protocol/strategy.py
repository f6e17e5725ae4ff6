"""The base of every server half: a Flower `Strategy` that is driven by a generator of requests.

A mechanism writes `protocol()` in the order of its paper's pseudo-code and yields `Ask` and `Sum` requests; the base
class turns each into one `send_and_receive` on whatever Grid it is given, checks the replies, and sends the answer
back into the generator. A reply that is late, missing or malformed costs that client only, and is recorded.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from fedsyn.aggregation import make_aggregation
from fedsyn.config import Node, RunConfig
from fedsyn.counting.candidates import build_workload
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError, ProtocolError, RunError
from fedsyn.flower import ArrayRecord, ConfigRecord, Grid, Message, MetricRecord, Result, Strategy
from fedsyn.flower.grid import new_message
from fedsyn.flower.messages import array_record, content_bytes, extended, pack, read_reply
from fedsyn.inference import Measurement, Model, estimate
from fedsyn.inference.fitting import estimate_config
from fedsyn.privacy import (
    GAUSSIAN,
    Ledger,
    PrivacyBudget,
    PrivacyStatement,
    Release,
    accountant_for,
    sigma_for_rho,
)
from fedsyn.randomness import Randomness
from fedsyn.registry import mechanism_options
from fedsyn.wire.messages import ANSWER, Arrays, Ask, Envelope, Reply, Request, Sum, Summed, from_json

Protocol = Generator[Request, Any, None]
Parsed = TypeVar("Parsed")


@dataclass
class RoundRecord:
    """What happened in one round; one line of rounds.jsonl.

    Holds nothing that was not released, except `workload_error` where a simulation asks for it.
    """

    round: int
    cohort: list[int] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    selected: list[str] = field(default_factory=list)
    sigma: float | None = None
    epsilon: float | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    workload_error: float | None = None

    def add_seconds(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + seconds, 6)


@dataclass(frozen=True)
class Client:
    """What the server knows of a client: its node on the Grid and its row count (public, or released with noise)."""

    partition: int
    node: int
    rows: float | None


@dataclass(frozen=True)
class _Pending:
    """The request that is under way."""

    cohort: Sequence[int]
    name: str
    kind: str
    params: Mapping[str, Any]
    arrays: Arrays
    each: Mapping[int, Arrays] | None


Observer = Callable[[RoundRecord], None]
_LARGEST_ROWS = 2.0**40
_LARGEST = 2**53  # of the numbers that a client may claim: what a float holds exactly


class MechanismStrategy(Strategy):
    """Server half of a mechanism.

    Class attributes that a mechanism sets:
        Config: pydantic model of its options (keys of the `mechanism` node beside `name`).
        central: whether one data holder has all rows (a yardstick, not a federation).
        accountant: 'zcdp' (also choices by the exponential mechanism), or 'gaussian' (Gaussian noise only).

    Args:
        config: the run's configuration.
        domain: the schema's domain.
        schema_hash: hash of the schema, which every client must have approved.
        randomness: the server's source of randomness.
        observer: called with the record of each finished round.
    """

    Config: ClassVar[type[Node]] = Node
    central: ClassVar[bool] = False
    accountant: ClassVar[str] = "zcdp"

    def __init__(
        self,
        config: RunConfig,
        domain: Domain,
        schema_hash: str,
        *,
        randomness: Randomness,
        observer: Observer | None = None,
    ) -> None:
        self.run = config
        self.config: Any = mechanism_options(config)
        self.domain = domain
        self.schema_hash = schema_hash
        self.randomness = randomness
        self.workload = build_workload(config.workload, domain)
        self.budget = PrivacyBudget(config.privacy.epsilon, config.privacy.delta)
        self.aggregation = make_aggregation(config.aggregation, config.federation.minimum_cohort)
        self.ledger = Ledger(
            self.budget,
            accountant_for(self.accountant, self.budget),
            self.statement().with_sampler(randomness.label),
            assumptions={
                "client_sizes": config.privacy.client_sizes,
                "aggregation": config.aggregation.protocol,
                "noise": config.aggregation.noise,
                "amplification_by_sampling": False,
                "seeded": randomness.seeded,
                **_sum_assumptions(config),
            },
            noise_by="server",
        )
        if randomness.seeded:
            self.ledger.not_private(randomness.label)
        self.model: Model | None = None
        self.clients: dict[int, Client] = {}
        self.records: list[RoundRecord] = [RoundRecord(0)]
        self._observer = observer
        self._grid: Grid | None = None
        self._pending: _Pending | None = None
        self._received: dict[int, Reply] = {}
        self._requests = 0
        self._sums = 0
        self._summing = False

    # What a mechanism defines ----------------------------------------------------------------------------------------

    @abstractmethod
    def protocol(self) -> Protocol:
        """The mechanism: yields requests, receives answers, leaves its result in `self.model`.

        The answer to an `Ask` is `dict[partition, Reply]`; to a `Sum` it is `Summed`, with no contributors when too
        few clients answered: then nothing was opened and nothing was charged.
        """

    @abstractmethod
    def statement(self) -> PrivacyStatement:
        """The privacy statement of this mechanism under this configuration."""

    @classmethod
    def check(cls, config: RunConfig) -> None:
        """Refuses a configuration that this mechanism cannot run; ConfigError says why."""

    # What a mechanism uses --------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        return self.records[-1].round

    @property
    def record(self) -> RoundRecord:
        return self.records[-1]

    def begin_round(self, t: int) -> None:
        """Closes the current round's record and starts that of round t."""
        if t == self.record.round:
            return
        self._close_round()
        self.records.append(RoundRecord(t))

    def everyone(self) -> tuple[int, ...]:
        return tuple(sorted(self.clients))

    def sample(self, participation: float) -> tuple[int, ...]:
        """A round's cohort: each client with probability `participation`, independently, at least the minimum.

        A cohort below the minimum is drawn again. Sampling is not used for privacy amplification, so conditioning on
        a large enough cohort costs nothing. With p = 1 nothing is drawn.
        """
        everyone = self.everyone()
        if participation >= 1.0:
            self.record.cohort = list(everyone)
            return everyone
        source = self.randomness.ordinary("cohort", self.round)
        for _ in range(10_000):
            cohort = tuple(k for k in everyone if source.random() < participation)
            if len(cohort) >= max(1, self.run.federation.minimum_cohort):
                self.record.cohort = list(cohort)
                return cohort
        raise RunError(
            f"federation: with participation {participation} and {len(everyone)} clients a cohort of at least "
            f"{self.run.federation.minimum_cohort} does not come about; raise participation or lower minimum_cohort"
        )

    def rows(self, partitions: Iterable[int]) -> float:
        """Total row count of some clients, from their public or released sizes."""
        return float(sum(self.clients[k].rows or 0.0 for k in partitions))

    @property
    def total(self) -> float:
        """Row count of the federation, at least 1."""
        return max(1.0, self.rows(self.clients))

    def scale(self, sums: Summed) -> float:
        """What brings a sum to the federation's total: who contributed is public, and stands for everybody."""
        return self.total / max(1.0, self.rows(sums.contributors))

    def one_way_sum(self, cohort: Sequence[int], sigma: float) -> Sum:
        """Asks for all d one-way marginals: `TableClient.one_way`."""
        shapes = tuple((size,) for size in self.domain.shape)
        return Sum(tuple(cohort), "one-way", shapes, sigma, count=len(shapes))

    def opened(self, sums: Summed, cliques: Sequence[Clique]) -> list[Measurement]:
        """Opened marginals as measurements of the whole federation, their noise scaled with them; none: a note."""
        if not sums.contributors:
            self.record.notes.append("too few contributions: no marginals were opened in this round's sum")
            return []
        scale = self.scale(sums)
        triples = zip(cliques, sums.arrays, sums.sigmas, strict=True)
        return [Measurement(clique, values * scale, sigma * scale) for clique, values, sigma in triples]

    def accept(self, replies: Mapping[int, Reply], parse: Callable[[Reply], Parsed]) -> dict[int, Parsed]:
        """Parses replies to an `Ask`; a reply that `parse` refuses with ProtocolError drops its client."""
        accepted = {}
        for partition in sorted(replies):
            try:
                accepted[partition] = parse(replies[partition])
            except ProtocolError as error:
                self.drop(partition, str(error))
        return accepted

    def drop(self, partition: int, reason: str) -> None:
        self.record.dropped[partition] = reason

    def estimate(self, measurements: Sequence[Measurement], last: bool = False) -> None:
        """Fits `self.model` to the measurements, starting from the previous model, with the clients' total rows.

        The mechanism's options `iterations` and `final_iterations` say how long, unless the run's `inference` does.
        Without measurements nothing happens.
        """
        if not measurements:
            return
        node = self.run.inference
        iterations = (
            node.final_iterations or self.config.final_iterations if last else node.iterations or self.config.iterations
        )
        with self.timed("estimate"):
            self.model = estimate(
                self.domain,
                measurements,
                total=self.total,
                config=estimate_config(node, iterations),
                warm_start=self.model,
            )

    def promise(self, release: Release) -> None:
        """Charges a release whose noise a client draws; in a simulation its sampler is known."""
        known = replace(release, sampler=self.randomness.label) if self.randomness.seeded else release
        self.ledger.promise(known)

    def timed(self, phase: str) -> _Timer:
        """Context manager that adds the seconds of a block to the round's record."""
        return _Timer(self.record, phase)

    # Driving ----------------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 0,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
    ) -> Result:
        """Runs the mechanism to its end on a Grid. The model is in `self.model`, and in the result's arrays.

        The number of rounds is the mechanism's own; the other arguments exist for Flower's signature.
        """
        self._grid = grid
        self._timeout = timeout or self.run.federation.timeout
        self._connect()
        generator = self.protocol()
        answer: Any = None
        while True:
            try:
                request = generator.send(answer)
            except StopIteration:
                break
            answer = self._ask(request) if isinstance(request, Ask) else self._sum(request)
        self._close_round()
        if self.model is None:
            reasons = [reason for record in self.records for reason in record.dropped.values()]
            detail = f" (for instance: {reasons[-1]})" if reasons else ""
            raise RunError(f"no round got enough replies: there is nothing to estimate a model from{detail}")
        result = Result()
        result.arrays = array_record(list(self.model.to_arrays().values()))
        return result

    def _ask(self, request: Ask) -> dict[int, Reply]:
        return self._exchange(request.cohort, request.name, "ask", request.params, list(request.arrays))

    def _sum(self, request: Sum) -> Summed:
        number, self._sums = self._sums, self._sums + 1
        # Private sizes are known with noise only: a bound that no federation of people reaches.
        public = self.run.privacy.client_sizes == "public"
        source = self.randomness.generator("server", self.round, request.name, self._requests)
        self._requests, self._summing = self._requests + 1, True
        try:
            return self.aggregation.run(
                request,
                exchange=self._exchange,
                drop=self.drop,
                ledger=self.ledger,
                source=source,
                round=self.round,
                number=number,
                rows=max(1.0, self.rows(request.cohort)) if public else _LARGEST_ROWS,
                config_hash=self.run.sha256,
                note=self.record.notes.append,
            )
        finally:
            self._summing = False

    def _exchange(
        self,
        cohort: Sequence[int],
        name: str,
        kind: str,
        params: Mapping[str, Any],
        arrays: Arrays,
        each: Mapping[int, Arrays] | None = None,
    ) -> dict[int, Reply]:
        """One message to each client of the cohort, and the replies that can be used.

        `each` holds further arrays for single clients, put behind the ones that all of them get.
        """
        assert self._grid is not None
        start = time.perf_counter()
        # A sum may take several exchanges: they are one request, so that no later noise depends on how it is formed.
        self._requests += not self._summing
        self._pending = _Pending(cohort, name, kind, params, arrays, each)
        messages = list(self.configure_train(self.round, ArrayRecord(), ConfigRecord(), self._grid))
        replies = self._grid.send_and_receive(messages, timeout=self._timeout)
        self.aggregate_train(self.round, replies)
        self.record.add_seconds(name, time.perf_counter() - start)
        return self._received

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the request that is under way."""
        assert self._pending is not None
        pending = self._pending
        scalars = Envelope(
            pending.name, pending.kind, server_round, self.run.sha256, pending.params, self._requests
        ).to_scalars()
        common = array_record(pending.arrays)
        shared = pack(common, scalars)  # one for all: every Grid copies what it delivers
        size = content_bytes(shared)
        for partition in pending.cohort:
            content = shared
            if pending.each is not None:
                content = pack(extended(common, pending.each[partition]), scalars)
                size = content_bytes(content)
            self.record.bytes_down += size
            yield new_message(grid, content, self.clients[partition].node, str(server_round), self._timeout)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Reads the replies to the request that is under way; whoever is missing or malformed is dropped from it."""
        assert self._pending is not None
        cohort, name = self._pending.cohort, self._pending.name
        expected = {self.clients[partition].node: partition for partition in cohort}
        received: dict[int, Reply] = {}
        refused: set[int] = set()
        for message in replies:
            partition = expected.get(message.metadata.src_node_id)
            if partition is None or partition in received:
                continue
            self.record.bytes_up += content_bytes(message.content) if message.has_content() else 0
            try:
                received[partition] = self._read(partition, name, message)
            except ProtocolError as error:
                refused.add(partition)
                self.drop(partition, str(error))
        for partition in cohort:
            if partition not in received and partition not in refused:
                self.drop(partition, f"no reply to '{name}' within {self._timeout:g} s")
        self._received = dict(sorted(received.items()))
        return None, None

    @staticmethod
    def _read(partition: int, name: str, message: Message) -> Reply:
        arrays, scalars = read_reply(message)
        answer = from_json(scalars.get(ANSWER), "answer")
        if answer.get("ok") is not True:
            kind, text = answer.get("error"), answer.get("message")
            if isinstance(kind, str) and isinstance(text, str):
                raise ProtocolError(f"{kind[:20]}: {text[:300]}")
            raise ProtocolError("the reply is neither an answer nor an error")
        if answer.get("request") != name:
            raise ProtocolError("the reply answers another request")
        if not isinstance(answer.get("params"), dict):
            raise ProtocolError("the reply's parameters are not a JSON object")
        return Reply(partition, arrays, answer["params"])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No evaluation on clients: it would be a release of its own."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Nothing is logged: the statement and the settings stand in the run's ledger and configuration."""

    # Connecting -------------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Asks every node who it is. Afterwards `self.clients` maps partition ids to nodes and row counts."""
        nodes = self._wait_for_nodes()
        self.clients = {-1 - i: Client(-1 - i, node, None) for i, node in enumerate(nodes)}
        replies = self._exchange(list(self.clients), "join", "ask", {"schema": self.schema_hash}, [])
        reasons = list(self.record.dropped.values())
        joined: dict[int, Client] = {}
        unnamed = []
        for provisional, reply in sorted(replies.items(), key=lambda item: -item[0]):
            try:
                partition, rows = _read_join(reply, self.run.privacy.client_sizes == "public")
            except ProtocolError as error:
                reasons.append(str(error))
                continue
            node = self.clients[provisional].node
            if partition is None:
                unnamed.append((node, rows))
            elif partition in joined:
                reasons.append(f"two nodes claim partition {partition}; the second is not used")
            else:
                joined[partition] = Client(partition, node, rows)
        free = (k for k in range(len(nodes)) if k not in joined)
        for (node, rows), partition in zip(unnamed, free, strict=False):
            joined[partition] = Client(partition, node, rows)
        self.clients = dict(sorted(joined.items()))
        self.record.dropped = {}
        self.record.notes += [f"not joined: {reason}" for reason in reasons]
        minimum = max(1, self.run.federation.minimum_cohort)
        if len(joined) < minimum:
            detail = f" ({reasons[0]})" if reasons else ""
            raise RunError(f"only {len(joined)} of {len(nodes)} clients joined, the minimum is {minimum}{detail}")
        self.record.cohort = list(self.clients)
        if self.run.privacy.client_sizes == "private":
            self._release_sizes()

    def _wait_for_nodes(self) -> list[int]:
        """Node ids, once as many as the configuration's clients are connected (central mechanisms: one)."""
        assert self._grid is not None
        wanted = 1 if self.central else self.run.federation.clients
        deadline = time.monotonic() + self.run.federation.connect_timeout
        while True:
            nodes = sorted(self._grid.get_node_ids())
            if len(nodes) >= wanted:
                return nodes
            if time.monotonic() > deadline:
                raise RunError(
                    f"{len(nodes)} of {wanted} clients connected within "
                    f"{self.run.federation.connect_timeout:g} s (federation.connect_timeout)"
                )
            time.sleep(0.5)

    def _release_sizes(self) -> None:
        """Private sizes: every client releases its own row count once, paid from the run's budget.

        One row sits at one client, so the releases of all clients together cost one of them (parallel composition).
        """
        sigma = sigma_for_rho(self.run.privacy.size_share * self.ledger.remaining_rho)
        self.promise(Release("sizes", 0, GAUSSIAN, 1.0, sigma=sigma, noise_by="each client"))
        replies = self._exchange(list(self.clients), "sizes", "ask", {"sigma": sigma}, [])
        for partition, reply in replies.items():
            rows = reply.params.get("rows")
            if isinstance(rows, int | float) and not isinstance(rows, bool) and 0 < rows < _LARGEST:
                self.clients[partition] = Client(partition, self.clients[partition].node, float(rows))
        for partition in [k for k, client in self.clients.items() if client.rows is None]:
            del self.clients[partition]
        if len(self.clients) < max(1, self.run.federation.minimum_cohort):
            raise RunError("too few clients released their size")

    def _close_round(self) -> None:
        if self._observer is not None:
            self._observer(self.record)


def _sum_assumptions(config: RunConfig) -> dict[str, Any]:
    """What the guarantee rests on where clients draw the noise, or hide their vectors from the server."""
    node = config.aggregation
    assumed: dict[str, Any] = {}
    if node.noise == "distributed" or node.protocol == "secagg":
        assumed |= {"corrupted": node.corrupted, "dropout": node.dropout}
    if node.protocol == "secagg":
        assumed |= {"threat": node.threat, "graph": node.graph, "failure_bits": node.failure_bits}
    return assumed


def public_facts(config: RunConfig) -> str:
    """The `public` line of a privacy statement under this configuration."""
    sizes = (
        "and the clients' row counts"
        if config.privacy.client_sizes == "public"
        else "(row counts are private: each client releases its own once, with noise)"
    )
    return f"schema with bounds and bins, workload, configuration, who takes part in which round, {sizes}"


def _read_join(reply: Reply, public: bool) -> tuple[int | None, float | None]:
    partition, rows = reply.params.get("partition"), reply.params.get("rows")
    for value, what in ((partition, "partition id"), (rows, "row count")):
        number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST
        if not number and not (value is None and (what == "partition id" or not public)):
            raise ProtocolError(f"the {what} is not a non-negative integer")
    return partition, float(rows) if public and rows is not None else None


def require(condition: bool, message: str) -> None:
    """ConfigError with the message unless the condition holds (for `MechanismStrategy.check`)."""
    if not condition:
        raise ConfigError(message)


class _Timer:
    def __init__(self, record: RoundRecord, phase: str) -> None:
        self.record, self.phase = record, phase

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.record.add_seconds(self.phase, time.perf_counter() - self.start)


__all__ = [
    "Client",
    "MechanismStrategy",
    "Observer",
    "Protocol",
    "RoundRecord",
    "public_facts",
    "require",
]
