"""A node's connection to a SuperLink.

It uses Flower's Fleet API in a loop of our own.

`flower-supernode` unpacks the submitted app and starts a Python process on it for every message; it sleeps three
seconds between polls and half a second before it sends a reply. This loop neither unpacks nor runs an app: it takes a
request's records and hands them to `answer`, which runs the fedsyn that is installed here.

* It looks for messages often while a run goes on, and seldom when nothing has come for a while (`pause`): Flower pushes
  nothing, and a look costs the SuperLink milliseconds.
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
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedsyn.errors import ConfigError
from fedsyn.flower.messages import apart, is_together, objects_of, together
from fedsyn.flower.private import (
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_TOLERANCE,
    ActivateNodeRequest,
    ConfirmMessageReceivedRequest,
    DeactivateNodeRequest,
    FleetHttpClient,
    GetRunRequest,
    Node,
    NodeAuthHttpInterceptor,
    ObjectTree,
    PullMessagesRequest,
    PullObjectRequest,
    PushMessagesRequest,
    PushObjectRequest,
    RegisterNodeFleetRequest,
    RuntimeVersionHttpInterceptor,
    SendNodeHeartbeatRequest,
    get_all_nested_objects,
    get_object_tree,
    inflate_object_from_contents,
    message_from_proto,
    message_to_proto,
    name_message,
    no_object_id_recompute,
    remove_content_from_message,
    user_config_from_proto,
)
from fedsyn.wire.envelope import MOST_MESSAGE
from fedsyn.wire.refusals import Kind, Refusal

_log = logging.getLogger("fedsyn.node")
#: Seconds for which the SuperLink is told to expect a heartbeat: it takes a silent node for offline after twice that.
INTERVAL = 20.0
_TIMEOUT = 30.0  # of one call
_FORGOTTEN = 2 * INTERVAL + 30.0  # seconds after which a SuperLink has taken any last life for offline
_WRAPPED = 2**20  # bytes that Flower puts around an object
#: Seconds by which a signature may be older, or younger, than the SuperLink's own time: Flower's rule.
LATE, EARLY = float(TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE), float(SYSTEM_TIME_TOLERANCE)
_UNSURE = 2.0  # seconds that the way of a request and a time in whole seconds may take
_BEAT = 0.8 * INTERVAL  # seconds between heartbeats, as Flower has it: one may be lost
_LONGEST = 5.0  # seconds between two tries to connect
_NOT_RUNNING = httpx.codes.FORBIDDEN
MOST_OBJECTS = 200_000  # that one message consists of
MOST_TEXT = 2**23  # bytes of a run's configuration, and of the texts of a message
_RUNS = 32  # whose configuration is remembered
_PATIENCE = 30.0  # seconds for an object that was announced
#: What a server is told of a request that is too large.
TOO_LARGE = Refusal(Kind.PROTOCOL, "the request is larger than this node reads")


@dataclass(frozen=True)
class Endpoint:
    """Address of a SuperLink, and the node's identity there.

    Attributes:
        superlink: HOST:PORT.
        key: file of the node's private key.
        root_certificates: file; None without TLS.
    """

    superlink: str
    key: Path
    root_certificates: Path | None


@dataclass
class Contact:
    """State of the connection, which other threads read.

    Attributes:
        node: number that the SuperLink gave; it stays the same for a key.
        connected: whether the last call came through and the SuperLink knows this node.
        last: time of the last answer of the SuperLink, seconds since 1970; 0 if there was none.
        problem: why it is not connected, a sentence.
    """

    node: int | None = None
    connected: bool = False
    last: float = 0.0
    problem: str = "not connected yet"


class _LostNode(Exception):
    """The SuperLink does not know this node any more.

    It was restarted, or the node was removed.
    """


def pause(quiet: float) -> float:
    """Seconds until the next poll, by how long no message has come.

    A run's requests follow each other: the first seconds after a reply are polled every 0.05 s. An idle node polls
    every eight seconds, which is how long the first request of a run may wait.
    """
    steps = ((2.0, 0.05), (15.0, 0.1), (60.0, 0.25))
    return next((seconds for until, seconds in steps if quiet < until), 8.0)


class Fleet:
    """The connection of one node.

    Args:
        place: where to connect.
        contact: is kept up to date; its `node` may hold the number of an earlier life.
        remember: is called with the node's number whenever the SuperLink gives another one.
    """

    def __init__(self, place: Endpoint, contact: Contact, remember: Callable[[int], None]) -> None:
        self.place, self.contact, self._remember = place, contact, remember
        key = load_key(place.key)
        self._public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self._client = connect(place, key, contact)
        self._stop = threading.Event()
        self._lost = threading.Event()  # set by a heartbeat that the SuperLink does not know
        self._messages = Messages(self._client, self._stop.wait)
        self._refused: float | None = None  # since when the SuperLink has been refusing this node
        self._losses: deque[float] = deque(maxlen=3)  # when the SuperLink did not know it
        self._unsent: list[Message] = []  # replies that a lost connection kept here

    def stop(self) -> None:
        """Has `serve` say goodbye to the SuperLink and return.

        May be called from a signal's handler.
        """
        self._stop.set()

    def serve(self, answer: Answer) -> None:
        """Answers requests until `stop`."""
        threading.Thread(target=self._beat, daemon=True).start()
        wait = 0.2
        try:
            while not self._stop.is_set():
                try:
                    self._activate()
                    wait = 0.2
                    self._poll(answer)
                except _LostNode:
                    self._unavailable(self._why_lost())
                except httpx.HTTPStatusError as error:
                    self._refused = self._refused or time.monotonic()
                    self._unavailable(refusal_of(error.response, self.place, time.monotonic() - self._refused))
                except (httpx.HTTPError, ssl.SSLError, OSError) as error:
                    self._unavailable(f"the SuperLink at {self.place.superlink} cannot be reached: {_brief(error)}")
                except Exception as error:  # whatever a SuperLink sends
                    self._unavailable(f"the SuperLink's answer could not be used ({type(error).__name__})")
                self._stop.wait(wait)
                wait = min(2 * wait, _LONGEST)
        finally:
            self._goodbye()

    def _why_lost(self) -> str:
        """Returns why the SuperLink lost this node.

        If it is lost again and again, somebody deactivates it, who needs its key for that.
        """
        self._losses.append(time.monotonic())
        sentence = "the SuperLink does not know this node any more"
        if len(self._losses) == self._losses.maxlen and self._losses[-1] - self._losses[0] < 60.0:
            sentence += ", again: another node with the same key seems to be running; stop one of them"
        return sentence

    def is_running(self, run: int) -> bool:
        """Returns whether a run goes on, by the SuperLink's word.

        It may be called from within `answer` only.
        """
        try:
            self._client.GetRun(GetRunRequest(node=Node(node_id=self._node), run_id=run))
        except httpx.HTTPStatusError as error:
            return bool(error.response.status_code != _NOT_RUNNING)
        except httpx.HTTPError:
            return True
        return True

    def _poll(self, answer: Answer) -> None:
        last = time.monotonic() - 60.0
        for unsent in self._unsent[:]:
            self._deliver(unsent)
        while not self._stop.is_set():
            if self._lost.is_set():
                raise _LostNode
            got = self._client.PullMessages(PullMessagesRequest(node=Node(node_id=self._node)))
            self._available()
            for message, tree in zip(got.messages_list, got.message_object_trees, strict=False):
                self._handle(message, tree, answer)
                last = time.monotonic()
            if not got.messages_list:
                self._stop.wait(pause(time.monotonic() - last))

    @property
    def _node(self) -> int:
        assert self.contact.node is not None
        return self.contact.node

    # One message -------------------------------------------------------------------------------------------------

    def _handle(self, proto: Any, tree: ObjectTree, answer: Answer) -> None:
        """Handles one request, there and back.

        A fault in it costs this request only.
        """
        try:
            message = message_from_proto(proto)
            try:
                incoming = self._messages.receive(self._node, message, tree)
                reply = reply_to(message, answer(incoming), incoming.together)
            except httpx.HTTPError:
                raise
            except TooLarge as error:
                _log.error("a request is larger than this node reads: %s", error)
                reply = reply_to(message, Outgoing(TOO_LARGE.scalars, []))
            except Exception as error:
                _log.error("a message could not be answered (%s)", type(error).__name__)
                reply = Message(Error(code=0, reason="the message could not be answered"), reply_to=message)
            self._unsent.append(reply)
            self._deliver(reply)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != _NOT_RUNNING:
                raise
            _log.info("run %d does not go on any more: its message is left", message.metadata.run_id)
        except httpx.HTTPError:
            raise  # the connection: the loop waits for it
        except Exception as error:
            _log.error("a message could not be read (%s)", type(error).__name__)

    def _deliver(self, reply: Message) -> None:
        """Sends a reply of `_unsent`.

        The reply stays there while the SuperLink cannot be reached, until it is too late.
        """
        try:
            if reply.metadata.created_at + reply.metadata.ttl > time.time():
                self._messages.send(self._node, reply)
        except Exception as error:
            busy = isinstance(error, httpx.HTTPStatusError) and (
                error.response.status_code == httpx.codes.SERVICE_UNAVAILABLE  # the gate reads others' replies now
            )
            if not (busy or isinstance(error, httpx.TransportError)):
                self._unsent.remove(reply)
            raise
        self._unsent.remove(reply)

    # Coming and going --------------------------------------------------------------------------------------------

    def _activate(self) -> None:
        """Makes this node known as online.

        It replaces any earlier life of the node.
        """
        self._lost.clear()
        before = self.contact.node
        try:
            self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
        except httpx.HTTPStatusError as error:  # it is registered already, or only the operator registers nodes
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

    def _beat(self) -> None:
        """Sends heartbeats, in a thread.

        An answer may take longer than the SuperLink waits for one.
        """
        while not self._stop.wait(_BEAT):
            if self.contact.node is None or self._lost.is_set():
                continue
            try:
                request = SendNodeHeartbeatRequest(node=Node(node_id=self._node), heartbeat_interval=INTERVAL)
                if not self._client.SendNodeHeartbeat(request).success:
                    self._lost.set()
            except httpx.HTTPStatusError as error:
                if error.response.status_code == httpx.codes.UNAUTHORIZED:
                    self._lost.set()
            except Exception as error:
                _log.debug("no heartbeat: %s", error)

    def _goodbye(self) -> None:
        self._stop.set()
        if self.contact.connected:
            try:
                self._deactivate(self._node)
                _log.info("said goodbye to the SuperLink")
            except Exception as error:
                _log.debug("no goodbye: %s", error)
        self.contact.connected, self.contact.problem = False, "stopped"
        self._client.close()

    def _available(self) -> None:
        self._refused = None
        if not self.contact.connected:
            self.contact.connected, self.contact.problem = True, ""

    def _unavailable(self, problem: str) -> None:
        if self._stop.is_set():
            return
        if problem != self.contact.problem:
            _log.warning("%s; trying again", problem)
        self.contact.connected, self.contact.problem = False, problem


# The client, and why it is refused ------------------------------------------------------------------------------------


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Reads a node's private key.

    Raises ConfigError if the file does not hold one.
    """
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("another kind of key")
    except (OSError, ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"key: {path} is not a private key that Flower takes; make one: ssh-keygen -t ecdsa -b 384 -N '' -f {path}"
        ) from None
    return key


