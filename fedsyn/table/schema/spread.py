"""Rows of a model whose value of a column is not listed.

They get another one.

The code of what is not listed is counted as any other, so that its share is known and the other columns keep these
rows. No table holds it: as nobody knows the value, the row gets one of the column's others, as likely as the model has
them beside the rest of the row, or, without a model, as the other rows have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsyn.domain import Codes, Domain
from fedsyn.table.schema.links import RowOdds

#: Cells of the table of odds that is there at a time.
_CELLS = 1 << 22
_DRAWS = 8


def spread(
    codes: Codes, columns: Mapping[str, Any], domain: Domain, odds: RowOdds | None, rng: np.random.Generator
) -> Codes:
    """Returns (n, d) codes without those of what is not listed.

    Nothing is drawn where no row has such a code. Structural zeros stay empty.
    """
    open_ = [
        j for j, column in enumerate(columns.values()) if column.unlisted and (codes[:, j] == column.size - 1).any()
    ]
    if not open_:
        return codes
    out = codes.copy()
    names = tuple(columns)
    for j in open_:
        last = columns[names[j]].size - 1
        rows = np.flatnonzero(out[:, j] == last)
        known = out[out[:, j] < last, j]
        counts = np.bincount(known, minlength=last)[:last].astype(np.float64)
        weights = np.log(np.where(counts > 0, counts, 1e-12 if counts.any() else 1.0))
        left = rows
        for _ in range(_DRAWS):
            _draw(out, left, names[j], j, weights, odds, rng)
            left = left[domain.violated(out[left])]
            if not len(left):
                break
        for code in range(last) if len(left) else ():
            out[left, j] = code
            left = left[domain.violated(out[left])]
    return out


def close_unlisted(tables: Mapping[tuple[str, ...], np.ndarray], columns: Mapping[str, Any]) -> None:
    """Marks cells of what is not listed as impossible, in place.

    Such a row gets one of the column's values in the end. In one table it is impossible where all of them are. Where
    several tables have the column, each could leave it another value and none is right for all: it is impossible there
    where the value is that they rule out least.

    Args:
        tables: names of columns -> their cells that no row can have.
        columns: name -> column.
    """
    for name in [name for name, column in columns.items() if column.unlisted]:
        by_code = [np.moveaxis(cells, clique.index(name), 0) for clique, cells in tables.items() if name in clique]
        ruled_out = sum(cells[:-1].reshape(len(cells) - 1, -1).mean(axis=1) for cells in by_code)
        for cells in by_code:
            cells[-1] = cells[int(np.argmin(ruled_out))] if len(by_code) > 1 else cells[:-1].all(axis=0)


def _draw(
    codes: Codes, rows: Codes, name: str, j: int, weights: np.ndarray, odds: RowOdds | None, rng: np.random.Generator
) -> None:
    """Draws a code of one column for some rows, in place."""
    size = len(weights)
    strip = max(1, _CELLS // size)
    for start in range(0, len(rows), strip):
        some = rows[start : start + strip]
        logits = np.tile(weights, (len(some), 1))
        if odds is not None:
            of, first = codes[some], np.full(len(some), size, dtype=np.intp)  # which the model gave it
            for code in range(size):
                logits[:, code] = odds(of, name, first, np.full(len(some), code, dtype=np.intp))
            logits = np.where(np.isfinite(logits), logits, -np.inf)
            logits[~np.isfinite(logits).any(axis=1)] = weights
        # Gumbel's way of drawing from shares that are known up to a factor (post-processing of a released model).
        codes[some, j] = np.argmax(logits - np.log(-np.log(rng.random(logits.shape))), axis=1)
