"""The cache folder: what is in it can be fetched or computed again (tables, embeddings, stores of simulations)."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$FEDSYN_CACHE`, or `fedsyn` in the user's cache folder."""
    if folder := os.environ.get("FEDSYN_CACHE"):
        return Path(folder).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedsyn"
