"""Other libraries beside this project: each finds what a large budget shows, and an absent one says so."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_peers
from benchmarks.inference_suite import tables
from benchmarks.inference_suite.cells import run_cell
from benchmarks.peers.peer_cell import PEERS, workload_error
from fedsyn.domain import Domain
from fedsyn.privacy import PrivacyBudget

DOMAIN = Domain(("a", "b", "c"), (2, 3, 4))


def codes(n: int = 400) -> np.ndarray:
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, DOMAIN.shape, (n, 3))
    drawn[:, 1] = np.where(rng.random(n) < 0.8, drawn[:, 0], drawn[:, 1])
    return drawn


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_with_a_large_budget_finds_the_workload(peer: str, tmp_path: Path) -> None:
    tables.write_table(tmp_path / "table.npz", tables.Table(codes(), DOMAIN), [("a", "b", "c")])
    settings = {"peer": peer, "epsilon": 500.0, "delta": 1e-5, "rho": PrivacyBudget(500.0, 1e-5).rho, "rounds": 6}
    checkout = os.environ.get("PRIVATE_PGM", "")
    settings |= {"megabytes": 8.0, "seed": 0, "draw": "sample", "private_pgm": checkout}
    pythons = dict(one.split("=", 1) for one in os.environ.get("PEER_PYTHONS", "").split())
    python = pythons.get(peer.split()[0], sys.executable)
    words, paths = [str(tmp_path / "table.npz"), json.dumps(settings)], bench_peers.checkout_paths(peer, checkout)
    cell = run_cell(str(bench_peers._CELL), words, python=python, paths=paths)
    if cell.get("failed", "").startswith("not installed"):
        pytest.skip(f"{peer}: {cell['failed']}")
    # A copula of normals draws categories from ranks, and a tree of pairs holds the one link that there is.
    assert cell["error"] < (1.0 if PEERS[peer].not_private else 0.2)
    assert 0.0 < cell["cpu"] <= cell["whole"] and cell["peak_mb"] > 50


def test_the_error_is_that_of_the_workload() -> None:
    head = {"attributes": ["a", "b", "c"], "shape": DOMAIN.shape, "workload": [["a", "b"], ["c"]]}
    real = np.array([[0, 0, 0], [1, 2, 3]])
    assert workload_error(head, real, real[[0, 1, 1, 0]]) == 0.0
    assert workload_error(head, real, np.array([[1, 1, 3], [1, 1, 0]])) == pytest.approx((2.0 + 0.0) / 2)


def test_a_library_that_is_not_there_says_so_in_its_row() -> None:
    assert bench_peers.row("dpmm MST", {"dpmm MST": {"failed": "not installed: dpmm"}}) == (
        "| dpmm MST: not installed: dpmm | - | - | - | - | - | - |"
    )


def test_times_are_those_of_the_mechanism_of_that_name_and_the_least_is_named() -> None:
    figures = {"cpu": 2.0, "whole": 4.0, "peak_mb": 300.0, "error": 0.5}
    found = {
        "fedsyn sketch_aim": figures,
        "fedsyn mst": {**figures, "cpu": 1.0, "error": 0.6},
        "opendp MST": {**figures, "cpu": 3.0, "error": 0.4},
        "dpmm MST": {"failed": "not installed: dpmm"},
        "sdv GaussianCopula": dict.fromkeys(figures, 0.1),
    }
    assert bench_peers.row("opendp MST", found) == "| opendp MST | 3.00 | 3.0 | 4.0 | 1.0 | 300 | 0.400 |"
    assert bench_peers.row("sdv GaussianCopula", found).startswith("| sdv GaussianCopula | 0.10 | 0.1 | 0.1 | 0.0 |")
    assert bench_peers.least(found) == (
        "Least: work fedsyn mst, process fedsyn sketch_aim, memory fedsyn sketch_aim, error opendp MST"
    )
