"""Both halves of a mechanism on the real base classes: what one bad party can and cannot do to the others."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Error

from fedsyn import registry
from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.errors import Lost, ProtocolError, RunError
from fedsyn.flower import ConfigRecord, Context, Message, RecordDict
from fedsyn.flower.direct import TableApp
from fedsyn.flower.grid import InProcessGrid
from fedsyn.flower.messages import array_record
from fedsyn.flower.state import read_state, write_state
from fedsyn.inference import Measurement, estimate
from fedsyn.loading import parse_config
from fedsyn.privacy import EXPONENTIAL, PrivacyBudget, PrivacyStatement, Release
from fedsyn.protocol.client import TableClient, answers, indices
from fedsyn.protocol.contract import Contract as BaseContract
from fedsyn.protocol.record import Missing
from fedsyn.protocol.strategy import MechanismStrategy, Protocol
from fedsyn.randomness import Randomness
from fedsyn.settings import Node
from fedsyn.wire.envelope import ANSWER, ENVELOPE, Envelope, Reply, SumSpec
from fedsyn.wire.holder import Call, Holder
from fedsyn.wire.refusals import NOT_READY, Kind
from fedsyn.wire.requests import Ask, AskRequest, Layout, Positive, Sum, Summed, SumRequest

DOMAIN = Domain(("a", "b"), (2, 3))
SCHEMA = "hash of the schema"
SECRET = "4711-diagnosis"  # stands for a value in a table: it must not reach the server


# A small mechanism: every client votes for an attribute, then the one-way marginals are summed ------------------------


class Vote(AskRequest):
    name = "vote"
    leaves = "an attribute's index"
    costs = "one choice: epsilon^2/8"

    epsilon: Positive

    def releases(self, contract: BaseContract) -> tuple[Release, ...]:
        return (Release(self.name, 0, EXPONENTIAL, 1.0, epsilon=self.epsilon, noise_by="each client"),)


class Measure(SumRequest):
    name = "measure"
    leaves = "the counts of both attributes, in a sum"
    costs = "two marginals of sensitivity 1: 1/(2 sigma^2) each"

    def layout(self, contract: BaseContract, arrays: Sequence[np.ndarray]) -> Layout:
        return Layout.of_marginals(contract.domain, [("a",), ("b",)])


class ToyOptions(Node):
    rounds: int = 1
    sigma: float = 0.05  # small beside a count, and large enough for the clients' budgets
    vote_epsilon: float = 0.5


class ToyContract(BaseContract):
    Options = ToyOptions
    statement = PrivacyStatement("votes and sums", "nothing", "as the ledger says", "schema", "the server", "the run's")


class ToyClient(TableClient):
    Contract = ToyContract
    # What a client does before it answers: partition -> (request, what); tests fill it.
    misdeeds: ClassVar[dict[int, tuple[str, Callable[[], None]]]] = {}

    @answers(Vote)
    def vote(self, call: Call[Vote]) -> tuple[list[np.ndarray], dict[str, Any]]:
        self._misbehave("vote")
        epsilon = call.request.epsilon
        scores = [float((self.codes[:, j] == 0).sum()) for j in range(2)]
        chosen = self.ledger.exponential(scores, Release("vote", call.round, EXPONENTIAL, epsilon=epsilon), call.source)
        return [], {"chosen": [chosen]}

    @answers(Measure)
    def measure(self, call: Call[Measure]) -> Any:
        self._misbehave("measure")
        return self.marginals(call.request.layout(self.contract, call.arrays))

    def whole_table(self, call: Call[Any]) -> list[np.ndarray]:
        """Not marked as an answer: nobody may call it from outside."""
        return [self.codes]

    def _misbehave(self, request: str) -> None:
        when, what = self.misdeeds.get(self.holder.partition or 0, ("", lambda: None))
        if when == request:
            what()


class Toy(MechanismStrategy):
    Client = ToyClient

    def protocol(self) -> Protocol:
        self.votes: list[dict[int, int]] = []
        self.sums: list[Summed] = []
        for t in range(1, self.options.rounds + 1):
            self.begin_round(t)
            replies = yield Ask(self.everyone(), Vote(epsilon=self.options.vote_epsilon))
            self.votes.append(self.accept(replies, self.read_vote))
            sums = yield Sum(self.everyone(), Measure(), self.options.sigma)
            self.sums.append(sums)
            if sums.opened:
                pairs = zip((("a",), ("b",)), sums.arrays, sums.sigmas, strict=True)
                measurements = [Measurement(clique, values, sigma) for clique, values, sigma in pairs]
                self.model = estimate(self.domain, measurements)

    def read_vote(self, reply: Reply) -> int:
        chosen = indices(reply.params.get("chosen"), 2, "chosen")
        if len(chosen) != 1:
            raise ProtocolError("the reply does not choose one attribute")
        return chosen[0]


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    registry.MECHANISMS["toy"] = registry.MechanismEntry(f"{__name__}:Toy", f"{__name__}:ToyClient")
    yield
    del registry.MECHANISMS["toy"]
    ToyClient.misdeeds.clear()


def toy_config(**nodes: dict[str, Any]) -> RunConfig:
    document: dict[str, Any] = {
        "mechanism": {"name": "toy"},
        "data": {"source": "nothing"},
        "federation": {"clients": 3, "timeout": 60},
        "privacy": {"epsilon": 1000.0, "delta": 1e-5, "client_sizes": "public"},
        "workload": {"degree": 1, "size": None},
        "aggregation": {"protocol": "plain", "noise": "server"},
        "evaluation": [],
        "runtime": {"seed": 1},
    }
    for name, keys in nodes.items():
        document[name] = document.get(name, {}) | keys
    return parse_config(document)


def table(partition: int, rows: int = 20) -> np.ndarray:
    rng = np.random.default_rng(partition)
    return np.column_stack([rng.integers(0, n, rows) for n in DOMAIN.shape]).astype(np.uint8)


Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


@dataclass
class Federation:
    """Three real clients behind an in-process Grid; `replies` keeps whatever reached the server."""

    config: RunConfig
    partitions: Sequence[int] = (0, 1, 2)
    mod: Mod | None = None
    client_config: dict[int, RunConfig] | None = None
    schema: dict[int, str] | None = None

    def __post_init__(self) -> None:
        self.replies: list[Message] = []
        app = TableApp(self.client, [] if self.mod is None else [self.mod])
        nodes = [{"partition-id": k, "index": i} for i, k in enumerate(self.partitions)]
        self.grid = InProcessGrid(app, nodes, {})
        deliver = self.grid.send_and_receive

        def listen(messages: Any, *, timeout: float | None = None) -> list[Message]:
            received = list(deliver(messages, timeout=timeout))
            self.replies += received
            return received

        self.grid.send_and_receive = listen  # type: ignore[method-assign]
        self.strategy = Toy(self.config, DOMAIN, SCHEMA, randomness=Randomness(self.config.runtime.seed))

    def client(self, context: Context) -> Any:
        partition = int(context.node_config["partition-id"])
        if partition < 0:
            raise ValueError(f"could not read {SECRET}")
        text = read_state(context)
        holder = Holder(
            partition,
            table(partition),
            DOMAIN,
            (self.schema or {}).get(partition, SCHEMA),
            Randomness(self.config.runtime.seed),
            json.loads(text) if text else {},
            save=lambda state: write_state(context, json.dumps(state)),
        )
        return ToyClient((self.client_config or {}).get(partition, self.config), holder)

    def run(self) -> Toy:
        self.strategy.start(self.grid)
        return self.strategy

    def heard(self) -> str:
        """Everything that left the clients, as text."""
        return repr([(message.content if message.has_content() else message.error) for message in self.replies])


def exact(partitions: Sequence[int]) -> list[np.ndarray]:
    rows = np.concatenate([table(k) for k in partitions])
    return [np.bincount(rows[:, 0], minlength=2), np.bincount(rows[:, 1], minlength=3)]


def assert_sum_over(strategy: Toy, partitions: Sequence[int]) -> None:
    (sums,) = strategy.sums
    assert sums.contributors == tuple(partitions)
    for noisy, counts in zip(sums.arrays, exact(partitions), strict=True):
        np.testing.assert_allclose(noisy, counts, atol=0.4)


def assert_only_dropped(federation: Federation, partition: int, reason: str) -> None:
    """Client `partition` was dropped for `reason` in round 1; what it did reached nobody else's result."""
    record = federation.strategy.records[-1]
    assert list(record.dropped) == [partition]
    assert reason in str(record.dropped[partition])
    assert SECRET not in json.dumps(asdict(record))
    assert_sum_over(federation.strategy, [k for k in federation.partitions if k != partition])


