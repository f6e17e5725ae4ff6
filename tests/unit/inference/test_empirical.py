"""A model that is a table of rows: against direct counting, and through the files of a run."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.errors import ProtocolError
from fedsyn.evaluation.inputs import EvaluationInput
from fedsyn.evaluation.real.metrics import evaluate
from fedsyn.inference import EmpiricalModel, Measurement, Model, estimate, read_model
from fedsyn.runs.directory import load_model, save_model
from fedsyn.selection.scores import l1_distances
from fedsyn.selection.views import ModelView
from fedsyn.table.counting.workload import all_kway

DOMAIN = Domain(("a", "b", "c"), (3, 4, 300))


def rows(number: int = 50, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, min(n, 7), number) for n in DOMAIN.shape], axis=1)


def test_marginals_are_counts_scaled_to_the_total() -> None:
    codes = rows()
    model = EmpiricalModel(DOMAIN, codes, total=100.0)
    expected = np.zeros((4, 3))
    np.add.at(expected, (codes[:, 1], codes[:, 0]), 2.0)
    np.testing.assert_allclose(model.project(("b", "a")), expected)
    assert model.project(()) == 100.0
    assert [m.shape for m in model.project_many([("c",), ("a", "c")])] == [(300,), (3, 300)]
    assert EmpiricalModel(DOMAIN, codes).total == 50.0


def test_probabilities_of_cells() -> None:
    codes = rows()
    model = EmpiricalModel(DOMAIN, codes)
    cells = np.array([[b, a] for a in range(3) for b in range(4)] * 2)
    expected = model.project(("b", "a"))[tuple(cells.T)] / 50
    np.testing.assert_allclose(model.probability_at(("b", "a"), cells), expected)
    assert (model.probability_at((), np.zeros((2, 0), int)) == 1.0).all()
    with pytest.raises(ValueError, match="column"):
        model.probability_at(("a",), cells)


def test_probabilities_over_more_cells_than_an_index_can_number() -> None:
    domain = Domain(tuple(f"x{i}" for i in range(40)), (256,) * 40)  # 2^320 cells
    codes = np.random.default_rng(0).integers(0, 256, (5, 40))
    codes[3] = codes[1]
    codes[4] = codes[0]
    codes[4, 0] ^= 1  # an index of 64 bits would forget the first attribute
    model = EmpiricalModel(domain, codes)
    asked = np.vstack([codes[:3], codes[:1] ^ 1])
    np.testing.assert_allclose(model.probability_at(domain.attributes, asked), [0.2, 0.4, 0.2, 0.0])


def test_likelihood_is_the_share_of_equal_rows_and_zero_elsewhere() -> None:
    codes = np.array([[0, 1, 2], [0, 1, 2], [2, 3, 299], [1, 1, 1]])
    model = EmpiricalModel(DOMAIN, codes)
    asked = np.array([[0, 1, 2], [1, 1, 1], [1, 1, 0]])
    assert list(model.log_likelihood(asked)) == [np.log(0.5), np.log(0.25), -np.inf]
    with pytest.raises(ValueError, match="column"):
        model.log_likelihood(asked[:, :2])


def test_as_many_rows_as_the_table_has_are_the_table_in_another_order() -> None:
    codes = np.arange(50)[:, None] * np.ones((1, 3), int) % np.array(DOMAIN.shape)
    model = EmpiricalModel(DOMAIN, codes)
    made = model.sample(50, np.random.default_rng(0))
    assert made.dtype == np.uint16 and (made != codes).any()
    assert sorted(made[:, 2]) == list(range(50))


@pytest.mark.parametrize("number", [0, 1, 20, 120])
def test_other_numbers_of_rows_are_drawn_evenly(number: int) -> None:
    codes = np.arange(50)[:, None] * np.ones((1, 3), int) % np.array(DOMAIN.shape)
    made = EmpiricalModel(DOMAIN, codes).sample(number, np.random.default_rng(0))
    times = np.bincount(made[:, 2], minlength=50)
    assert len(made) == number and times.max() - times.min() <= 1
    assert (made == EmpiricalModel(DOMAIN, codes).sample(number, np.random.default_rng(0))).all()
    if number == 20:  # not the first ones: P(all 20 among the first 20) < 1e-13
        assert made[:, 2].max() >= 20


def test_the_model_keeps_its_own_rows() -> None:
    codes = rows()
    model = EmpiricalModel(DOMAIN, codes)
    before = model.project(("a",))
    codes[:] = 0
    assert (model.project(("a",)) == before).all()


@pytest.mark.parametrize(
    "codes", [np.zeros((0, 3), int), np.zeros((2, 2), int), np.zeros((2, 3)), np.full((2, 3), 3), np.full((2, 3), -1)]
)
def test_codes_that_do_not_fit_are_refused(codes: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"codes|row"):
        EmpiricalModel(DOMAIN, codes)
    with pytest.raises(ValueError, match="total"):
        EmpiricalModel(DOMAIN, rows(), total=0.0)


def test_files_keep_both_kinds_of_model_apart(tmp_path: Path) -> None:
    table = EmpiricalModel(DOMAIN, rows(), total=12.5)
    graphical = estimate(DOMAIN, [Measurement(("a",), np.ones(3), 1.0)])
    for model in (table, graphical):
        save_model(tmp_path / "model.npz", model)
        loaded = load_model(tmp_path / "model.npz")
        assert type(loaded) is type(model) and loaded.domain == DOMAIN
        for name, array in model.to_arrays().items():
            assert (loaded.to_arrays()[name] == array).all()
    with np.load(io.BytesIO((tmp_path / "model.npz").read_bytes()), allow_pickle=False) as file:
        assert "domain" in file.files
    with pytest.raises(ProtocolError):
        Model.from_arrays(DOMAIN, table.to_arrays())
    with pytest.raises(ProtocolError):
        EmpiricalModel.from_arrays(DOMAIN, graphical.to_arrays())


def test_malformed_arrays_are_refused() -> None:
    good = EmpiricalModel(DOMAIN, rows()).to_arrays()
    for bad in (
        {**good, "codes": good["codes"] + 300},
        {**good, "codes": good["codes"][:, :2]},
        {**good, "codes": good["codes"][:0]},
        {**good, "model": np.frombuffer(b"{}", np.uint8)},
        {**good, "model": np.frombuffer(b"nonsense", np.uint8)},
    ):
        with pytest.raises(ProtocolError):
            read_model(DOMAIN, bad)
    with pytest.raises(ProtocolError, match="another domain"):
        read_model(Domain(("a", "b", "x"), DOMAIN.shape), good)


def test_metrics_and_selection_take_it_as_a_model() -> None:
    real, held_out = rows(80, seed=1), rows(40, seed=2)
    domain, workload = DOMAIN, all_kway(DOMAIN, 2)
    model = EmpiricalModel(domain, rows(60, seed=3))
    data = EvaluationInput(
        train=real, test=held_out, domain=domain, workload=workload, model=model, synthetic=model.codes
    )
    by_model = evaluate(["workload_error", "nll"], data)
    table_only = EvaluationInput(train=real, domain=domain, workload=workload, synthetic=model.codes)
    assert by_model["workload_error"] == pytest.approx(evaluate(["workload_error"], table_only)["workload_error"])
    assert by_model["nll"] == np.inf
    seen = EvaluationInput(train=real, test=model.codes[:5], domain=domain, workload=workload, model=model)
    assert 0 < evaluate(["nll"], seen)["nll"] <= np.log(60)
    view = ModelView(model)  # type: ignore[arg-type]
    distances = l1_distances(model.codes, domain, list(workload.cliques), view, 60.0)
    np.testing.assert_allclose(distances, 0.0, atol=1e-9)
