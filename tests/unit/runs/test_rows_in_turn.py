"""Whole persons whose rows a constraint compares with the next ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsyn
from experiments.persons.overlap import OVERLAP, WARDS, Seen, visits
from fedsyn.domain import Domain, Zeros
from fedsyn.errors import InputError
from fedsyn.inference.conditional import Conditional
from fedsyn.inference.model import Model
from fedsyn.runs.gaps import spaced
from fedsyn.table.schema import Schema


def schema(*rules: Any, computed: bool = True, most_rows: int = 12, **persons: Any) -> dict[str, Any]:
    day: dict[str, Any] = {"kind": "date", "lower": "2022-01-01", "upper": "2024-12-31", "bins": 8}
    columns: dict[str, Any] = {
        "patient": {"kind": "identifier", "make": "sequence"},
        "admitted": day,
        "ward": {"kind": "categorical", "categories": WARDS, "other": False},
    }
    if computed:
        columns["nights"] = {"kind": "integer", "lower": 0, "upper": 20, "bins": 10}
    columns["discharged"] = day | {"bins": 5}
    within = "discharged = admitted + nights" if computed else "admitted <= discharged"
    keys = {"id": "patient", "order": "admitted", "most_rows": most_rows, **persons}
    return {"columns": columns, "constraints": [within, *rules], "persons": keys}


def sampled(real: pd.DataFrame, stated: dict[str, Any], mechanism: str = "sketch_aim", **how: Any) -> pd.DataFrame:
    privacy = {"unit": "person"}
    made = fedsyn.Synthesizer(how.pop("epsilon", 2.0), 1e-6, stated, mechanism, seed=1, privacy=privacy, **how)
    table: pd.DataFrame = made.fit(real).sample()
    return table


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("computed", [True, False])
def test_visits_that_do_not_overlap_keep_their_stays_and_gaps(computed: bool) -> None:
    """Two runs of one seed differ by their noise and draws, with which shares of 2,800 rows are off by 0.1 or so."""
    real = visits(1000, 0)
    real = real if computed else real.drop(columns="nights")
    seen = Seen.of(real)
    assert seen.overlap == 0.0
    free, kept = (Seen.of(sampled(real, schema(*rules, computed=computed))) for rules in ((), (OVERLAP,)))
    assert free.overlap > 0.05 and kept.overlap == 0.0
    assert (np.array(seen.off(kept)) < np.array(seen.off(free)) + 0.1).all()  # gaps, stays and numbers of rows
    assert len(kept.stays) == pytest.approx(len(free.stays), rel=0.1)  # hardly anybody ends earlier for it


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("mechanism", ["privsyn", "mst"])
@pytest.mark.parametrize("rules", [(OVERLAP,), ("nights < next.nights",), (OVERLAP, "nights >= next.nights")])
def test_whatever_makes_the_model_nobody_breaks_it(mechanism: str, rules: tuple[str, ...]) -> None:
    """In half of the tables the real rows break it, some in most rows: they are rows like any other."""
    stated = schema(*rules)
    made = sampled(visits(300, 0), stated, mechanism, epsilon=0.5)
    assert set(Schema.from_dict(stated).violations(made).values()) == {0}
    assert made["patient"].nunique() > 100


@pytest.mark.thorough
def test_a_person_whom_no_row_can_follow_ends_there() -> None:
    """Nights rise from bin to bin, and there are ten: nobody has more rows, whatever the number of rows says."""
    real = visits(300, 0)
    real = real.assign(nights=real["nights"] // 5 * 10, patient=np.arange(len(real)) // 12)
    stated = schema("nights < next.nights")
    stated["columns"]["nights"] = {"kind": "integer", "lower": 0, "upper": 2, "bins": 3}
    made = sampled(real, stated)
    sizes = made.groupby("patient").size()
    assert sizes.max() == 3 and sizes.min() >= 1
    assert not sum(Schema.from_dict(stated).violations(made).values())


def test_a_run_for_single_rows_is_refused() -> None:
    real = visits(60, 0)
    for privacy in ({"unit": "row"}, {"unit": "client", "rows_per_client": 100}):
        made = fedsyn.Synthesizer(1.0, 1e-6, schema(OVERLAP), privacy=privacy)
        words = rf"privacy\.unit: {privacy['unit']}: constraint 'discharged <= next\.admitted'"
        with pytest.raises(InputError, match=words):
            made.fit(real)


def test_a_row_that_nothing_can_follow_is_said() -> None:
    cells = np.array([[False, False], [True, True]])
    model = Model(Domain(("a", "b"), (2, 2), zeros=(Zeros(("a", "b"), cells),)), {}, 1.0)
    rest, rows = Conditional(model, ["b"]), np.array([[0, 0], [1, 0], [0, 1]])
    stuck = np.zeros(3, bool)
    drawn = rest.drawn(rows, np.random.default_rng(0), stuck=stuck)
    assert stuck.tolist() == [False, True, False] and (drawn[:, 0] == rows[:, 0]).all()
    with pytest.raises(ValueError, match="has nothing to be drawn"):
        rest.drawn(rows, np.random.default_rng(0))


@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    width=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_numbers_keep_their_least_gaps_where_bins_have_room(counts: list[int], width: int, seed: int) -> None:
    """Rows of one bin, with least gaps whose sum the bin holds: none is smaller, and no row leaves the bin."""
    rng, sizes = np.random.default_rng(seed), np.array(counts)
    n, most = int(sizes.sum()), max(counts)
    least = rng.integers(0, width // most + 1, n).astype(float)
    low, high = np.zeros(n), np.full(n, float(width))
    gaps = np.where(rng.random(n) < 0.5, np.nan, rng.integers(0, 2 * width, n).astype(float))
    drawn = rng.integers(0, width + 1, n)
    out = spaced(sizes, drawn, (low, high), lambda here, nearest, *_: np.maximum(gaps[here + 1], nearest), least)
    assert (out >= 0).all() and (out <= width).all()
    whose = np.repeat(np.arange(len(sizes)), sizes)
    same = whose[1:] == whose[:-1]
    assert (np.diff(out)[same] >= least[1:][same]).all()


def test_bounds_go_along_rows_whose_columns_have_other_bins() -> None:
    """No pair of neighbours is impossible, and the three together are: 50 is at most what the last row may have."""
    stated = {
        "columns": {
            "p": {"kind": "identifier"},
            "a": {"kind": "integer", "lower": 0, "upper": 99, "bins": [0, 99]},
            "b": {"kind": "integer", "lower": 0, "upper": 99, "bins": [0, 20, 50, 99]},
        },
        "constraints": ["a <= b", "b <= next.a"],
        "persons": {"id": "p", "order": True, "most_rows": 5},
    }
    reach = Schema.from_dict(stated).compiled.reach
    assert reach is not None
    ends = reach.of({"a": np.array([0, 0]), "b": np.array([2, 0])})
    after = {"a": np.array([0, 0]), "b": np.array([0, 0])}
    assert reach.beside(ends, after, ahead=True)[0].tolist() == [False, True]
    before = {"a": np.array([0, 0]), "b": np.array([2, 0])}
    ends = reach.of({"a": np.array([0, 0]), "b": np.array([0, 0])})
    assert reach.beside(ends, before, ahead=False)[0].tolist() == [False, True]
