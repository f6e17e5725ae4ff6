"""Densities inside bins: every value stays in its bin, and lies there as the distribution has it."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsyn.evaluation.analysis import Logit
from fedsyn.inference import Model
from fedsyn.runs.synthesis import decoding
from fedsyn.table.schema import Schema
from fedsyn.table.schema.binned import NumericColumn, Within
from fedsyn.table.schema.inside import Inside

SENSIBLE = (0.0, 1000.0, 2000.0, 4000.0, 8000.0, 16000.0, 100000.0)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=12),
    st.lists(st.integers(1, 10**5), min_size=12, max_size=12),
    st.floats(-1, 1),
    st.booleans(),
)
def test_every_number_stays_in_its_bin(counts: list[float], widths: list[int], lean: float, whole: bool) -> None:
    edges = tuple(np.cumsum([0, *widths[: len(counts)]]).astype(float))
    column = NumericColumn(bins=edges, dtype="integer" if whole else "float").shaped(np.array(counts), lean)
    codes = np.repeat(np.arange(len(counts)), 60)
    numbers, _ = column.draw(codes, np.random.default_rng(0))
    assert (column.codes_of(numbers.astype(np.float64)) == codes).all()
    inside = Inside(column.edges, np.array(counts), lean)
    share = np.tile(np.linspace(0.01, 0.99, 60), len(counts))
    place = inside.place(codes, share)
    assert (np.diff(place.reshape(-1, 60), axis=1) >= 0).all()
    loose = (place > 1e-9) & (place < 1 - 1e-9)
    assert inside.share(codes, place)[loose] == pytest.approx(share[loose], abs=1e-5)


@pytest.mark.parametrize(
    ("population", "edges", "off"),
    [
        (stats.lognorm(1.04, scale=2800), SENSIBLE, 0.02),  # uniform: 0.26 of a standard deviation
        (stats.expon(scale=3000), SENSIBLE, 0.01),  # 0.14
        (stats.lomax(3, scale=6000), SENSIBLE, 0.02),  # 0.17
        (stats.gamma(2, scale=1500), SENSIBLE, 0.02),  # 0.11
        (stats.norm(5000, 2000), tuple(np.linspace(0, 16000, 9)), 0.02),
    ],
)
@pytest.mark.parametrize("mirrored", [False, True])
def test_means_are_those_of_the_distribution(
    population: stats.rv_continuous, edges: tuple[float, ...], off: float, mirrored: bool
) -> None:
    below = np.concatenate([[0.0], population.cdf(edges[1:-1]), [1.0]])
    counts, at = np.diff(below) * 1e5, np.array(edges)
    if mirrored:
        counts, at = counts[::-1], -at[::-1]
    inside, u = Inside(at, counts), (np.arange(2000) + 0.5) / 2000
    codes = np.repeat(np.arange(len(counts)), 2000)
    means = at[:-1] + np.diff(at) * inside.place(codes, np.tile(u, len(counts))).reshape(-1, 2000).mean(axis=1)
    true = np.clip(population.ppf((np.arange(200_000) + 0.5) / 200_000), edges[0], edges[-1])
    mean = -true.mean() if mirrored else true.mean()
    assert (counts @ means / counts.sum() - mean) / true.std() == pytest.approx(0.0, abs=off)


def test_equal_counts_of_equal_bins_are_even_and_a_full_bin_between_empty_ones_too() -> None:
    even = Inside(np.arange(5.0), np.full(4, 100.0)).place(np.arange(4), np.full(4, 0.5))
    assert even == pytest.approx(np.full(4, 0.5), abs=0.01)
    heap = Inside(np.arange(6.0), np.array([10.0, 10.0, 9000.0, 10.0, 10.0]))
    assert heap.rates[2] == pytest.approx(0.0)


def test_a_range_that_cuts_a_bin_takes_the_share_that_the_density_has_there() -> None:
    edges = np.array(SENSIBLE)
    inside = Inside(edges, np.array([1600.0, 2000, 2600, 2100, 1100, 470]))
    cut = Within(edges, False, [(20000.0, 100000.0)], inside)
    codes = np.full(20_000, 5)
    whole = edges[5] + 84000 * inside.place(codes, np.random.default_rng(1).random(20_000))
    assert cut.weights[5] == pytest.approx((whole >= 20000).mean(), abs=0.015)  # four standard deviations
    drawn = cut.draw(codes, np.random.default_rng(2).random(len(codes)))
    assert drawn.min() >= 20000 and np.median(drawn) == pytest.approx(np.median(whole[whole >= 20000]), rel=0.05)


def test_a_shaped_column_draws_a_tail_that_decays_as_far_as_the_distribution_does() -> None:
    """Above 16,000 this log-normal column has a mean of 26,800; even draws have 58,000, an exponential tail 22,600."""
    below = np.concatenate([[0.0], stats.lognorm(1.04, scale=2800).cdf(SENSIBLE[1:-1]), [1.0]])
    column = NumericColumn(bins=SENSIBLE).shaped(np.diff(below) * 1e5)
    numbers, _ = column.draw(np.full(40_000, 5), np.random.default_rng(0))
    assert numbers.mean() == pytest.approx(26_800, rel=0.06)  # ten standard errors and what the rule misses
    low, high = (NumericColumn(bins=SENSIBLE).shaped(np.diff(below) * 1e5, lean) for lean in (-1.0, 1.0))
    means = [each.draw(np.full(40_000, 5), np.random.default_rng(0))[0].mean() for each in (low, column, high)]
    assert means == sorted(means) and means[2] > 1.1 * means[0]


@pytest.mark.parametrize("population", [stats.t(10), stats.gumbel_r(), stats.beta(5, 5), stats.lognorm(0.5)])
@pytest.mark.parametrize("bins", [16, 32])
def test_an_analysis_goes_on_with_how_the_index_of_a_tail_changed(population: stats.rv_continuous, bins: int) -> None:
    """Exact counts: the means of both outer bins are those of the distribution, which three bins alone do not give."""
    low, high = population.ppf([1e-6, 1 - 1e-6])
    edges = np.r_[low - 0.1 * (high - low), population.ppf(np.arange(1, bins) / bins), high + 0.1 * (high - low)]
    u = (np.arange(2000) + 0.5) / 2000

    def off(lean: float | None, at: int) -> float:
        inside = Inside(edges, np.full(bins, 1e6), lean)
        inner = edges[1] if at == 0 else edges[-2]
        made = edges[at] + inside.place(np.full(2000, at), u).mean() * (edges[at + 1] - edges[at]) - inner
        return float(abs(made / (population.ppf((u + at) / bins).mean() - inner) - 1.0))

    told, alone = (max(off(lean, 0), off(lean, bins - 1)) for lean in (0.0, None))
    assert told < 0.04 and told < alone / 2


STAYS = (0.0, 2.0, 4.0, 6.0, 9.0, 15.0, 60.0)


def _linked(population: stats.rv_continuous, slope: float) -> tuple[npt.NDArray[np.float64], ...]:
    """Values, outcomes, tables with numbers linked and not, of exact counts of a column's bins with an outcome."""
    rng, rows = np.random.default_rng(0), 60_000
    x = np.minimum(population.rvs(rows, random_state=rng), 60.0)
    y = (rng.random(rows) < 1.0 / (1.0 + np.exp(1.5 - slope * x))).astype(int)
    column = NumericColumn(bins=STAYS)
    schema = Schema(columns={"x": column, "y": NumericColumn(lower=0, upper=1, dtype="integer")}, approved=True)
    codes = np.column_stack([column.codes_of(x), y]).astype(np.intp)
    counts = np.maximum(np.bincount(codes @ [2, 1], minlength=12).reshape(6, 2), 0.5)
    model = Model(schema.domain, {("x", "y"): np.log(counts)}, rows)
    linked, by_chance = (decoding(schema, model, lean).decode(codes, np.random.default_rng(1)).x for lean in ({}, None))
    assert (column.codes_of(np.asarray(linked)) == codes[:, 0]).all()
    return x, y, np.asarray(linked), np.asarray(by_chance)


