"""The penalty of AIM's score: in cells as printed, or in the effective support; it moves no sensitivity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.errors import ConfigError
from fedsyn.front.testing.harness import Federation, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.inference import Measurement, Model, estimate
from fedsyn.plugins.clients.aim import AimContract
from fedsyn.plugins.clients.flaim import FlaimClient
from fedsyn.plugins.clients.flaim import Select as FlaimSelect
from fedsyn.privacy import Release
from fedsyn.randomness import Randomness
from fedsyn.selection.scores import expected_noise, l1_distances
from fedsyn.selection.views import ModelView, effective_cells, pack_model
from fedsyn.table.counting.marginals import count
from fedsyn.wire.holder import Holder
from support.halves import asked

TABLE = awkward_table("missing_values")
DOMAIN = TABLE.schema.domain
CODES = TABLE.encode()


def model() -> Model:
    """The independent model of the table's one-way marginals."""
    measured = []
    for axis, name in enumerate(DOMAIN):
        counts = np.bincount(CODES[:, axis], minlength=DOMAIN[name]).astype(float)
        measured.append(Measurement((name,), counts, 0.1))
    return estimate(DOMAIN, measured, total=float(len(CODES)))


@pytest.mark.parametrize(
    ("p", "cells"),
    [([1.0], 1.0), ([0.0, 1.0, 0.0], 1.0), ([0.25] * 4, 4.0), ([0.5, 0.5, 0.0], 2.0), ([0.64, 0.36], 1.96)],
)
def test_effective_cells(p: list[float], cells: float) -> None:
    assert effective_cells(np.array(p)) == pytest.approx(cells)


def test_effective_cells_lie_between_one_and_all_and_multiply_where_attributes_are_independent() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = rng.dirichlet(np.full(7, 0.3)), rng.dirichlet(np.full(4, 2.0))
        assert 1 - 1e-12 <= effective_cells(a) <= 7 + 1e-12
        assert effective_cells(np.outer(a, b)) == pytest.approx(effective_cells(a) * effective_cells(b))
    assert effective_cells(np.array([1.0 + 1e-12, -1e-12])) == pytest.approx(1.0)


def test_a_marginal_too_large_to_form_takes_the_product() -> None:
    """Exact here, because the model's attributes are independent."""
    pair = DOMAIN.attributes[:2]
    formed = ModelView(model()).effective_cells([pair])
    view = ModelView(model(), DOMAIN.size(pair) - 1)
    assert view.effective_cells([pair, pair]) == pytest.approx(np.repeat(formed, 2))
    assert pair not in view._marginals


def test_effective_cells_that_are_counted_beforehand_are_those_that_a_look_counts() -> None:
    domain = Domain(("a", "b", "c", "d"), (20, 20, 20, 2))
    large, small = ("a", "b", "c"), ("a", "b", "d")
    rng = np.random.default_rng(0)
    measured = [Measurement((name,), rng.random(domain[name]), 0.1) for name in domain]
    fitted = estimate(domain, measured, total=100.0)
    looked, view = ModelView(fitted), ModelView(fitted)
    for marginal in view.each([large, small], carried=True):
        assert marginal.sum() == pytest.approx(1.0)
    assert view._effective.keys() == {large} and view._marginals.keys() == {small}  # which is kept itself
    assert np.array_equal(view.effective_cells([large, small]), looked.effective_cells([large, small]))
    few = ModelView(fitted, domain.size(large) - 1)  # too large to form: the product of its attributes'
    assert len(list(few.each([large], carried=True))) == 1 and not few._effective


class _Ledger:
    """Records the scores that a client hands to the exponential mechanism."""

    def __init__(self) -> None:
        self.seen: list[tuple[np.ndarray, float]] = []
        self.releases: tuple[Any, ...] = ()

    def exponential(self, scores: np.ndarray, entry: Release, source: Any) -> int:
        self.seen.append((np.array(scores), entry.sensitivity))
        return 0


SHOWN = len(pack_model(model()))


def test_scores_subtract_the_penalty_that_is_configured() -> None:
    fitted = model()
    candidates = None
    found: dict[str, tuple[np.ndarray, float]] = {}
    for penalty in ("cells", "effective"):
        config = config_of("naive_flaim", 1, {"penalty": penalty})
        client = FlaimClient(config, Holder(0, CODES, DOMAIN, TABLE.schema.sha256, Randomness(0)))
        candidates = client.candidates
        client.ledger = _Ledger()
        eligible = list(range(0, len(candidates), 2))
        request = FlaimSelect(eligible=eligible, epsilon=1.0, sigma=3.0, model_arrays=SHOWN)
        client.select(asked(client, request, pack_model(fitted)))
        (found[penalty],) = client.ledger.seen
    assert candidates is not None
    cliques = [candidates.cliques[i] for i in eligible]
    distances = l1_distances(CODES, DOMAIN, cliques, ModelView(fitted), float(len(CODES)))
    support = np.array([effective_cells(fitted.project(q) / fitted.total) for q in cliques])
    weights = candidates.weights[eligible]
    assert np.allclose(
        found["cells"][0], weights * (distances - math.sqrt(2 / math.pi) * 3.0 * candidates.cells[eligible])
    )
    assert np.allclose(found["effective"][0], weights * (distances - expected_noise(3.0, support)))
    assert found["cells"][1] == found["effective"][1] == weights.max()
    assert (found["effective"][0] >= found["cells"][0] - 1e-9).all()


@pytest.mark.parametrize("name", ["aim", "naive_flaim", "augflaim", "augflaim_oracle"])
def test_the_option_belongs_to_every_mechanism_that_selects_by_aims_score(name: str) -> None:
    default = finished(execute(config_of(name, 1), Federation(TABLE, (CODES,)))).strategy.model.to_arrays()
    cells = finished(execute(config_of(name, 1, {"rounds": 2, "penalty": "cells"}), Federation(TABLE, (CODES,))))
    assert all(np.array_equal(default[key], value) for key, value in cells.strategy.model.to_arrays().items())
    finished(execute(config_of(name, 1, {"rounds": 2, "penalty": "effective"}), Federation(TABLE, (CODES,))))
    with pytest.raises(ConfigError, match=r"penalty.*cells"):
        config_of(name, 1, {"penalty": "half"})


def test_a_stores_scores_subtract_it_too_up_to_the_rounding_of_public_numbers() -> None:
    fitted = ModelView(model())
    for penalty in ("cells", "effective"):
        contract = AimContract(config_of("aim", 1, {"penalty": penalty}), DOMAIN)
        candidates = contract.candidates
        eligible = list(range(0, len(candidates), 2))
        terms = contract.terms(fitted, eligible, 3.0, float(len(CODES)), len(CODES))
        cliques = [candidates.cliques[i] for i in eligible]
        scores = terms.scores(count(CODES, DOMAIN, cliques)) / terms.unit
        distances = l1_distances(CODES, DOMAIN, cliques, fitted, float(len(CODES)))
        every = candidates.cells[eligible]
        cells = every if penalty == "cells" else fitted.effective_cells(cliques)
        weights = candidates.weights[eligible]
        wanted = weights * (distances - expected_noise(3.0, cells))
        assert np.abs(scores - wanted).max() <= float((weights * (every + 1)).max()) / (2 * terms.scale)
        assert terms.sensitivity == weights.max()


def test_domain_of_one_value() -> None:
    domain = Domain(("x", "y"), (1, 3))
    view = ModelView(Model(domain, {}, 5.0))
    assert view.effective_cells([("x",), ("x", "y")]) == pytest.approx([1.0, 3.0])
