"""Runs a mechanism on a small federation and writes down everything that a conformance check wants to compare.

The engine is the real one: `InProcessGrid`, Flower's message path, the registered strategy and client. Three things
are watched from outside: what passes between server and clients, what enters and leaves every ledger, and which
streams of randomness are drawn from. A run can be *replayed* on other rows: its ledgers then return what they returned
the first time, so that whatever still differs depends on the rows past the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.identities import simulated_identities
from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.errors import FedsynError
from fedsyn.flower import ArrayRecord, ClientApp, ConfigRecord, Context, Message, RecordDict
from fedsyn.flower.bridge import bridge, read_state, write_state
from fedsyn.flower.grid import InProcessGrid
from fedsyn.loading import parse_config
from fedsyn.privacy import Ledger
from fedsyn.protocol.client import TableClient
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.randomness import Randomness, RandomSource
from fedsyn.registry import client_class, contract_class, strategy_class
from fedsyn.selection.views import PooledView
from fedsyn.testing.schemas import AwkwardTable
from fedsyn.wire.envelope import ANSWER, ENVELOPE, to_json
from fedsyn.wire.holder import Holder

SERVER = "server"
Codes = npt.NDArray[np.integer]
Fault = Callable[[Message, int], Message | None]


# Federations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Federation:
    """A table that is split between clients.

    Attributes:
        table: the awkward table.
        parts: (n_k, d) codes of each client; the last one of a federation of several has no rows.
    """

    table: AwkwardTable
    parts: tuple[Codes, ...]

    @property
    def domain(self) -> Domain:
        return self.table.schema.domain

    @property
    def rows(self) -> int:
        return sum(len(part) for part in self.parts)

    def other_rows(self) -> Federation:
        """The same schema and row counts, entirely different rows."""
        rng = np.random.default_rng(99)
        shape = np.array(self.domain.shape)
        parts = [((1.0 - rng.random(part.shape) ** 3) * shape).astype(part.dtype) for part in self.parts]
        return Federation(self.table, tuple(parts))

    def with_part(self, client: int, codes: Codes) -> Federation:
        parts = list(self.parts)
        parts[client] = codes
        return Federation(self.table, tuple(parts))


def federation_of(table: AwkwardTable, central: bool) -> Federation:
    """One holder of everything, or: four clients, one of them empty; more clients than rows for the smallest tables."""
    codes = table.encode()
    if central:
        return Federation(table, (codes,))
    holding = 3 if len(codes) > 12 else len(codes)
    parts = [codes[k::holding] for k in range(holding)]
    empty = 1 if len(codes) > 12 else 3
    return Federation(table, (*parts, *[codes[:0]] * empty))


def config_of(name: str, clients: int, options: Mapping[str, Any] | None = None, **nodes: Any) -> RunConfig:
    """A small run's configuration; `nodes` are merged into the document's nodes."""
    if options is None:
        options = {"rounds": 2} if "rounds" in contract_class(name).Options.model_fields else {}
    document: dict[str, Any] = {
        "mechanism": {"name": name, **options},
        "data": {"source": "conformance.csv"},
        "federation": {"clients": clients},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
        "workload": {"degree": 2, "size": 6, "seed": 1},
        "evaluation": [],
        "runtime": {"seed": 0},
    }
    for key, node in nodes.items():
        document[key] = {**document.get(key, {}), **node}
    return parse_config(document)


# What is watched ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """One release: what went into a ledger and what came out."""

    kind: str
    name: str
    round: int
    inputs: tuple[npt.NDArray[Any], ...]
    sensitivity: float
    count: int
    output: Any


@dataclass(frozen=True)
class Exchange:
    """One request as a client got it, and its reply."""

    partition: int
    envelope: dict[str, Any]
    arrays: tuple[npt.NDArray[Any], ...]
    reply_arrays: tuple[npt.NDArray[Any], ...]
    reply: dict[str, Any]

    def __str__(self) -> str:
        return f"'{self.envelope.get('request')}' of round {self.envelope.get('round')}, client {self.partition}"


@dataclass
class Tape:
    """Everything that was watched in one run; with a script, the releases that the ledgers must repeat."""

    script: Mapping[str, Sequence[Draw]] | None = None
    draws: dict[str, list[Draw]] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    streams: set[tuple[Any, ...]] = field(default_factory=set)
    inside: int = 0

    def enter(self, party: str, draw: Draw) -> Any:
        """Records a release and returns what its caller sees."""
        mine = self.draws.setdefault(party, [])
        mine.append(draw)
        if self.script is None:
            return draw.output
        scripted = self.script.get(party, ())
        if len(mine) > len(scripted):
            self.problems.append(f"{party}: release '{draw.name}' of round {draw.round} exists for one table only")
            return draw.output
        before = scripted[len(mine) - 1]
        facts = [(d.kind, d.name, d.round, [a.shape for a in d.inputs]) for d in (before, draw)]
        if facts[0] != facts[1]:
            self.problems.append(f"{party}: release '{draw.name}' of round {draw.round} is another one per table")
            return draw.output
        return before.output


class TapedLedger(Ledger):
    """A ledger that writes its releases to a tape."""

    tape: Tape
    party: str

    @classmethod
    def wrap(cls, ledger: Ledger, tape: Tape, party: str) -> TapedLedger:
        wrapped = cls.from_dict(ledger.to_dict())
        assert isinstance(wrapped, TapedLedger)
        wrapped.tape, wrapped.party = tape, party
        return wrapped

    def gaussian(self, values: Any, **arguments: Any) -> Any:
        self.tape.inside += 1
        try:
            output = super().gaussian(values, **arguments)
        finally:
            self.tape.inside -= 1
        single = isinstance(values, np.ndarray)
        inputs = tuple(np.array(array) for array in ([values] if single else values))
        release = self.releases[-1]
        draw = Draw("gaussian", release.name, release.round, inputs, release.sensitivity, release.count, output)
        return self.tape.enter(self.party, draw)

    def distributed(self, values: Any, **arguments: Any) -> Any:
        self.tape.inside += 1
        try:
            output = super().distributed(values, **arguments)
        finally:
            self.tape.inside -= 1
        # One vector of all the sum's arrays: a row that touches `count` of them moves it by sqrt(count) as much.
        count = int(arguments["count"])
        moves = float(arguments["sensitivity"] * np.sqrt(count))
        inputs = (np.array(values),)
        draw = Draw("distributed", arguments["name"], arguments["round"], inputs, moves, min(1, count), output)
        return self.tape.enter(self.party, draw)

    def exponential(self, scores: Any, **arguments: Any) -> int:
        self.tape.inside += 1
        try:
            output = super().exponential(scores, **arguments)
        finally:
            self.tape.inside -= 1
        release = self.releases[-1]
        inputs = (np.array(scores, dtype=np.float64),)
        draw = Draw("exponential", release.name, release.round, inputs, release.sensitivity, release.count, output)
        return int(self.tape.enter(self.party, draw))


class WatchedRandomness(Randomness):
    """Seeded randomness that notices draws outside the ledger and streams that are used twice."""

    def __init__(self, seed: int | None, tape: Tape) -> None:
        super().__init__(seed)
        self.tape = tape

    def generator(self, *key: int | str) -> RandomSource:
        source = super().generator(*key)
        return _WatchedSource(source, key, self.tape) if self.seeded else source


class _WatchedSource:
    """Watches everything that can serve as noise. Keys of secure sums come from the operating system, not from here."""

    def __init__(self, source: RandomSource, key: tuple[Any, ...], tape: Tape) -> None:
        self._source, self._key, self._tape, self._fresh = source, key, tape, True

    def _watch(self) -> None:
        where = ", ".join(str(part) for part in self._key)
        if self._tape.inside == 0:
            self._tape.problems.append(f"noise of ({where}) is drawn outside a ledger entry")
        if self._fresh and self._key in self._tape.streams:
            self._tape.problems.append(f"the stream ({where}) is drawn from its beginning twice: equal noise, twice")
        self._tape.streams.add(self._key)
        self._fresh = False

    def standard_normal(self, size: Any = None) -> Any:
        self._watch()
        return self._source.standard_normal(size)

    def random(self, size: Any = None) -> Any:
        self._watch()
        return self._source.random(size)

    def gumbel(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        self._watch()
        return self._source.gumbel(loc, scale, size)

    def integers(self, low: Any, high: Any = None, size: Any = None) -> Any:
        self._watch()
        return self._source.integers(low, high, size)

    def permutation(self, x: Any) -> Any:
        return self._source.permutation(x)


# The federation's other side ---------------------------------------------------------------------------------------


class ScriptedGrid(InProcessGrid):
    """The in-process Grid with faulty nodes, and with another order of work and arrival.

    Args:
        app: the ClientApp.
        nodes: node configuration of each node.
        faults: by partition id, what becomes of its replies: (reply, number of earlier ones) -> reply or None.
        reverse: nodes work, and their replies arrive, in reverse order.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[Mapping[str, Any]],
        *,
        faults: Mapping[int, Fault] | None = None,
        reverse: bool = False,
    ) -> None:
        super().__init__(app, nodes, {})
        self._faults = dict(faults or {})
        self._answered: dict[int, int] = {}
        self._reverse = reverse

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        waiting = list(messages)
        replies = super().send_and_receive(waiting[::-1] if self._reverse else waiting, timeout=None)
        kept = []
        for reply in replies:
            partition = reply.metadata.src_node_id - 1
            earlier = self._answered[partition] = self._answered.get(partition, -1) + 1
            fault = self._faults.get(partition)
            changed: Message | None = reply if fault is None else fault(reply, earlier)
            if changed is not None:
                kept.append(changed)
        return kept


