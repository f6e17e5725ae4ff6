"""Honest and naive 95% intervals against the population's value, over repeated runs.

    python experiments/honest_intervals/run.py --out FILE.csv --runs 20        # what is there is not run again
    python experiments/honest_intervals/run.py --out FILE.csv --report         # the tables of README.md
    python experiments/honest_intervals/run.py --out FILE.csv --picture FILE   # the figure of docs/analysis.md
    python experiments/honest_intervals/run.py --bins                          # what bins lose

    python experiments/honest_intervals/run.py --rules                         # the combining rules alone
    python experiments/honest_intervals/run.py --example FOLDER                # tables for `fedsyn analyse`

Exit code: 0; with --check 1 where expected.yaml does not hold.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
HERE = Path(__file__).resolve().parent

from experiments.honest_intervals.honest_draws import DRAWINGS  # noqa: E402
from experiments.honest_intervals.honest_report import judged, tables_of  # noqa: E402
from experiments.honest_intervals.honest_runs import Line, Place, places, run  # noqa: E402

_HEAD = [field.name for kind in (Place, Line) for field in fields(kind)]
_KEY = len(fields(Place))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.example:
        from experiments.honest_intervals.honest_example import write

        write(options.example)
        return 0
    if options.rules:
        from experiments.honest_intervals.honest_rules import lines as of_rules

        print("\n".join(of_rules()))
        return 0
    if options.bins:
        from experiments.honest_intervals.honest_bins import lines

        print("\n".join(lines()))
        return 0
    if options.picture:
        from experiments.honest_intervals.honest_picture import draw

        print(draw(_lines(options.out), options.picture))
        return 0
    if not options.report:
        _work(options)
    lines = _lines(options.out)
    print("\n".join(tables_of(lines, by_term=options.terms)))
    if not options.check:
        return 0
    told, good = judged(HERE, lines)
    print("\n".join(["", *told, "", "as expected" if good else "NOT as expected"]))
    return int(not good)


def _work(options: argparse.Namespace) -> None:
    done = {tuple(line[name] for name in _HEAD[:_KEY]) for line in _lines(options.out)}
    given = places(
        options.populations, options.rows, options.epsilons, options.mechanisms, options.drawing, range(options.runs)
    )
    started = time.process_time()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if not file.tell():
            writer.writerow(_HEAD)
        for place in given:
            if place.key in done:
                continue
            rows = [
                [*place.key, *(f"{v:.8g}" if isinstance(v, float) else v for v in astuple(line))] for line in run(place)
            ]
            writer.writerows(rows)  # a run's lines at once: an interrupted one leaves none
            file.flush()
            print(f"{' '.join(place.key)}  {time.process_time() - started:.0f} CPU s", file=sys.stderr, flush=True)


def _lines(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/honest_intervals/intervals.csv"), help="file of results")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--populations", nargs="+", default=["generated", "adult"], choices=["generated", "adult"])
    parser.add_argument("--rows", nargs="+", type=int, default=[5000, 40000])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--mechanisms", nargs="+", default=["sketch_aim", "aim"])
    parser.add_argument("--drawing", default="posterior", choices=list(DRAWINGS), help="where models come from")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--terms", action="store_true", help="term by term")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml")
    parser.add_argument(
        "--example", type=Path, metavar="FOLDER", help="write the tables of one run, for fedsyn analyse"
    )
    parser.add_argument("--rules", action="store_true", help="the combining rules alone")
    parser.add_argument("--bins", action="store_true", help="what bins lose, on Adult")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the tutorial's figure")
    return parser


if __name__ == "__main__":
    sys.exit(main())
