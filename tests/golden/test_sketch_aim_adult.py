"""sketch_aim against central AIM, with the better penalty and as many rounds, on Adult: mean of three seeds.

Ten even clients stand for every partition: with everybody in every sum, the result does not depend on how the rows are
spread (tests/unit/strategies/test_sketch_aim.py). The margin is four standard deviations of such a mean (0.003 for one
run).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsyn.loading import load_config
from fedsyn.runs.engines import run

CONFIG = Path(__file__).parents[2] / "configs" / "sketch_aim.yaml"
SEEDS = (0, 1, 2)
#: Ended over `fhe` in mid-run before residuals had bounds of their own.
WHOLE = ("data.source=adult_flaim", "federation.clients=50", "federation.partition=iid")


@pytest.fixture(autouse=True)
def _data(fedsyn_data: Path) -> None:
    """Skips without the benchmark tables."""


def mean_of_seeds(folder: Path, *assignments: str) -> tuple[float, float]:
    """Mean workload error and nll over the seeds."""
    simple = ("aggregation.protocol=plain", "aggregation.noise=server", "federation.clients=10")
    runs = [
        run(
            load_config(CONFIG, [*simple, "federation.partition=iid", *assignments, f"runtime.seed={seed}"]),
            folder / str(seed),
        )
        for seed in SEEDS
    ]
    return tuple(sum(metrics[name] for metrics in runs) / len(SEEDS) for name in ("workload_error", "nll"))


@pytest.mark.slow
def test_as_good_as_central_aim_with_the_better_penalty(tmp_path: Path) -> None:
    error, nll = mean_of_seeds(tmp_path / "ours")
    yardstick = mean_of_seeds(tmp_path / "aim", "mechanism.name=aim", "mechanism.penalty=effective")
    cells = mean_of_seeds(tmp_path / "cells", "mechanism.name=aim", "mechanism.penalty=cells")
    assert yardstick[0] < cells[0] - 0.005, "the effective penalty is the better one on this table"
    assert error <= 1.0 * yardstick[0]
    assert error <= 0.160 and nll <= 19.3


@pytest.mark.slow
def test_a_choice_is_worth_its_budget(tmp_path: Path) -> None:
    """Without room for any pair the mechanism measures one-way marginals only."""
    error, _ = mean_of_seeds(tmp_path / "ours")
    alone, _ = mean_of_seeds(tmp_path / "alone", "inference.max_cells=1")
    assert error < 0.6 * alone


@pytest.mark.slow
def test_every_row_of_adult_fits_into_a_private_sum(tmp_path: Path) -> None:
    """48,842 rows of 50 holders, to the table: what is summed is bounded by the rows, and so are residuals.

    Both protocols compute the same sums with the same noise, so the tables are equal; 0.1501 was measured.
    """
    errors = {
        protocol: run(load_config(CONFIG, [*WHOLE, f"aggregation.protocol={protocol}"]), tmp_path / protocol)[
            "workload_error"
        ]
        for protocol in ("fhe", "secagg")
    }
    assert errors["fhe"] == errors["secagg"] < 0.16
