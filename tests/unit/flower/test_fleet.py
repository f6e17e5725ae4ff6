"""A node's connection against SuperLinks that lie, break off, forget it, or have another clock: the loop goes on."""

from __future__ import annotations

import datetime
import email.utils
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from fedsyn.errors import ConfigError
from fedsyn.flower import fleet
from fedsyn.flower.fleet import Contact, Endpoint, Fleet, Incoming, Outgoing, pause
from support.node_folders import make_node

Reply = Callable[[str, bytes], tuple[int, bytes, dict[str, str]]]
OTHER = ConfigRecord({"envelope": "another"}).deflate()
OK = Outgoing({"answer": "{}"}, [("int64", (), b"npy")])


class SuperLink:
    """The server's half of Flower's Fleet API, as honest or not as `reply` is; what it was asked is kept."""

    def __init__(self, reply: Reply) -> None:
        self.asked: list[str] = []
        link = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                name = self.path.rsplit("/", 1)[1]
                link.asked.append(name)
                status, content, headers = reply(name, body)
                self.send_response_only(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=lambda: self.server.serve_forever(0.02), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"


class Honest:
    """Answers as Flower's SuperLink does; a test changes what it needs."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.objects: dict[str, bytes] = {}
        self.replies: list[Message] = []
        self.online = False
        self.running = True
        self.node, self.looks = 42, 0

    def add(self, content: RecordDict, run: int = 5) -> None:
        metadata = Metadata(run, "", 1, self.node, "", "0", time.time(), 60.0, "train")
        message = Message(content=content, metadata=metadata)
        metadata.__dict__["_message_id"] = message.object_id
        self.objects |= {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        self.messages.append(message)

    def __call__(self, name: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        made = getattr(self, name.replace("-", "_"))(body)
        return made if isinstance(made, tuple) else (200, made.SerializeToString(), {})

    def register_node(self, body: bytes) -> Any:
        return 412, b'{"code": 1}', {}

    def activate_node(self, body: bytes) -> Any:
        if self.online:
            return 412, b"{}", {}
        self.online = True
        return fleet_pb2.ActivateNodeResponse(node_id=self.node)

    def deactivate_node(self, body: bytes) -> Any:
        self.online = False
        return fleet_pb2.DeactivateNodeResponse()

    def send_node_heartbeat(self, body: bytes) -> Any:
        return heartbeat_pb2.SendNodeHeartbeatResponse(success=True)

    def pull_messages(self, body: bytes) -> Any:
        self.looks += 1
        if not self.messages:
            return fleet_pb2.PullMessagesResponse()
        message = self.messages.pop(0)
        tree = get_object_tree(message)
        return fleet_pb2.PullMessagesResponse(messages_list=[message_to_proto(message)], message_object_trees=[tree])

    def pull_object(self, body: bytes) -> Any:
        name = message_pb2.PullObjectRequest.FromString(body).object_id
        content = self.objects.get(name)
        return message_pb2.PullObjectResponse(
            object_found=content is not None, object_available=bool(content), object_content=content or b""
        )

    def confirm_message_received(self, body: bytes) -> Any:
        return message_pb2.ConfirmMessageReceivedResponse()

    def get_run(self, body: bytes) -> Any:
        if not self.running:
            return 403, b"{}", {}
        response = run_pb2.GetRunResponse()
        response.run.fab_hash = "f" * 64
        response.run.override_config["run"].string = "first"
        return response

    def push_messages(self, body: bytes) -> Any:
        request = fleet_pb2.PushMessagesRequest.FromString(body)
        self.replies.append(message_from_proto(request.messages_list[0]))
        return fleet_pb2.PushMessagesResponse(session_id="s", objects_to_push=[])

    def push_object(self, body: bytes) -> Any:
        return message_pb2.PushObjectResponse(stored=True)


def request(**scalars: str) -> RecordDict:
    array = Array(dtype="int64", shape=(), stype="numpy.ndarray", data=b"npy")
    return RecordDict({"arrays": ArrayRecord({"0": array}), "config": ConfigRecord(dict(scalars))})


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_node(tmp_path_factory.mktemp("node")).parent / "node.key"


class Running:
    """A fleet that serves in a thread."""

    def __init__(self, link: SuperLink, key: Path, node: int | None = None) -> None:
        self.contact = Contact(node)
        self.remembered: list[int] = []
        self.asked: list[Incoming] = []
        self.fleet = Fleet(Endpoint(link.address, key, None), self.contact, self.remembered.append)
        self.thread = threading.Thread(target=self.fleet.serve, args=(self._answer,), daemon=True)
        self.thread.start()

    def _answer(self, asked: Incoming) -> Outgoing:
        self.asked.append(asked)
        return OK

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + 10.0
        while not true():
            assert time.monotonic() < end and self.thread.is_alive(), self.contact.problem
            time.sleep(0.005)


@pytest.fixture
def start(key: Path) -> Iterator[Callable[..., Running]]:
    made: list[tuple[Running, SuperLink]] = []

    def begin(reply: Reply, node: int | None = None) -> Running:
        link = SuperLink(reply)
        made.append((Running(link, key, node), link))
        return made[-1][0]

    yield begin
    for running, link in made:
        running.fleet.stop()
        running.thread.join(10.0)
        assert not running.thread.is_alive()
        link.server.shutdown()
        link.server.server_close()


def test_a_request_is_answered_and_the_node_says_goodbye(start: Callable[..., Running]) -> None:
    link = Honest()
    link.add(request(envelope="{}"))
    running = start(link)
    running.until(lambda: bool(link.replies))
    (asked,) = running.asked
    assert asked.scalars == {"envelope": "{}"} and asked.arrays == [b"npy"]
    assert asked.run_config == {"run": "first"} and asked.fab_hash == "f" * 64
    assert running.remembered == [42] and running.contact.connected
    running.fleet.stop()
    running.thread.join(5.0)
    assert not link.online


def test_a_killed_node_ends_its_last_life_first(start: Callable[..., Running]) -> None:
    link = Honest()
    link.online = True  # its last life did not say goodbye
    running = start(link, node=42)
    running.until(lambda: running.contact.connected)
    assert running.contact.node == 42 and not running.remembered


def test_without_its_number_it_says_why_it_waits(start: Callable[..., Running]) -> None:
    link = Honest()
    link.online = True
    running = start(link)
    running.until(lambda: "its last life counts as online" in running.contact.problem)
    link.online = False  # as Flower does after a while
    running.until(lambda: running.contact.connected)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda link: link.objects.clear(),
        lambda link: link.objects.update(dict.fromkeys(link.objects, b"ConfigRecord \x00{}")),
        lambda link: link.objects.update({name: content + b"x" for name, content in link.objects.items()}),
        lambda link: link.objects.update({name: OTHER for name, old in link.objects.items() if old[:6] == b"Config"}),
    ],
)
def test_a_message_that_cannot_be_read_gets_an_error_and_the_next_an_answer(
    spoil: Callable[[Honest], None], start: Callable[..., Running]
) -> None:
    link = Honest()
    link.add(request(envelope="{}"))
    spoil(link)
    running = start(link)
    running.until(lambda: len(link.replies) == 1)
    assert link.replies[0].has_error() and not running.asked
    link.add(request(envelope="next"))
    running.until(lambda: len(link.replies) == 2)
    assert not link.replies[1].has_error()


def test_a_text_that_is_too_long_gets_a_sentence(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MOST_TEXT", 10_000)
    told, reply_to = list[Outgoing](), fleet.reply_to

    def kept(asked: Message, outgoing: Outgoing, as_one: bool = False) -> Message:
        told.append(outgoing)
        return reply_to(asked, outgoing, as_one)

    monkeypatch.setattr(fleet, "reply_to", kept)
    link = Honest()
    link.add(request(envelope="x" * 20_000))
    running = start(link)
    running.until(lambda: len(link.replies) == 1)
    assert "the request is larger than this node reads" in told[0].scalars["answer"]
    assert not link.replies[0].has_error() and not running.asked


def test_other_records_than_fedsyns_are_an_error(start: Callable[..., Running]) -> None:
    link = Honest()
    link.add(RecordDict({"something": ConfigRecord({"else": 1})}))
    running = start(link)
    running.until(lambda: len(link.replies) == 1)
    assert link.replies[0].has_error()


def test_a_run_that_is_over_is_left(start: Callable[..., Running]) -> None:
    link = Honest()
    link.running = False
    link.add(request(envelope="{}"))
    running = start(link)
    running.until(lambda: not link.messages and link.looks > 2)
    assert running.contact.connected and not running.asked
    assert not running.fleet.is_running(5)


@pytest.mark.parametrize(
    ("status", "content", "problem"),
    [
        (200, b"\xff\xff\xff", "could not be used"),
        (500, b"<html>", "status 500"),
        (302, b"", "status 302"),
        (200, b"x" * 300_000, "larger than a node takes"),
    ],
)
def test_a_superlink_that_answers_nonsense_is_asked_again(
    status: int, content: bytes, problem: str, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MOST_MESSAGE", 200_000 - fleet._WRAPPED)
    link, broken = Honest(), threading.Event()
    broken.set()
    running = start(lambda name, body: (status, content, {}) if broken.is_set() else link(name, body))
    running.until(lambda: problem in running.contact.problem)
    broken.clear()
    running.until(lambda: running.contact.connected)


@pytest.mark.parametrize(
    ("behind", "blamed", "says"),
    [
        (900, True, "s late"),
        (307, True, "s late"),
        (-4, True, "s early"),
        (-15, True, "s early"),
        (-120, True, "s early"),
        (200, False, "its key is not registered there any more"),
        (0, False, "its key is not registered there any more"),
    ],
)
def test_both_times_are_named_and_the_clocks_blamed_where_they_are_the_cause(
    behind: float, blamed: bool, says: str, start: Callable[..., Running]
) -> None:
    """Flower takes a signature 305 s late and 5 s early, so 15 s ahead is too much, and 200 s behind is not."""
    link, wrong = Honest(), threading.Event()
    wrong.set()
    told = email.utils.formatdate(time.time() + behind, usegmt=True)
    running = start(lambda name, body: (401, b"{}", {"date": told}) if wrong.is_set() else link(name, body))
    running.until(lambda: told in running.contact.problem)
    problem = running.contact.problem
    assert ("the clocks differ" in problem) is blamed and says in problem
    assert problem.count("GMT") == 2 and "305 s late and 5 s early" in problem
    wrong.clear()
    running.until(lambda: running.contact.connected)


def test_flowers_own_check_takes_what_the_sentence_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate that Flower has before its API, with a clock of ours: 304 s late and 4 s early pass, 306 and 6 not."""
    from flwr.superlink.routers.fleet import node_auth

    assert (fleet.LATE, fleet.EARLY) == (305.0, 5.0)
    signed = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    monkeypatch.setattr(node_auth, "verify_signature", lambda *given: True)
    monkeypatch.setattr(node_auth, "bytes_to_public_key", lambda key: key)
    asked: Any = SimpleNamespace(
        headers={
            node_auth.FLEET_HTTP_PUBLIC_KEY_HEADER: "a2V5",
            node_auth.FLEET_HTTP_SIGNATURE_HEADER: "a2V5",
            node_auth.TIMESTAMP_HEADER: signed.isoformat(),
        },
        state=SimpleNamespace(protobuf_request=fleet_pb2.ActivateNodeRequest(public_key=b"key")),
    )
    for seconds, taken in ((304, True), (306, False), (-4, True), (-6, False)):
        monkeypatch.setattr(node_auth, "now", lambda at=seconds: signed + datetime.timedelta(seconds=at))
        if taken:
            node_auth.authenticate_node(asked)
        else:
            with pytest.raises(HTTPException):
                node_auth.authenticate_node(asked)


@pytest.mark.slow
def test_a_second_node_with_the_key_hears_of_the_first(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has no number waits for a last life; when that would have ended, somebody else is there."""
    monkeypatch.setattr(fleet, "_FORGOTTEN", 0.5)
    link = Honest()
    link.online = True
    running = start(link)
    running.until(lambda: "another node with the same key is running" in running.contact.problem)
    link.online = False
    running.until(lambda: running.contact.connected)


@pytest.mark.slow
def test_a_node_that_is_displaced_again_and_again_says_so(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedsyn.flower.fleet._BEAT", 0.02)
    link = Honest()
    link.send_node_heartbeat = lambda body: heartbeat_pb2.SendNodeHeartbeatResponse(success=False)  # type: ignore[method-assign]
    running = start(link)
    running.until(lambda: "another node with the same key seems to be running" in caplog.text)


@pytest.mark.slow
def test_a_superlink_that_forgot_the_node_is_told_of_it_again(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsyn.flower.fleet._BEAT", 0.05)
    link = Honest()
    forgets = iter([False])
    link.send_node_heartbeat = lambda body: heartbeat_pb2.SendNodeHeartbeatResponse(  # type: ignore[method-assign]
        success=next(forgets, True)
    )
    activated: list[bytes] = []
    first = link.activate_node
    link.activate_node = lambda body: activated.append(body) or first(body)  # type: ignore[method-assign, func-returns-value]
    running = start(link)
    running.until(lambda: len(activated) == 2 and running.contact.connected)


def test_a_reply_waits_for_a_superlink_that_went_away(start: Callable[..., Running]) -> None:
    link = Honest()
    push, failures = link.push_messages, iter([True, True])

    def breaks(body: bytes) -> Any:
        if next(failures, False):
            return 200, b"", {"content-length": "9"}  # and nothing of it comes
        return push(body)

    link.push_messages = breaks  # type: ignore[method-assign]
    link.add(request(envelope="{}"))
    running = start(link)
    running.until(lambda: len(link.replies) == 1)
    assert len(running.asked) == 1


def test_polls_are_close_while_a_run_goes_on_and_never_far_apart() -> None:
    pauses = [pause(quiet) for quiet in (0.0, 5.0, 30.0, 1e6)]
    assert pauses == sorted(pauses) and pauses[0] <= 0.1 and pauses[-2] <= 0.25 and pauses[-1] <= 8.0


def test_a_key_or_certificate_that_is_none_is_bad_input(tmp_path: Path, key: Path) -> None:
    (tmp_path / "bad").write_text("nothing", encoding="utf-8")
    with pytest.raises(ConfigError, match="ssh-keygen -t ecdsa"):
        Fleet(Endpoint("127.0.0.1:9", tmp_path / "bad", None), Contact(), lambda node: None)
    with pytest.raises(ConfigError, match="no certificate"):
        Fleet(Endpoint("127.0.0.1:9", key, tmp_path / "bad"), Contact(), lambda node: None)