def connect(place: Endpoint, key: ec.EllipticCurvePrivateKey, contact: Contact) -> FleetHttpClient:
    """Returns Flower's client of the Fleet API, which signs every call.

    Nothing is sent yet.

    Raises:
        ConfigError: the certificate cannot be used.
    """
    root = place.root_certificates
    try:
        verify: Any = ssl.create_default_context(cafile=str(root)) if root is not None else False
    except (OSError, ssl.SSLError):
        raise ConfigError(f"root_certificates: {root} holds no certificate in PEM") from None
    interceptors = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
        _Bounded(httpx.Client(verify=verify, timeout=_TIMEOUT, trust_env=False), contact),
    ]
    scheme = "http" if root is None else "https"
    return FleetHttpClient(f"{scheme}://{place.superlink}", interceptors=interceptors, verify=False)


class _Bounded:
    """The last interceptor, which bounds answers.

    It sends the request itself, and reads no more of an answer than is allowed.
    """

    def __init__(self, client: httpx.Client, contact: Contact) -> None:
        self._client, self._contact = client, contact

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        request = context.request
        request.extensions["timeout"] = self._client.timeout.as_dict()
        response = self._client.send(request, stream=True)
        try:
            content = bytearray()
            for part in response.iter_raw():
                content += part
                if len(content) > MOST_MESSAGE + _WRAPPED:
                    raise httpx.RemoteProtocolError("the SuperLink's answer is larger than a node takes")
        finally:
            response.close()
        self._contact.last = time.time()
        headers = [(k, v) for k, v in response.headers.items() if k not in ("content-encoding", "content-length")]
        return httpx.Response(response.status_code, headers=headers, content=bytes(content), request=request)


