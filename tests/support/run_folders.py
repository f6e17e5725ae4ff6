"""Run folders: their lines, and whether two hold the same result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def read_lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def without_times(out: Path) -> tuple[dict, list[dict], list[dict]]:
    """Metrics, released facts and costs of each round, but for times and sizes of memory."""
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    for name in ("seconds", "peak_mb"):
        assert metrics.pop(name) > 0
    measured = read_lines(out / "measured.jsonl")
    for costs in measured:
        assert costs.pop("seconds")
    return metrics, read_lines(out / "rounds.jsonl"), measured


def assert_same_result(out: Path, expected: Path) -> None:
    """Bit for bit: table, model, ledger, every metric that is not a time or a size of memory, every round."""
    for name in ("synthetic.csv", "ledger.json", "rounds.jsonl"):
        assert (out / name).read_bytes() == (expected / name).read_bytes(), name
    with np.load(out / "model.npz") as ours, np.load(expected / "model.npz") as theirs:
        assert sorted(ours.files) == sorted(theirs.files)
        for name in ours.files:
            assert ours[name].dtype == theirs[name].dtype and ours[name].shape == theirs[name].shape, name
            assert ours[name].tobytes() == theirs[name].tobytes(), name
    assert without_times(out) == without_times(expected)
