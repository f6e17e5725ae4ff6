"""The export of a hospital, as hospitals write them: 22 columns, `;`, Latin-1, decimal commas, ids, names, free text.

Everything in it is made up. `hospital` gives the cells as text; `write_hospital` writes the file.
"""

from __future__ import annotations

import datetime as dt
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

# Columns that tell who somebody is: no value of them may come out again.
PERSONAL = ("Fallnummer", "Patienten-ID", "Nachname", "Vorname", "E-Mail", "Telefon", "Bemerkung")
_FIRST = ("Jörg", "Käthe", "Renée", "Björn", "Zoë", "André", "Ulrike", "François", "Heike", "Özlem")
_LAST = ("Müller", "Schäfer", "Groß", "Jäger", "Köhler", "Weiß", "Böhm", "Krüger", "Möller", "Lößner")
_NOTES = ("klagt über Schmerzen im Knie", "wurde von der Tochter gebracht", "möchte früher entlassen werden")


def hospital(rows: int = 600, seed: int = 0) -> pd.DataFrame:
    """(rows, 22) cells as text; missing ones are empty."""
    return _hospital(rows, seed).copy()


@cache
def _hospital(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    born = [dt.date(1928, 1, 1) + dt.timedelta(days=int(d)) for d in rng.integers(0, 34_000, rows)]
    admitted = [dt.datetime(2022, 1, 1) + dt.timedelta(minutes=int(m)) for m in rng.integers(0, 1_400_000, rows)]
    stay = rng.integers(0, 30, rows)
    drugs, care = rng.gamma(2.0, 900.0, rows).round(2), rng.gamma(3.0, 1500.0, rows).round(2)
    ward = rng.choice(["Innere", "Chirurgie", "Geriatrie", "Pädiatrie"], rows, p=[0.4, 0.3, 0.2, 0.1])
    building = {"Innere": "Haus A", "Chirurgie": "Haus A", "Geriatrie": "Haus B", "Pädiatrie": "Süd"}
    first, last = rng.choice(_FIRST, rows), rng.choice(_LAST, rows)
    code = rng.integers(0, 10**6, rows)
    columns = {
        "Fallnummer": [f"F{2022_000_000 + k}" for k in rng.permutation(rows)],
        "Patienten-ID": [f"{k:010d}" for k in rng.permutation(10**6)[:rows]],
        "Nachname": [f"{b}-{a}{k % 97}" for a, b, k in zip(first, last, code, strict=True)],
        "Vorname": [f"{a}{k % 41}" for a, k in zip(first, code, strict=True)],
        "E-Mail": [f"p{k}@beispiel.de" for k in code],
        "Telefon": [f"0{rng.integers(30, 999)} / {k + 1_000_000}" for k in code],
        "Geburtsdatum": [day.strftime("%d.%m.%Y") for day in born],
        "Geschlecht": rng.choice(["m", "w", "d"], rows, p=[0.47, 0.47, 0.06]),
        "PLZ": rng.choice(["01067", "01069", "01097", "53113", "80331"], rows),
        "Aufnahme": [moment.strftime("%d.%m.%Y %H:%M") for moment in admitted],
        "Entlassung": [
            (moment.date() + dt.timedelta(days=int(days))).strftime("%d.%m.%Y")
            for moment, days in zip(admitted, stay, strict=True)
        ],
        "Uhrzeit OP": [
            f"{h:02d}:{m:02d}" for h, m in zip(rng.integers(7, 20, rows), rng.integers(0, 60, rows), strict=True)
        ],
        "Station": ward,
        "Gebäude": [building[name] for name in ward],
        "Hauptdiagnose": rng.choice(
            ["I10.00", "E11.90", "J18.9", "S72.01", "K35.8"], rows, p=[0.3, 0.3, 0.2, 0.1, 0.1]
        ),
        "Temperatur": [f"{t:.1f}".replace(".", ",") for t in rng.normal(37.1, 0.7, rows).clip(34, 42)],
        "Privat": rng.choice(["nein", "ja"], rows, p=[0.85, 0.15]),
        "Begleiter": rng.integers(0, 4, rows).astype(str),
        "Kosten Arznei": [_money(x) for x in drugs],
        "Kosten Pflege": [_money(x) for x in care],
        "Kosten gesamt": [_money(x) for x in (drugs + care).round(2)],
        "Bemerkung": [f"Pat. {a}{k} {rng.choice(_NOTES)}" for a, k in zip(first, code, strict=True)],
    }
    frame = pd.DataFrame({name: np.asarray(values, dtype=object) for name, values in columns.items()})
    for name, share in (("Temperatur", 0.1), ("Uhrzeit OP", 0.4), ("Begleiter", 0.05)):
        frame.loc[rng.random(rows) < share, name] = ""
    return frame


def write_hospital(path: Path, rows: int = 600, seed: int = 0, encoding: str = "latin-1") -> pd.DataFrame:
    """Writes the export, separated by `;`, and returns its cells."""
    frame = hospital(rows, seed)
    path.write_bytes(frame.to_csv(index=False, sep=";", lineterminator="\r\n").encode(encoding))
    return frame


def _money(value: float) -> str:
    """1234.5 -> 1.234,50"""
    return f"{value:,.2f}".replace(",", "\0").replace(".", ",").replace("\0", ".")
