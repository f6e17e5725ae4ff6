"""One's own table, from an export to a synthetic table, as it is typed: four commands and one edited file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn.table.schema import Schema
from support.exports import PERSONAL, write_hospital

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
# Cells of the export that the synthetic table has to look like.
LOOKS = {
    "Geburtsdatum": r"\d\d\.\d\d\.\d{4}",
    "Geschlecht": r"m|w|d|other",
    "PLZ": r"\d{5}|other",
    "Aufnahme": r"\d\d\.\d\d\.\d{4} \d\d:\d\d",
    "Entlassung": r"\d\d\.\d\d\.\d{4}",
    "Uhrzeit OP": r"\d\d:\d\d|",
    "Station": r"Innere|Chirurgie|Geriatrie|Pädiatrie|other",
    "Gebäude": r"Haus A|Haus B|Süd|other",
    "Hauptdiagnose": r"[A-Z]\d\d\.\d{1,2}|other",
    "Temperatur": r"\d\d,\d|",
    "Privat": r"ja|nein",
    "Begleiter": r"\d|",
    "Kosten Arznei": r"\d{1,3}(\.\d{3})*,\d\d",
    "Kosten Pflege": r"\d{1,3}(\.\d{3})*,\d\d",
    "Kosten gesamt": r"\d{1,3}(\.\d{3})*,\d\d",
}
BUILDINGS = {"Innere": "Haus A", "Chirurgie": "Haus A", "Geriatrie": "Haus B", "Pädiatrie": "Süd"}
CONSTRAINTS = """\
constraints:
  - Geburtsdatum <= Entlassung
  - Kosten gesamt = Kosten Arznei + Kosten Pflege
  - {determines: Station, column: Gebäude, map: {Innere: Haus A, Chirurgie: Haus A, Geriatrie: Haus B, Pädiatrie: Süd}}
