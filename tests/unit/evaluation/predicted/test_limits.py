"""What is said of links that were not seen: chances of looks by many tries, and sentences beside planted links."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from experiments.held_out.held_cells import Cell
from experiments.verdicts.frames import dropouts, logs
from experiments.verdicts.unseen import _WORKLOAD, associations, grouped, said, taken
from fedsyn.domain import Domain
from fedsyn.evaluation.predicted.effects import Effects, SketchError
from fedsyn.evaluation.predicted.limits import Contrasts, Foreseen, limit, most_said, needed, raised
from fedsyn.evaluation.predicted.links import SeenLink, SeenLinks, looks, seen_links
from fedsyn.evaluation.predicted.looks import Measured, Sketched
from fedsyn.evaluation.scores import association
from fedsyn.inference import Evidence, Measurement, estimate
from fedsyn.privacy.budget import PrivacyBudget
from fedsyn.registry import contract_class
from fedsyn.table.schema import Schema

TRIES = 200  # of a look: 90% of them have a standard deviation of 2.1%


@pytest.mark.parametrize("free", [1, 4, 49])
@pytest.mark.parametrize("chance", [0.05, 1e-4])
def test_nine_of_ten_looks_exceed_the_threshold_at_what_they_need(free: int, chance: float) -> None:
    """40,000 looks: their share has a standard deviation of 0.15%, so five of them are off once in two million runs."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(40_000, free))
    least = np.quantile((noise**2).sum(axis=1), 1.0 - chance) if chance > 0.01 else None
    squared = ((noise + np.sqrt(needed(free, chance) / free)) ** 2).sum(axis=1)
    if least is not None:
        assert (squared > least).mean() == pytest.approx(0.9, abs=0.0125)
    assert (squared - free > 30.0).mean() >= 0 and needed(free, chance / 2) > needed(free, chance)
    floor = 20.0
    above = ((noise + np.sqrt(float(raised(floor, free)) / free)) ** 2).sum(axis=1) - free
    assert (above > floor).mean() == pytest.approx(0.9, abs=0.02)  # nearly normal: 1% of that


def contrasts(mass: list[float], ordered: int = 0, groups: list[int] | None = None) -> Contrasts:
    at = np.where(np.arange(len(mass)) < ordered, np.arange(len(mass)), np.nan) if ordered else None
    return Contrasts.of(np.array(mass), at, np.arange(len(mass)) if groups is None else np.array(groups))


def test_contrasts_are_scores_and_single_groups() -> None:
    """Each has mean 0 and variance 1, but for the scores what groups leave of it."""
    plain, dated = contrasts([0.5, 0.3, 0.2]), contrasts([0.2, 0.2, 0.2, 0.2, 0.2], ordered=4)
    assert plain.shares.tolist() == [0.5, 0.3, 0.2] and plain.hermite is None
    assert len(contrasts([0.4, 0.6]).shares) == 1 and len(contrasts([1.0]).shares) == 0
    assert np.isnan(dated.shares[0]) and dated.shares[1:].tolist() == [0.2]  # the missing one
    for one in (plain, dated):
        mass = np.array([0.5, 0.3, 0.2] if one is plain else [0.2] * 5)
        assert one.parts.sum(axis=1) == pytest.approx(0.0, abs=1e-9)
        squares = (one.parts**2 / mass).sum(axis=1)
        assert squares[~np.isnan(one.shares)] == pytest.approx(1.0)
    whole = contrasts([1 / 64] * 64, ordered=64)
    assert whole.hermite is not None and whole.hermite[0, 0] == pytest.approx(1.0, abs=0.02)
    assert whole.between(np.repeat([0, 1], 32))[0] == pytest.approx([-0.3989, 0.3989], abs=1e-3)  # the density at 0


@pytest.mark.parametrize(("p", "q"), [(0.1, 0.1), (0.1, 0.5), (0.3, 0.8), (0.6, 0.7)])
def test_two_groups_are_no_stronger_linked_than_their_shares_allow(p: float, q: float) -> None:
    """Brute force over all two-by-two tables; just below the largest correlation there is a limit, just above none."""
    share = np.linspace(max(0.0, p + q - 1.0), min(p, q), 2001)
    most = float((((share - p * q) ** 2) / (p * (1 - p) * q * (1 - q))).max())
    pair = contrasts([p, 1 - p]), contrasts([q, 1 - q])
    assert limit(pair, np.array([[0.999 * most]]), 1.0) == pytest.approx(np.sqrt(0.999 * most))
    assert limit(pair, np.array([[1.001 * most]]), 1.0) == np.inf


