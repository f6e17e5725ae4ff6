"""Long tables: rows per second and core, peak memory, and how both grow, from Parquet to synthetic rows.

    python benchmarks/bench_long.py                     # 1, 2 and 5 million rows, every stage
    python benchmarks/bench_long.py --rows 20 --run     # whole runs only, of 20 million rows
    python benchmarks/bench_long.py --rows 1 --format parquet

The table has 15 columns: text of 2 to 200 values, integers, floats, one in seven cells of three columns missing. Every
stage runs in a process of its own, so that its peak memory is its own; times are CPU seconds of that process, all its
threads together. Named alternatives of the same run, on the same file:

    encode   `pandas.read_parquet` and `Schema.encode`: the whole table as a DataFrame
    count    64 three-way marginals of that whole table by `count`, reading included on both sides
    write    `Schema.decode` of `Model.sample` and `DataFrame.to_csv` (or `to_parquet`), one batch, whole

`run` is `fedsyn.runs.engines.run` of augflaim, one round, 100 clients: what a user starts. Everything is written below
`--folder`: about 22 bytes a row for the table, 30 for its codes, 145 for a synthetic CSV file, 47 for Parquet.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute  # before the clock starts
import pyarrow.parquet as pq

from benchmarks.inference_suite.cells import LAUNCHER
from fedsyn.inference import Model
from fedsyn.loading import parse_config
from fedsyn.randomness import Randomness
from fedsyn.runs.engines import run
from fedsyn.runs.synthesis import write_synthetic
from fedsyn.table.counting.marginals import count, count_blocks
from fedsyn.table.counting.workload import random_kway
from fedsyn.table.data import encoded_blocks
from fedsyn.table.data.encoded import RowSpool
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema

ROW_GROUP = 1_000_000
STAGES = ("encode", "count", "write")


def schema() -> Schema:
    """Seven categorical columns, four of integers, four of floats."""
    columns: dict[str, CategoricalColumn | NumericColumn] = {
        f"text{size}": CategoricalColumn(
            categories=tuple(f"value {i}" for i in range(size)), other=False, missing=size == 50
        )
        for size in (2, 5, 9, 20, 50, 200)
    }
    columns["flag"] = CategoricalColumn(categories=(False, True))
    for i, upper in enumerate((9, 99, 999, 100_000)):
        columns[f"whole{i}"] = NumericColumn(lower=0, upper=upper, bins=32, dtype="integer", missing=i == 1)
    for i, upper in enumerate((1.0, 100.0, 1e4, 1e6)):
        columns[f"float{i}"] = NumericColumn(lower=0, upper=upper, bins=32, missing=i == 2)
    return Schema(columns=columns, label="flag")


def make(path: Path, rows: int) -> None:
    """Writes the table: every column follows one hidden number, more or less closely."""
    described = schema()
    writer = None
    for start in range(0, rows, ROW_GROUP):
        rng = np.random.default_rng([20_000_000, start])
        size = min(ROW_GROUP, rows - start)
        hidden = rng.random(size)
        arrays = {}
        for name, column in described.columns.items():
            place = np.clip(hidden + rng.normal(0, 0.3, size), 0, 1 - 1e-9)
            absent = rng.random(size) < 1 / 7 if column.missing else None
            if isinstance(column, NumericColumn):
                values = np.round(place * column.upper, 2) if column.dtype == "float" else place * (column.upper + 1)
                arrays[name] = pa.array(values if column.dtype == "float" else values.astype(np.int64), mask=absent)
                continue
            index = (place * len(column.values)).astype(np.int32)
            values = pa.array(list(column.values))
            arrays[name] = values.take(pa.array(index, mask=absent))
        table = pa.table(arrays)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=ROW_GROUP)
    assert writer is not None
    writer.close()


# Stages, each in a process of its own ---------------------------------------------------------------------------------


def encode_ours(folder: Path, rows: int, kind: str) -> int:
    described = schema()
    spool = RowSpool(len(described.columns), described.dtype)
    for block in encoded_blocks(folder / "table.parquet", described):
        spool.append(block.codes)
    return int(spool.rows()[:, :3].sum(dtype=np.int64))


def encode_whole(folder: Path, rows: int, kind: str) -> int:
    return int(schema().encode(pd.read_parquet(folder / "table.parquet"))[:, :3].sum(dtype=np.int64))


def workload() -> list[tuple[str, ...]]:
    return list(random_kway(schema().domain, 3, 64, np.random.default_rng(0)).cliques)


def count_ours(folder: Path, rows: int, kind: str) -> int:
    described = schema()
    blocks = (block.codes for block in encoded_blocks(folder / "table.parquet", described))
    return _digest(count_blocks(blocks, described.domain, workload()))


def count_whole(folder: Path, rows: int, kind: str) -> int:
    described = schema()
    return _digest(count(described.encode(pd.read_parquet(folder / "table.parquet")), described.domain, workload()))


def _digest(marginals: list[np.ndarray]) -> int:
    return int(sum((m.ravel() * np.arange(1, m.size + 1)).sum() for m in marginals))


def model() -> Model:
    """A chain of fifteen attributes with random potentials."""
    domain, rng = schema().domain, np.random.default_rng(0)
    pairs = list(zip(domain.attributes[:-1], domain.attributes[1:], strict=True))
    return Model(domain, {pair: rng.normal(size=domain.shape_of(pair)) for pair in pairs}, 1000.0)


def write_ours(folder: Path, rows: int, kind: str) -> int:
    path = folder / f"ours.{kind}"
    write_synthetic(path, schema(), model(), rows, Randomness(0), keep=True)
    return path.stat().st_size


def write_whole(folder: Path, rows: int, kind: str) -> int:
    rng = np.random.default_rng(0)
    path = folder / f"whole.{kind}"
    frame = schema().decode(model().sample(rows, rng), rng)
    if kind == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    return path.stat().st_size


def run_ours(folder: Path, rows: int, kind: str) -> int:
    schema().save(folder / "schema.yaml")
    config = {
        "mechanism": {"name": "augflaim", "rounds": 1},
        "data": {"source": str(folder / "table.parquet"), "schema": str(folder / "schema.yaml")},
        "federation": {"clients": 100},
        "privacy": {"epsilon": 1.0, "delta": 1e-9},
        "aggregation": {"protocol": "plain", "noise": "server"},
        "synthesis": {"format": kind},
        "runtime": {"seed": 0},
    }
    run(parse_config(config, "bench_long"), folder / "out")
    return (folder / "out" / f"synthetic.{kind}").stat().st_size


WORK: dict[str, Callable[[Path, int, str], int]] = {
    "encode": encode_ours,
    "encode, whole frame": encode_whole,
    "count": count_ours,
    "count, whole frame": count_whole,
    "write": write_ours,
    "write, whole frame": write_whole,
    "run": run_ours,
}


def child(name: str, folder: Path, rows: int, kind: str) -> None:
    """Runs one stage and prints what it cost. Imports are over when the clock starts; their memory counts."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    result = WORK[name](folder, rows, kind)
    usage = {"wall": time.perf_counter() - wall, "cpu": cpu_seconds() - cpu, "peak_mb": peak_mb(), "result": result}
    print(json.dumps(usage))


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def peak_mb() -> float:
    """Memory of this process, and of the largest of its children beside it."""
    return sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


