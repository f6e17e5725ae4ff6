"""What a result shows: digits, what no interval knows, and rows that are left out, each threshold from both sides."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.evaluation.analysis import combine
from fedsyn.evaluation.analysis.result import Analysis, _digits, _number
from fedsyn.evaluation.analysis.tables import SyntheticTables
from fedsyn.evaluation.analysis.whole import _of_few, _of_tables


@pytest.fixture(autouse=True, scope="module")
def statsmodels() -> None:
    pytest.importorskip("statsmodels.api")


@pytest.mark.parametrize(("width", "shown"), [(120.0, "3"), (12.0, "3.1"), (0.5, "3.142"), (0.0002, "3.141593")])
def test_a_number_has_two_or_three_digits_of_its_interval(width: float, shown: str) -> None:
    assert _number(3.14159265, _digits(width)) == shown


def test_a_number_of_more_than_six_digits_has_a_power_of_ten() -> None:
    assert _number(3.14159265e-5, _digits(2e-5)) == "3.14e-05" and _digits(0.0) == _digits(np.inf) == 3


def test_a_term_that_was_not_measured_is_marked() -> None:
    combined = combine([[1.0, 2.0], [1.1, 2.2], [0.9, 2.1]], [[0.01, 0.01]] * 3)
    found = Analysis("a regression", ("x", "z"), combined, 0.9, frozenset({"z"}))
    (_, *ends), first, second = found._rows()
    assert ends[1:3] == ["honest 90%", "naive 90%"] and first[-1] == "yes"
    assert second[0] == "z *" and second[-1] == "no"


def tables(rare: int, rows: int = 1_000) -> list[pd.DataFrame]:
    """Two tables; so many rows of the second have a word that is frequent in the first."""
    frames = []
    for seed, few in enumerate((50, rare)):
        rng = np.random.default_rng(seed)
        word = np.where(np.arange(rows) < few, "rare", rng.choice(["a", "b"], rows))
        frames.append(pd.DataFrame({"y": rng.normal(size=rows), "word": word}))
    return frames


@pytest.mark.parametrize(("rare", "terms"), [(9, 2), (10, 3)])
def test_a_value_of_fewer_than_ten_rows_of_a_table_is_left_out(rare: int, terms: int) -> None:
    found = fedsyn.analyse(tables(rare), "y ~ word")
    said = [note for note in found.warnings if "left out" in note]
    assert len(found.terms) == terms and len(said) == (terms == 2)
    if said:
        assert said[0].startswith("Rows whose word is 'rare' are left out, up to 5") and "fewer than ten" in said[0]


def test_more_than_a_tenth_of_a_table_is_left_out_by_nobody() -> None:
    """5% of 1,000 rows and 50 of 450."""
    assert not [note for note in fedsyn.analyse(tables(5, rows=450), "y ~ word").warnings if "left out" in note]


def test_one_wide_interval_of_two_is_enough_for_a_warning() -> None:
    """Of two terms one differs between tables hardly more than the rows of one explain; a t of 11 is 12% wider."""
    estimates = np.linspace(-1.0, 1.0, 12)
    combined = combine(np.c_[estimates, estimates], np.tile([0.0, 0.35], (12, 1)), ratio=1e-3)
    assert combined.widened[0] == pytest.approx(2.201 / 1.96, abs=0.005) and 1.25 < combined.widened[1] < 2
    (said,) = _of_few(combined)
    assert said.startswith("More tables, or larger ones,") and f"{1 - 1 / combined.widened[1]:.0%} narrower" in said
    assert not _of_few(combine(estimates, np.zeros(12)))


@pytest.mark.parametrize(("between", "noticed"), [(0.79, True), (0.81, False)])
def test_tables_of_one_model_differ_less_than_the_rows_of_one_explain(between: float, noticed: bool) -> None:
    """Of four tables the variance between them counts a quarter more."""
    frames = [pd.DataFrame({"x": [0.0, 1.0]})] * 4
    combined = combine(np.sqrt(0.75 * between) * np.array([-1.0, 1.0, -1.0, 1.0]), np.ones(4))
    notes = _of_tables(SyntheticTables(frames, 2.0), combined)
    assert any("samples of ONE model" in note for note in notes) == noticed
