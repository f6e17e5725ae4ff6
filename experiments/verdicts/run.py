"""Whether verdicts are right where the truth is known: python experiments/verdicts/run.py --side tuning

Of each table of `experiments/held_out` half of the rows are real, and a table is made of the other half in which every
link has shrunk by the same factor: a row keeps all of its values with probability `kept`, else each column's value is
that of another row. What the verdict says of each linked pair is then right or wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.held_out.held_tables import TABLES, Rows, available, row_counts, rows_of
from fedsyn import yamlio
from fedsyn.evaluation.real.comparison import TableComparison, compare_tables
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema

#: How much of each link is in the table -> what it is to be called.
SHRUNK = {1.0: "kept", 0.9: "kept", 0.6: "changed", 0.3: "lost", 0.0: "lost"}


def schema_of(rows: Rows) -> Schema:
    """A schema with the table's codes for values."""
    return Schema(
        columns={
            name: NumericColumn(lower=0, upper=size, bins=size)
            if rows.domain.ordered.get(name) == size
            else CategoricalColumn(categories=tuple(f"v{i}" for i in range(size)), other=False)
            for name, size in zip(rows.domain.attributes, rows.domain.shape, strict=True)
        },
        approved=True,
    )


def frame_of(rows: Rows, codes: np.ndarray) -> pd.DataFrame:
    """A table with the codes as values: numbers, or words."""
    ordered = [rows.domain.ordered.get(name) == size for name, size in zip(rows.domain, rows.domain.shape, strict=True)]
    words = np.array([f"v{i}" for i in range(max(rows.domain.shape))], dtype=object)
    return pd.DataFrame(
        {name: codes[:, j] if ordered[j] else words[codes[:, j]] for j, name in enumerate(rows.domain.attributes)}
    )


def compared(name: str, number: int, kept: float) -> TableComparison:
    """Half of so many rows of a table beside the other half with shrunken links."""
    rows, rng = rows_of(name), np.random.default_rng([number, round(10 * kept)])
    real, other = rows.train[: number // 2], rows.train[number // 2 : number]
    apart = np.stack([rng.permutation(column) for column in other.T], axis=1)
    made = np.where(rng.random((len(other), 1)) < kept, other, apart)
    return compare_tables(frame_of(rows, real), frame_of(rows, made), rng=rng)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=("tuning", "judging"), default="tuning")
    parser.add_argument("--kind", default="", help="tables whose name begins so; default: all")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml, which is of the judging side")
    options = parser.parse_args()
    print(
        "| table | rows | linked pairs | columns kept | "
        + " | ".join(f"{k:.0%}: {w}" for k, w in SHRUNK.items())
        + " |"
    )
    print("|---" * (4 + len(SHRUNK)) + "|")
    pooled = {kept: [0, 0] for kept in SHRUNK}
    for name, table in TABLES.items():
        if table.side != options.side or not name.startswith(options.kind) or not available(name):
            continue
        for number in row_counts(name):
            cells, found = [], None
            for kept, word in SHRUNK.items():
                found = compared(name, number, kept)
                links = found.verdict().links
                right = sum(link.state == word for link in links)
                pooled[kept][0] += right
                pooled[kept][1] += len(links)
                cells.append(f"{right / len(links):.0%}" if links else "-")
            assert found is not None
            columns = sum(column.judged().state == "kept" for column in found.columns)
            numbers = f"{len(found.verdict().links)} of {len(found.pairs)} | {columns} of {len(found.columns)}"
            print(f"| {name} | {number // 2} | {numbers} | {' | '.join(cells)} |", flush=True)
    shares = {kept: right / max(links, 1) for kept, (right, links) in pooled.items()}
    print("| **all** | | | | " + " | ".join(f"{share:.0%}" for share in shares.values()) + " |")
    if not options.check:
        return 0
    least = yamlio.read_mapping(Path(__file__).with_name("expected.yaml"))["links"]
    good = all(shares[kept] >= float(share) for kept, share in zip(SHRUNK, least.values(), strict=True))
    print("as expected" if good else "NOT as expected")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