# What is printed ------------------------------------------------------------------------------------------------------


def measure(name: str, folder: Path, rows: int, kind: str) -> dict[str, float]:
    command = [*LAUNCHER, sys.executable, __file__, "--child", name, "--folder", str(folder), "--rows", str(rows / 1e6)]
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run([*command, "--format", kind], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


HEAD = "rows a second and core | peak MB | whole frame | peak MB"
#: What the page calls the stages.
TITLES = {"encode": "read and encode", "count": "count a workload from row groups", "write": "sample, decode, write {}"}


def show(name: str, rows: int, kind: str, found: dict[str, float], whole: dict[str, float] | None) -> None:
    """Prints a row of the page's table; `whole` is what the same work on a whole DataFrame cost."""
    line = f"| {TITLES.get(name, name).format(kind)} | {found['cpu']:.2f} | {rows / found['cpu'] / 1e6:.2f} M"
    other = f"{whole['cpu']:.2f} | {whole['peak_mb']:.0f}" if whole is not None else "- | -"
    print(f"{line} | {found['peak_mb']:.0f} | {other} |", flush=True)


def slope(sizes: list[int], values: list[float]) -> float:
    """Exponent of the growth: 1 is linear."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,2,5", help="millions, separated by commas")
    parser.add_argument("--format", choices=("csv", "parquet"), default="csv")
    parser.add_argument("--run", action="store_true", help="whole runs and nothing else")
    parser.add_argument("--ours", action="store_true", help="without the alternatives, which need memory")
    parser.add_argument("--most", type=float, help="fail if the CPU seconds of a stage grow as a higher power of rows")
    parser.add_argument("--folder", help="where to write; a temporary folder unless given")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = [round(float(size) * 1e6) for size in given.rows.split(",")]
    if given.child:
        child(given.child, Path(given.folder), sizes[0], given.format)
        return
    names = ["run"] if given.run else list(STAGES)
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for rows in sizes:
        folder = Path(tempfile.mkdtemp(prefix="bench-long-", dir=given.folder))
        try:
            make(folder / "table.parquet", rows)
            print(f"\n| stage, {rows / 1e6:g} million rows | CPU s | {HEAD} |")
            print("|---|---|---|---|---|---|", flush=True)
            for name in names:
                costs[name].append(found := measure(name, folder, rows, given.format))
                whole = None
                if name != "run" and not given.ours:
                    whole = measure(f"{name}, whole frame", folder, rows, given.format)
                    assert name == "write" or found["result"] == whole["result"], f"{name} has another result"
                show(name, rows, given.format.upper(), found, whole)
        finally:
            shutil.rmtree(folder)
    if len(sizes) > 1:
        for name in names:
            cpu = slope(sizes, [cost["cpu"] for cost in costs[name]])
            first, last = costs[name][0]["peak_mb"], costs[name][-1]["peak_mb"]
            per_million = (last - first) / (sizes[-1] - sizes[0]) * 1e6
            print(f"{name:24s} CPU grows as rows^{cpu:.2f}, the peak by {per_million:.0f} MB a million rows")
            if given.most is not None and cpu > given.most:
                sys.exit(f"{name}: {cpu:.2f} is above {given.most}")


if __name__ == "__main__":
    main()
