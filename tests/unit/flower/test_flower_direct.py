"""Clients called without messages: the same replies, refusals, bytes and memory as through Flower's messages."""

from __future__ import annotations

import gc
import json
import os
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.compat.client.numpy_client import NumPyClient

from fedsyn.domain import Domain
from fedsyn.errors import NodeError
from fedsyn.flower import ClientApp, Context, Message
from fedsyn.flower.direct import DirectRequest, TableApp, answered
from fedsyn.flower.grid import Contexts, InProcessGrid
from fedsyn.flower.state import read_state, write_state
from fedsyn.loading import parse_config
from fedsyn.plugins.clients.sketch_aim import SketchAimClient
from fedsyn.protocol import exchange
from fedsyn.protocol.exchange import Exchange
from fedsyn.protocol.record import RoundCosts
from fedsyn.randomness import Randomness
from fedsyn.runs.engines import run
from fedsyn.wire.envelope import ANSWER, Envelope, Reply, to_json
from fedsyn.wire.holder import Holder
from fedsyn.wire.refusals import Kind, Refusal

SECRET = "4711-diagnosis"
KEPT: list[np.ndarray] = []  # what a client that outlives its message holds on to


def good(params: Any = None) -> dict[str, Any]:
    return {ANSWER: to_json({"request": "measure", "ok": True, "params": params or {}})}


@dataclass
class Odd(NumPyClient):
    """A client that does what its node's configuration says."""

    does: str
    context: Context

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict]:
        counter = int(read_state(self.context) or 0) + 1
        write_state(self.context, str(counter))
        return getattr(self, self.does)(parameters, counter)

    def echo(self, parameters: list[np.ndarray], counter: int) -> Any:
        return [2 * p for p in parameters], 0, good({"counter": counter})

    def nothing(self, parameters: list[np.ndarray], counter: int) -> Any:
        return [], 0, good()

    def shapes(self, parameters: list[np.ndarray], counter: int) -> Any:
        fortran, scalar = np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(2.5)
        types = [np.ones(3, kind) for kind in ("u1", ">i4", "f2", "f8", "?")]
        return [fortran, fortran[:, ::2], scalar, np.zeros((3, 0), np.uint16), np.arange(20)[::3], *types], 0, good()

    def kept(self, parameters: list[np.ndarray], counter: int) -> Any:
        KEPT.append(np.arange(4))
        return KEPT[-1:], 0, good()

    def raises(self, parameters: list[np.ndarray], counter: int) -> Any:
        raise ValueError(f"about {SECRET}")

    def says(self, parameters: list[np.ndarray], counter: int) -> Any:
        raise NodeError("this holder does not take part")

    def writes(self, parameters: list[np.ndarray], counter: int) -> Any:
        parameters[0][0] = 99
        return [], 0, good()

    def objects(self, parameters: list[np.ndarray], counter: int) -> Any:
        return [np.array([{"a": SECRET}])], 0, good()

    def words(self, parameters: list[np.ndarray], counter: int) -> Any:
        return [np.array([SECRET])], 0, good()

    def dates(self, parameters: list[np.ndarray], counter: int) -> Any:
        return [np.array(["2020-01-01"], "datetime64[D]")], 0, good()

    def fields(self, parameters: list[np.ndarray], counter: int) -> Any:
        return [np.zeros(2, "u1,f4")], 0, good()

    def garbled(self, parameters: list[np.ndarray], counter: int) -> Any:
        return [], 0, {ANSWER: "{'not': JSON"}

    def other(self, parameters: list[np.ndarray], counter: int) -> Any:
        return [], 0, {ANSWER: to_json({"request": "another", "ok": True, "params": {}})}

    def silent(self, parameters: list[np.ndarray], counter: int) -> Any:
        return [np.arange(3)], 0, {}

    def numbers(self, parameters: list[np.ndarray], counter: int) -> Any:
        return [], 0, {ANSWER: 7, "b": b"bytes", "f": 0.5}

    def unheard(self, parameters: list[np.ndarray], counter: int) -> Any:
        return [], 0, {ANSWER: {"a": "mapping"}}

    def sleep(self, parameters: list[np.ndarray], counter: int) -> Any:
        time.sleep(1.0)
        return [], 0, good({"counter": counter})

    def die(self, parameters: list[np.ndarray], counter: int) -> Any:
        os._exit(3)


