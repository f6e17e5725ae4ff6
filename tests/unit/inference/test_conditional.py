"""Attributes drawn given the others of their row: equal to brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedsyn.domain import Domain, Zeros
from fedsyn.inference import Model
from fedsyn.inference.conditional import Conditional, graphical
from fedsyn.inference.other_models import EmpiricalModel

NAMES, SHAPE = ("a", "b", "c", "d", "e"), (2, 3, 2, 3, 2)


def model(rng: np.random.Generator, hidden: bool = False, zeros: bool = False) -> Model:
    cells = np.zeros((3, 3), bool)
    cells[0, 1:] = True  # b = 0 allows d = 0 alone
    domain = Domain(
        NAMES, SHAPE, zeros=(Zeros(("b", "d"), cells),) if zeros else (), hidden=(("f", 3),) if hidden else ()
    )
    cliques = [("a", "b"), ("b", "c", "d"), ("d", "e"), ("a", "e"), *([("b", "f"), ("f", "d")] if hidden else [])]
    return Model(domain, {q: rng.normal(0.0, 1.5, domain.shape_of(q)) for q in cliques}, 10.0)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("open_", [("d",), ("b", "d"), ("c", "d", "e"), NAMES])
def test_draws_have_the_models_conditional_distribution(hidden: bool, zeros: bool, open_: tuple[str, ...]) -> None:
    """20,000 draws for each of the given values, beside brute force over all cells.

    A share p of n draws has a standard deviation of sqrt(p (1-p) / n), at most 0.0036. The test looks at fewer than
    3,000 shares; a bound of 6 deviations is passed by chance less than once in 100,000 tests.
    """
    rng = np.random.default_rng(3)
    whole = model(rng, hidden, zeros)
    every = np.array(list(itertools.product(*map(range, SHAPE))))
    weights = np.exp(whole.log_likelihood(every))
    given = [name for name in NAMES if name not in open_]
    axes = [NAMES.index(name) for name in given]
    rest, n = Conditional(whole, open_), 20_000
    for values in np.unique(every[:, axes], axis=0):
        mine = (every[:, axes] == values).all(axis=1)
        if weights[mine].sum() == 0.0:
            continue
        start = np.zeros((n, len(NAMES)), np.int64)
        start[:, axes] = values
        drawn = rest.drawn(start, rng)
        assert (drawn[:, axes] == values).all()
        counts = np.bincount(np.ravel_multi_index(tuple(drawn.T), SHAPE), minlength=len(every))
        shares = np.where(mine, weights, 0.0) / weights[mine].sum()
        assert (np.abs(counts / n - shares) <= 6 * np.sqrt(np.maximum(shares * (1 - shares), 0.0) / n)).all()


def test_each_row_has_given_values_of_its_own() -> None:
    rng = np.random.default_rng(0)
    domain = Domain(("a", "b"), (5, 5))
    same = Model(domain, {("a", "b"): np.where(np.eye(5, dtype=bool), 0.0, -800.0)}, 1.0)
    rows = np.stack([rng.integers(0, 5, 1000), np.zeros(1000, int)], axis=1)
    assert (Conditional(same, ["b"]).drawn(rows, rng)[:, 1] == rows[:, 0]).all()


def test_a_row_that_cannot_be_is_refused() -> None:
    domain = Domain(("a", "b"), (2, 2), zeros=(Zeros(("a", "b"), [[True, True], [False, False]]),))
    rest = Conditional(Model(domain, {("a",): np.zeros(2)}, 1.0), ["b"])
    with pytest.raises(ValueError, match="nothing to be drawn"):
        rest.drawn(np.array([[0, 0]]), np.random.default_rng(0))


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    rest = Conditional(model(rng), ["c"])  # one number for each row, so blocks draw the same ones
    rows = np.stack([rng.integers(0, size, 500) for size in SHAPE], axis=1)
    one = rest.drawn(rows, np.random.default_rng(5))
    monkeypatch.setattr("fedsyn.inference.conditional._CELLS", 64)
    assert (rest.drawn(rows, np.random.default_rng(5)) == one).all()


def test_a_tree_stands_for_a_model_that_is_a_table() -> None:
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 2, (4000, 3))
    codes[:, 1] = np.where(rng.random(4000) < 0.9, codes[:, 0], codes[:, 1])
    table = EmpiricalModel(Domain(("a", "b", "c"), (2, 2, 2)), codes)
    tree = graphical(table, [("a", "b"), ("b", "c")])
    assert np.abs(tree.project(("a", "b")) - table.project(("a", "b"))).max() < 0.01 * len(codes)
    assert graphical(tree, []) is tree


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    ("name", "value"), [("_LITTLE", np.inf), *(("_ONCE", cells) for cells in (0, 12, 24, 60)), ("_CELLS", 64)]
)
def test_logarithms_and_steps_done_once_draw_the_same(
    monkeypatch: pytest.MonkeyPatch, hidden: bool, name: str, value: float
) -> None:
    """The numbers drawn are the same, so are the rows: in logarithms, row by row, and where nothing is done before."""
    whole, rng = model(np.random.default_rng(4), hidden, zeros=True), np.random.default_rng(6)
    rows = np.stack([rng.integers(0, size, 40) for size in SHAPE], axis=1)
    rows[:, 1] = rng.integers(1, 3, 40)  # b = 0 may allow nothing
    tilt = {"d": rng.normal(0.0, 1.0, (40, 3))}

    def drawn() -> np.ndarray:
        out = []
        for open_, weights in ((("b", "d"), None), (("d", "e"), tilt), (("c", "d"), tilt)):
            rest = Conditional(whole, open_).tilted({open_[0]: np.arange(float(whole.domain[open_[0]]))})
            out += [rest.drawn(rows[at : at + 1], np.random.default_rng(at), cut(weights, at)) for at in range(40)]
        return np.concatenate(out)

    def cut(weights: dict[str, np.ndarray] | None, at: int) -> dict[str, np.ndarray] | None:
        return weights and {name: some[at : at + 1] for name, some in weights.items()}

    expected = drawn()
    monkeypatch.setattr(f"fedsyn.inference.conditional.{name}", value)
    assert (drawn() == expected).all()


def test_weights_too_small_for_numbers_are_drawn_in_logarithms() -> None:
    """Two factors disagree by more than the range of numbers: their product is 0 in every cell, and its ratios are not.

    P(b = 1 | a, c) is e/(1+e) = 0.731 for every row; 4,000 draws have a standard deviation of 0.007.
    """
    domain = Domain(("a", "b", "c"), (2, 3, 2))
    far = np.array([0.0, -900.0, -900.0]), np.array([-1900.0, -900.0, -901.0])
    parts: dict[tuple[str, ...], np.ndarray] = {
        ("a", "b"): np.stack([far[0]] * 2),
        ("b", "c"): np.stack([far[1]] * 2, axis=1),
    }
    rows = np.zeros((4_000, 3), np.int64)
    drawn = Conditional(Model(domain, parts, 1.0), ["b"]).drawn(rows, np.random.default_rng(8))[:, 1]
    assert not (drawn == 0).any()
    assert abs((drawn == 1).mean() - 0.731) < 6 * 0.007


def test_what_is_unknown_is_summed_over_and_stays_as_it_stands() -> None:
    """Beside a model without the attribute: 20,000 draws, each share within 6 standard deviations of at most 0.0036."""
    whole, rng = model(np.random.default_rng(4)), np.random.default_rng(7)
    rows = np.tile([1, 2, 1, 1, 0], (20_000, 1))
    drawn = Conditional(whole, ["c"], ["d"]).drawn(rows, rng)
    every = np.array(list(itertools.product(*map(range, SHAPE))))
    weights = np.exp(whole.log_likelihood(every)) * (every[:, [0, 1, 4]] == [1, 2, 0]).all(axis=1)
    shares = np.bincount(every[:, 2], weights) / weights.sum()
    assert (np.abs(np.bincount(drawn[:, 2], minlength=2) / 20_000 - shares) < 6 * 0.0036).all()
    assert (drawn[:, [0, 1, 3, 4]] == [1, 2, 1, 0]).all()


def test_unknown_attributes_that_no_draw_depends_on_are_left_out() -> None:
    """Their sums change nothing, so the rows are the same as with them given."""
    rng = np.random.default_rng(9)
    domain = Domain(NAMES, SHAPE)
    whole = Model(domain, {q: rng.normal(0, 1, domain.shape_of(q)) for q in (("a", "b"), ("c", "d"), ("d", "e"))}, 1.0)
    rows = np.stack([rng.integers(0, size, 300) for size in SHAPE], axis=1)
    rest, given = Conditional(whole, ["b"], ["d", "e"]), Conditional(whole, ["b"])
    assert [step.name for step in rest.steps()] == ["b"]
    assert {step.name for step in Conditional(whole, ["c"], ["d", "e"]).steps()} == {"c", "d", "e"}
    tilt = {"b": rng.normal(0.0, 1.0, (300, 3))}
    for weights in (None, tilt):
        one, other = (some.drawn(rows, np.random.default_rng(3), weights) for some in (rest, given))
        assert (one == other).all()
