"""The benchmark of growth in miniature: its table is that of the page, and a child's memory is its own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_growth

PAGE = Path(bench_growth.__file__).with_name("README.md")


@pytest.mark.slow
def test_a_run_takes_memory_however_much_the_parent_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A child that begins with its parent's peak shows nothing of its own."""
    tiny = {"rows": 200, "columns": 3, "values": 2, "clients": 2, "rounds": 1}
    monkeypatch.setattr(bench_growth, "BASE", tiny)
    monkeypatch.setattr(bench_growth, "AXES", {"rounds": bench_growth.Axis((1, 2), 9.0, "a miniature", 9.0)})
    monkeypatch.setattr(sys, "argv", ["bench_growth.py", "--tables", "independent", "--check"])
    ballast = np.ones(1 << 26)
    bench_growth.main()
    assert ballast.all()
    header, _, row = (line for line in capsys.readouterr().out.splitlines() if line.startswith("|"))
    assert header in PAGE.read_text(encoding="utf-8").splitlines()
    grown = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    assert grown["sizes"] == "1, 2"
    assert all(float(megabytes) > 1.0 for megabytes in grown["memory, MB"].split(", "))
