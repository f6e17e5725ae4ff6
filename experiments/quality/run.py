"""How far the statement of a run's quality is from the truth: predicted beside true errors, on held_out's tables.

    FEDSYN_DATA=FOLDER python experiments/quality/run.py [--side tuning] [--epsilons 0.3 1 3 10] [--seeds 1] [--every]

What the spread of an interval is was chosen on the tuning side; the judging side had no part in it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "held_out"))

from held_cells import WORKLOAD, Cell, fitted
from held_tables import TABLES, available, row_counts, rows_of

from fedsyn.counting.candidates import build_workload
from fedsyn.counting.marginals import count
from fedsyn.inference import Evidence
from fedsyn.statement import Said, Statement, stated

ROWS = (200, 1000, 10**9)


@dataclass(frozen=True)
class Outcome:
    """A run: what was predicted and what was true, over the workload and of each clique."""

    table: str
    rows: int
    epsilon: float
    statement: Statement
    true: npt.NDArray[np.float64]

    @property
    def whole(self) -> Said:
        assert self.statement.workload_error is not None
        return self.statement.workload_error

    @property
    def ratio(self) -> float:
        return self.whole.value / float(self.true.mean())

    @property
    def is_inside(self) -> bool:
        return self.whole.low <= float(self.true.mean()) <= self.whole.high

    @property
    def pieces(self) -> list[tuple[float, bool, str]]:
        """(log ratio, whether the interval holds it, source) of each clique that has an error."""
        pairs = zip(self.statement.cliques, map(float, self.true), strict=True)
        return [(float(np.log(s.value / t)), s.low <= t <= s.high, s.source) for s, t in pairs if t > 0 and s.value > 0]


def outcome(table: str, rows: int, epsilon: float, seed: int) -> Outcome:
    """One run of sketch_aim at its defaults, and its statement."""
    found = rows_of(table)
    train, domain = found.train[:rows], found.domain
    strategy = fitted(Cell(table, rows, epsilon, seed, "sketch_aim", ()).config(), train, domain)
    model = strategy.model
    assert model is not None
    said = stated(model, Evidence(strategy.measured, model.total), strategy.glimpses(), strategy.workload)
    workload = build_workload(WORKLOAD, domain)
    pairs = zip(count(train, domain, workload.cliques), model.project_many(workload.cliques), strict=True)
    off = [np.abs(np.asarray(t).ravel() / len(train) - np.asarray(m).ravel() / model.total).sum() for t, m in pairs]
    return Outcome(table, rows, epsilon, said, np.array(off))


def outcomes(side: str, epsilons: list[float], seeds: int, tables: list[str]) -> Iterator[Outcome]:
    for name, table in TABLES.items():
        if table.side == side and available(name) and (not tables or name in tables):
            for rows in row_counts(name):
                for epsilon in epsilons:
                    for seed in range(1, seeds + 1):
                        yield outcome(name, rows, epsilon, seed)


def line(name: str, some: list[Outcome]) -> str:
    """A row of a table: how many runs, their ratios, and how many intervals hold the truth."""
    ratios = np.array([one.ratio for one in some])
    near, inside = np.mean(np.abs(ratios - 1) <= 0.15), np.mean([one.is_inside for one in some])
    spread = np.std(np.log(ratios))
    mean = np.exp(np.mean(np.log(ratios)))
    return f"| {name} | {len(some)} | {mean:.2f} | {spread:.2f} | {near:.0%} | {inside:.0%} |"


def report(found: list[Outcome]) -> Iterator[str]:
    """The tables of the README."""
    head = "| {} | runs | predicted / true, geometric mean | sd of its log | within 15% | 90% interval holds it |"
    yield head.format("table")
    yield "|---|---|---|---|---|---|"
    for name in dict.fromkeys(one.table for one in found):
        yield line(name, [one for one in found if one.table == name])
    for epsilon in dict.fromkeys(one.epsilon for one in found):
        yield line(f"ε = {epsilon:g}", [one for one in found if one.epsilon == epsilon])
    for name, low, high in (("n ≤ 1,000", 0, 1000), ("n > 1,000", 1001, 10**9)):
        some = [one for one in found if low <= one.rows <= high]
        if some:
            yield line(name, some)
    yield line("**all**", found)
    yield ""
    pieces = [piece for one in found for piece in one.pieces]
    for source in dict.fromkeys(piece[2] for piece in pieces):
        own = [piece for piece in pieces if piece[2] == source]
        logs = np.array([piece[0] for piece in own])
        inside = np.mean([piece[1] for piece in own])
        yield (
            f"cliques that are {source}: {len(own):,}; predicted / true has median {np.exp(np.median(logs)):.2f} and "
            f"sd {logs.std():.2f} of its log; the interval holds {inside:.0%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("tuning", "judging"), default="judging")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.3, 1.0, 3.0, 10.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--every", action="store_true", help="a line for each run")
    arguments = parser.parse_args()
    found = []
    for one in outcomes(arguments.side, arguments.epsilons, arguments.seeds, arguments.tables):
        found.append(one)
        if arguments.every:
            said, true = one.whole, float(one.true.mean())
            words = f"{one.table:22} {one.rows:6} {one.epsilon:5g} true {true:.4f} predicted {said.value:.4f}"
            print(f"{words} [{said.low:.4f}, {said.high:.4f}] {one.ratio:.2f}", flush=True)
    print("\n".join(report(found)))


if __name__ == "__main__":
    main()
