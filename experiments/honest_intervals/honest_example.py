"""The tables of one run, as the tutorial analyses them: a folder for `fedsyn analyse`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from honest_draws import DRAWINGS
from honest_populations import POPULATIONS, Population
from honest_runs import LARGER, TABLES, Place, fitted

from fedsyn.inference import Model

PLACE = Place("generated", 5000, 1.0, "sketch_aim", "refits", 0)
# Rows of the table of the centre / real rows: its own error counts for nothing.
_MANY = 100


def write(folder: Path) -> None:
    """Twenty tables, each of its own draw, that of their centre, and what was released beside them."""
    population, rng = POPULATIONS[PLACE.population](), np.random.default_rng(PLACE.seed)
    seen = fitted(PLACE, population, population.sample(PLACE.rows, rng))
    drawing = DRAWINGS[PLACE.drawing](seen, rng)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"table_{number:02d}.csv" for number in range(1, TABLES + 1)]
    for name in names:
        _frame(population, independent(drawing.draw(rng), LARGER * PLACE.rows, rng)).to_csv(folder / name, index=False)
    _frame(population, drawing.centre.sample(_MANY * PLACE.rows, rng)).to_csv(folder / "table_00.csv", index=False)
    held = sorted({m.clique for m in seen.measurements})
    facts = {"tables": [{"file": name} for name in names], "centre": "table_00.csv"}
    document = {"format": 1, **facts, "real_rows": seen.model.total, "held": held}
    (folder / "tables.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def independent(model: Model, n: int, rng: np.random.Generator) -> npt.NDArray[np.integer]:
    """(n, d) codes drawn independently of each other, from the whole joint distribution: small domains only."""
    shape = model.domain.shape
    p = np.maximum(model.project(model.domain.attributes), 0.0).ravel()
    return np.stack(np.unravel_index(rng.choice(p.size, n, p=p / p.sum()), shape), axis=1)


def _frame(population: Population, codes: npt.NDArray[np.integer]) -> pd.DataFrame:
    return pd.DataFrame(codes, columns=list(population.domain.attributes))
