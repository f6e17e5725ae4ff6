"""Models that hold no possible row impossible: the rule of succession, channels, closed forms, zeros."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fedsyn.domain import Domain, Floats
from fedsyn.front.testing.harness import Federation, config_of, execute
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.inference import EstimateConfig, Measurement, Model, estimate
from fedsyn.inference.shrinkage import Departure, least_channel, least_shares, own_counts, released_shrinkage, smoothed

VARIANT = "experiments.sketch_aim_ablation.variant:Variant"
DOMAIN = Domain(("a", "b", "c"), (2, 3, 2))
TOTAL = 200.0
CLIQUES = (("a",), ("b",), ("c",), ("a", "b"), ("b", "c"))


def measured(domain: Domain = DOMAIN, seed: int = 1, sigma: float = 12.0) -> list[Measurement]:
    """Of a table without c = 1, so that noise makes some counts negative."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(12, 0.3)).reshape(2, 3, 2)
    p[..., 1] *= 1e-6
    p /= p.sum()
    out = []
    for clique in CLIQUES:
        values = TOTAL * p.sum(axis=tuple(i for i, name in enumerate("abc") if name not in clique))
        noisy = values + rng.normal(0, sigma, values.shape)
        if clique == ("c",):
            noisy[1] = -2.0 * sigma
        out.append(Measurement(clique, noisy, sigma))
    return out


def fits(domain: Domain = DOMAIN) -> tuple[Model, dict[str, float]]:
    measurements = measured(domain)
    model = estimate(domain, measurements, total=TOTAL, config=EstimateConfig(iterations=500))
    return model, least_shares(domain, measurements, TOTAL)


def every_row(domain: Domain = DOMAIN) -> np.ndarray:
    return np.array(list(product(*map(range, domain.shape))))


def test_a_value_that_nobody_showed_has_the_share_of_the_next_record() -> None:
    """Whatever the noise: n records did not show it, and what noise hides is the fit's matter."""
    domain, n, sigma = Domain(("a", "b"), (4, 1)), 160.0, 9.5
    measurement = Measurement(("a",), np.array([100.0, 60.0, 0.0, 0.0]), sigma)
    alpha = released_shrinkage([Departure(np.full(4, 0.25), measurement.values, sigma)], n) - 1.0
    shares = least_shares(domain, [measurement, Measurement(("b",), np.array([n]), 1.0)], n)
    assert alpha > 0.1
    assert shares == {"a": pytest.approx(alpha / 4 / (n + alpha))}


def test_alpha_is_that_of_the_dirichlet_that_shares_were_drawn_from() -> None:
    """With next to no noise the least share of many attributes tells alpha; their own records hardly count."""
    rng, n = np.random.default_rng(0), 1e6
    domain = Domain(tuple(f"x{i}" for i in range(400)), (5,) * 400)
    drawn = [Measurement((name,), n * rng.dirichlet(np.full(5, 0.6)), 1.0) for name in domain]
    shares = least_shares(domain, drawn, n)
    assert shares["x0"] * 5 * n == pytest.approx(3.0, rel=0.1)


def test_own_counts_are_the_least_variance_means() -> None:
    """One measurement of ab with 2 a cell says of a as one of a with 2 sqrt(3); of groups nothing is taken."""
    pair = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    groups = Measurement(("a", "c"), np.full((2, 2), 99.0), 1.0, noises=2)
    found = own_counts(
        DOMAIN, [Measurement(("a",), np.array([9.0, 12.0]), 2.0), Measurement(("a", "b"), pair, 2.0), groups]
    )
    values, sigma = found["a"]
    assert np.allclose(values, [9.0 * 0.75 + 6.0 * 0.25, 12.0 * 0.75 + 15.0 * 0.25])
    assert sigma == pytest.approx((1 / 4 + 1 / 12) ** -0.5)
    assert set(found) == {"a", "b"}


def matrix(channel: tuple[Floats, Floats]) -> Floats:
    """A channel's two parts as a column-stochastic matrix."""
    retained, drawn = channel
    return np.asarray(np.diag(retained) + np.outer(drawn, 1.0 - retained))


def test_a_channel_moves_least() -> None:
    before, after = np.array([0.5, 0.5, 0.0]), np.array([0.3, 0.45, 0.25])
    channel = matrix(least_channel(before, after))
    assert np.allclose(channel @ before, after)
    assert np.allclose(channel.sum(0), 1.0)
    moved = 1.0 - float(np.diag(channel) @ before)
    assert moved == pytest.approx(0.5 * np.abs(after - before).sum())  # no coupling moves less: total variation
    assert np.array_equal(matrix(least_channel(before, before)), np.eye(3))