_NOT = ("fit", "sleep", "die")
DOES = [name for name, made in vars(Odd).items() if callable(made) and name[0] != "_" and name not in _NOT]


def client_fn(context: Context) -> NumPyClient:
    if context.node_config["does"] == "absent":
        raise ValueError(f"could not read {SECRET}")
    return Odd(str(context.node_config["does"]), context)


app = TableApp(client_fn)
watched: list[str] = []


def watching(message: Message, context: Context, call_next: Any) -> Message:
    watched.append(str(message.content["config"]["envelope"]))
    return call_next(message, context)


def grid_of(does: list[str], made: ClientApp = app, direct: bool = True) -> InProcessGrid:
    return InProcessGrid(made, [{"does": name} for name in does], {"key": "value"}, direct=direct)


@dataclass
class Heard:
    """What came of some exchanges."""

    replies: list[dict[int, tuple[list[Any], Any]]] = field(default_factory=list)
    dropped: list[dict[int, Refusal]] = field(default_factory=list)
    bytes: list[tuple[int, int]] = field(default_factory=list)
    states: list[str | None] = field(default_factory=list)


REQUEST = [np.arange(6).reshape(2, 3), np.array([0.5]), np.array(7, np.uint8), np.zeros((0, 2))]


def ask(grid: InProcessGrid, *nodes: int, timeout: float = 60.0) -> dict[int, Reply]:
    """Replies of some nodes, by node."""
    envelope, asked = Envelope("measure", "ask", 1, "hash"), {node: node for node in nodes}
    return Exchange(grid, asked, envelope, timeout, RoundCosts(1), lambda k, why: None)(list(REQUEST))


def heard(grid: InProcessGrid, timeout: float = 60.0) -> Heard:
    """Two exchanges, the second with an array for each client."""
    found = Heard()
    nodes = {node - 1: node for node in grid.get_node_ids()}
    for each in (None, {k: [np.full(k, k, np.int16)] for k in nodes}):
        dropped: dict[int, Refusal] = {}
        costs, envelope = RoundCosts(1), Envelope("measure", "ask", 1, "hash")
        replies = Exchange(grid, nodes, envelope, timeout, costs, dropped.__setitem__)(list(REQUEST), each)
        assert list(replies) == sorted(replies) and costs.seconds["measure"] >= 0
        assert all(reply.partition == k for k, reply in replies.items())
        arrays = {k: [(a.dtype.str, a.shape, a.tobytes()) for a in reply.arrays] for k, reply in replies.items()}
        found.replies.append({k: (arrays[k], reply.params) for k, reply in replies.items()})
        found.dropped.append(dict(sorted(dropped.items())))
        found.bytes.append((costs.bytes_down, costs.bytes_up))
    found.states = [read_state(context) for context in grid.contexts.values()]
    return found


@pytest.fixture(scope="module")
def by_messages() -> Heard:
    return heard(grid_of([*DOES, "absent"], direct=False))


@pytest.mark.slow
def test_whatever_a_client_does_comes_out_as_by_message(by_messages: Heard) -> None:
    grid = grid_of([*DOES, "absent"])
    assert grid.is_direct
    ours = heard(grid)
    assert ours == by_messages
    assert SECRET not in repr(ours)
    late = heard(grid, timeout=0.0)  # not used, but remembered
    grid.close()
    assert late.replies == [{}, {}] and late.bytes[0][1] == 0
    assert set(late.dropped[0].values()) == {Refusal(Kind.SLOW, "no reply to 'measure' within 0 s")}
    assert late.states == ["4"] * len(DOES) + [None]
    usable = {"echo", "nothing", "shapes", "kept"}
    for replies, dropped in zip(ours.replies, ours.dropped, strict=True):
        assert {DOES[k] for k in replies} == usable and len(dropped) == len(DOES) + 1 - len(usable)
    assert ours.replies[1][0][1] == {"counter": 2}  # the state lasted


def test_a_late_reply_is_late_by_message_too() -> None:
    ours, theirs = (heard(grid_of(["echo", "raises"], direct=direct), timeout=0.0) for direct in (True, False))
    assert ours == theirs and ours.states == ["2", "2"]


