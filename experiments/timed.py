"""Runs whose time is the result: CPU seconds of each side, every exchange and its bytes, and a check of what follows.

The experiments on running time (distributed_aim_table3 and figures 4 to 7) share it. A run happens in a process of its
own, in which one core plays the server and all clients one after the other. Wall time is therefore not what a
federation would take, and on a shared machine it is not even repeatable: what is counted is CPU time. `alone` is that
of everybody together; `side_by_side` lets clients work at the same time, as they would: the server's, and of each
exchange the slowest client's. Results are kept as one file per run, and are not measured again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bell import Bell, Bonawitz
from fedsyn import aggregation, yamlio
from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, FedsynError
from fedsyn.flower import ArrayRecord, Message
from fedsyn.flower.grid import InProcessGrid
from fedsyn.flower.messages import content_bytes
from fedsyn.loading import parse_config
from fedsyn.registry import strategy_class
from fedsyn.runs.prepare import prepare
from fedsyn.runs.run_config import run_config_of
from fedsyn.runs.serve import serve

Source = str | dict[str, Any]
Payloads = list[list[tuple[int, bytes, bytes]]]  # of each exchange: node, request, reply

# Everybody draws a share of the noise in each of them, so that all open the same bits: only how sums form differs.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "without masks": {"protocol": "plain"},
    "committee": {"protocol": "secagg"},  # fedsyn's own
    "Bell": {"protocol": "secagg"},
    "Bonawitz": {"protocol": "secagg"},
    "committee, malicious": {"protocol": "secagg", "threat": "malicious"},
    "Bonawitz, malicious": {"protocol": "secagg", "threat": "malicious"},
}
_PAPERS = {"Bell": Bell, "Bonawitz": Bonawitz}
CENTRAL = "central AIM"


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        protocol: a name of `PROTOCOLS`, or central AIM.
        clients: number of clients, all of whom take part in every round.
        rounds: T.
        top: k, cliques of a round; central AIM has always one.
        seed: of clients, workload's noise and all else that is drawn.
        engine: of the fits, as `inference.engine` names it.
    """

    protocol: str
    clients: int
    rounds: int
    top: int
    seed: int = 0
    engine: str = "native"

    def config(self, source: Source = "adult") -> RunConfig:
        """Adult in 32 bins and 64 random 3-way marginals, as in configs/distributed_aim.yaml, and no metrics."""
        data = {"source": source, "bins": 32} if isinstance(source, str) else source
        central = self.protocol == CENTRAL
        mechanism: dict[str, Any] = {"name": "aim"} if central else {"name": "distributed_aim", "top": self.top}
        noise = "server" if central else "distributed"
        return parse_config(
            {
                "mechanism": {**mechanism, "rounds": self.rounds},
                "data": data,
                "federation": {"clients": self.clients, "partition": "iid"},
                "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
                "workload": {"degree": 3, "size": 64, "seed": 0},
                "aggregation": {**({} if central else PROTOCOLS[self.protocol]), "noise": noise},
                "evaluation": [],
                "inference": {"engine": self.engine, "estimator": "UniversalAcceleratedMethod"},
                "runtime": {"engine": "inprocess", "seed": self.seed},
            }
        )

    @property
    def id(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class Taken:
    """What a run took.

    Attributes:
        alone: CPU seconds of all parties together, from joining to the last fit.
        side_by_side: the server's, and of each exchange those of the slowest client.
        aim: CPU seconds of the server outside its requests: fits, choices, what fits into the model.
        clients: CPU seconds of all clients together.
        wall: seconds on the wall.
        exchanges: of each exchange: clients asked, bytes to all of them, bytes from all of them, slowest CPU s.
        sums: secure or other sums that were formed.
        model: digest of the model: runs with equal ones opened the same bits.
        dropped: replies that could not be used.
    """

    alone: float = 0.0
    side_by_side: float = 0.0
    aim: float = 0.0
    clients: float = 0.0
    wall: float = 0.0
    exchanges: list[tuple[int, int, int, float]] = field(default_factory=list)
    sums: int = 0
    model: str = ""
    dropped: int = 0

    @property
    def down(self) -> int:
        return sum(one[1] for one in self.exchanges)

    @property
    def up(self) -> int:
        return sum(one[2] for one in self.exchanges)


class TimedGrid(InProcessGrid):
    """Counts exchanges, their bytes and the CPU time of each client; keeps the payloads if it is told to."""

    taken: Taken
    payloads: Payloads | None = None

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        asked = list(messages)
        self._each: list[float] = []
        replies = super().send_and_receive(asked, timeout=timeout)
        down = sum(content_bytes(message.content) for message in asked)
        up = sum(content_bytes(message.content) for message in replies if message.has_content())
        self.taken.exchanges.append((len(asked), down, up, round(max(self._each, default=0.0), 6)))
        self.taken.clients += sum(self._each)
        if self.payloads is not None:
            by_node = {reply.metadata.src_node_id: _payload(reply) for reply in replies if reply.has_content()}
            nodes = [message.metadata.dst_node_id for message in asked]
            triples = zip(nodes, asked, strict=True)
            self.payloads.append([(node, _payload(message), by_node.get(node, b"")) for node, message in triples])
        return replies

    def _handle(self, message: Message) -> Message:
        start = time.process_time()
        try:
            return super()._handle(message)
        finally:
            self._each.append(time.process_time() - start)


def _payload(message: Message) -> bytes:
    """What the counted bytes are: array data, and the text of keys and scalars."""
    parts: list[bytes] = []
    for record in message.content.values():
        for key, value in record.items():
            parts.append(key.encode())
            if isinstance(record, ArrayRecord):
                parts.append(value.data)
            elif isinstance(value, str | bytes):
                parts.append(value.encode() if isinstance(value, str) else value)
            else:
                parts.append(bytes(8))
    return b"".join(parts)


def run_case(case: Case, source: Source = "adult", keep: Path | None = None) -> Taken:
    """Runs it in this process; `keep` is a file for the payloads of all messages."""
    own = aggregation.PROTOCOLS["secagg"]
    aggregation.PROTOCOLS["secagg"] = _PAPERS.get(case.protocol.partition(",")[0], own)
    try:
        return _run_case(case, source, keep)
    finally:
        aggregation.PROTOCOLS["secagg"] = own


def _run_case(case: Case, source: Source, keep: Path | None) -> Taken:
    from fedsyn.runs.holders import app

    config, taken = case.config(source), Taken()
    answering = [0.0]

    class Timed(strategy_class(config.mechanism.name)):  # type: ignore[misc]
        def answer(self, *arguments: Any) -> Any:
            start = time.process_time()
            try:
                return super().answer(*arguments)
            finally:
                answering[0] += time.process_time() - start

    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(config, Path(folder) / "store")
        nodes = [{"partition-id": k, "num-partitions": prepared.clients} for k in range(prepared.clients)]
        grid = TimedGrid(app, nodes, run_config_of(config, store=prepared.folder))
        grid.taken, grid.payloads = taken, None if keep is None else []
        wall, cpu = time.perf_counter(), time.process_time()
        strategy = serve(config, prepared, grid, Path(folder), None, Timed)
        taken.wall, taken.alone = time.perf_counter() - wall, time.process_time() - cpu
    taken.aim = taken.alone - answering[0]
    taken.side_by_side = taken.alone - taken.clients + sum(one[3] for one in taken.exchanges)
    taken.sums = getattr(strategy, "_sums", 0)
    taken.dropped = sum(len(record.dropped) for record in strategy.records)
    assert strategy.model is not None
    arrays = [np.ascontiguousarray(array) for array in strategy.model.to_arrays().values()]
    taken.model = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]
    if keep is not None:
        keep.write_bytes(pickle.dumps(grid.payloads))
    return taken


