"""What is known of single effects: every figure written down again by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.evaluation.predicted.beliefs import believed
from fedsyn.evaluation.predicted.effects import Coarse, Effect, Effects, Scenario, SketchError, visible
from fedsyn.inference import Evidence, Measurement, estimate

PAIR, ROWS = ("a", "b"), 1_000.0
DOMAIN = Domain((*PAIR, "c"), (2, 2, 2))
#: Correlation of two columns of two equally frequent values.
TURN = np.array([[1.0, -1.0], [-1.0, 1.0]])


def effects_of(*released: Measurement, sketches: tuple[SketchError, ...] = ()) -> Effects:
    """Of a model of independent columns of equally frequent values, beside what was released."""
    ones = [Measurement((name,), np.full(2, ROWS / 2), 1e-3) for name in DOMAIN]
    model = estimate(DOMAIN, ones, total=ROWS)
    return Effects(model, Evidence((*ones, *released), ROWS), sketches, [PAIR, ("a", "c"), ("b", "c"), (*PAIR, "c")])


def counts(r: float, sigma: float) -> Measurement:
    return Measurement(PAIR, ROWS / 4 * (1.0 + r * TURN), sigma)


def test_counts_beyond_independence_are_a_link_less_noise_and_rows() -> None:
    """R^2 is the mean over cells of (off / expected)^2; noise of sigma^2 and a variance of 250 are not of the link."""
    r, sigma = 0.4, 20.0
    expected = r**2 - (sigma**2 + 250.0) / 250.0**2
    assert effects_of(counts(r, sigma))[PAIR].squared == pytest.approx(expected, rel=1e-6)
    # Of two counts each weighs by one over its noise's variance of a square.
    each, noise = (r, 0.1), (sigma, 40.0)
    some = [q**2 - (s**2 + 250.0) / 250.0**2 for q, s in zip(each, noise, strict=True)]
    both = effects_of(*(counts(*one) for one in zip(each, noise, strict=True)))[PAIR]
    assert both.squared == pytest.approx(np.average(some, weights=[s**-4 for s in noise]), rel=1e-6)
    assert both.precision == pytest.approx(sum(s**-2 for s in noise))


def test_of_groups_a_link_is_what_they_show_over_what_they_hide() -> None:
    """Four values in two groups: the groups' R^2 over the share of normal scores that lies between them, squared."""
    domain, groups = Domain(PAIR, (4, 4), ordered=dict.fromkeys(PAIR, 4)), (np.repeat([0, 1], 2),) * 2
    ones = [Measurement((name,), np.full(4, ROWS / 4), 1e-3) for name in domain]
    coarse = Measurement(PAIR, ROWS / 4 * (1.0 + 0.4 * TURN), 20.0, groups=groups)
    found = Effects(estimate(domain, ones, total=ROWS), Evidence((*ones, coarse), ROWS), (), [PAIR])[PAIR]
    share = visible(np.full(4, 0.25), groups[0])
    z = np.sort(np.random.default_rng(0).normal(size=400_000))
    between = [np.var([part.mean() for part in np.array_split(z, k)]) for k in (2, 4)]
    assert share == pytest.approx(between[0] / between[1], rel=0.01)
    assert found.squared == pytest.approx((0.16 - (400.0 + 250.0) / 250.0**2) / share**2, rel=1e-6)
    (seen,) = found.coarse
    assert (seen.variance, seen.visible, seen.share) == pytest.approx((400.0, share**2, 1 / 9))


def one_and_the_same(values: int, *measured: tuple[str, ...], groups: int = 0, sigma: float = 2.0) -> Effects:
    """Of three columns that are one, whose pairs and triple are counted, the pair (a, c) in groups if there are any."""
    names = (*PAIR, "c")
    domain = Domain(names, (values,) * 3, ordered=dict.fromkeys(names, values))
    ones = [Measurement((name,), np.full(values, ROWS / values), sigma) for name in domain]
    same = [Measurement(q, ROWS / values * np.eye(values), sigma) for q in measured if len(q) == 2]
    if groups:
        grouping = np.arange(values) * groups // values
        table = ROWS / groups * np.eye(groups)
        same.append(Measurement(("a", "c"), table, sigma, groups=(grouping, grouping)))
    for clique in measured:
        if len(clique) == 3:
            table = np.zeros((values,) * 3)
            table[(np.arange(values),) * 3] = ROWS / values
            same.append(Measurement(clique, table, sigma))
    model = estimate(domain, [*ones, *same], total=ROWS)
    return Effects(model, Evidence((*ones, *same), ROWS), (), [("a", "c"), names])