def test_a_group_beside_scores_is_no_more_than_a_tail() -> None:
    z = np.sort(np.random.default_rng(0).normal(size=400_000))
    missing, dated = contrasts([0.2, 0.8]), contrasts([1 / 32] * 32, ordered=32)
    tail = np.corrcoef(z, np.arange(400_000) >= 320_000)[0, 1] ** 2
    assert limit((missing, dated), np.array([[0.98 * tail]]), 1.0) < 1.0
    assert limit((missing, dated), np.array([[1.02 * tail]]), 1.0) == np.inf


def test_scores_bring_their_higher_terms_with_them() -> None:
    """Normal variables in eight groups: V of the correlation that the look needs, by 400,000 of them."""
    sides = contrasts([1 / 8] * 8, ordered=8), contrasts([1 / 8] * 8, ordered=8)
    z = np.random.default_rng(1).multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], 400_000)
    codes = np.argsort(np.argsort(z, axis=0), axis=0) // 50_000
    table = np.zeros((8, 8))
    np.add.at(table, (codes[:, 0], codes[:, 1]), 1 / 400_000)
    assert limit(sides, np.array([[0.49]]), 7.0) == pytest.approx(association(table, 400_000), abs=0.01)


def test_the_limit_is_that_of_the_worst_link_and_nothing_is_said_where_strong_ones_hide() -> None:
    pair = contrasts([0.5, 0.3, 0.2]), contrasts([0.5, 0.3, 0.2])
    seen = np.full((3, 3), 0.04)
    assert limit(pair, seen, 2.0) == pytest.approx(np.sqrt(0.04 / 2.0))
    seen[1, 2] = 0.09  # one kind of link needs more
    assert limit(pair, seen, 2.0) == pytest.approx(np.sqrt(0.09 / 2.0))
    seen[0, 2] = 9.0  # this one is never seen, but cannot be strong: 0.5 holds or excludes 0.2
    assert limit(pair, seen, 2.0) == pytest.approx(np.sqrt(0.25 / 2.0))
    seen[0, 2] = 0.3  # nor is this one, by a little
    assert limit(pair, seen, 2.0) == pytest.approx(np.sqrt(0.25 / 2.0))
    seen[2, 2] = 9.0  # 0.2 and 0.2 may go together in every row
    assert limit(pair, np.where(seen > 1.0, 9.0, 9.0), 2.0) == np.inf
    assert limit((pair[0], contrasts([1.0])), np.empty((3, 0)), 1.0) == np.inf


def test_of_all_limits_the_one_that_rules_out_most_is_said() -> None:
    assert most_said([0.3] * 50 + [0.9] * 52 + [np.inf] * 7) == (50, 0.3)
    assert most_said([0.1, 0.2, 0.2, 1.2]) == (3, 0.2)
    assert most_said([0.3] * 50 + [0.6] * 30) == (50, 0.3) and most_said([0.3] * 50 + [0.6] * 40) == (90, 0.6)
    assert most_said([np.inf, 1.3]) == most_said([]) == (0, 1.0)


def foreseen(rows: int, mu2: float, missing: dict[str, float] | None = None, columns: int = 3) -> Foreseen:
    """Of yes-no columns, the first of which may be missing."""
    described = {f"c{i}": {"kind": "boolean", "missing": i == 0 and missing is not None} for i in range(columns)}
    return Foreseen(Schema.from_dict({"columns": described}), missing or {}, rows, mu2, 16, 0)


def test_before_a_run_the_limit_is_that_of_even_columns() -> None:
    """By hand: halves of equal mass, a quarter of squared sensitivity for each pair, one dimension of noise."""
    for rows, mu2, looked in ((2_000, 0.01, 3), (2_000, 0.01, 1), (200, 5.0, 3)):
        variance = (0.25 * looked / mu2 / rows + 0.25) / rows
        expected = np.sqrt(needed(1, 0.05 / looked) * variance / 0.25)
        assert foreseen(rows, mu2).limits(looked) == pytest.approx([expected] * 3)
    assert foreseen(2_000, 0.001).said(3) == (3, pytest.approx(foreseen(2_000, 0.001).limits(3)[0]))
    assert foreseen(10**6, 1.0).said(3) == (3, 0.1)  # no weaker one is called a link
    assert foreseen(50, 1e-4).said(3) == (0, 1.0) and foreseen(50, 1e-4).most() == 0
    few, many = (max(foreseen(4_000, 0.1, {"c0": share}).limits(3)) for share in (0.03, 0.5))
    assert few > 1.5 * many  # rare missing values hide