def test_a_client_can_change_nothing_that_others_see() -> None:
    array = np.arange(5)
    asked = DirectRequest.of([array], {"a": "b"})
    (mine,), (theirs,) = asked.views(), asked.views()
    for change in (lambda: mine.__setitem__(0, 9), lambda: mine.setflags(write=True)):
        with pytest.raises(ValueError, match=r"read-only|WRITEABLE"):
            change()
    mine.shape = (5, 1)
    array[:] = 0
    assert theirs.tolist() == [0, 1, 2, 3, 4] and asked.views()[0].shape == (5,)


def test_what_a_client_keeps_of_its_reply_is_its_own() -> None:
    grid = grid_of(["kept"])
    envelope = Envelope("measure", "ask", 1, "hash")
    reply = Exchange(grid, {0: 1}, envelope, 60.0, RoundCosts(1), lambda k, why: None)([])[0]
    KEPT[-1][:] = -1
    assert reply.arrays[0].tolist() == [0, 1, 2, 3]


def test_requests_are_read_only_on_every_way() -> None:
    for direct in (True, False):
        assert "own log" in str(heard(grid_of(["writes"], direct=direct)).dropped[0][0])


# When messages are used ----------------------------------------------------------------------------------------------


def test_mods_of_flower_see_messages(by_messages: Heard) -> None:
    made = TableApp(client_fn, [watching])
    watched.clear()
    assert made.direct is None and not grid_of(["echo"], made=made).is_direct
    assert heard(grid_of([*DOES, "absent"], made=made)) == by_messages
    assert len(watched) == 2 * len(by_messages.states)


def test_a_lifespan_of_the_app_is_entered() -> None:
    made, entered = TableApp(client_fn), []

    @made.lifespan()
    def lifespan(context: Context) -> Iterator[None]:
        entered.append(context.node_id)
        yield

    grid = grid_of(["echo", "echo"], made=made)
    assert not grid.is_direct
    heard(grid)
    assert entered == [1, 2, 1, 2]