def _in_own_process(*arguments: Any) -> Taken:
    """Nothing that an earlier run left in memory makes a later one faster.

    One thread: on a busy machine the others of a matrix product spin for far longer than it takes.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a new process reads it, this one has
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_stored, *arguments).result()


def _stored(case: Case, source: Source, cells: Path, keep: Path | None) -> Taken:
    taken = run_case(case, source, keep)
    store(cells.parent, case, source, taken)
    return taken


def store(out: Path, case: Case, source: Source, taken: Taken) -> None:
    """Keeps a run's result in a results folder."""
    document = {"case": asdict(case), "source": source, "taken": asdict(taken)}
    path = out / "cells" / f"{case.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".tmp").write_text(json.dumps(document), encoding="utf-8")
    path.with_suffix(".tmp").rename(path)


def payloads_of(case: Case, out: Path) -> Path:
    """Where the payloads of a case's messages are kept, if they are."""
    return out / "payloads" / f"{case.id}.pickle"


def run_cases(
    cases: Sequence[Case], out: Path, workers: int = 1, source: Source = "adult", keep: bool = False
) -> dict[Case, Taken]:
    """Every case in a process of its own; those whose result is in `out` are read.

    Args:
        cases: to run.
        out: the results folder.
        workers: processes at the same time.
        source: of the rows, or the configuration's whole `data`.
        keep: whether the payloads of all messages are kept as well.

    Raises:
        FedsynError: a client dropped out, or two protocols of one run opened different bits.
    """
    cells = out / "cells"
    for folder in (cells, out / "payloads"):
        folder.mkdir(parents=True, exist_ok=True)
    found: dict[Case, Taken] = {}
    with ThreadPoolExecutor(workers) as pool:
        waiting = {}
        for case in dict.fromkeys(cases):
            path = cells / f"{case.id}.json"
            kept = payloads_of(case, out) if keep else None
            if path.is_file() and (kept is None or kept.is_file()):
                found[case] = Taken(**json.loads(path.read_text(encoding="utf-8"))["taken"])
            else:
                waiting[case] = pool.submit(_in_own_process, case, source, cells, kept)
        for case, future in waiting.items():
            found[case] = future.result()
            print(f"{case}: {found[case].alone:.1f} CPU s, {found[case].wall:.1f} s", file=sys.stderr, flush=True)
    _require_equal_models(found)
    return found