def test_before_a_run_combinations_of_three_take_their_part_of_the_budget_where_all_pairs_are_looked_at() -> None:
    """By hand: each of four in eight entries adds an eighth of squared sensitivity.

    A pair is in two of them, so that they may have 2^(1/3) times as much noise.
    """
    columns = {f"c{i}": {"kind": "boolean"} for i in range(4)}
    one = Foreseen(Schema.from_dict({"columns": columns}), {}, 2_000, 0.01, 8, 4)
    for looked, squared in ((6, 6 / 4 + 4 / 8 / 2 ** (2 / 3)), (3, 3 / 4)):
        variance = (squared / 0.01 / 2_000 + 0.25) / 2_000
        assert one.limits(looked) == pytest.approx([np.sqrt(needed(1, 0.05 / looked) * variance / 0.25)] * 6)


def test_before_a_run_a_link_of_two_values_and_eight_is_one_of_two() -> None:
    """Of even columns either value and each of eight; the squares of an association of 1 are those of fewer values."""
    eight = {"kind": "categorical", "categories": list("abcdefgh"), "other": False}
    one = Foreseen(Schema.from_dict({"columns": {"x": {"kind": "boolean"}, "y": eight}}), {}, 2_000, 0.01, 16, 0)
    spread = (1 / 2) * (7 / 8)
    variance = (spread / 0.01 / 2_000 + spread / 7) / 2_000
    shown = 2 * 0.5**2, (7 / 64 + 7 / 64 / 7) * 1.0
    expected = np.sqrt(needed(7, 0.05) * variance / (shown[0] * shown[1]))
    assert one.limits(1) == pytest.approx([expected]) and expected < 1.0


def test_a_hundred_pairs_stand_for_all() -> None:
    one = foreseen(10**6, 1.0, columns=20)
    assert one.said(190) == (190, 0.1) and len(one.limits(190)) == 95 and one.said(19)[0] == 19


def test_before_a_run_so_many_pairs_may_be_looked_at_as_show_links() -> None:
    one = foreseen(3_000, 0.01, columns=12)
    most = one.most()
    assert 1 < most < one.pairs
    assert max(one.limits(most)) <= 0.1 < max(one.limits(most + 1))
    assert foreseen(3_000, 0.01, {"c0": 0.02}, columns=12).most() == 0  # links of missing values are in eleven of 66


# Looks at planted links -----------------------------------------------------------------------------------------------

ROWS = 2_000.0


def tables(values: int, strength: float) -> np.ndarray:
    """Exact counts of two columns of so many values that agree beyond chance: V = strength."""
    even = np.full((values, values), 1.0 / values**2)
    return ROWS * ((1.0 - strength) * even + strength * np.eye(values) / values)


def sketch_of(noisy: np.ndarray, rows: float, sigma: float, pair: tuple[str, str]) -> SketchError:
    """A sketch by the values themselves, of a table of which independence is the model."""
    values = len(noisy)
    off = noisy - noisy.mean(axis=0) - noisy.mean(axis=1, keepdims=True) + noisy.mean()
    k = (values - 1) ** 2
    squared = float((off**2).sum()) - k * sigma**2
    each = tuple(np.arange(values) for _ in range(2))
    spread, scatter = float(np.sqrt(2 * k)) * sigma**2, rows * (1 - 1 / values) ** 2
    return SketchError(pair, squared, spread, scatter, values**2, each, squared, k)


