"""The Ray engine: a Grid over the tasks of a Ray cluster.

Each task does the work of many clients.

The server half runs where the run was started, and keeps what every node remembers. A task gets, for each client of
its chunk, the request and that state, and brings back the answer and the state afterwards. So no client belongs to a
machine: any of them can answer for any client at any time, machines may join and leave, and a task that was lost with
its machine is simply asked again.

Asking again releases nothing twice. What a client releases is an answer that the server receives. Answer and state
leave a task together, in one object, when it has ended; a task whose object was not read has told the server nothing.
It is then forgotten (an answer that Ray finds later has no reader) and the second attempt starts from the same request
and the same state: with a seed it draws the same noise, because randomness is keyed by what stands in the request;
without one it draws fresh noise, and the first, unread draw is gone. What the client's ledger charged in the lost
attempt was lost with the noise that it paid for, and is charged again, once, in the state that comes back.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.clientapp import ClientApp

from fedsyn.errors import RunError
from fedsyn.flower.asking import Requests
from fedsyn.flower.direct import DirectReply, DirectRequest, ask
from fedsyn.flower.grid import InProcessGrid, State, client_fn_of, named, state_of
from fedsyn.flower.ray_cluster import Cluster, LostTask, Needs

_log = logging.getLogger("fedsyn")

#: Clients in a task: few enough that every processor gets some of them, and that a lost task is no great loss.
_MOST_CLIENTS, _TASKS_PER_SLOT = 256, 4
#: A task ends after so many seconds, or bytes of answers, and leaves the rest of its chunk to be asked again: what a
#: lost machine costs is bounded, and so is what an answer must have of memory at a time.
ENOUGH_SECONDS, ENOUGH_BYTES = 10.0, 64 * 2**20


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Requests that one task answers, and the first one's place.

    Each is a (node id, request).

    `losses`: how often such a task was lost.
    """

    requests: Sequence[tuple[int, DirectRequest]]
    first: int
    losses: int = 0


class RayGrid(InProcessGrid):
    """A Grid over Ray tasks.

    It promises what `InProcessGrid` promises, of which it keeps all but the work.

    A client's time is taken where it works, so that waiting for a free machine makes nobody late.

    Args:
        app: the ClientApp.
        app_path: 'module:attribute' of it.
        nodes: node configuration of each node; node ids are 1, 2, ...
        run_config: the run's configuration as the clients' contexts show it.
        cluster: the connection, which the grid closes in the end.
        needs: what a task asks of the cluster.
        clients_per_task: whose requests one task answers; None: at most 256, and four tasks for each CPU.
        setup: 'module:function' that every worker calls with `payload` before its clients; '' for none.
        payload: put into Ray's object store once; arrays in it are read in place by every process of a machine.
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
        payload: Any = None,
    ) -> None:
        super().__init__(app, nodes, run_config)
        self._cluster, self._needs, self._size = cluster, needs, clients_per_task
        self._running: dict[Any, _Chunk] = {}
        self._task = cluster.remote(f"{__name__}:work", needs)
        self._app_path, self._setup, self._given = app_path, setup, cluster.ray.put(payload)

    def close(self) -> None:
        self._cluster.cancel(list(self._running))
        self._cluster.close()

    def called(self, requests: Requests) -> Iterator[DirectReply]:
        """Calls clients as `InProcessGrid.called`.

        The requests are taken all at once.
        """
        early: dict[int, DirectReply] = {}
        following = 0
        for place, answer in self._answers(list(requests)):
            early[place] = answer
            while following in early:
                yield early.pop(following)
                following += 1

    def _answers(self, requests: Sequence[tuple[int, DirectRequest]]) -> Iterator[tuple[int, DirectReply]]:
        """Yields each answer with its place, in order of arrival.

        A node's memory is kept, also that of a late one.
        """
        again: Counter[str] = Counter()
        size = self._clients_per_task(len(requests))
        for start in range(0, len(requests), size):
            self._submit(_Chunk(requests[start : start + size], start))
        while self._running:
            for reference in self._cluster.some_of(self._running, [self._needs]):
                chunk = self._running.pop(reference)
                try:
                    answers: list[tuple[DirectReply, State]] = pickle.loads(self._cluster.result(reference))
                except LostTask as lost:
                    again[str(lost)] += len(chunk.requests)
                    self._submit(self._once_more(chunk, lost))
                    continue
                if len(answers) < len(chunk.requests):
                    self._submit(_Chunk(chunk.requests[len(answers) :], chunk.first + len(answers)))
                for place, (answered, state) in enumerate(answers, chunk.first):
                    self._contexts.keep(answered.node, state)
                    yield place, answered
        for cause, clients in again.items():
            _log.warning("%s; %d clients were asked again, and answered", cause, clients)

    def _clients_per_task(self, requests: int) -> int:
        tasks = _TASKS_PER_SLOT * self._cluster.slots(self._needs)  # machines may have come since the last exchange
        return self._size or max(1, min(_MOST_CLIENTS, -(-requests // tasks)))

    def _submit(self, chunk: _Chunk) -> None:
        requests = [(self._contexts[node], request) for node, request in chunk.requests]
        packed = pickle.dumps(requests, pickle.HIGHEST_PROTOCOL)  # what several of them share is in it once
        self._running[self._task.remote(self._app_path, self._setup, self._given, packed)] = chunk

    def _once_more(self, chunk: _Chunk, lost: LostTask) -> _Chunk:
        """Returns the chunk to be asked again.

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


def work(app: str, setup: str, payload: Any, chunk: bytes) -> bytes:
    """Answers a chunk's requests on a Ray worker, in order.

    It stops after enough bytes or seconds.

    Args:
        app: 'module:attribute' of the ClientApp.
        setup: 'module:function' that is called with `payload` before any client; '' for none.
        payload: for the setup; whatever was put into the object store.
        chunk: a pickled list of contexts and requests.

    Returns:
        A pickled list of answers and states, of the first requests of the chunk; at least one.
    """
    if setup:
        named(setup)(payload)
    client_fn = client_fn_of(named(app))
    answers: list[tuple[DirectReply, State]] = []
    begun, size = time.monotonic(), 0
    for context, request in pickle.loads(chunk):
        answered, state = ask(client_fn, request, context), state_of(context)
        answers.append((answered, state))
        size += answered.size + len(state[0] or "")
        if size > ENOUGH_BYTES or time.monotonic() - begun > ENOUGH_SECONDS:
            break
    return pickle.dumps(answers, pickle.HIGHEST_PROTOCOL)