def test_honest_clients_all_take_part() -> None:
    strategy = Federation(toy_config()).run()
    assert_sum_over(strategy, [0, 1, 2])
    assert list(strategy.votes[0]) == [0, 1, 2]
    assert [record.dropped for record in strategy.records] == [{}, {}]
    assert strategy.model is not None and strategy.model.total == pytest.approx(60, abs=0.5)
    assert strategy.rows([0, 2]) == 40
    assert strategy.ledger.report()["private"] is False  # the run is seeded


# Clients that fail ----------------------------------------------------------------------------------------------------


def fail() -> None:
    raise ValueError(f"could not convert string to float: {SECRET}")


@pytest.mark.parametrize("request_name", ["vote", "measure"])
def test_a_client_that_raises_costs_only_itself_and_tells_no_value(request_name: str) -> None:
    ToyClient.misdeeds[1] = (request_name, fail)
    federation = Federation(toy_config())
    federation.run()
    record = federation.strategy.records[-1]
    assert record.dropped == {1: NOT_READY}
    assert SECRET not in federation.heard()
    # Whoever fails in one request is asked again in the next.
    assert_sum_over(federation.strategy, [0, 1, 2] if request_name == "vote" else [0, 2])


def test_a_client_that_cannot_be_built_is_not_joined_and_tells_no_value() -> None:
    federation = Federation(toy_config(), partitions=(0, -1, 2))
    strategy = federation.run()
    assert strategy.everyone() == (0, 2)
    assert strategy.records[0].not_joined == [Missing("node 2", NOT_READY)] and strategy.records[0].notes == []
    assert SECRET not in federation.heard()
    assert_sum_over(strategy, [0, 2])


