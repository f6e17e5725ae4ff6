"""A protocol against self-deception: rules are chosen on one side of a fixed split of tables and reported on the other.

    python experiments/held_out/run.py --cache FILE --yardsticks               # AIM's six settings, one-way, MST
    python experiments/held_out/run.py --cache FILE                            # sketch_aim beside them, tuning side
    python experiments/held_out/run.py --cache FILE --set mechanism.rounds=3   # any candidate
    python experiments/held_out/run.py --cache FILE --side judging --check     # the report
    python experiments/held_out/run.py --cache FILE --side judging --oracle    # what an oracle reaches: held_oracle.py

Results stay in the cache, a file outside of the repository: what is there is not run again. A candidate's results count
for the code that computed them; a yardstick's for any, unless --strict. Exit code: 0; 1 if a cell failed or what
expected.yaml says does not hold.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
HERE = Path(__file__).resolve().parent

from experiments.held_out.held_cells import MST, YARDSTICKS, Assignments, Cache, Cell, mechanism_of, run_cell, spread  # noqa: E402
from experiments.held_out.held_oracle import EVERY_PAIR, ORACLES, run_oracle  # noqa: E402
from experiments.held_out.held_report import Results, cells_table, judged, summary_table  # noqa: E402
from experiments.held_out.held_tables import TABLES, available, row_counts  # noqa: E402
from experiments.held_out.oracle_report import likelihood_table, reached, reached_cells, reached_table  # noqa: E402
from fedsyn.registry import mechanisms  # noqa: E402

EPSILONS = (1.0, 3.0, 0.3, 10.0, 0.1)
TOLD = ORACLES | EVERY_PAIR


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        for name in spread([name for name in TABLES if available(name)]):
            print(f"{TABLES[name].side:8} {name:24} training rows: {', '.join(map(str, row_counts(name)))}")
        return 0
    cache, results = Cache(options.cache), Results()
    candidates = _candidates(options)
    failed = False
    for cell in _cells(options, candidates):
        yardstick = cell.name in YARDSTICKS
        facts = cache.find(cell, any_code=options.any_code or (yardstick and not options.strict))
        if options.oracle and cell.name in MST and facts is not None and "inside" not in facts:
            facts = None  # of before errors of pairs were kept
        asked = not yardstick or (cell.name in candidates and (options.yardsticks or options.oracle))
        if facts is None and not options.report and asked:
            facts = run_oracle(cell) if cell.name in TOLD else run_cell(cell)
            cache.add(facts)
            if not options.quiet:
                print(_line(cell, facts), file=sys.stderr, flush=True)
        if facts is not None:
            failed |= "error" in facts
            results.add(cell.name, facts)
    for name in [] if options.oracle else candidates:
        compared = results.compared(name)
        print(f"\n{name}: {len(compared)} cells\n")
        print("\n".join([*cells_table(compared), "", *summary_table(compared)]))
        if options.check:
            lines, good = judged(HERE, compared)
            print("\n".join(["", *lines, "", "as expected" if good else "NOT as expected"]))
            failed |= not good
    if options.oracle:
        name = next(iter(candidates))
        cells = reached(results, name)
        print(f"\n{name}, and oracles: {len(cells)} cells\n")
        print("\n".join([*reached_cells(cells), "", *reached_table(cells), "", *likelihood_table(results, name)]))
    return int(failed)


def _candidates(options: argparse.Namespace) -> dict[str, Assignments]:
    """What is to be compared, by name: the yardsticks themselves if they are to be run."""
    if options.yardsticks:
        chosen = options.mechanisms or list(YARDSTICKS)
        return {name: sets for name, sets in _known_yardsticks().items() if name in chosen}
    found: dict[str, Assignments] = {}
    for name in options.mechanisms or ["sketch_aim"]:
        if name in YARDSTICKS:
            found[name] = YARDSTICKS[name]
        else:
            sets = (f"mechanism.name={name}", *options.set)
            found[options.name or " ".join([name, *options.set])] = sets
    return found | TOLD | MST if options.oracle else found


def _known_yardsticks() -> dict[str, Assignments]:
    """Those whose mechanism this fedsyn has."""
    return {name: sets for name, sets in YARDSTICKS.items() if mechanism_of(sets) in mechanisms()}


def _cells(options: argparse.Namespace, candidates: dict[str, Assignments]) -> Iterator[Cell]:
    """Every place, cheap tables first; in each the candidates, then the yardsticks that they are read against."""
    wanted = [name for name, table in TABLES.items() if _wanted(options, name, table.side)]
    if absent := [name for name in wanted if not available(name)]:
        print(f"left out, as FEDSYN_DATA does not have them: {', '.join(absent)}", file=sys.stderr)
    names = spread([name for name in wanted if name not in absent])
    for seed in options.seeds:
        for epsilon in options.epsilons:
            for name in names:
                for rows in row_counts(name):
                    if options.rows and not _asked(options.rows, rows, rows == row_counts(name)[-1]):
                        continue
                    for title, sets in (candidates | YARDSTICKS).items():
                        clients = Cell.clients if title in YARDSTICKS | TOLD else options.clients
                        yield Cell(name, rows, epsilon, seed, title, sets, clients)


def _wanted(options: argparse.Namespace, name: str, side: str) -> bool:
    return (not options.tables or name in options.tables) and options.side in (side, "both")


def _asked(wanted: Sequence[str], rows: int, all_rows: bool) -> bool:
    return str(rows) in wanted or (all_rows and "full" in wanted)


def _line(cell: Cell, facts: dict[str, object]) -> str:
    found = facts.get("error") or f"error {facts['workload_error']:.4f}  nll {facts['nll'] or float('inf'):.3f}"
    return f"{cell.table} n={cell.rows} eps={cell.epsilon:g} seed={cell.seed}  {cell.name}: {found}  {facts['cpu']} s"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("runs/held_out/cache.jsonl"), help="file of JSON lines")
    parser.add_argument("--side", choices=("tuning", "judging", "both"), default="tuning")
    parser.add_argument("--tables", nargs="+", metavar="NAME", choices=list(TABLES), help="default: all of that side")
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--rows", nargs="+", metavar="N", help="200, 1000, full or a table's own number; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--mechanisms", nargs="+", metavar="NAME", help="default: sketch_aim")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the candidates")
    parser.add_argument("--name", help="what to call the candidate")
    parser.add_argument("--clients", type=int, default=2, help="of mechanisms that are not central")
    parser.add_argument("--yardsticks", action="store_true", help="run the yardsticks that the cache does not have")
    parser.add_argument("--oracle", action="store_true", help="run oracles too, and print what they reach")
    parser.add_argument("--any-code", action="store_true", help="take candidates' results by any code")
    parser.add_argument("--strict", action="store_true", help="yardsticks of this very code only")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--quiet", action="store_true", help="no line for each run")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml, which is of the judging side")
    parser.add_argument("--list", action="store_true", help="the tables and their sides")
    return parser


if __name__ == "__main__":
    sys.exit(main())
