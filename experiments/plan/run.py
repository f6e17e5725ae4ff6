"""How far what `fedsyn plan` expects is from the truth, on held_out's cheap tables, for each kind of stand-in.

    FEDSYN_DATA=FOLDER python experiments/plan/run.py [--side tuning] [--epsilons 1 3] [--tables NAME ...]
                                                      [--keep FILE] [--report] [--check]
    FEDSYN_DATA=FOLDER python experiments/plan/run.py --prior

A true error is that of a run on the first rows of a table. Expected is what a plan says that knows nothing of it but
the schema; has a release of its first 1,000 rows at epsilon 1; or has its held-out rows as a public table. --prior
prints the constants of the product that are read off the tuning side. Runs in FILE, JSON lines outside of the
repository, are not run again. Exit code: 0; 1 if what expected.yaml says does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import combinations
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.held_out.held_cells import Cell, cost_of, spread
from experiments.held_out.held_tables import TABLES, Rows, available, rows_of
from fedsyn import yamlio
from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.front.plan import SPREADS, Basis, expectation, rehearse, rehearsing, stand_ins
from fedsyn.front.standin import Likeness
from fedsyn.runs.engines import run
from fedsyn.selection.views import effective_cells
from fedsyn.table.counting.marginals import count
from fedsyn.table.schema import Schema

#: Tables that are looked at: of so many rows for training, and of so little work (`held_cells.cost_of`).
FEWEST, MOST, DEAREST = 600, 10_000, 5_000.0
FIRST = 1000  # rows of an earlier release, at epsilon 1
TRUE, EARLIER = 2, 3  # seeds; a plan has its own
BASES: tuple[Basis, ...] = ("typical tables", "an earlier release", "a public table")


class Outcome(NamedTuple):
    """What was expected of a run, and what was true."""

    basis: Basis
    table: str
    rows: int
    epsilon: float
    expected: float
    true: float

    @property
    def factor(self) -> float:
        """By which the true error is off, 1 or more."""
        return max(self.expected / self.true, self.true / self.expected)


def schema_of(rows: Rows) -> Schema:
    """A schema whose codes are the table's: whole numbers in order, then a missing value, or categories."""
    columns: dict[str, Any] = {}
    for name, size in zip(rows.domain, rows.domain.shape, strict=True):
        inner = rows.domain.ordered.get(name, 0)
        kept = inner if inner > 2 and size - inner in (0, 1) else 0
        numbers = {"kind": "numeric", "dtype": "integer", "lower": 0, "upper": kept - 1, "bins": "values"}
        words = {"kind": "categorical", "categories": [f"v{i}" for i in range(size)], "other": False}
        columns[name] = numbers | {"missing": kept < size} if kept else words
    return Schema.from_dict({"columns": columns, "approved": True})


def outcomes(table: str, epsilons: list[float]) -> Iterator[Outcome]:
    """All plans for a table: of its first 1,000 rows, and of all."""
    found = rows_of(table)
    schema, most = schema_of(found), min(MOST, len(found.train))
    frame = schema.decode(found.train[:most], np.random.default_rng(0))
    with tempfile.TemporaryDirectory() as folder:
        public, earlier = Path(folder) / "public.csv", Path(folder) / "earlier"
        schema.decode(found.held, np.random.default_rng(0)).to_csv(public, index=False)
        first = config(1.0)
        run(rehearsing(first, 1.0, seed=EARLIER), earlier, table=frame[:FIRST], schema=schema, full_page=False)
        for rows in sorted({min(FIRST, most), most}):
            ways = {"typical tables": {}, "an earlier release": {"like": earlier}, "a public table": {"public": public}}
            stands = {basis: stand_ins(first, schema, rows, **way) for basis, way in ways.items()}
            for epsilon in epsilons:
                true = rehearse(rehearsing(first, epsilon, seed=TRUE), schema, frame[:rows])[0].error
                for basis in BASES:
                    said = expectation(first, stands[basis], epsilon, lambda: None)
                    yield Outcome(basis, table, rows, epsilon, said.run.error, true)


def config(epsilon: float) -> RunConfig:
    """Held_out's configuration of sketch_aim."""
    return Cell("", 0, epsilon, 1, "sketch_aim", ()).config()


def chosen(side: str) -> list[str]:
    """The cheap tables of a side, the cheapest first."""
    names = [name for name, one in TABLES.items() if one.side == side and available(name)]
    return spread([n for n in names if len(rows_of(n).train) >= FEWEST and cost_of(n) <= DEAREST])


