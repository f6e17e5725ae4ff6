"""Whether the bins that a draft proposes beat 32 of each column, on tables as `fedsyn init` drafts them.

    FEDSYN_DATA=FOLDER python experiments/drafted_bins/run.py [--side tuning] [--rows 500 1500] [--tables NAME ...]
                                                              [--keep FILE] [--check]
    FEDSYN_DATA=FOLDER python experiments/drafted_bins/run.py --constants --tables shoppers compas star98 randhie

Both schemas have the bounds of a draft. Rows are drawn from the model as values, and counted in cells that are the same
for both: 32 equal bins of each column, and its real quintiles. Printed are ratios of errors, draft to 32. Runs in FILE,
JSON lines outside of the repository, are not run again. Exit code: 0; 1 if what expected.yaml says does not hold.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from experiments.held_out import planted
from experiments.held_out.held_tables import TABLES, available, side_of
from fedsyn import yamlio
from fedsyn.front.archive import read_release
from fedsyn.front.several import frame_of
from fedsyn.loading import parse_config
from fedsyn.randomness import Randomness
from fedsyn.runs.engines import run
from fedsyn.runs.synthesis import decoding
from fedsyn.table.schema import BinnedColumn, Schema, drafted_bins, drafted_values
from fedsyn.table.schema.columns import column_dict
from fedsyn.table.schema.drafted_bins import DELTA, EPSILON, FINEST, resolved

#: Most columns of a table that is looked at, rows that are drawn, and generated families with values of their own.
MOST_COLUMNS, DRAWN, MADE = 40, 20_000, ("labs", "panel", "export")
#: Constants of the draft, and half and twice of each: the share that an atom keeps, the chance of a step by chance, and
#: the share of rows that the noise of the fewest bins moves.
CONSTANTS = (
    (drafted_values, "KEPT_SHARE", (0.025, 0.1)),
    (drafted_values, "_CHANCE", (1e-5, 1e-1)),
    (drafted_bins, "_TENTH", (0.1, 0.4)),
)
Codes = npt.NDArray[np.int64]
Errors = dict[str, float]


def frame(name: str) -> pd.DataFrame:
    """A table's values, in an order that is drawn once."""
    table = TABLES.get(name)
    kind, _, seed = name.rpartition("_")
    if kind in MADE:
        found = made(kind, int(seed))
    elif table is not None and table.kind == "registered":
        from fedsyn.table.data import load_dataset

        found = load_dataset(name).frame
    else:
        found = importlib.import_module(f"statsmodels.datasets.{name}").load_pandas().data.dropna()
        found = found.drop(columns=list(dict(TABLES[name].options)["drop"]))
    return found.sample(frac=1.0, random_state=1).reset_index(drop=True)


def made(kind: str, seed: int) -> pd.DataFrame:
    """Laboratory values and a panel of one factor, as `planted` has them in bins; and a hospital's export."""
    rng, rows = np.random.default_rng([10, MADE.index(kind), seed]), 20_000
    if kind == "labs":
        scores = planted._factor(rng, rows, 15, loadings=(0.5, 0.95))
        return pd.DataFrame(np.exp(rng.uniform(0.2, 0.6, 15) * scores).round(2)).add_prefix("c")
    if kind == "panel":
        return pd.DataFrame(planted._factor(rng, rows, 20, loadings=(0.6, 0.95)).round(3)).add_prefix("c")
    age = np.clip(rng.normal(55, 20, rows), 0, 99).astype(int)
    days = np.minimum(rng.geometric(1.0 / (3.0 + age / 15.0)), 60)
    came = np.datetime64("2020-01-01") + rng.integers(0, 1400, rows).astype("timedelta64[D]")
    return pd.DataFrame(
        {
            "age": age,
            "ward": np.where(age < 16, "child", rng.choice(["a", "b", "c", "d"], rows, p=[0.4, 0.3, 0.2, 0.1])),
            "admitted": came,
            "discharged": came + days.astype("timedelta64[D]"),
            "cost": (np.exp(rng.normal(7.0, 0.6, rows)) * days**0.7).round(2),
            "crp": np.exp(rng.normal(2.0, 1.0, rows) + days / 20.0).round(1),
            "bmi": (rng.normal(26, 5, rows) + age / 50).round(1),
            "systolic": (rng.normal(115, 12, rows) + 0.4 * age).round().astype(int),
            "dead": rng.random(rows) < 1.0 / (1.0 + np.exp(5.0 - age / 25.0 - days / 20.0)),
        }
    )