def refusal_of(response: httpx.Response, place: Endpoint, waited: float = 0.0) -> str:
    """Returns a sentence for why the SuperLink refuses this node.

    It is for the node's holder.

    Args:
        response: of the SuperLink.
        place: where it is.
        waited: seconds for which it has been refusing this node.
    """
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return _unauthorized(response.headers.get("date", ""))
    if response.status_code == httpx.codes.PRECONDITION_FAILED:
        why = f"its key is not registered there (the operator registers {place.key.name}.pub)"
        if waited < _FORGOTTEN:
            return (
                f"the SuperLink does not take this node: {why}, or its last life counts as online for another "
                f"{2 * INTERVAL:.0f} s at most"
            )
        return (
            f"the SuperLink does not take this node: {why}, or another node with the same key is running: stop one of "
            "them (a last life would have been forgotten by now)"
        )
    return f"the SuperLink answers with status {response.status_code}"


def _unauthorized(date: str) -> str:
    """Returns why a signature was refused, with both clocks."""
    now = time.time()
    here = email.utils.formatdate(now, usegmt=True)
    window = f"Flower takes a signature that is up to {LATE:.0f} s late and {EARLY:.0f} s early"
    try:
        ahead = now - email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return f"the SuperLink does not accept this node's signature; here it is {here}, and it tells no time; {window}"
    clocks = f"this machine's clock says {here}, the SuperLink's {date}"
    if ahead > EARLY - _UNSURE or -ahead > LATE - _UNSURE:
        return (
            f"the clocks differ: {clocks}, so this node is {abs(ahead):.0f} s {'early' if ahead > 0 else 'late'}; "
            f"{window}: set the clock that is wrong"
        )
    return (
        "the SuperLink does not accept this node's signature: its key is not registered there any more (the clocks are "
        f"not the cause: {clocks}; {window})"
    )


