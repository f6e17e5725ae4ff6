"""From a run to honest intervals as somebody types it, in an empty folder and without the table it was made from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from support.typed_commands import entry_point

pytest.importorskip("statsmodels.api")

SCHEMA = """\
columns:
  age: {kind: integer, lower: 0, upper: 19, bins: 4}
  ward: {kind: categorical, categories: [children, adults], other: false}
  days: {kind: integer, lower: 0, upper: 3, bins: 4}
"""
#: The same of a table that has two dates in the place of the days.
HIDDEN = (
    SCHEMA.replace("bins: 4}\n", "bins: 4, hidden: true}\n").replace("19, bins: 4, hidden: true", "19, bins: 4")
    + """\
  admitted: {kind: date, lower: "2024-01-01", upper: "2024-12-31", bins: 4}
  discharged: {kind: date, lower: "2024-01-01", upper: "2025-12-31", bins: 1}
constraints: [discharged = admitted + days]
"""
)


def rows(n: int) -> pd.DataFrame:
    """Adults stay longer, by 1.2 days on average: 2 of 4 days against 0.8."""
    rng = np.random.default_rng(0)
    ward = rng.choice(["children", "adults"], n)
    days = np.where(
        ward == "adults", rng.choice(4, n, p=[0.1, 0.2, 0.3, 0.4]), rng.choice(4, n, p=[0.5, 0.3, 0.1, 0.1])
    )
    return pd.DataFrame({"age": rng.integers(0, 20, n), "ward": ward, "days": days})


def dates(days: pd.DataFrame) -> pd.DataFrame:
    """Rows with two dates in the place of the days between them."""
    begins = pd.Timestamp("2024-01-01") + pd.to_timedelta(
        np.random.default_rng(1).integers(0, 366, len(days)), unit="D"
    )
    ends = begins + pd.to_timedelta(days["days"].to_numpy(), unit="D")
    return days.drop(columns="days").assign(admitted=begins.date, discharged=ends.date)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [False, True])
def test_from_a_run_to_intervals(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    """The true means are inside 99.99% intervals, whose half widths are four standard errors and more."""
    monkeypatch.chdir(tmp_path)
    call = entry_point(capfd, monkeypatch)
    (dates(rows(2000)) if hidden else rows(2000)).to_csv("rows.csv", index=False)
    Path("schema.yaml").write_text(HIDDEN if hidden else SCHEMA, encoding="utf-8")
    Path("run.yaml").write_text(
        "data: rows.csv\nepsilon: 5\ndelta: 1e-5\nruntime: {seed: 1}\nevaluation: {metrics: []}\n", encoding="utf-8"
    )
    ran = call("run", "run.yaml", "--out", "mine")
    assert ran.code == 0, ran
    Path("rows.csv").unlink()
    Path("schema.yaml").unlink()
    sampled = call("sample", "mine", "--tables", 10, "--out", "tables", "--seed", 1)
    assert sampled.code == 0, sampled
    found = call("analyse", "tables", "days ~ ward", "--level", 0.9999, "--json")
    assert found.code == 0, found
    answer = json.loads(found.out)
    assert answer["tables"] == 10 and not answer["warnings"]
    terms = {one["term"]: one for one in answer["terms"]}
    assert set(terms) == {"Intercept", "ward[T.children]"} and all(one["held"] for one in terms.values())
    for name, truth in (("Intercept", 2.0), ("ward[T.children]", -1.2)):
        assert terms[name]["low"] < truth < terms[name]["high"]
        assert terms[name]["low"] < terms[name]["naive_low"] < terms[name]["naive_high"] < terms[name]["high"]
    assert terms["ward[T.children]"]["high"] < 0.0
    shown = call("analyse", "tables", "days ~ ward")
    assert shown.code == 0 and "honest 95%" in shown.out and "naive 95%" in shown.out