def look(rng: np.random.Generator, exact: np.ndarray, sigma: float, how: str, pairs: int) -> tuple[bool, float]:
    """Whether a look at two columns sees a link, and its limit; so many further pairs were not looked at."""
    values = len(exact)
    domain = Domain(("a", "b", "c"), (values, values, 2))
    drawn = rng.multinomial(int(ROWS), (exact / exact.sum()).ravel()).reshape(exact.shape).astype(float)
    measured = [Measurement(("a",), drawn.sum(1), 1e-3), Measurement(("b",), drawn.sum(0), 1e-3)]
    noisy, sketches = drawn + rng.normal(0, sigma, drawn.shape), list[SketchError]()
    if how == "measured":
        measured.append(Measurement(("a", "b"), noisy, sigma))
    else:
        apart = np.outer(drawn.sum(1), drawn.sum(0)) / ROWS
        sketches = [sketch_of(noisy - apart, ROWS, sigma, ("a", "b"))]
    model = estimate(domain, measured[:2], total=ROWS)
    effects = Effects(model, Evidence(tuple(measured), ROWS), sketches, [("a", "b")])
    every = [("a", "b"), *[("a", "c")] * pairs]
    (found,) = looks(effects, sketches, every, None, {})
    return found.link is not None, found.limit


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("how", ["measured", "sketched"])
@pytest.mark.parametrize(("values", "pairs"), [(2, 0), (2, 40), (4, 40)])
def test_nine_of_ten_links_at_the_limit_are_seen(how: str, values: int, pairs: int) -> None:
    """200 looks at a link as strong as the limit, 90% and more of which see it, and at one of half of that.

    Of four values the limit is that of one value against the others, and a link of all of them shows no less. A share
    of 200 has a standard deviation of 2.1%: three and a half of them are exceeded once in 4,000 runs.
    """
    rng = np.random.default_rng([values, pairs, len(how)])
    sigma = 25.0 / values
    _, least = look(rng, tables(values, 0.3), sigma, how, pairs)
    assert 0.05 < least < 0.6
    shares = [
        np.mean([look(rng, tables(values, strength), sigma, how, pairs)[0] for _ in range(TRIES)])
        for strength in (least, 0.5 * least)
    ]
    assert shares[0] > 0.825 and shares[1] < 0.6
    assert values > 2 or shares[0] < 0.975


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("how", ["measured", "sketched"])
def test_of_a_table_without_links_one_in_twenty_sees_one(how: str) -> None:
    """45 pairs of 10 columns, 60 tables: 3 are expected, more than 11 once in 10^4; by a chance for each pair 54."""
    names = tuple(f"c{i}" for i in range(10))
    domain, pairs, rng = Domain(names, (2,) * 10), list(combinations(names, 2)), np.random.default_rng(5)
    even, false = [Measurement((name,), np.full(2, 250.0), 1e-3) for name in names], 0
    model = estimate(domain, even, total=500.0)
    for _ in range(60):
        noisy = {q: rng.multinomial(500, [0.25] * 4).reshape(2, 2) + rng.normal(0, 9, (2, 2)) for q in pairs}
        released = [Measurement(q, counts, 9.0) for q, counts in noisy.items()] if how == "measured" else []
        sketches = [] if released else [sketch_of(counts, 500.0, 9.0, q) for q, counts in noisy.items()]
        effects = Effects(model, Evidence((*even, *released), 500.0), sketches, pairs)
        false += bool(seen_links(effects, sketches, pairs, None, {}).links)
    assert false <= 11


def test_values_that_a_look_counts_together_hide_their_links() -> None:
    """Missing values counted with the largest numbers, or by themselves."""
    few = np.arange(9)
    mass = [0.1] * 8 + [0.2]
    column, other = Contrasts.of(np.array(mass), np.r_[np.arange(8.0), np.nan], few), contrasts([0.5, 0.5])
    apart, together = np.r_[np.repeat([0, 1], 4), 2], np.r_[np.repeat([0, 1], 4), 1]
    lengths = []
    for groups in (apart, together):
        shown = (column.between(groups) ** 2).sum(axis=1)
        lengths.append(0.002 / np.outer(shown, (other.between(np.arange(2)) ** 2).sum(axis=1)))
    assert lengths[1][1, 0] > 2 * lengths[0][1, 0]  # of missing values
    assert limit((column, other), lengths[1], 1.0) > 1.3 * limit((column, other), lengths[0], 1.0)


# Against tables as they are written -----------------------------------------------------------------------------------


