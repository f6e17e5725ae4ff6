"""The in-process engine: a Grid that calls the ClientApp directly."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedsyn.flower.asking import TRAIN, Answer, MessageGrid, Requests, late
from fedsyn.flower.direct import ClientFn, DirectReply, TableApp, ask
from fedsyn.flower.private import name_message
from fedsyn.flower.state import NodeContext
from fedsyn.wire.envelope import Envelope
from fedsyn.wire.refusals import Refusal

_AT_ONCE = 1024  # clients whose messages are in memory
_SHARED = 1024  # texts that further nodes may turn out to remember as well


State = tuple[str | None, RecordDict]  # of a node: its client's text, and whatever else was put beside it


class Contexts(Mapping[int, Context]):
    """The context of each node by node id.

    A context is made when first used; a node's state is all that is kept of it.

    Args:
        nodes: node configuration of each node; node ids are 1, 2, ...
        run_config: the run's configuration as the contexts show it.
    """

    def __init__(self, nodes: Sequence[Mapping[str, Any]], run_config: Mapping[str, Any]) -> None:
        self._nodes, self._run_config = nodes, dict(run_config)
        self._texts: dict[int, str] = {}
        self._records: dict[int, RecordDict] = {}  # beside the text, where there are any
        self._shared: dict[str, str] = {}  # the last texts: nodes that remember the same share one

    def __getitem__(self, node: int) -> NodeContext:
        if not 1 <= node <= len(self._nodes):
            raise KeyError(node)
        config, records = dict(self._nodes[node - 1]), self._records.get(node)
        context = NodeContext(1, node, config, RecordDict() if records is None else records, dict(self._run_config))
        context.text = self._texts.get(node)
        return context

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, len(self._nodes) + 1))

    def __len__(self) -> int:
        return len(self._nodes)

    def keep(self, node: int, state: State) -> None:
        """Keeps what this node's context holds from now on."""
        text, records = state
        if text is not None:
            if len(self._shared) >= _SHARED:  # mostly of nodes that remember something else by now
                self._shared.clear()
            self._texts[node] = self._shared.setdefault(text, text)
        if records or node in self._records:
            self._records[node] = records


def named(path: str) -> Any:
    """Returns the object that 'module:attribute' names."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def client_fn_of(app: ClientApp | None) -> ClientFn:
    assert isinstance(app, TableApp) and app.direct is not None
    return app.direct


def state_of(context: Context) -> State:
    return context.text if isinstance(context, NodeContext) else None, context.state


class InProcessGrid(MessageGrid, Grid):
    """A Grid that calls the ClientApp directly.

    It calls one node after the other, each with a Context of its own.

    What makes it equal to a real Grid: a node never sees objects of the server or of another node (records are
    copied), an exception in a client becomes an error reply, and a reply that takes longer than the timeout is late
    and is not delivered. Replies come back in the order in which they finished.

    An app that consists of a client alone is called without messages, with the same result.

    Args:
        app: the ClientApp.
        nodes: node configuration of each node; node ids are 1, 2, ...
        run_config: the run's configuration as the clients' contexts show it.
        direct: whether an app that allows it is called without messages.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any],
        *,
        direct: bool = True,
    ) -> None:
        self._app = app
        self._run: Any = None
        self._contexts = Contexts(nodes, run_config)
        self._waiting: dict[str, Message] = {}
        self._count = 0
        self._direct = direct

    def close(self) -> None:
        """Ends what the grid has started; here there is nothing."""

    @property
    def at_once(self) -> int | None:
        """Number of nodes whose messages are in memory at once.

        None means that a subclass delivers them in its own way.
        """
        return _AT_ONCE if type(self).send_and_receive is InProcessGrid.send_and_receive else None

    @property
    def is_direct(self) -> bool:
        """Returns whether messages can be left out.

        The app allows it, and nobody looks at them.
        """
        watched = type(self).send_and_receive is not InProcessGrid.send_and_receive or "send_and_receive" in vars(self)
        return self._direct and not watched and isinstance(self._app, TableApp) and self._app.direct is not None

    def ask(self, envelope: Envelope, requests: Requests, timeout: float) -> Iterator[Answer | Refusal]:
        """Asks nodes as `NodeGrid.ask`, without messages if `is_direct`."""
        if not self.is_direct:
            yield from super().ask(envelope, requests, timeout)
            return
        for reply in self.called(requests):
            yield Answer(reply.size, reply.read) if reply.seconds <= timeout else late(envelope.request, timeout)

    def called(self, requests: Requests) -> Iterator[DirectReply]:
        """Calls clients without messages.

        Requests are taken, and answers given, one after the other.
        """
        client_fn = client_fn_of(self._app)
        for node, request in requests:
            context = self._contexts[node]
            answer = ask(client_fn, request, context)
            self._contexts.keep(node, state_of(context))
            yield answer

    def new_message(self, content: RecordDict, node: int, group: str, ttl: float) -> Message:
        return self.create_message(content, TRAIN, node, group, ttl)

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        metadata = Metadata(
            run_id=1,
            message_id="",
            src_node_id=0,
            dst_node_id=dst_node_id,
            reply_to_message_id="",
            group_id=group_id,
            created_at=time.time(),
            ttl=ttl or 43200.0,
            message_type=message_type,
        )
        return Message(content=content, metadata=metadata)

    def get_node_ids(self) -> list[int]:
        return list(self._contexts)

    @property
    def contexts(self) -> Mapping[int, Context]:
        """Each node's Context by node id, with its client's state.

        They are to look at, not to change.
        """
        return self._contexts

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self._count += 1
            name_message(message, str(self._count))
            self._waiting[str(self._count)] = message
            ids.append(str(self._count))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._handle(self._waiting.pop(i)) for i in message_ids if i in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        waiting = [self._waiting.pop(i) for i in self.push_messages(messages)]
        replies = []
        for message in waiting:
            start = time.monotonic()
            reply = self._handle(message)
            # Nodes work side by side in reality, so each has the whole timeout for itself.
            if timeout is None or time.monotonic() - start <= timeout:
                replies.append(reply)
        return replies

    def _handle(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            reply = self._app(_copy(message), context)
        except Exception as error:
            reply = Message(Error(code=0, reason=type(error).__name__), reply_to=message)
        self._contexts.keep(context.node_id, state_of(context))
        return reply


def _copy(message: Message) -> Message:
    """Returns the message as another party would receive it.

    Its own records (the arrays' bytes are immutable).
    """
    content = RecordDict({key: type(record)(dict(record)) for key, record in message.content.items()})
    return Message(content=content, metadata=message.metadata)
