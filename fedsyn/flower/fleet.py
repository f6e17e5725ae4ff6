"""A node's connection to a SuperLink: Flower's Fleet API, in a loop of our own.

`flower-supernode` unpacks the submitted app and starts a Python process on it for every message; it sleeps three
seconds between polls and half a second before it sends a reply. This loop neither unpacks nor runs an app: it takes a
request's records and hands them to `answer`, which runs the fedsyn that is installed here.

* It polls often while a run goes on, and less often when nothing has come for a while (`pause`).
* Its node number is kept by who uses it, so that a node that was killed deactivates its old self: Flower would count
  that as online for another minute, and refuse the new one.
* A SuperLink that goes away is waited for; one that forgot this node is told of it again.
* Nothing that comes from a SuperLink ends the loop. A message that cannot be read gets an error as its reply.
"""

from __future__ import annotations

import email.utils
import hashlib
import logging
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto, user_config_from_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedsyn.errors import ConfigError
from fedsyn.flower.messages import EMPTY

_log = logging.getLogger("fedsyn.node")

#: Seconds for which the SuperLink is told to expect a heartbeat: it takes a silent node for offline after twice that.
INTERVAL = 15.0
_BEAT = 5.0  # seconds between heartbeats
_TIMEOUT = 30.0  # of one call
MOST_BYTES = 2**30  # of one message, or of any other answer of the SuperLink
MOST_OBJECTS = 200_000  # that one message consists of
_RUNS = 32  # whose configuration is remembered
_SKEW = 30.0  # seconds between two clocks from which on a refusal is blamed on them
_NOT_RUNNING = httpx.codes.FORBIDDEN


class Refused(Exception):
    """What the SuperLink does not let this node do; the text is for the node's holder."""


@dataclass(frozen=True)
class Incoming:
    """One request, as it came.

    Attributes:
        run: Flower's number of the run.
        run_config: as the server submitted it; the app's own defaults are in the app, which is not opened.
        fab_hash: of the submitted app, as the SuperLink tells it, and of its bytes where they were fetched.
        verifications: of the app, by the publishers who signed it.
        scalars: texts of the message.
        arrays: of the message, in NumPy's format, unread.
    """

    run: int
    run_config: Mapping[str, Any]
    fab_hash: str
    verifications: Mapping[str, str]
    scalars: Mapping[str, str]
    arrays: list[bytes]


@dataclass(frozen=True)
class Outgoing:
    """Its reply.

    Attributes:
        scalars: texts.
        arrays: of each type, shape, and the array in NumPy's format.
        seconds: that the answer took, which the SuperLink keeps beside the run.
    """

    scalars: Mapping[str, str]
    arrays: list[tuple[str, tuple[int, ...], bytes]]
    seconds: float = 0.0


@dataclass(frozen=True)
class Place:
    """Where a node connects, and as whom.

    Attributes:
        superlink: HOST:PORT.
        key: file of the node's private key.
        root_certificates: file; None without TLS.
        fetch_apps: whether the bytes of each submitted app are fetched, to check their hash. They are not opened.
    """

    superlink: str
    key: Path
    root_certificates: Path | None
    fetch_apps: bool = False


@dataclass
class Contact:
    """What is known of the connection; read by other threads.

    Attributes:
        node: number that the SuperLink gave; it stays the same for a key.
        connected: whether the last call came through and the SuperLink knows this node.
        last: time of the last answer of the SuperLink, seconds since 1970; 0 if there was none.
        problem: why it is not connected, a sentence.
        polls: how often it asked for messages.
    """

    node: int | None = None
    connected: bool = False
    last: float = 0.0
    problem: str = "not connected yet"
    polls: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


def pause(quiet: float) -> float:
    """Seconds until the next poll, by how long no message has come.

    A run's requests follow each other: the first second after a reply is polled every 0.05 s. An idle node polls twice
    in a second, so that the first request of a run waits half a second at most.
    """
    return 0.05 if quiet < 2.0 else 0.1 if quiet < 15.0 else 0.25 if quiet < 60.0 else 0.5


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A node's private key; ConfigError if the file holds none."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("another kind of key")
    except (OSError, ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"key: {path} is no private key that Flower takes; make one: ssh-keygen -t ecdsa -b 384 -N '' -f {path}"
        ) from None
    return key


