"""5,000 in-process clients answer a one-way request; 1,000 clients complete a run on Ray (with --ray).

The baseline of the same run is the loop without Flower: the clients' contributions counted and summed directly.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.flower.grid import InProcessGrid
from fedsyn.loading import parse_config
from fedsyn.plugins.strategies.flaim import AugFlaim
from fedsyn.protocol.client import OneWay
from fedsyn.protocol.strategy import Protocol
from fedsyn.randomness import Randomness
from fedsyn.runs.engines import run, run_config_of
from fedsyn.runs.holders import app
from fedsyn.runs.prepare import prepare
from fedsyn.table.counting.marginals import count_one_way
from fedsyn.table.data import EncodedTable
from fedsyn.wire.requests import Sum


class FirstSum(AugFlaim):
    """AugFLAIM's first request alone: all one-way marginals of everybody."""

    def protocol(self) -> Protocol:
        start, busy = time.perf_counter(), time.process_time()
        sums = yield Sum(self.everyone(), OneWay(), self.steps()[OneWay].first_sigma)
        self.seconds, self.busy = time.perf_counter() - start, time.process_time() - busy
        self.estimate(self.opened(sums, [(name,) for name in self.domain]))


def configuration(clients: int, rounds: int, engine: str) -> RunConfig:
    return parse_config(
        {
            "mechanism": {"name": "augflaim", "rounds": rounds},
            "data": {
                "source": "synthfs",
                "bins": 32,
                "options": {"beta": 1.0, "rows": 50_000, "clients": 100, "features": 14},
            },
            "federation": {
                "clients": clients,
                "sampling_rate": 0.1 if rounds > 1 else 1.0,
                "partition": "iid",
            },
            "privacy": {"epsilon": 1.0, "delta": 1e-5},
            "aggregation": {"protocol": "plain", "noise": "server"},
            "evaluation": [],
            "runtime": {"engine": engine, "seed": 0},
        }
    )


def one_way(clients: int) -> None:
    config = configuration(clients, 1, "inprocess")
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(config, Path(folder))
        table = EncodedTable(folder)
        domain = prepared.schema.domain
        start = time.perf_counter()
        direct = np.zeros(sum(domain.shape), np.int64)
        for k in range(clients):
            direct += count_one_way(table.rows(k), domain)
        loop = time.perf_counter() - start
        nodes = [{"partition-id": k, "num-partitions": clients} for k in range(clients)]
        grid = InProcessGrid(app, nodes, run_config_of(config, store=prepared.folder))
        strategy = FirstSum(config, domain, prepared.schema.sha256, randomness=Randomness(0))
        strategy.run(grid)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"one-way request, {clients} clients in process: {strategy.seconds:.2f} s (CPU {strategy.busy:.2f} s; "
        f"{clients / strategy.seconds:.0f} clients/s; {strategy.seconds / loop:.1f} times the bare loop), "
        f"peak {peak:.0f} MB"
    )


def ray(clients: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        run(configuration(clients, 2, "ray"), Path(folder) / "out")
        print(f"2 rounds of augflaim, {clients} clients on Ray: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=5000)
    parser.add_argument("--ray", type=int, default=0, help="clients of a run on Ray; 0 skips it")
    arguments = parser.parse_args()
    one_way(arguments.clients)
    if arguments.ray:
        ray(arguments.ray)
