"""The Ray engine: a Grid whose clients' work is done by the tasks of a Ray cluster, many clients a task.

The server half runs where the run was started, and keeps what every node remembers. A task gets, for each client of
its chunk, the message and that state, and brings back the reply and the state afterwards. So no client belongs to a
machine: any of them can answer for any client at any time, machines may join and leave, and a task that was lost with
its machine is simply asked again.

Asking again releases nothing twice. What a client releases is a reply that the server receives. Reply and state leave
a task together, in one object, when it has ended; a task whose object was not read has told the server nothing. It is
then forgotten (a reply that Ray finds later has no reader) and the second attempt starts from the same message and the
same state: with a seed it draws the same noise, because randomness is keyed by what stands in the message; without one
it draws fresh noise, and the first, unread draw is gone. What the client's ledger charged in the lost attempt was lost
with the noise that it paid for, and is charged again, once, in the state that comes back with the reply.
"""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from fedsyn.errors import RunError
from fedsyn.nodes.flower.direct import Answered, Asked, TableApp
from fedsyn.nodes.flower.grid import InProcessGrid
from fedsyn.nodes.flower.ray_cluster import Cluster, Lost, Needs
from fedsyn.nodes.flower.ray_worker import Answer, Ask, Call, Job

_log = logging.getLogger("fedsyn")

#: Clients in a task: few enough that every processor gets some of them, and that a lost task is no great loss.
_MOST_CLIENTS, _TASKS_PER_SLOT = 256, 4
#: Bytes of a content from which it goes into the object store once, instead of into every task.
_LARGE = 64 * 1024


