"""What a comparison concludes from its scores: what matters most, what to do next, what is judged at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedsyn.evaluation.real.comparison import TableComparison, compare_tables
from fedsyn.evaluation.real.pairs import PairScore
from fedsyn.evaluation.real.prediction import Prediction
from fedsyn.evaluation.scores import correlations
from fedsyn.evaluation.verdict import foremost


def compared(real: pd.DataFrame, made: pd.DataFrame, **options: object) -> TableComparison:
    return compare_tables(real, made, rng=np.random.default_rng(0), **options)  # type: ignore[arg-type]


def linked(rows: int, columns: int, seed: int = 0) -> pd.DataFrame:
    """Columns of three values that follow one factor."""
    rng = np.random.default_rng(seed)
    factor = rng.integers(0, 3, (rows, 1))
    codes = np.where(rng.random((rows, columns)) < 0.7, factor, rng.integers(0, 3, (rows, columns)))
    return pd.DataFrame(np.array(["low", "mid", "top"])[codes], columns=[f"c{i}" for i in range(columns)])


def pair(first: str, second: str, association: float, kept: float = 1.0) -> PairScore:
    facts = {"score": 0.9, "association": association, "association_synthetic": association, "error": 0.0}
    return PairScore(first=first, second=second, kept=kept, linked=True, **facts)  # type: ignore[arg-type]


def test_foremost_are_the_strongest_link_and_the_label_s_of_half_of_its_strongest() -> None:
    pairs = [("c", "y"), ("a", "b"), ("b", "y"), ("y", "a")]
    assert foremost(pairs, [0.1999, 0.9, 0.2001, 0.4], "y") == [1, 2, 3]
    assert foremost(pairs[::2], [0.1999, 0.2001], None) == [1] and foremost([], [], "y") == []


@pytest.mark.parametrize(
    ("rows", "codes", "cells"),
    [(2_000, (10, 11), 110), (2_000, (9, 11), None), (1_000, (6, 11), 66), (1_000, (7, 9), None)],
)
def test_fewer_bins_help_where_a_lost_pair_has_a_cell_for_twenty_rows(
    rows: int, codes: tuple[int, int], cells: int | None
) -> None:
    """And more than 64 of them."""
    frame = linked(200, 2)
    found = replace(compared(frame, frame), real_rows=rows, pairs=(pair("c0", "c1", 0.5, kept=0.1),))
    found = replace(found, columns=tuple(replace(c, codes=n) for c, n in zip(found.columns, codes, strict=True)))
    few = f"use fewer bins. A lost pair has {cells} cells for {rows:,} rows (median)"
    assert found.remedy() == ("raise epsilon or bring more rows" if cells is None else few)


def test_limits_of_the_model_are_named_before_bins_and_epsilon() -> None:
    frame = linked(200, 2)
    found = replace(compared(frame, frame), pairs=(pair("c0", "c1", 0.5, kept=0.1),))
    assert found.remedy() == "raise epsilon or bring more rows"
    assert replace(found, limits="use fewer bins for c0").remedy() == "use fewer bins for c0"


def test_nothing_is_to_be_done_where_all_is_kept() -> None:
    frame = linked(400, 3)
    found = compared(frame, frame)
    assert found.remedy() == "" and found.verdict().sentences()[-1].startswith("Not known: training")


def test_twenty_linked_pairs_are_drawn() -> None:
    frame = linked(600, 8)
    found = compared(frame, frame)
    assert sum(each.linked for each in found.pairs) == 28
    assert [each.table is not None for each in found.pairs] == [True] * 20 + [False] * 8


def test_rows_that_a_lost_column_made_equal_repeat_no_row() -> None:
    rng = np.random.default_rng(1)
    real = pd.DataFrame({"id": np.arange(500) + 0.5, "b": rng.choice(["x", "y"], 500)})
    found = compared(real, real.assign(id=7.0))
    assert {column.name: column.judged().state for column in found.columns} == {"id": "lost", "b": "kept"}
    assert found.repeats.judged().loss == 0.0 and found.repeats.real > 0.9


def test_a_correlation_may_be_off_by_the_error_of_both_tables() -> None:
    real, made = (
        pd.DataFrame(
            np.random.default_rng(seed).multivariate_normal([0, 0], [[1, r], [r, 1]], rows), columns=["a", "b"]
        )
        for seed, r, rows in ((1, 0.6, 900), (2, 0.4, 400))
    )
    (found,) = compared(real, made).pairs
    (was, first), (now, second) = (
        (float(r[0, 1]), float(error[0, 1]))
        for r, error in (correlations([t["a"].to_numpy(), t["b"].to_numpy()]) for t in (real, made))
    )
    assert found.correlation is not None
    assert found.correlation.kept == pytest.approx(now / was + np.hypot(first, second) / was, abs=1e-4)


def test_training_is_judged_where_real_rows_teach_the_label() -> None:
    told = Prediction("c0", "AUC", 0.80, 0.78, 0.5, held_out=True, rows=100)
    frame = linked(200, 2)
    found = replace(compared(frame, frame), prediction=told)
    assert found.verdict().training == (
        pytest.approx(told.kept),
        "a model that learned c0 from it predicts nearly as well as one from real rows",
    )
    by_chance = replace(found, prediction=replace(told, real=0.55, chance=0.1)).verdict()
    assert by_chance.training is None and by_chance.why == "100 real rows do not show that c0 can be predicted"
    for real, synthetic, words in ((0.8, 0.66, "worse"), (0.8, 0.64, "little"), (0.8, 0.52, "nothing")):
        assert words in replace(told, real=real, synthetic=synthetic).words()
    # From a fiftieth on.
    assert [replace(told, real=real).can_judge for real in (0.519, 0.521)] == [False, True]
    error = Prediction("c0", "RMSE", 9.9, 9.7, 10.0, held_out=True, rows=100)
    assert error.can_judge and not replace(error, real=9.81).can_judge and error.kept == pytest.approx(1 / 3)


def test_two_cells_of_a_picture_have_two_names() -> None:
    """Zero, and what is above it: not the number next to zero."""
    rng = np.random.default_rng(0)
    cost = np.where(rng.random(3000) < 0.8, 0.0, rng.gamma(1.0, 400.0, 3000))
    frame = pd.DataFrame({"cost": cost.round(2), "c": rng.integers(0, 3, 3000).astype(str)})
    labels = next(one for one in compared(frame, frame).columns if one.name == "cost").labels
    assert labels[:2] == ("0", "above 0") and len(set(labels)) == len(labels)