@pytest.mark.thorough
def test_a_late_reply_is_not_used() -> None:
    ToyClient.misdeeds[2] = ("measure", lambda: time.sleep(2.5))
    federation = Federation(toy_config(federation={"clients": 3, "timeout": 2.0}))
    federation.run()
    assert_only_dropped(federation, 2, "no reply to 'measure' within 2 s")
    assert list(federation.strategy.votes[0]) == [0, 1, 2]


# Malformed replies ----------------------------------------------------------------------------------------------------


def edit_answer(change: dict[str, Any]) -> Callable[[Message], RecordDict]:
    """A reply whose answer has some of its fields replaced (removed where the value is ...)."""

    def edit(reply: Message) -> RecordDict:
        fields = json.loads(reply.content["config"][ANSWER]) | change
        kept = {key: value for key, value in fields.items() if value is not ...}
        return RecordDict({"arrays": reply.content["arrays"], "config": ConfigRecord({ANSWER: json.dumps(kept)})})

    return edit


def raw_answer(value: Any) -> Callable[[Message], RecordDict]:
    def edit(reply: Message) -> RecordDict:
        record = ConfigRecord({} if value is None else {ANSWER: value})
        return RecordDict({"arrays": reply.content["arrays"], "config": record})

    return edit


def with_arrays(*arrays: np.ndarray) -> Callable[[Message], RecordDict]:
    return lambda reply: RecordDict({"arrays": array_record(arrays), "config": reply.content["config"]})


def with_bytes(data: bytes, stype: str = "numpy.ndarray") -> Callable[[Message], RecordDict]:
    """Arrays whose bytes are not what their description says."""

    def edit(reply: Message) -> RecordDict:
        record = array_record([np.zeros(2, np.uint8), np.ones(2, np.uint8)])
        for array in record.values():
            array.data, array.stype = data, stype
        return RecordDict({"arrays": record, "config": reply.content["config"]})

    return edit


def saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def claims(shape: tuple[int, ...]) -> bytes:
    """NumPy's format with a header that promises more than follows."""
    data = saved(np.zeros(4))
    return data.replace(b"(4,), }" + b" " * (len(str(shape)) - 4), f"{shape}, }}".encode())


