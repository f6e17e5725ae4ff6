"""What is said of a table from released values: thresholds from both sides, and intervals written down again."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2, gamma, norm

from fedsyn.domain import Clique, Domain
from fedsyn.evaluation.predicted import PredictedError, PredictedQuality, SketchError, predict_quality
from fedsyn.evaluation.predicted.effects import Scenario
from fedsyn.evaluation.predicted.links import SeenLink, SeenLinks
from fedsyn.evaluation.predicted.quality import SCENARIOS, SPREADS, WORLDS, Predictor
from fedsyn.evaluation.predicted.unlisted import UnlistedShare
from fedsyn.inference import Evidence, Measurement, estimate
from fedsyn.table.counting.workload import Workload

# Links ----------------------------------------------------------------------------------------------------------------


def state(kept: float, spread: float, **facts: object) -> str:
    return SeenLink(("a", "b"), 0.4, 0.3, kept, spread, **facts).judged().state  # type: ignore[arg-type]


def test_a_link_is_called_kept_or_lost_by_one_and_a_half_standard_deviations() -> None:
    """A quarter may be gone of a kept one, and more than a half is of a lost one."""
    assert (state(0.9, 0.099), state(0.9, 0.101)) == ("kept", "changed")
    assert (state(0.35, 0.099), state(0.35, 0.101)) == ("lost", "changed")
    assert state(0.2, 0.0, ruled=True) == "changed" and state(0.2, 0.0) == "lost"


def test_unseen_links_are_hidden_unless_their_limit_is_what_is_called_a_link() -> None:
    """As many digits as are said: 0.149 is 0.1, and 0.151 is 0.2."""
    some = SeenLinks((), 10, 10, 8, 0.149)
    assert (some.hidden, replace(some, least=0.151).hidden) == (2, 10)
    assert "above 0.15 would" in some.sentence() and "above 0.32 would" in replace(some, least=0.311).sentence()
    # Of pairs about which nothing is known some were not looked at; it is said where not all of them are.
    unseen = replace(some, looked=9)
    assert unseen.sentence().endswith("about links in 2 other pairs (1 of them not looked at)")
    assert unseen.sentence().replace(" (1 of them not looked at)", "") == replace(some, looked=8).sentence()


# Columns and the verdict ----------------------------------------------------------------------------------------------


def error(*columns: str, value: float = 0.1) -> PredictedError:
    return PredictedError(columns, value, 0.9 * value, 1.1 * value, "measured")


GAINS = {"twice the rows": 0.16, "twice the epsilon": 0.12, "every association that was seen": 0.1}
QUALITY = PredictedQuality(error(value=0.2), (error("a"), error("b")), scenarios=GAINS)


def test_the_rows_that_differ_are_half_of_a_distance() -> None:
    """A distance of 0.42 moves 21% of the rows, and a fifth is lost; one of 0.19 keeps the column."""
    columns = (error("a", value=0.42), error("b", value=0.38), error("c", value=0.19))
    found = replace(QUALITY, columns=columns).judged_columns()
    assert [one.state for one in found] == ["lost", "changed", "kept"]
    assert found[0].why == "about 21% of its rows differ from the real ones in bin or value"


def test_a_verdict_has_doubt_and_counts_what_is_hidden() -> None:
    strong, weak = SeenLink(("a", "b"), 0.5, 0.2, 0.4, 0.0), SeenLink(("a", "c"), 0.2, 0.45, 0.4, 0.0)
    links = SeenLinks((weak, strong), 6, 6, 2, 0.3)
    found = replace(QUALITY, seen=links).verdict()
    assert [one.name for one in found.foremost] == ["a × b"] and (found.doubt, found.hidden) == (True, 4)
    assert found.unseen == "noise may hide links in 4 of 6 pairs" and found.why == "it needs real rows"


def test_a_pair_is_sure_if_its_link_and_both_of_its_columns_are_kept() -> None:
    links = [SeenLink(pair, seen, 0.4, 0.95, 0.05) for pair, seen in ((("a", "b"), 0.3), (("b", "c"), 0.5))]
    links += [SeenLink(("a", "d"), 0.4, 0.4, 0.95, 0.3), SeenLink(("a", "c"), 0.2, 0.2, 0.95, 0.05)]
    columns = (error("a"), error("b"), error("c"), error("d"))
    found = replace(QUALITY, columns=columns, seen=SeenLinks(tuple(links), 6, 6)).verdict()
    assert found.sure == ["b × c", "a × b", "a × c"]
    moved = replace(
        QUALITY, columns=(*columns[:2], error("c", value=0.3), columns[3]), seen=SeenLinks(tuple(links), 6, 6)
    )
    assert moved.verdict().sure == ["a × b"] and moved.verdict().good()[-1].name == "the table of a × b"


def test_what_to_do_next_is_what_costs_most() -> None:
    """Values that are `other`, or not listed, beyond what is called lost; else what makes the error smallest."""
    assert QUALITY.remedy() == "run with twice the epsilon" and replace(QUALITY, scenarios={}).remedy() == (
        "raise epsilon or bring more rows"
    )
    assert replace(QUALITY, other={"ward": 0.19}).remedy() == "run with twice the epsilon"
    assert replace(QUALITY, other={"ward": 0.21}).remedy() == "in the schema, list the values of ward"
    assert replace(QUALITY, other={"dose": 0.21}, numbers=("dose",)).remedy() == "in the schema, read dose as numbers"
    some = UnlistedShare("city", 0.21, 0.2, 0.22, True, False)
    assert replace(QUALITY, unlisted=(some,)).remedy() == "in the schema, list the values of city"
    for less in (replace(some, value=0.19), replace(some, seen=False)):
        assert replace(QUALITY, unlisted=(less,)).remedy() == "run with twice the epsilon"


def test_limits_that_cost_a_fifth_of_the_error_are_named_before_epsilon() -> None:
    """Values that the schema does not list stand before them."""
    limited = replace(QUALITY, limited=0.2, widest=("a", "b"))
    limits = "use fewer bins for a and b, or raise inference.max_message_passing_cost and max_cells"
    assert limited.remedy() == limits and limited.verdict().sentences()[-1] == f"Next: {limits}."
    assert "about 20% smaller without the limits on the model's size" in limited.advice()
    assert replace(limited, limited=0.19).remedy() == "run with twice the epsilon"
    assert replace(limited, other={"ward": 0.21}).remedy() == "in the schema, list the values of ward"
    assert PredictedQuality.from_dict(limited.to_dict()) == limited and "limited" not in QUALITY.to_dict()


def test_what_would_lower_the_error_is_said_from_one_in_a_hundred_on() -> None:
    """Of an error of 0.2."""
    assert QUALITY.advice() == (
        "The error would be up to 50% smaller if the model had every association that was seen, about 40% smaller with "
        "twice the epsilon and about 20% smaller with twice the rows. Such a run also measures more. "
        "That often gains more, and is not counted."
    )
    one = replace(QUALITY, scenarios={"twice the rows": 0.19799, "twice the epsilon": 0.19801})
    assert one.advice().startswith("The error would be about 1% smaller with twice the rows. Such a run")
    assert replace(QUALITY, scenarios={"twice the rows": 0.1981}).advice() == ""


def test_the_scenarios_are_what_they_are_called() -> None:
    """Noise goes with one over epsilon."""
    assert [*SCENARIOS.values()] == [Scenario(rows=2.0), Scenario(noise=0.5), Scenario(all_seen=True)]
    assert [*SCENARIOS] == [*GAINS]


# Intervals ------------------------------------------------------------------------------------------------------------

DOMAIN = Domain(("a", "b", "c"), (4, 4, 4))
ROWS = 4_000.0
ONES: list[Clique] = [(name,) for name in DOMAIN]
SEEN = Scenario()
PAIRS: list[Clique] = [("a", "b"), ("a", "c"), ("b", "c")]


def predicted(measured: list[Clique], sketches: tuple[SketchError, ...] = (), **how: object) -> PredictedQuality:
    """Of a table of independent columns whose values are equally frequent."""
    released = [Measurement(q, np.full((4,) * len(q), ROWS / 4 ** len(q)), 20.0) for q in (*ONES, *measured)]
    model = estimate(DOMAIN, released, total=ROWS)
    return predict_quality(model, Evidence(tuple(released), ROWS), sketches, Workload.uniform(PAIRS), **how)  # type: ignore[arg-type]


def test_of_measured_pairs_an_interval_is_that_of_predictions_alone() -> None:
    """A whole workload by its spread; one pair by that of a chi-square variable of 15 dimensions beside its own."""
    found = predicted(PAIRS)
    whole = found.workload_error
    assert whole is not None and whole.source == "measured"
    factor = math.exp(1.6449 * SPREADS["all"])
    assert (whole.low, whole.high) == pytest.approx((whole.value / factor, whole.value * factor), rel=1e-3)
    roots = np.sqrt(chi2(15).rvs(400_000, random_state=1))
    for one in found.pairs:
        low, high = np.log(np.quantile(roots, [0.05, 0.95]) / roots.mean())
        spread = 1.6449 * SPREADS["one"]
        assert one.low == pytest.approx(one.value * math.exp(-math.hypot(low, spread)), rel=5e-3)
        assert one.high == pytest.approx(one.value * math.exp(math.hypot(high, spread)), rel=5e-3)


def sketch(pair: Clique, squared: float) -> SketchError:
    """Nine noises of variance 9,000, so nobody knows the link well."""
    return SketchError(pair, squared, math.sqrt(18.0) * 9_000.0, 2_250.0, 16.0, None, squared, 9)


SKETCHES = tuple(sketch(*one) for one in zip(PAIRS, (27_000.0, 12_000.0, 50_000.0), strict=True))


def test_of_sketched_pairs_an_interval_has_what_sketches_leave_open() -> None:
    """Each error gains by its slope what its R^2 may be off, each by itself and all of them together."""
    whole = predicted([], SKETCHES).workload_error
    assert whole is not None and whole.source == "sketched"
    released = [Measurement(q, np.full(4, ROWS / 4), 20.0) for q in ONES]
    predictor = Predictor(estimate(DOMAIN, released, total=ROWS), Evidence(tuple(released), ROWS), SKETCHES, PAIRS)
    now = predictor.errors(SEEN)[0]
    moved = {part: now.slopes[place][part] / 3 for place, part in enumerate(PAIRS)}
    noise = math.sqrt(sum((gain * predictor.effects[part].spread) ** 2 for part, gain in moved.items()))
    apart = 1.6449 * math.hypot(SPREADS["all"], noise / whole.value)
    least, most = (float(one.errors[: len(PAIRS)].mean()) for one in predictor.errors(*WORLDS))
    below, above = math.log(whole.value / least), math.log(most / whole.value)
    assert min(below, above) > 0.1 * apart > 0.01
    assert whole.low == pytest.approx(whole.value / math.exp(math.hypot(apart, below)), rel=2e-3)
    assert whole.high == pytest.approx(whole.value * math.exp(math.hypot(apart, above)), rel=2e-3)
    # Nine in ten of what is believed of R^2, a Gamma variable; an error's square is linear in it.
    effect, (plain, slope) = predictor.effects["a", "b"], at_mean(predictor)
    part = 2.0 * plain * slope
    ends = gamma.ppf([0.05, 0.95], (effect.squared / effect.spread) ** 2) * effect.spread**2 / effect.squared
    certain = plain**2 - part * effect.squared
    assert (now.lows[0], now.highs[0]) == pytest.approx(np.sqrt(certain + part * ends), rel=1e-3)


def at_mean(predictor: Predictor, more: float = 0.0, scenario: Scenario = SEEN) -> tuple[float, float]:
    """The error of the first pair and its slope, were R^2 known to be its mean, or so much more."""
    effect = predictor.effects[PAIRS[0]]
    predictor.effects._found[PAIRS[0]] = replace(effect, squared=effect.squared + more, spread=1e-6)
    found = predictor.errors(scenario)[0]
    predictor.effects._found[PAIRS[0]] = effect
    return float(found.errors[0]), found.slopes[0][PAIRS[0]]


def test_an_error_is_the_root_of_rows_and_of_what_the_model_lacks() -> None:
    """In each of 16 cells of 250 records: nine of sixteen dimensions of rows' variance, and R^2 of squared counts."""
    released = [Measurement(q, np.full(4, ROWS / 4), 1e-3) for q in ONES]
    predictor = Predictor(estimate(DOMAIN, released, total=ROWS), Evidence(tuple(released), ROWS), SKETCHES, PAIRS)
    for scenario in (SEEN, Scenario(rows=2.0)):
        lam = 250.0 * scenario.rows
        squared = 9 / 16 * lam + predictor.effects["a", "b"].squared * lam**2
        found, slope = at_mean(predictor, scenario=scenario)
        assert found == pytest.approx(math.sqrt(2.0 / math.pi * squared) / lam, rel=2e-3)
        more, _ = at_mean(predictor, 1e-4, scenario)
        assert slope == pytest.approx((more - found) / 1e-4, rel=5e-3)
    all_seen, _ = at_mean(predictor, scenario=Scenario(all_seen=True))
    assert all_seen == pytest.approx(math.sqrt(2.0 / math.pi * 9 / 16 / 250.0), rel=2e-3)