def test_whoever_listens_to_messages_hears_them() -> None:
    class Listening(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            return list(super().send_and_receive(messages, timeout=timeout))

    assert not Listening(app, [{"does": "echo"}], {}).is_direct
    other = ClientApp()
    other.train()(partial(answered, client_fn))
    assert not InProcessGrid(other, [{"does": "echo"}], {}).is_direct
    patched = grid_of(["echo"])
    patched.send_and_receive = patched.send_and_receive  # type: ignore[method-assign]
    assert not patched.is_direct


# Memory ---------------------------------------------------------------------------------------------------------------


def test_nodes_that_remember_the_same_share_it() -> None:
    contexts = Contexts([{"n": i} for i in range(3)], {"key": "value"})
    for node in (1, 2):
        context = contexts[node]
        write_state(context, "".join(["same ", "text"]))
        contexts.keep(node, (context.text, context.state))
    assert read_state(contexts[1]) is read_state(contexts[2]) and read_state(contexts[3]) is None
    for round in range(3000):  # nobody remembers the old ones any more
        contexts.keep(1, (str(round), contexts[1].state))
    assert len(contexts._shared) <= 1024
    assert list(contexts) == [1, 2, 3] and contexts[2].node_config == {"n": 1}
    with pytest.raises(KeyError):
        contexts[4]


class Counted(Reply):
    alive: ClassVar[weakref.WeakSet[Reply]] = weakref.WeakSet()
    most: ClassVar[int] = 0

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        Counted.alive.add(self)
        Counted.most = max(Counted.most, len(Counted.alive))

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def configuration(mechanism: str = "sketch_aim", clients: int = 4, **changes: Any) -> Any:
    nodes: dict[str, Any] = {
        "mechanism": {"name": mechanism, "rounds": 2},
        "data": {"source": "synthfs", "bins": 6, "options": {"beta": 1.0, "clients": 4, "rows": 400, "features": 3}},
        "federation": {"clients": clients, "partition": "iid"},
        "privacy": {"epsilon": 5.0, "delta": 1e-5},
        "workload": {"degree": 2, "size": None},
        "evaluation": [],
        "runtime": {"engine": "inprocess", "seed": 3},
    }
    return parse_config({**nodes, **changes})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "direct"),
    [
        ("server", True),
        ("distributed", True),
        pytest.param("local", True, marks=pytest.mark.slow),
        pytest.param("distributed", False, marks=pytest.mark.slow),
    ],
)
def test_a_sum_holds_few_replies_at_a_time(
    noise: str, direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies to sums, that is: the answers to `join` are kept, and are small."""
    monkeypatch.setattr(exchange, "Reply", Counted)
    monkeypatch.setattr(InProcessGrid, "at_once", 8)
    if not direct:
        monkeypatch.setattr(InProcessGrid, "is_direct", property(lambda grid: False))
    seen: dict[str, int] = {}
    together = Exchange.stream

    def stream(self: Exchange, *facts: Any) -> Iterator[Reply]:
        gc.collect()
        Counted.most = 0
        yield from together(self, *facts)
        seen[self.envelope.request] = max(seen.get(self.envelope.request, 0), Counted.most)

    monkeypatch.setattr(Exchange, "stream", stream)
    aggregation = {"protocol": "plain", "noise": noise}
    privacy = {"epsilon": 5.0, "delta": 1e-5, "client_sizes": "public"}
    run(configuration(clients=60, aggregation=aggregation, privacy=privacy), tmp_path / "out")
    assert seen.pop("join") == 60 and seen.keys() == {"one-way", "sketch", "measure"}
    assert max(seen.values()) <= (3 if direct else 12)


def test_clients_of_one_configuration_share_its_contract() -> None:
    one, other = configuration(), configuration()
    domain = Domain(("a", "b"), (2, 3))
    holders = [Holder(k, np.zeros((1, 2), np.uint8), domain, "", Randomness(0)) for k in range(2)]
    first, second = (SketchAimClient(one, holder) for holder in holders)
    assert first.contract is second.contract and first.candidates is second.candidates
    assert SketchAimClient(other, holders[0]).contract is not first.contract
    assert SketchAimClient(one, replace(holders[0], domain=Domain(("a", "b"), (2, 4)))).domain["b"] == 4


# Whole runs -----------------------------------------------------------------------------------------------------------

FHE = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("tenseal"), reason="TenSEAL is not installed (extra fhe)"
)
RUNS = [
    ("augflaim", {"protocol": "plain", "noise": "server"}, {}),
    pytest.param(
        "augflaim",
        {"protocol": "plain", "noise": "local"},
        {"privacy": {"client_sizes": "private"}},
        marks=pytest.mark.slow,
    ),
    pytest.param(
        "augflaim",
        {"protocol": "plain", "noise": "distributed"},
        {},
        marks=pytest.mark.slow,
    ),
    pytest.param("sketch_aim", {"protocol": "secagg", "noise": "distributed"}, {}, marks=pytest.mark.slow),
    ("sketch_aim", {"protocol": "secagg", "noise": "distributed", "threat": "malicious"}, {}),
    ("distaim", {"protocol": "plain", "noise": "server"}, {}),
    ("distaim", {"protocol": "mpc", "noise": "distributed"}, {}),
    pytest.param("sketch_aim", {"protocol": "fhe", "noise": "distributed"}, {}, marks=FHE),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("mechanism", "aggregation", "more"), RUNS)
def test_a_run_is_the_same_to_the_last_bit_with_and_without_messages(
    mechanism: str, aggregation: dict, more: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = configuration().to_dict()
    changes = {name: {**base[name], **node} for name, node in more.items()}
    config = configuration(mechanism, aggregation=aggregation, **changes)
    asked = []
    called = InProcessGrid.called
    monkeypatch.setattr(InProcessGrid, "called", lambda self, *facts: asked.append(1) or called(self, *facts))
    run(config, tmp_path / "direct")
    assert asked
    monkeypatch.setattr(InProcessGrid, "is_direct", property(lambda grid: False))
    asked.clear()
    run(config, tmp_path / "messages")
    assert not asked
    for name in ("synthetic.csv", "ledger.json", "rounds.jsonl"):
        assert (tmp_path / "direct" / name).read_bytes() == (tmp_path / "messages" / name).read_bytes(), name
    ours, theirs = (costs(tmp_path / way / "measured.jsonl") for way in ("direct", "messages"))
    if aggregation["protocol"] != "fhe":  # random ciphertexts, some of which pack a few bytes better
        assert ours == theirs


def costs(file: Path) -> list[tuple[int, int, int]]:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [(line["messages"], line["bytes_down"], line["bytes_up"]) for line in lines]
