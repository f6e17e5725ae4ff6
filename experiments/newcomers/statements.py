"""What a run says to a person, and how often it is so: python -m experiments.newcomers.statements

The seven tables of `planted.py`, each with its own number of rows and with twice as many, at two epsilons: drafted,
every proposed constraint stated, approved, run with the default mechanism. What is said beside real rows is held
against 20,000 fresh ones of the same population, or counted again from the files; what is said from released values,
against the real rows. "Next" is held against the run that does what it says.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm

import fedsyn
from experiments.newcomers.planted import TABLES, Planted, numbers
from experiments.verdicts.unseen import associations
from fedsyn import yamlio
from fedsyn.evaluation.predicted.quality import PredictedQuality
from fedsyn.evaluation.real.comparison import TableComparison, compare_tables
from fedsyn.evaluation.verdict import Judged, Verdict
from fedsyn.loading import load_config
from fedsyn.runs.engines import run as run_config
from fedsyn.table.data.readers import read_guessed
from fedsyn.table.schema import Schema

_FRESH = 20_000
#: Between them a state may be anything, from released values.
_SURE = ("kept", "lost")
_SHARE = r"([\d.]+)%"
Told = Iterator[tuple[str, bool]]


@dataclass(frozen=True, eq=False)
class Run:
    """A run and all that is known of its table.

    Attributes:
        planted: its table's truths.
        rows, epsilon, seed: of the run.
        folder: its directory.
        real: its rows, as their file has them.
    """

    planted: Planted
    rows: int
    epsilon: float
    seed: int
    folder: Path
    real: pd.DataFrame

    @classmethod
    def of(
        cls, planted: Planted, rows: int, epsilon: float, seed: int, folder: Path, schema: Path | None = None
    ) -> Run:
        """Drafts and approves, unless there is a schema, and runs."""
        frame = planted.draw(rows, np.random.default_rng([seed, rows]))
        folder.mkdir(parents=True)
        frame.to_csv(folder / "table.csv", index=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if schema is None:
                cells, schema = read_guessed(folder / "table.csv"), folder / "schema.yaml"
                Schema.draft(cells, label=planted.label).stated().approve(frame=cells, fold=True).save(schema)
            config = {
                "data": {
                    "source": str(folder / "table.csv"),
                    "schema": str(schema),
                    "test_fraction": 0,
                },
                "epsilon": epsilon,
                "delta": 1e-6,
                "mechanism": "sketch_aim",
                "federation": {"clients": 1},
                "evaluation": ["workload_error"],
                "runtime": {"seed": seed},
            }
            (folder / "run.yaml").write_text(yamlio.dumps(config), encoding="utf-8")
            run_config(load_config(folder / "run.yaml"), folder / "out", lambda *_: None)
        return cls(planted, rows, epsilon, seed, folder / "out", _read(folder / "table.csv"))

    @cached_property
    def synthetic(self) -> pd.DataFrame:
        """The table, as it is written."""
        return _read(self.folder / "synthetic.csv")

    @cached_property
    def compared(self) -> TableComparison:
        """What is said beside real rows."""
        return TableComparison.of_document(json.loads((self.folder / TableComparison.FILE).read_text("utf-8")))

    @cached_property
    def predicted(self) -> PredictedQuality:
        """What is said from released values."""
        return PredictedQuality.of_document(json.loads((self.folder / PredictedQuality.FILE).read_text("utf-8")))

    @cached_property
    def error(self) -> float:
        """The workload error of the run."""
        return float(json.loads((self.folder / "metrics.json").read_text("utf-8"))["workload_error"])

    @cached_property
    def fresh(self) -> TableComparison:
        """The table beside fresh rows, with the same regression."""
        rows = self.planted.draw(_FRESH, np.random.default_rng([3, self.seed]))
        asked = [score.formula for score in self.compared.regressions or ()]
        label, rng = self.planted.label, np.random.default_rng(self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compare_tables(_as_written(rows), self.synthetic, label=label, regressions=asked, rng=rng)


def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype={"nhs_no": str})


def _as_written(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(frame.to_csv(index=False)), dtype={"nhs_no": str})


# Beside real rows ----------------------------------------------------------------------------------------------------


def beside_rows(one: Run) -> Told:
    """Statements of the page that is not for publication."""
    found, fresh, verdict = one.compared, one.fresh, one.compared.verdict()
    yield from _uses("beside real rows, {}: so beside fresh rows", verdict, fresh.verdict())
    states = {column.name: column.judged().state for column in fresh.columns}
    for column in found.columns:
        judged = column.judged()
        yield f"a column is {judged.state}: so beside fresh rows", states[column.name] == judged.state
        if (so := counted_again(judged, one)) is not None:
            yield "the figure of a column's largest loss: counted again in the files", so
    links = {pair.name: pair for pair in fresh.pairs}
    for pair in (pair for pair in found.pairs if pair.linked):
        same = links[pair.name]
        yield f"a link is {pair.judged().state}: so beside fresh rows", same.judged().state == pair.judged().state
        yield "an association, real: within 0.1 in fresh rows", abs(pair.association - same.association) <= 0.1
    if any(use.name == "tables of two columns" for use in verdict.good()):
        for answer in one.planted.effects.values():
            was, now = answer(one.real), answer(one.synthetic)
            yield "good for tables of two columns: more than half of each planted effect is there", now / was > 0.5
    for asked, again in zip(found.regressions or (), fresh.regressions or (), strict=False):
        real = {term.name: term for term in again.coefficients}
        for term in asked.coefficients:
            if term.name in real:
                doubt = 1.96 * math.hypot(term.real_error, real[term.name].real_error)
                yield (
                    "a real coefficient's 95% interval: holds the population's",
                    (abs(term.real - real[term.name].real) <= doubt),
                )
        if (judged := asked.judged()) and (other := again.judged()):
            yield f"a regression is {judged.state}: so beside fresh rows", judged.state == other.state
    if found.propensity is not None:
        yield (
            "rows that a tree tells apart: within 5 points of another tree's",
            (abs(found.propensity.told - told_apart(one)) <= 0.05),
        )
    again = [float(table[list(one.synthetic)].duplicated().mean()) for table in (one.real, one.synthetic)]
    said = found.repeats.real, found.repeats.synthetic
    yield "rows that repeat others: counted again", max(abs(a - b) for a, b in zip(said, again, strict=True)) <= 0.01


def _uses(what: str, verdict: Verdict, truth: Verdict) -> Told:
    fits = {use.name: use.fit for use in truth.uses()}
    for word, some in (("good for a use", verdict.good()), ("not good for a use", verdict.bad())):
        for use in some:
            if fits.get(use.name) is not None:
                yield what.format(word), fits[use.name] is use.fit


def counted_again(judged: Judged, one: Run) -> bool | None:
    """Whether the figure that was said of a column is that of both files; None of a figure that is not of values."""
    real, made = one.real[judged.name], one.synthetic[judged.name]
    if found := re.match(r"its mean moved by ([\d.]+) standard deviations", judged.why):
        (mean, sd), (now, _) = _moments(real), _moments(made)
        return abs(abs(now - mean) / sd - float(found[1])) <= 0.006
    if found := re.match(r"its standard deviation is ([\d.]+) times", judged.why):
        return abs(_moments(made)[1] / _moments(real)[1] - float(found[1])) <= 0.006
    if found := re.match(rf"it was missing in {_SHARE} of the rows and is in {_SHARE}", judged.why):
        return _near([real.isna().mean(), made.isna().mean()], found)
    if found := re.match(rf"'(.*)' had {_SHARE} of the rows and has {_SHARE}", judged.why):
        value = found[1].replace(",", "")
        return _near([_share_of(column, value) for column in (real, made)], found, 2)
    if found := re.match(rf"{_SHARE} of its numbers stand in no real row", judged.why):
        some, other = (numbers(table, judged.name) for table in (one.real, one.synthetic))
        held = pd.Series(some).value_counts()
        known = other[np.isfinite(other)]
        fair = float((held == 1).sum()) / max(1, int(np.isfinite(some).sum()))
        return _near([max(0.0, float((~np.isin(known, some)).mean()) - fair)], found)
    return None


def _near(shares: list[float], found: re.Match[str], first: int = 1) -> bool:
    """Whether shares are those of some groups of a match, to the digits that it has."""
    return all(
        abs(100 * share - float(text)) <= 0.6 for share, text in zip(shares, found.groups()[first - 1 :], strict=True)
    )


def _share_of(column: pd.Series, value: str) -> float:
    number = pd.to_numeric(column, errors="coerce")
    try:
        return float(((column.astype(str) == value) | (number == float(value))).mean())
    except ValueError:
        return float((column.astype(str) == value).mean())


def _moments(column: pd.Series) -> tuple[float, float]:
    values = pd.to_numeric(column, errors="coerce")
    values = values.mask(values == -999)  # stands for a missing value
    if values.notna().sum() == 0:
        values = pd.to_datetime(column, errors="coerce").dropna().astype("int64")
    return float(values.mean()), float(values.std(ddof=0))


def told_apart(one: Run) -> float:
    """How many rows of the other half another tree puts on the right side."""
    from sklearn.tree import DecisionTreeClassifier

    shared, rows = [c for c in one.real if c in one.synthetic], min(len(one.real), len(one.synthetic))
    both = pd.concat([table[shared].sample(rows, random_state=0) for table in (one.real, one.synthetic)])
    X = np.column_stack([_number_of(both[name]) for name in shared])
    y, half = np.repeat([0, 1], rows), np.tile(np.arange(rows) % 2 == 0, 2)
    leaf = max(5, math.ceil(0.01 * half.sum()))
    right = [
        DecisionTreeClassifier(min_samples_leaf=leaf, random_state=0).fit(X[a], y[a]).score(X[b], y[b])
        for a, b in ((half, ~half), (~half, half))
    ]
    return float(np.mean(right))


def _number_of(column: pd.Series) -> np.ndarray:
    values = pd.to_numeric(column, errors="coerce")
    if values.notna().any() and values.notna().sum() >= 0.5 * column.notna().sum():
        return np.asarray(values.fillna(values.min() - 1), np.float64)
    return np.asarray(pd.factorize(column, sort=True)[0], np.float64)


# From released values ------------------------------------------------------------------------------------------------


def from_released(one: Run) -> Told:
    """Statements of the public page, README.md and predicted_quality.json."""
    said, truth = one.predicted, one.compared
    yield from _uses("from released values, {}: so beside the real rows", said.verdict(), truth.verdict())
    states = {column.name: column.judged().state for column in truth.columns}
    kept = {
        f"{first} × {second}"
        for pair in truth.pairs
        if {pair.judged().state, states[pair.first], states[pair.second]} == {"kept"}
        for first, second in ((pair.first, pair.second), (pair.second, pair.first))
    }
    for name in said.verdict().sure:
        yield "from released values, good for the table of two columns: so beside the real rows", name in kept
    moments = {column.name: column.moments for column in truth.columns}
    for column in said.judged_columns():
        if column.state in _SURE:
            yield (
                f"from released values, a column is {column.state}: so beside the real rows",
                (states[column.name] == column.state),
            )
        both = moments[column.name]
        if both and (found := re.match(r"its mean is about ([\d.]+) standard deviations off", column.why)):
            off = abs(both[1][0] - both[0][0]) / both[0][1]
            yield "from released values, a mean is so far off: within 0.1", abs(off - float(found[1])) <= 0.1
        if both and (found := re.match(r"its standard deviation is about ([\d.]+) times", column.why)):
            turned = float(found[1]) / (both[1][1] / both[0][1])
            yield "from released values, the factor of a standard deviation: within 1.22", 1 / 1.22 <= turned <= 1.22
    pairs = {frozenset((pair.first, pair.second)): pair for pair in truth.pairs}
    for link in said.seen.links:
        state, pair = link.judged().state, pairs[frozenset(link.columns)]
        if state in _SURE:
            yield f"from released values, a link is {state}: so beside the real rows", pair.judged().state == state
        yield "from released values, a real association: within 0.1", abs(link.seen - pair.association) <= 0.1
    yield from unseen(one)
    counts = len(said.seen.links) + said.seen.unlinked + said.seen.unknown
    yield (
        "links, pairs without one and pairs of which nothing can be said are all pairs",
        counts == math.comb(len(said.columns), 2),
    )
    error = said.workload_error
    assert error is not None
    yield "the workload error lies in its interval (nine of ten)", error.low <= one.error <= error.high
    yield from intervals(one)


def unseen(one: Run) -> Told:
    """Whether links above T hide in pairs of which nothing is said, and one in ten elsewhere."""
    said = one.predicted.seen
    if not said.unlinked:
        return
    looked = {frozenset(link.columns) for link in said.links}
    real = associations(one.real[[error.columns[0] for error in one.predicted.columns]])
    above = [frozenset(pair) for pair, strength in real.items() if strength > said.least]
    missed = sum(pair not in looked for pair in above)
    yield (
        "nine of ten links above T would have been seen: no more hide than one in ten and the unknown pairs",
        (missed <= said.unknown + 0.1 * len(above)),
    )


def intervals(one: Run) -> Told:
    """Each column's and pair's predicted distance beside the true one, of the released model."""
    release, schema = fedsyn.load(one.folder), Schema.load(one.folder / "schema.yaml")
    codes = schema.encode(one.real)
    yield from unlisted(one, codes, schema)
    place = {name: at for at, name in enumerate(schema.domain)}
    for kind, errors in (("column", one.predicted.columns), ("pair", one.predicted.pairs)):
        marginals = release.model.project_many([error.columns for error in errors])
        for error, marginal in zip(errors, marginals, strict=True):
            axes = [place[name] for name in error.columns]
            sizes = [schema.domain[name] for name in error.columns]
            real = np.bincount(np.ravel_multi_index(codes[:, axes].T, sizes), minlength=math.prod(sizes)) / len(codes)
            model = np.ravel(marginal) / release.model.total
            yield (
                f"a {kind}'s predicted distance: in its interval",
                error.low <= np.abs(real - model).sum() <= error.high,
            )


def unlisted(one: Run, codes: np.ndarray, schema: Schema) -> Told:
    """Shares of rows that the schema does not list: bounds, intervals, and false alarms."""
    last = {name: float((codes[:, at] == schema.domain[name] - 1).mean()) for at, name in enumerate(schema.domain)}
    if one.predicted.unlisted:
        false = [share for share in one.predicted.unlisted if share.seen and not last[share.column]]
        yield "a column is said to hold values that are not listed: none that holds none (19 runs of 20)", not false
    for share in one.predicted.unlisted:
        if share.low is not None and share.high is not None and (last[share.column] or not share.seen):
            yield (
                "a share of values that are not listed, or a bound: it holds",
                (share.low * share.seen <= last[share.column] <= share.high),
            )


# The guarantee and the files ------------------------------------------------------------------------------------------


def of_the_run(one: Run) -> Told:
    """Statements of ledger, README.md and documentation on the run as a whole."""
    ledger = json.loads((one.folder / "ledger.json").read_text("utf-8"))
    yield (
        "epsilon at delta: by an accountant of the experiment's own",
        (delta_of(ledger["rho"], one.epsilon) <= 1e-6 * (1 + 1e-6)),
    )
    yield (
        "it is named which column says which person a row is of, where a person has several",
        (ledger.get("persons", []) == [name for name in [one.planted.person] if name]),
    )
    for broken in one.planted.rules.values():
        yield "a stated constraint holds in every row", not broken(one.synthetic).any()
    written = pd.read_csv(one.folder / "synthetic.csv", dtype=str, keep_default_na=False)
    cells = pd.read_csv(one.folder.parent / "table.csv", dtype=str, keep_default_na=False)
    for name in written:
        yield "a column is written as the input writes it", notations(written[name]) <= notations(cells[name])


def delta_of(rho: float, epsilon: float) -> float:
    """The delta of one Gaussian release of that rho: Balle and Wang 2018, theorem 8."""
    mu = math.sqrt(2.0 * rho)
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def notations(column: pd.Series) -> set[str]:
    """How cells are written: words as they stand, of numbers and dates the signs and the number of decimals."""
    plain = column.str.fullmatch(r"[-\d.,:+TZ ]*")
    return {
        *column[~plain],
        *column[plain].str.replace(r"\d+(?=[-.,:T ]|$)", "9", regex=True).str.replace(r"\.9$", ".9", regex=True),
    }


# Next -----------------------------------------------------------------------------------------------------------------


def _enter(told: list[tuple[str, bool]], said: Counter[str], so: Counter[str], where: str) -> None:
    for kind, true in told:
        said[kind] += 1
        so[kind] += true
        if where and not true:
            print(f"not so, {where}: {kind}", file=sys.stderr)


def advised(runs: list[Run]) -> Told:
    """What a run advises, held against the run that does so: one table, both numbers of rows, both epsilons."""
    at = {(one.rows, one.epsilon): one for one in runs}
    (least, low), (most, high) = min(at), max(at)
    for epsilon in (low, high):
        few, many = at[least, epsilon], at[most, epsilon]
        if few.predicted.remedy().endswith("twice the rows"):
            yield "next is twice the rows: the workload error falls", many.error < few.error
        if "twice the rows" in few.predicted.scenarios and few.predicted.workload_error:
            foreseen = few.predicted.scenarios["twice the rows"] / few.predicted.workload_error.value
            yield (
                "so much smaller with twice the rows: at least, less 5 points",
                many.error / few.error <= foreseen + 0.05,
            )
    for rows in (least, most):
        one, more = at[rows, low], at[rows, high]
        if "raise epsilon" in one.compared.remedy():
            yield "next is a larger epsilon: the workload error falls", more.error < one.error
    for one in runs:
        if (
            found := re.match(r"set other bounds and bins for ([^.]*)\. The", one.compared.remedy())
        ) and " and " not in found[1]:
            schema, rng = Schema.load(one.folder / "schema.yaml"), np.random.default_rng(1)
            made = schema.decode(schema.encode(one.real), rng)
            kept = compare_tables(one.real, _as_written(made), rng=rng)
            states = {column.name: column.judged().state for column in kept.columns}
            for name in found[1].split(", "):
                yield "next are bounds and bins: real rows lose the column to them", states[name] == "lost"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=list(TABLES), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--wrong", action="store_true", help="name each run in which a statement was not so")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml")
    options = parser.parse_args()
    said, so, count = Counter[str](), Counter[str](), 0
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.tables:
            planted = TABLES[name]
            for seed in range(1, options.seeds + 1):
                runs, schema = list[Run](), None
                for rows in (planted.rows, 2 * planted.rows):
                    for epsilon in (1.0, 3.0):
                        folder = Path(temporary, f"{name}-{rows}-{epsilon:g}-{seed}")
                        one = Run.of(planted, rows, epsilon, seed, folder, schema)
                        schema = schema or folder / "schema.yaml"  # what more rows or a larger epsilon change
                        runs.append(one)
                        told = [*of_the_run(one), *beside_rows(one), *from_released(one)]
                        _enter(told, said, so, f"{name}, {rows} rows, epsilon {epsilon:g}" if options.wrong else "")
                _enter([*advised(runs)], said, so, name if options.wrong else "")
                count += len(runs)
                print(f"{name}, seed {seed}: {count} runs", file=sys.stderr, flush=True)
    print(f"{count} runs\n\n| statement | said | so |\n|---|---|---|")
    for kind in sorted(said):
        print(f"| {kind} | {said[kind]:,} | {so[kind] / said[kind]:.0%} |")
    least = yamlio.read_mapping(Path(__file__).with_name("expected.yaml"))["statements"]
    missed = [kind for kind, share in least.items() if not said[kind] or so[kind] < float(share) * said[kind]]
    print(f"never said, or less often so than expected: {'; '.join(missed)}" if missed else "as expected")
    return int(options.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