def test_the_smoothed_model_has_the_marginals_of_the_rows_moved() -> None:
    """Against the joint table: each attribute's channel, then one record of independence, on every clique."""
    model, shares = fits()
    result = smoothed(model, shares)
    weight, joint, independent = 1.0 / (TOTAL + 1.0), model.project("abc") / TOTAL, np.ones(())
    for axis, name in enumerate("abc"):
        own = model.project((name,)) / TOTAL
        raised = np.maximum(own, shares[name])
        raised /= raised.sum()
        joint = np.moveaxis(np.tensordot(matrix(least_channel(own, raised)), joint, (1, axis)), 0, axis)
        independent = np.multiply.outer(independent, raised)
    joint = (1.0 - weight) * joint + weight * independent
    for clique in (("a", "b"), ("b", "c")):
        gone = tuple(i for i, name in enumerate("abc") if name not in clique)
        assert np.allclose(result.project(clique), TOTAL * joint.sum(gone), atol=1e-9)
    assert result.total == TOTAL


def test_no_row_is_near_zero() -> None:
    model, shares = fits()
    result = smoothed(model, shares)
    assert model.log_likelihood(every_row()).min() < -40.0
    assert result.log_likelihood(every_row()).min() > -17.0
    before, after = model.project(("c",)) / TOTAL, result.project(("c",)) / TOTAL
    assert before[1] < shares["c"] < before[0]
    assert after[1] == pytest.approx(shares["c"] / (shares["c"] + before[0]))


def test_a_chain_of_cliques_with_wide_separators_is_closed() -> None:
    """Trees of more than two cliques, with separators of two attributes: their marginals are those of the rule."""
    domain, rng = Domain(tuple("abcde"), (2, 3, 2, 3, 2)), np.random.default_rng(3)
    cliques = (("a", "b", "c"), ("b", "c", "d"), ("d", "e"))
    model = Model(domain, {q: 3.0 * rng.normal(size=domain.shape_of(q)) for q in cliques}, 50.0)
    result = smoothed(model, {})
    for clique in cliques:
        independent = np.ones(())
        for name in clique:
            independent = np.multiply.outer(independent, model.project((name,)) / 50.0)
        assert np.allclose(result.project(clique), 50.0 / 51.0 * (model.project(clique) + independent))


def test_what_is_impossible_stays_impossible() -> None:
    cells = np.zeros((2, 3), dtype=bool)
    cells[1, 0] = cells[1, 2] = True
    domain = Domain(("a", "b", "c"), (2, 3, 2), zeros=((("a", "b"), cells),))
    model, shares = fits(domain)
    result = smoothed(model, shares)
    logs, barred = result.log_likelihood(every_row(domain)), domain.violated(every_row(domain))
    assert np.array_equal(np.isneginf(logs), barred)
    assert model.log_likelihood(every_row(domain))[~barred].min() < -100.0
    assert logs[~barred].min() > -20.0
    assert np.exp(logs).sum() == pytest.approx(1.0)
    assert not result.project(("a", "b"))[cells].any()


def test_a_branch_with_impossible_cells_takes_nothing_from_its_stem() -> None:
    """Of the tree's second clique the cut is made up for inside: what it shares with the first stays the rule's."""
    cells = np.zeros((3, 2), dtype=bool)
    cells[2, 1] = True
    domain = Domain(("a", "b", "c"), (2, 3, 2), zeros=((("b", "c"), cells),))
    model, shares = fits(domain)
    assert model.cliques == (("a", "b"), ("b", "c"))
    assert smoothed(model, shares).log_partition == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("mechanism", "default"),
    [("aim", False), (VARIANT, True), ("fed_mst", True)],
)
def test_every_mechanism_that_fits_has_the_switch(mechanism: str, default: bool) -> None:
    """At epsilon 0.1 noise empties values. The released marginals are the same, and the resumable model of a round."""
    table = awkward_table("missing_values")
    codes = table.encode()
    parts = (codes,) if mechanism == "aim" else (codes[:20], codes[20:])
    found: dict[bool | None, Model] = {}
    for asked in (False, True, None):
        nodes = {"inference": {} if asked is None else {"smoothing": asked}, "privacy": {"epsilon": 0.1, "delta": 1e-5}}
        nodes["runtime"] = {"seed": 1}
        options: dict[str, object] = {} if mechanism == "fed_mst" else {"rounds": 1}
        if mechanism == VARIANT:  # forty rows are too few for sketches
            options["always"] = True
        outcome = execute(config_of(mechanism, len(parts), options, **nodes), Federation(table, parts))
        assert isinstance(outcome.strategy.model, Model)
        found[asked] = outcome.strategy.model
    same = found[default].to_arrays(), found[None].to_arrays()
    assert all(np.array_equal(same[0][key], same[1][key]) for key in same[0])
    least = {asked: float(model.log_likelihood(codes).min()) for asked, model in found.items()}
    assert least[False] < -80.0 < -40.0 < least[True]