def vanish(after: int) -> Fault:
    """Gives no reply once it has given `after` of them."""
    return lambda reply, earlier: reply if earlier < after else None


def garble(after: int, kind: int) -> Fault:
    """Replies with nonsense, of another kind each time, once it has given `after` replies."""

    def fault(reply: Message, earlier: int) -> Message | None:
        if earlier < after:
            return reply
        reply.content = _GARBAGE[(earlier + kind) % len(_GARBAGE)](reply)
        return reply

    return fault


def _garbage(answer: str, arrays: Sequence[npt.NDArray[Any]] = ()) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord(list(arrays)), "config": ConfigRecord({ANSWER: answer})})


def _plausible(reply: Message) -> RecordDict:
    """The right request name, and nonsense where a mechanism reads its own parameters and arrays."""
    try:
        request = json.loads(str(reply.content["config"][ANSWER]))["request"]
    except (KeyError, TypeError, ValueError):
        request = "?"
    params = {"partition": -5, "rows": "many", "chosen": [10**12], "scores": "none"}
    nonsense = [np.array([[np.nan, -1.0]]), np.array([-(2**60)])]
    return _garbage(to_json({"request": request, "ok": True, "params": params}), nonsense)


_GARBAGE: tuple[Callable[[Message], RecordDict], ...] = (
    _plausible,
    lambda reply: RecordDict({}),
    lambda reply: _garbage("{'not': JSON"),
    lambda reply: _garbage(to_json({"request": "another", "ok": True, "params": {}})),
    lambda reply: _garbage(to_json({"request": "another", "ok": "certainly", "params": []})),
    lambda reply: _garbage(to_json({"ok": False, "error": 7, "message": None})),
)
GARBAGE_KINDS = len(_GARBAGE)


