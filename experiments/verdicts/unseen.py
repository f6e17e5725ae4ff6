"""Whether pairs that are called unlinked are so: python -m experiments.verdicts.unseen --side tuning

`sketch_aim` runs at its defaults on the tables of `experiments/held_out` and on those of `frames`, each with its
drafted schema. Of N pairs a run says that nine of ten links of theirs above an association of T would have been seen.
Here T is held against the values as they are written. Of all links above T, those that were seen and those among the
N, at most one in ten may be among the N, in each family of tables; a family passes as well where chance alone may have
left as many of them unseen (a binomial test at 1%).

An association is Cramér's V in at most eight groups of written values (`fedsyn.evaluation.scores`): of numbers and
times along their quantiles, of words by frequency, and missing ones a group of their own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import binom

from experiments.held_out.held_cells import Cell, fitted, spread
from experiments.held_out.held_tables import TABLES, available, row_counts, rows_of
from experiments.verdicts.frames import frames
from experiments.verdicts.run import schema_of
from fedsyn.domain import Clique
from fedsyn.evaluation.predicted.effects import Effects
from fedsyn.evaluation.predicted.limits import POWER, most_said
from fedsyn.evaluation.predicted.links import Look, looks
from fedsyn.evaluation.scores import association, few_groups
from fedsyn.inference import Evidence
from fedsyn.table.schema import Schema

#: A run's default workload, of which the tables of `experiments/held_out` have a part otherwise.
_WORKLOAD = ("workload={degree: 3, size: 1000}",)
_CHANCE = 0.01


@dataclass(frozen=True)
class Said:
    """What a run said of links, beside the links that are written in its rows.

    Attributes:
        pairs: of columns.
        unlinked: pairs that are said to have no link above the limit.
        limit: T.
        missed: links above it among them.
        seen: links above it that the run saw.
    """

    pairs: int
    unlinked: int
    limit: float
    missed: int
    seen: int


def grouped(column: pd.Series) -> npt.NDArray[np.int64]:
    """The group of each row's written value, of at most eight."""
    times = pd.api.types.is_datetime64_any_dtype(column)
    values = column.astype(np.int64).where(column.notna()) if times else column
    codes, written = pd.factorize(values, sort=True, use_na_sentinel=False)
    shares = np.bincount(codes) / len(codes)
    at = np.asarray(written, np.float64) if pd.api.types.is_numeric_dtype(values) else None
    return few_groups(shares, at, 1.0 / np.sqrt(len(codes)))[codes]


def associations(frame: pd.DataFrame) -> dict[Clique, float]:
    """The association of each pair of columns, in written values."""
    groups, found = {name: grouped(frame[name]) for name in frame}, {}
    for pair in combinations(frame, 2):
        first, second = (groups[name] for name in pair)
        table = np.zeros((first.max() + 1, second.max() + 1))
        np.add.at(table, (first, second), 1.0 / len(frame))
        found[pair] = association(table, len(frame))
    return found


def taken(frame: pd.DataFrame, schema: Schema, cell: Cell) -> tuple[int, list[Look]]:
    """Number of pairs of a run over a table, and its looks at them."""
    codes, domain = schema.encode(frame[list(schema.columns)]), schema.domain
    strategy = fitted(cell.config(), np.ascontiguousarray(codes), domain)
    assert strategy.model is not None
    evidence, errors = Evidence(strategy.measured, strategy.model.total), list(strategy.sketch_errors())
    pairs = list(combinations(domain, 2))
    return len(pairs), list(looks(Effects(strategy.model, evidence, errors, pairs), errors, pairs, schema, {}))


def said(frame: pd.DataFrame, pairs: int, some: Sequence[Look]) -> Said:
    """What these looks said, beside the table."""
    real = associations(frame)
    unlinked, limit = most_said([look.limit for look in some if look.link is None])
    above = [look for look in some if look.limit <= limit and real[look.columns] > limit]
    seen = sum(look.link is not None for look in above)
    return Said(pairs, unlinked, limit, len(above) - seen, seen)


def tables(side: str, names: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame, Schema, list[int]]]:
    """Name, rows, schema and row numbers of each table of a side."""
    for name in spread([name for name, table in TABLES.items() if table.side == side and available(name)]):
        if not names or name in names:
            rows = rows_of(name)
            frame = pd.DataFrame({n: rows.train[:, i] for i, n in enumerate(rows.domain)})
            schema = schema_of(rows)
            for column in set(rows.domain) - set(rows.domain.ordered):
                frame[column] = "v" + frame[column].astype(str)
            yield name, frame, schema, row_counts(name)
    for name, (of, make) in frames().items():
        if of == side and (not names or name in names):
            frame = make().sample(frac=1.0, random_state=1, ignore_index=True)
            yield name, frame, Schema.draft(frame).approve(), [1_000, len(frame)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=("tuning", "judging"), default="tuning")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--tables", nargs="*", default=[], help="default: all")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a family misses more than one link in ten")
    options = parser.parse_args()
    print("| table | runs | pairs | called linked or unlinked | limits | links above them | of these unseen |")
    print("|---" * 7 + "|")
    good, whole = True, np.zeros(2, int)
    for name, frame, schema, numbers in tables(options.side, options.tables):
        found = []
        for rows in numbers:
            for epsilon in options.epsilons:
                cell = Cell(name, rows, epsilon, 1, "sketch_aim", _WORKLOAD)
                pairs, some = taken(frame[:rows], schema, cell)
                told = said(frame[:rows], pairs, some)
                linked = sum(look.link is not None for look in some)
                found.append((told, told.unlinked + linked))
        missed, seen = (sum(getattr(told, what) for told, _ in found) for what in ("missed", "seen"))
        whole += missed, seen
        limits = sorted(told.limit for told, _ in found if told.unlinked) or [1.0]
        known = sum(count for _, count in found) / sum(told.pairs for told, _ in found)
        passes = missed <= binom.ppf(1.0 - _CHANCE, missed + seen, 1.0 - POWER)
        good = good and bool(passes)
        share = f"{missed / (missed + seen):.0%}" if missed + seen else "-"
        between = f"{limits[0]:.2f} to {limits[-1]:.2f}"
        print(
            f"| {name} | {len(found)} | {sum(told.pairs for told, _ in found):,} | {known:.0%} | {between} | "
            f"{missed + seen} | {missed} ({share}){'' if passes else ' TOO MANY'} |",
            flush=True,
        )
    print(f"| **all** | | | | | {whole.sum()} | {whole[0]} ({whole[0] / max(1, whole.sum()):.0%}) |")
    print("as expected" if good else "NOT as expected")
    return int(options.check and not good)


if __name__ == "__main__":
    sys.exit(main())
