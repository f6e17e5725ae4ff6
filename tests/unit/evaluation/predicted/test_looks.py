"""Looks at a link: every figure written down again by hand, and thresholds from both sides."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2, ncx2

from fedsyn.domain import Domain
from fedsyn.evaluation.predicted.effects import Effects, SketchError
from fedsyn.evaluation.predicted.limits import Contrasts, needed, raised
from fedsyn.evaluation.predicted.links import SeenLinks, seen_links
from fedsyn.evaluation.predicted.looks import Measured, Sketched, shown_share
from fedsyn.inference import Evidence, Measurement, estimate

PAIR = ("a", "b")
MASSES = (np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.4]))
ALONE = np.outer(*MASSES)
#: A link without a part of either column alone.
LINK = np.outer([1.0, -1.0, 0.0], [1.0, -1.0])
EACH = (np.arange(3), np.arange(2))
SIGMAS = (20.0, 30.0)
ROWS = 1_000.0


def effects_of(*released: Measurement, rows: float = ROWS) -> Effects:
    """Effects of a model of two independent columns, beside what was released of them together."""
    domain = Domain(PAIR, (3, 2))
    ones = [Measurement((name,), rows * mass, 1e-4) for name, mass in zip(PAIR, MASSES, strict=True)]
    return Effects(estimate(domain, ones, total=rows), Evidence((*ones, *released), rows), (), [PAIR])


def counted(strength: float) -> Measured:
    """Two noisy counts of all cells whose mean by precision has that link."""
    wrong = np.array([[3.0, -5.0], [1.0, 4.0], [-2.0, 0.0]])
    first, second = (
        ROWS * (ALONE + strength * LINK) + sign * wrong * s**2 for sign, s in zip((1, -1), SIGMAS, strict=True)
    )
    measured = (Measurement(PAIR, values, s) for values, s in zip((first, second), SIGMAS, strict=True))
    return Measured(effects_of(*measured), PAIR, EACH)


#: Variance of the mean of both counts, in one cell.
VARIANCE = 1.0 / (SIGMAS[0] ** -2 + SIGMAS[1] ** -2)
#: In units of chance: noise beyond both columns is (1 - 1/3)(1 - 1/2) of all, and 2 of 6 dimensions are a link's.
NOISE = (2 / 3) * (1 / 2) * VARIANCE / ROWS**2 / ALONE
CHANCE = 2 / 6 / ROWS


@pytest.mark.parametrize("chance", [0.05, 0.05 / 45])
def test_counts_are_beyond_chance_from_the_quantile_on(chance: float) -> None:
    """A third of the cells' squares are what two dimensions have, each in units of noise and rows."""
    squares = float((2 / 6 * (LINK**2 / ALONE) / (NOISE + CHANCE)).sum())
    strength = math.sqrt(chi2.isf(chance, 2) / squares)
    assert counted(1.01 * strength).is_beyond(chance) and not counted(0.99 * strength).is_beyond(chance)


@pytest.mark.parametrize("strength", [0.03, 0.1])
@pytest.mark.parametrize("times", [0.3, 1.7])
def test_what_counts_keep_is_the_mean_over_what_they_leave_open(strength: float, times: float) -> None:
    """Bayes' rule over the size of the link, written down again; the spread by numeric derivatives."""
    look, table = counted(strength), times * strength * LINK / np.sqrt(ALONE)
    off, weights, figures = strength * LINK / np.sqrt(ALONE), [], []
    squares_of_table = float((table**2).sum())
    for squared in np.append(0.0, np.exp(np.linspace(math.log(1e-5), math.log(8.0), 80))):
        prior = squared * ALONE + CHANCE
        weights.append(math.exp(-0.5 * 2 / 6 * float((np.log(prior + NOISE) + off**2 / (prior + NOISE)).sum())))
        mean, variance = prior / (prior + NOISE) * off, prior / (prior + NOISE) * NOISE

        def share(r: np.ndarray, variance: np.ndarray = variance) -> float:
            squares = float((r**2 + variance).sum()) - 2 / ROWS
            return float((r * table).sum()) / max(squares, squares_of_table)

        steps = [np.where(np.arange(6).reshape(3, 2) == cell, 1e-6, 0.0) for cell in range(6)]
        slopes = np.array([(share(mean + step) - share(mean - step)) / 2e-6 for step in steps]).reshape(3, 2)
        figures.append((float((mean**2 + variance).sum()) - 2 / ROWS, share(mean), float((variance * slopes**2).sum())))
    chance = np.array(weights) / np.sum(weights)
    squares, shares, spreads = np.array(figures).T
    assert look.squared == pytest.approx(chance @ squares, rel=1e-6)
    kept, spread = look.kept(ALONE + times * strength * LINK, 1.0)
    assert kept == pytest.approx(chance @ shares, rel=1e-4)
    assert spread == pytest.approx(math.sqrt(chance @ (spreads + (shares - kept) ** 2)), rel=1e-3)


