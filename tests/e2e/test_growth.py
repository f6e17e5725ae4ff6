"""How the CPU time of a run grows: a slope that is too steep fails, a slow machine does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_growth.py"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("table", ["one factor", "independent"])
@pytest.mark.parametrize("axis", ["clients", "rows", "columns", "values", "values of one column", "rounds"])
def test_time_grows_no_faster_than_its_law(axis: str, table: str) -> None:
    """Three sizes over a factor of four, a process each; the law and its tolerance stand in the benchmark."""
    command = [sys.executable, str(BENCHMARK), "--check", "--sizes", "3", "--axes", axis, "--tables", table]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"| {axis} | {table} |" in done.stdout