U8 = np.uint8
MALFORMED = {
    "no arrays": with_arrays(),
    "one array": with_arrays(np.zeros(2, U8)),
    "wrong dtype": with_arrays(np.zeros(2), np.ones(2)),
    "NaN": with_arrays(np.zeros(2, U8), np.array([np.nan, 1.0])),
    "complex": with_arrays(np.zeros(2, U8), np.ones(2, complex)),
    "text array": with_arrays(np.zeros(2, U8), np.array([SECRET, SECRET])),
    "lengths differ": with_arrays(np.array([0, 1, 1], U8), np.ones(2, U8)),
    "a matrix": with_arrays(np.zeros((1, 2), U8), np.ones((1, 2), U8)),
    "huge cells": with_arrays(np.array([0, 2**63], np.uint64), np.ones(2, U8)),
    "a cell beyond the end": with_arrays(np.array([5], U8), np.ones(1, U8)),
    "negative counts": with_arrays(np.array([0, 1], U8), np.array([-4711, 1])),
    "huge counts": with_arrays(np.array([0, 1], U8), np.array([2**63, 1], np.uint64)),
    "pickled objects": with_bytes(saved(np.array([{SECRET: 1}], dtype=object))),
    "garbage bytes": with_bytes(SECRET.encode() * 5),
    "no bytes": with_bytes(b""),
    "more promised than sent": with_bytes(claims((10**9, 10**3))),
    "another serialization": with_bytes(saved(np.zeros(2, U8)), stype="torch"),
    "answer not JSON": raw_answer("{" + SECRET),
    "answer a list": raw_answer(f'["{SECRET}"]'),
    "answer a number": raw_answer(4711),
    "answer bytes": raw_answer(SECRET.encode()),
    "answer missing": raw_answer(None),
    "answer very deep": raw_answer('{"ok":' + "[" * 200_000),
    "answer with a huge number": raw_answer('{"ok": ' + "7" * 9_000 + "}"),
    "wrong request name": edit_answer({"request": "vote"}),
    "no request name": edit_answer({"request": ...}),
    "not ok, no reason": edit_answer({"ok": False}),
    "ok is a word": edit_answer({"ok": SECRET}),
    "params not an object": edit_answer({"params": [SECRET]}),
    "params missing": edit_answer({"params": ...}),
    "no config record": lambda reply: RecordDict({"arrays": reply.content["arrays"]}),
    "no array record": lambda reply: RecordDict({"config": reply.content["config"]}),
    "records swapped": lambda reply: RecordDict({"arrays": reply.content["config"], "config": reply.content["arrays"]}),
    "nothing": lambda reply: RecordDict(),
}


def tamper(partition: int, request: str, edit: Callable[[Message], RecordDict | Error]) -> Mod:
    """A client mod: a node that replaces its own reply to one request."""

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        asked = json.loads(message.content["config"][ENVELOPE])["request"]
        reply = call_next(message, context)
        if context.node_config["partition-id"] == partition and asked == request:
            edited = edit(reply)
            if isinstance(edited, Error):
                return Message(edited, reply_to=message)
            reply.content = edited
        return reply

    return mod


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_part_of_a_sum_costs_only_its_client(name: str) -> None:
    federation = Federation(toy_config(), mod=tamper(1, "measure", MALFORMED[name]))
    federation.run()
    assert_only_dropped(federation, 1, "")
    assert federation.strategy.records[-1].dropped[1]
    assert "4711" not in json.dumps(asdict(federation.strategy.records[-1]))


@pytest.mark.parametrize(
    "chosen", [None, SECRET, [SECRET], [2], [-1], [0, 0], [0, 1], [], [True], [0.0], [10**30], {"0": 1}, [[0]], 0]
)
def test_a_malformed_answer_costs_only_its_client(chosen: Any) -> None:
    edit = edit_answer({"params": {"chosen": chosen}})
    federation = Federation(toy_config(), mod=tamper(1, "vote", edit))
    strategy = federation.run()
    assert list(strategy.votes[0]) == [0, 2]
    assert list(strategy.records[-1].dropped) == [1]
    assert SECRET not in str(strategy.records[-1].dropped[1])


@pytest.mark.parametrize(
    "params",
    [
        {"partition": "0", "rows": 20},
        {"partition": -1, "rows": 20},
        {"partition": 1.0, "rows": 20},
        {"partition": True, "rows": 20},
        {"partition": 1, "rows": None},
        {"partition": 1, "rows": -5},
        {"partition": 1, "rows": 1e9},
        {"partition": 1, "rows": True},
        {"partition": 1, "rows": 10**400},
        {"partition": 10**30, "rows": 20},
        {},
    ],
)
def test_a_malformed_introduction_is_not_joined(params: dict[str, Any]) -> None:
    federation = Federation(toy_config(), mod=tamper(1, "join", edit_answer({"params": params})))
    strategy = federation.run()
    assert strategy.everyone() == (0, 2)
    (missing,) = strategy.records[0].not_joined
    assert missing.who == "node 2" and missing.why.kind is Kind.REPLY