def sides() -> tuple[Contrasts, Contrasts]:
    first, second = (Contrasts.of(mass, None, each) for mass, each in zip(MASSES, EACH, strict=True))
    return first, second


@pytest.mark.parametrize("most", [1.0, 4.0])
def test_what_counts_need_is_above_chance_and_above_what_is_called_a_link(most: float) -> None:
    """Of a contrast of each column, whose part of a squared length is the sum of its cells' parts."""
    lengths = counted(0.0).lengths(sides(), 0.01, 0.7, most)
    one = sides()[0].parts[2][:, None] * sides()[1].parts[0]  # the last value of three, and either of two
    gain = float((one**2 / ALONE * 2 / 6 / (NOISE + CHANCE)).sum())
    floor = most * 0.01 * 0.7 * gain / float((one**2 / ALONE).sum())
    assert lengths[2, 0] == pytest.approx(max(needed(2, 0.01), float(raised(floor, 2))) / gain)


@pytest.mark.parametrize("free", [1, 4, 49])
def test_nine_of_ten_looks_see_what_they_need(free: int) -> None:
    """Exactly, of a noncentral chi-square variable; for an estimate by the normal one of its mean and variance."""
    for chance in (0.05, 1e-4):
        assert ncx2.sf(chi2.isf(chance, free), free, needed(free, chance)) == pytest.approx(0.9, abs=1e-6)
    length = float(raised(20.0, free))
    assert length - 1.2815516 * math.sqrt(2 * free + 4 * length) == pytest.approx(20.0)


# Sketches -------------------------------------------------------------------------------------------------------------

#: Four independent noises of variance 30 each, and what rows add to all of them.
SKETCH = SketchError(PAIR, 0.0, math.sqrt(2 * 4) * 30.0, 100.0, 12.0, None, 0.0, 4)
UNIT = 12.0 / ROWS**2


def sketched(last: float = 0.0, apart: float = 0.0, **facts: float) -> Sketched:
    return Sketched(effects_of(), PAIR, replace(SKETCH, squared=last, **facts), apart)  # type: ignore[arg-type]


@pytest.mark.parametrize("chance", [0.05, 0.05 / 45])
def test_a_sketch_is_beyond_chance_from_the_quantile_on(chance: float) -> None:
    """Each of four entries has the noise's variance and a quarter of what rows add; a sketch says what is above it."""
    least = (30.0 + 100.0 / 4) * chi2.isf(chance, 4) - 4 * 30.0
    assert sketched(alone=1.01 * least).is_beyond(chance) and not sketched(alone=0.99 * least).is_beyond(chance)
    assert sketched(alone=160.0).squared == pytest.approx((160.0 - 100.0) * UNIT)


@pytest.mark.parametrize("most", [1.0, 4.0])
def test_what_a_sketch_needs_is_above_chance_and_above_what_is_called_a_link(most: float) -> None:
    lengths = sketched().lengths(sides(), 0.01, 0.7, most)
    variance = (30.0 + 100.0 / 4) * UNIT
    least = max(needed(4, 0.01), float(raised(most * 0.01 * 0.7 / variance, 4))) * variance / 12.0
    shown = [float((side.parts[at] ** 2).sum()) for side, at in zip(sides(), (2, 0), strict=True)]
    assert lengths[2, 0] == pytest.approx(least / math.prod(shown))


