"""The driver of a run at its server.

Requests become messages on a Grid, are charged, and come back as checked answers.

Two drive a run, one after the other: the finding of what is private in its schema (`fedsyn.protocol.opening`), where
anything is, and the mechanism (`fedsyn.protocol.strategy`). They share clients, ledger and records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedsyn.aggregation.base import Enough, Forming, ServerSum
from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, ProtocolError, RunError
from fedsyn.flower import FLOWER_LOG, ArrayRecord, ConfigRecord, Grid, Message, MetricRecord, Strategy
from fedsyn.flower.asking import NodeGrid, node_grid
from fedsyn.flower.direct import chunks
from fedsyn.privacy import Ledger, Release, sigma_for_rho
from fedsyn.protocol import joining
from fedsyn.protocol.client import Join
from fedsyn.protocol.cohorts import NOBODY_LEFT, Cohorts
from fedsyn.protocol.common import RowTotal, Sizes
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.exchange import Exchange, Patience
from fedsyn.protocol.joining import ABSENT, GONE, Participant, Returning
from fedsyn.protocol.record import Observer, RoundCosts, RoundRecord
from fedsyn.protocol.recorder import Journal, Recorder, read_answer, read_round, written_round
from fedsyn.protocol.room import require_feasible
from fedsyn.protocol.waiting import Announce, Announcer, at_least, log_waiting, require_whole
from fedsyn.randomness import Randomness
from fedsyn.stores import make_store
from fedsyn.stores.base import ServedRun, StoreServer
from fedsyn.wire.envelope import Envelope, Reply
from fedsyn.wire.refusals import Kind, Refusal
from fedsyn.wire.requests import Ask, Choose, Deal, Open, Request, Sum, Summed, Yielded

if TYPE_CHECKING:
    from fedsyn.stores.crypto import SumRun  # imported by runs that have a crypto party

Steps = Generator[Yielded, Any, Any]
Parsed = TypeVar("Parsed")
# Deals that a store is handed at a time: an in-process federation has no more of them in memory.
_BLOCK = 1024


class OwnLoop(Strategy):
    """A Flower `Strategy` whose `start` calls no hooks.

    A round of a mechanism is several exchanges, each with its own messages, so a subclass replaces `start` as a whole.
    A loop of somebody else's that calls the hooks hears so: one that got no messages would end without a word.
    """

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        raise self._no_hook("configure_train")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        raise self._no_hook("aggregate_train")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        raise self._no_hook("configure_evaluate")

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        raise self._no_hook("aggregate_evaluate")

    def _no_hook(self, name: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__} has no {name}: its rounds are in protocol(); call start(grid)")


class Driver(OwnLoop):
    """Turns requests into messages on a Grid.

    It keeps the run's clients, ledger and records.

    Args:
        contract: of the run.
        schema_hash: hash of the schema, which every client must have approved.
        randomness: the server's source of randomness.
        observer: called with record and costs of each finished round.
        after: who drove the run until now, with its clients, ledger and records; None at its beginning.
        journal: where everything is written down by which another process can go on, and where what an earlier
            one has done is read (`fedsyn.protocol.recorder`); with `after` it is that one's.
    """

    def __init__(
        self,
        contract: Contract,
        schema_hash: str,
        randomness: Randomness,
        observer: Observer | None,
        after: Driver | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.contract: Contract = contract
        self.schema_hash = schema_hash
        self.config: RunConfig = contract.config
        self.options = contract.options
        self.domain = contract.domain
        self.randomness = randomness
        self.budget = contract.budget
        self._observer, self._after = observer, after
        self._requests = self._sums = 0  # so far; randomness is keyed by their number
        self.clients: dict[int, Participant] = {}
        self.cohorts = Cohorts(self.config.federation, contract.alone)
        self.records: list[RoundRecord] = [RoundRecord(0)]
        self.costs: list[RoundCosts] = [RoundCosts(0)]
        self._returning: Returning | None = None  # of a run that is resumed
        self.waits: Announce = log_waiting if after is None else after.waits
        if after is None:
            self.recorder, self.aggregation = Recorder(journal), contract.sums()
            record = self.recorder.charged if self.recorder.is_on else None
            self.ledger = contract.new_ledger(randomness, record)
            if self.recorder.past("ledger") is None and self.recorder.is_on:
                self.recorder.add("ledger", state=self.ledger.to_dict())
            return
        self.recorder, self._returning = after.recorder, after._returning
        self.ledger, self.clients, self.records, self.costs = after.ledger, after.clients, after.records, after.costs
        self._requests, self._sums = after._requests, after._sums
        self.aggregation = after.aggregation  # with what they have set up

    @cached_property
    def store(self) -> StoreServer | None:
        """The server's side of the run's store.

        None means that the mechanism forms sums.
        """
        if not self.contract.store:
            return None
        facts = (self.contract, self.ledger, self.randomness, self.party_ledger, self.clients, self.drop, self.most_of)
        return make_store(self.config).serve(ServedRun(*facts))

    @cached_property
    def crypto(self) -> SumRun | None:
        """Connection to the crypto party of sums of ciphertexts, if any."""
        if self.aggregation is None or self.aggregation.capabilities.parties is None:
            return None
        from fedsyn.stores.crypto import SumRun

        return SumRun(self.config, self.domain, self.randomness)

    @property
    def kept(self) -> list[StoreServer | SumRun]:
        """Parties that are told of the run and of its end."""
        return [party for party in (self.store, self.crypto) if party is not None]

    def party_ledger(self, party: int) -> Ledger:
        """Returns the ledger of a party that this server simulates."""
        return Ledger(self.budget.guarantee, self.budget.accountant, noise_by=f"party {party}")

    # What a protocol uses --------------------------------------------------------------------------------------------

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
        self.costs.append(RoundCosts(t))

    def everyone(self) -> tuple[int, ...]:
        return tuple(sorted(self.clients))

    def sample(self, sampling_rate: float) -> tuple[int, ...]:
        """Draws a round's cohort (`fedsyn.protocol.cohorts`).

        No privacy rests on that chance: no amplification is claimed.
        """
        cohort = self.cohorts.draw(self.everyone(), sampling_rate, self.randomness.ordinary("cohort", self.round))
        self.record.notes += [] if cohort else [NOBODY_LEFT]
        self.record.cohort = list(cohort)
        return cohort

    def rows(self, partitions: Iterable[int]) -> float:
        """Returns the total row count of some clients, public or released.

        Clients that hold different columns hold the same rows.
        """
        counts = [self.clients[k].rows or 0.0 for k in partitions]
        return float(sum(counts)) if self.config.federation.columns is None else max(counts, default=0.0)

    def most_rows(self, cohort: Iterable[int]) -> float:
        """Returns a public bound on the rows of some clients.

        It is at least 1, and no sum over them overflows by it.
        """
        privacy, unit = self.config.privacy, self.contract.unit
        if privacy.client_sizes == "public":
            return max(1.0, self.rows(cohort))
        capped = float(unit.rows * len(self.clients)) if unit.caps else joining.LARGEST_SUM
        sigma = self._sizes_sigma
        released = joining.most_of_released(self.clients.values(), sigma) if sigma else joining.LARGEST_SUM
        return max(1.0, min(capped, released))

    def most_of(self, partition: int) -> float:
        """Returns a public bound on one client's rows, at least 1."""
        sigma = self._sizes_sigma
        if self.config.privacy.client_sizes == "public" or not sigma:
            return self.most_rows([partition])
        return min(self.most_rows([partition]), self.clients[partition].reckoned + joining.FAR * sigma)

    @property
    def _sizes_sigma(self) -> float | None:
        """Noise of the row counts that clients have released, if they have."""
        return next((r.sigma for r in self.ledger.releases if r.name == Sizes.name), None)

    def require_feasible(self) -> None:
        """Raises ConfigError unless all that is planned fits.

        It tests what is known now, before anything of the mechanism is charged.
        """
        rows = self.most_rows(self.clients)
        sizes = [client.reckoned for client in self.clients.values() if client.rows is not None]
        known = rows < joining.LARGEST_SUM
        require_feasible(self.contract, len(self.clients), rows if known else 1.0, max(sizes, default=1.0))

    @property
    def fewest(self) -> int:
        """The fewest clients with which the run could finish.

        A store may need more of them to open than a sum.
        """
        return make_store(self.config).fewest if self.contract.store else max(1, self.config.federation.minimum_cohort)

    @property
    def total(self) -> float:
        """Row count of the federation, at least 1."""
        return max(1.0, self.rows(self.clients))

    def is_open(self, sums: Summed, what: str) -> bool:
        """Returns whether a sum was opened.

        If it was not, the round's record gets a note.
        """
        if not sums.opened:
            self.record.notes.append(f"too few contributions: no {what} were opened in this round's sum")
        return sums.opened

    def accept(self, replies: Mapping[int, Reply], parse: Callable[[Reply], Parsed]) -> dict[int, Parsed]:
        """Parses replies to an `Ask`.

        A reply that `parse` refuses with ProtocolError drops its client.
        """
        accepted = {}
        for partition in sorted(replies):
            try:
                accepted[partition] = parse(replies[partition])
            except ProtocolError as error:
                self.drop(partition, str(error))
        return accepted

    def drop(self, partition: int, sentence: str) -> None:
        """Records that a client's reply came and cannot be used, and why."""
        self.record.dropped[partition] = Refusal(Kind.REPLY, sentence)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Adds the seconds of a block to the round's costs."""
        costs, start = self.costs[-1], time.perf_counter()
        try:
            yield
        finally:
            costs.add_seconds(phase, time.perf_counter() - start)

    def summary(self) -> None:
        """Logs mechanism, guarantee and protocol to Flower's logger."""
        config = self.config
        node, of = config.aggregation, config.federation
        for line in (
            f"{type(self).__name__} ({config.mechanism.name}), {len(self.domain)} columns",
            f"\tguarantee: epsilon {config.privacy.epsilon:g} at delta {config.privacy.delta:g}, "
            f"for one {config.privacy.unit}{'; seeded, so NOT private' if self.randomness.seeded else ''}",
            f"\tclients: {1 if self.contract.central else of.clients}, sampling rate {of.sampling_rate:g}",
            f"\taggregation: {node.protocol}, noise: {node.noise}",
        ):
            FLOWER_LOG.info(line)

    # Driving ----------------------------------------------------------------------------------------------------------

    def drive(self, steps: Steps, grid: Grid, timeout: float) -> Any:
        """Answers every request of a protocol; returns its result.

        A sum, or a store's marginals, that no rows can give are raised in the protocol, as RunError: before more is
        spent on what they say.
        """
        go_on: Callable[[], Yielded] = partial(steps.send, None)
        while True:
            try:
                request = go_on()
            except StopIteration as end:
                return end.value
            answer = self.answer(request, grid, timeout)
            wrong = self.impossible(request, answer) if isinstance(request, Sum | Open) else None
            go_on = partial(steps.throw, RunError(wrong, can_go_on=False)) if wrong else partial(steps.send, answer)

    def impossible(self, request: Sum | Open, sums: Summed) -> str | None:
        """Returns a sentence if no rows give these sums."""
        rows, name, stored = self.most_rows(sums.contributors), request.request.name, isinstance(request, Open)
        arrays = () if isinstance(request, Open) else (request.arrays,)
        most = rows * request.request.layout(self.contract, *arrays).magnitude
        return joining.beyond(sums, most, name, rows, stored)

    def answer(self, yielded: Yielded, grid: Grid, timeout: float) -> Any:
        """Answers a request of the generator, by its kind."""
        self._requests += 1
        if isinstance(yielded, Deal | Choose | Open):
            return self._stored(yielded, grid, timeout)
        self.record.cohort = sorted({*self.record.cohort, *yielded.cohort})
        number, sums = self._requests, self._sums
        self._sums += isinstance(yielded, Sum)
        past = self.recorder.answered(number, yielded)
        if past is not None:
            self.ledger.reenter(map(Release.from_dict, past["releases"]))
            read_round(past, self.record, self.costs[-1])
            return read_answer(past["answer"])
        self.recorder.begin(number, self.aggregation)
        before = len(self.ledger.releases)
        answer: Summed | dict[int, Reply]
        with self.ledger.among(self.cohorts.apart(yielded.cohort, self.clients)):
            if isinstance(yielded, Sum):
                answer = self._sum(yielded, sums, grid, timeout)
            else:
                answer = self._ask(yielded, grid, timeout)
        if self.config.federation.on_loss == "stop" and yielded.cohort and not self.contract.alone:
            require_whole(yielded, answer, self.record, self.config.federation.minimum_cohort)
        self.ledger.reenter(self.recorder.unneeded())
        entered = self.ledger.releases[before:]
        self.recorder.end(number, answer, entered, self.record, self.costs[-1], self.aggregation)
        return answer

    def _stored(self, yielded: Deal | Choose | Open, grid: Grid, timeout: float) -> Any:
        store = self.store
        if store is None:
            raise TypeError("a mechanism that yields Deal, Choose or Open names them as its contract's `store`")
        with self.timed(yielded.request.name):
            if isinstance(yielded, Deal):
                return self._deal(store, yielded, grid, timeout)
            if not store.is_open:
                what = "choice" if isinstance(yielded, Choose) else "marginals"
                dealt = f"{len(store.dealt)} clients have dealt, too few"
                self.record.notes.append(f"{dealt}: no {what} came out of the store")
                return None if isinstance(yielded, Choose) else Summed.nothing()
            if isinstance(yielded, Choose):
                return store.choose(yielded, self.round)
            return store.open(yielded, yielded.request.layout(self.contract), self.round)

    def _deal(self, store: StoreServer, yielded: Deal, grid: Grid, timeout: float) -> tuple[int, ...]:
        """Sends one message to each client of the cohort.

        Returns the partition ids that have dealt now.
        """
        before, cohort = len(store.dealt), list(yielded.cohort)
        envelope = self._envelope(yielded.request)
        for first in range(0, len(cohort), store.at_once):
            partitions = {k: [np.array([k], np.int64)] for k in cohort[first : first + store.at_once]}
            # Whoever can be waited for is, unless the store opens without it, should all that come later deal.
            later = len(cohort) - first - len(partitions)
            enough = at_least(min(len(partitions), store.store.fewest - len(store.dealt) - later))
            replies = self._exchange(grid, timeout, list(partitions), envelope, enough).stream(
                store.invitation, partitions
            )
            for block in chunks(replies, _BLOCK):
                store.deal({reply.partition: reply for reply in block})
        return tuple(store.dealt[before:])

    def _ask(self, yielded: Ask, grid: Grid, timeout: float) -> dict[int, Reply]:
        if yielded.cohort:  # charged before it is asked for: a reply that is late or malformed was released too
            for release in yielded.request.releases(self.contract):
                self._promise(replace(release, round=self.round))
        exchange = self._exchange(grid, timeout, yielded.cohort, self._envelope(yielded.request))
        if isinstance(yielded.request, Join):
            # Where nothing is lost on the way, whoever does not answer once never does.
            needed = self.fewest if self.config.runtime.engine == "deployment" else 0
            return joining.asked_patiently(exchange, self.record.dropped, self._queue, needed)
        return exchange(list(yielded.arrays))

    def _promise(self, release: Release) -> None:
        """Charges a release whose noise a client draws.

        In a simulation its sampler is known.
        """
        known = replace(release, sampler=self.randomness.label) if self.randomness.seeded else release
        self.ledger.promise(known)

    def _sum(self, yielded: Sum, number: int, grid: Grid, timeout: float) -> Summed:
        assert self.aggregation is not None
        # Describe the sum as its clients are told of it.
        layout = yielded.request.layout(self.contract, yielded.arrays)
        spec = layout.spec(yielded.sigma, len(yielded.cohort), number)
        name = yielded.request.name
        envelope = replace(self._envelope(yielded.request), sum=spec)

        # The aggregation decides on messages, their order and what is charged; it only lacks the Grid.
        steps: Forming = self.aggregation.form(
            ServerSum(
                yielded,
                layout,
                spec,
                self.record,
                self.most_rows(yielded.cohort),
                self.config.sha256,
                self.ledger,
                self.randomness.generator("server", self.round, name, self._requests - 1),
                self.crypto,
                self.everyone(),
            )
        )
        replies: Iterator[Reply] | dict[int, Reply] | None = None
        while True:
            try:
                sent = steps.send(replies)
            except StopIteration as end:
                summed: Summed = end.value
                return summed
            message = replace(envelope, stage=sent.stage, params=envelope.params if sent.exact else {})
            exchange = self._exchange(grid, timeout, sent.cohort, message, sent.enough)
            if sent.streamed:
                replies = exchange.stream(sent.arrays, sent.each)
                continue
            # After a restart, replies that an earlier process wrote down stand in for the exchange.
            replies = self.recorder.came(self.record, self.costs[-1])
            if replies is None:
                replies = exchange(sent.arrays, sent.each)
                if sent.stage is not None and self.aggregation.may_rest(sent.stage):
                    self.recorder.keep(replies, self.record, self.costs[-1])

    def _envelope(self, request: Request) -> Envelope:
        params = request.model_dump()
        return Envelope(request.name, request.kind, self.round, self.config.sha256, params, self._requests)

    def _exchange(
        self, grid: Grid, timeout: float, cohort: Sequence[int], envelope: Envelope, enough: Enough | None = None
    ) -> Exchange:
        """Returns an exchange with a cohort.

        Args:
            grid, timeout, cohort, envelope: of the request.
            enough: with whose replies it is worth going on; None: of as many clients as the run's minimum.
        """
        asks = node_grid(grid)
        self._found(asks, wait=True)
        nodes = {k: self.clients[k].node for k in cohort if self.clients[k].node != ABSENT}
        away = {k: GONE for k in cohort if k not in nodes}
        minimum = min(len(cohort), max(1, self.config.federation.minimum_cohort))
        patience = self._patience(asks) if any(self.clients[k].again for k in cohort) else None
        drop = self.record.dropped.__setitem__
        facts = (envelope, timeout, self.costs[-1], drop, patience, enough or at_least(minimum), away)
        return Exchange(asks, nodes, *facts)

    def _patience(self, grid: NodeGrid) -> Patience:
        federation = self.config.federation

        def nodes() -> dict[int, int]:
            self._found(grid, wait=False)
            connected = set(grid.get_node_ids())
            return {k: client.node for k, client in self.clients.items() if client.node in connected}

        names = self.config.runtime.holders or {}
        remembers = {k for k, client in self.clients.items() if client.again}
        stops = federation.on_loss == "stop"
        return Patience(federation.patience, stops, remembers.__contains__, nodes, Announcer(self.waits), names)

    def _found(self, grid: NodeGrid, *, wait: bool) -> None:
        """Finds clients of a resumed run that have come back.

        With `wait`, they are waited for.
        """
        if self._returning is not None and any(client.node == ABSENT for client in self.clients.values()):
            self._returning.find(grid, self.clients, wait=wait)

    def _close_round(self) -> None:
        if self.store is not None:
            self.costs[-1].parties = self.store.spent()
        self.record.dropped = dict(sorted(self.record.dropped.items()))  # not in the order in which replies came
        if self._observer is not None:
            self._observer(self.record, self.costs[-1])

    # Joining ----------------------------------------------------------------------------------------------------------

    def join(self, grid: Grid, timeout: float) -> None:
        """Asks every node who it is.

        Afterwards `self.clients` maps partition ids to nodes and row counts. The clients of a run that is resumed are
        those that had joined; their nodes are found when one is needed.
        """
        public = self.config.privacy.client_sizes == "public"
        self._requests += 1
        past = self.recorder.past("joined")
        if past is None:
            self._join(grid, timeout, public)
            clients = [[k, client.rows] for k, client in self.clients.items()]
            self.recorder.add("joined", clients=clients, **written_round(self.record, self.costs[-1]))
        else:
            read_round(past, self.record, self.costs[-1])
            self.clients = {int(k): Participant(int(k), ABSENT, rows, again=True) for k, rows in past["clients"]}
            who = partial(self._who, node_grid(grid))
            self._returning = Returning(who, self.config.federation, public, lambda waiting: self.waits(waiting))
        self.require_feasible()
        self.announce(0.0 if public else self.config.privacy.size_share)
        if not public:
            self.drive(self._release_sizes(), grid, timeout)
            self.require_feasible()

    def _join(self, grid: Grid, timeout: float, public: bool) -> None:
        federation = self.config.federation
        wanted = 1 if self.contract.central else federation.clients
        # Other columns of the same people stand for nobody else's; a simulation has nobody to wait for.
        is_whole = federation.columns is not None or self.config.runtime.engine != "deployment"
        needed = wanted if is_whole else min(wanted, self.fewest)
        asks, queue = node_grid(grid), self._queue
        nodes, missing = joining.wait_for_nodes(asks, wanted, needed, queue)
        expected = len(nodes) + len(missing)
        self.clients = joining.provisional(nodes)
        self.record.cohort = sorted(self.clients)
        replies = self._ask(Ask(list(self.clients), Join(schema_hash=self.schema_hash)), grid, timeout)
        joining.told_again(asks, {k: client.node for k, client in self.clients.items()}, replies)
        silent = {self.clients[k].node: why for k, why in self.record.dropped.items()}
        self.record.dropped.clear()  # under provisional ids
        self.clients, refused = joining.joined(self.clients, replies, public)
        missing += queue.named(silent | refused)
        self.record.not_joined = missing
        joining.require_enough(self.clients, expected, self.fewest, missing)
        self.record.cohort = list(self.clients)

    @property
    def _queue(self) -> joining.Queue:
        """Describes how long clients that have yet to join are waited for.

        In a simulation nobody comes later.
        """
        federation, runtime = self.config.federation, self.config.runtime
        people = federation.patience if runtime.engine == "deployment" else 0.0
        return joining.Queue(people, federation.connect_timeout, runtime.nodes or {}, runtime.holders or {}, self.waits)

    def _who(self, grid: NodeGrid, nodes: Mapping[int, int], timeout: float) -> tuple[dict[int, Reply], list[Refusal]]:
        """Returns who these nodes say they are, and others' reasons.

        These messages are outside of the run's numbered requests.
        """
        request, why = Join(schema_hash=self.schema_hash), list[Refusal]()
        envelope = Envelope(request.name, request.kind, 0, self.config.sha256, request.model_dump())
        exchange = Exchange(grid, nodes, envelope, timeout, self.costs[-1], lambda _, reason: why.append(reason))
        replies = exchange([])
        joining.told_again(grid, nodes, replies)
        return replies, why

    def announce(self, share: float) -> None:
        """Agrees on the run with the parties that keep something.

        They also agree on the budget that is left without this share.
        """
        for party in self.kept:
            last = self.contract.budget.evaluation if party is self.crypto else 0.0  # a store has no part in evaluation
            party.announce(self.ledger.remaining_rho * (1 - share) + last, len(self.clients))

    def _release_sizes(self) -> Steps:
        """Releases row counts with noise, from the run's budget.

        It releases each client's, or the sum of all, of which each client then counts as an even part. One row sits at
        one client, so the releases of all clients together cost one of them (parallel composition).

        Raises:
            RunError: too few clients contributed to the sum, or released a number.
        """
        sigma = sigma_for_rho(self.config.privacy.size_share * self.ledger.remaining_rho)
        if self.contract.sums_rows:
            self.clients = joining.with_even_sizes(self.clients, (yield Sum(self.everyone(), RowTotal(), sigma)))
            return
        replies = yield Ask(self.everyone(), Sizes(sigma=sigma))
        self.clients = joining.with_released_sizes(self.clients, replies, sigma, self.drop, self._can_be)
        if len(self.clients) < self.fewest:
            raise RunError("too few clients released their size")

    def _can_be(self, rows: float) -> bool:
        """Returns whether a client of this size could answer."""
        try:
            self.contract.require_size(rows)
        except ConfigError:
            return False
        return True