def test_an_association_is_that_of_written_values() -> None:
    """Zero with zero, missing with missing, words by name; a rare word joins the others."""
    frame = logs(2)
    real = associations(frame)
    level = grouped(frame["level"])
    assert real["level", "status_code"] > 0.5 and real["method", "region"] < 0.03
    assert len(np.unique(level)) == 4 and len(np.unique(grouped(frame["host"]))) == 8
    dropped = dropouts(2)
    assert associations(dropped[["sbp_v4", "completed"]])["sbp_v4", "completed"] > 0.5


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:not stated")
@pytest.mark.parametrize("make", [dropouts, logs])
def test_of_links_above_the_limit_at_most_one_in_ten_is_called_unlinked(make: object) -> None:
    """`experiments/verdicts/unseen.py` in small: a trial whose patients drop out, and a server's log; three seeds."""
    tolds = []
    for seed in (1, 2, 3):
        frame = make(2).sample(4_000, random_state=seed, replace=True, ignore_index=True)  # type: ignore[operator]
        columns = list(frame)[:10] + [name for name in ("completed", "last_visit") if name in frame]
        frame, schema = frame[columns], Schema.draft(frame[columns]).approve()
        pairs, some = taken(frame, schema, Cell("", len(frame), 3.0, seed, "sketch_aim", _WORKLOAD))
        told = said(frame, pairs, some)
        assert told.unlinked >= 0.2 * (pairs - told.seen) and 0.1 < told.limit < 0.6
        tolds.append(told)
        # Before the run `init` says about the same.
        codes = schema.encode(frame)
        mu2 = PrivacyBudget(3.0, 1e-5).mu ** 2 * contract_class("sketch_aim").Options().sketch_share
        shown, least = Foreseen(schema, frame.isna().mean().to_dict(), len(codes), mu2, 64, 1000).said(pairs)
        assert shown > 0 and least == pytest.approx(told.limit, rel=0.5)
    seen, missed = (sum(getattr(told, name) for told in tolds) for name in ("seen", "missed"))
    assert missed <= 0.1 * (missed + seen) and seen >= 6


# Sentences ------------------------------------------------------------------------------------------------------------


def test_what_is_said_of_links_that_were_not_seen() -> None:
    link = SeenLink(("a", "b"), 0.4, 0.38, 0.9, 0.02)
    some = SeenLinks((link,), 103, 103, 80, 0.321)
    assert some.sentence() == (
        "no link was seen in 80 other pairs; nine of ten with an association above 0.33 would have been. The noise was "
        "too strong to say anything about links in 22 other pairs"
    )
    assert (some.unknown, some.hidden, some.hiding()) == (22, 102, "noise may hide links in 102 of 103 pairs")
    assert replace(some, least=0.12).hidden == 22  # what is called a link would have been seen in the others
    none = replace(some, links=(), unlinked=0, least=1.0)
    assert none.sentence() == "the noise was too strong to say anything about links in 103 pairs"
    assert (
        replace(none, looked=60).sentence() == "nothing can be said about links in 103 pairs (43 of them not looked at)"
    )
    assert replace(none, looked=0).sentence() == "nothing was released about links in 103 pairs"
    assert replace(none, looked=0).hiding() == "nothing released shows links in 103 pairs"
    assert SeenLinks((link,), 1, 1).sentence() == SeenLinks((link,), 1, 1).hiding() == ""
    assert SeenLinks((), 1, 1, 1, 0.2).sentence().startswith("no link was seen in the pair; nine")


def test_a_link_that_a_stated_rule_makes_is_not_lost() -> None:
    lost = SeenLink(("a", "b"), 0.39, 1.0, 0.1, 0.02)
    assert lost.judged().state == "lost"
    ruled = replace(lost, ruled=True).judged()
    assert ruled.state == "changed" and "a stated rule links them in every row" in ruled.why
    assert replace(lost, ruled=True, kept=0.95).judged().state == "kept"


def test_pairs_of_a_stated_rule_are_known() -> None:
    """A constraint's impossible cells, and codes that lie in one group each."""
    columns = {"x": {"kind": "integer", "lower": 0, "upper": 7}, "y": {"kind": "integer", "lower": 0, "upper": 7}}
    columns |= {n: {"kind": "categorical", "categories": ["p", "q"], "other": False} for n in ("school", "town", "z")}  # type: ignore[dict-item]
    rules = ["x <= y", {"nested": ["school", "town"]}]
    schema = Schema.from_dict({"columns": columns, "constraints": rules})
    domain, rng = schema.domain, np.random.default_rng(3)
    first = rng.integers(0, 8, 4_000)
    second, flags = np.minimum(7, first + rng.integers(0, 3, 4_000)), rng.integers(0, 2, 4_000)
    codes = {
        "x": first,
        "y": second,
        "school": flags,
        "town": flags,
        "z": np.where(rng.random(4_000) < 0.7, flags, 1 - flags),
    }
    table = np.stack([codes[name] for name in domain], axis=1)
    pairs = list(combinations(domain, 2))
    released = [
        Measurement(q, np.histogramdd(table[:, list(domain.axes(q))], [np.arange(domain[n] + 1) for n in q])[0], 3.0)
        for q in pairs
    ]
    model = estimate(domain, released, total=4000.0)
    found = seen_links(Effects(model, Evidence(tuple(released), 4000.0), (), pairs), (), pairs, schema, {})
    ruled = {link.columns for link in found.links if link.ruled}
    assert ruled == {domain.canonical(("x", "y")), domain.canonical(("school", "town"))}
    assert len(found.links) == 4 and 0 < found.unlinked <= 6  # z beside school and town


