"""How the CPU time and the memory of a run grow: a slope that is too steep fails, a slow machine does not."""

from __future__ import annotations

import subprocess
import sys
from math import comb
from pathlib import Path

import pytest

from benchmarks.bench_growth import AXES, BASE, measured
from fedsyn.settings import CELLS_AT_ONCE

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


@pytest.mark.parametrize("at_once", [2**20, CELLS_AT_ONCE])
def test_memory_steps_up_to_what_is_formed_at_once_and_no_further(at_once: int) -> None:
    """Of 32 values 12 columns have 7.2 million cells in their triples, and 20 columns 32.8 million.

    What is formed at once takes 8 bytes a cell. Codes, sketches and plans of 8 further columns may take a quarter of
    what all further cells would.
    """
    sizes = [{**BASE, "rows": 5_000, "clients": 2, "rounds": 2, "values": 32, "columns": n} for n in (12, 20)]
    node = {"max_cells_at_once": at_once}
    less, more = (measured("sketch_aim", "plain", size, 0.5, inference=node)[1] * 2**20 for size in sizes)
    fewer, further = (min(comb(n, 3), 1_000) * 32**3 for n in (12, 20))
    step = 8 * (min(further, at_once) - min(fewer, at_once))
    assert more - less < step + 0.25 * 8 * (further - fewer), (less, more)
