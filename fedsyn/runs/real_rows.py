"""Real rows of a simulation as they are written.

What was prepared of them for the run, codes and numbers, was read by the run's schema. A comparison needs eyes of its
own: it reads the files again, or the tables that the caller has in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsyn.domain import Flags
from fedsyn.lazy import pd
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import raw_rows


@dataclass(frozen=True)
class RealTable:
    """A table of real rows.

    Attributes:
        rows: their number.
        source: a file with its options, or the rows themselves.
    """

    rows: int
    source: tuple[Path, FileOptions] | pd.DataFrame

    def read(self, names: Sequence[str], wanted: Flags) -> pd.DataFrame:
        """Returns the wanted rows, with those of the columns that are there."""
        if isinstance(self.source, tuple):
            path, options = self.source
            return raw_rows(path, options, names, wanted=wanted)
        return self.source.loc[:, [name for name in names if name in self.source.columns]].iloc[np.flatnonzero(wanted)]


@dataclass(frozen=True, eq=False)
class RealRows:
    """Real rows of a run, held-out ones among them.

    Attributes:
        tables: one, or one of each holder.
        train: (rows of all tables,) which the table was made from, with those that its schema could not take.
        test: (rows of all tables,) which were held out.
    """

    tables: tuple[RealTable, ...]
    train: Flags
    test: Flags

    def read(
        self, names: Sequence[str], most: int, rng: np.random.Generator
    ) -> tuple[pd.DataFrame, pd.DataFrame | None]:
        """Returns real rows and held-out rows, in their order.

        At most so many of each come. Of the columns named those come that every table has.
        """
        chosen = [_some(np.flatnonzero(mask), most, rng) for mask in (self.train, self.test)]
        wanted = np.zeros(len(self.train), bool)
        wanted[np.concatenate(chosen)] = True
        parts, start = [], 0
        for table in self.tables:
            parts.append(table.read(names, wanted[start : start + table.rows]))
            start += table.rows
        frame = parts[0] if len(parts) == 1 else pd.concat([part.astype(object) for part in parts], join="inner")
        is_test = self.test[wanted]
        return frame[~is_test], frame[is_test] if is_test.any() else None


def _some(places: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return places if len(places) <= most else rng.choice(places, most, replace=False)
