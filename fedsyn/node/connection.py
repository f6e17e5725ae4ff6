"""The process that speaks with the SuperLink.

It has the node's key and no row, and asks the worker.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsyn.errors import ConfigError, FedsynError
from fedsyn.files import replace_synced
from fedsyn.flower.fleet import TOO_LARGE, Contact, Endpoint, Fleet, Incoming, Outgoing
from fedsyn.health import Health, Metrics, Pages, Requests, SpentBudget, pages_of
from fedsyn.ledgers.node_ledger import NodeLedger
from fedsyn.node.file import NodeFile, load_node_file
from fedsyn.node.task import BAD_INPUT, GREEDY, Bounds, FrameError, failed, fits, read_frame, write_frame
from fedsyn.wire.orders import is_run_name
from fedsyn.wire.refusals import Refusal, answer_of

_log = logging.getLogger("fedsyn.node")
#: A failed request needed more than a task may use, or crashed.
_OUTCOMES = (("answered",), ("refused",), ("failed",))
_MOST_RUNS = 32  # that are kept in mind
_GRACE = 30.0  # seconds that a worker has beyond those of its task


class WorkerProcess:
    """The worker of this connection, started again whenever it has died.

    Args:
        path: of the node's file.
        bounds: of a task.

    Attributes:
        restarts: starts after the first one.
    """

    def __init__(self, path: Path, bounds: Bounds) -> None:
        self._path, self._bounds, self.restarts = path, bounds, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._started = 0.0
        self._wait = 0.2
        self.ready = False
        self.closing = False

    def start(self) -> None:
        """Starts the worker and waits until it has read the table.

        A worker that dies of it is started again later.

        Raises:
            ConfigError: what it said is wrong with the node's files, and no restart changes.
        """
        self.close()
        ours, theirs = socket.socketpair()
        arguments = [self._path, theirs.fileno(), os.getpid(), self._bounds.seconds, self._bounds.megabytes]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedsyn.node.worker", *map(str, arguments)],
            pass_fds=[theirs.fileno()],
            env=_one_thread_each(),
        )
        theirs.close()
        self._channel, self._started = ours, time.monotonic()
        try:
            self.ready = read_frame(ours.fileno()) is not None
        except (FrameError, OSError):
            self.ready = False
        if not self.ready and self._process.wait() == BAD_INPUT:
            raise ConfigError("this node's table, ledger or policy cannot be used (see above)")

    def ask(self, header: dict[str, Any], blobs: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Returns the worker's reply, or a refusal.

        A refusal if the request is larger than the worker reads, or it died of it twice.
        """
        if not fits(header, blobs):
            return failed(TOO_LARGE)
        for _ in range(2):
            self._ensure()
            try:
                assert self._channel is not None
                write_frame(self._channel.fileno(), header, blobs)
                deadline = time.monotonic() + 3 * self._bounds.seconds + _GRACE
                answer = read_frame(self._channel.fileno(), deadline=deadline)
                if answer is None:
                    raise FrameError("the worker has ended")
            except (FrameError, OSError) as error:
                _log.error("the worker has died, or is lost (%s)", type(error).__name__)
                self.close()
                continue
            if not answer[0].get("killed"):
                return answer
            # Asked once more: a request that was charged and not answered is not charged again.
        return failed(GREEDY)

    def _ensure(self) -> None:
        """Makes sure that the worker is ready.

        Waits longer and longer for one that keeps dying.
        """
        while not self.closing and (self._process is None or self._process.poll() is not None or not self.ready):
            if time.monotonic() - self._started > 60.0:
                self._wait = 0.2
            time.sleep(self._wait)
            self._wait = min(2 * self._wait, 30.0)
            self.restarts += 1
            self.start()

    def close(self) -> None:
        """Ends the worker.

        Its channel is closed, and its work is not waited for.
        """
        self.ready = False
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()  # nothing in it is worth a goodbye: what matters is on the disk already
            self._process.wait()
            self._process = None


