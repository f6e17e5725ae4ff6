"""Links among the people who have both values: a record's "(no row)" is no link of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.domain import Domain
from fedsyn.evaluation.predicted.among import Among
from fedsyn.evaluation.predicted.effects import Effects
from fedsyn.evaluation.predicted.looks import Measured
from fedsyn.evaluation.scores import association
from fedsyn.inference import estimate
from fedsyn.inference.measurements import Evidence, Measurement
from fedsyn.table.counting.sums import residual

WORDS = np.array(list("uvwx"))


def a_table(persons: int, seed: int) -> pd.DataFrame:
    """Rows of half of the people: b says nothing of a, c follows a, d follows sex; town decides who has rows."""
    rng = np.random.default_rng(seed)
    sex, town = rng.integers(0, 3, (2, persons))
    counts = np.where(rng.random(persons) < np.array([0.2, 0.45, 0.7])[town], rng.geometric(0.4, persons), 0)
    counts = np.minimum(counts, 10)
    whose = np.repeat(np.arange(persons), np.maximum(counts, 1))
    rows = len(whose)
    a, b, other, third = rng.integers(0, 4, (4, rows))
    columns = {"a": a, "b": b, "c": np.where(rng.random(rows) < 0.6, a, other)}
    columns["d"] = np.where(rng.random(rows) < 0.5, sex[whose], third % 3)
    table = pd.DataFrame({"id": whose, "sex": WORDS[sex][whose], "town": WORDS[town][whose]})
    table = table.assign(**{name: WORDS[codes] for name, codes in columns.items()})
    table.loc[(counts == 0)[whose], list(columns)] = None
    return table


SIZES = {"sex": 3, "town": 3, "a": 4, "b": 4, "c": 4, "d": 3}
SCHEMA: dict[str, Any] = {
    "columns": {
        "id": {"kind": "identifier", "make": "sequence"},
        **{n: {"kind": "categorical", "categories": WORDS[:k].tolist(), "other": False} for n, k in SIZES.items()},
    },
    "persons": {"id": "id", "order": True, "constant": ["sex", "town"], "most_rows": 10, "least_rows": 0},
}


@pytest.mark.slow
def test_links_of_rows_are_seen_and_having_rows_is_none() -> None:
    """At epsilon 5 and 4,000 people, of whom 1,800 have rows; a look has a false alarm in one run of twenty, all pairs
    together, and the seed is fixed."""
    table = a_table(4_000, 0)
    made = fedsyn.Synthesizer(5.0, 1e-6, SCHEMA, seed=0, privacy={"unit": "person"}).fit(table)
    quality = made.predicted_quality
    assert quality is not None
    seen = {link.columns: link for link in quality.seen.links}
    assert set(seen) == {("a", "c"), ("sex", "d")}
    # Planted: V of a and c is 0.6, of sex and d 0.5; noise and who has rows move them by less than 0.1.
    assert seen["a", "c"].seen == pytest.approx(0.6, abs=0.1)
    assert seen["sex", "d"].seen == pytest.approx(0.5, abs=0.1)
    assert all(link.kept > 0.6 for link in seen.values())
    # What the table has of them, although `fit` writes the rows of one person alone.
    rows = made.sample(seed=1).dropna(subset=["a"])
    for (first, second), link in seen.items():
        cells = pd.crosstab(rows[first], rows[second]).to_numpy(np.float64)
        assert link.made == pytest.approx(association(cells / cells.sum(), len(rows)), abs=0.06)
    assert quality.seen.unlinked >= 10  # town × a among them: it decides who has rows, and says nothing of these


DOMAIN = Domain(("a", "b"), (3, 4))
THERE = np.array([True, True, False]), np.array([True, True, True, False])


def effects_of(cells: np.ndarray, *measured: Measurement) -> Effects:
    total = float(cells.sum())
    model = estimate(DOMAIN, [Measurement(("a", "b"), cells, 1.0)], total=total)
    return Effects(model, Evidence(tuple(measured), total), (), [("a", "b")])


def block(rng: np.random.Generator) -> np.ndarray:
    """Counts of people who have both values, and of those who have none."""
    cells = np.zeros((3, 4))
    cells[:2, :3] = rng.integers(50, 400, (2, 3))
    cells[2, 3] = 3_000
    return cells


def test_residuals_and_counts_of_a_part_say_the_same() -> None:
    rng = np.random.default_rng(0)
    cells = block(rng)
    noisy = cells + rng.normal(0.0, 5.0, cells.shape)
    looks = []
    for measurement in (
        Measurement(("a", "b"), noisy, 5.0),
        Measurement(("a", "b"), residual(noisy), 5.0, beyond=True),
    ):
        effects = effects_of(cells, measurement)
        among = Among.of(effects, ("a", "b"), THERE, cells / cells.sum())
        assert among is not None and among.rows == pytest.approx(cells[:2, :3].sum())
        looks.append(Measured(among, ("a", "b"), (np.arange(2), np.arange(3))))
    np.testing.assert_allclose(looks[0].off, looks[1].off, atol=1e-9)
    np.testing.assert_allclose(looks[0].noise, looks[1].noise)
    # It is what the part of the table has beyond independence of its own, in units of chance.
    part = noisy[:2, :3] / among.rows
    alone = np.outer(among.masses["a"], among.masses["b"])
    np.testing.assert_allclose(looks[0].off, (residual(part - alone) / np.sqrt(alone)).ravel(), atol=1e-9)


def test_a_group_with_values_of_both_kinds_says_nothing() -> None:
    cells = block(np.random.default_rng(1))
    apart = np.array([0, 1, 2]), np.array([0, 1, 1, 2])
    grouped = np.add.reduceat(cells, [0, 1, 3], axis=1)
    effects = effects_of(cells, Measurement(("a", "b"), grouped, 2.0, groups=apart))
    among = Among.of(effects, ("a", "b"), THERE, cells / cells.sum())
    assert among is not None
    np.testing.assert_array_equal(among.counts[0].values, grouped[:2, :2])
    mixed = np.array([0, 1, 2]), np.array([0, 1, 2, 2])
    grouped = np.add.reduceat(cells, [0, 1, 2], axis=1)
    effects = effects_of(cells, Measurement(("a", "b"), grouped, 2.0, groups=mixed))
    assert Among.of(effects, ("a", "b"), THERE, cells / cells.sum()) is None
