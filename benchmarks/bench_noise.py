"""CPU time of one draw of a discrete Gaussian share, beside opendp's exact sampler in the same run.

    python benchmarks/bench_noise.py [--draws N]

fedsyn draws a vector at a time, opendp (dev dependency) one number per call into its library, or a vector by a
measurement; the latter is measured.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from fedsyn.privacy import _discrete
from fedsyn.randomness import OsRandom, Randomness, RandomSource


def nanoseconds(s: float, draws: int, source: RandomSource) -> float:
    """Best of three, tables set up."""
    best = np.inf
    for _ in range(3):
        start = time.process_time()
        _discrete.discrete_gaussian(s, draws, source)
        best = min(best, time.process_time() - start)
    return best / draws * 1e9


def opendp_nanoseconds(s: float, draws: int) -> float:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i32")), dp.l2_distance(T=float)
    sampler = dp.m.make_gaussian(*space, scale=s)
    zeros = [0] * draws
    start = time.process_time()
    sampler(zeros)
    return (time.process_time() - start) / draws * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1_000_000)
    draws = parser.parse_args().draws
    print(f"{'s':>9} {'set-up ms':>10} {'seeded ns':>10} {'OS ns':>8} {'opendp ns':>10} {'opendp / OS':>12}")
    for s in (1.0, 12.8, 100.0, 1024.0, 1e4, 1e6):
        _discrete._tables.cache_clear()
        start = time.process_time()
        _discrete._tables(s)
        setup = (time.process_time() - start) * 1e3
        seeded = nanoseconds(s, draws, Randomness(0).generator("noise"))
        system = nanoseconds(s, draws, OsRandom())
        theirs = opendp_nanoseconds(s, max(1000, draws // 50))
        print(f"{s:9g} {setup:10.2f} {seeded:10.1f} {system:8.1f} {theirs:10.1f} {theirs / system:12.0f}", flush=True)


if __name__ == "__main__":
    main()
