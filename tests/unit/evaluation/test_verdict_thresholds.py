"""Every threshold of a verdict, from both sides, and its formulas written down again."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from fedsyn.evaluation.real.comparison import TableComparison, compare_tables
from fedsyn.evaluation.real.pairs import PairScore
from fedsyn.evaluation.scores import association
from fedsyn.evaluation.verdict import Correlation, Judged, Use, Verdict, doubtful, folded, judged, judged_link
from fedsyn.table.schema import CategoricalColumn

#: As docs/metrics.md has them.
BEYOND = {
    **{"link": 0.5, "mean": 0.2, "spread": math.log(1.5), "tail": 0.5, "share": 0.1, "rows": 0.2, "other": 0.2},
    "repeats": 0.8,
}


@pytest.mark.parametrize(("kind", "lost"), BEYOND.items())
def test_a_loss_is_called_lost_beyond_its_threshold_and_changed_beyond_half_of_it(kind: str, lost: float) -> None:
    for part, state in ((0.499, "kept"), (0.501, "changed"), (0.999, "changed"), (1.001, "lost")):
        found = judged("x", [(kind, part * lost, "why"), (kind, math.nan, "unknown")])
        assert (found.state, found.loss, found.why) == (state, pytest.approx(part), "why")
    assert judged("x", [("link", 0.1, "first"), ("link", 0.1, "second")]).why == "first"


def test_a_correlation_from_a_tenth_on_keeps_the_smaller_over_the_larger() -> None:
    """A standard error may be chance; the sign counts, and what is no number is no correlation."""
    assert Correlation.of(0.099, 0.5, 0.0) is None and Correlation.of(-0.099, 0.5, 0.0) is None
    assert Correlation.of(math.nan, 0.5, 0.0) is None
    for was, now, error, kept in (
        (0.101, 0.101, 0.0, 1.0),
        (0.5, 0.4, 0.02, 0.84),
        (0.4, 0.5, 0.02, 0.84),
        (0.5, -0.4, 0.0, -0.8),
        (0.5, 0.49, 0.1, 1.0),
        (0.5, 0.4, math.nan, 0.8),
        (0.5, math.nan, 0.0, 0.0),
    ):
        found = Correlation.of(was, now, error)
        assert found is not None and found.kept == pytest.approx(kept)


def test_doubt_moves_a_loss_towards_three_quarters_of_a_whole_one() -> None:
    assert (doubtful("link", 0.1, 0.1), doubtful("link", 0.1, 1.0)) == (pytest.approx(0.2), 0.375)
    assert (doubtful("link", 0.9, 0.1), doubtful("link", 0.9, 1.0)) == (pytest.approx(0.8), 0.375)
    assert doubtful("mean", 0.0, 1.0) == pytest.approx(0.15)


def test_a_link_between_other_values_is_as_strong_and_lost() -> None:
    """From three quarters of the association on, where less than three quarters of the link is there."""
    words = {}
    for now, share in ((0.31, 0.74), (0.29, 0.74), (0.31, 0.76)):
        words[now, share] = judged_link("a × b", 0.4, now, share).why
    assert words[0.31, 0.74] == "association 0.40 became 0.31, between other values"
    assert not any("other values" in words[key] for key in ((0.29, 0.74), (0.31, 0.76)))
    linear = Correlation.of(0.5, 0.1, 0.0)
    assert judged_link("a × b", 0.4, 0.4, 1.0, linear=linear) == Judged("a × b", 1.6, "correlation 0.50 became 0.10")


# Uses -----------------------------------------------------------------------------------------------------------------

KEPT, CHANGED, LOST = Judged("a × b", 0.1, "as it was"), Judged("a × c", 0.7, "less"), Judged("a × d", 1.6, "gone")
COLUMNS = [Judged("a", 0.2, ""), Judged("b", 0.2, "")]


def uses(**facts: object) -> tuple[Use, ...]:
    return Verdict(**{"columns": COLUMNS, "links": [KEPT], **facts}).uses()  # type: ignore[arg-type]


def test_a_ground_is_the_first_lost_one_or_the_worst_and_doubt_is_counted() -> None:
    _, pairs, regression, _ = uses(links=[KEPT, CHANGED, LOST])
    assert (pairs.kept, pairs.of, pairs.why, regression.why) == (1, 3, "a × d is lost (gone)", "a × d is lost (gone)")
    less = Judged("a × e", 1.2, "half gone")
    assert uses(links=[KEPT, LOST, less], foremost=[less])[1].why == "a × e is lost (half gone)"
    assert uses(links=[KEPT, CHANGED])[1].why == "a × c has changed (less)"
    rows = Judged("variety of rows", 1.9, "few")
    assert uses(links=[KEPT, LOST], rows=[rows])[1].why == "variety of rows is lost (few)"
    # Of doubt: what is lost is not in doubt, and a doubtful foremost one leaves it open.
    open_ = uses(links=[KEPT] * 8 + [CHANGED, LOST], doubt=True)[1]
    assert (open_.fit, open_.why) == (None, "1 in doubt")
    assert uses(links=[KEPT] * 19 + [CHANGED], doubt=True)[1].fit is True
    assert uses(links=[KEPT] * 19 + [CHANGED], foremost=[CHANGED], doubt=True)[1].fit is None
    assert uses(links=[KEPT] * 19 + [CHANGED], hidden=1, unseen="one unseen")[1].why == "one unseen"
    # A regression rests on what is amiss of both.
    columns = [COLUMNS[0], Judged("b", 0.8, "other mean")]
    assert uses(columns=columns)[2].why == "b has changed (other mean)"
    assert uses(columns=columns, links=[CHANGED])[2].why == "a × c has changed (less)"


def test_a_sentence_has_160_letters_at_most_and_the_regression_no_number() -> None:
    """What is too long loses its ground, then its numbers."""
    said = Verdict(columns=COLUMNS, links=[KEPT, LOST]).sentences()
    assert said[1] == (
        "Not good for tables of two columns (1 of 2 linked pairs kept) or regression. Worst is a × d (gone)."
    )
    for letters, ground in ((65, True), (66, False)):
        long = Judged("a × d", 1.6, "g" * letters)
        (_, bad, _) = Verdict(columns=COLUMNS, links=[KEPT, long]).sentences()
        assert (("ggg" in bad) == ground) and bad.endswith(").") == ground and len(bad) <= 160
        assert ground is False or len(bad) == 160
    far = Judged("x" * 70 + " × y", 1.6, "gone")
    (_, bad, _) = Verdict(columns=COLUMNS, links=[KEPT, far]).sentences()
    assert bad.endswith(f"Worst is {'x' * 30}…{'x' * 25} × y (gone).")


def test_values_folded_into_one_of_many_are_no_loss() -> None:
    """`other` is the last value; it hides nothing where it is a listed one of several."""
    share = np.array([0.5, 0.3, 0.2])
    assert folded(CategoricalColumn(categories=("a", "b")), share) == 0.2
    assert folded(CategoricalColumn(categories=("a", "b"), other="b"), share[:2]) == 0.0
    assert folded(CategoricalColumn(categories=("other",), other="other"), np.ones(1)) == 1.0
    assert folded(CategoricalColumn(categories=("a", "b"), other=False), share[:2]) == 0.0


# Links of real rows ---------------------------------------------------------------------------------------------------


def crossed(apart: int, total: int, others: int = 0) -> TableComparison:
    """Two columns of two values, each half of the rows, and further columns that nothing links."""
    counts = (total // 4 + apart, total // 4 - apart)
    rows = [(0, 0)] * counts[0] + [(0, 1)] * counts[1] + [(1, 0)] * counts[1] + [(1, 1)] * counts[0]
    frame = pd.DataFrame(rows, columns=["a", "b"]).replace({0: "no", 1: "yes"})
    for at in range(others):  # as often beside each pair of values
        frame[f"c{at}"] = np.where(np.arange(len(frame)) // 2**at % 2, "x", "y")
    return compare_tables(frame, frame, rng=np.random.default_rng(0))


def pair_of(comparison: TableComparison) -> PairScore:
    return next(pair for pair in comparison.pairs if pair.name == "a × b")


@pytest.mark.thorough
def test_a_link_is_beyond_chance_among_all_pairs() -> None:
    """One false alarm in twenty tables, of one pair and of three."""
    assert pair_of(crossed(4, 100)).linked is False  # chi-square 2.56
    assert pair_of(crossed(5, 96)).linked is True  # 4.17
    assert pair_of(crossed(5, 128)).linked is False  # 3.13, a chance of 0.08
    assert pair_of(crossed(7, 128, others=1)).linked is True  # 6.1: 0.013 thrice
    assert pair_of(crossed(6, 128, others=1)).linked is False  # 4.5: 0.034 thrice
    assert pair_of(crossed(6, 128)).linked is True


def test_an_association_below_a_tenth_is_no_link() -> None:
    for apart, linked in ((490, False), (510, True)):
        pair = pair_of(crossed(apart, 20_000))
        assert pair.linked is linked
        assert pair.association == pytest.approx(4 * apart / 20_000, abs=1e-3)
        table = np.array([[0.25 + apart / 20_000, 0.25 - apart / 20_000]] * 2)
        table[1] = table[1][::-1]
        assert pair.association == association(table, 20_000)
