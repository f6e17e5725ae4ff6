"""The process that holds the table.

It reads nothing that came from outside, and forks a task for each request.

What a request does to a task (memory, time, a crash) costs that request. The parent is single-threaded, keeps the
encoded table and everything that a task imports, and passes bytes between the connection and its tasks. A task ends
with its request, so nothing that a server sends can stay in the memory of the node.

    python -m fedsyn.node.worker NODE.yaml DESCRIPTOR PARENT SECONDS MEGABYTES
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsyn.errors import FedsynError, InputError, NotReady
from fedsyn.node.answering import Answering
from fedsyn.node.file import NodeFile, load_node_file
from fedsyn.node.tables import Encoding, NotRead, Tables
from fedsyn.node.task import (
    BAD_INPUT,
    GREEDY,
    Bounds,
    FrameError,
    Task,
    failed,
    fits,
    packed,
    read_array,
    read_frame,
    write_frame,
)
from fedsyn.output import log_failure, log_to_stderr, no_tracebacks, reason, say
from fedsyn.wire.envelope import MOST_MESSAGE
from fedsyn.wire.refusals import NOT_READY, Kind, Refusal

_log = logging.getLogger("fedsyn.node")
_PR_SET_PDEATHSIG = 1


def preload() -> None:
    """Imports what a task needs, once: a fork shares it."""
    from fedsyn.registry import client_class, mechanisms

    for name in mechanisms():
        client_class(name)
    import fedsyn.aggregation  # noqa: F401


class Worker:
    """Forks a task for each frame that the connection sends.

    Args:
        file: of the node.
        bounds: of a task.
    """

    def __init__(self, file: NodeFile, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - frozen
        self.tables = Tables(file)
        self.answering = Answering(file, self.tables)
        self.bounds = bounds

    def warm(self) -> None:
        """Reads the table in the encoding of most runs.

        It is done before the node is online.

        Raises:
            NotReady: it cannot be read: its holder hears why, and no server has asked yet.
        """
        self.tables.get(Encoding.of_most(self.answering.file))
        _share()

    def serve(self, descriptor: int) -> None:
        """Answers frames until the connection has gone."""
        while (frame := read_frame(descriptor)) is not None:
            header, blobs = frame
            write_frame(descriptor, *self.ask(header, blobs))

    def ask(self, header: dict[str, Any], blobs: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Answers one request in a task of its own.

        Returns header and blobs of its reply, or a refusal in fixed words.
        """
        deadline = time.monotonic() + self.bounds.seconds
        for _ in range(3):  # at most two encodings are new: of the run, and of what it found
            header_back, blobs_back = self._forked(header, blobs, deadline)
            if "needs" not in header_back:
                break
            if not self._read(Encoding.read(header_back["needs"])):
                header = {**header, "reads": True}  # in vain, but the reason is then the task's to tell
        else:
            _log.error("the table was not read as the run needs it")
            header_back, blobs_back = failed(NOT_READY)
        self._catch_up()
        return header_back, blobs_back

    def _catch_up(self) -> None:
        """Reads what the task appended to the ledger.

        The next task begins from there.
        """
        try:
            self.answering.book.refresh()
        except FedsynError as error:  # every task will say so, and answer nothing
            _log.error("%s", error)

    def _read(self, encoding: Encoding) -> bool:
        try:
            self.tables.get(encoding)
        except Exception as error:  # the task that needs it says so to whom it concerns
            log_failure(_log, "the table cannot be read", error)
            return False
        _share()
        return True

    def _forked(
        self, header: dict[str, Any], blobs: Sequence[bytes], deadline: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        reading, writing = os.pipe()
        me = os.getpid()
        # The task answers in a child, whose memory and time are bounded.
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(reading)
                _end_with_parent(me)
                self._confine()
                write_frame(writing, *self._task(header, blobs))
                status = 0
            finally:
                os._exit(status)  # whatever happened: no cleaning up of the parent's things
        os.close(writing)
        try:
            # The parent waits for the answer; a task past its deadline is killed below.
            answer = read_frame(reading, deadline=deadline)
        except TimeoutError:
            return failed(Refusal(Kind.BUSY, "the request took longer than this node allows"))
        except FrameError:
            answer = None
        finally:
            os.close(reading)
            status = _ended(child)
        if answer is None:
            _log.error("a task ended without an answer (%s)", _why(status))
            return failed(GREEDY, killed=True)
        return answer

    def _confine(self) -> None:
        """Bounds of this process, which is a task."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        most = _address_space() + self.bounds.megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        used = int(time.process_time() + self.bounds.seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used, used + 1))

    def _task(self, header: dict[str, Any], blobs: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        self.tables.reads = bool(header.pop("reads", False))
        try:
            task = Task(
                int(header["run"]),
                dict(header["run_config"]),
                str(header["fab_hash"]),
                dict(header["scalars"]),
                [read_array(blob) for blob in blobs],
            )
            self.answering.end(header.get("ended", ()))
            reply = self.answering.answer(task)
        except NotRead as error:
            return {"needs": list(error.encoding)}, []
        except Exception as error:
            log_failure(_log, "a request could not be read", error)
            return failed(Refusal(Kind.PROTOCOL, "the request is malformed"))
        answer = packed(reply)
        if fits(*answer):
            return answer
        _log.error("the reply is larger than %d bytes", MOST_MESSAGE)
        return failed(NOT_READY)


def _share() -> None:
    """Shares all that is in memory with every task.

    None of them counts it again.
    """
    gc.collect()
    gc.freeze()


def _end_with_parent(parent: int) -> None:
    """Has the kernel end this process when its parent ends.

    Ends at once if the parent has ended already.
    """
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (AttributeError, OSError):  # not Linux: a process that lost its channel ends by itself
        return
    if os.getppid() != parent:
        os._exit(1)


def _ended(child: int) -> int:
    """Returns the exit status of a finished task.

    A task that still runs is killed.
    """
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        select.select([], [], [], 0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _why(status: int) -> str:
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.waitstatus_to_exitcode(status)}"


def _address_space() -> int:
    """Bytes of this process' address space."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except OSError:
        return 2**33


def main(arguments: Sequence[str]) -> int:
    """Entry point of the process that the connection starts."""
    no_tracebacks()
    file, descriptor, parent = arguments[0], int(arguments[1]), int(arguments[2])
    _end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the connection ends this process
    log_to_stderr("%(asctime)s worker: %(message)s")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # rows never go into a file of the kernel's choice
    try:
        worker = Worker(load_node_file(file), Bounds(float(arguments[3]), int(arguments[4])))
    except InputError as error:
        say(f"error: {error}", error=True)
        return BAD_INPUT
    preload()
    try:
        worker.warm()
    except NotReady as error:
        say(f"error: {reason(error)}", error=True)
        return BAD_INPUT if isinstance(error.__cause__, InputError) else 1
    write_frame(descriptor, {"ready": True})
    worker.serve(descriptor)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