def likeness(codes: npt.NDArray[np.integer], domain: Domain) -> tuple[Likeness, float]:
    """Returns what a table is like, and the sd of its columns' evenness beside that; columns of one value aside."""
    names = [name for name in domain if len(np.unique(codes[:, domain.axes((name,))[0]])) > 1]
    masses = {
        name: np.asarray(own, np.float64).ravel() / len(codes)
        for name, own in zip(names, count(codes, domain, [(name,) for name in names]), strict=True)
    }
    even = np.array([log(effective_cells(own)) / log(len(own)) for own in masses.values()])
    logs = np.log([len(own) for own in masses.values()])
    uneven = float(np.sum(1.0 - even) / np.sum(logs))
    pairs, found = list(combinations(names, 2)), list[float]()
    for (a, b), own in zip(pairs, count(codes, domain, pairs), strict=True):
        alone = np.outer(masses[a], masses[b])
        there = alone > 0
        off = np.asarray(own, np.float64).reshape(alone.shape)[there] / len(codes) - alone[there]
        chance = np.prod([np.count_nonzero(masses[name]) - 1.0 for name in (a, b)]) / (len(codes) - 1.0)
        squared = max(0.0, float(np.sum(off**2 / alone[there])) - float(chance))
        found.append(squared / (1.0 + squared))
    return Likeness(uneven, float(np.mean(found)) if found else 0.0), float(np.std(even + uneven * logs))


def prior() -> Iterator[str]:
    """The constants of `fedsyn.front.standin`, of all tables of the tuning side."""
    found = []
    for name in (name for name, one in TABLES.items() if one.side == "tuning" and available(name)):
        rows = rows_of(name)
        like, within = likeness(rows.train, rows.domain)
        found.append((*like, within))
        yield f"{name:20} unevenness {like.unevenness:.3f} (sd {within:.3f}) links {like.links:.4f}"
    even, links, _ = np.quantile(found, [1 / 6, 1 / 2, 5 / 6], axis=0).T
    typical = ", ".join(f"Likeness({a:.3f}, {b:.4f})" for a, b in zip(even, links, strict=True))
    yield f"TYPICAL = ({typical})"
    yield f"WITHIN = {np.median(np.array(found)[:, 2]):.3f}"


def report(found: list[Outcome]) -> Iterator[str]:
    """The tables of the README, and what `fedsyn.front.plan.SPREADS` would be."""
    yield "| stand-in | runs | expected / true, geometric mean | sd of its log | within 25% | in its range |"
    yield "|---|---|---|---|---|---|"
    for basis in BASES:
        own = [one for one in found if one.basis == basis]
        if own:
            logs = np.log([one.expected / one.true for one in own])
            held = np.mean([one.factor <= SPREADS[basis] for one in own])
            near = within(own)
            yield f"| {basis} | {len(own)} | {np.exp(logs.mean()):.2f} | {logs.std():.2f} | {near:.0%} | {held:.0%} |"
    for basis in BASES:
        if factors := [one.factor for one in found if one.basis == basis]:
            yield f"{basis}: nine of ten are within a factor of {np.quantile(factors, 0.9):.2f}"


def within(found: list[Outcome], share: float = 0.25) -> float:
    """Share of the runs whose true error is as near to the expected one as that."""
    return float(np.mean([abs(one.expected / one.true - 1.0) <= share for one in found]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=("tuning", "judging"), default="judging")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--keep", type=Path, help="file of JSON lines")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml, which is of the judging side")
    parser.add_argument("--prior", action="store_true", help="print the constants read off the tuning side")
    options = parser.parse_args()
    if options.prior:
        print("\n".join(prior()))
        return 0
    kept: dict[str, list[Outcome]] = {}
    if options.keep and options.keep.is_file():
        for line in options.keep.read_text(encoding="utf-8").splitlines():
            facts: Mapping[str, Any] = json.loads(line)
            kept[facts["table"]] = [Outcome(*one) for one in facts["outcomes"]]
    found: list[Outcome] = []
    for table in options.tables or chosen(options.side):
        if table not in kept and not options.report:
            kept[table] = list(outcomes(table, options.epsilons))
            for one in kept[table]:
                print(
                    f"{table:20} {one.rows:6} {one.epsilon:g} {one.basis:20} {one.expected:.3f} {one.true:.3f}",
                    flush=True,
                )
            if options.keep:
                with options.keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"table": table, "outcomes": kept[table]}) + "\n")
        found += kept.get(table, [])
    print("\n".join(report(found)))
    if not options.check:
        return 0
    asked = yamlio.loads((Path(__file__).parent / "expected.yaml").read_text(encoding="utf-8"), "expected.yaml")
    good = {basis: within([one for one in found if one.basis == basis]) >= least for basis, least in asked.items()}
    print("".join(f"\n{basis}, within 25%: {'yes' if held else 'NO'}" for basis, held in good.items()))
    return int(not all(good.values()))


if __name__ == "__main__":
    sys.exit(main())
