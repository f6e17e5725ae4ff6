"""The experiment that counts how often statements of a run are so, in miniature."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.newcomers.planted import TABLES
from experiments.newcomers.statements import Run, counted_again, delta_of, of_the_run

EXACT = (
    "a stated constraint holds in every row",
    "a column is written as the input writes it",
    "epsilon at delta: by an accountant of the experiment's own",
)


@pytest.mark.parametrize("name", TABLES)
def test_planted_rules_hold_in_the_rows(name: str) -> None:
    rows = TABLES[name].draw(600, np.random.default_rng(1))
    assert not any(broken(rows).any() for broken in TABLES[name].rules.values())
    assert all(abs(answer(rows)) > 0.1 for answer in TABLES[name].effects.values())


def test_delta_of_a_release() -> None:
    """Balle and Wang 2018: at sigma = 1 and sensitivity 1, epsilon 1 has delta 0.1269."""
    assert delta_of(0.5, 1.0) == pytest.approx(0.12694, abs=1e-5)


@pytest.mark.thorough
def test_a_statement_that_is_not_so_is_found(tmp_path: Path) -> None:
    one = Run.of(TABLES["staff"], 500, 3.0, 1, tmp_path / "run")
    told = [*of_the_run(one)]
    assert all(so for kind, so in told if kind in EXACT) and {kind for kind, _ in told} >= {*EXACT}
    again = [counted_again(column.judged(), one) for column in one.compared.columns]
    assert True in again and False not in again
    # Salaries twice as high, in another notation, and a first day after the last one.
    wrong = pd.read_csv(one.folder / "synthetic.csv", dtype=str).assign(hired="2030-01-01")
    wrong["salary"] = (2.0 * wrong["salary"].astype(float)).astype(str)
    wrong.to_csv(one.folder / "synthetic.csv", index=False)
    ledger = json.loads((one.folder / "ledger.json").read_text("utf-8"))
    (one.folder / "ledger.json").write_text(json.dumps(ledger | {"rho": 1.1 * ledger["rho"]}), encoding="utf-8")
    other = Run(one.planted, one.rows, one.epsilon, one.seed, one.folder, one.real)
    told = [*of_the_run(other)]
    assert all(any(not so for kind, so in told if kind == exact) for exact in EXACT)
    assert False in [counted_again(column.judged(), other) for column in one.compared.columns]
