"""Runs a mechanism on a small federation, and watches it.

It writes down everything that a conformance check wants to compare.

The engine is the real one: `InProcessGrid`, Flower's message path, the registered strategy and client. Three things
are watched from outside: what passes between server and clients, what enters and leaves every ledger, and which
streams of randomness are drawn from. A run can be *replayed* on other rows: its ledgers then return what they returned
the first time, so that whatever still differs depends on the rows past the ledger.

Small federations of awkward tables, and the configurations under which checks run a mechanism on them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation import Contribution
from fedsyn.capabilities import PLAIN
from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.errors import FedsynError
from fedsyn.flower import Context
from fedsyn.flower.direct import TableApp
from fedsyn.flower.state import read_state, write_state
from fedsyn.front.testing.failures import ProvokedError, errors_kept
from fedsyn.front.testing.faults import Fault, ScriptedGrid
from fedsyn.front.testing.schemas import AwkwardTable
from fedsyn.front.testing.tape import SERVER, Tape, TapedExchange, TapedLedger, TapedRelease
from fedsyn.keys.holder_keys import simulated_identities
from fedsyn.loading import parse_config
from fedsyn.privacy import Ledger
from fedsyn.protocol.client import TableClient
from fedsyn.protocol.federated_evaluation import federated_evaluation
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.randomness import Randomness, RandomSource
from fedsyn.registry import client_class, contract_class, strategy_class
from fedsyn.runs.federated_evaluation import question_about
from fedsyn.selection.views import pooled_view
from fedsyn.wire.envelope import ANSWER, ENVELOPE
from fedsyn.wire.holder import Holder

# What is watched ---------------------------------------------------------------------------------------------------


class WatchedRandomness(Randomness):
    """Seeded randomness that notices forbidden draws.

    These are draws outside the ledger, and streams that are used twice.
    """

    def __init__(self, seed: int | None, tape: Tape) -> None:
        super().__init__(seed)
        self.tape = tape

    def generator(self, *key: int | str) -> RandomSource:
        source = super().generator(*key)
        return cast(RandomSource, _WatchedSource(source, key, self.tape)) if self.seeded else source


class _WatchedSource:
    """Watches everything that can serve as noise.

    Keys of secure sums come from the operating system, not from here.
    """

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

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._source, name)
        if name == "permutation":  # of rows and clients, and never noise
            return method

        def watched(*arguments: Any, **named: Any) -> Any:
            self._watch()
            return method(*arguments, **named)

        return watched


# The federation's two sides ----------------------------------------------------------------------------------------


def watched_grid(
    config: RunConfig,
    federation: Federation,
    tape: Tape,
    *,
    raising: Iterable[int] = (),
    faults: Mapping[int, Fault] | None = None,
    reverse: bool = False,
) -> ScriptedGrid:
    """Returns a Grid with the clients of a run, watched.

    Those in `raising` fail at every message.
    """
    failing, clients = frozenset(raising), len(federation.parts)
    schema_hash = federation.table.schema.sha256
    pooled = cache(lambda: pooled_view(np.concatenate(federation.parts), federation.domain))

    def client_fn(context: Context) -> Any:
        partition = int(context.node_config["partition-id"])
        if partition in failing:
            raise ProvokedError("this client always fails")
        text = read_state(context)
        holder = Holder(
            partition,
            federation.parts[partition],
            federation.domain,
            schema_hash,
            WatchedRandomness(config.runtime.seed, tape),
            json.loads(text) if text else {},
            save=lambda state: write_state(context, json.dumps(state, separators=(",", ":"))),
            pooled=pooled,
            identities=lambda: simulated_identities(partition, clients),
        )
        client = client_class(config.mechanism.name)(config, holder)
        client.ledger = TapedLedger.wrap(client.ledger, tape, f"client {partition}")
        _watch(client, partition, tape)
        return client

    nodes = [{"partition-id": k, "num-partitions": clients} for k in range(clients)]
    return ScriptedGrid(TableApp(client_fn), nodes, faults=faults, reverse=reverse)


def _watch(client: TableClient, partition: int, tape: Tape) -> None:
    """Puts every request and its reply on the tape.

    The exact part of a sum is put there, too.
    """
    parts: list[Contribution] = []
    marked = {
        name for base in type(client).__mro__ for name, member in vars(base).items() if hasattr(member, "answers")
    }
    for name in marked:
        setattr(client, name, _keeping(getattr(client, name), parts))
    answer = client.fit

    def fit(parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        request_arrays = tuple(np.array(array) for array in parameters)
        reply_arrays, examples, metrics = answer(parameters, config)
        reply = {**json.loads(metrics[ANSWER]), "num_examples": examples}
        envelope = json.loads(config[ENVELOPE])
        part = parts[-1] if parts else None
        tape.exchanges.append(TapedExchange(partition, envelope, request_arrays, tuple(reply_arrays), reply, part))
        return reply_arrays, examples, metrics

    client.fit = fit  # type: ignore[method-assign]


def _keeping(method: Callable[[Any], Any], parts: list[Contribution]) -> Callable[[Any], Any]:
    def kept(call: Any) -> Any:
        answer = method(call)
        if isinstance(answer, Contribution):
            parts.append(answer)
        return answer

    return kept


def watched_server(config: RunConfig, tape: Tape) -> Callable[..., MechanismStrategy]:
    """Returns a maker of a run's server half, watched."""

    def make(*facts: Any, **named: Any) -> MechanismStrategy:
        named["randomness"] = WatchedRandomness(config.runtime.seed, tape)
        strategy: MechanismStrategy = strategy_class(config.mechanism.name)(*facts, **named)
        strategy.ledger = TapedLedger.wrap(strategy.ledger, tape, SERVER)
        plain = strategy.party_ledger

        def party_ledger(party: int) -> Ledger:
            return TapedLedger.wrap(plain(party), tape, f"party {party}")

        strategy.party_ledger = party_ledger  # type: ignore[method-assign]
        return strategy

    return make


