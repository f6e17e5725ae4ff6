"""The tables of one run, as the tutorial analyses them: a folder for `fedsyn analyse`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.honest_intervals.honest_draws import DRAWINGS
from experiments.honest_intervals.honest_populations import POPULATIONS
from experiments.honest_intervals.honest_runs import LARGER, TABLES, Place, fitted

PLACE = Place("generated", 5000, 1.0, "sketch_aim", "posterior", 0)


def write(folder: Path) -> None:
    """Twenty tables, each of its own draw, and what was released beside them."""
    population, rng = POPULATIONS[PLACE.population](), np.random.default_rng(PLACE.seed)
    seen = fitted(PLACE, population, population.sample(PLACE.rows, rng))
    drawing = DRAWINGS[PLACE.drawing](seen, rng)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"table_{number:02d}.csv" for number in range(1, TABLES + 1)]
    for name in names:
        codes = drawing.draw(rng).sample(LARGER * PLACE.rows, rng, independent=True)
        pd.DataFrame(codes, columns=list(population.domain.attributes)).to_csv(folder / name, index=False)
    held = sorted({m.clique for m in seen.measurements if m.groups is None})
    facts = {"tables": [{"file": name} for name in names], "real_rows": seen.model.total}
    document = {"format": 1, **facts, "held": held}
    (folder / "tables.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
