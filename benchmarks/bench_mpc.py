"""What three parties pay for choosing on secret data: the l1 norms of a table's segments, and the largest of them.

Three threads in one process, a dealt table: among parties that follow the protocol, with every product checked
(`malicious=True`; ratios are those of medians), in plain NumPy, and in MPyC (Schoenmakers; Shamir's sharing over a
prime field, three processes) on as many cells as it does in seconds. CPU is that of one party's thread.

    python benchmarks/bench_mpc.py                      # 330,000 cells of 28 bits in 161 segments
    python benchmarks/bench_mpc.py --cells 100000 --segments 1000
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.mpc_threads import in_threads
from fedsyn.crypto.mpc.dealing import deal, received
from fedsyn.crypto.mpc.session import Session

_MPYC = """
import sys, time
from mpyc.runtime import mpc
cells, segments = int(sys.argv[1]), int(sys.argv[2])
kind = mpc.SecInt(40)
async def main():
    async with mpc:
        secret = mpc.input([kind((7919 * i) % 2001 - 1000) for i in range(cells)], senders=0)
        started, cpu = time.perf_counter(), time.process_time()
        each = cells // segments
        sums = [mpc.sum([mpc.abs(v) for v in secret[i * each : (i + 1) * each]]) for i in range(segments)]
        await mpc.output(mpc.argmax(sums)[0])
        if mpc.pid == 0:
            print("seconds", time.perf_counter() - started, time.process_time() - cpu)
mpc.run(main())
"""


class Cost(NamedTuple):
    wall: float
    cpu: float  # of the slowest party
    rounds: int
    megabytes: float  # sent by the party that sends most

    def line(self, name: str) -> str:
        figures = f"{1e3 * self.wall:9.1f} ms wall {1e3 * self.cpu:9.1f} ms CPU a party"
        return f"{name:>24}: {figures} {self.rounds:5d} rounds {self.megabytes:8.2f} MB sent a party"


def measure(
    table: np.ndarray, starts: np.ndarray, bits: int, wide: int, malicious: bool = False
) -> tuple[Cost, Cost, int]:
    """The cost of l1, that of l1 and argmax, and the index."""
    rng = np.random.default_rng(0)
    dealt, keys = deal(table, rng.bytes(64)), [rng.bytes(32) for _ in range(3)]

    def program(s: Session) -> tuple[Cost, Cost, int]:
        x = received(s.index, dealt.seeds_of(s.index), dealt.correction if s.index else None, len(table))
        wall, cpu = time.perf_counter(), time.thread_time()

        def cost() -> Cost:
            return Cost(time.perf_counter() - wall, time.thread_time() - cpu, s.rounds, s.bytes_sent / 1e6)

        sums = s.l1(x, starts, bits)
        first = cost()
        best = s.argmax(sums, wide)
        return first, cost(), best

    parties = in_threads(program, keys, None, functools.partial(Session, malicious=malicious))
    worst = [Cost(*map(max, zip(*(p[i] for p in parties), strict=True))) for i in (0, 1)]
    return worst[0], worst[1], parties[0][2]


def mpyc(cells: int, segments: int) -> tuple[float, float] | None:
    """Wall and CPU seconds of one of MPyC's three processes; None without MPyC."""
    if importlib.util.find_spec("mpyc") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bench.py"
        script.write_text(_MPYC)
        command = [sys.executable, str(script), str(cells), str(segments), "-M3", "--no-log"]
        answer = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ, timeout=300)
    found = [line.split()[1:] for line in answer.stdout.splitlines() if line.startswith("seconds")]
    return (float(found[0][0]), float(found[0][1])) if found else None


def compare(
    table: np.ndarray, starts: np.ndarray, bits: int, wide: int, malicious: bool, repeats: int, expected: int
) -> Cost:
    """Prints what the choice costs with or without checks; the cost of l1 and argmax."""
    runs = [measure(table, starts, bits, wide, malicious) for _ in range(repeats)]
    assert all(run[2] == expected for run in runs)
    costs = [Cost(*(np.median([run[i][k] for run in runs]).item() for k in range(2)), *runs[0][i][2:]) for i in (0, 1)]
    if not malicious:  # there l1 is checked with the rest, before argmax opens
        print(costs[0].line("l1"))
    print(costs[1].line("l1 and argmax, checked" if malicious else "l1 and argmax"))
    tracemalloc.start()
    measure(table, starts, bits, wide, malicious)
    peak = tracemalloc.get_traced_memory()[1] / 3e6
    tracemalloc.stop()
    print(f"{'peak memory':>24}: {peak:9.1f} MB a party, messages under way included")
    return costs[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=330_000)
    parser.add_argument("--segments", type=int, default=161)
    parser.add_argument("--bits", type=int, default=28, help="of a cell")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mpyc-cells", type=int, default=64)
    a = parser.parse_args()
    rng = np.random.default_rng(0)
    table = rng.integers(-(2 ** (a.bits - 1)), 2 ** (a.bits - 1), a.cells)
    starts = np.r_[0, np.sort(rng.choice(np.arange(1, a.cells), a.segments - 1, replace=False))]
    longest = int(np.diff(np.r_[starts, a.cells]).max())
    wide = a.bits + longest.bit_length()  # sums below 2^(wide - 1), and so are their differences
    started = time.perf_counter()
    expected = int(np.add.reduceat(np.abs(table), starts).argmax())
    plain = time.perf_counter() - started
    print(f"{a.cells} cells of {a.bits} bits in {a.segments} segments, medians of {a.repeats}; argmax of {wide} bits")
    print(f"{'plain NumPy, no secrets':>24}: {1e3 * plain:9.1f} ms")
    costs = [compare(table, starts, a.bits, wide, malicious, a.repeats, expected) for malicious in (False, True)]
    wall, cpu, rounds, sent = (there / here for here, there in zip(*costs, strict=True))
    print(f"{'checked / unchecked':>24}: wall {wall:.1f}, CPU {cpu:.1f}, rounds {rounds:.1f}, bytes {sent:.1f}")
    ours, segments = costs[0], max(2, a.mpyc_cells // 8)
    theirs = mpyc(a.mpyc_cells, segments)
    if theirs is None:
        print("MPyC is not installed (pip install mpyc): no comparison with it")
        return
    print(f"{'MPyC':>24}: {1e3 * theirs[0]:9.1f} ms wall {1e3 * theirs[1]:9.1f} ms CPU a party", end=" ")
    print(f"for {a.mpyc_cells} cells in {segments} segments")
    small = table[: a.mpyc_cells]
    few = np.arange(0, a.mpyc_cells, a.mpyc_cells // segments)[:segments]
    print(measure(small, few, a.bits, 40)[1].line("l1 and argmax of as many"))
    per_cell = theirs[1] / a.mpyc_cells / (ours.cpu / a.cells)
    print(f"per cell MPyC takes {per_cell:,.0f} times the CPU time of the whole table's")


if __name__ == "__main__":
    main()
