"""How far the statement of a run's quality is from the truth: predicted beside true errors, on held_out's tables.

    FEDSYN_DATA=FOLDER python experiments/quality/run.py [--side tuning] [--epsilons 0.3 1 3 10] [--seeds 1] [--every]
                                                         [--keep FILE] [--report] [--check] [--changes] [--choose]

Runs in FILE, JSON lines outside of the repository, are not run again; --report runs nothing. --choose chooses the
spreads of intervals anew, and says what they hold on either side. --changes compares what a run
says of twice the rows or twice the epsilon with a second run that has them. Exit code: 0; 1 if what expected.yaml says
does not hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt

from experiments.held_out.held_cells import WORKLOAD, Cell, fitted, spread
from experiments.held_out.held_tables import TABLES, available, row_counts, rows_of
from fedsyn import yamlio
from fedsyn.evaluation.predicted import PredictedError, PredictedQuality, predict_quality
from fedsyn.evaluation.predicted.quality import QUANTILE, SPREADS
from fedsyn.inference import Evidence
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.workload import build_workload


@dataclass(frozen=True)
class Outcome:
    """A run: what was predicted and what was true, over the workload and of each clique."""

    table: str
    rows: int
    epsilon: float
    statement: PredictedQuality
    true: npt.NDArray[np.float64]

    @property
    def whole(self) -> PredictedError:
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
        pairs = zip(self.statement.cliques, map(float, self.true), strict=False)  # a statement lists the first ones
        return [(float(np.log(s.value / t)), s.low <= t <= s.high, s.source) for s, t in pairs if t > 0 and s.value > 0]

    def line(self) -> str:
        """JSON."""
        facts = {"table": self.table, "rows": self.rows, "epsilon": self.epsilon, "true": self.true.tolist()}
        return json.dumps(facts | {"statement": self.statement.to_dict()})

    @classmethod
    def read(cls, line: str) -> Outcome:
        """Inverse of `line`."""
        facts = json.loads(line)
        statement, true = PredictedQuality.from_dict(facts["statement"]), np.array(facts["true"])
        return cls(facts["table"], facts["rows"], facts["epsilon"], statement, true)


def outcome(table: str, rows: int, epsilon: float, seed: int) -> Outcome:
    """One run of sketch_aim at its defaults, with noise of its own, and its statement."""
    found, seed = rows_of(table), crc32(f"{table} {rows} {epsilon:g} {seed}".encode())
    train, domain = found.train[:rows], found.domain
    strategy = fitted(Cell(table, rows, epsilon, seed, "sketch_aim", ()).config(), train, domain)
    model = strategy.model
    assert model is not None
    said = predict_quality(model, Evidence(strategy.measured, model.total), strategy.sketch_errors(), strategy.workload)
    workload = build_workload(WORKLOAD, domain)
    pairs = zip(count(train, domain, workload.cliques), model.project_many(workload.cliques), strict=True)
    off = [np.abs(np.asarray(t).ravel() / len(train) - np.asarray(m).ravel() / model.total).sum() for t, m in pairs]
    return Outcome(table, rows, epsilon, said, np.array(off))


class Kept:
    """Runs, made when they are asked for and kept in a file."""

    def __init__(self, file: Path | None, *, run: bool) -> None:
        self._file, self._run = file, run
        self._found: dict[str, Outcome] = {}
        if file is not None and file.is_file():
            for text in file.read_text(encoding="utf-8").splitlines():
                facts = json.loads(text)
                self._found[facts["id"]] = Outcome.read(facts["run"])

    def of(self, table: str, rows: int, epsilon: float, seed: int) -> Outcome | None:
        """None: it is not there, and nothing is to be run."""
        key = f"{table} {rows} {epsilon:g} {seed}"
        if key not in self._found and self._run:
            self._found[key] = outcome(table, rows, epsilon, seed)
            if self._file is not None:
                with self._file.open("a", encoding="utf-8") as out:
                    out.write(json.dumps({"id": key, "run": self._found[key].line()}) + "\n")
        return self._found.get(key)


Place = tuple[str, int, float, int]  # table, rows, epsilon, seed


def places(options: argparse.Namespace, side: str = "") -> Iterator[Place]:
    """What is asked for."""
    side = side or options.side
    for name in spread([name for name, table in TABLES.items() if table.side == side and available(name)]):
        if not options.tables or name in options.tables:
            yield from itertools.product([name], row_counts(name), options.epsilons, range(1, options.seeds + 1))


CHANGES = {"twice the rows": (2, 1), "twice the epsilon": (1, 2)}


def changes(options: argparse.Namespace, kept: Kept) -> Iterator[str]:
    """What runs say of twice the rows and twice the epsilon, beside runs that have them."""
    found: dict[Place, dict[str, tuple[float, float]]] = {}
    for table, rows, epsilon, seed in places(options):
        for what, (more, much) in CHANGES.items():
            one = kept.of(table, rows, epsilon, seed) if more * rows <= max(row_counts(table)) else None
            if one is None or one.whole.source == "unknown":  # bounds alone: it says nothing of a change
                continue
            other = kept.of(table, more * rows, much * epsilon, seed)
            if other is not None:
                pair = one.statement.scenarios[what] / one.whole.value, float(other.true.mean() / one.true.mean())
                found.setdefault((table, rows, epsilon, seed), {})[what] = pair
                if options.every:
                    print(f"{table:22} {rows:6} {epsilon:5g} {what}: said {pair[0]:.2f}, is {pair[1]:.2f}", flush=True)
    yield "| what is changed | pairs of runs | factor of the error: said | in a second run | said / is, 90% of pairs |"
    yield "|---|---|---|---|---|"
    for what in CHANGES:
        if pairs := [place[what] for place in found.values() if what in place]:
            said, true = np.exp(np.mean(np.log(pairs), axis=0))
            low, high = np.quantile([a / b for a, b in pairs], [0.05, 0.95])
            yield f"| {what} | {len(pairs)} | {said:.2f} | {true:.2f} | {low:.2f} to {high:.2f} |"
    both = [list(place.values()) for place in found.values() if len(place) == len(CHANGES)]
    right = sum((rows[0] < budget[0]) == (rows[1] < budget[1]) for rows, budget in both)
    yield f"\nWhich of the two saves more was said rightly of {right} of {len(both)} runs."


#: Share of the runs that intervals of the workload's error should hold, and of single marginals.
HELD = 0.9
SPREADS_ASKED = [number / 100 for number in range(5, 41)]


def held_with(found: list[Outcome], spread: float) -> float:
    """Share of the runs that intervals of that spread hold."""
    inside = []
    for one in found:
        said = one.whole
        noise = [
            np.log(ratio) ** 2 - (QUANTILE * SPREADS["all"]) ** 2
            for ratio in (said.value / said.low, said.high / said.value)
        ]
        low, high = (np.sqrt(max(0.0, square) + (QUANTILE * spread) ** 2) for square in noise)
        inside.append(-high <= np.log(one.ratio) <= low or (said.high >= 2.0 and one.ratio < 1.0))
    return float(np.mean(inside))


def held_of_one(found: list[Outcome], spread: float) -> float:
    """Share of the marginals that intervals of that spread hold."""
    inside = []
    for one in found:
        for said, true in zip(one.statement.cliques, map(float, one.true), strict=False):
            if min(said.low, true) > 0 and said.source != "unknown":
                ends = np.log(said.low / said.value), np.log(said.high / said.value)
                wider = (QUANTILE * spread) ** 2 - (QUANTILE * SPREADS["one"]) ** 2
                low, high = (np.sqrt(max(0.0, end**2 + wider)) for end in ends)
                inside.append(-low <= np.log(true / said.value) <= high or (said.high >= 2.0 and true >= said.value))
    return float(np.mean(inside))


def smallest(found: list[Outcome], held: Callable[[list[Outcome], float], float], least: float) -> float:
    """The smallest spread with which so many are held."""
    return next((spread for spread in SPREADS_ASKED if held(found, spread) >= least), SPREADS_ASKED[-1])


def choice(sides: dict[str, list[Outcome]]) -> Iterator[str]:
    """The smallest spreads with which intervals hold what they should on the tuning side, and what they do."""
    told = {side: [one for one in found if one.whole.source != "unknown"] for side, found in sides.items()}
    spread, of_one = (smallest(told["tuning"], held, HELD) for held in (held_with, held_of_one))
    yield f"chosen on the tuning side: {spread:.2f}, for single marginals {of_one:.2f}"
    yield "| side | runs | held | upper / lower: median | widest, n ≥ 2,000 | marginals held |"
    yield "|---|---|---|---|---|---|"
    for side, found in told.items():
        widths = [one.whole.high / one.whole.low for one in found]
        widest = max((one.whole.high / one.whole.low for one in found if one.rows >= 2000), default=1.0)
        held = f"{held_with(found, spread):.0%} | {np.median(widths):.2f} | {widest:.2f}"
        yield f"| {side} | {len(found)} | {held} | {held_of_one(found, of_one):.0%} |"


def line(name: str, some: list[Outcome]) -> str:
    """A row of a table: how many runs, their ratios, and how many intervals hold the truth."""
    ratios = np.array([one.ratio for one in some])
    near, inside = np.mean(np.abs(ratios - 1) <= 0.15), np.mean([one.is_inside for one in some])
    mean, deviation = np.exp(np.mean(np.log(ratios))), np.std(np.log(ratios))
    return f"| {name} | {len(some)} | {mean:.2f} | {deviation:.2f} | {near:.0%} | {inside:.0%} |"


def report(found: list[Outcome]) -> Iterator[str]:
    """The tables of the README."""
    told = [one for one in found if one.whole.source != "unknown"]
    head = "| {} | runs | predicted / true, geometric mean | sd of its log | within 15% | 90% interval holds it |"
    yield head.format("table")
    yield "|---|---|---|---|---|---|"
    groups = [(name, [one for one in told if one.table == name]) for name in dict.fromkeys(one.table for one in told)]
    groups += [(f"ε = {e:g}", [one for one in told if one.epsilon == e]) for e in sorted({o.epsilon for o in told})]
    groups += [("n < 1,000", [one for one in told if one.rows < 1000])]
    groups += [("n ≥ 1,000", [one for one in told if one.rows >= 1000])]
    yield from (line(name, some) for name, some in [*groups, ("**all**", told)] if some)
    yield ""
    alone = [one for one in found if one.whole.source == "unknown"]
    inside = sum(one.is_inside for one in alone)
    yield f"{len(alone)} runs of {len(found)} sketched nothing and say bounds alone; they hold the truth in {inside}."
    yield ""
    pieces = [piece for one in found for piece in one.pieces]
    for source in dict.fromkeys(piece[2] for piece in pieces):
        own = [piece for piece in pieces if piece[2] == source]
        logs = np.array([piece[0] for piece in own])
        yield (
            f"- cliques that are {source}: {len(own):,}; predicted / true has median {np.exp(np.median(logs)):.2f} and "
            f"sd {logs.std():.2f} of its log; the interval holds {np.mean([piece[1] for piece in own]):.0%}"
        )


def near_tables(found: list[Outcome], near: float) -> list[str]:
    """Tables of which every run that says more than bounds is as near as that."""
    told = [one for one in found if one.whole.source != "unknown"]
    far = {one.table for one in told if abs(one.ratio - 1.0) > near}
    return [name for name in dict.fromkeys(one.table for one in told) if name not in far]


def judged(found: list[Outcome]) -> Iterator[tuple[str, bool]]:
    """What expected.yaml asks, and whether it holds."""
    asked = yamlio.loads((Path(__file__).parent / "expected.yaml").read_text(encoding="utf-8"), "expected.yaml")
    near = len(near_tables(found, asked["near"]))
    yield (
        f"tables with every run within {asked['near']:.0%}: {near}, at least {asked['tables']}",
        near >= asked["tables"],
    )
    inside = float(np.mean([one.is_inside for one in found]))
    yield f"intervals that hold the truth: {inside:.0%}, at least {asked['inside']:.0%}", inside >= asked["inside"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=("tuning", "judging"), default="judging")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.3, 1.0, 3.0, 10.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--keep", type=Path, help="file of JSON lines")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml, which is of the judging side")
    parser.add_argument("--changes", action="store_true", help="twice the rows or epsilon: said, and in a second run")
    parser.add_argument("--choose", action="store_true", help="choose the spreads of intervals anew")
    parser.add_argument("--every", action="store_true", help="a line for each run")
    options = parser.parse_args()
    kept, found = Kept(options.keep, run=not options.report), []
    if options.changes:
        print("\n".join(changes(options, kept)))
        return 0
    if options.choose:
        sides = {side: [kept.of(*place) for place in places(options, side)] for side in ("tuning", "judging")}
        print("\n".join(choice({side: [one for one in some if one is not None] for side, some in sides.items()})))
        return 0
    for one in (kept.of(*place) for place in places(options)):
        if one is None:
            continue
        found.append(one)
        if options.every:
            said, true = one.whole, float(one.true.mean())
            words = f"{one.table:22} {one.rows:6} {one.epsilon:5g} true {true:.4f} predicted {said.value:.4f}"
            print(f"{words} [{said.low:.4f}, {said.high:.4f}] {one.ratio:.2f} {said.source}", flush=True)
    print("\n".join(report(found)))
    checks = list(judged(found)) if options.check else []
    print("".join(f"\n{text}: {'yes' if good else 'NO'}" for text, good in checks))
    return int(not all(good for _, good in checks))


if __name__ == "__main__":
    sys.exit(main())