Request: TypeAlias = Message | tuple[int, Asked]


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Requests that one task answers (messages, or node ids and what to ask without one), and the place of the first.

    `losses`: how often such a task was lost.
    """

    requests: Sequence[Request]
    first: int
    losses: int = 0


class RayGrid(InProcessGrid):
    """A Grid over Ray tasks; what it promises is what `InProcessGrid` promises, of which it keeps all but the work.

    A client's time is taken where it works, so that waiting for a free machine makes nobody late.

    Args:
        app: the ClientApp.
        app_path: 'module:attribute' of it.
        nodes: node configuration of each node; node ids are 1, 2, ...
        run_config: the run's configuration as the clients' contexts show it.
        cluster: the connection, which the grid closes in the end.
        needs: what a task asks of the cluster.
        clients_per_task: whose messages one task answers; None: at most 256, and four tasks for each CPU.
        setup: 'module:function' that every worker calls with `given` before its clients.
        given: put into Ray's object store once; arrays in it are read in place by every process of a machine.
    """

    def __init__(
        self,
        app: ClientApp,
        app_path: str,
        nodes: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any],
        *,
        cluster: Cluster,
        needs: Needs,
        clients_per_task: int | None = None,
        setup: str = "",
        given: Any = None,
    ) -> None:
        super().__init__(app, nodes, run_config)
        self._cluster, self._needs, self._size = cluster, needs, clients_per_task
        self._running: dict[Any, _Chunk] = {}
        self._task = cluster.remote("fedsyn.nodes.flower.ray_worker:work", needs)
        put = cluster.ray.put
        self._job = put(pickle.dumps(Job(app_path, setup), pickle.HIGHEST_PROTOCOL))
        self._given = put(given)

    def close(self) -> None:
        self._cluster.cancel(list(self._running))
        self._cluster.close()

    @property
    def is_direct(self) -> bool:
        """Whether messages can be left out: the app allows it, and nobody looks at them."""
        watched = type(self).send_and_receive is not RayGrid.send_and_receive or "send_and_receive" in vars(self)
        return self._direct and not watched and isinstance(self._app, TableApp) and self._app.direct is not None

    def ask(self, requests: Iterable[tuple[int, Asked]], timeout: float | None) -> Iterator[Answered | None]:
        """As `InProcessGrid.ask`; the requests are taken all at once."""
        early: dict[int, Answered | None] = {}
        following = 0
        for place, answer in self._answers(list(requests)):
            assert isinstance(answer.reply, Answered)
            early[place] = answer.reply if timeout is None or answer.seconds <= timeout else None
            while following in early:
                yield early.pop(following)
                following += 1

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return self._replies([self._waiting.pop(i) for i in message_ids if i in self._waiting], None)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self._replies([self._waiting.pop(i) for i in self.push_messages(messages)], timeout)

    def _replies(self, messages: list[Message], timeout: float | None) -> list[Message]:
        return [a.reply for _, a in self._answers(messages) if timeout is None or a.seconds <= timeout]

    def _answers(self, requests: Sequence[Request]) -> Iterator[tuple[int, Answer]]:
        """The place of a request and its answer, as they come; what each node remembers is kept, also of a late one."""
        if not requests:
            return
        again: Counter[str] = Counter()
        shared = self._shared(requests)
        size = self._clients_per_task(len(requests))
        for start in range(0, len(requests), size):
            self._submit(_Chunk(requests[start : start + size], start), shared)
        while self._running:
            for reference in self._cluster.some_of(self._running, [self._needs]):
                chunk = self._running.pop(reference)
                try:
                    answers: list[Answer] = pickle.loads(self._cluster.result(reference))
                except Lost as lost:
                    again[str(lost)] += len(chunk.requests)
                    self._submit(self._once_more(chunk, lost), shared)
                    continue
                if len(answers) < len(chunk.requests):
                    self._submit(_Chunk(chunk.requests[len(answers) :], chunk.first + len(answers)), shared)
                for place, (request, answer) in enumerate(zip(chunk.requests, answers, strict=False), chunk.first):
                    self._contexts.keep(_node_of(request), answer.state)
                    yield place, answer
        for cause, clients in again.items():
            _log.warning("fedsyn: %s; %d clients were asked again, and answered", cause, clients)

    def _clients_per_task(self, requests: int) -> int:
        tasks = _TASKS_PER_SLOT * self._cluster.slots(self._needs)  # machines may have come since the last exchange
        return self._size or min(_MOST_CLIENTS, -(-requests // tasks))

    def _shared(self, requests: Sequence[Request]) -> Any:
        """The content that all messages have in common, as a task takes it; None where each has its own."""
        messages = [request for request in requests if isinstance(request, Message)]
        if not messages or not all(message.content is messages[0].content for message in messages):
            return None
        packed = pickle.dumps(messages[0].content, pickle.HIGHEST_PROTOCOL)
        return self._cluster.ray.put(packed) if len(packed) > _LARGE else packed

    def _submit(self, chunk: _Chunk, shared: Any) -> None:
        asks = [self._packed(request, own=shared is None) for request in chunk.requests]
        packed = pickle.dumps(asks, pickle.HIGHEST_PROTOCOL)  # what several of them share is in it once
        self._running[self._task.remote(self._job, self._given, shared, packed)] = chunk

    def _packed(self, request: Request, own: bool) -> Ask | Call:
        context = self._contexts[_node_of(request)]
        if not isinstance(request, Message):
            return Call(context, request[1])
        content: RecordDict | None = request.content if own else None
        return Ask(context, request.metadata, content)

    def _once_more(self, chunk: _Chunk, lost: Lost) -> _Chunk:
        """The same chunk, to be asked again.

        Raises:
            RunError: it was lost too often.
        """
        losses, clients = chunk.losses + 1, len(chunk.requests)
        if losses > self._needs.retries:
            raise RunError(
                f"{lost}, and with it the task of {clients} clients; lost {losses} times (runtime.ray: memory "
                "reserves more for a task, clients_per_task makes it smaller, retries allows more losses)"
            )
        return _Chunk(chunk.requests, chunk.first, losses)


def _node_of(request: Request) -> int:
    node: int = request.metadata.dst_node_id if isinstance(request, Message) else request[0]
    return node