def test_what_pairs_determine_of_three_columns_is_not_an_effect_of_all_three() -> None:
    """Three columns of three values that are one: beyond independence they have R^2 = 8, beyond their pairs nothing."""
    found = one_and_the_same(3, (*PAIR, "c"))
    assert found[PAIR].squared == pytest.approx(2.0, abs=0.1)
    assert found[*PAIR, "c"].squared < 0.02


def test_of_three_columns_the_parity_is_an_effect_of_all_three() -> None:
    """No pair shows the third of three binary columns that is the parity of two: R^2 is 1, less noise and rows."""
    sigma, parity = 20.0, np.indices((2, 2, 2)).sum(axis=0) % 2
    triple = Measurement((*PAIR, "c"), ROWS / 4 * parity, sigma)
    expected = 1.0 - 8.0 * (sigma**2 + ROWS / 8.0) / ROWS**2
    found = effects_of(triple)[*PAIR, "c"]
    assert found.squared == pytest.approx(expected, rel=1e-6)
    # A residual of the counts has all of it, and so have both groups of four values each.
    beyond = Measurement((*PAIR, "c"), ROWS / 4 * (parity - 0.5), sigma, beyond=True)
    assert effects_of(beyond)[*PAIR, "c"].squared == pytest.approx(expected, rel=1e-6)


def test_what_other_pairs_determine_inside_groups_is_not_missing() -> None:
    """Two groups of four values each show 0.4 of R^2; the two pairs that determine this one have the rest."""
    alone, known = (one_and_the_same(8, *pairs, groups=2)["a", "c"] for pairs in ((), (PAIR, ("b", "c"))))
    (seen,) = alone.coarse
    assert 1.0 - seen.visible > 0.5 and seen.inside < 1e-9
    assert alone.left(Scenario()).relative == pytest.approx(1.0 - seen.visible, abs=0.01)
    assert known.left(Scenario()).relative < 0.01


def test_inside_groups_a_model_lacks_what_a_table_has_beyond_it() -> None:
    coarse = Coarse(np.repeat(np.arange(4), 4), 900.0, 1 / 9, 0.6, 0.05)
    assert coarse.hidden(0.2) == pytest.approx(1.0 - 0.6 - 0.05 / 0.2)
    assert (coarse.hidden(0.1), coarse.hidden(0.0)) == pytest.approx((0.0, 0.4))


def effect(**facts: object) -> Effect:
    """Sixteen cells of 50 records; nine of the dimensions are a link's, of R^2 = 0.2."""
    return replace(Effect(np.full(16, 50.0), 9 / 16, 0.2, 0.0, 0.0, (), "measured"), **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "noise"), [(1.0, 1.0), (2.0, 1.0), (1.0, 0.5)])
def test_least_squares_keeps_the_share_of_noise_in_all_variance(rows: float, noise: float) -> None:
    left = effect(precision=1 / 900.0).left(Scenario(rows=rows, noise=noise))
    lam, kept = 50.0 * rows, 9 / 16 * 900.0 * noise**2
    expected = kept / (9 / 16 * lam + 0.2 * lam**2 + kept)
    assert (left.rows, left.relative) == pytest.approx((expected, expected))


@pytest.mark.parametrize(("rows", "noise"), [(1.0, 1.0), (2.0, 1.0), (1.0, 0.5)])
def test_groups_leave_what_lies_inside_them(rows: float, noise: float) -> None:
    """Four groups of 200 records, which have one of nine dimensions and show 0.6 of R^2."""
    coarse = Coarse(np.repeat(np.arange(4), 4), 900.0, 1 / 9, 0.6)
    left = effect(coarse=(coarse,)).left(Scenario(rows=rows, noise=noise))
    lam, kept = 200.0 * rows, 1 / 16 * 900.0 * noise**2
    remaining = kept / (lam / 16 + 0.6 * 0.2 * lam**2 + kept)
    assert left.rows == pytest.approx(1.0 - (1.0 - remaining) / 9)
    assert left.relative == pytest.approx(1.0 - 0.6 * (1.0 - remaining))


