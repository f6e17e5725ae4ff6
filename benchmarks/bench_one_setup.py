"""Secure sums with one setup per run against a setup per sum, and against sums without masks.

Each side forms the same sums over the same clients and opens the same bits (checked). A run with one setup is measured
in two parts: the setup with the first sum, which agrees the keys of the epoch, and each further sum (the median).

    python benchmarks/bench_one_setup.py                                   # 20 to 5,000 clients
    python benchmarks/bench_one_setup.py --clients 5000 --lengths 1000     # the goal: 12 CPU s a sum
    python benchmarks/bench_one_setup.py --threat malicious --clients 20,100
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
from collections.abc import Sequence

from flwr.compat.client.client import Client

from benchmarks.bench_secure_sum import check_same_sums, kilobytes, numbers
from benchmarks.secagg_plus.contest.vector import Clock, Facts, Taken, client_of, make_strategy
from fedsyn.aggregation import CommitteeAggregation
from fedsyn.aggregation.committee.size import derive
from fedsyn.errors import FedsynError
from fedsyn.flower import Context
from fedsyn.flower.bridge import read_state, write_state
from fedsyn.flower.direct import TableApp
from fedsyn.flower.grid import InProcessGrid


def of(facts: Facts) -> list[Taken]:
    """The sums, by clients of this process that are called without messages."""
    config, clients = facts.config(), facts.clients

    def client_fn(context: Context) -> Client:
        text = read_state(context)
        return client_of(
            config,
            int(context.node_config["partition-id"]),
            json.loads(text) if text else {},
            lambda kept: write_state(context, json.dumps(kept, separators=(",", ":"))),
        )

    grid = InProcessGrid(
        TableApp(client_fn), [{"partition-id": k, "num-partitions": clients} for k in range(clients)], {}
    )
    strategy = make_strategy(facts, Clock())
    strategy.start(grid)
    if any(record.dropped for record in strategy.records):
        raise FedsynError("somebody dropped out of a benchmark's sum")
    gc.collect()
    return strategy.taken


def later(taken: Sequence[Taken]) -> float:
    """CPU seconds of a sum that finds the setup made."""
    return statistics.median(one.cpu for one in taken[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=numbers, default=[20, 100, 1000, 5000])
    parser.add_argument("--lengths", type=numbers, default=[1000, 10_000])
    parser.add_argument("--sums", type=int, default=3, help="in a run; at least two")
    parser.add_argument("--threat", choices=("semi_honest", "malicious"), default="semi_honest")
    parser.add_argument("--per-sum", type=int, default=1000, help="most clients for which a setup per sum is run")
    arguments = parser.parse_args()
    print(f"CPU seconds of all parties together, which one process plays; {arguments.sums} sums; {arguments.threat}.\n")
    header = "clients | entries | members | setup and first sum | further sum | setup per sum | without masks"
    header += " | ratio to a setup per sum | kB up a sum: run | sum | plain"
    print(f"| {header} |\n|" + "---|" * (header.count("|") + 1))
    graph = "full" if arguments.threat == "malicious" else "sparse"
    for clients in arguments.clients:
        for length in arguments.lengths:
            one = Facts(clients, length, "secagg", arguments.sums, arguments.threat, "auto")
            limits = CommitteeAggregation(one.config().aggregation).limits(clients)
            bits, malicious = one.config().aggregation.failure_bits, arguments.threat == "malicious"
            members = derive(clients, limits.colluding, limits.dropouts, bits, malicious).members
            run, plain = of(one), of(Facts(clients, length, "plain", arguments.sums))
            check_same_sums(run, plain)
            cells = [str(clients), str(length), str(members), f"{run[0].cpu:.2f}", f"{later(run):.2f}"]
            up = [kilobytes(run[-1].up)]
            if clients <= arguments.per_sum:
                each = of(Facts(clients, length, "secagg", 2, arguments.threat, graph))
                check_same_sums(run[:2], each)
                cells += [f"{later(each):.2f}", f"{later(plain):.2f}", f"{later(each) / later(run):.1f} x"]
                up.append(kilobytes(each[-1].up))
            else:
                cells += ["not run", f"{later(plain):.2f}", ""]
                up.append("")
            print("| " + " | ".join([*cells, *up, kilobytes(plain[-1].up)]) + " |", flush=True)
    print(f"\npeak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
