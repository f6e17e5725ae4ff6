"""Coverage in miniature: tables from draws of a posterior without a mechanism, analysed as any others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.evaluation.analysis.tables import SyntheticTables, bins_of
from fedsyn.inference import Model
from fedsyn.runs.synthesis import decoding
from fedsyn.table.schema import Schema
from fedsyn.table.schema.binned import NumericColumn

RUNS, TABLES, ROWS, SLOPE = 12, 8, 2_000, -1.5
#: Eleven bins each, wide ones at both ends: a tenth of the rows is beyond the last inner edges.
EDGES = {
    name: (centre - 6 * scale, *(centre + scale * np.linspace(-1.65, 1.65, 10)), centre + 6 * scale)
    for name, centre, scale in (("x", 20.0, 4.0), ("y", 55.0, 7.2))
}


def rows_of(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    x = rng.normal(20.0, 4.0, rows)
    return pd.DataFrame({"x": x, "y": 85.0 + SLOPE * x + rng.normal(0.0, 4.0, rows)})


def tables_of(real: pd.DataFrame, schema: Schema, rng: np.random.Generator) -> tuple[SyntheticTables, float]:
    """Returns tables of a Dirichlet posterior of the cells, and the slope with numbers even inside their bins."""
    codes = schema.encode(real).astype(np.intp)
    counts = np.bincount(codes @ [11, 1], minlength=121)
    frames = []
    for _ in range(TABLES):
        draw = np.maximum(rng.dirichlet(counts + 0.01), 1e-9) * len(real)
        model = Model(schema.domain, {("x", "y"): np.log(draw.reshape(11, 11))}, len(real))
        lean = {name: float(rng.uniform(-1, 1)) for name in schema.columns}
        rows = model.sample(2 * len(real), rng, independent=True)
        frames.append(decoding(schema, model, lean).decode(rows, rng))
    even = schema.decode(rows, rng)
    held = frozenset({frozenset({"x", "y"})})
    return SyntheticTables(frames, len(real), held, bins=bins_of(schema)), float(np.polyfit(even.x, even.y, 1)[0])


@pytest.mark.slow
@pytest.mark.thorough
def test_a_slope_over_coarse_bins_is_covered_and_not_attenuated() -> None:
    """Numbers that are even inside bins lose 16% of the slope.

    The slope of a run varies by 3.6%, the mean of twelve by 1%: it is off by 4% once in 10,000. Of twelve 95% intervals
    ten hold the slope and more but for one time in 500.
    """
    schema = Schema(columns={name: NumericColumn(bins=edges) for name, edges in EDGES.items()}, approved=True)
    rng = np.random.default_rng(0)
    held, estimates, widths, even = 0, list[float](), list[float](), list[float]()
    for _ in range(RUNS):
        real = rows_of(rng, ROWS)
        tables, lost = tables_of(real, schema, rng)
        found, own = (fedsyn.analyse(some, "y ~ x").to_frame().loc["x"] for some in (tables, [real, real]))
        held += found.low <= SLOPE <= found.high
        estimates.append(found.estimate / SLOPE)
        even.append(lost / SLOPE)
        widths.append((found.high - found.low) / (own.naive_high - own.naive_low))
        assert found.held
    assert held >= 10
    assert np.mean(estimates) == pytest.approx(1.0, abs=0.04) and np.mean(even) < 0.9
    assert 0.9 < np.median(widths) < 5.0