def _slope(values: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    return float(Logit().estimate(y, np.column_stack([np.ones(len(y)), values]), ["1", "x"])[0][1])


@pytest.mark.parametrize(("population", "slope"), [(stats.expon(scale=5), 0.11), (stats.gamma(2, scale=3), -0.2)])
def test_numbers_that_go_by_the_rest_of_their_rows_have_its_slope_and_the_column_its_density(
    population: stats.rv_continuous, slope: float
) -> None:
    """Unlinked, the coefficient is 7 and 5% too small; a standard error of it is 2%, but the rows are the same."""
    x, y, linked, by_chance = _linked(population, slope)
    whole, kept, lost = (_slope(values, y) for values in (x, linked, by_chance))
    assert kept == pytest.approx(whole, rel=0.03) and abs(lost / whole - 1) > 0.04
    for low, high in itertools.pairwise(STAYS):
        one, other = (each[(each >= low) & (each < high)] for each in (linked, by_chance))
        assert stats.ks_2samp(one, other, method="asymp").pvalue > 1e-4, (low, high)  # twelve tests: 0.1% together


def test_the_index_of_a_tail_is_less_open_the_less_is_in_its_bins() -> None:
    edges = np.r_[-100.0, np.linspace(0, 10, 40), 100.0]
    few = Inside(edges, np.exp(-edges[:-1].clip(0)), 1.0), Inside(edges, np.exp(-edges[:-1].clip(0)), -1.0)
    many = Inside(edges[-4:], np.full(3, 100.0), 1.0), Inside(edges[-4:], np.full(3, 100.0), -1.0)
    apart = [first.indices[-1] - second.indices[-1] for first, second in (few, many)]
    assert 0 < apart[0] < apart[1]
