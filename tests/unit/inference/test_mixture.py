"""The mixture of products, against sums over every cell."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.errors import InputError, ProtocolError
from fedsyn.inference import MixtureModel, read_model

DOMAIN = Domain(("a", "b", "c"), (3, 2, 4))
CELLS = np.array(list(itertools.product(*map(range, DOMAIN.shape))))


def model(components: int = 5, seed: int = 0) -> MixtureModel:
    rng = np.random.default_rng(seed)
    parts = [rng.dirichlet(np.ones(size), components) for size in DOMAIN.shape]
    return MixtureModel(DOMAIN, np.concatenate(parts, axis=1), 50.0, rng.random(components))


def brute(made: MixtureModel) -> np.ndarray:
    """(3, 2, 4) probabilities, a component at a time."""
    joint = np.zeros(DOMAIN.shape)
    for weight, row in zip(made.weights, made.probabilities.astype(np.float64), strict=True):
        a, b, c = row[:3], row[3:5], row[5:]
        joint += weight * np.einsum("i,j,k->ijk", a / a.sum(), b / b.sum(), c / c.sum())
    return joint


def test_density_and_marginals_are_sums() -> None:
    made = model()
    joint = brute(made)
    assert np.exp(made.log_likelihood(CELLS)).reshape(DOMAIN.shape) == pytest.approx(joint, rel=1e-9)
    for clique, axes in ((("a",), (0,)), (("c", "a"), (2, 0)), (("b", "c", "a"), (1, 2, 0)), ((), ())):
        others = tuple(axis for axis in range(3) if axis not in axes)
        expected = joint.sum(axis=others)
        order = np.argsort(np.argsort(axes)) if axes else ()
        wanted = 50.0 * np.transpose(expected, order) if axes else np.array(50.0)
        assert made.project(clique) == pytest.approx(wanted, rel=1e-9)
    cells = CELLS[:, [2, 0]]
    assert made.probability_at(("c", "a"), cells) == pytest.approx(
        (made.project(("c", "a")) / 50.0)[cells[:, 0], cells[:, 1]], rel=1e-9
    )


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model(40)
    expected = whole.project(("a", "b", "c")), whole.log_likelihood(CELLS)
    monkeypatch.setattr("fedsyn.inference.other_models._AT_ONCE", 7)
    assert whole.project(("a", "b", "c")) == pytest.approx(expected[0], rel=1e-12)
    assert whole.log_likelihood(CELLS) == pytest.approx(expected[1], rel=1e-12)


def test_rows_follow_the_density() -> None:
    """Chi squared of 60,000 rows over 24 cells, 23 degrees of freedom: above 65 once in 1e5."""
    made = model()
    rows = made.sample(60_000, np.random.default_rng(1))
    counts = np.bincount(np.ravel_multi_index(rows.T.astype(int), DOMAIN.shape), minlength=24)
    expected = 60_000 * brute(made).ravel()
    assert rows.dtype == np.uint8 and float(((counts - expected) ** 2 / expected).sum()) < 65.0


def test_conditions_are_bayes_rule() -> None:
    made, allowed = model(), np.array([True, False, True])
    given = made.conditioned({"a": allowed})
    joint = brute(made) * allowed[:, None, None]
    assert given.total == pytest.approx(50.0 * joint.sum(), rel=1e-6)
    assert brute(given) == pytest.approx(joint / joint.sum(), rel=1e-5, abs=1e-9)
    with pytest.raises(InputError, match="no row"):
        made.conditioned({"b": np.array([False, False])})


def test_it_survives_its_arrays_to_the_last_bit() -> None:
    made = model()
    again = read_model(DOMAIN, made.to_arrays())
    assert isinstance(again, MixtureModel) and repr(again) == repr(made)
    for name, array in made.to_arrays().items():
        assert again.to_arrays()[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"probabilities": np.zeros((5, 9), np.float32)},
        {"probabilities": np.full((5, 9), np.nan, np.float32)},
        {"probabilities": np.full((5, 8), 0.5, np.float32)},
        {"weights": np.zeros(5)},
        {"weights": -np.ones(5)},
        {"weights": np.ones(4)},
        {"model": np.frombuffer(b"{}", np.uint8)},
        {"model": np.frombuffer(b'{"format": "mixture 9"}', np.uint8)},
    ],
)
def test_what_is_no_mixture_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        MixtureModel.from_arrays(DOMAIN, {**model().to_arrays(), **change})


def test_another_domain_is_refused() -> None:
    with pytest.raises(ProtocolError, match="another domain"):
        MixtureModel.from_arrays(Domain(("a", "b", "d"), (3, 2, 4)), model().to_arrays())
    zeros = Domain(("a",), (2,), zeros=((("a",), np.array([True, False])),))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="structural zeros"):
        MixtureModel(zeros, np.full((1, 2), 0.5), 1.0)
