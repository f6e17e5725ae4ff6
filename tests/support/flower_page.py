"""The app on the page for people who know Flower, as files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

CLIENTS = 20
PAGE = Path(__file__).resolve().parents[2] / "docs" / "flower.md"


def blocks(language: str) -> list[str]:
    """The page's blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def exports() -> dict[str, str]:
    """Returns the variables that the page sets before it calls `flwr run`."""
    lines = [line for line in blocks("sh")[0].splitlines() if line.startswith("export ")]
    return dict(word.split("=", 1) for line in lines for word in line.split()[1:])


def write_app(folder: Path, clients: int = CLIENTS) -> Path:
    """Writes the page's files, and 6,000 rows of which each SuperNode has a share, into a folder."""
    folder.mkdir()
    run, schema = blocks("yaml")
    run = run.replace(f"clients: {CLIENTS}", f"clients: {clients}")
    texts = {"app.py": blocks("python")[0], "pyproject.toml": blocks("toml")[0], "run.yaml": run, "schema.yaml": schema}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    rng = np.random.default_rng(0)
    ages, wards = rng.integers(20, 60, 6000), rng.choice(["north", "south"], 6000, p=[0.2, 0.8])
    table = pd.DataFrame({"age": ages, "ward": wards})
    (folder / "rows").mkdir()
    for k in range(clients):
        table.iloc[k::clients].to_csv(folder / "rows" / f"{k}.csv", index=False)
    return folder


def check_table(file: Path) -> None:
    """The synthetic table is near the rows: eps 2 on 6,000 rows leaves a share far less than 0.05 off."""
    table = pd.read_csv(file)
    assert list(table.columns) == ["age", "ward"] and 5_800 < len(table) < 6_200
    assert abs((table["ward"] == "south").mean() - 0.8) < 0.05 and abs(table["age"].mean() - 39.5) < 2.0
