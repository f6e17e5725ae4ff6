"""Censored values and codes for missing in an analysis: what is refused, what is left out, what is taken for what."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedsyn
from fedsyn.errors import ConfigError
from fedsyn.evaluation.analysis.tables import tables_of
from fedsyn.front.cli import app

SCHEMA = {
    "columns": {
        "assay": {
            "kind": "decimal",
            "places": 1,
            "lower": 0,
            "upper": 40,
            "bins": 20,
            "missing_codes": [-999],
            "censored": ["<0.5", ">40", "not measurable"],
        },
        "dose": {"kind": "integer", "lower": 0, "upper": 9, "missing_codes": ["refused"], "missing": True},
        "ward": {"kind": "categorical", "categories": ["a", "b"], "other": False},
    }
}
WORDS = ["<0.5", ">40", "not measurable"]
#: 6,000 rows: a fifth below the limit, a tenth not asked; the others have a mean of about 10.
ROWS = 6000


@pytest.fixture(scope="module")
def fitted() -> fedsyn.Synthesizer:
    rng = np.random.default_rng(0)
    assay = rng.gamma(4.0, 2.5, ROWS).clip(0.5, 40).round(1).astype(str).astype(object)
    kind = rng.choice(3, ROWS, p=[0.7, 0.2, 0.1])
    assay[kind == 1], assay[kind == 2] = "<0.5", "-999"
    dose = rng.integers(0, 10, ROWS).astype(object)
    dose[rng.random(ROWS) < 0.3] = "refused"
    frame = pd.DataFrame({"assay": assay, "dose": dose, "ward": rng.choice(["a", "b"], ROWS)})
    return fedsyn.Synthesizer(10.0, 1e-6, SCHEMA, "mst", seed=1).fit(frame)


@pytest.fixture(scope="module")
def frames(fitted: fedsyn.Synthesizer) -> list[pd.DataFrame]:
    return fitted.sample(4000, seed=2, tables=6)


def estimate(tables: object, formula: str, **how: str) -> float:
    return float(fedsyn.analyse(tables, formula, **how).combined.estimate[0])  # type: ignore[arg-type]


def test_a_censored_column_is_not_averaged_before_somebody_said_how(frames: list[pd.DataFrame]) -> None:
    for formula in ("assay", "mean(assay)", "assay ~ ward", "dose ~ assay"):
        with pytest.raises(ConfigError, match=re.escape("'assay': 2")) as raised:
            fedsyn.analyse(frames, formula)
        message = str(raised.value)
        assert re.search(
            r"'assay': (19|20|21|22)(\.\d)?% of its rows are censored \(<0\.5, >40, not measurable\)", message
        )
        assert "censored='bound'" in message and "censored='leave_out'" in message and "\n" not in message
    with pytest.raises(ConfigError, match="censored: expected bound or leave_out, found 'drop'"):
        fedsyn.analyse(frames, "assay", censored="drop")  # type: ignore[arg-type]


def test_a_censored_value_is_its_bound_or_left_out_and_a_code_for_missing_is_missing(
    frames: list[pd.DataFrame],
) -> None:
    """-999 in a tenth of the rows would make the mean -93."""
    kept = estimate(frames, "assay", censored="leave_out")
    assert kept == pytest.approx(10.0, abs=0.4)
    result = fedsyn.analyse(frames, "assay", censored="leave_out")
    assert any("of the rows of 'assay' are censored" in note and "left out" in note for note in result.warnings)
    part = frames[0]["assay"].astype(str)
    assert estimate(frames, "dose") == pytest.approx(4.5, abs=0.3)
    with pytest.raises(ConfigError, match="'assay': 'not measurable' names no bound; pass censored='leave_out'"):
        fedsyn.analyse(frames, "assay", censored="bound")
    assert (part == "-999").any() and (part == "<0.5").any()


def test_a_bound_counts_as_the_number_in_it() -> None:
    schema = {"columns": {**SCHEMA["columns"]}}
    schema["columns"]["assay"] = {**SCHEMA["columns"]["assay"], "censored": ["<0.5", ">40"]}  # type: ignore[dict-item]
    rng = np.random.default_rng(1)
    words = rng.choice(np.array(["<0.5", ">40", "10.0", "-999"], dtype=object), ROWS, p=[0.3, 0.2, 0.4, 0.1])
    frame = pd.DataFrame({"assay": words, "dose": 1, "ward": rng.choice(["a", "b"], ROWS)})
    tables = fedsyn.Synthesizer(10.0, 1e-6, schema, "mst", seed=1).fit(frame).sample(4000, seed=2, tables=6)
    made = tables_of(tables).frames[0]["assay"]
    numbers = pd.to_numeric(made[~made.isin(["<0.5", ">40", "-999"])]).mean()
    bound = estimate(tables, "assay", censored="bound")
    assert bound == pytest.approx((0.3 * 0.5 + 0.2 * 40.0 + 0.4 * numbers) / 0.9, abs=0.5)


def test_proportions_keep_the_words(frames: list[pd.DataFrame]) -> None:
    """Each is a value as any other there."""
    few = [frame.assign(assay=frame["assay"].where(frame["assay"].isin(["<0.5", "-999"]), "1.0")) for frame in frames]
    for one, frame in zip(few, frames, strict=True):
        one.attrs = frame.attrs
    result = fedsyn.analyse(few, "proportion(assay)").to_frame()
    assert list(result.index) == ["assay = 1.0", "assay = <0.5"], "a code for missing is none"
    assert result.loc["assay = <0.5", "estimate"] == pytest.approx(0.2 / 0.9, abs=0.03)


def test_a_folder_of_tables_and_the_command_do_the_same(fitted: fedsyn.Synthesizer, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model.fedsyn")
    out = tmp_path / "tables"
    run = CliRunner().invoke
    drawn = run(app, ["sample", str(tmp_path / "model.fedsyn"), "--tables", "6", "--rows", "4000", "--out", str(out)])
    assert drawn.exit_code == 0, drawn.output
    refused = run(app, ["analyse", str(out), "assay"])
    assert refused.exit_code != 0 and isinstance(refused.exception, ConfigError)
    assert "of its rows are censored" in str(refused.exception)
    done = run(app, ["analyse", str(out), "assay", "--censored", "leave_out"])
    assert done.exit_code == 0, done.output
    assert estimate(out, "assay", censored="leave_out") == pytest.approx(10.0, abs=0.4)
    assert estimate(out, "dose") == pytest.approx(4.5, abs=0.3)


def test_columns_without_such_rows_need_no_word(frames: list[pd.DataFrame]) -> None:
    assert estimate(frames, "proportion(ward)") == pytest.approx(0.5, abs=0.05)
    plain = [frame[~frame["assay"].isin(WORDS)].reset_index(drop=True) for frame in frames]
    for one, frame in zip(plain, frames, strict=True):
        one.attrs = frame.attrs
    assert estimate(plain, "assay") == pytest.approx(10.0, abs=0.4)