def test_an_error_rests_on_the_weakest_of_its_pairs() -> None:
    released = [Measurement(q, np.full(4, ROWS / 4), 20.0) for q in ONES]
    evidence, model = Evidence(tuple(released), ROWS), estimate(DOMAIN, released, total=ROWS)
    found = predict_quality(model, evidence, SKETCHES[:2], Workload.uniform([("a", "b", "c")]))
    assert [one.source for one in (*found.pairs, *found.cliques)] == ["sketched", "sketched", "inferred", "inferred"]
    assert found.to_dict()["level"] == pytest.approx(norm.cdf(1.6449) - norm.cdf(-1.6449), abs=1e-4)


def test_where_nothing_is_known_an_error_has_a_bound_and_what_noise_leaves() -> None:
    """Two of three columns with 80 of 100 rows in one value share 60 at least: 2 (1 - 0.6) is the most."""
    domain, shares = Domain(("a", "b", "c"), (2, 2, 2)), np.array([0.8, 0.2])
    ones = [Measurement((name,), ROWS * shares, 20.0) for name in domain]
    pairs = [Measurement(q, ROWS * np.outer(shares, shares), 20.0) for q in PAIRS[:2]]
    for released, known in ((ones, 0), ([*ones, *pairs], 2)):
        model = estimate(domain, released, total=ROWS)
        found = predict_quality(model, Evidence(tuple(released), ROWS), (), Workload.uniform(PAIRS))
        whole, factor = found.workload_error, math.exp(1.6449 * SPREADS["all"])
        assert whole is not None and whole.source == "unknown"
        assert [one.source for one in found.pairs] == ["measured"] * known + ["unknown"] * (3 - known)
        highest = (sum(factor * one.value for one in found.pairs[:known]) + 0.8 * (3 - known)) / 3
        assert whole.high == pytest.approx(highest, rel=2e-3) and found.pairs[2].high == pytest.approx(0.8, rel=1e-3)
        assert found.error().startswith(f"the workload error is at least {whole.low:.3g} and at most {whole.high:.3g}")


@pytest.mark.parametrize("noise", [1.0, 0.5])
def test_a_fit_that_nothing_shrinks_keeps_its_noise(noise: float) -> None:
    """Of sixteen cells of 250 records with the same noise nothing is cut off: it is all there, but for its total."""
    released = [Measurement(q, np.full((4,) * len(q), ROWS / 4 ** len(q)), 20.0) for q in (*ONES, *PAIRS)]
    evidence = Evidence(tuple(released), ROWS)
    predictor = Predictor(estimate(DOMAIN, released, total=ROWS), evidence, (), PAIRS, shrunk=False)
    found = predictor.errors(Scenario(noise=noise))[0].errors[0]
    # Nine dimensions by one count, two of three each by one count of four cells and two of sixteen.
    precision = 1 / 400.0 + 2 / (4 * 400.0)
    variance = 9 / 16 * 400.0 + 2 * 3 * 4 / 16**2 / precision
    assert found == pytest.approx(noise * math.sqrt(2.0 / math.pi * variance) / 250.0, rel=0.05)