@pytest.mark.parametrize(("along", "apart"), [(-0.8, 90.0), (0.9, 400.0), (0.1, 9.0)])
def test_what_a_sketch_keeps_is_what_its_distances_leave(along: float, apart: float) -> None:
    """|r|^2 is |s|^2 + 2 <r - s, s> + |r - s|^2; of <r - s, s>, noise has its share of one of four entries."""
    table = 0.02 * LINK
    own = float((table**2).sum()) / UNIT * 12.0  # |s|^2 in records
    alone = 500.0 + own + 2.0 * along * own
    look = sketched(last=500.0, apart=apart, alone=alone)
    real = apart / (apart + 4 * 30.0)
    inner = real * along * own
    rows = max(0.0, own + 2.0 * inner + apart - 100.0)
    kept, spread = look.kept(ALONE + table, 1.0)
    assert kept == pytest.approx((own + inner) / max(rows, own))
    off = math.sqrt(real * 30.0 * own) / max(rows, own)
    assert spread == pytest.approx(off * abs(1.0 - 2.0 * kept) if rows > own else off)


# Groups ---------------------------------------------------------------------------------------------------------------


def test_groups_show_the_share_of_a_link_that_they_tell_apart() -> None:
    """Normal scores in halves have 2/pi of their variance between them; few groups of the comparison have less, too."""
    domain, few = Domain(PAIR, (64, 64), ordered=dict.fromkeys(PAIR, 64)), np.repeat(np.arange(8), 8)
    halves, quarters, each = np.repeat([0, 1], 32), np.repeat(np.arange(4), 16), np.arange(64)
    effects = Effects(estimate(domain, [], total=ROWS), Evidence((), ROWS), (), [PAIR])
    z = np.sort(np.random.default_rng(0).normal(size=512_000))
    of = {groups: np.var([part.mean() for part in np.array_split(z, groups)]) for groups in (2, 4, 8)}
    assert shown_share(effects, PAIR, None, (few, few)) == 1.0
    assert shown_share(effects, PAIR, (each, each), (few, few)) == 1.0
    assert shown_share(effects, PAIR, (halves, few), (few, few)) == pytest.approx(of[2] / of[8], rel=0.01)
    assert shown_share(effects, PAIR, (halves, quarters), (few, few)) == pytest.approx(
        of[2] * of[4] / of[8] ** 2, rel=0.01
    )


def in_groups(strength: float = 0.2) -> tuple[Effects, Measured, float]:
    """Two columns without an order, counted in two groups each, with next to no noise, and what those show."""
    domain, rows = Domain(PAIR, (4, 4)), 1e6
    ones = [Measurement((name,), np.full(4, rows / 4), 1e-3) for name in domain]
    groups = (np.repeat([0, 1], 2),) * 2
    coarse = Measurement(PAIR, rows / 4 * (1.0 + strength * np.array([[1.0, -1.0], [-1.0, 1.0]])), 10.0, groups=groups)
    effects = Effects(estimate(domain, [*ones, coarse], total=rows), Evidence((*ones, coarse), rows), (), [PAIR])
    few = (np.arange(4), np.arange(4))
    return effects, Measured(effects, PAIR, few), shown_share(effects, PAIR, groups, few)


def test_what_groups_hide_may_be_kept_or_not() -> None:
    """Anything from none to all of it, each as likely, which has the standard deviation 1/sqrt(12)."""
    effects, look, shown = in_groups()
    (found,) = seen_links(effects, (), [PAIR], None, {}).links
    _, spread = look.kept(effects.model.project(PAIR) / effects.rows, 3.0)
    assert shown == pytest.approx(1 / 9) and spread < 0.01  # of three contrasts of four values groups have one
    assert found.spread == pytest.approx(math.hypot(spread, (1.0 - shown) / math.sqrt(12.0)), abs=6e-4)
    assert found.seen == pytest.approx(math.sqrt(look.squared / shown / 3.0), abs=6e-4)


def test_a_link_in_groups_is_one_of_all_values_that_groups_show_a_part_of() -> None:
    for factor in (0.99, 1.01):
        _, _, shown = in_groups()
        effects, _, _ = in_groups(factor * 0.1 * math.sqrt(3.0 * shown))
        assert len(seen_links(effects, (), [PAIR], None, {}).links) == (factor > 1.0)


# What is called a link ------------------------------------------------------------------------------------------------


