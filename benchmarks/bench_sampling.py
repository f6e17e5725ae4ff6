"""Synthetic rows from a fitted model: the order in which rows are dealt, whole samples, and rows that meet conditions.

    python benchmarks/bench_sampling.py [--rows 50000 1000000] [--profile]

`np.lexsort` is what the dealing used before; both give the same order, which is checked, and so the same rows. The
model is random, over 15 attributes of 2 to 42 values. CPU seconds of this process; the least of three calls.
A sample of rows that meet conditions draws no others: its named alternative is as many rows without a condition, and
beside it stands the share of rows that meet it, which is what rejection would keep.
`--profile` prints cProfile's tables of one sample of the largest number of rows, with the plain sort and without.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Callable
from unittest.mock import patch

import numpy as np

from fedsyn.domain import Domain
from fedsyn.front.conditions import restrict
from fedsyn.inference import Model, sampling
from fedsyn.table.schema import NumericColumn, Schema

#: What rows must meet: columns of the model below, a value or a range of each.
CONDITIONS: dict[str, dict[str, object]] = {
    "none": {},
    "one column": {"a0": 0},
    "the tail of a column": {"a2": (15, 15)},
    "three columns": {"a0": 1, "a4": 0, "a7": (0, 4)},
    "eight columns": {f"a{i}": (0, 3) for i in range(1, 15, 2)} | {"a0": 1},
}
_GROUPS = (1, 30, 3_000, 60_000, 400_000)


def seconds(job: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        job()
        best = min(best, time.process_time() - start)
    return best


def plain(group: np.ndarray, shuffle: np.ndarray, groups: int) -> np.ndarray:
    return np.lexsort((shuffle, group))


def orders(rows: int) -> None:
    rng = np.random.default_rng(0)
    for groups in _GROUPS:
        group, shuffle = rng.integers(0, groups, rows), rng.random(rows)
        assert (sampling.shuffled_order(group, shuffle, groups) == plain(group, shuffle, groups)).all()
        ours = seconds(lambda g=group, s=shuffle, n=groups: sampling.shuffled_order(g, s, n))
        theirs = seconds(lambda g=group, s=shuffle, n=groups: plain(g, s, n))
        print(f"  order of {rows:9d} rows in {groups:7d} groups  {theirs:8.4f} {ours:8.4f} {theirs / ours:6.1f}")


def random_model() -> Model:
    """A chain of triples."""
    sizes = (2, 7, 16, 32, 2, 5, 42, 9, 32, 6, 15, 16, 32, 2, 7)
    domain = Domain(tuple(f"a{i}" for i in range(len(sizes))), sizes)
    rng = np.random.default_rng(0)
    triples = [domain.attributes[i : i + 3] for i in range(0, len(sizes) - 2)]
    return Model(domain, {q: rng.standard_normal(domain.shape_of(q)) for q in triples}, 1000.0)


def conditional(model: Model, rows: int) -> None:
    columns = {
        name: NumericColumn(lower=0, upper=size, bins=size, dtype="integer")
        for name, size in zip(model.domain.attributes, model.domain.shape, strict=True)
    }
    print("\n| condition | us a row | times none | share of rows that meet it |")
    print("|---|---|---|---|")
    none = None
    for name, where in CONDITIONS.items():
        _, restricted = restrict(Schema(columns=columns), model, where)
        spent = seconds(lambda m=restricted: m.sample(rows, np.random.default_rng(1)))
        none = none or spent
        print(f"| {name} | {spent / rows * 1e6:.2f} | {spent / none:.2f} | {restricted.total / model.total:.2g} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 1_000_000])
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    print("                                                    lexsort     ours  times (CPU s)")
    model = random_model()
    model.sample(10, np.random.default_rng(0))
    for rows in arguments.rows:
        orders(rows)
        job = lambda n=rows: model.sample(n, np.random.default_rng(1))  # noqa: E731
        made, ours = job(), seconds(job)
        with patch.object(sampling, "shuffled_order", plain):
            assert (job() == made).all()
            theirs = seconds(job)
        print(f"  sample of {rows:9d} rows, 15 columns            {theirs:8.4f} {ours:8.4f} {theirs / ours:6.1f}")
    conditional(model, min(100_000, max(arguments.rows)))
    if arguments.profile:
        for name, order in (("np.lexsort", plain), ("shuffled_order", sampling.shuffled_order)):
            print(f"\ncProfile, {max(arguments.rows)} rows, {name}")
            with patch.object(sampling, "shuffled_order", order), cProfile.Profile() as profile:
                model.sample(max(arguments.rows), np.random.default_rng(1))
            pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(8)
    return 0


if __name__ == "__main__":
    sys.exit(main())
