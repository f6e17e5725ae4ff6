"""Chance alone does not weaken a link of fresh rows."""

from __future__ import annotations

import numpy as np
import pytest

from fedsyn.evaluation.real.pairs import PairScore
from fedsyn.evaluation.scores import link


@pytest.mark.parametrize(
    ("rows", "left", "state", "share"),
    [(3_000, 1.0, "kept", 0.95), (3_000, 0.0, "lost", 0.95), (1_000, 1.0, "kept", 0.85), (1_000, 0.0, "lost", 0.7)],
)
def test_a_weak_link_is_called_what_it_is(rows: int, left: float, state: str, share: float) -> None:
    """Of two groups and eight, V near 0.15."""
    rng = np.random.default_rng(0)
    apart = np.full((2, 8), 1 / 16)
    linked = apart * (1 + 0.235 * np.outer([1, -1], np.linspace(-1, 1, 8)))
    called = []
    for _ in range(200):
        real, synthetic = (
            rng.multinomial(rows, table.ravel()).reshape(2, 8) / rows
            for table in (linked, left * linked + (1 - left) * apart)
        )
        found = link(real, rows, synthetic, rows)
        score = PairScore(
            first="a",
            second="b",
            score=1.0,
            association=found.real,
            association_synthetic=found.synthetic,
            kept=found.kept,
            error=found.error,
            linked=True,
        )
        called.append(score.judged().state)
    assert called.count(state) >= share * len(called), {one: called.count(one) for one in set(called)}
