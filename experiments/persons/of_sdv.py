"""Makes persons and rows with SDV, which gives no privacy: HMA of two tables, or PAR of sequences.

    PYTHON experiments/persons/of_sdv.py HMA FOLDER [--epochs 128]

It needs an interpreter that has SDV, and nothing of this repository. FOLDER has `persons.csv` and `rows.csv`, in both
of which `id` comes first; `made_persons.csv` and `made_rows.csv` are written beside them. PAR knows a person by its
rows, so it makes none without any.
"""

from __future__ import annotations

import argparse
import random
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

warnings.simplefilter("ignore")


def hma(persons: pd.DataFrame, rows: pd.DataFrame, epochs: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two tables by a hierarchical model; the order of rows is a column of theirs."""
    from sdv.metadata import Metadata
    from sdv.multi_table import HMASynthesizer

    rows = rows.assign(at=rows.groupby("id").cumcount())
    link = {"parent_table_name": "persons", "parent_primary_key": "id"}
    own, theirs = _kinds(persons), {**_kinds(rows), "at": {"sdtype": "numerical"}}
    found = {
        "tables": {"persons": {"primary_key": "id", "columns": own}, "rows": {"columns": theirs}},
        "relationships": [{**link, "child_table_name": "rows", "child_foreign_key": "id"}],
    }
    synthesizer = HMASynthesizer(Metadata.load_from_dict(found), verbose=False)
    synthesizer.fit({"persons": persons, "rows": rows})
    made = synthesizer.sample_scale(1.0)
    ordered = made["rows"].sort_values(["id", "at"], kind="stable").drop(columns="at")
    return made["persons"], ordered


def par(persons: pd.DataFrame, rows: pd.DataFrame, epochs: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Sequences by a recurrent network, given the person."""
    from sdv.metadata import Metadata
    from sdv.sequential import PARSynthesizer

    own = list(persons.columns[1:])
    joined = rows.assign(at=rows.groupby("id").cumcount()).merge(persons, on="id")
    kinds = {**_kinds(joined), "at": {"sdtype": "numerical"}}
    table = {"columns": kinds, "sequence_key": "id", "sequence_index": "at"}
    synthesizer = PARSynthesizer(
        Metadata.load_from_dict({"tables": {"rows": table}}), context_columns=own, epochs=epochs, cuda=False
    )
    synthesizer.fit({"rows": joined})
    made = synthesizer.sample_sequences(joined["id"].nunique())["rows"]
    return made.drop_duplicates("id")[["id", *own]], made[list(rows.columns)]


def _kinds(table: pd.DataFrame) -> dict[str, dict[str, str]]:
    return {name: {"sdtype": "id" if name == "id" else "categorical"} for name in table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=("HMA", "PAR"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    np.random.seed(options.seed)  # noqa: NPY002 (SDV draws from it)
    read = [
        pd.read_csv(options.folder / f"{name}.csv", dtype=str, keep_default_na=False) for name in ("persons", "rows")
    ]
    made = {"HMA": hma, "PAR": par}[options.way](*read, options.epochs)
    for name, table in zip(("persons", "rows"), made, strict=True):
        table.to_csv(options.folder / f"made_{name}.csv", index=False)


if __name__ == "__main__":
    main()
