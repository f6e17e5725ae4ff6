"""Counting kernels on one core, against np.histogramdd and pandas groupby in the same run.

    FEDSYN_DATA=FOLDER python benchmarks/bench_marginals.py

The target is 64 random three-way marginals of 50,000 rows within 15 ms. The table is Adult with 32 bins where
FEDSYN_DATA holds it, else a skewed random table of the same domain. The results of all three are compared
cell by cell. Times are medians of CPU time on one thread, pinned to one core where the operating system
allows it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import pandas as pd

from fedsyn.domain import Domain
from fedsyn.errors import DataError
from fedsyn.table.counting.marginals import count, count_one_way, count_sparse_many
from fedsyn.table.counting.workload import downward_closure, random_kway
from fedsyn.table.data import load_dataset, write_encoded
from fedsyn.table.data.encoded import RowFiles

ROWS = 50_000
ADULT_32 = (32, 9, 32, 16, 16, 7, 15, 6, 5, 2, 32, 32, 32, 42, 2)


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """Median CPU time of a call in milliseconds, after one call to warm up.

    Everything here runs on one thread, so CPU time is the time on one core, whatever else the machine does.
    """
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)


def adult(name: str) -> tuple[np.ndarray, Domain, str]:
    """Codes of exactly 50,000 rows (the last ones repeat the first), their domain, and what they are."""
    try:
        dataset = load_dataset(name, bins=32)
    except DataError:
        rng = np.random.default_rng(0)
        codes = (rng.random((ROWS, len(ADULT_32))) ** 3 * np.array(ADULT_32)).astype(np.uint8, order="F")
        names = tuple(f"a{i}" for i in range(len(ADULT_32)))
        return codes, Domain(names, ADULT_32), "random table with Adult's domain"
    codes = dataset.encode()
    return np.asfortranarray(np.resize(codes, (ROWS, codes.shape[1]))), dataset.schema.domain, name


def by_histogramdd(codes: np.ndarray, domain: Domain, cliques: list[tuple[str, ...]]) -> list[np.ndarray]:
    results = []
    for clique in cliques:
        axes = list(domain.axes(clique))
        edges = [np.arange(n + 1) - 0.5 for n in domain.shape_of(clique)]
        results.append(np.histogramdd(codes[:, axes], bins=edges)[0])
    return results


def by_groupby(frame: pd.DataFrame, domain: Domain, cliques: list[tuple[str, ...]]) -> list[np.ndarray]:
    results = []
    for clique in cliques:
        sizes = frame.groupby(list(clique), sort=False).size()
        dense = np.zeros(domain.shape_of(clique), dtype=np.int64)
        dense[tuple(np.asarray(sizes.index.get_level_values(i)) for i in range(len(clique)))] = sizes.to_numpy()
        results.append(dense)
    return results


def compare(name: str, target_ms: float | None) -> None:
    """Times one table and prints the ratios."""
    codes, domain, what = adult(name)
    cliques = list(random_kway(domain, 3, 64, np.random.default_rng(0)).cliques)
    frame = pd.DataFrame({attribute: codes[:, i] for i, attribute in enumerate(domain.attributes)})
    ours = count(codes, domain, cliques)
    for other in (by_histogramdd(codes, domain, cliques), by_groupby(frame, domain, cliques)):
        assert all(np.array_equal(a, b) for a, b in zip(ours, other, strict=True))
    own = median_ms(lambda: count(codes, domain, cliques), 30)
    histogramdd = median_ms(lambda: by_histogramdd(codes, domain, cliques), 2)
    groupby = median_ms(lambda: by_groupby(frame, domain, cliques), 2)
    cells = sum(domain.size(clique) for clique in cliques)
    goal = "" if target_ms is None else f"  target {target_ms:g} ms: {'met' if own <= target_ms else 'MISSED'}"
    print(f"{what}: 64 three-way marginals of {ROWS:,} rows, {cells / 1e6:.1f} million cells")
    print(f"  fedsyn          {own:9.2f} ms{goal}")
    print(f"  np.histogramdd  {histogramdd:9.2f} ms  {histogramdd / own:6.1f} times as long")
    print(f"  pandas groupby  {groupby:9.2f} ms  {groupby / own:6.1f} times as long")
    closure = downward_closure(cliques, domain)
    candidates = median_ms(lambda: count(codes, domain, closure), 10)
    print(f"  fedsyn, all {len(closure)} candidates: {candidates:.2f} ms")


def clients() -> None:
    """Many small clients: one-way marginals, candidates in sparse form, and opening the shared table."""
    codes, domain, _ = adult("adult_flaim")
    partition = np.array_split(np.arange(ROWS), 5_000)
    cliques = downward_closure(random_kway(domain, 3, 64, np.random.default_rng(0)).cliques, domain)
    with tempfile.TemporaryDirectory() as folder:
        table = write_encoded(folder, codes, domain, partition, RowFiles())

        def one_way() -> None:
            for client in range(len(partition)):
                count_one_way(table.rows(client), domain)

        all_clients = median_ms(one_way, 3)
        rows = table.rows(7)
        sparse = median_ms(lambda: count_sparse_many(rows, domain, cliques), 50)
    print(f"5,000 clients of 10 rows open the shared table and count {len(domain)} one-way marginals:")
    print(f"  {all_clients:.0f} ms, {all_clients / 5:.1f} microseconds each")
    print(f"one of them counts {len(cliques)} candidates in sparse form: {sparse:.2f} ms")


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    compare("adult", target_ms=15)
    compare("adult_flaim", target_ms=None)
    clients()