def numbers(schema: Schema, rows: pd.DataFrame) -> dict[str, npt.NDArray[np.float64]]:
    """The ordered columns of some rows as numbers, NaN where missing."""
    drawn = schema.rows_of(rows).drawn
    return {name: np.where(absent, np.nan, values) for name, (values, absent) in drawn.items()}


def errors(schema: Schema, real: pd.DataFrame, synthetic: pd.DataFrame) -> Errors:
    """Mean L1 distances of columns, pairs and 64 triples, in the schema's cells and in quintiles."""
    both = [schema.block(one).codes.astype(np.int64) for one in (real, synthetic)]
    values = [numbers(schema, one) for one in (real, synthetic)]
    few, sizes = [codes.copy() for codes in both], list(schema.domain.shape)
    for name, known in values[0].items():
        cuts, at = np.unique(np.nanquantile(known, np.arange(1, 5) / 5)), schema.domain.axes((name,))[0]
        sizes[at] = len(cuts) + 2
        for codes, own in zip(few, values, strict=True):
            codes[:, at] = np.where(np.isnan(own[name]), len(cuts) + 1, np.searchsorted(cuts, own[name], side="right"))
    width, rng = len(sizes), np.random.default_rng(0)
    triples = [tuple(rng.choice(width, 3, replace=False)) for _ in range(64)]
    columns, pairs = [(j,) for j in range(width)], list(combinations(range(width), 2))
    every = {"columns": (both, columns), "triples": (both, triples), "columns in quintiles": (few, columns)}
    every |= {"pairs in quintiles": (few, pairs), "triples in quintiles": (few, triples)}
    return {what: float(np.mean([distance(tables, q) for q in cliques])) for what, (tables, cliques) in every.items()}


def distance(tables: Sequence[Codes], columns: tuple[int, ...]) -> float:
    """The L1 distance of two tables' shares in the cells of some columns."""
    cells = np.unique(np.concatenate([own[:, columns] for own in tables]), axis=0, return_inverse=True)[1].ravel()
    cut, most = len(tables[0]), int(cells.max()) + 1
    found = [np.bincount(own, minlength=most) / len(own) for own in (cells[:cut], cells[cut:])]
    return float(np.abs(found[0] - found[1]).sum())


def outcome(rows: pd.DataFrame, schema: Schema, fine: Schema) -> Errors:
    """The errors of a run of one holder as `fedsyn init` drafts it."""
    document = {"data": "table", "epsilon": EPSILON, "delta": DELTA, "federation": {"clients": 1}, "evaluation": []}
    document |= {"aggregation": {"protocol": "plain", "noise": "server"}, "synthesis": {"rows": 1}}
    document |= {"runtime": {"engine": "inprocess", "seed": 1}}
    with tempfile.TemporaryDirectory() as folder:
        run(parse_config(document), Path(folder) / "run", table=rows, schema=schema, full_page=False)
        release = read_release(Path(folder) / "run")
    schema = decoding(release.schema, release.model)
    return errors(fine, rows, frame_of(schema, release.model, DRAWN, Randomness(1)))


_DRAFTED = ("lower", "upper", "bins", "atoms", "values", "multiple_of")


def as_drafted(fine: Schema, rows: pd.DataFrame) -> Schema:
    """The schema with the bins that `fedsyn init` proposes for these rows, in place of 32."""
    columns = {
        n: c.model_copy(update={"atoms": ()}) if isinstance(c, BinnedColumn) else c for n, c in fine.columns.items()
    }
    drafted = resolved(columns, rows, fine.missing_text).items()
    settings = {name: {key: column_dict(column).get(key) for key in _DRAFTED} for name, column in drafted}
    return fine.edited(**settings)


def ratios(name: str, counts: list[int]) -> Iterator[tuple[int, Errors]]:
    """Rows, and the errors with drafted bins over those with 32."""
    table = frame(name)
    fine = Schema.draft(table[:DRAWN], bins=FINEST).approve(public="an experiment")
    for count in sorted({min(count, len(table)) for count in counts}):
        rows = table[:count]
        before, after = (outcome(rows, schema, fine) for schema in (fine, as_drafted(fine, rows)))
        yield count, {what: after[what] / before[what] for what in before}