def client_app(name: str, config: RunConfig, federation: Federation, tape: Tape, raising: Iterable[int]) -> ClientApp:
    """A ClientApp of the registered client half, watched; clients in `raising` fail at every message."""
    failing = frozenset(raising)
    schema_hash = federation.table.schema.sha256
    pooled = PooledView(np.concatenate(federation.parts), federation.domain)

    def client_fn(context: Context) -> Any:
        partition = int(context.node_config["partition-id"])
        if partition in failing:
            raise RuntimeError("this client always fails")
        text = read_state(context)
        holder = Holder(
            partition,
            federation.parts[partition],
            federation.domain,
            schema_hash,
            WatchedRandomness(config.runtime.seed, tape),
            json.loads(text) if text else {},
            save=lambda kept: write_state(context, json.dumps(kept, separators=(",", ":"))),
            pooled=lambda: pooled,
            identities=lambda: simulated_identities(partition, len(federation.parts)),
        )
        client = client_class(name)(config, holder)
        client.ledger = TapedLedger.wrap(client.ledger, tape, f"client {partition}")
        _watch_exchanges(client, partition, tape)
        return client.to_client()

    return ClientApp(client_fn=client_fn, mods=[bridge])


def _watch_exchanges(client: TableClient, partition: int, tape: Tape) -> None:
    answer = client.fit

    def fit(parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        given = tuple(np.array(array) for array in parameters)
        reply_arrays, examples, metrics = answer(parameters, config)
        reply = {**json.loads(metrics[ANSWER]), "num_examples": examples}
        envelope = json.loads(config[ENVELOPE])
        tape.exchanges.append(Exchange(partition, envelope, given, tuple(reply_arrays), reply))
        return reply_arrays, examples, metrics

    client.fit = fit  # type: ignore[method-assign]


# Running -----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """A finished run.

    Attributes:
        config: its configuration.
        federation: its tables.
        strategy: the server half, which holds model, ledger and round records.
        tape: what was watched.
        error: why the run ended without a model; None if it has one.
        ledgers: the clients' ledgers at the end.
        synthetic: (rows, d) codes; empty without a model.
    """

    config: RunConfig
    federation: Federation
    strategy: MechanismStrategy
    tape: Tape
    error: FedsynError | None
    ledgers: dict[int, Ledger]
    synthetic: Codes

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The model's arrays; none without a model."""
        return {} if self.strategy.model is None else self.strategy.model.to_arrays()

    @property
    def dropped(self) -> set[int]:
        return {partition for record in self.strategy.records for partition in record.dropped}


def execute(
    config: RunConfig,
    federation: Federation,
    *,
    script: Mapping[str, Sequence[Draw]] | None = None,
    faults: Mapping[int, Fault] | None = None,
    raising: Iterable[int] = (),
    reverse: bool = False,
) -> Outcome:
    """One watched run. Errors that are not fedsyn's own are not caught: no client may cause one."""
    name = config.mechanism.name
    tape = Tape(script)
    clients = len(federation.parts)
    app = client_app(name, config, federation, tape, raising)
    nodes = [{"partition-id": k, "num-partitions": clients} for k in range(clients)]
    grid = ScriptedGrid(app, nodes, faults=faults, reverse=reverse)
    strategy = strategy_class(name)(
        config,
        federation.domain,
        federation.table.schema.sha256,
        randomness=WatchedRandomness(config.runtime.seed, tape),
    )
    strategy.ledger = TapedLedger.wrap(strategy.ledger, tape, SERVER)
    error: FedsynError | None = None
    try:
        strategy.start(grid)
    except FedsynError as caught:
        error = caught
    synthetic: Codes = np.zeros((0, len(federation.domain)), np.int64)
    if error is None and strategy.model is not None:
        rows = config.synthesis.rows or max(1, round(strategy.model.total))
        synthetic = strategy.model.sample(rows, Randomness(config.runtime.seed).ordinary("synthesize"))
    return Outcome(config, federation, strategy, tape, error, _client_ledgers(grid), synthetic)


def finished(outcome: Outcome) -> Outcome:
    """The outcome of a run that must have ended with a model."""
    assert outcome.error is None, f"the run failed: {outcome.error}"
    assert outcome.strategy.model is not None, "the run ended without a model"
    return outcome


def _client_ledgers(grid: InProcessGrid) -> dict[int, Ledger]:
    ledgers = {}
    for node, context in grid._contexts.items():
        state = json.loads(read_state(context) or "{}")
        if "ledger" in state:
            ledgers[node - 1] = Ledger.from_dict(state["ledger"])
    return ledgers