def test_the_text_of_an_error_reply_is_not_repeated() -> None:
    mod = tamper(1, "measure", lambda reply: Error(code=7, reason=SECRET))
    federation = Federation(toy_config(), mod=mod)
    federation.run()
    assert_only_dropped(federation, 1, "error code 7")


# Who takes part -------------------------------------------------------------------------------------------------------


def test_below_the_minimum_cohort_nothing_is_opened_or_charged() -> None:
    mod = tamper(1, "measure", with_arrays())
    node = {"clients": 3, "minimum_cohort": 3, "timeout": 60}
    federation = Federation(toy_config(federation=node), mod=mod)
    with pytest.raises(Lost, match=r"'measure' of round 1 was not opened \(missing: client 1 \("):
        federation.run()
    assert [release.name for release in federation.strategy.ledger.releases] == ["vote"]
    federation = Federation(toy_config(federation={**node, "on_loss": "go_on"}), mod=mod)
    with pytest.raises(RunError, match="nothing to estimate"):
        federation.run()
    assert federation.strategy.sums == [Summed.nothing()]
    assert [release.name for release in federation.strategy.ledger.releases] == ["vote"]


def test_too_few_joined_clients_end_the_run_with_a_reason() -> None:
    config = toy_config(federation={"clients": 3, "minimum_cohort": 2})
    federation = Federation(config, schema={0: "another", 1: "another"})
    with pytest.raises(RunError, match=r"only 1 of 3 clients joined, the minimum is 2 .*schema"):
        federation.run()


def test_two_nodes_cannot_claim_one_partition() -> None:
    federation = Federation(toy_config(), partitions=(0, 2, 2))
    strategy = federation.run()
    assert strategy.everyone() == (0, 2)
    assert "two nodes claim partition 2" in str(strategy.records[0].not_joined[0])
    assert_sum_over(strategy, [0, 2])


def test_a_node_answers_for_itself_only() -> None:
    """A reply that claims another partition in its parameters is still taken for the node that sent it."""
    edit = edit_answer({"params": {"chosen": [0], "partition": 0}})
    strategy = Federation(toy_config(), mod=tamper(2, "vote", edit)).run()
    assert strategy.votes[0][2] == 0 and list(strategy.votes[0]) == [0, 1, 2]


def test_a_client_of_another_configuration_refuses() -> None:
    stricter = toy_config(privacy={"epsilon": 1.0, "delta": 1e-5})
    strategy = Federation(toy_config(), client_config={1: stricter}).run()
    assert strategy.everyone() == (0, 2)
    assert "another configuration" in str(strategy.records[0].not_joined[0])


def test_a_client_of_another_schema_refuses() -> None:
    strategy = Federation(toy_config(), schema={0: "another"}).run()
    assert strategy.everyone() == (1, 2)
    assert "schema" in str(strategy.records[0].not_joined[0])


# What a server may ask a client ---------------------------------------------------------------------------------------


def holder(budget: PrivacyBudget | None = None, **changes: Any) -> Holder:
    return Holder(0, table(0), DOMAIN, SCHEMA, Randomness(None), budget=budget, **changes)


def ask(client: ToyClient, request: str, params: dict[str, Any] | None = None, kind: str = "ask", **changes: Any):
    """One request as a server would send it; returns arrays and the answer's fields."""
    fields = {"round": 1, "config_hash": client.config.sha256} | changes
    envelope = Envelope(request, kind, params=params or {}, **fields)
    arrays, examples, scalars = client.fit([], envelope.to_scalars())
    assert examples == 0 and list(scalars) == [ANSWER]
    return arrays, json.loads(scalars[ANSWER])


SPEC = SumSpec(((2,), (3,)), sigma=1.0, sensitivity=1.0, count=2)


def spent(client: ToyClient) -> float:
    return client.ledger.spent


@pytest.mark.parametrize(
    "request_name", ["whole_table", "codes", "fit", "_answer", "__init__", "to_client", "get_parameters", "ledger", ""]
)
@pytest.mark.parametrize("kind", ["ask", "sum"])
def test_only_marked_methods_can_be_called_from_outside(request_name: str, kind: str) -> None:
    client = ToyClient(toy_config(), holder())
    arrays, answer = ask(client, request_name, kind=kind, sum=SPEC)
    assert arrays == [] and answer["ok"] is False and answer["kind"] == "protocol"
    assert "does not answer" in answer["sentence"] and spent(client) == 0