class _Bounded:
    """The last interceptor: sends the request itself, and reads no more of an answer than is allowed."""

    def __init__(self, client: httpx.Client, contact: Contact) -> None:
        self._client, self._contact = client, contact

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        with self._client.stream(
            context.request.method,
            context.request.url,
            content=context.request.content,
            headers=context.request.headers,
        ) as response:
            content = bytearray()
            for part in response.iter_raw():
                content += part
                if len(content) > MOST_BYTES:
                    raise httpx.RemoteProtocolError("the SuperLink's answer is larger than a node takes")
        self._contact.last = time.time()
        headers = [(k, v) for k, v in response.headers.items() if k not in ("content-encoding", "content-length")]
        return httpx.Response(response.status_code, headers=headers, content=bytes(content), request=response.request)


class Fleet:
    """The connection of one node.

    Args:
        place: where to connect.
        contact: is kept up to date; its `node` may hold the number of an earlier life.
        remember: is called with the node's number whenever the SuperLink gives one.
    """

    def __init__(self, place: Place, contact: Contact, remember: Callable[[int], None]) -> None:
        self.place, self.contact, self._remember = place, contact, remember
        self._private = load_key(place.key)
        self._public = public_key_to_bytes(self._private.public_key())
        self._client, self._http = self._connection()
        self._runs: OrderedDict[int, tuple[dict[str, Any], str, dict[str, str]]] = OrderedDict()
        self._unsent: list[tuple[Message, float]] = []  # replies that a lost connection kept here
        self._stop = threading.Event()
        self._lost = threading.Event()  # set by a heartbeat that the SuperLink does not know

    def _connection(self) -> tuple[FleetHttpClient, httpx.Client]:
        root = self.place.root_certificates
        try:
            verify: Any = ssl.create_default_context(cafile=str(root)) if root is not None else False
        except (OSError, ssl.SSLError):
            raise ConfigError(f"root_certificates: {root} holds no certificate in PEM") from None
        http = httpx.Client(verify=verify, timeout=_TIMEOUT, trust_env=False)
        interceptors = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(self._private, self._private.public_key()),
            _Bounded(http, self.contact),
        ]
        scheme = "http" if root is None else "https"
        client = FleetHttpClient(f"{scheme}://{self.place.superlink}", interceptors=interceptors, verify=False)
        return client, http

    # The loop ----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Has `serve` say goodbye to the SuperLink and return; also from a signal's handler."""
        self._stop.set()

    def serve(self, answer: Callable[[Incoming], Outgoing]) -> None:
        """Answers requests until `stop`."""
        beats = threading.Thread(target=self._beat, daemon=True)
        beats.start()
        wait = 0.2
        try:
            while not self._stop.is_set():
                try:
                    self._activate()
                    wait = 0.2
                    self._poll(answer)
                except Refused as error:
                    self._unavailable(str(error))
                except httpx.HTTPStatusError as error:
                    self._unavailable(self._why(error.response))
                except (httpx.HTTPError, ssl.SSLError, OSError) as error:
                    self._unavailable(f"the SuperLink at {self.place.superlink} cannot be reached: {_brief(error)}")
                except Exception as error:  # whatever a SuperLink sends
                    _log.exception("unexpected")
                    self._unavailable(f"the SuperLink's answer could not be used ({type(error).__name__})")
                self._stop.wait(wait)
                wait = min(2 * wait, 5.0)
        finally:
            self._goodbye()

    def _poll(self, answer: Callable[[Incoming], Outgoing]) -> None:
        last = time.monotonic() - 60.0
        for reply, took in self._unsent[:]:
            self._deliver(reply, took)
        while not self._stop.is_set():
            if self._lost.is_set():
                raise Refused("the SuperLink does not know this node any more")
            node = Node(node_id=self.contact.node or 0)
            got = self._client.PullMessages(PullMessagesRequest(node=node))
            self.contact.polls += 1
            self._available()
            for message, tree in zip(got.messages_list, got.message_object_trees, strict=False):
                self._handle(message, tree, answer)
                last = time.monotonic()
            if not got.messages_list:
                self._stop.wait(pause(time.monotonic() - last))

    def _beat(self) -> None:
        """Heartbeats, in a thread: an answer may take longer than the SuperLink waits for one."""
        while not self._stop.wait(_BEAT):
            node = self.contact.node
            if node is None or self._lost.is_set():
                continue
            try:
                request = SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=INTERVAL)
                if not self._client.SendNodeHeartbeat(request).success:
                    self._lost.set()
            except httpx.HTTPStatusError as error:
                if error.response.status_code == httpx.codes.UNAUTHORIZED:
                    self._lost.set()
            except Exception as error:
                _log.debug("no heartbeat: %s", error)

    # Coming and going --------------------------------------------------------------------------------------------

    def _activate(self) -> None:
        """Makes this node known as online, in place of any earlier life of it.

        Raises:
            Refused: the SuperLink does not take it.
        """
        self._lost.clear()
        before = self.contact.node
        try:
            self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
        except httpx.HTTPStatusError as error:  # registered already, or by the operator alone
            if error.response.status_code != httpx.codes.PRECONDITION_FAILED:
                raise
        if before is not None:
            self._deactivate(before)
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=INTERVAL)
        node = int(self._client.ActivateNode(request).node_id)
        if node != before:
            self._remember(node)
        self.contact.node = node
        _log.info("connected to the SuperLink at %s as node %d", self.place.superlink, node)
        self._available()

    def _deactivate(self, node: int) -> None:
        try:
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=node))
        except httpx.HTTPStatusError as error:
            _log.debug("node %d was not online: %d", node, error.response.status_code)

    def _goodbye(self) -> None:
        self._stop.set()
        if self.contact.connected and self.contact.node is not None:
            try:
                self._http.timeout = httpx.Timeout(3.0)
                self._deactivate(self.contact.node)
                _log.info("said goodbye to the SuperLink")
            except Exception as error:
                _log.debug("no goodbye: %s", error)
        self.contact.connected, self.contact.problem = False, "stopped"
        self._client.close()
        self._http.close()

    def _available(self) -> None:
        if not self.contact.connected:
            self.contact.connected, self.contact.problem = True, ""

    def _unavailable(self, problem: str) -> None:
        if problem != self.contact.problem:
            _log.warning("%s; trying again", problem)
        self.contact.connected, self.contact.problem = False, problem

    def _why(self, response: httpx.Response) -> str:
        """A refusal in a sentence for the holder."""
        told = response.headers.get("date", "")
        try:
            theirs = email.utils.parsedate_to_datetime(told).timestamp()
        except (TypeError, ValueError):
            theirs = time.time()
        if response.status_code == httpx.codes.UNAUTHORIZED and abs(theirs - time.time()) > _SKEW:
            return (
                f"the clocks differ: this machine's says {email.utils.formatdate(usegmt=True)}, the SuperLink's {told}; "
                "a node signs the time, so set the clock that is wrong"
            )
        if response.status_code == httpx.codes.UNAUTHORIZED:
            return (
                "the SuperLink does not accept this node's signature: its key is not registered there, or was removed"
            )
        if response.status_code == httpx.codes.PRECONDITION_FAILED:
            return (
                "the SuperLink does not take this node: its key is not registered there (the operator registers "
                f"{self.place.key.name}.pub), or its last life counts as online for another "
                f"{2 * INTERVAL:.0f} s at most"
            )
        return f"the SuperLink answers with status {response.status_code}"

    # One message -------------------------------------------------------------------------------------------------

    def _handle(self, proto: Any, tree: ObjectTree, answer: Callable[[Incoming], Outgoing]) -> None:
        """One request, there and back; whatever is wrong with it costs this request only."""
        try:
            asked = message_from_proto(proto)
            marks = [("", time.perf_counter())]
            try:
                incoming = self._receive(asked, tree)
                marks.append(("receive", time.perf_counter()))
                outgoing = answer(incoming)
                marks.append(("answer", time.perf_counter()))
                reply = _reply_to(asked, outgoing)
                took = outgoing.seconds
            except httpx.HTTPError:
                raise
            except Exception as error:
                _log.error("a message could not be answered (%s)", type(error).__name__)
                reply, took = Message(Error(code=0, reason="the message could not be answered"), reply_to=asked), 0.0
                marks.append(("answer", time.perf_counter()))
            self._unsent.append((reply, took))
            self._deliver(reply, took)
            marks.append(("send", time.perf_counter()))
            for (_, begin), (name, end) in zip(marks, marks[1:], strict=False):
                self.contact.seconds[name] = self.contact.seconds.get(name, 0.0) + end - begin
        except httpx.HTTPStatusError as error:
            if error.response.status_code != _NOT_RUNNING:
                raise
            _log.info("run %d does not go on any more: its message is left", asked.metadata.run_id)
        except httpx.HTTPError:
            raise  # the connection: the loop waits for it
        except Exception as error:
            _log.error("a message could not be read (%s)", type(error).__name__)

    def _deliver(self, reply: Message, took: float) -> None:
        """Sends a reply of `_unsent`, which keeps it while the SuperLink cannot be reached, and until it is too late."""
        try:
            expired = reply.metadata.created_at + reply.metadata.ttl < time.time()
            if not expired:
                self._send(reply, took)
        except httpx.TransportError:
            raise
        except Exception:
            self._unsent.remove((reply, took))
            raise
        self._unsent.remove((reply, took))

    def _receive(self, asked: Message, tree: ObjectTree) -> Incoming:
        run, node = asked.metadata.run_id, Node(node_id=self.contact.node or 0)
        ids = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
        if len(ids) > MOST_OBJECTS:
            raise ValueError("too many objects")
        total = 0

        def pull(object_id: str) -> bytes:
            nonlocal total
            content = self._pull(PullObjectRequest(node=node, run_id=run, object_id=object_id))
            total += len(content)
            if total > MOST_BYTES or get_object_id(content) != object_id:
                raise ValueError("an object is not what it is called, or there are too many bytes")
            return content

        contents = {name: pull(name) for name in ids} if len(ids) <= 8 else pull_objects(ids, pull)
        confirmation = ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
        self._client.ConfirmMessageReceived(confirmation)
        message = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(message, Message) or message.metadata.run_id != run:
            raise ValueError("no message of this run")
        scalars, arrays = _read(message.content)
        return Incoming(run, *self._run(run), scalars, arrays)

    def _pull(self, request: PullObjectRequest) -> bytes:
        """The bytes of an object. A message is announced before its objects have arrived: they are waited for."""
        wait, end = 0.01, time.monotonic() + _TIMEOUT
        while True:
            response = self._client.PullObject(request)
            if not response.object_found or time.monotonic() > end:
                raise ValueError("an object of the message is missing")
            if response.object_available:
                return bytes(response.object_content)
            self._stop.wait(wait)
            wait = min(2 * wait, 0.5)

    def _run(self, run: int) -> tuple[dict[str, Any], str, dict[str, str]]:
        """Configuration, app's hash and its verifications of a run."""
        if run not in self._runs:
            node = Node(node_id=self.contact.node or 0)
            told = self._client.GetRun(GetRunRequest(node=node, run_id=run)).run
            fab_hash, verifications = str(told.fab_hash), {}
            if self.place.fetch_apps:
                fab = self._client.GetFab(GetFabRequest(node=node, hash_str=fab_hash, run_id=run)).fab
                fab_hash = hashlib.sha256(fab.content).hexdigest()  # what was sent, whatever it was called
                verifications = {str(key): str(value) for key, value in fab.verifications.items()}
            self._runs[run] = dict(user_config_from_proto(told.override_config)), fab_hash, verifications
            _log.info("run %d: app %s", run, fab_hash)
            while len(self._runs) > _RUNS:
                self._runs.popitem(last=False)
        return self._runs[run]

    def _send(self, reply: Message, took: float) -> None:
        """The reply and its objects; a connection that is lost meanwhile is the loop's, and the server asks again."""
        node = Node(node_id=self.contact.node or 0)
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
            request = PushMessagesRequest(
                node=node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[tree],
                clientapp_runtime_list=[took],
            )
            response = self._client.PushMessages(request)
            missing = set(response.objects_to_push)
            for name, each in objects.items():
                if name in missing:
                    push = PushObjectRequest(
                        node=node,
                        run_id=reply.metadata.run_id,
                        object_id=name,
                        object_content=each.deflate(),
                        session_id=response.session_id,
                    )
                    self._client.PushObject(push)


def _read(content: RecordDict) -> tuple[dict[str, str], list[bytes]]:
    """Texts and arrays of a request: what else a message may hold is nothing that fedsyn sends."""
    scalars = {key: value for key, value in content["config"].items() if isinstance(value, str)}
    arrays = [array.data for key, array in content["arrays"].items() if key != EMPTY]
    return scalars, [bytes(data) for data in arrays]


def _reply_to(asked: Message, outgoing: Outgoing) -> Message:
    arrays = {
        str(place): Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=data)
        for place, (dtype, shape, data) in enumerate(outgoing.arrays)
    }
    records = {"arrays": ArrayRecord(arrays), "config": ConfigRecord(dict(outgoing.scalars))}
    return Message(RecordDict(records), reply_to=asked)


def _brief(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200] or type(error).__name__
