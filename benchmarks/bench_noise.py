"""Our sampler and our accounting beside OpenDP's exact sampler and dp-accounting, in the same run.

    python benchmarks/bench_noise.py [--draws N] [--settings N]

Three tables: CPU time until each can be used, in processes of their own; CPU time of one conversion, and how many of a
grid of them fall below the exact value (which 60 digits give), so that a guarantee is overstated; CPU time of one draw
of a discrete Gaussian share. fedsyn draws a vector at a time, opendp one number per call into its library, or a vector
by a measurement; the latter is measured. Both libraries are dev dependencies.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import files

import mpmath
import numpy as np

from fedsyn.privacy import _discrete, conversion, renyi
from fedsyn.randomness import OsRandom, Randomness, RandomSource

_IMPORT = "import time; {}; print(time.process_time())"


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


def start_up(statement: str) -> float:
    """CPU seconds of a process that executes a statement, less those of one that does not; median of five."""

    def seconds(code: str) -> float:
        said = subprocess.run([sys.executable, "-c", _IMPORT.format(code)], capture_output=True, text=True, check=True)
        return float(said.stdout)

    return statistics.median(seconds(statement) - seconds("pass") for _ in range(5))


def megabytes(package: str) -> float:
    return sum((file.size or 0) for file in files(package) or ()) / 2**20


def exact_gaussian_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Balle & Wang 2018, Theorem 8, as it is printed."""
    m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def exact_step(rate: float, multiplier: float, order: int) -> mpmath.mpf:
    """Mironov, Talwar & Zhang 2019, Theorem 5, as it is printed."""
    q, z = mpmath.mpf(rate), mpmath.mpf(multiplier)
    terms = (
        mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.exp(k * (k - 1) / (2 * z**2))
        for k in range(order + 1)
    )
    return mpmath.log(mpmath.fsum(terms)) / (order - 1)


Setting = tuple[float, ...]
Conversion = Callable[..., float]


def compared(
    name: str,
    settings: Sequence[Setting],
    ours: Conversion,
    theirs: Conversion,
    below: Callable[[float, Setting], bool],
) -> None:
    """Prints one line of the table of conversions."""
    seconds, under = [], []
    for function in (ours, theirs):
        start = time.process_time()
        found = [function(*setting) for setting in settings]
        seconds.append((time.process_time() - start) / len(settings))
        with mpmath.workdps(60):
            under.append(sum(below(value, setting) for value, setting in zip(found, settings, strict=True)))
    print(
        f"{name:>26} {seconds[0] * 1e6:8.1f} {seconds[1] * 1e6:8.1f} {seconds[1] / seconds[0]:14.1f} "
        f"{under[0]:6d} {under[1]:6d}   of {len(settings)}",
        flush=True,
    )


def conversions(number: int) -> None:
    """Each conversion without its cache, at settings from one generator."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, ZCDpEvent, get_epsilon_gaussian
    from dp_accounting.rdp import RdpAccountant

    rng = np.random.default_rng(0)
    scales, deltas = 10.0 ** rng.uniform(-2, 1, number), 10.0 ** rng.uniform(-12, -3, number)
    pairs = [(float(scale), float(delta)) for scale, delta in zip(scales, deltas, strict=True)]
    orders = [*range(2, 65, 6), 128, 256]
    steps = [
        (float(10.0 ** rng.uniform(-4, -0.5)), float(10.0 ** rng.uniform(-0.2, 1)), order)
        for order, _ in zip(itertools.cycle(orders), range(number), strict=False)
    ]

    def of_rho(rho: float, delta: float) -> float:
        accountant = RdpAccountant()
        accountant.compose(ZCDpEvent(rho))
        return float(accountant.get_epsilon(delta))

    def of_step(rate: float, multiplier: float, order: int) -> float:
        accountant = RdpAccountant([order])
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)))
        return float(accountant._rdp[0])

    print(f"{'conversion':>26} {'ours us':>8} {'theirs':>8} {'theirs / ours':>14} {'below the exact value':>22}")
    compared(
        "Gaussian mu to epsilon",
        pairs,
        conversion.gaussian_epsilon.__wrapped__,
        lambda mu, delta: float(get_epsilon_gaussian(1.0 / mu, delta)),
        lambda epsilon, setting: exact_gaussian_delta(setting[0], epsilon) > setting[1],
    )
    compared(
        "zCDP rho to epsilon",
        pairs,
        conversion.zcdp_epsilon.__wrapped__,
        of_rho,
        lambda epsilon, setting: conversion.zcdp_delta(setting[0], epsilon) > setting[1] * (1.0 + 1e-9),
    )
    compared(
        "sampled step, one order",
        steps,
        renyi.sampled_rdp.__wrapped__,
        of_step,
        lambda rdp, setting: mpmath.mpf(rdp) < exact_step(setting[0], setting[1], int(setting[2])),
    )


def draws_of(draws: int) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--settings", type=int, default=500)
    asked = parser.parse_args()
    own = start_up("import fedsyn.privacy")
    print(f"{'import of':>26} {'CPU s':>8} {'times ours':>11} {'MB installed':>13}")
    print(f"{'fedsyn.privacy':>26} {own:8.2f} {1.0:11.1f}")
    for package, statement in (("dp-accounting", "import dp_accounting"), ("opendp", "import opendp.prelude")):
        taken = start_up(statement)
        print(f"{package:>26} {taken:8.2f} {taken / own:11.1f} {megabytes(package):13.1f}", flush=True)
    print()
    conversions(asked.settings)
    print()
    draws_of(asked.draws)


if __name__ == "__main__":
    main()