def test_exact_counts_cannot_be_asked_for_one_by_one() -> None:
    client = ToyClient(toy_config(), holder())
    arrays, answer = ask(client, "measure", kind="ask")
    assert arrays == [] and answer["kind"] == "protocol" and "sum only" in answer["sentence"]


def test_a_request_with_another_config_hash_is_refused() -> None:
    client = ToyClient(toy_config(), holder())
    _, answer = ask(client, "vote", {"epsilon": 0.1}, config_hash="f" * 64)
    assert answer["kind"] == "protocol" and "another configuration" in answer["sentence"] and spent(client) == 0


@pytest.mark.parametrize("kind", ["", "tell", "Ask"])
def test_an_unknown_kind_of_request_is_refused(kind: str) -> None:
    client = ToyClient(toy_config(), holder())
    _, answer = ask(client, "vote", {"epsilon": 0.1}, kind=kind)
    assert answer["kind"] == "protocol" and spent(client) == 0


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"epsilon": None}, "parameter 'epsilon' should be a valid number"),
        ({"epsilon": 0}, "parameter 'epsilon' should be greater than 0"),
        ({"epsilon": -1}, "parameter 'epsilon' should be greater than 0"),
        ({"epsilon": "1"}, "parameter 'epsilon' should be a valid number"),
        ({"epsilon": True}, "parameter 'epsilon' should be a valid number"),
        ({"epsilon": float("inf")}, "parameter 'epsilon' should be a finite number"),
        ({"epsilon": float("nan")}, "parameter 'epsilon' should be a finite number"),
        ({"epsilon": [1]}, "parameter 'epsilon' should be a valid number"),
        ({}, "parameter 'epsilon' field required"),
        ({"epsilon": 0.1, "more": 1}, "'vote' has a parameter that it does not take; allowed: epsilon"),
    ],
)
def test_a_malformed_parameter_of_a_request_is_refused(params: dict[str, Any], problem: str) -> None:
    client = ToyClient(toy_config(), holder())
    _, answer = ask(client, "vote", params)
    assert answer["ok"] is False and answer["kind"] == "protocol" and answer["sentence"] == problem
    assert spent(client) == 0


@pytest.mark.parametrize(
    "scalars", [{}, {ENVELOPE: 3}, {ENVELOPE: "["}, {ENVELOPE: "[" * 200_000}, {"request": "vote"}]
)
def test_a_request_without_an_envelope_is_refused(scalars: dict[str, Any]) -> None:
    _, _, answer = ToyClient(toy_config(), holder()).fit([], scalars)
    assert json.loads(answer[ANSWER])["kind"] == "protocol"


@pytest.mark.parametrize("noise", ["server", "local"])
@pytest.mark.parametrize(
    ("lie", "refusal"),
    [
        ({"count": 1}, "accounts for 1"),
        ({"sensitivity": 0.01}, "smaller sensitivity"),
        ({"shapes": ((2,), (2,))}, "another domain"),
        ({"shapes": ()}, "the description of the sum is malformed"),
        ({"sigma": 1e-6}, "nothing was released"),
    ],
)
def test_a_server_cannot_make_a_client_undercharge(noise: str, lie: dict[str, Any], refusal: str) -> None:
    config = toy_config(aggregation={"noise": noise}, privacy={"epsilon": 10.0})
    client = ToyClient(config, holder())
    arrays, answer = ask(client, "measure", kind="sum", sum=replace(SPEC, **lie))
    assert arrays == [] and answer["ok"] is False and refusal in answer["sentence"]
    assert spent(client) == 0


