"""Many clients in one process: CPU time per client and round, and peak memory, at several numbers of clients.

Each line is a process of its own. Two alternatives of the same run stand beside the engine: the same clients behind
Flower's messages (`InProcessGrid(direct=False)`, which is the way of Ray and of deployments), and the bare loop, which
counts every client's one-way marginals and adds them up without protocol, ledger or randomness: nobody can be faster.

    python benchmarks/bench_many.py                  # 1,000, 2,000 and 5,000 clients
    python benchmarks/bench_many.py --large          # also 20,000 and 100,000, without the slow alternative
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.flower.grid import InProcessGrid
from fedsyn.loading import parse_config
from fedsyn.plugins.strategies.flaim import AugFlaim
from fedsyn.protocol.client import OneWay
from fedsyn.protocol.strategy import Protocol
from fedsyn.randomness import Randomness
from fedsyn.registry import strategy_class
from fedsyn.runs.holders import app
from fedsyn.runs.prepare import prepare
from fedsyn.runs.run_config import run_config_of
from fedsyn.table.counting.marginals import count_one_way
from fedsyn.table.data import EncodedTable
from fedsyn.wire.requests import Sum

ROWS = 10  # of each client
ROUNDS = 2
# mechanism (or one sum of all one-way marginals), noise
WORK = [("one-way", "server"), ("one-way", "distributed")]
WORK += [(name, noise) for name in ("augflaim", "sketch_aim") for noise in ("server", "distributed")]


class FirstSum(AugFlaim):
    """AugFLAIM's first request alone: all one-way marginals of everybody."""

    def protocol(self) -> Protocol:
        start, busy = time.perf_counter(), time.process_time()
        sums = yield Sum(self.everyone(), OneWay(), self.steps()[OneWay].first_sigma)
        self.spent = time.process_time() - busy, time.perf_counter() - start
        self.estimate(self.opened(sums, [(name,) for name in self.domain]))


def configuration(work: str, noise: str, clients: int) -> RunConfig:
    aggregation: dict[str, object] = {"protocol": "plain", "noise": noise}
    if noise == "distributed":
        aggregation |= {"corrupted": 0.1, "dropout": 0.1}
    options = {"beta": 1.0, "rows": ROWS * clients, "clients": 100, "features": 14}
    return parse_config(
        {
            "mechanism": {"name": "augflaim" if work == "one-way" else work, "rounds": ROUNDS},
            "data": {"source": "synthfs", "bins": 32, "options": options},
            "federation": {"clients": clients, "partition": "iid"},
            "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
            "aggregation": aggregation,
            "workload": {"size": 64},
            "evaluation": [],
            "runtime": {"engine": "inprocess", "seed": 0},
        }
    )


def cell(work: str, noise: str, clients: int, way: str) -> dict[str, float]:
    """CPU and wall seconds of the protocol (not of making, splitting or writing a table), and this process's peak."""
    config = configuration(work, noise, clients)
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(config, Path(folder))
        domain = prepared.schema.domain
        if way == "loop":
            spent = bare_loop(EncodedTable(folder), sum(domain.shape))
        else:
            nodes = [{"partition-id": k, "num-partitions": clients} for k in range(clients)]
            grid = InProcessGrid(app, nodes, run_config_of(config, store=prepared.folder), direct=way == "direct")
            made = FirstSum if work == "one-way" else strategy_class(work)
            strategy = made(config, domain, prepared.schema.sha256, randomness=Randomness(0))
            start, busy = time.perf_counter(), time.process_time()
            strategy.run(grid)
            spent = time.process_time() - busy, time.perf_counter() - start
            spent = getattr(strategy, "spent", spent)
    return {"cpu": spent[0], "wall": spent[1], "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def bare_loop(table: EncodedTable, length: int) -> tuple[float, float]:
    start, busy = time.perf_counter(), time.process_time()
    total = np.zeros(length, np.int64)
    for k in range(table.clients):
        total += count_one_way(table.rows(k), table.domain)
    return time.process_time() - busy, time.perf_counter() - start


def measured(work: str, noise: str, clients: int, way: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--cell", work, noise, str(clients), way]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def slope(clients: Sequence[int], seconds: Sequence[float]) -> float:
    """Exponent of the growth of the seconds, by least squares of the logarithms."""
    return float(np.polyfit(np.log(clients), np.log(seconds), 1)[0])


def compare(sizes: Sequence[int], most_by_message: int, chosen: Sequence[str]) -> None:
    for work in dict.fromkeys(work for work, _ in WORK if work in chosen):
        print(f"\n{work}: {ROWS} rows of 14 columns a client, all take part; CPU ms per client and round\n")
        print("| noise | clients | CPU ms a client | by Flower's messages | bare loop | CPU s | peak MB |")
        print("|---|---|---|---|---|---|---|")
        rounds, slopes = 1 if work == "one-way" else ROUNDS, list[str]()
        for noise in (noise for name, noise in WORK if name == work):
            cpu = []
            for clients in sizes:
                ours = measured(work, noise, clients, "direct")
                cpu.append(ours["cpu"])
                per = 1000.0 / clients / rounds
                messages = loop = "-"
                if clients <= most_by_message:
                    theirs = measured(work, noise, clients, "messages")["cpu"]
                    messages = f"{theirs * per:.3f} ({theirs / ours['cpu']:.1f} times)"
                if work == "one-way":
                    loop = f"{measured(work, noise, clients, 'loop')['cpu'] * per:.3f}"
                row = f"{ours['cpu'] * per:.3f} | {messages} | {loop} | {ours['cpu']:.2f} | {ours['peak']:.0f}"
                print(f"| {noise} | {clients:,} | {row} |", flush=True)
            if len(sizes) > 1:
                slopes.append(f"{noise}: CPU seconds grow as clients^{slope(sizes, cpu):.2f}")
        print("\n" + "\n".join(slopes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 2000, 5000])
    parser.add_argument("--large", action="store_true", help="also 20,000 and 100,000 clients")
    parser.add_argument("--by-message", type=int, default=5000, help="most clients that are also asked by message")
    parser.add_argument("--work", nargs="+", default=[work for work, _ in WORK], help="only these")
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        work, noise, clients, way = arguments.cell
        print(json.dumps(cell(work, noise, int(clients), way)))
    else:
        compare(arguments.clients + [20_000, 100_000] * arguments.large, arguments.by_message, arguments.work)
