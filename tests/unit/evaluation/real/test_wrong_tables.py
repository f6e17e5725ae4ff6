"""Tables made wrong in twelve ways are called wrong, and right ones are not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest

from fedsyn.evaluation.real.comparison import TableComparison, compare_tables
from support.wrong_tables import POPULATIONS, WAYS, Wrong, right_tables

ROWS, SEED = 3_000, 1


@cache
def real_rows(name: str) -> pd.DataFrame:
    return POPULATIONS[name].draw(ROWS, np.random.default_rng(SEED))


def compared(name: str, table: pd.DataFrame) -> TableComparison:
    population, rng = POPULATIONS[name], np.random.default_rng(0)
    return compare_tables(real_rows(name), table, label=population.label, regressions=[population.question], rng=rng)


#: Each way once by default, in one population after the other; each way in every population in `make test-all`.
MADE_WRONG = [
    pytest.param(way, name, marks=[] if (number - place) % len(POPULATIONS) == 0 else pytest.mark.slow)
    for number, way in enumerate(WAYS)
    for place, name in enumerate(POPULATIONS)
]


@pytest.mark.parametrize(("way", "name"), MADE_WRONG)
def test_each_wrong_table_is_called_wrong(name: str, way: str) -> None:
    """The verdict names every column that was touched, or a pair with it, as changed or lost."""
    rng = np.random.default_rng([SEED, list(WAYS).index(way)])
    wrong = Wrong(way, *WAYS[way](POPULATIONS[name], POPULATIONS[name].draw(ROWS, rng), rng))
    found = compared(name, wrong.table)
    verdict = found.verdict()
    amiss = [one.name for one in (*verdict.columns, *verdict.links) if one.state != "kept"]
    named = {column for text in amiss for column in text.split(" × ")}
    assert set(wrong.touched) <= named, (verdict.sentences(), amiss)
    if not wrong.touched:  # of rows: no use is left but training, which is tried
        assert verdict.rows[0].state == "lost" and verdict.sentences()[0].startswith("The variety of rows is lost (95%")
        assert [use.fit for use in verdict.uses()[:3]] == [False, False, False]
    elif way != "tails cut":  # which a count and a regression of the middle survive
        assert not all(use.fit for use in verdict.uses()[:3]), verdict.sentences()


@pytest.mark.parametrize("name", POPULATIONS)
def test_no_right_table_is_called_wrong(name: str) -> None:
    for what, table in right_tables(POPULATIONS[name], real_rows(name), np.random.default_rng(SEED)):
        found = compared(name, table)
        verdict = found.verdict()
        assert [use.fit for use in verdict.uses()[:3]] == [True, True, True], (what, verdict.sentences())
        lost = [one for one in (*verdict.columns, *verdict.links, *verdict.questions) if one.state == "lost"]
        assert not lost, what
        assert found.propensity is not None and found.propensity.ratio < 2.0