# Running -----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """A run that has ended.

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

    @property
    def cause(self) -> BaseException | None:
        """The first error in a client that no check provoked."""
        return next((error for error in self.tape.errors if not isinstance(error, ProvokedError)), None)


def execute(
    config: RunConfig,
    federation: Federation,
    *,
    script: Mapping[str, Sequence[TapedRelease]] | None = None,
    faults: Mapping[int, Fault] | None = None,
    raising: Iterable[int] = (),
    reverse: bool = False,
) -> Outcome:
    """Runs a mechanism once, watched.

    Errors that are not fedsyn's own are not caught, because no client may cause one.
    """
    tape = Tape(script)
    grid = watched_grid(config, federation, tape, raising=raising, faults=faults, reverse=reverse)
    strategy = watched_server(config, tape)(config, federation.domain, federation.table.schema.sha256)
    if config.evaluation.federated:
        strategy.afterwards = lambda: _evaluated(strategy, federation)
    error: FedsynError | None = None
    with errors_kept(tape.errors):
        try:
            strategy.run(grid)
        except FedsynError as caught:
            error = caught
    synthetic: Codes = np.zeros((0, len(federation.domain)), np.int64)
    if error is None and strategy.model is not None:
        rows = config.synthesis.rows or max(1, round(strategy.model.total))
        synthetic = strategy.model.sample(rows, Randomness(config.runtime.seed).ordinary("synthesize"))
    return Outcome(config, federation, strategy, tape, error, _client_ledgers(grid), synthetic)


def _evaluated(strategy: MechanismStrategy, federation: Federation) -> Generator[Any, Any, None]:
    """Asks the holders how good a small table of the model is.

    The end of a run does so, too.
    """
    assert strategy.model is not None
    rows = strategy.model.sample(50, Randomness(strategy.config.runtime.seed).ordinary("evaluated"))
    question, _ = question_about(federation.table.schema, strategy.workload, rows)
    sums = yield from federated_evaluation(strategy, question)
    strategy.record.notes.append("evaluated" if sums is not None else "not evaluated")


def finished(outcome: Outcome) -> Outcome:
    """Returns an outcome that must have a model.

    Raises AssertionError if the run failed, or ended without a model.
    """
    if outcome.error is not None:
        raise AssertionError(f"the run failed: {outcome.error}") from outcome.cause
    assert outcome.strategy.model is not None, "the run ended without a model"
    return outcome


def _client_ledgers(grid: ScriptedGrid) -> dict[int, Ledger]:
    ledgers = {}
    for node, context in grid.contexts.items():
        state = json.loads(read_state(context) or "{}")
        if "ledger" in state:
            ledgers[node - 1] = Ledger.from_dict(state["ledger"])
    return ledgers


Codes = npt.NDArray[np.integer]


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
        """Returns a federation with entirely different rows.

        The schema and the row counts are equal.
        """
        rng = np.random.default_rng(99)
        shape = np.array(self.domain.shape)
        parts = [((1.0 - rng.random(part.shape) ** 3) * shape).astype(part.dtype) for part in self.parts]
        return Federation(self.table, tuple(parts))

    def with_part(self, client: int, codes: Codes) -> Federation:
        parts = list(self.parts)
        parts[client] = codes
        return Federation(self.table, tuple(parts))


def federation_of(table: AwkwardTable, central: bool) -> Federation:
    """Splits a table between clients.

    A central mechanism has one holder of everything. Others have four clients, one of them empty. The
    smallest tables have more clients than rows.
    """
    codes = table.encode()
    if central:
        return Federation(table, (codes,))
    holding = 3 if len(codes) > 12 else len(codes)
    parts = [codes[k::holding] for k in range(holding)]
    empty = 1 if len(codes) > 12 else 3
    return Federation(table, (*parts, *[codes[:0]] * empty))


def config_of(name: str, clients: int, options: Mapping[str, Any] | None = None, **nodes: Any) -> RunConfig:
    """Returns a small run's configuration.

    `nodes` are merged into the document's nodes.
    """
    if options is None:
        options = {"rounds": 2} if "rounds" in contract_class(name).Options.model_fields else {}
    document: dict[str, Any] = {
        "mechanism": {"name": name, **options},
        "data": {"source": "conformance.csv"},
        "federation": {"clients": clients},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
        "workload": {"degree": 2, "size": 6, "seed": 1},
        "aggregation": {"protocol": PLAIN.name, "noise": "server"},
        "evaluation": {"metrics": []},
        "runtime": {"seed": 0},
    }
    for key, node in nodes.items():
        document[key] = {**document.get(key, {}), **node}
    return parse_config(document)