def with_other_constants(name: str, counts: list[int]) -> Iterator[tuple[str, Errors | None]]:
    """Constants, and the errors of a draft with one of them over those of the draft; None where they draft the same."""
    table = frame(name)
    fine = Schema.draft(table[:DRAWN], bins=FINEST).approve(public="an experiment")
    for count in sorted({min(count, len(table)) for count in counts}):
        rows = table[:count]
        usual = as_drafted(fine, rows)
        before = outcome(rows, usual, fine)
        for module, constant, values in CONSTANTS:
            known = getattr(module, constant)
            for value in values:
                setattr(module, constant, value)
                other = as_drafted(fine, rows)
                setattr(module, constant, known)
                after = None if other == usual else outcome(rows, other, fine)
                yield f"{constant} {value:g}", after and {what: after[what] / before[what] for what in before}


def say_constants(names: list[str], counts: list[int]) -> None:
    """Prints a line for each constant: drafts that differ, and geometric means of their errors over the draft's."""
    found: dict[str, list[Errors | None]] = {}
    for name in names:
        for constant, own in with_other_constants(name, counts):
            found.setdefault(constant, []).append(own)
            print(f"{name:20} {constant:16} " + (", ".join(f"{w} {r:.2f}" for w, r in own.items()) if own else "same"))
    print(
        "| constant | drafts that differ | columns | columns in quintiles | pairs in quintiles |\n|---|---|---|---|---|"
    )
    for constant, every in found.items():
        some = [own for own in every if own is not None]
        cells = [constant, f"{len(some)} of {len(every)}"]
        for what in ("columns", "columns in quintiles", "pairs in quintiles"):
            cells.append(f"{np.exp(np.mean([np.log(own[what]) for own in some])):.2f}" if some else "-")
        print(f"| {' | '.join(cells)} |")


def chosen(side: str) -> list[str]:
    """The tables of a side that have a column of numbers."""
    made_ = [f"{kind}_{seed}" for kind in MADE for seed in range(1, 5) if side_of(f"{kind}_{seed}") == side]
    first = [next(name for name in made_ if name.startswith(kind)) for kind in MADE]
    names = [n for n, t in TABLES.items() if t.kind != "planted" and t.side == side and available(n)]
    return first + [n for n in names if n != "adult_flaim" and fits(n)]


def fits(name: str) -> bool:
    """Whether a draft of a table has ordered columns, and not too many columns."""
    columns = Schema.draft(frame(name)[:DRAWN]).columns.values()
    return len(columns) <= MOST_COLUMNS and any(isinstance(column, BinnedColumn) for column in columns)


def bounded(found: Mapping[str, Sequence[float]], bounds: Path, check: bool) -> int:
    """Prints geometric means and the worst, as rows of a table; 1 if a mean is above its bound, and that is asked."""
    means = {what: float(np.exp(np.mean(np.log(own)))) for what, own in found.items()}
    for what, mean in means.items():
        print(f"| {what} | {mean:.2f} | {max(found[what]):.2f} |")
    asked = yamlio.loads(bounds.read_text(encoding="utf-8"), bounds.name)
    failed = [what for what, most in asked.items() if check and means[what] > most]
    print("".join(f"\n{what}: more than {asked[what]}" for what in failed))
    return int(bool(failed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=("tuning", "judging"), default="judging")
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 1500])
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--keep", type=Path, help="file of JSON lines")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml, which is of the judging side")
    parser.add_argument("--constants", action="store_true", help="compare the draft with its constants' neighbours")
    options = parser.parse_args()
    if options.constants:
        say_constants(options.tables or chosen(options.side), options.rows)
        return 0
    kept: dict[str, list[tuple[int, Errors]]] = {}
    if options.keep and options.keep.is_file():
        kept = dict(json.loads(line) for line in options.keep.read_text(encoding="utf-8").splitlines())
    found: list[Errors] = []
    for name in options.tables or chosen(options.side):
        if name not in kept:
            kept[name] = list(ratios(name, options.rows))
            if options.keep:
                with options.keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps((name, kept[name])) + "\n")
        for count, own in kept[name]:
            print(
                f"{name:20} {count:6,} " + ", ".join(f"{what} {ratio:.2f}" for what, ratio in own.items()), flush=True
            )
            found.append(own)
    print(f"{len(found)} runs\n| error | draft / 32 bins, geometric mean | worst |\n|---|---|---|")
    by_error = {what: [own[what] for own in found] for what in found[0]}
    return bounded(by_error, Path(__file__).with_name("expected.yaml"), options.check)


if __name__ == "__main__":
    sys.exit(main())
