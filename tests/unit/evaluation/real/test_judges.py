"""The experiment that sets judges of others beside the verdict, in miniature."""

from __future__ import annotations

import pytest

from experiments.judges.run import HEAD, OTHERS, crossed, judged, row
from fedsyn.evaluation.verdict import LEAST_LINK


def test_fresh_rows_and_independent_columns_are_told_apart_by_every_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.judges.run.MOST_ROWS", 2_000)
    fresh, apart = judged("trial", OTHERS), judged("trial", "one-way, ε = 10")
    for one in (fresh, apart):
        assert len(row(one)) == len(HEAD)
    assert fresh.ours.propensity is not None and apart.ours.propensity is not None
    assert fresh.ours.propensity.ratio < 1.5 < 2.0 < apart.ours.propensity.ratio
    assert [use.fit for use in apart.ours.verdict().uses()[1:3]] == [False, False]
    strong = [pair for pair in apart.ours.pairs if pair.linked and pair.association > 3 * LEAST_LINK]
    assert strong and {pair.judged().state for pair in strong} == {"lost"}
    # What SDMetrics says is counted once a column where it is installed, else not at all.
    assert sum(crossed([fresh], "columns").values()) == len(fresh.shapes)
    if fresh.shapes:
        assert min(fresh.shapes.values()) > 0.9