@pytest.mark.parametrize(("gone", "association"), [(0.7, 1.0), (0.85, 0.64)])
def test_a_stated_rule_is_seen_however_strong_the_noise(gone: float, association: float) -> None:
    """Whoever is there has no last day, and of those who left some have none either."""
    columns = {"day": {"kind": "integer", "lower": 0, "upper": 7, "missing": True}}
    columns |= {"state": {"kind": "categorical", "categories": ["there", "left"], "other": False}}  # type: ignore[dict-item]
    rule = {"when": {"state": "there"}, "then": {"day": None}}
    domain = Schema.from_dict({"columns": columns, "constraints": [rule]}).domain
    rows, noise = 2_000.0, np.random.default_rng(5).normal(0, 900.0, (9, 2))
    days = np.append(np.full(8, (1 - gone) / 8), gone)
    ones = [Measurement(("day",), rows * days, 1.0), Measurement(("state",), rows * np.array([0.7, 0.3]), 1.0)]
    released = [*ones, Measurement(("day", "state"), rows * np.outer(days, [0.7, 0.3]) + noise, 900.0)]
    schema = Schema.from_dict({"columns": columns, "constraints": [rule]})
    model, evidence = estimate(domain, ones, total=rows), Evidence(tuple(released), rows)
    (link,) = seen_links(Effects(model, evidence, (), [("day", "state")]), (), [("day", "state")], schema, {}).links
    assert link.ruled and link.seen == pytest.approx(association, abs=0.02) and link.judged().state == "kept"


# Pieces of a look -----------------------------------------------------------------------------------------------------

EVEN = np.full((4, 4), 1 / 16)
TURN = np.kron([[1, -1], [-1, 1]], np.ones((2, 2))) / 16


def fitted(rows: float, sigma: float, drawn: np.ndarray) -> Effects:
    """Effects of a model of two independent columns of four values, beside noisy counts of both."""
    domain = Domain(("a", "b"), (4, 4))
    even = [Measurement((name,), np.full(4, rows / 4), 1e-3) for name in domain]
    evidence = Evidence((*even, Measurement(("a", "b"), drawn, sigma)), rows)
    return Effects(estimate(domain, even, total=rows), evidence, (), [("a", "b")])


@pytest.mark.parametrize("strength", [0.0, 0.4])
def test_what_a_look_says_of_a_link_is_what_the_population_has(strength: float) -> None:
    """150 tables of 100 rows: |r|^2 without what chance adds (9/100); a mean is known to 0.01, four of them allowed."""
    rng, few, counted, sketched = np.random.default_rng(2), (np.arange(4), np.arange(4)), list[float](), list[float]()
    for _ in range(150):
        drawn = rng.multinomial(100, (EVEN + strength * TURN).ravel()).reshape(4, 4) + rng.normal(0, 0.5, (4, 4))
        effects = fitted(100.0, 0.5, drawn)
        counted.append(Measured(effects, ("a", "b"), few).squared)
        sketched.append(Sketched(effects, ("a", "b"), sketch_of(drawn, 100.0, 0.5, ("a", "b")), 1.0).squared)
    assert np.mean(counted) == pytest.approx(strength**2, abs=0.04)
    assert np.mean(sketched) == pytest.approx(strength**2, abs=0.04)


def test_the_doubt_of_what_a_sketch_sees_kept_is_its_spread() -> None:
    """400 sketches with noise alone: rows have 0.8 of the table's link; the spread of the share is known to 4%."""
    times = 0.8
    rng, pair, table = np.random.default_rng(3), ("a", "b"), 0.4 * TURN
    effects, shares = fitted(10_000.0, 1.0, 10_000 * EVEN), list[tuple[float, float]]()
    for _ in range(400):
        noise = rng.normal(0, 15.0, (4, 4))
        seen = sketch_of(10_000 * times * table + noise, 1e-9, 15.0, pair)
        last = sketch_of(10_000 * (times - 1.0) * table + noise, 1e-9, 15.0, pair).squared
        sketch = Sketched(effects, pair, replace(seen, squared=last), max(last, 0.0))
        shares.append(sketch.kept(EVEN + table, 3.0))
    kept, spread = np.array(shares).T
    assert kept.mean() == pytest.approx(times, abs=0.05)
    assert kept.std() == pytest.approx(spread.mean(), rel=0.35)
