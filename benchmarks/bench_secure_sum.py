"""Sums of one vector over many clients: secure, without masks, and by Flower's own SecAgg+.

In process: `secagg` against `plain`, both with the clients' shares of the noise, so both open the same bits (checked).
A run of secure sums is measured in two parts: the setup with the first sum, which agrees the keys of the epoch, and
each further sum (the median). On Ray (`--ray`): a further sum, Flower's federated averaging without masks, and Flower's
SecAgg+ (21 shares, threshold 11) over the same vectors, one after the other in one simulation, whose start is not
counted. `--end-to-end`: whole runs of the mechanisms that live on secure sums.

    python benchmarks/bench_secure_sum.py                                  # in process, and the contest on Ray
    python benchmarks/bench_secure_sum.py --clients 100 --lengths 10000 --ray 0
    python benchmarks/bench_secure_sum.py --clients '' --end-to-end 5000
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.flower_engine import run_simulation
from benchmarks.secagg_plus.contest.vector import Clock, Facts, Taken, client_of, make_strategy, read_results, to_text
from fedsyn.aggregation.secagg.size import derive
from fedsyn.aggregation.secure import SecureAggregation
from fedsyn.config import RunConfig
from fedsyn.errors import FedsynError
from fedsyn.flower import Context, NumPyClient
from fedsyn.flower.direct import TableApp
from fedsyn.flower.grid import InProcessGrid
from fedsyn.flower.state import read_state, write_state
from fedsyn.loading import parse_config
from fedsyn.registry import MECHANISMS
from fedsyn.runs.engines import run

CONTEST = Path(__file__).resolve().parent / "secagg_plus"


def sums_of(facts: Facts) -> list[Taken]:
    """The sums, by clients of this process that are called without messages."""
    config, clients = facts.config(), facts.clients

    def client_fn(context: Context) -> NumPyClient:
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
    strategy.run(grid)
    if any(record.dropped for record in strategy.records):
        raise FedsynError("somebody dropped out of a benchmark's sum")
    gc.collect()
    return strategy.taken


def members(facts: Facts) -> int:
    """Returns the size of the committee of these clients."""
    node = facts.config().aggregation
    limits = SecureAggregation(node).limits(facts.clients)
    return derive(
        facts.clients, limits.colluding, limits.dropouts, node.statistical_security_bits, node.threat == "malicious"
    ).members


def median(taken: Sequence[Taken]) -> Taken:
    """The sum of median CPU time, with the median time on the wall."""
    ordered = sorted(taken, key=lambda one: one.cpu)
    middle = ordered[(len(ordered) - 1) // 2]
    middle.seconds = statistics.median(one.seconds for one in taken)
    return middle


def check_same_sums(one: Sequence[Taken], other: Sequence[Taken]) -> None:
    """What is timed must be right: masks cancel to the bit, and the noise is what was asked for."""
    if [taken.digest for taken in one] != [taken.digest for taken in other]:
        raise SystemExit("secagg and plain opened different sums")
    if any(taken.error > 7.5 * taken.sigma for taken in one):  # 1e5 entries pass it by chance once in 1e8 runs
        raise SystemExit("a sum is further from the exact one than its noise can be")


def kilobytes(size: float) -> str:
    return f"{size / 1000:.1f}"


def later(taken: Sequence[Taken]) -> float:
    """Returns the CPU seconds of a sum that finds the setup made."""
    return statistics.median(one.cpu for one in taken[1:])


def table_in_process(arguments: argparse.Namespace) -> None:
    """One line for each number of clients and length."""
    threat = arguments.threat
    print(f"CPU seconds of all parties together, which one process plays; {arguments.repeats} sums; {threat}.\n")
    header = (
        "clients | entries | members | setup and first sum | further sum | without masks | kB up a sum: secagg | plain"
    )
    print(f"| {header} |\n|" + "---|" * (header.count("|") + 1))
    for clients in arguments.clients:
        for length in arguments.lengths:
            facts = Facts(clients, length, "secagg", arguments.repeats, threat)
            secure, plain = sums_of(facts), sums_of(Facts(clients, length, "plain", arguments.repeats))
            check_same_sums(secure, plain)
            cells = [str(clients), str(length), str(members(facts)), f"{secure[0].cpu:.2f}"]
            cells += [f"{later(secure):.2f}", f"{later(plain):.2f}", *(kilobytes(of[-1].up) for of in (secure, plain))]
            print("| " + " | ".join(cells) + " |", flush=True)
    print(f"\npeak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB\n")


def table_ray(arguments: argparse.Namespace) -> None:
    """The contest on Ray."""
    clients, length = arguments.ray, arguments.ray_length
    sides = [
        Facts(clients, length, protocol, arguments.ray_repeats, arguments.threat) for protocol in ("plain", "secagg")
    ]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        start = time.perf_counter()
        overrides = {"facts": to_text(sides), "out": str(out)}
        log = run_simulation(CONTEST, overrides, nodes=clients, client_cpus=1, poll=out.is_file)
        if not out.is_file():
            raise SystemExit(f"the simulation left no result; its log:\n{log}")
        if "Traceback" in out.read_text(encoding="utf-8"):
            raise SystemExit(out.read_text(encoding="utf-8"))
        all_sums = read_results(out)
        total = time.perf_counter() - start
    check_same_sums(all_sums["fedsyn plain"], all_sums["fedsyn secagg"])
    results = {name: median(taken) for name, taken in all_sums.items()}
    theirs = results["flower secagg+"]
    print(
        f"On Ray, {os.cpu_count()} cores, {clients} clients, {length} entries, the same vectors on every side; one "
        f"aggregation, median of {arguments.ray_repeats}; the start of Ray and a first plain round with everybody are "
        f"excluded on every side (all together: {total:.0f} s). fedsyn's secure sum: a committee of "
        f"{members(sides[1])}, and its setup is in the first sum; clients draw noise. Flower's SecAgg+: 21 shares, 11 "
        f"open a secret, no noise. Deviation: the largest from the exact sum, in units of the noise (fedsyn) or in "
        f"counts (Flower).\n"
    )
    print("| side | s | CPU s, all processes | kB up | kB down | deviation | SecAgg+ takes (s) | SecAgg+ takes (CPU) |")
    print("|---|---|---|---|---|---|---|---|")
    for name, one in results.items():
        deviation = f"{one.error / one.sigma:.1f} sigma" if one.sigma else f"{one.error:.1g}"
        cells = [name, f"{one.seconds:.2f}", f"{one.cpu:.2f}", kilobytes(one.up), kilobytes(one.down), deviation]
        cells += [f"{theirs.seconds / one.seconds:.1f} x", f"{theirs.cpu / one.cpu:.1f} x"]
        print("| " + " | ".join(cells) + " |")
    ratio = theirs.seconds / results["fedsyn secagg"].seconds
    print(f"  -> Flower's SecAgg+ takes {ratio:.1f} times as long (wanted: at least 5)", file=sys.stderr)
    print()


def end_to_end_config(clients: int, name: str, protocol: str, rounds: int | None) -> RunConfig:
    """A whole run on Adult, or on made-up rows where Adult is absent."""
    adult = (Path(os.environ.get("FEDSYN_DATA", "")) / "adult.csv.gz").is_file()
    made_up = {"source": "synthfs", "options": {"beta": 1.0, "rows": 50_000, "clients": 100, "features": 14}}
    return parse_config(
        {
            "mechanism": {"name": name} | ({} if rounds is None else {"rounds": rounds}),
            "data": {**({"source": "adult"} if adult else made_up), "bins": 32},
            "federation": {"clients": clients, "partition": "iid"},
            "privacy": {"epsilon": 1.0, "delta": 1e-5},
            "aggregation": {"protocol": protocol, "noise": "distributed"},
            "evaluation": ["workload_error"],
            "runtime": {"engine": "inprocess", "seed": 0},
        }
    )


def table_end_to_end(arguments: argparse.Namespace) -> None:
    """Whole runs in process, every client asked in every round."""
    clients = arguments.end_to_end
    print(f"End to end, in process, {clients} clients, all of them in every round, noise distributed:\n")
    print("| mechanism | protocol | rounds | s | CPU s | s of it for estimation | kB up | kB down | workload error |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in arguments.mechanisms.split(","):
        for protocol in arguments.protocols.split(","):
            if name not in MECHANISMS:
                print(f"| {name} | {protocol} | not registered |", flush=True)
                continue
            config = end_to_end_config(clients, name, protocol, arguments.rounds)
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "out"
                start, busy = time.perf_counter(), time.process_time()
                metrics = run(config, out)
                wall, cpu = time.perf_counter() - start, time.process_time() - busy
                lines = (out / "measured.jsonl").read_text(encoding="utf-8").splitlines()
                costs = [json.loads(line) for line in lines]
            if metrics["dropped"]:
                raise SystemExit(f"{metrics['dropped']:.0f} replies of {name} could not be used")
            estimation = sum(one["seconds"].get("estimate", 0.0) for one in costs)
            cells = [name, protocol, str(len(costs) - 1), f"{wall:.0f}", f"{cpu:.0f}", f"{estimation:.0f}"]
            cells += [kilobytes(metrics[key] * 1e6) for key in ("client_mb_up", "client_mb_down")]
            print("| " + " | ".join([*cells, f"{metrics['workload_error']:.3f}"]) + " |", flush=True)
    print()


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=numbers, default=[20, 100, 1000, 5000], help="in process; '' skips it")
    parser.add_argument("--lengths", type=numbers, default=[1000, 10_000])
    parser.add_argument("--repeats", type=int, default=3, help="in process; at least two")
    parser.add_argument("--threat", choices=("semi_honest", "malicious"), default="semi_honest")
    parser.add_argument("--ray", type=int, default=100, help="clients of the contest on Ray; 0 skips it")
    parser.add_argument("--ray-length", type=int, default=10_000)
    parser.add_argument("--ray-repeats", type=int, default=3)
    parser.add_argument("--end-to-end", type=int, default=0, help="clients of whole runs; 0 skips them")
    parser.add_argument("--mechanisms", default="distributed_aim,sketch_aim", help="of the whole runs")
    parser.add_argument("--rounds", type=int, help="of the whole runs; default: the mechanism's own")
    parser.add_argument("--protocols", default="secagg", help="of the whole runs: secagg, plain or both")
    arguments = parser.parse_args()
    if arguments.clients:
        table_in_process(arguments)
    if arguments.ray:
        table_ray(arguments)
    if arguments.end_to_end:
        table_end_to_end(arguments)


if __name__ == "__main__":
    main()
