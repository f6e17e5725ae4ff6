"""The worker of a node: what a request does to its task costs that request, and one that comes again costs nothing."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsyn.errors import CannotWrite, ConfigError, ProtocolError
from fedsyn.ledgers.node_ledger import RunAccount
from fedsyn.node.answering import Answering
from fedsyn.node.connection import WorkerProcess
from fedsyn.node.file import load_node_file
from fedsyn.node.task import (
    Bounds,
    FrameError,
    NodeReply,
    Task,
    frame,
    read_array,
    read_frame,
    reply_bytes,
    reply_of,
    write_frame,
)
from fedsyn.node.worker import Worker
from fedsyn.wire.envelope import ANSWER
from fedsyn.wire.refusals import NOT_READY
from support.node_folders import header_of, make_node, run_of

CONFIG = run_of()
SIZES = {"sigma": 40.0}


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    made = Worker(load_node_file(make_node(tmp_path / "node")), Bounds(20.0, 512))
    made.warm()
    return made


def said(answer: tuple[dict[str, Any], list[bytes]]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(answer[0]["scalars"][ANSWER])
    return told


def charges(worker: Worker) -> list[tuple[str, int]]:
    """Entries of the node's ledger that speak of a charge: kind, and its number in the run."""
    lines = map(json.loads, worker.answering.file.ledger_file.read_text(encoding="utf-8").splitlines())
    return [(line["entry"], line["number"]) for line in lines if line["entry"] in ("charge", "again")]


# Answers --------------------------------------------------------------------------------------------------------------


def test_a_node_says_in_join_that_it_answers_again(worker: Worker) -> None:
    told = said(worker.ask(header_of(CONFIG, "join"), []))
    assert told["ok"] is True and told["params"] == {"partition": 0, "rows": None, "again": True}
    assert not charges(worker)


def test_the_same_request_gets_the_same_reply_and_pays_once(worker: Worker) -> None:
    asked = header_of(CONFIG, "sizes", sequence=1, **SIZES)
    first, second = worker.ask(asked, []), worker.ask({**asked, "run": 8}, [])  # Flower numbers a resumed run anew
    assert said(first)["ok"] is True
    assert first[0]["scalars"] == second[0]["scalars"] and first[1] == second[1]
    assert charges(worker) == [("charge", 0)]
    events = [json.loads(line)["event"] for line in (worker.answering.audit.path).read_text().splitlines()]
    assert events == ["asked", "answered", "repeated"]


def test_a_request_from_before_the_last_one_is_not_answered_twice(worker: Worker) -> None:
    first = header_of(CONFIG, "sizes", sequence=1, **SIZES)
    assert said(worker.ask(first, []))["ok"] is True
    assert said(worker.ask(header_of(CONFIG, "sizes", sequence=2, **SIZES), []))["ok"] is True
    told = said(worker.ask(first, []))
    assert told["ok"] is False and "answered before" in told["sentence"]
    assert charges(worker) == [("charge", 0)]


@pytest.mark.slow
def test_a_table_is_encoded_as_the_run_asks_by_the_process_that_keeps_it(worker: Worker) -> None:
    other = run_of(data={"bins": 3})
    assert said(worker.ask(header_of(other, "join"), []))["ok"] is True
    assert len(worker.tables._kept) == 2  # in the parent, for the next task


def test_a_server_hears_the_same_of_whatever_stops_a_table(tmp_path: Path) -> None:
    """It is read again for a run that wants it in another encoding, when something else lies in its place."""
    path, rows = make_node(tmp_path / "node"), tmp_path / "node" / "rows.csv"
    worker = Worker(load_node_file(path), Bounds(20.0, 512))
    worker.warm()
    heard = []
    for bins, content in enumerate([None, b"", b"age,city\n1,a\n", b"PK\x03\x04", b"age;city\n1;a\n"], 3):
        rows.unlink(missing_ok=True)
        if content is not None:
            rows.write_bytes(content)
        heard.append(worker.ask(header_of(run_of(data={"bins": bins}), "join", run=f"run-{bins}"), [])[0]["scalars"])
    assert heard == [NOT_READY.scalars] * 5


def test_a_table_that_cannot_be_read_stops_its_node_before_it_is_online(tmp_path: Path) -> None:
    path = make_node(tmp_path / "node")
    (tmp_path / "node" / "rows.csv").write_text("age,city\n1,a\n", encoding="utf-8")
    process = WorkerProcess(path, Bounds(20.0, 512))
    with pytest.raises(ConfigError, match="table, ledger or policy cannot be used"):
        process.start()


def test_a_table_without_rows_is_served(tmp_path: Path) -> None:
    path = make_node(tmp_path / "node")
    (tmp_path / "node" / "rows.csv").write_text("age,city,smoker\n", encoding="utf-8")
    worker = Worker(load_node_file(path), Bounds(20.0, 512))
    worker.warm()
    assert said(worker.ask(header_of(CONFIG, "sizes", **SIZES), []))["ok"] is True