def _one_thread_each() -> dict[str, str]:
    """Returns this process' environment, with single-threaded linear algebra.

    Threads would not survive a fork.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, "1")}


def leaves_after(seconds: float) -> float:
    """Returns when a reply leaves that took so long.

    It leaves after 0.1, 0.2, 0.4, ... s.

    How long counting took depends on the rows, and whoever waits for a reply has a clock.
    """
    after = 0.1
    while after < seconds:
        after *= 2
    return after


class EarlierLife:
    """Facts in node.json about the node's earlier processes.

    Attributes:
        node: number that the SuperLink gave the node's key; without it a node that was killed waits until the
            SuperLink has forgotten its last life.
        runs: names of the runs that were not over when a request came last, by Flower's numbers.
    """

    def __init__(self, file: NodeFile) -> None:
        self._path = file.state_folder / "node.json"
        self._who = {"superlink": file.superlink, "key": file.key}
        self.node: int | None = None
        self.runs: dict[int, str] = {}
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
            if all(known[key] == value for key, value in self._who.items()):
                self.node = int(known["node"])
                self.runs = {int(run): str(name) for run, name in known["runs"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass

    def is_node(self, node: int) -> None:
        """Keeps the number that the SuperLink gave."""
        self.node = node
        self.save()

    def save(self) -> None:
        try:
            replace_synced(self._path, json.dumps({**self._who, "node": self.node, "runs": self.runs}).encode())
        except OSError as error:  # costs a restart a minute of waiting, and nothing else
            _log.error("%s cannot be written (%s)", self._path, error.strerror)


class NodeConnection:
    """One node's connection, worker and figures.

    Args:
        path: of its file.
        bounds: of a task.
    """

    def __init__(self, path: Path, bounds: Bounds) -> None:
        self.file: NodeFile = load_node_file(path)
        self.book = NodeLedger(self.file.ledger_file, self.file.policy.limits)  # to look at
        self._looking = threading.Lock()
        self._seen: deque[int] = deque(maxlen=256)  # runs at whose first request it was asked which others are over
        self.requests, self.seconds = Requests("requests", "outcome", known=_OUTCOMES), 0.0
        self.life = EarlierLife(self.file)
        self.contact = Contact(node=self.life.node)
        self.worker = WorkerProcess(path, bounds)
        root = None if self.file.root_certificates is None else Path(self.file.root_certificates)
        place = Endpoint(self.file.superlink, Path(self.file.key), root)
        self.fleet = Fleet(place, self.contact, self.life.is_node)

    def serve(self) -> None:
        """Answers requests until it is told to end."""
        if self.file.listen is not None:
            Pages(self.file.listen, pages_of(self.look))
            if self.file.listen.rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]"):
                _log.warning("listen: everybody who reaches %s can read how this node is", self.file.listen)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self.worker.start()
        self.fleet.serve(self.answer)
        self.worker.close()

    def stop(self) -> None:
        self.worker.closing = True
        self.fleet.stop()

    def answer(self, incoming: Incoming) -> Outgoing:
        """Has the worker answer one request."""
        start = time.monotonic()
        header = {
            "run": incoming.run,
            "run_config": dict(incoming.run_config),
            "fab_hash": incoming.fab_hash,
            "scalars": dict(incoming.scalars),
            "ended": self._ended(incoming.run),
        }
        reply, blobs = self.worker.ask(header, incoming.arrays)
        seconds = time.monotonic() - start
        if self._count(reply, seconds):
            self._began(incoming.run, incoming.run_config.get("run"))
        described = zip(reply["arrays"], blobs, strict=True)
        time.sleep(leaves_after(seconds) - seconds)
        return Outgoing(reply["scalars"], [(str(d), tuple(map(int, s)), blob) for (d, s), blob in described])

    def _ended(self, run: int) -> list[str]:
        """Returns the names of the runs that are over.

        It is asked at another run's first request: runs that are over keep nothing reserved.
        """
        runs = self.life.runs
        if run in runs or run in self._seen:
            return []
        self._seen.append(run)
        over = [each for each in runs if not self.fleet.is_running(each)]
        if not over:
            return []
        ended = [runs.pop(each) for each in over]
        self.life.save()
        return [name for name in ended if name not in runs.values()]

    def _began(self, run: int, name: object) -> None:
        """Notes a run that was answered.

        Its name has passed the node's gate, and begins in its ledger.
        """
        runs = self.life.runs
        if run not in runs and is_run_name(name):
            while len(runs) >= _MOST_RUNS:
                del runs[next(iter(runs))]
            runs[run] = str(name)
            self.life.save()

    def _count(self, reply: dict[str, Any], seconds: float) -> bool:
        """Counts a request by its outcome; returns whether it was answered."""
        self.seconds += seconds
        answered = not isinstance(answer_of(reply["scalars"]), Refusal)
        self.requests.count("failed" if reply.get("failed") else "answered" if answered else "refused")
        return answered

    def look(self) -> Health:
        """Returns how this node is."""
        problems = [] if self.worker.ready else ["the worker is not ready: it reads the table, or cannot"]
        if not self.contact.connected:
            problems.append(self.contact.problem)
        seconds, restarts, last = int(self.seconds), self.worker.restarts, self.contact.last
        facts = {"node": self.contact.node, "last_contact": last, "seconds": seconds, "worker_restarts": restarts}
        figures: Metrics = {  # whole seconds: how long one answer took depends on the rows
            "answer_seconds_total": ("counter", "Wall time of all answers, whole seconds.", seconds),
            "worker_restarts_total": ("counter", "Starts of the worker after its first.", restarts),
            "last_contact_seconds": ("gauge", "When the SuperLink last answered; 0: never.", last),
        }
        return Health("node", self.file.name, tuple(problems), self.requests, self._budget(), facts, figures)

    def _budget(self) -> SpentBudget | None:
        """Returns what the ledger says now; None while it cannot be read."""
        try:
            with self._looking:
                self.book.refresh()
                life = self.book.limits.lifetime
                return SpentBudget(self.book.epsilon, life.epsilon, life.delta, len(self.book.runs))
        except FedsynError as error:
            _log.error("%s", error)
            return None
