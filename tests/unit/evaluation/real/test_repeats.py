"""Rows that repeat others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedsyn.evaluation.real.repeats import Repeats, repeats
from support.wrong_tables import POPULATIONS, WAYS, right_tables


@pytest.mark.parametrize("name", POPULATIONS)
def test_few_rows_many_times_are_lost_and_a_bootstrap_is_not(name: str) -> None:
    population, rng = POPULATIONS[name], np.random.default_rng(7)
    real = population.draw(3_000, rng)
    for what, table in right_tables(population, real, rng):
        assert repeats(real, table, rng).judged().state == "kept", what
    wrong, _ = WAYS["rows repeated"](population, population.draw(3_000, rng), rng)
    found = repeats(real, wrong, rng)
    assert found == Repeats(0.0, pytest.approx(0.95, abs=0.001), 3_000) and found.judged().state == "lost"
    assert found.judged().why == "95% of rows repeat others, 0% of real ones"


def test_repeats_are_those_beyond_as_many_real_rows() -> None:
    rng = np.random.default_rng(0)
    few = pd.DataFrame({"a": rng.integers(0, 4, 1_000), "b": rng.choice(["x", "y"], 1_000)})
    # Eight combinations: nearly all real rows repeat one, and so may a table's.
    assert repeats(few, few.sample(frac=1.0, random_state=1), rng) == Repeats(0.992, 0.992, 1_000)
    # Of a long table as many rows as real ones are counted.
    real = pd.DataFrame({"a": np.arange(100)})
    assert repeats(real, pd.DataFrame({"a": rng.integers(0, 1_000, 5_000)}), rng).synthetic < 0.1
    # A whole row repeats, not a cell.
    assert repeats(real, pd.DataFrame({"a": np.arange(50), "b": 1}), rng).synthetic == 0.0


def test_up_to_a_bootstrap_nothing_is_lost() -> None:
    # A sample with replacement of n from n repeats 1/e of its rows.
    assert Repeats(0.0, 0.4, 100).judged().state == "kept" and Repeats(0.1, 0.5, 100).judged().state == "kept"
    assert Repeats(0.0, 0.401, 100).judged().state == "changed" and Repeats(0.0, 0.8, 100).judged().state == "changed"
    assert Repeats(0.0, 0.801, 100).judged().state == "lost" and Repeats(0.9, 0.1, 100).judged().loss == 0.0
