"""Measures what each part of sketch_aim is worth, by family of tables.

    python experiments/held_out/parts.py --cache FILE                                  # the tuning side
    python experiments/held_out/parts.py --cache FILE --side judging --seeds 1 2 3

It is the error of a run over that of one without the part: above 1 the part makes a table worse. "All" is the error
over that of `mst`, whose spanning tree of pairs is a plan without any of them. The oracle sees the errors and chooses
the best run of each cell: its error is over that of the run with all parts. Cells are those of held_cells.py with all
rows, whose 64 triples judge; a run has up to 1,000, as where nobody names a workload. Results stay in the cache, as
those of run.py.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.held_out.held_cells import Assignments, Cache, Cell, run_cell, spread
from experiments.held_out.held_tables import TABLES, row_counts

WORKLOAD = "workload={degree: 3, size: 1000}"
_VARIANT = "mechanism.name=experiments.sketch_aim_ablation.variant:Variant"
#: What a run is set to that does without a part.
WITHOUT: dict[str, Assignments] = {
    "factor, order": (_VARIANT, "mechanism.factors=false"),
    "forest": (_VARIANT, "mechanism.forest=false"),
    "many": (_VARIANT, "mechanism.many=false"),
    "doubt": (_VARIANT, "mechanism.doubt=false"),
    "weights": (_VARIANT, "mechanism.weights=false"),
    "groups": (_VARIANT, "mechanism.resolution=cells"),
    "room": (_VARIANT, "mechanism.room=false"),
    "residuals": (_VARIANT, "mechanism.residuals=false"),
    "pull": ("mechanism.name=sketch_aim", "inference.shrinkage=0"),
    "smoothing": ("mechanism.name=sketch_aim", "inference.smoothing=false"),
    "all (mst)": ("mechanism.name=mst",),
}
DEFAULT: Assignments = ("mechanism.name=sketch_aim",)


def family_of(table: str) -> str:
    """Returns the kind of a generated table, or the table's name."""
    return table.rpartition("_")[0] if TABLES[table].kind == "planted" else table


def ratios(errors: Mapping[tuple[str, float, int, str], float], part: str, family: str) -> list[float]:
    """Returns the errors with a part over those without it, a cell each.

    Args:
        errors: (table, epsilon, seed, what the run does without) -> workload error.
    """
    pairs = [(error, errors.get((*place, part))) for (*place, without), error in errors.items() if not without]
    tables = [table for (table, _, _, without) in errors if not without]
    return [
        error / max(other, 1e-12)
        for table, (error, other) in zip(tables, pairs, strict=True)
        if other is not None and family_of(table) == family
    ]


def oracle(errors: Mapping[tuple[str, float, int, str], float], family: str) -> list[float]:
    """Returns the least error of each cell over that with all parts."""
    best = dict[tuple[Any, ...], float]()
    for (*place, _), error in errors.items():
        best[tuple(place)] = min(error, best.get(tuple(place), math.inf))
    return [
        best[tuple(place)] / max(error, 1e-12)
        for (*place, without), error in errors.items()
        if not without and family_of(str(place[0])) == family
    ]


def table_of(errors: Mapping[tuple[str, float, int, str], float], parts: Sequence[str]) -> list[str]:
    """Returns the table: geometric means by family, and the worst cells."""
    lines = [f"| family | cells | {' | '.join(parts)} | oracle |", "|---" * (3 + len(parts)) + "|"]
    for family in dict.fromkeys(family_of(table) for table, *_ in errors):
        columns = [ratios(errors, part, family) for part in parts]
        cells = [
            f"{math.exp(sum(map(math.log, some)) / len(some)):.2f} ({max(some):.2f})" if some else ""
            for some in [*columns, oracle(errors, family)]
        ]
        lines.append(f"| {family} | {max(map(len, columns))} | {' | '.join(cells)} |")
    return lines


def _cells(options: argparse.Namespace) -> Iterator[Cell]:
    names = [name for name, table in TABLES.items() if table.side == options.side]
    for name in spread([name for name in names if not options.tables or name in options.tables]):
        for epsilon in options.epsilons:
            for seed in options.seeds:
                for part, sets in {"": DEFAULT, **{part: WITHOUT[part] for part in options.parts}}.items():
                    yield Cell(name, row_counts(name)[-1], epsilon, seed, part, (*sets, WORKLOAD))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the cache does not have, and prints the table. Exit code: 1 if a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("runs/held_out/cache.jsonl"), help="file of JSON lines")
    parser.add_argument("--side", choices=("tuning", "judging"), default="tuning")
    parser.add_argument("--tables", nargs="+", metavar="NAME", choices=list(TABLES), help="default: all of that side")
    parser.add_argument("--parts", nargs="+", metavar="PART", choices=list(WITHOUT), default=list(WITHOUT))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    options = parser.parse_args(arguments)
    cache, errors, failed = Cache(options.cache), dict[tuple[str, float, int, str], float](), False
    for cell in _cells(options):
        facts = cache.find(cell)
        if facts is None:
            facts = run_cell(cell)
            cache.add(facts)
        if "error" in facts:
            print(f"{cell.table}, without {cell.name or 'nothing'}: {facts['error']}", file=sys.stderr)
            failed = True
        else:
            errors[cell.table, cell.epsilon, cell.seed, cell.name] = facts["workload_error"]
    print("\n".join(table_of(errors, options.parts)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