def _brief(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__


# Requests and replies: Flower's objects, pulled and pushed one by one, and never believed -----------------------------


class TooLarge(ValueError):
    """A request has more bytes than a node reads."""


@dataclass(frozen=True)
class Incoming:
    """One request, as it came.

    Attributes:
        run: Flower's number of the run.
        run_config: as the server submitted it; the app's own defaults are in the app, which is not opened.
        fab_hash: of the submitted app, as the SuperLink tells it; nothing of the app is fetched.
        scalars: texts of the message.
        arrays: of the message, in NumPy's format, unread.
        together: whether they came as one object, so that the reply's may go as one.
    """

    run: int
    run_config: Mapping[str, Any]
    fab_hash: str
    scalars: Mapping[str, str]
    arrays: list[bytes]
    together: bool = False


@dataclass(frozen=True)
class Outgoing:
    """A node's reply to one request.

    Attributes:
        scalars: texts.
        arrays: of each type, shape, and the array in NumPy's format.
    """

    scalars: Mapping[str, str]
    arrays: list[tuple[str, tuple[int, ...], bytes]]


class Messages:
    """Requests and replies of one node.

    Args:
        client: of the Fleet API.
        wait: sleeps, and returns early when the node is to end.
    """

    def __init__(self, client: FleetHttpClient, wait: Callable[[float], object]) -> None:
        self._client, self._wait = client, wait
        self._runs: OrderedDict[int, tuple[dict[str, Any], str]] = OrderedDict()

    def receive(self, node: int, announcement: Message, tree: ObjectTree) -> Incoming:
        """The whole of a message that was announced.

        Raises:
            ValueError, KeyError, TypeError: it is not what fedsyn sends, or too large.
            httpx.HTTPError: as the client's.
        """
        run, me = announcement.metadata.run_id, Node(node_id=node)
        ids = objects_of(tree)
        if len(ids) > MOST_OBJECTS:
            raise TooLarge("too many objects")
        total = 0

        def pull(object_id: str) -> bytes:
            nonlocal total
            content = self._pull(PullObjectRequest(node=me, run_id=run, object_id=object_id))
            total += len(content)
            if total > MOST_MESSAGE:
                raise TooLarge("too many bytes")
            if hashlib.sha256(content).hexdigest() != object_id:
                raise ValueError("an object is not what it is called")
            return content

        contents = {name: pull(name) for name in ids}
        confirmation = ConfirmMessageReceivedRequest(node=me, run_id=run, message_object_id=tree.object_id)
        self._client.ConfirmMessageReceived(confirmation)
        message = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(message, Message) or message.metadata.run_id != run:
            raise ValueError("no message of this run")
        as_one = is_together(message.content["arrays"])
        return Incoming(run, *self._run(me, run), *_read(message.content), together=as_one)

    def send(self, node: int, reply: Message) -> None:
        """Sends the reply, and its objects that the SuperLink lacks.

        The time that the answer took is nobody's business.
        """
        me = Node(node_id=node)
        with no_object_id_recompute():
            name_message(reply, reply.object_id)
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
            request = PushMessagesRequest(
                node=me,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[tree],
                clientapp_runtime_list=[0.0],
            )
            response = self._client.PushMessages(request)
            missing = set(response.objects_to_push)
            for name, each in objects.items():
                if name in missing:
                    push = PushObjectRequest(
                        node=me,
                        run_id=reply.metadata.run_id,
                        object_id=name,
                        object_content=each.deflate(),
                        session_id=response.session_id,
                    )
                    self._client.PushObject(push)

    def _pull(self, request: PullObjectRequest) -> bytes:
        """Returns the bytes of an object, waiting for them to arrive.

        A message is announced before its objects have arrived.
        """
        wait, end = 0.01, time.monotonic() + _PATIENCE
        while True:
            response = self._client.PullObject(request)
            if not response.object_found or time.monotonic() > end:
                raise ValueError("an object of the message is missing")
            if response.object_available:
                return bytes(response.object_content)
            self._wait(wait)
            wait = min(2 * wait, 0.5)

    def _run(self, me: Node, run: int) -> tuple[dict[str, Any], str]:
        """Configuration and app's hash of a run."""
        if run not in self._runs:
            description = self._client.GetRun(GetRunRequest(node=me, run_id=run)).run
            if description.ByteSize() > MOST_TEXT:
                raise TooLarge("the run's configuration is longer than a node reads")
            self._runs[run] = dict(user_config_from_proto(description.override_config)), str(description.fab_hash)
            while len(self._runs) > _RUNS:
                self._runs.popitem(last=False)
        return self._runs[run]


def reply_to(message: Message, outgoing: Outgoing, as_one: bool = False) -> Message:
    """The message that answers another; `as_one`: with its arrays as one object."""
    arrays = {
        str(place): Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=data)
        for place, (dtype, shape, data) in enumerate(outgoing.arrays)
    }
    record = ArrayRecord(arrays)
    record = together(record) if as_one else record
    records = {"arrays": record, "config": ConfigRecord(dict(outgoing.scalars))}
    return Message(RecordDict(records), reply_to=message)


def _read(content: RecordDict) -> tuple[dict[str, str], list[bytes]]:
    """Returns texts and arrays of a request.

    fedsyn sends nothing else that a message may hold.
    """
    scalars = {key: value for key, value in content["config"].items() if isinstance(value, str)}
    if sum(len(key) + len(value) for key, value in scalars.items()) > MOST_TEXT:
        raise TooLarge("the texts of a message are longer than a node reads")
    return scalars, [bytes(array.data) for array in apart(content["arrays"]).values()]


Answer = Callable[[Incoming], Outgoing]