"""


def typed(folder: Path, *arguments: str, code: int = 0) -> str:
    """A command in a folder of one's own; its standard output."""
    command = [sys.executable, "-m", "fedsyn.front.cli", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_hospital_export_becomes_a_table_without_its_patients(tmp_path: Path) -> None:
    """22 columns, `;`, Latin-1, ids, names, dates, money with thousands, codes with leading zeros."""
    rows = write_hospital(tmp_path / "patients.csv", rows=1500)
    typed(tmp_path, "init", "patients.csv", "--label", "Station")
    typed(tmp_path, "run", "run.yaml", "--out", "out", code=2)  # nobody has approved the schema
    assert not (tmp_path / "out" / "synthetic.csv").exists()

    schema = tmp_path / "schema.yaml"
    text = schema.read_text(encoding="utf-8")
    fever = text.index("  Temperatur:")
    edited = text[fever:].replace("lower: 3", "lower: 30.0  # public\n    # was: 3", 1)
    schema.write_text(text[:fever] + edited + CONSTRAINTS, encoding="utf-8")
    typed(tmp_path, "schema", "review", "schema.yaml", "--all", "--data", "patients.csv")
    assert Schema.load(schema).columns["Temperatur"].span[0] == 300  # type: ignore[union-attr]
    typed(tmp_path, "run", "run.yaml", "--out", "out")

    # As the export: German Excel opens it.
    how: dict[str, Any] = {"sep": ";", "encoding": "cp1252"}
    synthetic = pd.read_csv(tmp_path / "out" / "synthetic.csv", dtype=str, keep_default_na=False, **how)
    assert list(synthetic) == [name for name in rows if name not in PERSONAL] == list(LOOKS)
    assert 700 < len(synthetic) < 2300  # the number of rows is noisy, too
    for name, pattern in LOOKS.items():
        assert synthetic[name].str.fullmatch(pattern).all(), name
    money = {
        name: synthetic[name].str.replace(".", "").str.replace(",", "").astype(int) for name in LOOKS if "Kost" in name
    }
    assert (money["Kosten gesamt"] == money["Kosten Arznei"] + money["Kosten Pflege"]).all()
    days = {name: pd.to_datetime(synthetic[name], format="%d.%m.%Y") for name in ("Geburtsdatum", "Entlassung")}
    assert (days["Geburtsdatum"] <= days["Entlassung"]).all()
    known = synthetic[synthetic["Station"].isin(BUILDINGS)]
    assert len(known) and (known["Station"].map(BUILDINGS) == known["Gebäude"]).all()
    ledger = json.loads((tmp_path / "out" / "ledger.json").read_text(encoding="utf-8"))
    assert ledger["private"] and 0 < ledger["epsilon"] <= 1 and ledger["delta"] == 1e-6

    # No file of the run holds a name, an id, an address or a remark of anybody.
    written = {path: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    cells = set(synthetic.to_numpy().ravel())
    for name in PERSONAL:
        real = {str(cell) for cell in rows[name]}
        assert not real & cells, name
        assert not [cell for cell in real if len(cell) > 6 and any(cell.encode() in text for text in written.values())]


@pytest.mark.slow
def test_dtypes_come_back_as_they_came_in_parquet(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = 800
    frame = pd.DataFrame(
        {
            "patient_id": np.arange(rows) * 13,
            "age": rng.integers(0, 100, rows).astype("int16"),
            "children": pd.array(rng.integers(0, 4, rows), "Int64"),
            "weight": rng.normal(70, 10, rows).round(1),
            "ratio": rng.random(rows).astype("float32"),
            "smoker": pd.array(rng.random(rows) < 0.3, "boolean"),
            "dead": rng.random(rows) < 0.1,
            "ward": pd.Categorical(rng.choice(["north", "south"], rows)),
            "grade": pd.Categorical(rng.choice(["low", "high"], rows), ["low", "high"], ordered=True),
            "town": pd.array(rng.choice(["Bonn", "Ulm"], rows), "string"),
            "born": pd.Timestamp("1930-01-01") + pd.to_timedelta(rng.integers(0, 30_000, rows), "D"),
            "seen": pd.Timestamp("2024-01-01", tz="UTC") + pd.to_timedelta(rng.integers(0, 10**7, rows), "s"),
            "stay": pd.to_timedelta(rng.integers(0, 500, rows), "h"),
        }
    )
    frame.loc[:250, ["children", "weight", "smoker", "born", "town"]] = None
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    typed(tmp_path, "init", "rows.parquet")
    typed(tmp_path, "schema", "review", "schema.yaml", "--all", "--data", "rows.parquet")
    typed(tmp_path, "run", "run.yaml", "--out", "out", "--set", "synthesis.format=parquet", "--set", "epsilon=10")
    synthetic = pd.read_parquet(tmp_path / "out" / "synthetic.parquet")
    real = pd.read_parquet(tmp_path / "rows.parquet")
    assert list(synthetic) == [name for name in real if name != "patient_id"]
    assert synthetic.dtypes.to_dict() == real.dtypes.drop("patient_id").to_dict()
    assert synthetic["weight"].isna().any() and synthetic["smoker"].isna().any() and not synthetic["age"].isna().any()
    assert synthetic["weight"].dropna().mul(10).round(6).mod(1).eq(0).all()


@pytest.mark.slow
def test_one_file_of_each_holder(tmp_path: Path) -> None:
    """Holders write their files differently; each reads its own."""
    first = write_hospital(tmp_path / "north.csv", rows=500)
    second = write_hospital(tmp_path / "south.csv", rows=400, seed=1, encoding="utf-8")
    typed(tmp_path, "init", "north.csv", "south.csv")
    (tmp_path / "south.csv").write_text(second.to_csv(index=False, sep="\t"), encoding="utf-16")
    config = (tmp_path / "run.yaml").read_text(encoding="utf-8")
    assert "source: [north.csv, south.csv]" in config and "options" not in config
    typed(tmp_path, "schema", "review", "schema.yaml", "--all", "--data", "north.csv", "--data", "south.csv")
    typed(tmp_path, "run", "run.yaml", "--out", "out")
    synthetic = pd.read_csv(tmp_path / "out" / "synthetic.csv", dtype=str, keep_default_na=False)
    assert 400 < len(synthetic) < 1400 and list(synthetic) == [n for n in first if n not in PERSONAL]
