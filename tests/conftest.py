"""Fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


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
