"""How much of the correlation of Likert items survives, whatever order their answers are listed in.

    python experiments/likert/run.py [--rows 600 1200 3000] [--seeds 1 2 3 4 5] [--check]

Ten items of one factor (loading 0.8, five answers as words), ε = 1, δ = 1e-5: the mean correlation of the 45 pairs in
as many synthetic rows as there are real ones. The answers are listed in their order, by the alphabet and mixed up, none
of them declared ordered. `survey` (tests/support/newcomers.py) has four columns beside such items that know nothing of
them, as `fedsyn init` drafts it: words in their order. Exit code: 0; 1 if what expected.yaml says does not hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm

import fedsyn
from fedsyn import yamlio
from tests.support import newcomers

WORDS = newcomers.ANSWERS
ITEMS = tuple(f"q{i + 1}" for i in range(10))
LISTED = {"in order": WORDS, "by the alphabet": tuple(sorted(WORDS)), "mixed": tuple(WORDS[i] for i in (2, 4, 0, 1, 3))}
MECHANISMS = ("sketch_aim", "aim", "mst")


def answers(rows: int) -> pd.DataFrame:
    """Rows of the ten items, as words."""
    rng = np.random.default_rng(11)
    own = 0.8 * rng.normal(size=(rows, 1)) + (1 - 0.8**2) ** 0.5 * rng.normal(size=(rows, len(ITEMS)))
    return pd.DataFrame(np.array(WORDS)[np.digitize(own, norm.ppf([0.1, 0.3, 0.55, 0.85]))], columns=list(ITEMS))


def listed_as(words: Sequence[str]) -> fedsyn.Schema:
    """The items' schema, whose answers are listed so, in no order."""
    column = {"kind": "categorical", "categories": list(words), "other": False, "missing": False}
    return fedsyn.Schema.from_dict({"columns": dict.fromkeys(ITEMS, column)})


def correlation(table: pd.DataFrame) -> float:
    """Mean correlation of the pairs of items."""
    places = np.argsort(WORDS)  # of the alphabet's words in their order
    codes = places[np.searchsorted(sorted(WORDS), table[list(ITEMS)].astype(str).to_numpy(str))]
    return float(np.corrcoef(codes.T)[np.triu_indices(len(ITEMS), 1)].mean())


def kept(table: pd.DataFrame, schema: fedsyn.Schema, mechanism: str, seeds: Sequence[int]) -> list[float]:
    """The mean correlation in the synthetic rows of each seed."""
    found = []
    for seed in seeds:
        made = fedsyn.Synthesizer(epsilon=1.0, mechanism=mechanism, delta=1e-5, schema=schema, seed=seed).fit(table)
        found.append(correlation(made.sample(len(table))))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[600, 1_200, 3_000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml")
    options = parser.parse_args()
    print(f"| table | answers listed | rows | real | {' | '.join(MECHANISMS)} |\n|---|---|---|---|---|---|---|")
    least: dict[str, float] = {}
    for rows in options.rows:
        for listed, words in LISTED.items():
            told = tell("ten items", listed, answers(rows), listed_as(words), options.seeds)
            least[f"ten items, {rows}"] = min(told, least.get(f"ten items, {rows}", 1.0))
        table = newcomers.survey(rows)
        drafted = fedsyn.Schema.draft(table).approve(public="an experiment")
        least[f"survey, {rows}"] = tell("survey", "as drafted", table, drafted, options.seeds)
    asked = yamlio.loads(Path(__file__).with_name("expected.yaml").read_text(encoding="utf-8"), "expected.yaml")
    failed = [what for what, bound in asked.items() if options.check and least[what] < bound]
    print("".join(f"\n{what}: {least[what]:.2f}, less than {asked[what]}" for what in failed))
    return int(bool(failed))


def tell(what: str, listed: str, table: pd.DataFrame, schema: fedsyn.Schema, seeds: Sequence[int]) -> float:
    """Prints a row; returns what the default keeps on average."""
    every = [kept(table, schema, mechanism, seeds) for mechanism in MECHANISMS]
    cells = [f"{np.mean(own):.2f} ({min(own):.2f} to {max(own):.2f})" for own in every]
    print(f"| {what} | {listed} | {len(table):,} | {correlation(table):.2f} | {' | '.join(cells)} |", flush=True)
    return float(np.mean(every[0]))


if __name__ == "__main__":
    sys.exit(main())