def links_of(association: float, sigma: float, rows: float, pairs: int = 1) -> SeenLinks:
    """Of two columns of two values; of further pairs nothing was released."""
    domain = Domain((*PAIR, "c"), (2, 2, 2))
    ones = [Measurement((name,), np.full(2, rows / 2), 1e-3) for name in domain]
    cells = rows / 4 * (1.0 + association * np.array([[1.0, -1.0], [-1.0, 1.0]]))
    evidence = Evidence((*ones, Measurement(PAIR, cells, sigma)), rows)
    every = [PAIR, *[("a", "c")] * (pairs - 1)]
    return seen_links(Effects(estimate(domain, ones, total=rows), evidence, (), every), (), every, None, {})


def test_a_weaker_association_than_a_tenth_is_no_link_however_many_rows_show_it() -> None:
    for association, seen in ((0.098, 0), (0.102, 1)):
        found = links_of(association, 1.0, 1e8)
        assert (len(found.links), found.unlinked, found.hidden) == (seen, 1 - seen, 0)


def test_the_link_that_lost_most_comes_first() -> None:
    """Both were counted with next to no noise, and the model has one of them alone."""
    domain, rows = Domain((*PAIR, "c"), (2, 2, 2)), 1e6
    ones = [Measurement((name,), np.full(2, rows / 2), 1e-3) for name in domain]
    cells = rows / 4 * (1.0 + 0.3 * np.array([[1.0, -1.0], [-1.0, 1.0]]))
    fitted, missed = (Measurement(pair, cells, 1.0) for pair in (PAIR, ("b", "c")))
    model = estimate(domain, [*ones, fitted], total=rows)
    pairs = [PAIR, ("b", "c")]
    found = seen_links(Effects(model, Evidence((*ones, fitted, missed), rows), (), pairs), (), pairs, None, {}).links
    assert [(link.columns, link.judged().state) for link in found] == [(("b", "c"), "lost"), (PAIR, "kept")]


@pytest.mark.parametrize("pairs", [1, 200])
def test_a_link_is_beyond_what_chance_makes_of_all_pairs(pairs: int) -> None:
    """Each of four cells has the noise's variance, and rows scatter by their number."""
    rows, sigma = 100.0, 8.0
    least = math.sqrt(chi2.isf(0.05 / pairs, 1) * (rows + 4 * sigma**2)) / rows
    assert len(links_of(0.99 * least, sigma, rows, pairs).links) == 0
    assert len(links_of(1.01 * least, sigma, rows, pairs).links) == 1
    # Nine of ten at the limit are seen, as many pairs as there are.
    below = links_of(0.0, sigma, rows, pairs)
    needs = math.sqrt(needed(1, 0.05 / pairs) * (rows + 4 * sigma**2)) / rows
    assert below.unlinked == 1 and below.least == pytest.approx(needs, abs=2e-3)


@pytest.mark.parametrize(("times", "state"), [(0.3, "lost"), (0.9, "changed")])
def test_what_groups_hide_of_a_strong_link_of_numbers_loses_none(times: float, state: str) -> None:
    """Halves of sixteen values each: the table has that part of what they show, and nothing inside of them."""
    domain, groups = Domain(PAIR, (16, 16), ordered=dict.fromkeys(PAIR, 16)), (np.repeat([0, 1], 8),) * 2
    ones = [Measurement((name,), np.full(16, 1e6 / 16), 1e-3) for name in domain]
    real, table = (
        Measurement(PAIR, 1e6 / 4 * (1.0 + r * np.array([[1.0, -1.0], [-1.0, 1.0]])), 10.0, groups=groups)
        for r in (0.8, times * 0.8)
    )
    effects = Effects(estimate(domain, [*ones, table], total=1e6), Evidence((*ones, real), 1e6), (), [PAIR])
    (found,) = seen_links(effects, (), [PAIR], None, {}).links
    look = Measured(effects, PAIR, (np.repeat(np.arange(8), 2),) * 2)
    shown, _ = look.kept(effects.model.project(PAIR) / effects.rows, 7.0)
    assert found.kept == pytest.approx(shown if state == "lost" else 0.5, abs=1e-3) and found.judged().state == state
    assert shown < 0.2 if state == "lost" else shown > 0.8