def test_a_run_beyond_the_limit_for_life_is_refused_with_what_was_spent(tmp_path: Path) -> None:
    policy = {"approval": "always", "minimum_cohort": 1, "protocols": ["plain"], "noise": ["local"]}
    limit = {"lifetime": {"epsilon": 1.0, "delta": 1e-6}}
    worker = Worker(load_node_file(make_node(tmp_path / "node", policy=policy | limit)), Bounds(20.0, 512))
    assert said(worker.ask(header_of(CONFIG, "sizes", **SIZES), []))["ok"] is True
    told = said(worker.ask(header_of(CONFIG, "join", run="second"), []))
    assert told["kind"] == "budget" and "asks for epsilon = 1 " in told["sentence"] and "spent" in told["sentence"]
    # Once the first run is over, what it did not spend is free again; what it spent is not.
    smaller = run_of(privacy={"epsilon": 0.5, "delta": 1e-6})
    assert said(worker.ask(header_of(smaller, "join", run="third"), []))["ok"] is False
    assert said(worker.ask({**header_of(smaller, "join", run="third"), "ended": ["first"]}, []))["ok"] is True


# What a task may not do to the node -----------------------------------------------------------------------------------


def test_a_task_killed_after_its_charge_let_nothing_out_and_the_next_pays_with_it(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = header_of(CONFIG, "sizes", sequence=1, **SIZES)
    with monkeypatch.context() as patch:
        patch.setattr(Answering, "_keep", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        killed = worker.ask(asked, [])
    assert killed[0]["killed"] is True and said(killed)["ok"] is False
    assert charges(worker) == [("charge", 0)]
    assert said(worker.ask(asked, []))["ok"] is True
    assert charges(worker) == [("charge", 0), ("again", 0)]


@pytest.mark.parametrize("greed", ["memory", "time"])
def test_a_task_that_takes_too_much_costs_its_request_only(
    greed: str, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.bounds = Bounds(0.5 if greed == "time" else 20.0, 256)

    def take(*_: object) -> NodeReply:
        if greed == "time":
            time.sleep(30.0)
        return NodeReply({ANSWER: "x"}, [np.ones(2**28)])  # 2 GiB

    with monkeypatch.context() as patch:
        patch.setattr(Answering, "_ask", take)
        told = said(worker.ask(header_of(CONFIG, "sizes", **SIZES), []))
    assert told["ok"] is False
    assert ("longer" if greed == "time" else "ran out of memory") in told["sentence"]
    assert told["kind"] == "busy"
    worker.bounds = Bounds(20.0, 512)
    assert said(worker.ask(header_of(CONFIG, "join"), []))["ok"] is True


@pytest.mark.parametrize(
    "change",
    [
        {"run_config": {}},
        {"run_config": {"resolved": "{"}},
        {"scalars": {}},
        {"scalars": {"envelope": "[" * 5000}},
        {"run": "x" * 10},
        {"run_config": 3},
        {"scalars": None},
    ],
)
def test_a_malformed_request_is_refused_in_fixed_words(change: dict[str, Any], worker: Worker) -> None:
    told = said(worker.ask(header_of(CONFIG, "join") | change, []))
    assert told["ok"] is False and "Traceback" not in told["sentence"] and "[[" not in told["sentence"]
    assert not charges(worker)


def npy(descr: str, shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\x93NUMPY\x01\x00",
        b"PK\x03\x04",  # a zip of arrays
        npy("|O", "(1,)", b"cos\nsystem\n(S'true'\ntR."),
        npy("<f8", "(9223372036854775807,)"),
        npy("<f8", "(1000000, 1000000)"),
        npy("<f8", "(-1,)"),
        npy("<f8", "(" * 3000),
        npy("<U4", "(1,)", b"a\0\0\0b\0\0\0c\0\0\0d\0\0\0"),
    ],
)
def test_a_hostile_array_is_no_array(blob: bytes, worker: Worker) -> None:
    with pytest.raises(ProtocolError, match="is not a numeric array"):
        read_array(blob)
    told = said(worker.ask(header_of(CONFIG, "join"), [blob]))
    assert told == {"ok": False, "kind": "protocol", "sentence": "the request is malformed"}


# Frames ---------------------------------------------------------------------------------------------------------------


def piped(data: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


def test_a_frame_there_and_back() -> None:
    reading, writing = os.pipe()
    write_frame(writing, {"a": 1}, [b"", b"xyz"])
    os.close(writing)
    assert read_frame(reading) == ({"a": 1}, [b"", b"xyz"])
    assert read_frame(reading) is None
    os.close(reading)


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0",
        struct.pack("!Q", 2**60),
        struct.pack("!Q", 5) + b"{",
        struct.pack("!Q", 2) + b"[]",
        struct.pack("!Q", 2) + b"{}",
        struct.pack("!Q", 14) + b'{"sizes":[-1]}',
        struct.pack("!Q", 16) + b'{"sizes":[true]}',
        struct.pack("!Q", 23) + b'{"sizes":[999999999999]}'[:23],
        struct.pack("!Q", 24) + b'{"sizes":[999999999999]}',
        struct.pack("!Q", 13) + b'{"sizes":[3]}' + b"ab",
    ],
)
def test_what_is_no_frame_is_an_error_and_never_memory(data: bytes) -> None:
    reading = piped(data)
    with pytest.raises(FrameError):
        read_frame(reading)
    os.close(reading)


def test_a_frame_that_does_not_come_is_not_waited_for() -> None:
    reading, writing = os.pipe()
    with pytest.raises(TimeoutError):
        read_frame(reading, deadline=time.monotonic() + 0.02)
    os.close(reading)
    os.close(writing)


def test_a_reply_is_kept_with_its_types() -> None:
    arrays = [np.array(3.5), np.zeros((0, 4), np.uint16), np.asfortranarray(np.arange(6.0).reshape(2, 3))]
    kept = reply_of(reply_bytes(NodeReply({"a": "b"}, arrays)))
    assert kept.scalars == {"a": "b"}
    for before, after in zip(arrays, kept.arrays, strict=True):
        assert before.dtype == after.dtype and before.shape == after.shape and np.array_equal(before, after)
    whole = b"".join(frame({"scalars": {}, "arrays": []}, [io.BytesIO(b"x").getvalue()]))
    with pytest.raises(FrameError):
        reply_of(whole)


@pytest.mark.parametrize(
    ("code", "sentence"), [(28, "a disk is full at this node"), (30, "a file cannot be written at this node")]
)
@pytest.mark.parametrize("call", ["fsync", "open"])
def test_a_disk_that_refuses_is_named_to_the_server_and_logged_without_a_traceback(
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
    sentence: str,
    call: str,
) -> None:
    asked = header_of(CONFIG, "sizes", **SIZES)
    task = Task(7, asked["run_config"], asked["fab_hash"], asked["scalars"], [])
    real = os.open

    def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(code, os.strerror(code))
        return real(path, flags, *rest, **named)

    def refused(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, opened if call == "open" else refused)
        told = json.loads(worker.answering.answer(task).scalars[ANSWER])
    assert told["sentence"] == f"{sentence}; nothing was released (see this node's own log)"
    assert "cannot be" in caplog.text and "Traceback" not in caplog.text
    assert not charges(worker)


def test_wherever_a_disk_refuses_once_the_next_attempt_pays_nothing(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`busy`, which a server asks again, and nothing is remembered that would stand in the way of the same request."""
    answering, at, refusals, replies = worker.answering, 0, 0, set[str]()
    real = {name: getattr(os, name) for name in ("write", "pwrite", "fsync", "replace")}
    while True:
        header = header_of(CONFIG, "sizes", run=f"run-{at}", **SIZES)
        task = Task(7, header["run_config"], header["fab_hash"], header["scalars"], [])
        before, calls = len(charges(worker)), 0

        def once(name: str) -> Any:
            def call(*given: Any, **named: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls - 1 == at:  # noqa: B023 - called in this turn of the loop alone
                    raise OSError(28, os.strerror(28))
                return real[name](*given, **named)

            return call

        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(os, name, once(name))
            told = json.loads(answering.answer(task).scalars[ANSWER])
        if told["ok"] is not True:
            refusals += 1
            assert told["kind"] == "busy" and "a disk is full at this node" in told["sentence"], (at, told)
            told = json.loads(answering.answer(task).scalars[ANSWER])
        assert told["ok"] is True, (at, told)
        replies.add(json.dumps(told))
        assert [kind for kind, _ in charges(worker)[before:]].count("charge") == 1, at
        at += 1
        if calls < at:
            break
    # No reply is another run's. Two of 20 draws on a grid of at least sigma / 2^17 are equal by chance in at most
    # 190 * 2^-16 / (2 sqrt(pi)) < 0.09% of the runs of this test.
    assert at > 8 and refusals >= at - 4 and len(replies) == at


def test_a_reply_that_a_disk_held_back_is_the_reply(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply is kept, and the ledger cannot take down that it leaves: it leaves later, unchanged."""
    header = header_of(CONFIG, "sizes", **SIZES)
    task = Task(7, header["run_config"], header["fab_hash"], header["scalars"], [])
    with monkeypatch.context() as patch:
        patch.setattr(RunAccount, "answered", lambda *_: (_ for _ in ()).throw(CannotWrite("x", OSError(28, "full"))))
        assert json.loads(worker.answering.answer(task).scalars[ANSWER])["kind"] == "busy"
    kept = worker.answering.memory.load("first").reply
    assert kept is not None and worker.answering.answer(task).scalars == reply_of(kept).scalars
    assert charges(worker) == [("charge", 0)]