# Beliefs --------------------------------------------------------------------------------------------------------------


def sketch(pair: tuple[str, str], squared: float, alone: float) -> SketchError:
    """One noise of variance 400 in four cells; rows add 250."""
    return SketchError(pair, squared, math.sqrt(2.0) * 400.0, 250.0, 4.0, None, alone, 1)


def test_looks_are_distances_less_what_rows_add_and_their_spread_has_it() -> None:
    """Distances of counts in four cells, in units of a squared expected count of 250 each; two sketches alike."""
    sketches = sketch(PAIR, 5_000.0, 9_000.0), sketch(("a", "c"), 5_000.0, 9_000.0)
    found = effects_of(sketches=sketches)
    unit = 4.0 / ROWS**2
    alone, last = (np.full(2, (x - 250.0) * unit) for x in (9_000.0, 5_000.0))
    spread = np.full(2, (math.sqrt(2.0) * 400.0 + 250.0 * math.sqrt(2.0)) * unit)
    noise = math.hypot(*spread)
    left = (2 * last[0] + noise) / (2 * alone[0] + noise)  # by the model that has neither pair
    expected = believed(alone, last, spread, left)
    assert (found[PAIR].squared, found[PAIR].spread) == pytest.approx((expected.means[0], expected.spreads[0]))
    # The pair that nobody looked at is like them, within the prior's spread.
    unseen = found["b", "c"]
    assert unseen.source == "inferred" and (unseen.squared, unseen.spread) == pytest.approx(expected.prior)
    # Two worlds move all three at a time.
    for world in (0, 1):
        assert found.squared(PAIR, world) == pytest.approx(expected.worlds[world, 0])
        assert found.squared(("b", "c"), world) == pytest.approx(expected.firsts[world])
    assert found.squared(PAIR, 0) < found.squared(PAIR, None) < found.squared(PAIR, 1)
    # Of three columns nobody sketched anything: none, or as much as a pair has at most.
    triple = (*PAIR, "c")
    assert [found.squared(triple, world) for world in (None, 0, 1)] == [0.0, 0.0, expected.most]


def test_a_sketch_of_groups_shows_a_part_of_a_link() -> None:
    """Normal scores in halves of four values; a sketch of them sees the squared share of R^2."""
    domain, groups = Domain(PAIR, (4, 4), ordered=dict.fromkeys(PAIR, 4)), (np.repeat([0, 1], 2),) * 2
    ones = [Measurement((name,), np.full(4, ROWS / 4), 1e-3) for name in domain]
    found = Effects(
        estimate(domain, ones, total=ROWS),
        Evidence(tuple(ones), ROWS),
        [replace(sketch(PAIR, 60_000.0, 60_000.0), groups=groups)],
        [PAIR],
    )[PAIR]
    unit = 4.0 / ROWS**2 / visible(np.full(4, 0.25), groups[0]) ** 2
    look, spread = np.array([59_750.0 * unit]), np.array([650.0 * math.sqrt(2.0) * unit])
    assert found.squared == pytest.approx(believed(look, look, spread).means[0])


def test_the_mean_of_a_prior_is_known_to_the_error_of_the_mean_look() -> None:
    alone, spread = np.array([0.3, 0.5, 0.2, 0.4]), np.array([0.02, 0.04, 0.05, 0.02])
    found = believed(alone, alone, spread)
    error = math.sqrt(float((spread**2).sum())) / 4
    # Far above 0 the cut takes nothing: nine of ten lie within 1.645 standard deviations.
    assert found.firsts == pytest.approx([0.35 - 1.6449 * error, 0.35 + 1.6449 * error], rel=1e-4)
    # An unseen effect is exponential, or a Gamma variable of such a spread, and its mean is not known for sure.
    assert found.prior == pytest.approx((0.35, math.sqrt(2.0 * 0.35**2 + error**2)), rel=1e-4)
    assert believed(alone, alone, spread, 0.5).firsts == pytest.approx(0.5 * found.firsts)
    assert believed(50.0 * alone, alone, spread).firsts == pytest.approx([4.0, 4.0])  # all that any cell has
    # Around 0 the half below is cut: 5% and 95% of what is left are 52.5% and 97.5% of the whole.
    least, most = believed(alone - 0.35, alone, spread).firsts
    assert (least, most) == pytest.approx((0.0627 * error, 1.96 * error), rel=1e-2)