def test_a_clients_own_ledger_stops_a_server_that_asks_again_and_again() -> None:
    """The state survives between messages although each is answered by a new object, as on a SuperNode."""
    config = toy_config(privacy={"epsilon": 1.0, "delta": 1e-5})
    budget = PrivacyBudget(1.0, 1e-5)
    memory: dict[str, Any] = {}
    outcomes = []
    for t in range(1, 40):
        kept = json.loads(json.dumps(memory))
        client = ToyClient(config, holder(budget, state=kept, save=memory.update))
        _, answer = ask(client, "vote", {"epsilon": 0.2}, round=t % 3)
        outcomes.append(answer["ok"] or answer["kind"])
    cost = 0.2**2 / 8
    affordable = int(budget.rho / cost * (1 + 1e-9))
    assert outcomes == [True] * affordable + ["budget"] * (39 - affordable)
    assert 3 < affordable < 39
    last = ToyClient(config, holder(budget, state=json.loads(json.dumps(memory))))
    assert last.ledger.spent == pytest.approx(affordable * cost) and last.ledger.epsilon() <= 1.0
    # One request beyond everything is refused as a whole, and costs nothing.
    _, answer = ask(last, "vote", {"epsilon": 900.0})
    assert answer["kind"] == "budget" and last.ledger.spent == pytest.approx(affordable * cost)


def test_a_hostile_server_over_the_grid_gets_no_more_than_the_budget() -> None:
    """The server runs with more rounds than its clients' budgets pay for: they refuse, one by one and for good."""
    config = toy_config(
        mechanism={"name": "toy", "rounds": 6, "vote_epsilon": 0.25, "sigma": 12.0},
        privacy={"epsilon": 1.0, "delta": 1e-5},
        federation={"clients": 3, "on_loss": "go_on"},
    )
    federation = Federation(config)
    federation.strategy.ledger = type(federation.strategy.ledger)(PrivacyBudget(900.0, 1e-5), noise_by="server")
    strategy = federation.run()
    assert strategy.votes[0].keys() == {0, 1, 2} and strategy.votes[-1] == {}
    assert all(why.kind is Kind.BUDGET for why in strategy.records[-1].dropped.values())
    rho = PrivacyBudget(1.0, 1e-5).rho
    for context in federation.grid.contexts.values():
        ledger = json.loads(read_state(context) or "{}")["ledger"]
        charged = sum(
            r["count"] * (r["epsilon"] ** 2 / 8 if r["mechanism"] == EXPONENTIAL else 1 / (2 * r["sigma"] ** 2))
            for r in ledger["releases"]
        )
        assert 0.8 * rho < charged <= rho * (1 + 1e-8)


def test_a_holders_smaller_budget_binds() -> None:
    config = toy_config(privacy={"epsilon": 10.0})
    _, refused = ask(ToyClient(config, holder(PrivacyBudget(0.5, 1e-5))), "vote", {"epsilon": 2.0})
    _, accepted = ask(ToyClient(config, holder()), "vote", {"epsilon": 2.0})
    assert refused["kind"] == "budget" and accepted["ok"] is True


# Private row counts ---------------------------------------------------------------------------------------------------


def test_a_private_row_count_is_released_once_and_not_told_at_joining() -> None:
    config = toy_config(privacy={"client_sizes": "private", "epsilon": 10.0})
    client = ToyClient(config, holder())
    _, joined = ask(client, "join", {"schema_hash": SCHEMA})
    assert joined["params"] == {"partition": 0, "rows": None}
    with pytest.raises(ProtocolError, match="private"):
        _ = client.size
    _, first = ask(client, "sizes", {"sigma": 5.0})
    cost = spent(client)
    again = [ask(client, "sizes", {"sigma": 0.0001})[1] for _ in range(3)]
    assert cost == pytest.approx(1 / 50) == spent(client)
    assert [answer["params"] for answer in again] == [first["params"]] * 3
    assert client.size == max(1.0, first["params"]["rows"]) != 20


def test_a_run_with_private_row_counts_pays_for_them() -> None:
    privacy = {"client_sizes": "private", "size_share": 0.5}
    config = toy_config(mechanism={"name": "toy", "sigma": 0.2}, privacy=privacy)
    strategy = Federation(config).run()
    first = strategy.ledger.releases[0]
    assert (first.name, first.count, first.noise_by) == ("sizes", 1, "each client")
    assert first.rho == pytest.approx(0.5 * strategy.budget.rho)
    assert strategy.rows([0, 1, 2]) == pytest.approx(60, abs=10)


def test_state_and_arrays_of_an_answer_hold_no_row() -> None:
    """What a client writes into its node's state are its ledger and released numbers."""
    memory: dict[str, Any] = {}
    client = ToyClient(toy_config(), holder(save=memory.update))
    ask(client, "vote", {"epsilon": 0.5})
    ask(client, "measure", kind="sum", sum=SPEC)
    assert set(memory) == {"ledger"}