def _require_equal_models(found: dict[Case, Taken]) -> None:
    models: dict[tuple[int, int, int, int], str] = {}
    for case, taken in found.items():
        if taken.dropped:
            raise FedsynError(f"{taken.dropped} replies of {case} could not be used")
        if case.protocol == CENTRAL or case.engine != "native":
            continue
        key = (case.clients, case.rounds, case.top, case.seed)
        if models.setdefault(key, taken.model) != taken.model:
            raise FedsynError(f"{case}: its sums are not those of the same run under another protocol")


# What is expected -----------------------------------------------------------------------------------------------------


def mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def judge(document: dict[str, Any], mode: str, facts: dict[str, float]) -> tuple[list[str], bool]:
    """Lines of the tables of facts and claims of expected.yaml, and whether all are as recorded.

    A fact is expected within a factor of what was recorded for the mode ('full' or 'fast'), a claim to hold or fail as
    it did; one that is not recorded for a mode is not looked at.
    """
    good, lines = True, ["| figure | here | expected | as expected |", "|---|---|---|---|"]
    for name, entry in document.get("facts", {}).items():
        if mode not in entry:
            continue
        here, expected = facts.get(name, math.nan), float(entry[mode])
        fine = here > 0 and max(here / expected, expected / here) <= entry["factor"]
        good &= fine
        lines.append(f"| {entry['says']} | {here:.4g} | {expected:g}, factor {entry['factor']:g} | {_yes(fine)} |")
    lines += ["", "| claim | here | bound | held | held when recorded |", "|---|---|---|---|---|"]
    for claim in document.get("claims", []):
        if mode not in claim:
            continue
        here = facts.get(claim["fact"], math.nan)
        held = here <= claim["at_most"] if "at_most" in claim else here >= claim["at_least"]
        good &= held == claim[mode] and not math.isnan(here)
        bound = f"at most {claim['at_most']:g}" if "at_most" in claim else f"at least {claim['at_least']:g}"
        lines.append(f"| {claim['says']} | {here:.4g} | {bound} | {_yes(held)} | {_yes(claim[mode])} |")
    return lines, good


def _yes(fact: bool) -> str:
    return "yes" if fact else "**no**"


@dataclass(frozen=True)
class Job:
    """An experiment's command line and its expected.yaml.

    Attributes:
        document: expected.yaml.
        settings: its part for the mode: which cases are run.
        mode: 'full' or 'fast'.
        out: the results folder.
        workers: processes, each with one run at a time.
    """

    document: dict[str, Any]
    settings: dict[str, Any]
    mode: str
    out: Path
    workers: int

    def measure(self, cases: Sequence[Case], keep: bool = False) -> dict[Case, Taken]:
        return run_cases(cases, self.out, self.workers, keep=keep)


def main(folder: Path, work: Callable[[Job], tuple[list[str], dict[str, float]]]) -> int:
    """The main program of an experiment: `work` gives its table and its facts.

    Returns:
        0 if facts and claims are as recorded, 1 if not, 2 where something is bad.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="fewer and smaller runs; minutes")
    parser.add_argument("--out", type=Path, default=Path("runs/timed"), help="results; finished runs are not run again")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    options = parser.parse_args()
    mode = "fast" if options.fast else "full"
    try:
        document = yamlio.read_mapping(folder / "expected.yaml")
        if mode not in document:
            raise ConfigError(f"{folder.name}/expected.yaml does not say what to run in the {mode} mode")
        lines, facts = work(Job(document, document[mode], mode, options.out, max(1, options.workers)))
    except FedsynError as error:
        print(error, file=sys.stderr)
        return 2
    verdict, good = judge(document, mode, facts)
    text = "\n".join([*lines, "", *verdict])
    print(text)
    (options.out / f"{folder.name}.md").write_text(text + "\n", encoding="utf-8")
    print("as expected" if good else "NOT as expected")
    return 0 if good else 1
