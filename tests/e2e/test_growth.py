"""How the CPU time and the memory of a run grow: a slope that is too steep fails, a slow machine does not."""

from __future__ import annotations

import subprocess
import sys
from math import comb
from pathlib import Path

import pytest

from benchmarks.bench_growth import AXES, BASE, measured

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_growth.py"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("table", ["one factor", "independent"])
@pytest.mark.parametrize("axis", AXES)
def test_time_and_memory_grow_no_faster_than_their_law(axis: str, table: str) -> None:
    """Three sizes over a factor of four, a process each; the law and its tolerance stand in the benchmark."""
    command = [sys.executable, str(BENCHMARK), "--check", "--sizes", "3", "--axes", axis, "--tables", table]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"| {axis} | {table} |" in done.stdout


@pytest.mark.parametrize(("values", "columns"), [(64, (10, 15)), (100, (10, 20))])
def test_a_further_cell_of_the_workload_takes_no_memory(values: int, columns: tuple[int, int]) -> None:
    """One array over all cells of the workload takes 8 bytes for each; of 100 values no triple is a candidate."""
    sizes = [{**BASE, "clients": 2, "rounds": 2, "values": values, "columns": n} for n in columns]
    less, more = (measured("sketch_aim", "plain", size, 0.5)[1] * 2**20 for size in sizes)
    fewer, further = (min(comb(n, 3), 1_000) * values**3 for n in columns)
    assert more - less < 1.0 * (further - fewer), (less, more)
