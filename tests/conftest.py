"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedsyn.inference import Measurement
from fedsyn.protocol.strategy import MechanismStrategy


@pytest.fixture(scope="session")
def fedsyn_data() -> Path:
    """The folder of benchmark tables that FEDSYN_DATA names; skips where it is absent."""
    folder = os.environ.get("FEDSYN_DATA")
    if not folder:
        pytest.skip("FEDSYN_DATA is not set: it names the folder of the benchmark tables")
    path = Path(folder)
    if not (path / "adult_flaim.csv.gz").is_file():
        pytest.skip(f"FEDSYN_DATA={folder} does not hold the benchmark tables (adult_flaim.csv.gz)")
    return path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[MechanismStrategy], list[Measurement]]:
    """`measured(strategy)`: what the strategy gave to its last fit. Only watches: the fit is the real one."""
    fit, given = MechanismStrategy.estimate, {}

    def estimate(self: MechanismStrategy, measurements: Sequence[Measurement], last: bool = False) -> None:
        given[id(self)] = list(measurements)
        fit(self, measurements, last)

    monkeypatch.setattr(MechanismStrategy, "estimate", estimate)
    return lambda strategy: given.get(id(strategy), [])
