"""What a newcomer meets that is no error: warnings aloud, tables of other habits, and formats that come back."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from support.bad_inputs import call, contents, furnish


@pytest.mark.parametrize(
    ("said", "warned"),
    [
        ("privacy.epsilon=1e-9", "Noise outweighs signal"),
        ("privacy.delta=0.5", "Delta is large"),
        ("workload.seed=1", ""),
    ],
)
def test_a_budget_that_means_little_is_said_aloud(
    said: str, warned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    typed = f"run run.yaml --out out --set {said} --set synthesis.rows=50 --set federation.clients=1"
    code, out, err = call(typed, capsys, monkeypatch)
    assert (code, err) == (0, "")
    found = re.findall(r"^warning: *(.*?)\.", out, flags=re.MULTILINE)
    assert found[:1] == ([warned] if warned else [])


def test_a_typo_does_not_cost_an_earlier_run_its_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert call("run run.yaml --out out", capsys, monkeypatch)[0] == 0
    before = contents(tmp_path)
    for said in ("workload.cliques=[[age,jbo]]", "synthesis.rows=9999999999", "privacy.delta=1e-300"):
        code, _, err = call(f"run run.yaml --out out --force --set {said}", capsys, monkeypatch)
        assert code == 2 and said.split("=")[0].split(".")[1] in err, err
    assert contents(tmp_path) == before


def test_twelve_hour_clocks_are_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As American exports write them; they come back as they were written."""
    rng = np.random.default_rng(0)
    moments = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 400_000, 200), unit="min")
    visits = {
        "visit": moments.strftime("%m/%d/%Y %I:%M %p"),
        "at": moments.strftime("%I:%M %p"),
        "n": rng.integers(0, 9, 200),
    }
    pd.DataFrame(visits).to_csv(tmp_path / "visits.csv")
    monkeypatch.chdir(tmp_path)
    assert call("init visits.csv --keep visit", capsys, monkeypatch)[0] == 0
    assert call("schema review schema.yaml --data visits.csv --all", capsys, monkeypatch)[0] == 0
    assert call("run run.yaml --out out", capsys, monkeypatch)[0] == 0
    made = pd.read_csv(tmp_path / "out" / "synthetic.csv", dtype=str)
    assert list(made) == list(visits)
    assert pd.to_datetime(made["visit"], format="%m/%d/%Y %I:%M %p").dt.year.eq(2024).all()
    assert made["at"].str.fullmatch(r"(0\d|1[0-2]):[0-5]\d [AP]M").all() and made["at"].str.endswith("PM").any()


def test_a_parquet_file_comes_back_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "level": pd.Categorical(rng.choice(["lo", "hi"], 200), categories=["lo", "hi"], ordered=True),
            "age": pd.array(rng.integers(0, 99, 200), dtype="Int64"),
            "when": pd.Timestamp("2024-01-01", tz="Europe/Berlin")
            + pd.to_timedelta(rng.integers(0, 10**6, 200), unit="s"),
            "ok": rng.random(200) < 0.3,
            "small": rng.normal(0, 1, 200).astype("float32"),
        }
    )
    table.loc[:9, "age"] = pd.NA
    table.to_parquet(tmp_path / "table.parquet")
    monkeypatch.chdir(tmp_path)
    assert call("init table.parquet", capsys, monkeypatch)[0] == 0
    assert call("schema review schema.yaml --data table.parquet --all", capsys, monkeypatch)[0] == 0
    assert call("run run.yaml --out out", capsys, monkeypatch)[0] == 0
    made = pd.read_parquet(tmp_path / "out" / "synthetic.parquet")
    pd.testing.assert_series_equal(made.dtypes, pd.read_parquet(tmp_path / "table.parquet").dtypes)


def test_a_draft_names_the_values_that_have_a_bin_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bins are counted without them: that they are found is what decides whether zeros come back."""
    rng = np.random.default_rng(1)
    cost = np.where(rng.random(2000) < 0.7, 0, rng.lognormal(7, 1, 2000)).round(2)
    pd.DataFrame({"cost": cost, "ward": rng.choice(["a", "b"], 2000)}).to_csv(tmp_path / "cost.csv", index=False)
    monkeypatch.chdir(tmp_path)
    code, out, err = call("init cost.csv", capsys, monkeypatch)
    assert (code, err) == (0, "")
    assert "round bins; 0 by itself" in " ".join(out.split())
