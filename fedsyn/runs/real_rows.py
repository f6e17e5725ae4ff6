"""Real rows of a simulation as they are written.

What was prepared of them for the run, codes and numbers, was read by the run's schema. A comparison needs eyes of its
own: it reads the files again, or the tables that the caller has in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsyn.domain import Flags, Integers
from fedsyn.evaluation.real.persons import whole_people
from fedsyn.lazy import pd
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import raw_rows
from fedsyn.table.schema.whose import PersonColumn


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
        self, names: Sequence[str], most: int, rng: np.random.Generator, by: PersonColumn | None = None
    ) -> tuple[pd.DataFrame, pd.DataFrame | None]:
        """Returns real rows and held-out rows, in their order.

        At most so many of each come. Of the columns named those come that every table has. `by` is the column of
        persons, who stay whole. Persons of two tables are two: holders do not compare identifiers.
        """
        chosen = [
            _some(np.flatnonzero(mask), most, rng, self._whose(mask, most, by)) for mask in (self.train, self.test)
        ]
        wanted = np.zeros(len(self.train), bool)
        wanted[np.concatenate(chosen)] = True
        parts = self._read(names, wanted, by)
        frame = parts[0] if len(parts) == 1 else pd.concat([part.astype(object) for part in parts], join="inner")
        is_test = self.test[wanted]
        return frame[~is_test], frame[is_test] if is_test.any() else None

    def _read(self, names: Sequence[str], wanted: Flags, by: PersonColumn | None) -> list[pd.DataFrame]:
        """Returns the wanted rows of each table."""
        parts, start = list[pd.DataFrame](), 0
        for number, table in enumerate(self.tables):
            part = table.read(names, wanted[start : start + table.rows])
            if by is not None and len(self.tables) > 1 and (whose := by.numbered(part)) is not None:
                part = part.assign(**{by.name: [f"{number}:{person}" for person in whose.tolist()]})
            parts.append(part)
            start += table.rows
        return parts

    def _whose(self, mask: Flags, most: int, by: PersonColumn | None) -> Integers | None:
        """Returns the persons of some rows, where not all rows are read."""
        if by is None or int(mask.sum()) <= most:
            return None
        parts = [part for part in self._read([by.name], mask, by) if by.name in part.columns]
        return by.numbered(pd.concat(parts)) if len(parts) == len(self.tables) else None


def rows_of_people(
    path: Path,
    options: FileOptions | None,
    names: Sequence[str] | None,
    by: PersonColumn | None,
    most: int,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Returns rows of a file as they are written, of whole persons.

    At most so many. `by` is the column of persons; where there is none, each row stands for itself.
    """
    whose = None if by is None else by.numbered(raw_rows(path, options, [by.name]))
    wanted = None if whose is None else whole_people(whose, most, rng)
    return raw_rows(path, options, names, wanted=wanted, most=most, rng=rng)


def _some(places: np.ndarray, most: int, rng: np.random.Generator, whose: Integers | None) -> np.ndarray:
    if len(places) <= most:
        return places
    wanted = None if whose is None else whole_people(whose, most, rng)
    return rng.choice(places, most, replace=False) if wanted is None else places[wanted]
